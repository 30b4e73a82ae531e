//! Keeps the connections to a `SQLite` file: one that writes, and others that only read. Calls of
//! `rusqlite` block, so each job runs, from its first statement to its last, on a thread for
//! blocking work.

use std::path::{Path, PathBuf};
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, PoolError, RecycleResult};
use rusqlite::types::ToSqlOutput;
use rusqlite::{CachedStatement, Connection, OpenFlags, ToSql, Transaction, TransactionBehavior};
use tokio::time::timeout;

use super::db::Value;
use super::failure::{DbFailure, DriverError};
use super::lists::List;
use super::record::{AnyRow, Record};
use super::rows::ChangeRows;

/// The number of compiled statements that a connection keeps. A connection either writes or only
/// reads. Each kind runs fewer different statements than this, and so compiles each only once.
const CACHED_STATEMENTS: usize = 128;
const MAX_READERS: usize = 8;

#[derive(Debug)]
pub(super) struct SqliteFile {
    /// The pool of the only connection that writes.
    writer: managed::Pool<SqliteConnector>,
    readers: managed::Pool<SqliteConnector>,
    acquire_timeout: Duration,
}

#[derive(Debug)]
pub(super) struct SqliteConnector {
    file: PathBuf,
    read_only: bool,
    /// How long a statement waits for a lock that another process holds.
    busy_timeout: Duration,
}

impl managed::Manager for SqliteConnector {
    type Type = Connection;
    type Error = rusqlite::Error;

    #[expect(clippy::disallowed_methods, reason = "this is the entry point for SQL")]
    async fn create(&self) -> rusqlite::Result<Connection> {
        let access = if self.read_only {
            OpenFlags::SQLITE_OPEN_READ_ONLY
        } else {
            OpenFlags::SQLITE_OPEN_READ_WRITE
        };
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.file, flags)?;
        connection.busy_timeout(self.busy_timeout)?;
        connection.execute_batch(
            "pragma foreign_keys = on; pragma trusted_schema = off; pragma synchronous = full",
        )?;
        if !self.read_only {
            connection.pragma_update(None, "journal_mode", "wal")?;
        }
        connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
        Ok(connection)
    }

    async fn recycle(&self, _: &mut Connection, _: &Metrics) -> RecycleResult<rusqlite::Error> {
        Ok(())
    }
}

impl SqliteFile {
    /// Prepares to open an existing file. Connections are opened when they are needed. `timeout`
    /// limits the wait for a connection, and the wait for a lock of another process.
    pub(super) fn new(file: &Path, timeout: Duration) -> Result<Self, managed::BuildError> {
        let pool = |read_only, size| {
            let connect = SqliteConnector {
                file: file.to_owned(),
                read_only,
                busy_timeout: timeout,
            };
            managed::Pool::builder(connect).max_size(size).build()
        };
        Ok(Self {
            acquire_timeout: timeout,
            writer: pool(false, 1)?,
            readers: pool(true, MAX_READERS)?,
        })
    }

    /// Runs one statement that only reads. `decode` turns the statement's rows into the result.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        sql: &'static str,
        values: Vec<Value>,
        decode: fn(&mut rusqlite::Rows<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, DbFailure> {
        let connection = self.take(&self.readers).await?;
        run(connection, move |connection| {
            let mut statement = prepared(connection, sql, &values)?;
            decode(&mut statement.raw_query())
        })
        .await
    }

    /// Runs a job in a write transaction. When the result is `Ok`, the commit is durable. A started
    /// job runs to its end even if the caller drops the future.
    ///
    /// `BEGIN IMMEDIATE` takes the write lock at the beginning of the transaction. A deferred
    /// transaction takes the lock at its first write. It fails with "database is locked" if another
    /// connection has written since its first read.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DbFailure> {
        let mut connection = self.take(&self.writer).await?;
        blocking(move || {
            let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
            let transaction = begun.map_err(DbFailure::unsent)?;
            let result = job(&transaction).map_err(DbFailure::sent)?;
            // The outcome of a failed commit is unknown, so the failure counts as `sent`. For
            // example, the disk is full during the commit, and `SQLite` later finds the transaction
            // committed in the write-ahead log.
            transaction
                .commit()
                .map_err(|error| DbFailure::sent(DriverError::Commit(error)))?;
            Ok(result)
        })
        .await
    }

