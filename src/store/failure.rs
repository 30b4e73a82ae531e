//! A statement that failed: whether it may have reached the database, and whose fault it was. What must stay true: a
//! connection that was lost under a statement tells nothing of whether it was carried out.

/// `read_only_sql_transaction`: the server was demoted, or told to write nothing more.
pub(super) const READ_ONLY: &str = "25006";

/// What went wrong, and whether the statement may have reached the database.
#[derive(Debug)]
pub(super) struct Failure {
    /// Whether it was sent.
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

    /// Whether the connection was lost under the statement, so that nobody knows what became of it.
    pub(super) fn lost(&self) -> bool {
        if let sqlx::Error::Database(inner) = &self.error {
            return inner.code().is_some_and(|code| code.starts_with("08") || code.starts_with("57P"));
        }
        matches!(
            self.error,
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed
        )
    }

    /// Whether the database was not reached, or not any more; a pool that is closed was given up by this process.
    pub(super) fn unreached(&self) -> bool {
        (!self.sent || self.lost()) && !matches!(self.error, sqlx::Error::PoolClosed)
    }

    /// The database's own code of the error.
    pub(super) fn code(&self) -> String {
        let sqlx::Error::Database(inner) = &self.error else { return String::new() };
        inner.code().unwrap_or_default().into_owned()
    }

    /// Whether what is stored does not read as what we expect.
    pub(super) fn corrupt(&self) -> bool {
        matches!(self.error, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_))
    }
}
