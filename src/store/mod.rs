//! Every byte we keep. A struct, not a trait: `SQLite` on a temporary file is the test double.
//!
//! What must stay true: there is one kind of write of tasks (`commit`), all of it or nothing; `claim` and `renew` touch
//! leases only; everything else reads.

mod batch;
mod claim;
mod commit;
mod commit_postgres;
mod commit_sqlite;
mod connection_health;
mod credentials;
mod damaged_task;
mod db;
mod events;
mod failure;
mod feed;
mod idempotency;
mod identity;
mod journal;
mod open;
mod outage;
mod page;
mod relay;
mod requests;
mod sessions;
mod settings;
mod tasks;
mod tree;
mod users;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub use self::claim::{BESIDE, Claimed, Drive};
pub use self::db::Sql;
pub use self::settings::{OpenError, Settings};

use self::commit::Committer;
pub use self::damaged_task::DamagedTask;
use self::db::{Db, Engine, Failure, Value, sql};
pub use self::events::{Event, Events, Part, Portion};
use self::feed::Feed;
pub use self::feed::{Heard, Listener, News};
#[doc(hidden)]
pub use self::open::PLANNED_ONCE;
pub use self::outage::Outage;
use self::page::PAGE;
pub use self::page::Page;
pub use self::tree::{TreeItem, TreeSnapshot};
use crate::task::change::{Change, Committed};
use crate::task::decision::Decision;
use crate::task::delta::Delta;
use crate::task::id::{RequestId, TaskId};
use crate::task::request::RequestSpec;
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::time::Time;
use crate::task::user::UserId;

/// A request as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestRow {
    /// The question as it was asked.
    pub asked: RequestSpec,
    /// The number of the item that asks it, in its task's journal.
    pub asked_seq: i64,
    /// The task that asked.
    pub task_id: TaskId,
    /// The root of its tree.
    pub root_task_id: TaskId,
    /// The tenant.
    pub tenant: String,
    /// The tree's owner.
    pub owner: String,
    /// The session.
    pub session_id: String,
    /// Names from the root's agent to the one that asked.
    pub agent_path: Vec<String>,
    /// Where it stands: `Pending` until the commit that closes it, also past `expires_at`; see `expired`.
    pub status: RequestStatus,
    /// When it was asked.
    pub created_at: Time,
    /// From when on an answer comes too late; `None` is never.
    pub expires_at: Option<Time>,
    /// Whether `expires_at` had passed, by the database's clock, when this row was read.
    pub expired: bool,
    /// Whether it was asked before the database was restored, or a standby promoted: its calls may have run since.
    pub doubted: bool,
    /// The answers so far, oldest first, each with its moment.
    pub answers: Vec<(Time, Decision)>,
}

/// Which root tasks to list.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// Of this tenant.
    pub tenant: String,
    /// Of these owners; empty is everybody's.
    pub users: Vec<UserId>,
    /// In one of these; empty is any.
    pub statuses: Vec<TaskStatus>,
    /// Of one of these agents; empty is any.
    pub agents: Vec<String>,
    /// Of one of these sessions; empty is any.
    pub sessions: Vec<String>,
    /// These trees' tasks instead of root tasks; empty is root tasks.
    pub roots: Vec<TaskId>,
    /// Only tasks older (smaller id) than this one.
    pub before: Option<TaskId>,
    /// How many at most.
    pub limit: i64,
}

/// Which requests to list.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// Of this tenant.
    pub tenant: String,
    /// What this person may decide (by `approvers`: user or group rows; the owner where `owner` is set), or has decided
    /// when `statuses` is not just pending. `None`: no such condition.
    pub person: Option<Person>,
    /// In one of these; empty is any.
    pub statuses: Vec<RequestStatus>,
    /// Of one of these kinds (their wire words); empty is any.
    pub kinds: Vec<String>,
    /// Asked by one of these agents; empty is any.
    pub agents: Vec<String>,
    /// Of one of these sessions; empty is any.
    pub sessions: Vec<String>,
    /// Of these trees; empty is any.
    pub roots: Vec<TaskId>,
    /// Where only pending ones are asked for: also those past their deadline, which are pending until they are closed.
    pub overdue: bool,
    /// Only requests younger (greater id) than this one.
    pub after: Option<RequestId>,
    /// How many at most.
    pub limit: i64,
}

/// Somebody, as the inbox sees him.
#[derive(Clone, Debug, Default)]
pub struct Person {
    /// His id.
    pub user_id: UserId,
    /// His groups.
    pub groups: Vec<String>,
    /// Without accounts: he may decide everything.
    pub everything: bool,
}

/// Why something was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Another commit came first: read again.
    #[error("another commit came first")]
    Stale,
    /// A constraint forbids it: a spent idempotency key, or a bug.
    #[error("a constraint forbids it")]
    Refused,
    /// Nothing was sent: the database does not answer.
    #[error("the database does not answer")]
    Unavailable,
    /// The answer was lost, and it could not be found out whether it was written.
    #[error("the database's answer was lost")]
    Unknown,
}

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The database does not answer.
    #[error("the database does not answer")]
    Unavailable,
    /// What is stored cannot be understood.
    #[error("what is stored cannot be understood: {0}")]
    Corrupt(String),
}

