//! Stores the presence of askers: whether a client waits for a gate call, and whether the call's
//! result was delivered. The task's row has the end time of a presence, so the presence ends even
//! if the process dies. The row's version fences the write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::session::TaskSession;
use crate::engine::{Engine, MAX_TRIES};
use crate::failpoint;
use crate::store::CommitError;
use crate::task::change::{ASKER_UNTIL_DELIVERED, AskerPresence, LeaseChange};
use crate::task::id::TaskId;

/// The minimum time for which a client still counts as present after its wait has ended. In this
/// time, the answer may still be on its way, or the client may ask again.
pub(super) const PRESENCE_GRACE: Duration = Duration::from_secs(5);

/// The calls that connections of this process wait for. The rows of the tasks do not show all these
/// calls: the commit that stores a call's result also marks the asker as absent, although a
/// connection still waits for the result.
pub(in crate::engine) type AwaitedCalls =
    crate::engine::runtime::Locked<BTreeMap<TaskId, AwaitedCall>>;

/// The number of connections of this process that wait for a call, and the call's result for these
/// connections.
#[derive(Debug, Default)]
pub(in crate::engine) struct AwaitedCall {
    connections: usize,
    /// The result as the MCP server wrote it; `None` until it has arrived.
    raw: Option<Arc<str>>,
}

/// A guard of a connection on which an asker waits for the verdict on a call. Dropping the guard
/// before the asker is answered ends the asker's stored presence.
pub(super) struct AskerGuard {
    engine: Arc<Engine>,
    task: TaskId,
    /// Whether the task's row shows the asker as present, so that dropping this guard must change
    /// the row.
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

    pub(super) fn set_present(&mut self) {
        self.present = true;
    }

    /// Marks the asker as answered, so that dropping the guard does not end the presence. Instead,
    /// the commit of the answer ends the presence, or the presence runs out at its stored time.
    pub(super) fn mark_answered(&mut self) {
        self.present = false;
    }

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
                engine.set_asker(task, None, AskerPresence::Absent).await;
            });
        }
    }
}

/// A handle by which the HTTP layer reports that the result of a settled call has reached the
/// client. If the handle is dropped without [`Delivery::delivered`], the result goes to the next
/// client that proposes the call.
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

    /// Records that the client has received the whole answer. The commit runs in the background.
    pub fn delivered(self) {
        let Self { mut guard, session } = self;
        guard.mark_answered();
        let engine = Arc::clone(&guard.engine);
        let tracker = engine.drivers.clone();
        failpoint::reach("gate.answering");
        tracker.spawn(async move {
            let task = guard.task;
            failpoint::reach("gate.delivering");
            engine
                .set_asker(task, Some(*session), AskerPresence::Delivered)
                .await;
            failpoint::reach("gate.delivered");
            drop(guard);
        });
    }
}

impl Engine {
    /// Whether a connection of this process waits for the call or delivers the call's result.
    pub(super) fn is_awaited_here(&self, task: TaskId) -> bool {
        self.askers.lock().contains_key(&task)
    }

    /// Keeps `raw`, the result as the MCP server wrote it, while a connection of this process waits
    /// for the call. Without such a connection, drops `raw`.
    pub(in crate::engine) fn keep_raw_result(&self, task: TaskId, raw: Arc<str>) {
        if let Some(awaited) = self.askers.lock().get_mut(&task) {
            awaited.raw = Some(raw);
        }
    }

    /// Returns the result of a call as the MCP server wrote it, if it came while a connection of
    /// this process waited for the call.
    pub(super) fn raw_result(&self, task: TaskId) -> Option<Arc<str>> {
        self.askers.lock().get(&task)?.raw.clone()
    }

    /// Stores `asker` in the row of `task`: whether a client waits for the call of this task. Does
    /// nothing if the row has no presence, or if the row says that the result or the permit was
    /// delivered. The first try uses `session`, if given; later tries load the task. Ignores
    /// failures, because the stored presence ends by itself.
    pub(super) async fn set_asker(
        &self,
        task: TaskId,
        session: Option<TaskSession>,
        asker: AskerPresence,
    ) {
        let mut session = session;
        for _ in 0..MAX_TRIES {
            let loaded = match session.take() {
                Some(session) => Some(session),
                None => self.load(task).await.ok().flatten(),
            };
            let Some(mut loaded) = loaded else { return };
            let until = loaded.own.row.asker_until;
            if until == Some(ASKER_UNTIL_DELIVERED) || until.is_none() {
                return;
            }
            match self.commit_asker(&mut loaded, asker).await {
                Err(CommitError::Stale | CommitError::Unknown) => {}
                Ok(()) | Err(CommitError::Refused | CommitError::Unavailable) => return,
            }
        }
    }

    /// Commits `asker`, the new presence of the client that waits for the session's call, and the
    /// session's idempotency key. The row's version fences the commit.
    pub(super) async fn commit_asker(
        &self,
        session: &mut TaskSession,
        asker: AskerPresence,
    ) -> Result<(), CommitError> {
        session.own.asker = Some(asker);
        self.commit(session, LeaseChange::Keep).await.map(|_| ())
    }
}
