//! Records the attempts to send deliveries. Attempts that end at the same time are recorded by one
//! statement, in one commit (see `shared_queue.rs`).
//!
//! Invariants: an attempt is recorded only if the row still has the lease under which the attempt
//! was made. If a statement for several attempts fails, each attempt is recorded by a statement of
//! its own. So an attempt that cannot be recorded makes no other attempt fail.

use std::collections::HashSet;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Transaction;
use tokio::task::yield_now;
use uuid::Uuid;

use super::change_rows::micros;
use super::db::{DatabaseEngine, DbFailure, Sql, Value, sql, values};
use super::shared_queue::SharedQueue;
use super::sqlite::count_written;
use super::{ReadError, Store};

/// The time after which a caller no longer waits for the shared statement, and records its attempt
/// alone. The shared statement may wait for a lock or for a connection that is silent.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The result of one attempt to send a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The delivery's state after the attempt.
    pub next: NextState,
    /// The status of the HTTP answer; `None` if there was no answer.
    pub http_status: Option<u16>,
    /// The reason for the failure, a fixed text; empty after a success.
    pub problem: &'static str,
    /// The wait that the receiver asked for; `None` if it asked for none. Only a resend ends this
    /// wait early.
    pub retry_after: Option<Duration>,
    /// How long the attempt took.
    pub took: Duration,
    /// The id that a chat service gave the message, by which the message can be changed later.
    /// `None` keeps the stored id.
    pub reference: Option<String>,
}

/// The state of a delivery after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextState {
    /// The receiver, mail server or chat service has accepted the message.
    Sent,
    /// The message is sent again after this pause.
    Again(Duration),
    /// The message is sent again after this wait, for which the receiver asked because too many
    /// messages were sent.
    Postponed(Duration),
    /// The message was not accepted, and no further attempt is made.
    Dead,
    /// The message was not sent, because it no longer has a recipient.
    Dropped,
}

impl NextState {
    fn state(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Again(_) | Self::Postponed(_) => "due",
            Self::Dead => "dead",
            Self::Dropped => "dropped",
        }
    }
}

/// Makes the text of `RECORD` for one engine. `$lines` are the lines to record, as `r`: each is one
/// delivery of an attempt, and the time of the statement. `$recorded` are the columns that identify
/// a recorded line.
///
/// The lease ends. If the delivery stays `due` and the receiver asked for a wait, `lease_until`
/// becomes the end of this wait. In every other case, `lease_until` becomes null.
///
/// The `coalesce` around `state` in the condition makes the planner find the rows by their ids, not
/// by the partial index on due deliveries.
macro_rules! record_text {
    ($lines:literal, $recorded:literal) => {
        concat!(
            "update delivery as d set state = r.state, attempts = d.attempts + r.counted,
        came_early = case when r.postponed = 1 then 1 else d.came_early end,
        lease_until = case when r.state = 'due' then r.at + nullif(r.asked, 0) end,
        due_at = case when r.state = 'due' then r.at + r.wait else d.due_at end,
        ended_at = case when r.state <> 'due' then r.at end,
        last_at = r.at, last_status = nullif(r.status, 0), last_problem = nullif(r.problem, ''),
        last_milliseconds = r.took, reference = coalesce(nullif(r.reference, ''), d.reference)
       from ",
            $lines,
            "
      where d.delivery_id = r.id and d.lease_until = r.lease and coalesce(d.state, '') = 'due'
     returning ",
            $recorded
        )
    };
}

/// Records attempts: all lines together on Postgres, and one line on `SQLite`. The texts differ
/// because `SQLite` has no arrays. There, a transaction runs the statement for each line.
const RECORD: Sql = Sql {
    postgres: record_text!(
        "(select (select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint) as at, u.*
         from unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
               $9::bigint[], $10::text[], $11::text[], $12::text[])
           as u (id, lease, wait, status, took, asked, counted, postponed, state, problem, reference)) r",
        "d.delivery_id, r.lease"
    ),
    sqlite: record_text!(
        "(select $1 as at, $2 as id, $3 as lease, $4 as wait, $5 as status, $6 as took, $7 as asked, $8 as counted,
            $9 as postponed, $10 as state, $11 as problem, $12 as reference) r",
        "delivery_id"
    ),
    by_key: true,
};

/// Selects the deliveries whose last attempt had this result. This may also be an earlier attempt, or
/// an attempt of another process.
const WITH_RESULT: Sql = sql!(
    "select delivery_id from delivery where delivery_id " (any 1 uuid) " and state = $2
        and coalesce(last_problem, '') = $3 and coalesce(last_status, 0) = $4 and last_milliseconds = $5"
)
.by_key();

pub(super) const STATEMENTS: &[Sql] = &[RECORD, WITH_RESULT];

/// An attempt that has ended, with the deliveries that it was to send.
#[derive(Debug)]
pub(super) struct EndedAttempt {
    ids: Vec<Uuid>,
    /// The end of the lease under which the deliveries were claimed together.
    lease_until: i64,
    attempt: Attempt,
}

/// One delivery of an attempt.
type AttemptLine = (Uuid, Arc<EndedAttempt>);

/// The lines that a statement has recorded, each as its delivery and the end of its lease. The
/// lease tells two attempts at one delivery apart.
type RecordedLines = HashSet<(Uuid, i64)>;

/// The attempts that wait to be recorded. A reply has the recorded deliveries of the attempt.
pub(super) type AttemptQueue = SharedQueue<Arc<EndedAttempt>, Vec<Uuid>>;