/// The store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    db: Arc<Db>,
    feed: Arc<Feed>,
    committer: Arc<Committer>,
    writers: TaskTracker,
    stop: CancellationToken,
    /// Whether this replica hears nothing of others, nor they of it.
    muted: Arc<AtomicBool>,
    /// The tenant and the users that the last claims ended with.
    turns: Mutex<claim::Turns>,
    /// Tasks that somebody could not read.
    unreadable: Mutex<BTreeSet<TaskId>>,
    /// With the last handle the writers end, too.
    _last: DropGuard,
}

/// How many batches are written at once on Postgres. Few: what waits meanwhile goes into one statement, whose cost is
/// mostly its own.
const WRITERS: u32 = 3;

/// A definition is kept once per digest. Whoever has the text that belongs to a digest puts right what is kept of it.
const KEEP_VERSION: Sql = sql!(
    "insert into agent_version (digest, definition, created_at) values ($2, $3, " (now 1) ")
     on conflict (digest) do update set definition = excluded.definition
        where agent_version.definition <> excluded.definition returning created_at as at"
);

const DEFINITION: Sql = sql!("select definition from agent_version where digest = $1").by_key();

const NOW: Sql = sql!("select " (now 1) " as at");

/// A read of a table of ours: a database without them is not ready.
///
/// Differs because Postgres may have been told to write nothing more.
const READY: Sql = Sql {
    postgres: "select count(*) as at from agent_version
        where digest = '' having current_setting('transaction_read_only') = 'off'",
    sqlite: "select count(*) as at from agent_version where digest = ''",
    by_key: false,
};

#[derive(sqlx::FromRow)]
struct Definition {
    definition: String,
}

#[derive(sqlx::FromRow)]
struct At {
    at: i64,
}

