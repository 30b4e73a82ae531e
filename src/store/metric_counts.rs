//! Reads the numbers for the metrics: the tasks by status, the open requests by kind, and the
//! unsent deliveries by entry of `notify.to`. Also reads the age of the oldest open request of each
//! kind and of the oldest unsent delivery of each entry. `telemetry/gauges.rs` limits how often
//! these numbers are read.

use std::collections::BTreeMap;

use super::db::{Sql, Value, sql, values};
use super::record::record;
use super::tasks::corrupt;
use super::{ReadError, Store};
use crate::task::request_kind::RequestKind;
use crate::task::status::TaskStatus;
use crate::task::time::Time;
use crate::world::Backlog;

const TASKS: Sql = sql!(
    "select status as word, count(*) as number from agent_task group by status order by status"
);

const REQUESTS: Sql = sql!(
    "select kind as name, count(*) as number, min(created_at) as oldest, " (now 1) " as at
       from intervention_request where status = 'pending' group by kind order by kind"
);

/// Counts the deliveries that are due now or wait for another attempt. `oldest` is the time from
/// which the age of the oldest delivery counts: `due_at` before the first attempt, and `created_at`
/// afterwards. Before the first attempt, an age from `created_at` would include the planned wait of
/// a gathered message, so the receiver would seem to be down. After an attempt, `due_at` is the
/// time of the next attempt, which says nothing of the age.
///
/// Leaves out the deliveries that this configuration cannot send (`deliveries::DROP` drops them
/// later):
/// - deliveries whose entry is not among `$2`,
/// - deliveries to the entries `$3` that change an earlier message
///   (`task::event_name::REQUEST_CHANGES`).
const DELIVERIES: Sql = sql!(
    "select target as name, count(*) as number,
            min(case when last_at is null then due_at else created_at end) as oldest, " (now 1) " as at
       from delivery where state = 'due' and (due_at <= " (now 1) " or last_at is not null)
        and target " (any 2 text) "
        and not (target " (any 3 text) " and type in " (request_changes) ")
      group by target"
);

pub(super) const STATEMENTS: &[Sql] = &[TASKS, REQUESTS, DELIVERIES];

record! {
    struct BacklogRecord {
        name: String,
        number: i64,
        oldest: i64,
        at: i64,
    }
}

impl Store {
    /// Counts the tasks by status. A status without tasks has a count of 0.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn task_counts(&self) -> Result<Vec<(TaskStatus, i64)>, ReadError> {
        let tasks: Vec<(String, i64)> = self.db().all(TASKS, Vec::new()).await?;
        let found = tasks
            .into_iter()
            .map(|(word, number)| TaskStatus::parse(&word).map(|status| (status, number)));
        let found: Option<BTreeMap<TaskStatus, i64>> = found.collect();
        let found = found.ok_or_else(|| corrupt("a task's status"))?;
        let number = |status: TaskStatus| found.get(&status).copied().unwrap_or_default();
        let all = TaskStatus::ALL.into_iter();
        Ok(all.map(|status| (status, number(status))).collect())
    }

    /// Counts the open requests by kind, and finds the oldest of each kind. [`Backlog::name`] is
    /// the API's name of the kind. A kind without an open request has a count of 0.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn request_backlogs(&self) -> Result<Vec<Backlog>, ReadError> {
        let backlogs = self.backlogs(REQUESTS, vec![Value::Now]).await?;
        Ok(Backlog::with_all(
            backlogs,
            RequestKind::ALL.map(RequestKind::as_str),
        ))
    }

    /// Counts the unsent deliveries of the entries `targets`, and finds the oldest of each entry.
    /// Includes deliveries that wait for another attempt. Leaves out reminders and gathered
    /// messages that are not due yet. The entries `without_updates` cannot change a sent message,
    /// so their deliveries that change an earlier message are left out, too.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn delivery_backlogs(
        &self,
        targets: &[String],
        without_updates: &[String],
    ) -> Result<Vec<Backlog>, ReadError> {
        let values = values![Value::Now, targets, without_updates];
        self.backlogs(DELIVERIES, values).await
    }

    async fn backlogs(&self, sql: Sql, values: Vec<Value>) -> Result<Vec<Backlog>, ReadError> {
        let counts: Vec<BacklogRecord> = self.db().all(sql, values).await?;
        let backlogs = counts.into_iter().map(|count| Backlog {
            name: count.name,
            waiting: count.number,
            oldest: Time(count.at).since(Time(count.oldest)),
        });
        Ok(backlogs.collect())
    }
}
