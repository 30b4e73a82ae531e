//! A second connection to the database, which copies tables, changes single cells, and restores the
//! tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _, SqliteConnection};

use super::super::engine_harness::EngineHarness;

/// A stored value before its flip.
#[derive(Clone, Debug)]
pub struct Cell {
    pub table: &'static str,
    pub row: i64,
    pub column: &'static str,
    pub number: bool,
    pub bytes: Vec<u8>,
}

pub const TABLES: [&str; 6] = [
    "agent_task",
    "agent_task_item",
    "intervention_request",
    "request_approver",
    "decision",
    "idempotency",
];

pub const COLUMNS: [(&str, &[&str]); 4] = [
    ("agent_task_item", &["body"]),
    (
        "intervention_request",
        &[
            "request_id",
            "task_id",
            "root_task_id",
            "tenant",
            "kind",
            "status",
            "required",
            "call_id",
            "expires_at",
            "seq",
        ],
    ),
    (
        "request_approver",
        &["tenant", "kind", "name", "request_id"],
    ),
    (
        "decision",
        &[
            "tenant",
            "user_id",
            "request_id",
            "tool_call_id",
            "action",
            "final",
            "task_id",
            "seq",
        ],
    ),
];

/// A second connection to the store's database.
pub struct Beside(SqliteConnection);

impl Beside {
    pub async fn of(harness: &EngineHarness) -> Self {
        let mut beside = Self(
            SqliteConnection::connect(harness.fixture.settings.url.reveal())
                .await
                .unwrap(),
        );
        // A flipped bit on disk is not checked against constraints either.
        beside
            .does("pragma foreign_keys = off; pragma ignore_check_constraints = on")
            .await;
        beside
    }

    pub async fn does(&mut self, sql: &str) {
        self.0
            .execute(AssertSqlSafe(sql.to_owned()))
            .await
            .unwrap_or_else(|why| panic!("{why}: {sql:.300}"));
    }

    /// Updates rows while the trigger `intervention_request_end`, which would refuse some updates,
    /// is dropped.
    pub async fn changes(&mut self, updates: &str) {
        let guard = "select sql from sqlite_master where name = 'intervention_request_end'";
        let guard: String = self.0.fetch_one(guard).await.unwrap().get(0);
        self.does(&format!(
            "begin immediate; drop trigger intervention_request_end; {updates} {guard}; commit;"
        ))
        .await;
    }

    pub async fn keep(&mut self) {
        let mut sql = String::new();
        for table in TABLES {
            write!(
                sql,
                "create table kept_{table} as select rowid as kept, * from {table};"
            )
            .unwrap();
        }
        self.does(&sql).await;
    }

    pub async fn bring_back(&mut self) {
        let mut sql = String::from("begin immediate;");
        for table in TABLES {
            let names = self
                .0
                .fetch_all(AssertSqlSafe(format!(
                    "select name from pragma_table_info('{table}')"
                )))
                .await
                .unwrap();
            let names: Vec<String> = names.iter().map(|row| row.get(0)).collect();
            let names = names.join(",");
            write!(
                sql,
                "delete from {table}; insert into {table} (rowid, {names}) select kept, {names} from kept_{table};"
            )
            .unwrap();
        }
        self.does(&(sql + "commit;")).await;
    }

    /// The values that may flip, by task: bodies of its items, and columns of its requests,
    /// approvers and decisions.
    pub async fn cells(&mut self) -> BTreeMap<Vec<u8>, Vec<Cell>> {
        let mut cells: BTreeMap<Vec<u8>, Vec<Cell>> = BTreeMap::new();
        for (table, columns) in COLUMNS {
            for column in columns {
                let of = if table == "request_approver" {
                    "(select r.task_id from intervention_request r where r.request_id = t.request_id)"
                } else {
                    "task_id"
                };
                let which = if table == "agent_task_item" {
                    "where type in ('assistant_message', 'judged', 'intervention_requested', 'decision')"
                } else {
                    ""
                };
                let sql = format!(
                    "select {of}, rowid, typeof({column}) = 'integer', cast({column} as blob) from {table} t {which}"
                );
                for row in self.0.fetch_all(AssertSqlSafe(sql)).await.unwrap() {
                    let bytes: Option<Vec<u8>> = row.get(3);
                    let cell = Cell {
                        table,
                        row: row.get(1),
                        column,
                        number: row.get(2),
                        bytes: bytes.unwrap_or_default(),
                    };
                    if !cell.bytes.is_empty() {
                        cells.entry(row.get(0)).or_default().push(cell);
                    }
                }
            }
        }
        cells
    }
}
