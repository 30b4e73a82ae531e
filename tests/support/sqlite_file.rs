//! Runs SQL on the `SQLite` file of a test.

use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Row};

/// Opens the file of a `sqlite://` URL. The file must exist.
#[expect(clippy::disallowed_methods, reason = "tests look beside the store")]
pub fn connect(url: &str) -> Connection {
    let file = url.strip_prefix("sqlite://").unwrap();
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE).unwrap();
    connection.busy_timeout(Duration::from_secs(5)).unwrap();
    connection
}

/// Runs one statement and returns its rows. The parameters of the statement are null.
pub fn rows<T>(
    connection: &Connection,
    sql: &str,
    read: impl FnMut(&Row) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(sql)?.raw_query().mapped(read).collect()
}
