//! A database for one test, removed when the test ends.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, SqliteConnection};

use super::postgres::TestDatabase;

/// The database of a test; clones of [`Database::shared`] keep it alive.
#[derive(Clone)]
pub struct Database {
    url: String,
    _sqlite: Option<std::sync::Arc<tempfile::TempDir>>,
    _postgres: Option<std::sync::Arc<TestDatabase>>,
}

impl Database {
    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/holdpoint.db", folder.path().display());
        Self {
            url,
            _sqlite: Some(std::sync::Arc::new(folder)),
            _postgres: None,
        }
    }

    pub async fn postgres() -> Self {
        let database = super::postgres::database().await;
        Self {
            url: database.url.clone(),
            _sqlite: None,
            _postgres: Some(std::sync::Arc::new(database)),
        }
    }

    /// A database that the caller keeps alive; the URL may lead through a proxy.
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

    /// Runs a statement on a connection of its own.
    pub async fn execute(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        if self.url.starts_with("postgres") {
            PgConnection::connect(&self.url)
                .await
                .unwrap()
                .execute(sql)
                .await
                .unwrap();
        } else {
            SqliteConnection::connect(&self.url)
                .await
                .unwrap()
                .execute(sql)
                .await
                .unwrap();
        }
    }

    /// The same database, for another replica.
    pub fn shared(&self) -> Self {
        self.clone()
    }
}
