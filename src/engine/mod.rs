//! Makes tasks move. What the outside asks for (`create`, `message`, `cancel`, `retry`, `decide`) only appends facts;
//! the loop in `drive.rs` does the rest, and a crash anywhere is continued by asking `next_step` again.

mod alone;
mod answer;
mod ask;
mod asking;
mod children;
mod credentials;
mod decide;
mod delta_stream;
mod drive;
mod expire;
mod tree;
mod in_flight;
mod read_tree;
mod integrity;
mod lease;
mod limits;
mod session;
mod measure;
mod draft;
mod moves;
mod resolve_conflict;
mod perform;
mod pinned;
mod save;
mod send;
mod unreadable;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::alone::Alone;
use self::asking::InFlightModelCalls;
use self::in_flight::InFlightCalls;
use self::lease::Leases;
use self::session::TaskSession;
use crate::agent::{Agent, Agents};
use crate::failpoint;
use crate::model::ModelClient;
use crate::people::Caller;
use crate::people::may::Roster;
use crate::policy::Policy;
use crate::secret::Secret;
use crate::secret::seal::{Body, Sealer};
use crate::store::{CommitError, Listener, ReadError, Store};
use crate::task::change::IdempotencyRow;
use crate::task::decision::{Action, Then};
use crate::task::id::{CallId, RequestId, TaskId};
use crate::task::item::Part;
use crate::task::status::TaskStatus;
use crate::tool::catalog::Catalog;
use crate::world::{Clock, Ids};

/// A new task, as asked for. Checked by the door for shape and size; the engine checks the agent.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// The agent's name; `None` is the default agent.
    pub agent: Option<String>,
    /// The user's message.
    pub items: Vec<Part>,
    /// The caller's own string, or `None` for a fresh id.
    pub session_id: Option<String>,
    /// Data about the user.
    pub user_context: Option<BTreeMap<String, String>>,
    /// The caller's, as JSON text of an object.
    pub metadata: String,
}

/// The user's next message.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// The message.
    pub items: Vec<Part>,
    /// Data about the user.
    pub user_context: Option<BTreeMap<String, String>>,
    /// Whether open questions are dropped.
    pub supersede: bool,
}

/// A human's answer, as sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What the approver saw.
    pub digest: Option<String>,
    /// The answer.
    pub body: AnswerBody,
}

impl Answer {
    /// What is to stand in place of calls' arguments, each beside the id of its call as it was sent.
    fn edits(&self) -> impl Iterator<Item = (String, &str)> {
        let replies = if let AnswerBody::PerCall(replies) = &self.body { Some(replies) } else { None };
        let edits = replies.into_iter().flatten().filter(|(_, reply)| reply.action == Action::Edit);
        edits.filter_map(|(call, reply)| Some((call.clone(), reply.arguments.as_deref()?)))
    }
}

/// One answer for the whole request, or one for each call.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerBody {
    /// `action` in the body or in the path.
    Whole {
        /// The action.
        action: Action,
        /// The reason.
        reason: Option<String>,
        /// What follows a rejection.
        then: Option<Then>,
        /// What was filled in, as JSON text. It may be a credential.
        response: Option<Secret<String>>,
        /// The result, as JSON text.
        result: Option<String>,
    },
    /// `decisions`: by `tool_call_id` as it was sent.
    PerCall(BTreeMap<String, CallReply>),
}

/// The answer to one call, as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReply {
    /// The action.
    pub action: Action,
    /// The reason.
    pub reason: Option<String>,
    /// What follows a rejection.
    pub then: Option<Then>,
    /// The replacement of the arguments, as it was written.
    pub arguments: Option<String>,
    /// The result, as JSON text.
    pub result: Option<String>,
}

/// The `Idempotency-Key` of a POST.
#[derive(Clone, Debug)]
pub struct Key {
    /// Method and path, e.g. `POST /v1/tasks`.
    pub path: String,
    /// The header as it stands.
    pub key: String,
    /// The body, as it is kept and known again.
    pub body: Body,
}

/// Something was stored (or, replayed, had been).
#[derive(Debug)]
pub struct Accepted {
    /// The task the operation answers with.
    pub task_id: TaskId,
    /// The root of its tree: what a POST waits for.
    pub root: TaskId,
    /// Whether an earlier POST with the same key did it.
    pub replayed: bool,
    /// Hears of the tree from before this was stored on: nothing that followed is missed. `None` where it stands already.
    pub news: Option<Listener>,
    /// Where what was stored begins. `None` where nothing was.
    pub written: Option<Written>,
}

