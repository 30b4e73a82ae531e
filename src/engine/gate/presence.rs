//! Stores the presence of askers: whether a client waits for a gate call, and whether the call's
//! result was delivered. The task's row has the end time of a presence, so the presence ends even
//! if the process dies. The row's version fences every change of a presence.

use std::sync::Arc;
use std::time::Duration;

use super::Gates;
use super::drive::GateDrive;
use crate::engine::session::TaskSession;
use crate::engine::{Engine, MAX_TRIES};
use crate::failpoint;
use crate::store::CommitError;
use crate::task::change::{ASKER_UNTIL_DELIVERED, AskerPresence, Committed, LeaseChange};
use crate::task::id::TaskId;
use crate::task::time::Time;
use crate::world::Locked;

/// The minimum time for which a client still counts as present after its wait has ended. In this
/// time, the answer may still be in transit, or the client may ask again.
pub(super) const PRESENCE_GRACE: Duration = Duration::from_secs(5);

/// Returns the time until which an asker is present, as the row says; `None` if no asker is present
/// now.
pub(super) fn present_until(session: &TaskSession) -> Option<Time> {
    let until = session.own.row.asker_until;
    until.filter(|until| *until > session.now && *until != ASKER_UNTIL_DELIVERED)
}

/// The presence that an ask has stored in the task's row.
#[derive(Clone, Copy)]
enum StoredPresence {
    /// The row's `asker_until` after the commit. The presence of any other ask has another value.
    Until(Time),
    /// The commit is in flight, or its answer was lost. The row may have this ask's presence.
    Unknown,
}

impl StoredPresence {
    /// Whether `until`, the row's `asker_until`, is this presence, or may be this presence.
    fn is(self, until: Time) -> bool {
        match self {
            Self::Until(stored) => until == stored,
            Self::Unknown => true,
        }
    }
}

/// A guard of a connection on which an asker waits for the verdict on a call. Dropping the guard
/// ends the presence that the ask has stored, unless the row has the presence of another ask by
/// then.
pub(super) struct AskerGuard {
    engine: Arc<Engine>,
    pub(super) task: TaskId,
    /// The presence that this ask has stored or may have stored. The drop of this guard ends this
    /// presence. `None` if there is no presence to end.
    stored: Locked<Option<StoredPresence>>,
}

impl AskerGuard {
    pub(super) fn new(engine: &Arc<Engine>, task: TaskId) -> Arc<Self> {
        engine.awaited_calls.enter(task);
        Arc::new(Self {
            engine: Arc::clone(engine),
            task,
            stored: Locked::default(),
        })
    }

    /// Commits the asker's presence for the time `lasts`, and the session's idempotency key, if
    /// there is one. The commit runs in the background and holds the guard. Even if the asker
    /// leaves meanwhile, the guard records the stored presence before it is dropped, and its drop
    /// ends this presence.
    pub(super) async fn store_presence(
        self: &Arc<Self>,
        mut session: TaskSession,
        lasts: Duration,
    ) -> Result<TaskSession, CommitError> {
        let guard = Arc::clone(self);
        let commit = self.engine.drivers.spawn(async move {
            let asker = AskerPresence::PresentFor(lasts);
            let gates = guard.engine.gates();
            let committed = gates.commit_asker(&mut session, asker).await;
            guard.record(lasts, committed);
            committed.map(|_| session)
        });
        commit.await.unwrap_or(Err(CommitError::Unknown))
    }

    /// Like [`Gates::drive_in_background`]. If the first commit stores that the asker is present,
    /// the guard records this presence, and its drop ends the presence.
    pub(super) async fn drive(
        &self,
        session: TaskSession,
    ) -> Result<Option<GateDrive>, CommitError> {
        let Some(AskerPresence::PresentFor(lasts)) = session.own.asker else {
            return self.engine.gates().drive_in_background(session).await;
        };
        // The driver may wait for a slot or for a server before its first commit. If the asker
        // leaves during this wait, the guard is dropped. Because of `Unknown`, the drop ends any
        // presence in the row by a commit. The driver's first commit is then stale, so the call
        // does not start. Only a row that says `Delivered` stays unchanged at the drop. The driver
        // of such a task does not wait: it has nothing to do, or hands the call over once more.
        let before = self.stored.lock().replace(StoredPresence::Unknown);
        let driven = self.engine.gates().drive_in_background(session).await;
        *self.stored.lock() = before;
        match &driven {
            Ok(Some(drive)) => self.record(lasts, Ok(drive.first_commit)),
            Ok(None) => {}
            Err(error) => self.record(lasts, Err(*error)),
        }
        driven
    }

    /// Records the result of a commit that stores a presence for the time `lasts`.
    fn record(&self, lasts: Duration, committed: Result<Committed, CommitError>) {
        let stored = match committed {
            Ok(done) => StoredPresence::Until(done.at + lasts),
            Err(CommitError::Unknown) => StoredPresence::Unknown,
            // Nothing was stored. The ask keeps its earlier presence, if it has one.
            Err(CommitError::Stale | CommitError::Refused | CommitError::Unavailable) => return,
        };
        *self.stored.lock() = Some(stored);
    }

