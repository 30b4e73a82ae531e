//! Derives a request as it was when an event about the request was committed.
//!
//! The question and the answers come from the items about the request. A decided request has the
//! status `responded` while its task is blocked by open requests, and `resumed` afterwards. The
//! journal of the task, read up to the end of the event's commit, tells whether the task was
//! blocked at that time.

use std::collections::HashMap;

use crate::store::{Event, ReadError, RequestRow, Store};
use crate::task::id::{RequestId, TaskId};
use crate::task::progress::Progress;
use crate::task::status::RequestStatus;

const MAX_ITEMS: i64 = 32;

/// The journals of tasks, each read into a [`Progress`] up to the last item that was needed so far.
#[derive(Debug, Default)]
pub(crate) struct JournalCache(HashMap<TaskId, CachedJournal>);

#[derive(Debug, Default)]
struct CachedJournal {
    seq: i64,
    progress: Progress,
}

impl JournalCache {
    /// Returns the request of an event, as it was right after the event's commit.
    pub(super) async fn request(
        &mut self,
        store: &Store,
        id: RequestId,
        event: &Event,
    ) -> Result<RequestRow, ReadError> {
        let (mut row, last) = store.request_after(id, event).await?;
        if row.status == RequestStatus::Responded
            && !self.is_blocked(store, event.task_id, last).await?
        {
            row.status = RequestStatus::Resumed;
        }
        Ok(row)
    }

    /// Returns whether requests still blocked the task right after the task's item `last`
    /// (`Progress::is_blocked`). While the task is blocked, no decision about its requests takes
    /// effect.
    async fn is_blocked(
        &mut self,
        store: &Store,
        task: TaskId,
        last: i64,
    ) -> Result<bool, ReadError> {
        let journal = self.0.entry(task).or_default();
        if journal.seq > last {
            *journal = CachedJournal::default();
        }
        while journal.seq < last {
            let items = store
                .items(task, journal.seq, MAX_ITEMS.min(last - journal.seq))
                .await?;
            if items.is_empty() {
                return Err(ReadError::Corrupt("a journal with gaps".to_owned()));
            }
            for (item, _) in items {
                journal.progress.apply(&item);
                journal.seq = item.seq;
            }
        }
        Ok(journal.progress.is_blocked())
    }

    /// Frees the journals, so that a waiting stream keeps no journal in memory.
    pub(super) fn clear(&mut self) {
        self.0 = HashMap::new();
    }
}
