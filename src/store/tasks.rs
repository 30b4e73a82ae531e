//! Reads rows of `agent_task`, and decodes the JSON texts of items and of lists of names.

use super::db::{Sql, sql, values};
use super::task_columns::TaskRecord;
use super::{ReadError, Store};
use crate::task::change::TaskRow;
use crate::task::id::TaskId;
use crate::task::item::Fact;

const TASK: Sql = sql!(
    "select " (task) "
       from agent_task t left join agent_task_item s on s.task_id = t.task_id and s.seq = t.status_seq
      where t.task_id = $1"
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[TASK];

pub(super) fn fact(body: &str) -> Result<Fact, ReadError> {
    // The parser's error quotes the stored text, which must not reach a log.
    serde_json::from_str(body).map_err(|_| corrupt("an item"))
}

pub(super) fn names(text: &str) -> Result<Vec<String>, ReadError> {
    serde_json::from_str(text).map_err(|_| corrupt("a list of names"))
}

pub(super) fn corrupt(what: &str) -> ReadError {
    ReadError::Corrupt(what.to_owned())
}

impl Store {
    /// Reads a task's row; `None` if there is no such task. If the row cannot be decoded, also
    /// calls [`Store::report_unreadable`].
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn task(&self, id: TaskId) -> Result<Option<TaskRow>, ReadError> {
        let record: Option<TaskRecord> = self.db().one(TASK, values![id]).await?;
        let row = record.map(TaskRecord::row).transpose();
        if row.is_err() {
            self.report_unreadable(id);
        }
        row
    }
}
