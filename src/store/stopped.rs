//! The state of a task right after a commit of this process has ended or paused the task. The
//! service sends this state to the clients that wait for the task, without a read of the database.

#[cfg(failpoints)]
use std::sync::atomic::Ordering;

use super::RequestRow;
#[cfg(failpoints)]
use super::Store;
use crate::task::change::{AskerPresence, TaskRow};
use crate::task::time::Time;

/// The state of a task right after the commit that ends or pauses the task. The row and the open
/// requests equal those that a read of the database right after the commit would return. Exists
/// only for a root without sub-agents, because the process that commits may not know the requests
/// of sub-agents.
#[derive(Clone, Debug, PartialEq)]
pub struct StoppedTask {
    /// The task's row after the commit.
    pub row: TaskRow,
    /// The task's open requests, in the order in which they were opened.
    pub requests: Vec<RequestRow>,
    /// The value of `Store::history_uncertain_until` when the task was loaded.
    pub history_uncertain_until: Option<Time>,
}

/// A placeholder for the time of the commit. [`StoppedTask`]s are built before the commit, and the
/// committer replaces the placeholder.
pub const UNCOMMITTED: Time = Time(i64::MAX);

impl StoppedTask {
    /// Replaces [`UNCOMMITTED`] by `at`, the time of the commit. `asker` is the presence that the
    /// commit stores for the client that proposed a gate call; `None` if the commit stores no
    /// presence. The duration in [`AskerPresence::PresentFor`] begins at `at`.
    pub(super) fn with_commit_time(self, at: Time, asker: Option<AskerPresence>) -> Self {
        let time = |time: Time| if time == UNCOMMITTED { at } else { time };
        let request = |mut request: RequestRow| {
            request.created_at = time(request.created_at);
            let lasts = request.spec.terms.expires_in;
            request.expires_at = lasts.map(|lasts| request.created_at + lasts);
            for (answered_at, _) in &mut request.answers {
                *answered_at = time(*answered_at);
            }
            request.read_at(at, self.history_uncertain_until)
        };
        Self {
            requests: self.requests.into_iter().map(request).collect(),
            row: TaskRow {
                created_at: time(self.row.created_at),
                updated_at: time(self.row.updated_at),
                asker_until: asker.map_or(self.row.asker_until, |asker| Some(asker.until(at))),
                ..self.row
            },
            history_uncertain_until: self.history_uncertain_until,
        }
    }
}

#[cfg(failpoints)]
impl Store {
    /// For tests: reads the task from the database, and panics if it differs from `stopped`. Does
    /// nothing if the task's version has changed since the commit.
    #[doc(hidden)]
    pub async fn compare(&self, stopped: &StoppedTask) {
        if self.inner.skips_comparison.load(Ordering::Relaxed) {
            return;
        }
        let id = stopped.row.task_id;
        let (Ok(Some(mut row)), Ok(mut requests), Ok(Some(after))) = (
            self.task(id).await,
            self.pending(id, id).await,
            self.task(id).await,
        ) else {
            return;
        };
        if row.version != stopped.row.version || after.version != row.version {
            return;
        }
        for (read, committed) in requests.iter_mut().zip(&stopped.requests) {
            // A request's deadline may have passed since the commit.
            read.expired = committed.expired;
        }
        // If the asker's presence has ended since the commit, a read may return 0 instead of the
        // committed time.
        if row.asker_until == Some(Time(0)) {
            row.asker_until = stopped.row.asker_until;
        }
        assert_eq!(stopped.row, row, "a committed row differs from a read");
        assert_eq!(
            stopped.requests, requests,
            "committed requests differ from a read"
        );
    }
}