    /// If the answer to a commit of this ask was lost, assumes that the presence in the row is the
    /// presence of that commit. `session` was read after the commit.
    ///
    /// A commit without items cannot be looked up, so the assumption may be wrong: the presence in
    /// the row may be that of another ask, which came at the same moment. A wrong assumption starts
    /// no call, because a driver checks only that some asker is present, and a permit is bound to
    /// its ask. A wrong assumption has one of two effects:
    /// - This ask ends the other ask's presence too early. An approved call then waits until the
    ///   other ask claims the call.
    /// - This ask's client also gets the result of a settled call.
    ///
    /// The opposite assumption would be worse. This ask would take its own stored reservation of a
    /// result for another ask's. It would then propose its call as a new call, and an allowed call
    /// would run twice.
    pub(super) fn resolve_presence(&self, session: &TaskSession) {
        let mut stored = self.stored.lock();
        if matches!(*stored, Some(StoredPresence::Unknown)) {
            *stored = present_until(session).map(StoredPresence::Until);
        }
    }

    /// Whether this ask has stored a presence, even if the row has another presence by now.
    pub(super) fn has_presence(&self) -> bool {
        self.stored.lock().is_some()
    }

    /// Whether `until`, the row's `asker_until`, is the presence that this ask has stored.
    pub(super) fn owns(&self, until: Time) -> bool {
        self.stored.lock().is_some_and(|stored| stored.is(until))
    }

    /// Forgets the stored presence, so that dropping the guard does not change the row. Called in
    /// three cases:
    /// - The presence has ended already.
    /// - The commit that records a delivery replaces the presence.
    /// - The presence may last until its stored end, for example because the client asks again.
    pub(super) fn forget_presence(&self) {
        *self.stored.lock() = None;
    }
}

impl Drop for AskerGuard {
    fn drop(&mut self) {
        self.engine.awaited_calls.leave(self.task);
        let Some(stored) = self.stored.lock().take() else {
            return;
        };
        let (engine, task) = (Arc::clone(&self.engine), self.task);
        self.engine.drivers.spawn(async move {
            let is_own = move |until| stored.is(until);
            engine
                .gates()
                .set_asker(task, None, AskerPresence::Absent, is_own)
                .await;
        });
    }
}

/// A handle by which the HTTP layer reports that the result of a settled call has reached the
/// client. If the handle is dropped without [`ResultDelivery::delivered`], the result goes to the
/// next client that proposes the call.
pub struct ResultDelivery {
    guard: Arc<AskerGuard>,
    session: Box<TaskSession>,
}

impl std::fmt::Debug for ResultDelivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ResultDelivery({})", self.guard.task)
    }
}

impl ResultDelivery {
    pub(super) fn new(guard: Arc<AskerGuard>, session: TaskSession) -> Self {
        Self {
            guard,
            session: Box::new(session),
        }
    }

    /// Records that the client has received the whole answer. The commit runs in the background.
    pub fn delivered(self) {
        let Self { guard, session } = self;
        guard.forget_presence();
        let tracker = guard.engine.drivers.clone();
        failpoint::reach("gate.answering");
        tracker.spawn(async move {
            failpoint::reach("gate.delivering");
            let delivered = AskerPresence::Delivered;
            guard
                .engine
                .gates()
                .set_asker(guard.task, Some(*session), delivered, |_| true)
                .await;
            failpoint::reach("gate.delivered");
        });
    }
}

impl Gates<'_> {
    /// Replaces the presence in the row of `task` by `asker`. Does nothing if the row has no
    /// presence, if the row says that the result or the permit was delivered, or if `may_replace`
    /// refuses the row's `asker_until`. The commit fails if the row has changed since `asker_until`
    /// was read; the function then loads the task and tries again. The first try uses `session`, if
    /// given. Ignores failures, because the stored presence ends by itself.
    async fn set_asker(
        self,
        task: TaskId,
        session: Option<TaskSession>,
        asker: AskerPresence,
        may_replace: impl Fn(Time) -> bool,
    ) {
        let mut session = session;
        for _ in 0..MAX_TRIES {
            let loaded = match session.take() {
                Some(session) => Some(session),
                None => self.engine.load(task).await.ok().flatten(),
            };
            let Some(mut loaded) = loaded else { return };
            let replaced = loaded.own.row.asker_until;
            let replaced = replaced.filter(|until| *until != ASKER_UNTIL_DELIVERED);
            if !replaced.is_some_and(&may_replace) {
                return;
            }
            match self.commit_asker(&mut loaded, asker).await {
                Err(CommitError::Stale | CommitError::Unknown) => {}
                Ok(_) | Err(CommitError::Refused | CommitError::Unavailable) => return,
            }
        }
    }

    /// Commits `asker`, the new presence of the client that waits for the session's call. Also
    /// stores the session's idempotency key, if there is one. The row's version fences the commit.
    pub(super) async fn commit_asker(
        self,
        session: &mut TaskSession,
        asker: AskerPresence,
    ) -> Result<Committed, CommitError> {
        session.own.asker = Some(asker);
        self.engine.commit(session, LeaseChange::Keep).await
    }
}
