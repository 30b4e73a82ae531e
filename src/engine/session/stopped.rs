//! Computes the state of a task after the next commit. HTTP requests of this process that wait
//! until the task stops get this state with the commit, without a read of the database.

use super::TaskSession;
use super::task_draft::TaskDraft;
use crate::store::{RequestRow, StoppedTask, UNCOMMITTED};
use crate::task::change::LeaseChange;
use crate::task::item::{Fact, Item};
use crate::task::progress::RequestProgress;
use crate::task::status::TaskStatus;

impl TaskSession {
    /// Returns the task and its open requests in the state that they have right after the next
    /// commit. Returns `None` if the commit neither pauses nor ends the task. Also returns `None`
    /// if an open request may be missing in the session: the tree has other tasks, or the row
    /// counts more or fewer open requests than the journal shows.
    pub(crate) fn stopped(&self, lease: &LeaseChange) -> Option<StoppedTask> {
        let own = &self.own;
        if self.has_tree() || !stops(own.pending_items()) {
            return None;
        }
        let mut row = own.row.clone();
        own.advance(&mut row, lease, own.counter_change(lease), UNCOMMITTED);
        row.next_event = row.last_seq;
        (row.takeovers, row.fruitless) = (0, 0);
        if *lease != LeaseChange::Keep {
            (row.lease_owner, row.lease_until) = (None, None);
        }
        let open = &own.progress.open;
        let known = usize::try_from(row.open_requests).is_ok_and(|count| count == open.len());
        let requests = open.iter().map(|open| request(own, open));
        Some(StoppedTask {
            requests: known.then(|| requests.collect::<Option<_>>())??,
            row,
            history_uncertain_until: self.history_uncertain_until,
        })
    }
}

fn stops(items: &[Item]) -> bool {
    let status = items.iter().rev().find_map(|item| {
        let Fact::TaskStatus { status, .. } = &item.fact else {
            return None;
        };
        Some(*status)
    });
    status.is_some_and(|status| status != TaskStatus::Running)
}

fn request(own: &TaskDraft, open: &RequestProgress) -> Option<RequestRow> {
    let timed = own.items.iter().map(|item| {
        if item.seq > own.row.last_seq {
            (UNCOMMITTED, item)
        } else {
            (item.at, item)
        }
    });
    RequestRow::from_journal(&own.row, timed, open.spec.request_id)
}
