//! The `SQLite` store of `cycle_of_five.rs`. Each batch is written in one transaction with cached
//! statements.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, params};
use uuid::Uuid;

use super::committer::Writer;
use super::cycle_of_five::{Change, Item, Journal, RequestChange, Store};

/// The same tables as in `postgres.rs`, with ids as blobs.
const SCHEMA: &str = "
create table agent_task (
    task_id blob primary key, tenant text not null, user_id text not null, session_id blob not null,
    agent text not null, status text not null, version integer not null, last_seq integer not null,
    created_at integer not null, updated_at integer not null
) without rowid;
create index agent_task_owner on agent_task (tenant, user_id, task_id);
create table agent_task_item (
    task_id blob not null, seq integer not null, change_id blob not null, type text not null, role text not null,
    at integer not null, request_id blob, body text not null, primary key (task_id, seq)
);
create table intervention_request (
    request_id blob primary key, task_id blob not null, call_id blob not null, status text not null,
    created_at integer not null, expires_at integer not null
) without rowid;
create table request_approver (
    tenant text, name text, request_id blob, primary key (tenant, name, request_id)
) without rowid;
create table decision (
    request_id blob, call_id blob, user_id text not null, action text not null, at integer not null,
    primary key (request_id, call_id)
) without rowid";

const CREATE: &str =
    "insert into agent_task values (?1, 'default', 'bench', ?2, 'billing', ?3, 1, ?4, ?5, ?5)";
const UPDATE: &str = "
update agent_task set version = version + 1, status = coalesce(?3, status), last_seq = ?4, updated_at = ?5
 where task_id = ?1 and version = ?2";
const ADD_ITEM: &str = "insert into agent_task_item values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
const OPEN: &str =
    "insert into intervention_request values (?1, ?2, ?3, 'pending', ?4, ?4 + 86400000000)";
const ADD_APPROVER: &str = "insert into request_approver values ('default', 'bench', ?1)";
const CLOSE: &str = "update intervention_request set status = 'resumed' where request_id = ?1 and status = 'pending'";
const DECIDE: &str = "insert into decision values (?1, ?2, 'bench', 'approve', ?3)";
const READ: &str = "
select t.task_id, t.session_id, r.call_id, i.body
  from intervention_request r join agent_task t using (task_id) join agent_task_item i using (task_id)
 where r.request_id = ?1 order by i.seq";

fn connect(file: &str) -> Connection {
    let connection = Connection::open(file).expect("a database");
    connection
        .execute_batch(
            "pragma journal_mode = wal; pragma synchronous = full; pragma busy_timeout = 5000",
        )
        .expect("known settings");
    connection.set_prepared_statement_cache_capacity(32);
    connection
}

pub struct SqliteStore(Mutex<Connection>);

pub struct SqliteWriter(Connection);

/// Creates the tables in a new file. Returns the store, and the one writer that `SQLite` allows.
pub fn open(file: &str) -> (SqliteStore, Vec<SqliteWriter>) {
    let writer = connect(file);
    writer.execute_batch(SCHEMA).expect("a new file");
    let reader = Mutex::new(connect(file));
    (SqliteStore(reader), vec![SqliteWriter(writer)])
}

impl Store for SqliteStore {
    async fn read(&self, request_id: Uuid) -> Journal {
        let reader = self.0.lock().expect("no reader panics");
        let mut read = reader.prepare_cached(READ).expect("a valid statement");
        let mut rows = read.query([request_id]).expect("a journal");
        let mut journal: Option<Journal> = None;
        while let Some(row) = rows.next().expect("a row") {
            let id = |column| row.get(column).expect("an id");
            let journal = journal.get_or_insert_with(|| Journal {
                task_id: id(0),
                session_id: id(1),
                call_id: id(2),
                bodies: Vec::new(),
            });
            journal.bodies.push(row.get(3).expect("text"));
        }
        journal.expect("a known request")
    }
}

impl Writer for SqliteWriter {
    type Change = Change;
    type Done = ();

    async fn write(&mut self, batch: Vec<Change>) -> Vec<()> {
        let transaction = || -> rusqlite::Result<()> {
            let transaction = self.0.transaction()?;
            for change in &batch {
                write(&transaction, change)?;
            }
            transaction.commit()
        };
        tokio::task::block_in_place(transaction).expect("a written batch");
        vec![(); batch.len()]
    }
}

fn write(connection: &Connection, change: &Change) -> rusqlite::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let at = i64::try_from(now.expect("a time after 1970").as_micros()).expect("a time");
    let Change {
        task_id,
        version,
        session_id,
        status,
        call_id,
        ..
    } = change;
    let last_seq = change.last_seq + i64::try_from(change.items.len()).expect("a short list");
    if *version == 0 {
        let row = params![task_id, session_id, status, last_seq, at];
        connection.prepare_cached(CREATE)?.execute(row)?;
    } else {
        let row = params![task_id, version, status, last_seq, at];
        assert_eq!(connection.prepare_cached(UPDATE)?.execute(row)?, 1);
    }
    let mut add_item = connection.prepare_cached(ADD_ITEM)?;
    for (seq, item) in (change.last_seq + 1..).zip(&change.items) {
        let Item {
            kind,
            role,
            request_id,
            body,
        } = item;
        let row = params![
            task_id,
            seq,
            change.change_id,
            kind,
            role,
            at,
            request_id,
            body
        ];
        add_item.execute(row)?;
    }
    match change.request {
        RequestChange::None => {}
        RequestChange::Opened(request_id) => {
            let row = params![request_id, task_id, call_id, at];
            connection.prepare_cached(OPEN)?.execute(row)?;
            connection
                .prepare_cached(ADD_APPROVER)?
                .execute([request_id])?;
        }
        RequestChange::Decided(request_id) => {
            let closed = connection.prepare_cached(CLOSE)?.execute([request_id])?;
            assert_eq!(closed, 1);
            let row = params![request_id, call_id, at];
            connection.prepare_cached(DECIDE)?.execute(row)?;
        }
    }
    Ok(())
}
