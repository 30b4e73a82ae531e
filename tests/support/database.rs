//! A database for one test. It is removed when the test ends.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};

use super::postgres::TestDatabase;
use super::test_app::On;
use super::{postgres, sqlite_file};

/// The database of a test. The copies that [`Database::shared`] returns keep the database alive.
#[derive(Clone)]
pub struct Database {
    url: String,
    _sqlite: Option<std::sync::Arc<tempfile::TempDir>>,
    _postgres: Option<std::sync::Arc<TestDatabase>>,
}

impl Database {
    pub async fn sqlite() -> Self {
        let (folder, url) = sqlite_file::database().await;
        Self {
            url,
            _sqlite: Some(std::sync::Arc::new(folder)),
            _postgres: None,
        }
    }

    pub async fn postgres() -> Self {
        let database = postgres::database().await;
        Self {
            url: database.url.clone(),
            _sqlite: None,
            _postgres: Some(std::sync::Arc::new(database)),
        }
    }

    pub async fn of(on: On) -> Self {
        match on {
            On::Sqlite => Self::sqlite().await,
            On::Postgres => Self::postgres().await,
        }
    }

    /// Returns the database at this URL. The caller must keep the database alive. The URL may lead
    /// through a proxy.
    pub fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            _sqlite: None,
            _postgres: None,
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the path of an `SQLite` database.
    pub fn file(&self) -> &str {
        self.url.strip_prefix("sqlite://").unwrap()
    }

    /// Returns an id as it stands in a statement.
    pub fn id(&self, id: &str) -> String {
        if self.url.starts_with("postgres") {
            format!("'{id}'")
        } else {
            format!("x'{}'", id.replace('-', ""))
        }
    }

    /// Runs statements on a connection of their own.
    pub async fn execute(&self, sql: &str) {
        if self.url.starts_with("postgres") {
            postgres::run(&self.url, sql.to_owned()).await;
        } else {
            sqlite_file::connect(&self.url).execute_batch(sql).unwrap();
        }
    }

    /// Runs one statement on a connection of its own. Returns the texts of the first column.
    pub async fn texts(&self, sql: &str) -> Vec<String> {
        if self.url.starts_with("postgres") {
            let mut connection = PgConnection::connect(&self.url).await.unwrap();
            let sql = AssertSqlSafe(sql.to_owned());
            let rows = connection.fetch_all(sql).await.unwrap();
            return rows.iter().map(|row| row.get(0)).collect();
        }
        sqlite_file::rows(&sqlite_file::connect(&self.url), sql, |row| row.get(0)).unwrap()
    }

    /// Counts rows, and returns the counts in one text. Each element of `rows` is the text after
    /// `from` in a statement that counts: a table, maybe with a condition.
    pub async fn row_counts(&self, rows: &[&str]) -> String {
        let count = |rows| format!("cast((select count(*) from {rows}) as text)");
        let counts: Vec<String> = rows.iter().map(count).collect();
        let sql = format!("select {}", counts.join(" || ' ' || "));
        self.texts(&sql).await.remove(0)
    }

    /// Returns the same database, for another replica.
    pub fn shared(&self) -> Self {
        self.clone()
    }
}
