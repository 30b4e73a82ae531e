//! Reads the row of a task without its journal, for a task whose journal is unreadable or crashes
//! the process that reads it. The row is enough to end the task. During an upgrade, a newer version
//! of this program may have written the journal. [`DamagedTask::newer`] marks this case, because a
//! replica of the newer version can read the journal and drive the task.

use uuid::Uuid;

use super::db::{Sql, sql, values};
use super::record::record;
use super::{ReadError, Store};
use crate::task::id::{RequestId, TaskId};
use crate::task::item::{Fact, Item};

/// Selects one row for each open request of the task: the columns of the task, and the id of the
/// request. If the task has no open requests, selects one row, whose `request_id` is null.
const TASK_ROW: Sql = sql!(
    "select t.root_task_id, t.version, t.takeovers, r.request_id
       from agent_task t left join intervention_request r
         on r.root_task_id = t.root_task_id and r.task_id = t.task_id and r.status = 'pending'
      where t.task_id = $1"
);

const BODIES: Sql = sql!("select body from agent_task_item where task_id = $1 order by seq");

pub(super) const STATEMENTS: &[Sql] = &[TASK_ROW, BODIES];

/// The maximum size of two sets:
/// - the tasks that [`Store::report_unreadable`] has reported. If this set is full, a further
///   report is dropped, and the next read of the task reports the task again.
/// - the ids that `Store::log_left_out` has logged. If this set is full, a further id is not
///   logged.
const MAX_REPORTS: usize = 1000;

/// The data of a task that can be read without decoding its journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedTask {
    /// The root of the task's tree.
    pub root_task_id: TaskId,
    /// The version of the task's own row. The commit that ends the task checks this version.
    pub version: i64,
    /// The number of takeovers of the task since its last item.
    pub takeovers: i64,
    /// The task's open requests.
    pub open: Vec<RequestId>,
    /// Whether a newer version of this program may have written part of the journal.
    pub newer: bool,
}

record! {
    struct Record {
        root_task_id: Uuid,
        version: i64,
        takeovers: i64,
        request_id: Option<Uuid>,
    }
}

/// Whether a journal has every item from 1 to `last_seq`. A journal with a gap must not be used:
/// the missing item may be the start of a call.
pub(super) fn is_complete(items: &[Item], last_seq: i64) -> bool {
    let numbered = (1_i64..).zip(items).all(|(seq, item)| item.seq == seq);
    numbered && i64::try_from(items.len()).is_ok_and(|length| length == last_seq)
}

/// Whether the item is well formed but has a variant unknown to this program.
fn is_newer(body: &str) -> bool {
    let understood = serde_json::from_str::<Fact>(body);
    understood
        .is_err_and(|error| error.is_data() && error.to_string().starts_with("unknown variant"))
}

impl Store {
    /// Records that a task's row or journal could not be read.
    pub fn report_unreadable(&self, task: TaskId) {
        let mut reports = self.inner.unreadable.lock();
        if reports.len() < MAX_REPORTS {
            reports.insert(task);
        }
    }

    /// Logs that a list leaves out a row whose stored data cannot be decoded. Logs each id once.
    pub(super) fn log_left_out(&self, id: Uuid) {
        let mut logged = self.inner.logged_damage.lock();
        if logged.len() < MAX_REPORTS && logged.insert(id) {
            tracing::error!(%id, "stored data cannot be read; lists leave it out");
        }
    }

    /// Returns the tasks that were reported since the last call of this function.
    #[must_use]
    pub fn take_unreadable(&self) -> Vec<TaskId> {
        let reports = std::mem::take(&mut *self.inner.unreadable.lock());
        reports.into_iter().collect()
    }

    /// Reads the row of a task with a damaged journal. Returns `None` if the journal can be read
    /// after all, or the task does not exist.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the row cannot be decoded.
    pub async fn damaged_task(&self, task: TaskId) -> Result<Option<DamagedTask>, ReadError> {
        match self.read_journal(task).await {
            Ok(Some(_)) => return Ok(None),
            Err(ReadError::Unavailable) => return Err(ReadError::Unavailable),
            // `Ok(None)` also stands for a task without items. Such a task is damaged, too, because
            // it cannot continue.
            Ok(None) | Err(ReadError::Corrupt(_)) => {}
        }
        let Some(damaged_task) = self.task_without_journal(task).await? else {
            return Ok(None);
        };
        let bodies: Vec<String> = self.db().all(BODIES, values![task]).await?;
        Ok(Some(DamagedTask {
            newer: bodies.iter().any(|body| is_newer(body)),
            ..damaged_task
        }))
    }

    /// Like [`Store::damaged_task`], but also for a task whose journal is readable. Does not read
    /// the journal, so [`DamagedTask::newer`] is `false` in the result. Returns `None` if the task
    /// does not exist.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or the row cannot be decoded.
    pub async fn task_without_journal(
        &self,
        task: TaskId,
    ) -> Result<Option<DamagedTask>, ReadError> {
        let records: Vec<Record> = self.db().all(TASK_ROW, values![task]).await?;
        let open = records
            .iter()
            .filter_map(|record| record.request_id.map(RequestId))
            .collect();
        let Some(record) = records.into_iter().next() else {
            return Ok(None);
        };
        Ok(Some(DamagedTask {
            root_task_id: TaskId(record.root_task_id),
            version: record.version,
            takeovers: record.takeovers,
            open,
            newer: false,
        }))
    }
}