/// Where the commit of an operation begins, for whoever reads the tree's events from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// With this task's item of that `seq`, or with one of another task of the same commit.
    Item(TaskId, i64),
    /// It is the commit that this key was stored with.
    Key(Box<IdempotencyRow>),
}

impl Accepted {
    /// Nothing was set in motion now.
    pub(crate) fn state(task_id: TaskId, root: TaskId, replayed: bool) -> Self {
        Self { task_id, root, replayed, news: None, written: None }
    }
}

/// One thing that is wrong with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// JSON pointer of the place.
    pub pointer: String,
    /// What was expected; never the value.
    pub detail: String,
}

/// Why nothing was done. Each has its problem code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// `not_found`.
    #[error("there is nothing by that id")]
    NotFound,
    /// `forbidden`.
    #[error("{0}")]
    Forbidden(String),
    /// `invalid`.
    #[error("the body does not fit")]
    Invalid(Vec<FieldError>),
    /// `idempotency_key_reused`.
    #[error("the key was used with another body")]
    KeyReused,
    /// `digest_mismatch`.
    #[error("the digest is not that of the request")]
    DigestMismatch(RequestId),
    /// `request_expired`.
    #[error("the request has expired")]
    Expired(RequestId),
    /// `request_withdrawn`.
    #[error("the request was withdrawn")]
    Withdrawn(RequestId),
    /// `already_decided`.
    #[error("it is decided already")]
    AlreadyDecided {
        /// The request.
        request: RequestId,
        /// The call that was answered before, where it is about one.
        call: Option<CallId>,
    },
    /// `task_running`, `task_paused`, `task_final` or `task_not_failed`: by what was asked and the status.
    #[error("the task is {status:?}")]
    Conflict {
        /// The problem's code.
        code: ConflictCode,
        /// The task.
        task_id: TaskId,
        /// Its status.
        status: TaskStatus,
    },
    /// `not_a_root_task`.
    #[error("the task is a sub-agent's")]
    NotARoot {
        /// Its root.
        root: TaskId,
        /// Its status.
        status: TaskStatus,
    },
    /// `unavailable`: the database does not answer, or the service is going down.
    #[error("not now")]
    Unavailable,
    /// `internal`: logged where it happened.
    #[error("an internal error")]
    Internal,
}

/// Which conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictCode {
    /// A message to a running task.
    TaskRunning,
    /// A message to a paused task.
    TaskPaused,
    /// Cancel of a completed or failed task.
    TaskFinal,
    /// Retry of a task that is not failed.
    TaskNotFailed,
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable => Self::Unavailable,
            ReadError::Corrupt(what) => {
                tracing::error!(%what, "what is stored cannot be understood");
                Self::Internal
            }
        }
    }
}

/// How often an operation reads again after another commit came first, before it gives up as `unavailable`.
const TRIES: u32 = 200;

/// How long letting go of leases may take: the process ends, whatever the database does.
const RELEASE: Duration = Duration::from_secs(2);

/// What the engine may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Tasks that run at once in this process; more wait in the database.
    pub max_running: usize,
    /// How long a lease lasts.
    pub lease: Duration,
    /// Leases without a new item that a task may use alone in a process, before it fails.
    pub takeovers: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_running: 64, lease: Duration::from_secs(30), takeovers: 5 }
    }
}

/// What an engine is made of.
#[derive(Clone)]
pub struct Parts {
    /// Every byte we keep.
    pub store: Store,
    /// The agents.
    pub agents: Arc<Agents>,
    /// The rules.
    pub policy: Arc<Policy>,
    /// The tools.
    pub catalog: Arc<Catalog>,
    /// The models, by name.
    pub models: BTreeMap<String, Arc<dyn ModelClient>>,
    /// Who is known.
    pub roster: Roster,
    /// Seals credentials, where there are any.
    pub sealer: Option<Sealer>,
    /// The machine's clock.
    pub clock: Arc<dyn Clock>,
    /// Fresh ids.
    pub ids: Arc<dyn Ids>,
    /// Limits of this process.
    pub settings: Settings,
}

/// The engine. One for each process.
pub struct Engine {
    store: Store,
    agents: Arc<Agents>,
    /// Agents as earlier definitions have them, by version.
    earlier: Locked<BTreeMap<String, Arc<Agent>>>,
    policy: Arc<Policy>,
    catalog: Arc<Catalog>,
    models: BTreeMap<String, Arc<dyn ModelClient>>,
    roster: Roster,
    sealer: Option<Sealer>,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    settings: Settings,
    /// This process, in leases: random per start.
    replica: String,
    /// Rights to run.
    slots: Arc<Semaphore>,
    /// What this process drives.
    leases: Arc<Leases>,
    /// Calls that are out.
    in_flight_calls: Arc<InFlightCalls>,
    /// Questions to models that are out.
    asking: Arc<InFlightModelCalls>,
    /// Drivers.
    drivers: TaskTracker,
    /// Something may be waiting in the database for a slot of this process.
    backlog: AtomicBool,
    /// There is room for it now.
    room: Arc<Notify>,
    /// Whether one task takes all of it.
    alone: Arc<Alone>,
    /// The service goes down: no new effect begins.
    stop: CancellationToken,
    /// The time to go down is over.
    killed: CancellationToken,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({})", self.replica)
    }
}