    /// Runs a job on the connection that writes, without beginning a transaction.
    pub(super) async fn with_writer<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, DbFailure> {
        run(self.take(&self.writer).await?, job).await
    }

    async fn take(
        &self,
        pool: &managed::Pool<SqliteConnector>,
    ) -> Result<Object<SqliteConnector>, DbFailure> {
        let error = match timeout(self.acquire_timeout, pool.get()).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(PoolError::Backend(error))) => error.into(),
            Ok(Err(PoolError::Closed)) => sqlx::Error::PoolClosed.into(),
            Ok(Err(_)) | Err(_) => DriverError::from(sqlx::Error::PoolTimedOut),
        };
        Err(DbFailure::unsent(error))
    }

    /// Closes each connection after its current job.
    pub(super) async fn close(&self) {
        for pool in [&self.readers, &self.writer] {
            for _ in 0..pool.status().size {
                if let Ok(connection) = pool.get().await {
                    drop(Object::take(connection));
                }
            }
            pool.close();
        }
    }
}

async fn run<T: Send + 'static>(
    mut connection: Object<SqliteConnector>,
    job: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, DbFailure> {
    blocking(move || job(&mut connection).map_err(DbFailure::sent)).await
}

async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, DbFailure> + Send + 'static,
) -> Result<T, DbFailure> {
    let result = tokio::task::spawn_blocking(job).await;
    result.unwrap_or_else(|_| Err(DbFailure::sent(sqlx::Error::WorkerCrashed)))
}

/// Prepares a statement and binds its values: the parameter `$n` gets value number `n`, counted
/// from 1. `SQLite` treats `$n` as a name, and numbers parameters in the order in which they occur.
/// So this function reads `n` from the name.
fn prepared<'c>(
    connection: &'c Connection,
    sql: &str,
    values: &[Value],
) -> rusqlite::Result<CachedStatement<'c>> {
    let mut statement = connection.prepare_cached(sql)?;
    for index in 1..=statement.parameter_count() {
        let name = statement.parameter_name(index);
        let number = name.and_then(|name| name.get(1..)?.parse::<usize>().ok());
        let value = number.and_then(|number| values.get(number.checked_sub(1)?));
        let value = value.ok_or(rusqlite::Error::InvalidParameterCount(values.len(), index))?;
        statement.raw_bind_parameter(index, value)?;
    }
    Ok(statement)
}

pub(super) fn records<R: Record>(
    connection: &Connection,
    sql: &str,
    values: &[Value],
) -> rusqlite::Result<Vec<R>> {
    decoded(&mut prepared(connection, sql, values)?.raw_query())
}

/// Like [`records`], but returns the number of the rows.
pub(super) fn count_written(
    connection: &Connection,
    sql: &str,
    values: &[Value],
) -> rusqlite::Result<usize> {
    Ok(records::<AnyRow>(connection, sql, values)?.len())
}

/// Runs a statement for each line of a list. The parameters are the columns of the line, and then,
/// if the statement has one more parameter, the time `at`.
pub(super) fn execute_each(
    connection: &Connection,
    sql: &str,
    list: &List,
    batch: &[&ChangeRows],
    at: i64,
) -> rusqlite::Result<()> {
    let mut statement = None;
    (list.each)(batch, &mut |line| {
        let statement = match &mut statement {
            Some(statement) => statement,
            none => none.insert(connection.prepare_cached(sql)?),
        };
        let values = line.iter().copied().chain([&at as &dyn ToSql]);
        for (index, value) in (1..=statement.parameter_count()).zip(values) {
            statement.raw_bind_parameter(index, value)?;
        }
        statement.raw_execute().map(|_| ())
    })
}

pub(super) fn decoded<R: Record>(rows: &mut rusqlite::Rows<'_>) -> rusqlite::Result<Vec<R>> {
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        records.push(R::from_sqlite(row)?);
    }
    Ok(records)
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Int(it) => it.to_sql(),
            Self::Bool(it) => it.to_sql(),
            Self::Text(it) => it.to_sql(),
            Self::Id(it) => it.to_sql(),
            Self::Now
            | Self::Ids(_)
            | Self::MaybeIds(_)
            | Self::MaybeInts(_)
            | Self::Texts(_)
            | Self::MaybeTexts(_)
            | Self::Bools(_) => Err(rusqlite::Error::ToSqlConversionFailure(
                "SQLite has neither arrays nor a clock of ours".into(),
            )),
        }
    }
}
