//! A failed statement: whether it may have reached the database, and what caused the failure.
//! Invariant: if the connection is lost during a statement, it is unknown whether the statement was
//! executed.

/// `read_only_sql_transaction`: the server was demoted, or set to read-only.
pub(super) const READ_ONLY: &str = "25006";

/// A driver error, and whether the statement may have reached the database.
#[derive(Debug)]
pub(super) struct Failure {
    /// Whether the statement was sent.
    pub(super) sent: bool,
    /// The driver's error. Never shown to a client.
    pub(super) error: sqlx::Error,
}

impl Failure {
    pub(super) fn sent(error: sqlx::Error) -> Self {
        Self { sent: true, error }
    }

    pub(super) fn unsent(error: sqlx::Error) -> Self {
        Self { sent: false, error }
    }

    /// Whether the connection was lost during the statement, so that its outcome is unknown.
    pub(super) fn lost(&self) -> bool {
        if let sqlx::Error::Database(inner) = &self.error {
            return inner
                .code()
                .is_some_and(|code| code.starts_with("08") || code.starts_with("57P"));
        }
        matches!(
            self.error,
            sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::WorkerCrashed
        )
    }

    /// Whether the database was not reached, or the connection was lost; a closed pool does not
    /// count, as this process closed it.
    pub(super) fn unreached(&self) -> bool {
        (!self.sent || self.lost()) && !matches!(self.error, sqlx::Error::PoolClosed)
    }

    /// The database's error code; empty if there is none.
    pub(super) fn code(&self) -> String {
        let sqlx::Error::Database(inner) = &self.error else {
            return String::new();
        };
        inner.code().unwrap_or_default().into_owned()
    }

    /// Whether a stored value cannot be decoded.
    pub(super) fn corrupt(&self) -> bool {
        matches!(
            self.error,
            sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::Decode(_)
                | sqlx::Error::ColumnNotFound(_)
        )
    }
}

/// Why a change was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Another commit came first: read again.
    #[error("another commit came first")]
    Stale,
    /// The data of the change cannot be stored: a used idempotency key, a value that does not fit,
    /// or a bug.
    #[error("a constraint forbids it")]
    Refused,
    /// Nothing was written: the database does not answer or accepts no writes now.
    #[error("the database does not answer")]
    Unavailable,
    /// The outcome is unknown: the commit result was lost and could not be looked up.
    #[error("the database's answer was lost")]
    Unknown,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The database does not answer.
    #[error("the database does not answer")]
    Unavailable,
    /// A stored value cannot be decoded.
    #[error("stored data cannot be read: {0}")]
    Corrupt(String),
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        if !failure.unreached() {
            tracing::warn!(error = %failure.error, sent = failure.sent, "the database could not be read");
        }
        if failure.corrupt() {
            Self::Corrupt(failure.error.to_string())
        } else {
            Self::Unavailable
        }
    }
}