impl Engine {
    /// An engine that does nothing until something is asked of it or [`Engine::work`] runs.
    #[must_use]
    pub fn new(parts: Parts) -> Arc<Self> {
        let replica = parts.ids.fresh().to_string();
        let room = Arc::new(Notify::new());
        Arc::new(Self {
            store: parts.store,
            agents: parts.agents,
            earlier: Locked::default(),
            policy: parts.policy,
            catalog: parts.catalog,
            models: parts.models,
            roster: parts.roster,
            sealer: parts.sealer,
            clock: parts.clock,
            ids: parts.ids,
            slots: Arc::new(Semaphore::new(parts.settings.max_running)),
            settings: parts.settings,
            replica,
            leases: Arc::default(),
            in_flight_calls: Arc::default(),
            asking: Arc::default(),
            drivers: TaskTracker::new(),
            backlog: AtomicBool::new(false),
            alone: Arc::new(Alone::new(Arc::clone(&room))),
            room,
            stop: CancellationToken::new(),
            killed: CancellationToken::new(),
        })
    }

    /// Commits what a door pushed, and goes on driving from there. Returns once that first commit is durable; `None`
    /// when another commit came first, so that the door reads again.
    async fn submit(self: &Arc<Self>, mut session: TaskSession) -> Result<Option<Accepted>, Refusal> {
        let (task_id, root) = (session.task_id(), session.own.row.root_task_id);
        let news = Some(self.store.attend(root));
        let written_from = Some(Written::Item(task_id, session.own.row.last_seq + 1));
        let (reply, written) = oneshot::channel();
        session.reply = Some(reply);
        // Whoever waits in the database comes first, each tenant in its turn.
        let first = !self.backlog.load(Ordering::Relaxed) && !self.alone.is_taken();
        session.slot = first.then(|| Arc::clone(&self.slots).try_acquire_owned().ok()).flatten();
        self.drivers.spawn(Arc::clone(self).drive(session));
        match written.await {
            Ok(Ok(_)) => {
                failpoint::reach("door.committed");
                Ok(Some(Accepted { task_id, root, replayed: false, news, written: written_from }))
            }
            Ok(Err(CommitError::Stale | CommitError::Refused)) => Ok(None),
            Ok(Err(CommitError::Unavailable | CommitError::Unknown)) => Err(Refusal::Unavailable),
            Err(_) => Err(Refusal::Internal),
        }
    }

    /// Goes down: no new effect begins; drivers get `time` to end what they do, their tasks are queued for others. So are
    /// those whose calls do not end: who takes them over knows which call had started, and waits for its time to be over.
    pub async fn shut_down(&self, time: Duration) {
        self.stop.cancel();
        self.drivers.close();
        tokio::select! {
            () = self.drivers.wait() => {}
            () = self.clock.sleep(time) => tracing::warn!("calls were still running at the end of the time to go down"),
        }
        self.killed.cancel();
        let left: Vec<_> = self.leases.all().into_iter().map(|(task, _)| task).collect();
        if left.is_empty() {
            return;
        }
        tokio::select! {
            released = self.store.release(&self.replica, &left) => {
                let released = released.map_or(0, |tasks| tasks.len());
                tracing::warn!(held = left.len(), released, "tasks were let go of with their calls still running");
            }
            () = self.clock.sleep(RELEASE) => {}
        }
    }
}

/// A value behind a lock that is never held across an await, and that a panic elsewhere does not poison.
#[derive(Debug, Default)]
struct Locked<T>(Mutex<T>);

impl<T> Locked<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Key {
    /// The row that goes into the commit of the operation's effect.
    fn row(&self, caller: &Caller, session: &TaskSession, request_id: Option<RequestId>) -> IdempotencyRow {
        IdempotencyRow {
            tenant: caller.tenant.clone(),
            user_id: caller.user_id.to_string(),
            person: caller.user_id.folded(),
            path: self.path.clone(),
            key: self.key.clone(),
            body_digest: self.body.kept().to_owned(),
            task_id: session.task_id(),
            request_id,
        }
    }
}
