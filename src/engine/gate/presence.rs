//! The presence of askers: who waits for which call, and whether a result was delivered. Presence
//! is a time in the task's row, fenced by its version like every write; a process that dies leaves
//! a time that passes by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::session::TaskSession;
use crate::engine::{Engine, TRIES};
use crate::failpoint;
use crate::store::CommitError;
use crate::task::change::{Asker, DELIVERED, LeaseChange};
use crate::task::id::TaskId;

/// How long an asker counts as present after its wait: the answer is on its way, or the asker
/// asks again by itself.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// The calls that connections of this process wait for, each with their number. Between the commit
/// of a result and its delivery the stored presence says that nobody waits.
pub(in crate::engine) type Askers = crate::engine::runtime::Locked<BTreeMap<TaskId, Awaited>>;

/// A call that connections of this process wait for.
#[derive(Debug, Default)]
pub(in crate::engine) struct Awaited {
    connections: usize,
    /// The result as an MCP server wrote it, once there is one.
    raw: Option<Arc<str>>,
}

/// A connection that waits for a call. If it ends without an answer, its presence ends.
pub(super) struct AskerGuard {
    engine: Arc<Engine>,
    task: TaskId,
    /// Whether the row says that an asker is there.
    present: bool,
}

impl AskerGuard {
    pub(super) fn new(engine: &Arc<Engine>, task: TaskId) -> Self {
        engine.askers.lock().entry(task).or_default().connections += 1;
        Self {
            engine: Arc::clone(engine),
            task,
            present: false,
        }
    }

    /// The row says, or is about to say, that an asker is there.
    pub(super) fn arrives(&mut self) {
        self.present = true;
    }

    /// The asker gets its answer: the presence ends with the answer's commit, or by time.
    pub(super) fn is_answered(&mut self) {
        self.present = false;
    }

    /// Whether the row says that this asker is there.
    pub(super) fn is_present(&self) -> bool {
        self.present
    }
}

impl Drop for AskerGuard {
    fn drop(&mut self) {
        let mut askers = self.engine.askers.lock();
        if let Some(awaited) = askers.get_mut(&self.task) {
            awaited.connections -= 1;
            if awaited.connections == 0 {
                askers.remove(&self.task);
            }
        }
        drop(askers);
        if self.present {
            let (engine, task) = (Arc::clone(&self.engine), self.task);
            self.engine.drivers.spawn(async move {
                engine.set_asker(task, None, Asker::Gone).await;
            });
        }
    }
}

/// The answer of a settled call. Once it was handed to the client, [`Delivery::delivered`] notes
/// that; dropped before, the result stays for the next ask.
pub struct Delivery {
    guard: AskerGuard,
    session: Box<TaskSession>,
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Delivery({})", self.guard.task)
    }
}

impl Delivery {
    pub(super) fn new(guard: AskerGuard, session: TaskSession) -> Self {
        Self {
            guard,
            session: Box::new(session),
        }
    }

    /// Notes in the background that the client has the whole answer.
    pub fn delivered(self) {
        let Self { mut guard, session } = self;
        guard.is_answered();
        let engine = Arc::clone(&guard.engine);
        let tracker = engine.drivers.clone();
        failpoint::reach("gate.answering");
        tracker.spawn(async move {
            let task = guard.task;
            failpoint::reach("gate.delivering");
            engine
                .set_asker(task, Some(*session), Asker::Delivered)
                .await;
            failpoint::reach("gate.delivered");
            drop(guard);
        });
    }
}

impl Engine {
    /// Whether a connection of this process waits for the call or delivers its result.
    pub(super) fn is_awaited_here(&self, task: TaskId) -> bool {
        self.askers.lock().contains_key(&task)
    }

    /// Keeps a result as an MCP server wrote it, for the connections that wait for the call.
    pub(in crate::engine) fn keep_raw_result(&self, task: TaskId, raw: Arc<str>) {
        if let Some(awaited) = self.askers.lock().get_mut(&task) {
            awaited.raw = Some(raw);
        }
    }

    /// The result of a call as an MCP server wrote it, if it came while a connection of this process
    /// waited.
    pub(super) fn raw_result(&self, task: TaskId) -> Option<Arc<str>> {
        self.askers.lock().get(&task)?.raw.clone()
    }

    /// The number of calls that connections of this process wait for.
    #[must_use]
    pub fn waiting_askers(&self) -> usize {
        self.askers.lock().len()
    }

    /// Writes the presence of a call's asker, unless the result has been delivered. A failure is
    /// left to time.
    pub(super) async fn set_asker(&self, task: TaskId, session: Option<TaskSession>, asker: Asker) {
        let mut session = session;
        for _ in 0..TRIES {
            let loaded = match session.take() {
                Some(session) => Some(session),
                None => self.load(task).await.ok().flatten(),
            };
            let Some(mut loaded) = loaded else { return };
            let until = loaded.own.row.asker_until;
            if until == Some(DELIVERED) || until.is_none() {
                return;
            }
            match self.commit_asker(&mut loaded, asker).await {
                Err(CommitError::Stale | CommitError::Unknown) => {}
                Ok(()) | Err(CommitError::Refused | CommitError::Unavailable) => return,
            }
        }
    }

    /// Commits a presence and the session's idempotency key, fenced by the version that the session
    /// has read.
    pub(super) async fn commit_asker(
        &self,
        session: &mut TaskSession,
        asker: Asker,
    ) -> Result<(), CommitError> {
        session.own.asker = Some(asker);
        self.commit(session, LeaseChange::Keep).await.map(|_| ())
    }
}