impl EndedAttempt {
    /// Returns the values of the columns of numbers of `RECORD`, in their order.
    fn numbers(&self) -> [i64; 7] {
        let attempt = &self.attempt;
        let (wait, counted) = match attempt.next {
            NextState::Again(wait) | NextState::Postponed(wait) => (wait, 1),
            NextState::Sent | NextState::Dead => (Duration::ZERO, 1),
            // Dropping a delivery sends nothing, so it does not count as an attempt.
            NextState::Dropped => (Duration::ZERO, 0),
        };
        [
            self.lease_until,
            micros(wait),
            i64::from(attempt.http_status.unwrap_or(0)),
            i64::try_from(attempt.took.as_millis()).unwrap_or(i64::MAX),
            micros(attempt.retry_after.unwrap_or_default()),
            counted,
            i64::from(matches!(attempt.next, NextState::Postponed(_))),
        ]
    }

    /// Returns the values of the columns of texts of `RECORD`, in their order.
    fn texts(&self) -> [&str; 3] {
        let reference = self.attempt.reference.as_deref();
        [
            self.attempt.next.state(),
            self.attempt.problem,
            reference.unwrap_or_default(),
        ]
    }

    /// Returns the parameters of `RECORD` for one line on `SQLite`.
    fn values(&self, id: Uuid, at: i64) -> Vec<Value> {
        let mut values = vec![Value::Int(at), Value::Id(id)];
        values.extend(self.numbers().map(Value::Int));
        values.extend(self.texts().map(Value::from));
        values
    }

    fn recorded_ids(&self, lines: &RecordedLines) -> Vec<Uuid> {
        let ids = self.ids.iter().copied();
        ids.filter(|id| lines.contains(&(*id, self.lease_until)))
            .collect()
    }
}

/// Returns the parameters of `RECORD` for these lines on Postgres.
fn columns(lines: &[AttemptLine]) -> Vec<Value> {
    let mut numbers: [Vec<Option<i64>>; 7] = Default::default();
    let mut texts: [Vec<String>; 3] = Default::default();
    for (_, ended) in lines {
        for (column, number) in numbers.iter_mut().zip(ended.numbers()) {
            column.push(Some(number));
        }
        for (column, text) in texts.iter_mut().zip(ended.texts()) {
            column.push(text.to_owned());
        }
    }
    let ids = lines.iter().map(|(id, _)| *id).collect();
    let mut values = vec![Value::Now, Value::Ids(ids)];
    values.extend(numbers.map(Value::MaybeInts));
    values.extend(texts.map(Value::Texts));
    values
}

impl Store {
    /// Records one attempt at deliveries that were claimed together, under the lease `lease_until`.
    /// Returns the ids of the deliveries for which the attempt was recorded. Records nothing for a
    /// delivery that has ended, or that another process has claimed since.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn record_attempt(
        &self,
        ids: Vec<Uuid>,
        lease_until: i64,
        attempt: &Attempt,
    ) -> Result<Vec<Uuid>, ReadError> {
        let ended = Arc::new(EndedAttempt {
            ids,
            lease_until,
            attempt: attempt.clone(),
        });
        let (queue, call) = (&self.inner.attempt_queue, Arc::clone(&ended));
        let shared = queue.share(self, call, MAX_WAIT, Self::record_waiting);
        if let Some(recorded) = shared.await {
            return Ok(recorded);
        }
        let record = self.record(from_ref(&ended));
        let lines = self.inner.stop.run_until_cancelled(record).await;
        let recorded = ended.recorded_ids(&lines.ok_or(ReadError::Unavailable)??);
        if recorded.len() == ended.ids.len() {
            return Ok(recorded);
        }
        // The shared statement may have recorded the attempt, although its answer is late or was
        // lost.
        let ([_, _, status, took, ..], [state, problem, _]) = (ended.numbers(), ended.texts());
        let values = values![ended.ids.clone(), state, problem, status, took];
        Ok(self.db().all(WITH_RESULT, values).await?)
    }

    /// Records the attempts in the queue, batch after batch, until the queue is empty. If a
    /// statement fails, drops the replies of its batch.
    async fn record_waiting(self) {
        loop {
            // The attempts of one claim often end together. The Tokio tasks that are ready to run
            // now come first, and may add their attempts to the batch.
            yield_now().await;
            let batch = self.inner.attempt_queue.take(|ended| ended.ids.len());
            if batch.is_empty() {
                return;
            }
            let (ended, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let record = self.record(&ended);
            let Some(Ok(lines)) = self.inner.stop.run_until_cancelled(record).await else {
                continue;
            };
            for (ended, reply) in ended.iter().zip(replies) {
                // The send fails if the caller no longer waits for the result.
                let _ = reply.send(ended.recorded_ids(&lines));
            }
        }
    }

    async fn record(&self, attempts: &[Arc<EndedAttempt>]) -> Result<RecordedLines, DbFailure> {
        let lines = attempts.iter().flat_map(|ended| {
            let ids = ended.ids.iter();
            ids.map(move |id| (*id, Arc::clone(ended)))
        });
        let lines: Vec<AttemptLine> = lines.collect();
        if let DatabaseEngine::Sqlite(_) = self.db().engine {
            let job = move |transaction: &Transaction<'_>, at| {
                let mut recorded = RecordedLines::new();
                for (id, ended) in &lines {
                    let values = ended.values(*id, at);
                    if count_written(transaction, RECORD.sqlite, &values)? > 0 {
                        recorded.insert((*id, ended.lease_until));
                    }
                }
                Ok(recorded)
            };
            return self.db().write_transaction(job).await;
        }
        let recorded: Vec<(Uuid, i64)> = self.db().write(RECORD, columns(&lines)).await?;
        Ok(recorded.into_iter().collect())
    }
}