impl Store {
    /// Whether this process is the only one that serves the database (SQLite): whoever held a lease before is gone.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        matches!(self.inner.db.engine, Engine::Sqlite { .. })
    }

    /// Opens the database: takes the lock on a `SQLite` file, refuses a Postgres that may lose what it confirmed, and
    /// brings the schema up to date (`migrate: true`) or refuses one that is not what this binary knows.
    ///
    /// # Errors
    /// [`OpenError`]: why it could not be opened.
    pub async fn open(settings: &Settings, clock: Arc<dyn crate::world::Clock>) -> Result<Self, OpenError> {
        let schema = if settings.migrate { open::Schema::Migrate } else { open::Schema::Check };
        let db = Arc::new(open::open(settings, schema, clock).await?);
        identity::settle(&db, settings.restored).await?;
        let writers = match db.engine {
            Engine::Postgres { .. } => WRITERS.min(settings.max_connections.div_ceil(2)),
            Engine::Sqlite { .. } => {
                db.write::<claim::Leased>(open::LEASES_OVER, Vec::new())
                    .await
                    .map_err(|failure| OpenError::Migration(failure.error.to_string()))?;
                1
            }
        };
        let (feed, tasks, stop) = (Arc::new(Feed::default()), TaskTracker::new(), CancellationToken::new());
        let writers = usize::try_from(writers).unwrap_or(1);
        let committer = Committer::start(Arc::clone(&db), Arc::clone(&feed), writers, stop.clone(), &tasks);
        let muted = Arc::new(AtomicBool::new(false));
        if let Some(relay) = relay::Relay::new(Arc::clone(&db), Arc::clone(&feed), stop.clone(), Arc::clone(&muted)) {
            tasks.spawn(relay.run());
        }
        tasks.close();
        let last = stop.clone().drop_guard();
        Ok(Self {
            inner: Arc::new(Inner {
                db,
                feed,
                committer,
                writers: tasks,
                stop,
                muted,
                turns: Mutex::default(),
                unreadable: Mutex::default(),
                _last: last,
            }),
        })
    }

    /// Only brings the schema up to date, for the command.
    ///
    /// # Errors
    /// [`OpenError`]: why it could not be opened.
    pub async fn migrate(settings: &Settings, clock: Arc<dyn crate::world::Clock>) -> Result<(), OpenError> {
        open::open(settings, open::Schema::Migrate, clock).await?.close().await;
        Ok(())
    }

    /// Writes what was handed over, then lets go of the database. Changes that come later are `Unavailable`. A store
    /// that is only dropped lets go a moment later: close it before its `SQLite` file is opened again.
    pub async fn close(&self) {
        self.inner.committer.close();
        self.inner.stop.cancel();
        self.inner.writers.wait().await;
        self.inner.db.close().await;
    }

    /// Writes one change, all of it or nothing. Dropping the future does not take it back.
    ///
    /// # Errors
    /// [`CommitError`]: what became of it.
    pub async fn commit(&self, change: Change) -> Result<Committed, CommitError> {
        self.inner.committer.commit(change).await
    }

    /// Has the size of every batch of changes told to `observer` (a metric). The first one stays.
    pub fn observe_batches(&self, observer: impl Fn(usize) + Send + Sync + 'static) {
        self.inner.committer.observe(Box::new(observer));
    }

    /// Keeps an agent's definition under its digest; called at every start.
    ///
    /// # Errors
    /// [`CommitError`]: what became of it.
    pub async fn agent_version(&self, digest: &str, definition: &str) -> Result<(), CommitError> {
        let values = vec![Value::Now, Value::Text(digest.to_owned()), Value::Text(definition.to_owned())];
        self.inner.db.write::<At>(KEEP_VERSION, values).await.map(|_| ()).map_err(|failure| {
            if !failure.unreached() {
                tracing::warn!(error = %failure.error, "an agent's definition could not be kept");
            }
            // Written or not: it may be called again.
            if !failure.sent || failure.lost() { CommitError::Unavailable } else { commit::refusal(&failure) }
        })
    }

    /// The definition that is kept under a digest, as it stands: whoever believes it compares first.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or what is stored cannot be understood.
    pub async fn agent_definition(&self, digest: &str) -> Result<Option<String>, ReadError> {
        let row = self.db().one::<Definition>(DEFINITION, vec![Value::Text(digest.to_owned())]).await?;
        Ok(row.map(|row| row.definition))
    }

    /// The database's clock.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or what is stored cannot be understood.
    pub async fn now(&self) -> Result<Time, ReadError> {
        let row = self.db().one::<At>(NOW, vec![Value::Now]).await?;
        row.map(|row| Time(row.at)).ok_or_else(|| ReadError::Corrupt("no moment".to_owned()))
    }

    /// Whether the database answers soon, takes writes and has our tables.
    pub async fn ready(&self) -> bool {
        self.db().probe::<At>(READY).await.is_some()
    }

    /// A receiver that is told after each commit of this process to that tree.
    pub fn watch(&self, root: TaskId) -> tokio::sync::watch::Receiver<News> {
        self.inner.feed.watch(root)
    }

    /// A listener that hears of each commit to that tree, and of what its models are saying meanwhile, on any replica.
    pub fn listen(&self, root: TaskId) -> Listener {
        self.listen_on(root, self.attend(root))
    }

    /// One who hears only what this process does, and for whom nobody takes the trouble to speak.
    pub fn attend(&self, root: TaskId) -> Listener {
        self.inner.feed.attend(root)
    }

    /// Makes a listener of one who attends: he has missed nothing since.
    pub fn listen_on(&self, root: TaskId, attends: Listener) -> Listener {
        self.inner.feed.listen(root, attends)
    }

    /// Whether somebody listens to that tree, on any replica, as far as this one knows.
    pub fn is_listened_to(&self, root: TaskId) -> bool {
        self.inner.feed.is_listened_to(root)
    }

    /// Tells whoever listens what a model said of an answer that is not stored yet.
    pub fn say(&self, delta: Delta) {
        self.inner.feed.say(delta);
    }

    /// Returns when another replica has queued a task that anybody may take. It may be taken by then.
    pub async fn work(&self) {
        self.inner.feed.work().await;
    }

    /// For tests: from now on no word gets to other replicas or from them.
    #[doc(hidden)]
    pub fn mute(&self) {
        self.inner.muted.store(true, Ordering::Relaxed);
    }

    /// For tests: sets the database's clock forward on Postgres (on `SQLite` it is the injected one).
    #[doc(hidden)]
    pub fn set_clock_forward(&self, by: Duration) {
        self.db().offset.fetch_add(batch::micros(by), Ordering::Relaxed);
    }

    /// For the test that prepares every statement on both engines; an empty text is not used on that engine.
    #[doc(hidden)]
    pub fn statements() -> Vec<Sql> {
        let lite = commit_sqlite::STATEMENTS.iter().map(|sqlite| Sql { postgres: "", sqlite, by_key: true });
        [KEEP_VERSION, DEFINITION, NOW, READY, commit::FIND, open::LEASES_OVER, commit_postgres::STATEMENT]
            .into_iter()
            .chain(lite)
            .chain(claim::STATEMENTS.iter().copied())
            .chain(credentials::STATEMENTS.iter().copied())
            .chain(events::STATEMENTS.iter().copied())
            .chain(idempotency::STATEMENTS.iter().copied())
            .chain(identity::STATEMENTS.iter().copied())
            .chain(journal::STATEMENTS.iter().copied())
            .chain(relay::STATEMENTS.iter().copied())
            .chain(damaged_task::STATEMENTS.iter().copied())
            .chain(requests::STATEMENTS.iter().copied())
            .chain(sessions::STATEMENTS.iter().copied())
            .chain(tasks::STATEMENTS.iter().copied())
            .chain(tree::STATEMENTS.iter().copied())
            .chain(users::STATEMENTS.iter().copied())
            .collect()
    }

    fn db(&self) -> &Db {
        &self.inner.db
    }
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        if !failure.unreached() {
            tracing::warn!(error = %failure.error, sent = failure.sent, "the database could not be read");
        }
        if failure.corrupt() { Self::Corrupt(failure.error.to_string()) } else { Self::Unavailable }
    }
}
