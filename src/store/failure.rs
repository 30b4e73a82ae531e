//! Describes a failed statement: whether it may have reached the database, and the cause of the
//! failure. Invariant: if the connection is lost during a statement, the statement's outcome counts
//! as unknown.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use super::outage;

/// The SQLSTATE `read_only_sql_transaction`: the server was demoted, or set to read-only.
pub(super) const READ_ONLY: &str = "25006";

#[derive(Debug, thiserror::Error)]
pub(super) enum DriverError {
    #[error(transparent)]
    Sqlx(#[from] sqlx::Error),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// A commit of `SQLite` failed, so its outcome is unknown.
    #[error("the commit failed: {0}")]
    Commit(rusqlite::Error),
}

impl DriverError {
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Sqlx(error) => outage::reason(error),
            Self::Sqlite(_) | Self::Commit(_) => self.to_string(),
        }
    }
}

#[derive(Debug)]
pub(super) struct DbFailure {
    /// Whether the statement was sent. If so, it may have reached the database.
    pub(super) sent: bool,
    /// The driver's error, which is never shown to a client.
    pub(super) error: DriverError,
}

impl DbFailure {
    pub(super) fn sent(error: impl Into<DriverError>) -> Self {
        Self {
            sent: true,
            error: error.into(),
        }
    }

    pub(super) fn unsent(error: impl Into<DriverError>) -> Self {
        Self {
            sent: false,
            error: error.into(),
        }
    }

    /// Whether the outcome of the statement is unknown: the connection was lost or did not answer
    /// in time, the server ended the session, a commit of `SQLite` failed, or a job on `SQLite`
    /// panicked.
    pub(super) fn is_result_lost(&self) -> bool {
        match &self.error {
            DriverError::Sqlx(sqlx::Error::Database(inner)) => {
                let code = inner.code().unwrap_or_default();
                let error = inner.try_downcast_ref::<PgDatabaseError>();
                code.starts_with("08") || code.starts_with("57P") || error.is_some_and(ends_session)
            }
            DriverError::Sqlx(error) => matches!(
                error,
                sqlx::Error::Io(_)
                    | sqlx::Error::Tls(_)
                    | sqlx::Error::Protocol(_)
                    | sqlx::Error::WorkerCrashed
            ),
            DriverError::Sqlite(_) => false,
            DriverError::Commit(_) => true,
        }
    }

    /// Whether the failure may mean that the database cannot be reached: the statement was not
    /// sent, or its outcome is unknown (see `is_result_lost`). Returns `false` if this process has
    /// closed the pool.
    pub(super) fn is_unreached(&self) -> bool {
        let closed = matches!(self.error, DriverError::Sqlx(sqlx::Error::PoolClosed));
        (!self.sent || self.is_result_lost()) && !closed
    }

    pub(super) fn code(&self) -> String {
        match &self.error {
            DriverError::Sqlx(sqlx::Error::Database(inner)) => {
                inner.code().unwrap_or_default().into_owned()
            }
            DriverError::Sqlite(rusqlite::Error::SqliteFailure(inner, _)) => {
                inner.extended_code.to_string()
            }
            DriverError::Sqlx(_) | DriverError::Sqlite(_) | DriverError::Commit(_) => String::new(),
        }
    }

    /// Whether the statement failed because of another writer's locks. The statement was rolled
    /// back, and may succeed if it is repeated.
    pub(super) fn is_lock_conflict(&self) -> bool {
        matches!(self.code().as_str(), "40P01" | "40001" | "55P03")
    }

