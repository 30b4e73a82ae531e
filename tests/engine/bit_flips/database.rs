//! A second connection to the database, which copies tables, changes single cells, and restores the
//! tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rusqlite::Connection;

use super::super::engine_harness::EngineHarness;
use crate::support::sqlite_file;

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

pub struct OtherConnection(Connection);

impl OtherConnection {
    pub fn of(harness: &EngineHarness) -> Self {
        let beside = Self(sqlite_file::connect(harness.fixture.settings.url.reveal()));
        // The updates simulate bits that flip on disk. The database checks constraints only when
        // it writes, so a flip on disk may violate them. This connection switches the checks off.
        beside.execute("pragma foreign_keys = off; pragma ignore_check_constraints = on");
        beside
    }

    fn execute(&self, sql: &str) {
        self.0
            .execute_batch(sql)
            .unwrap_or_else(|why| panic!("{why}: {sql:.300}"));
    }

    /// Updates rows without the trigger `intervention_request_end`, which would refuse some
    /// updates.
    pub fn changes(&self, updates: &str) {
        let guard = "select sql from sqlite_master where name = 'intervention_request_end'";
        let guard: String = self.0.query_row(guard, [], |row| row.get(0)).unwrap();
        self.execute(&format!(
            "begin immediate; drop trigger intervention_request_end; {updates} {guard}; commit;"
        ));
    }

    pub fn keep(&self) {
        let mut sql = String::new();
        for table in TABLES {
            write!(
                sql,
                "create table kept_{table} as select rowid as kept, * from {table};"
            )
            .unwrap();
        }
        self.execute(&sql);
    }

    pub fn bring_back(&self) {
        let mut sql = String::from("begin immediate;");
        for table in TABLES {
            let columns =
                format!("select group_concat(name, ',') from pragma_table_info('{table}')");
            let names: String = self.0.query_row(&columns, [], |row| row.get(0)).unwrap();
            write!(
                sql,
                "delete from {table}; insert into {table} (rowid, {names}) select kept, {names} from kept_{table};"
            )
            .unwrap();
        }
        self.execute(&(sql + "commit;"));
    }

    /// Returns, for each task, the values in which a bit may flip: the bodies of the task's items,
    /// and columns of its requests, approvers and decisions.
    pub fn cells(&self) -> BTreeMap<Vec<u8>, Vec<Cell>> {
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
                let rows = sqlite_file::rows(&self.0, &sql, |row| {
                    let bytes: Option<Vec<u8>> = row.get(3)?;
                    let cell = Cell {
                        table,
                        row: row.get(1)?,
                        column,
                        number: row.get(2)?,
                        bytes: bytes.unwrap_or_default(),
                    };
                    Ok((row.get(0)?, cell))
                });
                for (task, cell) in rows.unwrap() {
                    if !cell.bytes.is_empty() {
                        cells.entry(task).or_default().push(cell);
                    }
                }
            }
        }
        cells
    }
}
