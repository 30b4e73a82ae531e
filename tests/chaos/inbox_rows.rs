//! Compares the table `inbox`, which lists the open requests of each approver, with the requests
//! themselves, while replicas write and die. One statement reads all these tables in one snapshot.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

/// A query that counts the missing rows, the surplus rows and all rows of the inbox.
const COMPARE: &str = "
with open as materialized (
    select a.tenant, a.kind, a.name, a.request_id
      from request_approver a join intervention_request r using (request_id) where r.status = 'pending'
), listed as materialized (select tenant, kind, name, request_id from inbox)
select (select count(*) from (select * from open except select * from listed) missing),
       (select count(*) from (select * from listed except select * from open) left_over),
       (select count(*) from listed)";

pub struct InboxRows {
    database: String,
    /// The number of comparisons that saw open requests.
    pub looks: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl InboxRows {
    pub fn of(database: &str) -> Self {
        Self {
            database: database.to_owned(),
            looks: AtomicU64::new(0),
            wrong: Mutex::default(),
        }
    }

    /// Compares the inbox with the requests once. Does nothing if Postgres is down.
    pub async fn compare(&self) {
        let Ok(mut connection) = PgConnection::connect(&self.database).await else {
            return;
        };
        let Ok(row) = connection.fetch_one(COMPARE).await else {
            return;
        };
        let (missing, left_over, listed): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        if missing + left_over > 0 {
            let what =
                format!("{missing} open requests in no inbox, {left_over} closed ones in one");
            self.wrong.lock().unwrap().push(what);
        }
        if listed > 0 {
            self.looks.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap().clone()
    }
}