    /// Whether the statement was refused because its idempotency key is used, that is, the key has
    /// an unexpired row. There are two cases:
    /// - The row has the statement's spelling of the user id. The statement then fails on purpose:
    ///   its upsert sets `idempotency.task_id` to null, and so violates the `not null` constraint.
    /// - The row has another spelling. The unique index `idempotency_person` then refuses the
    ///   insert.
    pub(super) fn is_idempotency_key_used(&self) -> bool {
        match &self.error {
            DriverError::Sqlx(sqlx::Error::Database(inner)) => {
                let column = inner
                    .try_downcast_ref::<PgDatabaseError>()
                    .and_then(PgDatabaseError::column);
                inner.table() == Some("idempotency")
                    && (inner.is_unique_violation() || column == Some("task_id"))
            }
            DriverError::Sqlite(rusqlite::Error::SqliteFailure(_, Some(message))) => {
                message == "NOT NULL constraint failed: idempotency.task_id"
                    || message.starts_with("UNIQUE constraint failed: idempotency.")
            }
            DriverError::Sqlx(_) | DriverError::Sqlite(_) | DriverError::Commit(_) => false,
        }
    }

    /// Whether a stored value that cannot be decoded caused the failure.
    pub(super) fn is_corrupt(&self) -> bool {
        match &self.error {
            DriverError::Sqlx(error) => matches!(
                error,
                sqlx::Error::ColumnDecode { .. }
                    | sqlx::Error::Decode(_)
                    | sqlx::Error::ColumnNotFound(_)
            ),
            DriverError::Sqlite(error) => matches!(
                error,
                rusqlite::Error::FromSqlConversionFailure(..)
                    | rusqlite::Error::IntegralValueOutOfRange(..)
                    | rusqlite::Error::InvalidColumnType(..)
                    | rusqlite::Error::InvalidColumnName(_)
                    | rusqlite::Error::Utf8Error(..)
            ),
            DriverError::Commit(_) => false,
        }
    }
}

/// Whether this error of Postgres ends the session, whatever its code. The commit may be on disk
/// nevertheless. For example, a server that cannot write its log panics with the code of a full
/// disk, and its recovery then replays the commits that the log has.
fn ends_session(error: &PgDatabaseError) -> bool {
    matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic)
}

/// The reason why a commit was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The stored rows no longer allow the change, mostly because another commit changed them
    /// first. The caller must read the rows again.
    #[error("another commit came first")]
    Stale,
    /// The change cannot be stored: its idempotency key is used, a value does not fit, or a bug
    /// made the change wrong.
    #[error("a constraint forbids it")]
    Refused,
    /// Nothing was written: the database does not answer or accepts no writes now.
    #[error("the database does not answer, or accepts no writes now")]
    Unavailable,
    /// The outcome is unknown: the commit result was lost and could not be looked up.
    #[error("the database's answer was lost")]
    Unknown,
}

/// The reason why a read, or a write other than a commit, failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The database does not answer, or answers with an error.
    #[error("the database does not answer")]
    Unavailable,
    /// A stored value cannot be decoded.
    #[error("stored data cannot be read: {0}")]
    Corrupt(String),
}

impl From<DbFailure> for ReadError {
    fn from(failure: DbFailure) -> Self {
        if !failure.is_unreached() {
            tracing::warn!(error = %failure.error, sent = failure.sent, "the database could not be read");
        }
        if failure.is_corrupt() {
            Self::Corrupt(failure.error.to_string())
        } else {
            Self::Unavailable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_key_is_told_from_any_other_null() {
        let database = rusqlite::Connection::open_in_memory().unwrap();
        database
            .execute_batch(
                "create table idempotency
                    (task_id blob not null, path text not null, key text primary key);
                 create unique index idempotency_path on idempotency (path) where key is not null;
                 create table grants (task_id blob not null unique);
                 insert into idempotency values (x'00', 'p', 'k');
                 insert into grants values (x'00');",
            )
            .unwrap();
        for (statement, expected) in [
            ("insert into idempotency values (null, 'q', 'l')", true),
            ("insert into idempotency values (x'00', 'q', 'k')", true),
            ("insert into idempotency values (x'00', 'p', 'l')", true),
            ("insert into idempotency values (x'00', null, 'l')", false),
            ("insert into grants values (null)", false),
            ("insert into grants values (x'00')", false),
        ] {
            let error = database.execute(statement, []).unwrap_err();
            let is_used = DbFailure::sent(error).is_idempotency_key_used();
            assert_eq!(is_used, expected, "{statement}");
        }
    }
}
