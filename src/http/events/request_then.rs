//! A request as it was when an event about it was committed.
//!
//! What was asked and answered stands in the items about it; whether what follows from the last answer was committed with
//! it (`resumed`) follows from its task's journal up to the end of that commit, as the engine saw it.

use std::collections::HashMap;

use crate::store::{Event, ReadError, RequestRow, Store};
use crate::task::id::{RequestId, TaskId};
use crate::task::status::RequestStatus;
use crate::task::turn::Progress;

/// How many items of a journal are read at once.
const ITEMS: i64 = 32;

/// Journals as far as they were read for earlier events of the same stream.
#[derive(Debug, Default)]
pub(crate) struct JournalCache(HashMap<TaskId, CachedJournal>);

#[derive(Debug, Default)]
struct CachedJournal {
    seq: i64,
    progress: Progress,
}

impl JournalCache {
    /// The request an event is about, as it was at the end of that event's commit.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or what is stored cannot be understood.
    pub async fn request(&mut self, store: &Store, id: RequestId, event: &Event) -> Result<RequestRow, ReadError> {
        let (mut row, last) = store.request_after(id, event).await?;
        if row.status == RequestStatus::Responded && !self.is_blocked(store, event.task_id, last).await? {
            row.status = RequestStatus::Resumed;
        }
        Ok(row)
    }

    /// Whether a task still had something to ask after its item `last`, so that no answer took effect.
    async fn is_blocked(&mut self, store: &Store, task: TaskId, last: i64) -> Result<bool, ReadError> {
        let journal = self.0.entry(task).or_default();
        if journal.seq > last {
            *journal = CachedJournal::default();
        }
        while journal.seq < last {
            let items = store.items(task, journal.seq, ITEMS.min(last - journal.seq)).await?;
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

    /// Forgets what was read: nothing is kept for a stream that waits.
    pub fn forget(&mut self) {
        self.0 = HashMap::new();
    }
}
