//! Runs statements on the engine in use (`SQLite` or Postgres), and reads the rows that they
//! return.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rusqlite::Transaction;
use serde_json::Value as Json;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow, Postgres};
use sqlx::query::Query;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::asker_lock::AskerLock;
use super::change_rows::micros;
use super::connections::{ConnectionFailures, Pool, timed_out};
pub(super) use super::failure::DbFailure;
use super::failure::{DriverError, READ_ONLY};
use super::identity::UncertainUntil;
use super::outage::{self, Outage};
use super::record::{AnyRow, Keyed, Record};
pub use super::sql::Sql;
pub(super) use super::sql::sql;
use super::sqlite::{self, SqliteFile};
pub(super) use super::value::{Value, values};
use crate::world::{Clock, Locked};

#[derive(Debug)]
pub(super) enum DatabaseEngine {
    /// Postgres, on which each statement is its own transaction.
    Postgres {
        /// The pool of the committer, with one connection for each writer. Statements are planned
        /// as in `keyed`, but wait for a lock for a shorter time (`lock_timeout`).
        writers: Pool,
        /// The pool for statements that look up rows only by their keys. Postgres plans each such
        /// statement once, with settings that avoid scans of whole tables.
        keyed: Pool,
        /// The pool for all other statements. Postgres plans such a statement at each execution,
        /// for the values of its parameters.
        lists: Pool,
        /// The pool of the readiness probe. Load on other pools does not delay the probe.
        probe: Pool,
        /// The options of the relay's connection, which belongs to none of these pools.
        relay: Box<PgConnectOptions>,
    },
    Sqlite(SqliteFile),
}

pub(super) struct Db {
    pub(super) engine: DatabaseEngine,
    pub(super) clock: Arc<dyn Clock>,
    /// The offset that tests add to Postgres' clock, in microseconds.
    pub(super) offset: AtomicI64,
    /// The time up to which the history is uncertain: a restore, or the promotion of a standby, may
    /// have lost items that were written before this time. Each new connection sets this value.
    /// A journal that is read after a stale commit may raise it.
    pub(super) uncertain_until: UncertainUntil,
    /// The time limit for each statement, including the time on the network.
    pub(super) statement_limit: Duration,
    pub(super) connection_failures: Arc<ConnectionFailures>,
    pub(super) outage: Outage,
    /// The advisory lock of this process on Postgres. This process stores presences of askers. Once
    /// Postgres releases the lock, these presences count as ended.
    pub(super) asker_lock: AskerLock,
    /// The lock that keeps other processes off the `SQLite` file. `None` on Postgres and after
    /// `close`.
    pub(super) lock: Locked<Option<File>>,
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self.engine, DatabaseEngine::Postgres { .. }) {
            "Db(Postgres)"
        } else {
            "Db(Sqlite)"
        })
    }
}

const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of attempts at a read. Only a lost connection leads to another attempt.
const MAX_READ_ATTEMPTS: u32 = 3;
/// The maximum number of rows that one statement of [`Db::remove_batch`] removes.
const REMOVED_ROWS: i64 = 1000;

impl Db {
    pub(super) async fn all<R: Record>(
        &self,
        sql: Sql,
        values: Vec<Value>,
    ) -> Result<Vec<R>, DbFailure> {
        match &self.engine {
            DatabaseEngine::Postgres { keyed, lists, .. } => {
                let pool = if sql.by_key { keyed } else { lists };
                decoded(&self.read_postgres(pool, sql.postgres, values).await?)
            }
            DatabaseEngine::Sqlite(file) => {
                self.read_sqlite(file, sql.sqlite, values, sqlite::decoded)
                    .await
            }
        }
    }

    /// Reads rows in groups, for example the items of several tasks, each row with the columns of
    /// its task. The rows of a group are contiguous and have the same key. Returns for each group a
    /// head `H`, read from the group's first row, and a record `R` of each row.
    pub(super) async fn groups<H: Record, R: Keyed>(
        &self,
        sql: Sql,
        values: Vec<Value>,
    ) -> Result<Vec<(H, Vec<R>)>, DbFailure> {
        match &self.engine {
            DatabaseEngine::Postgres { keyed, lists, .. } => {
                let pool = if sql.by_key { keyed } else { lists };
                let rows = self.read_postgres(pool, sql.postgres, values).await?;
                let mut groups = Vec::new();
                for row in &rows {
                    let head = || H::from_postgres(row);
                    R::from_postgres(row)
                        .and_then(|record| add_to_groups(&mut groups, record, head))
                        .map_err(DbFailure::sent)?;
                }
                Ok(groups)
            }
            DatabaseEngine::Sqlite(file) => {
                self.read_sqlite(file, sql.sqlite, values, |rows| {
                    let mut groups = Vec::new();
                    while let Some(row) = rows.next()? {
                        add_to_groups(&mut groups, R::from_sqlite(row)?, || H::from_sqlite(row))?;
                    }
                    Ok(groups)
                })
                .await
            }
        }
    }

