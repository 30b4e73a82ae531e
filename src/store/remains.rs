//! What is left of a task whose journal cannot be read, or must not be: its row, which is enough to end it. What must stay true: only a
//! journal that is damaged counts. One that a newer version of this program has written, which runs beside this one
//! during an upgrade, may be read by others and is left to them.

use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};

use sqlx::FromRow;
use uuid::Uuid;

use super::db::{Sql, Value, sql};
use super::{ReadError, Store};
use crate::task::id::{RequestId, TaskId};
use crate::task::item::{Fact, Item};

/// The row, once for each open request of the task and at least once.
const REMAINS: Sql = sql!(
    "select t.root_task_id, t.version, r.request_id
       from agent_task t left join intervention_request r
         on r.root_task_id = t.root_task_id and r.task_id = t.task_id and r.status = 'pending'
      where t.task_id = $1"
);

const BODIES: Sql = sql!("select body from agent_task_item where task_id = $1 order by seq");

pub(super) const STATEMENTS: &[Sql] = &[REMAINS, BODIES];

/// How many reports are kept; what is not is found again.
const REPORTS: usize = 1000;

/// A task as its row alone knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Its root.
    pub root_task_id: TaskId,
    /// At which version.
    pub version: i64,
    /// Its open requests.
    pub open: Vec<RequestId>,
    /// Some of it may be what a newer version of this program has written.
    pub newer: bool,
}

#[derive(FromRow)]
struct Record {
    root_task_id: Uuid,
    version: i64,
    request_id: Option<Uuid>,
}

#[derive(FromRow)]
struct Body {
    body: String,
}

/// Whether a journal has every item: one that is missing may be the start of a call.
pub(super) fn whole(items: &[Item], last_seq: i64) -> bool {
    let numbered = (1_i64..).zip(items).all(|(seq, item)| item.seq == seq);
    numbered && i64::try_from(items.len()).is_ok_and(|length| length == last_seq)
}

/// Whether it is well formed and has a word in it that this program does not know.
fn is_newer(body: &str) -> bool {
    let understood = serde_json::from_str::<Fact>(body);
    understood.is_err_and(|error| error.is_data() && error.to_string().starts_with("unknown variant"))
}

impl Store {
    /// Somebody has found that this task cannot be read.
    pub fn report_unreadable(&self, task: TaskId) {
        let mut reports = self.reports();
        if reports.len() < REPORTS {
            reports.insert(task);
        }
    }

    /// The tasks that were found to be unreadable since the last time this was asked.
    #[must_use]
    pub fn unreadable(&self) -> Vec<TaskId> {
        std::mem::take(&mut *self.reports()).into_iter().collect()
    }

    /// What is left of a task; `None` when it can be read after all, or there is none.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or not even the row can be understood.
    pub async fn remains(&self, task: TaskId) -> Result<Option<Remains>, ReadError> {
        match self.read_journal(task).await {
            Ok(Some(_)) => return Ok(None),
            Err(ReadError::Unavailable) => return Err(ReadError::Unavailable),
            // Without any item it is no task that can go on.
            Ok(None) | Err(ReadError::Corrupt(_)) => {}
        }
        let Some(remains) = self.unread(task).await? else { return Ok(None) };
        let bodies: Vec<Body> = self.db().all(BODIES, vec![Value::Id(task.0)]).await?;
        Ok(Some(Remains { newer: bodies.iter().any(|body| is_newer(&body.body)), ..remains }))
    }

    /// The same of any task, whose journal is not read; `None` when there is no such task.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or not even the row can be understood.
    pub async fn unread(&self, task: TaskId) -> Result<Option<Remains>, ReadError> {
        let records: Vec<Record> = self.db().all(REMAINS, vec![Value::Id(task.0)]).await?;
        let open = records.iter().filter_map(|record| record.request_id.map(RequestId)).collect();
        let Some(record) = records.into_iter().next() else { return Ok(None) };
        let (root_task_id, version) = (TaskId(record.root_task_id), record.version);
        Ok(Some(Remains { root_task_id, version, open, newer: false }))
    }

    fn reports(&self) -> MutexGuard<'_, BTreeSet<TaskId>> {
        self.inner.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