    pub(super) async fn one<R: Record>(
        &self,
        sql: Sql,
        values: Vec<Value>,
    ) -> Result<Option<R>, DbFailure> {
        Ok(self.all(sql, values).await?.into_iter().next())
    }

    /// Reads the first row of a statement without parameters. Returns `None` if there is no row, if
    /// the statement fails, or if `PROBE_TIMEOUT` ends.
    pub(super) async fn probe<R: Record>(&self, sql: Sql) -> Option<R> {
        let rows = async {
            let DatabaseEngine::Postgres { probe, .. } = &self.engine else {
                return self.all::<R>(sql, Vec::new()).await;
            };
            decoded(&self.read_postgres(probe, sql.postgres, Vec::new()).await?)
        };
        if let Ok(rows) = timeout(PROBE_TIMEOUT, rows).await {
            return rows.ok()?.into_iter().next();
        }
        self.connection_failures.record_failure(&timed_out());
        self.outage.failed(&outage::reason(&timed_out()));
        None
    }

    /// Runs one writing statement as its own transaction, and reads the rows that it returns.
    pub(super) async fn write<R: Record>(
        &self,
        sql: Sql,
        values: Vec<Value>,
    ) -> Result<Vec<R>, DbFailure> {
        match &self.engine {
            DatabaseEngine::Postgres { keyed, lists, .. } => {
                let pool = if sql.by_key { keyed } else { lists };
                decoded(
                    &self.record_reachability(
                        self.run_on_postgres(pool, sql.postgres, values).await,
                    )?,
                )
            }
            DatabaseEngine::Sqlite(file) => {
                let values = self.sqlite_values(values);
                let job = move |transaction: &Transaction<'_>| {
                    sqlite::records(transaction, sql.sqlite, &values)
                };
                self.record_reachability(file.write(job).await)
            }
        }
    }

    /// Like [`Self::write`], but returns the number of the rows.
    pub(super) async fn count_written(
        &self,
        sql: Sql,
        values: Vec<Value>,
    ) -> Result<usize, DbFailure> {
        Ok(self.write::<AnyRow>(sql, values).await?.len())
    }

    /// Removes at most one batch of old rows. The parameters of the statement are the time, the
    /// maximum number of rows, and `retentions`. Returns whether there may be more.
    pub(super) async fn remove_batch(
        &self,
        sql: Sql,
        retentions: &[Duration],
    ) -> Result<bool, DbFailure> {
        let mut values = vec![Value::Now, Value::Int(REMOVED_ROWS)];
        values.extend(retentions.iter().map(|time| Value::Int(micros(*time))));
        let removed = self.count_written(sql, values).await?;
        Ok(i64::try_from(removed).is_ok_and(|removed| removed >= REMOVED_ROWS))
    }

    /// Runs a job in a write transaction of `SQLite`. The job gets the time of the transaction's
    /// beginning.
    pub(super) async fn write_transaction<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Transaction<'_>, i64) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DbFailure> {
        match &self.engine {
            DatabaseEngine::Sqlite(file) => {
                let clock = Arc::clone(&self.clock);
                let job = move |transaction: &Transaction<'_>| job(transaction, clock.now().0);
                self.record_reachability(file.write(job).await)
            }
            DatabaseEngine::Postgres { .. } => Err(DbFailure::unsent(sqlx::Error::Protocol(
                "one statement is one transaction here".to_owned(),
            ))),
        }
    }

    /// Sends a batch of changes to Postgres on a writer's connection. If `repeated`, the changes
    /// come from a failed batch, and are sent on a connection of another pool, so that the writer
    /// can write further batches.
    pub(super) async fn write_batch<R: Record>(
        &self,
        sql: &'static str,
        values: Vec<Value>,
        repeated: bool,
    ) -> Result<Vec<R>, DbFailure> {
        match &self.engine {
            DatabaseEngine::Postgres { writers, keyed, .. } => {
                let writers = if repeated { keyed } else { writers };
                decoded(
                    &self.record_reachability(self.run_on_postgres(writers, sql, values).await)?,
                )
            }
            DatabaseEngine::Sqlite(_) => Err(DbFailure::unsent(sqlx::Error::Protocol(
                "a batch is a transaction here".to_owned(),
            ))),
        }
    }

    /// Reads on Postgres. If the connection is lost, repeats the read, but begins no attempt once
    /// `statement_limit` has passed since the first attempt began.
    async fn read_postgres(
        &self,
        pool: &Pool,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Vec<PgRow>, DbFailure> {
        let began = Instant::now();
        let mut sent = 1;
        loop {
            match self.run_on_postgres(pool, sql, values.clone()).await {
                Err(failure)
                    if failure.sent
                        && failure.is_result_lost()
                        && sent < MAX_READ_ATTEMPTS
                        && began.elapsed() < self.statement_limit =>
                {
                    sent += 1;
                }
                answer => return self.record_reachability(answer),
            }
        }
    }

    /// Runs one statement on Postgres. The connection returns to its pool after a complete answer
    /// of the server. Waits at most `statement_limit`, even if the answer is lost on the network.
    async fn run_on_postgres(
        &self,
        pool: &Pool,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Result<Vec<PgRow>, DbFailure> {
        let mut checked_out = pool.get().await.map_err(DbFailure::unsent)?;
        let connection = checked_out.connection().map_err(DbFailure::unsent)?;
        let query = self.postgres(sql, values);
        let answer = match timeout(self.statement_limit, query.fetch_all(connection)).await {
            Ok(answer) => answer,
            Err(_) => Err(timed_out()),
        };
        match answer {
            Ok(rows) => {
                checked_out.put_back();
                Ok(rows)
            }
            Err(error) => {
                let failure = DbFailure::sent(error);
                if failure.is_result_lost() || failure.code() == READ_ONLY {
                    if let DriverError::Sqlx(error) = &failure.error {
                        self.connection_failures.record_failure(error);
                    }
                    checked_out.close();
                } else {
                    checked_out.put_back_after_error().await;
                }
                Err(failure)
            }
        }
    }

    async fn read_sqlite<T: Send + 'static>(
        &self,
        file: &SqliteFile,
        sql: &'static str,
        values: Vec<Value>,
        decode: fn(&mut rusqlite::Rows<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, DbFailure> {
        let values = self.sqlite_values(values);
        let answer = match timeout(self.statement_limit, file.read(sql, values, decode)).await {
            Ok(answer) => answer,
            Err(_) => Err(DbFailure::sent(sqlx::Error::PoolTimedOut)),
        };
        self.record_reachability(answer)
    }

    /// Records in `outage` whether the database was reached, and returns `answer`. The database was
    /// not reached if `DbFailure::is_unreached` is true. After any other error, the database counts
    /// as reached.
    fn record_reachability<T>(&self, answer: Result<T, DbFailure>) -> Result<T, DbFailure> {
        match &answer {
            Err(failure) if failure.is_unreached() => {
                self.outage.failed(&failure.error.reason());
            }
            Ok(_) | Err(_) => self.outage.answered(),
        }
        answer
    }

    pub(super) async fn close(&self) {
        match &self.engine {
            DatabaseEngine::Postgres {
                writers,
                keyed,
                lists,
                probe,
                ..
            } => {
                writers.close().await;
                keyed.close().await;
                lists.close().await;
                probe.close().await;
            }
            DatabaseEngine::Sqlite(file) => file.close().await,
        }
        self.lock.lock().take();
    }

    #[expect(clippy::disallowed_methods, reason = "this is the entry point for SQL")]
    fn postgres(
        &self,
        sql: &'static str,
        values: Vec<Value>,
    ) -> Query<'static, Postgres, PgArguments> {
        values
            .into_iter()
            .fold(sqlx::query(sql), |query, value| match value {
                Value::Now => query.bind(self.offset.load(Ordering::Relaxed)),
                Value::Int(it) => query.bind(it),
                Value::Bool(it) => query.bind(it),
                Value::Text(it) => query.bind(it),
                Value::Id(it) => query.bind(it),
                Value::Ids(it) => query.bind(it),
                Value::MaybeIds(it) => query.bind(it),
                Value::MaybeInts(it) => query.bind(it),
                Value::Texts(it) => query.bind(it),
                Value::MaybeTexts(it) => query.bind(it),
                Value::Bools(it) => query.bind(it),
            })
    }

    /// Converts parameters for `SQLite`: `Now` becomes the time, and the lists `Ids` and `Texts`
    /// become JSON, with ids in hex.
    fn sqlite_values(&self, values: Vec<Value>) -> Vec<Value> {
        let hex = |id: Uuid| Json::from(id.simple().to_string());
        let converted = values.into_iter().map(|value| match value {
            Value::Now => Value::Int(self.clock.now().0),
            Value::Ids(it) => Value::Text(list(it.into_iter().map(hex))),
            Value::Texts(it) => Value::Text(list(it.into_iter().map(Json::from))),
            Value::Int(_)
            | Value::Bool(_)
            | Value::Text(_)
            | Value::Id(_)
            | Value::MaybeIds(_)
            | Value::MaybeInts(_)
            | Value::MaybeTexts(_)
            | Value::Bools(_) => value,
        });
        converted.collect()
    }
}

pub(super) fn list(values: impl Iterator<Item = Json>) -> String {
    Json::Array(values.collect()).to_string()
}

/// Adds a record to the last group if it has the key of this group. Otherwise begins a new group.
fn add_to_groups<H, R: Keyed, E>(
    groups: &mut Vec<(H, Vec<R>)>,
    record: R,
    head: impl FnOnce() -> Result<H, E>,
) -> Result<(), E> {
    let key = record.key();
    match groups.last_mut() {
        Some((_, records)) if records.last().is_some_and(|last| last.key() == key) => {
            records.push(record);
        }
        Some(_) | None => groups.push((head()?, vec![record])),
    }
    Ok(())
}

fn decoded<R: Record>(rows: &[PgRow]) -> Result<Vec<R>, DbFailure> {
    let records = rows.iter().map(R::from_postgres);
    records.collect::<Result<_, _>>().map_err(DbFailure::sent)
}
