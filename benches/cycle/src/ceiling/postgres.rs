//! The Postgres store of `cycle_of_five.rs`. Each batch is written by a single statement, which is
//! its own transaction.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client as Connection, NoTls, Statement};
use uuid::Uuid;

use super::committer::Writer;
use super::cycle_of_five::{Change, Journal, RequestChange, Store};

/// The service's tables of tasks, journal items, requests, approvers and decisions. Besides the
/// primary keys, the schema has only one of the service's indexes.
const SCHEMA: &str = "
create table agent_task (
    task_id uuid primary key, tenant text not null, user_id text not null, session_id uuid not null,
    agent text not null, status text not null, version bigint not null, last_seq bigint not null,
    created_at bigint not null, updated_at bigint not null
) with (fillfactor = 70);
create index agent_task_owner on agent_task (tenant, user_id, task_id);
create table agent_task_item (
    task_id uuid not null, seq bigint not null, change_id uuid not null, type text not null, role text not null,
    at bigint not null, request_id uuid, body text not null, primary key (task_id, seq)
);
create table intervention_request (
    request_id uuid primary key, task_id uuid not null, call_id uuid not null, status text not null,
    created_at bigint not null, expires_at bigint not null
) with (fillfactor = 80);
create table request_approver (tenant text, name text, request_id uuid, primary key (tenant, name, request_id));
create table decision (
    request_id uuid, call_id uuid, user_id text not null, action text not null, at bigint not null,
    primary key (request_id, call_id)
)";

const WRITE: &str = "
with moment as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint as at
), changes as materialized (
    select * from unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::text[], $5::bigint[])
        as c (task_id, version, session_id, status, last_seq)
), created as (
    insert into agent_task (task_id, tenant, user_id, session_id, agent, status, version, last_seq, created_at, updated_at)
    select c.task_id, 'default', 'bench', c.session_id, 'billing', c.status, 1, c.last_seq, m.at, m.at
      from changes c, moment m where c.version = 0
    returning 1
), updated as (
    update agent_task t set version = t.version + 1, last_seq = c.last_seq, status = coalesce(c.status, t.status),
        updated_at = m.at
      from changes c, moment m where c.version > 0 and t.task_id = c.task_id and t.version = c.version
    returning 1
), items as (
    insert into agent_task_item (change_id, task_id, seq, type, role, request_id, body, at)
    select i.*, m.at
      from unnest($6::uuid[], $7::uuid[], $8::bigint[], $9::text[], $10::text[], $11::uuid[], $12::text[]) as i, moment m
), opened as (
    insert into intervention_request (request_id, task_id, call_id, status, created_at, expires_at)
    select o.request_id, o.task_id, o.call_id, 'pending', m.at, m.at + 86400000000
      from unnest($13::uuid[], $14::uuid[], $15::uuid[]) as o (request_id, task_id, call_id), moment m
), approvers as (
    insert into request_approver select 'default', 'bench', request_id from unnest($13::uuid[]) as o (request_id)
), closed as (
    update intervention_request r set status = 'resumed' where r.request_id = any ($16::uuid[]) and r.status = 'pending'
    returning r.request_id, r.call_id
), decided as (
    insert into decision select c.request_id, c.call_id, 'bench', 'approve', m.at from closed c, moment m
    returning 1
)
select (select count(*) from created) + (select count(*) from updated) as tasks,
    (select count(*) from decided) as decisions";

const READ: &str = "
select t.task_id, t.session_id, r.call_id, i.body
  from intervention_request r join agent_task t using (task_id) join agent_task_item i using (task_id)
 where r.request_id = $1 order by i.seq";

/// Connects to the database. As in the service, Postgres plans each prepared statement once, for
/// all values of its parameters.
pub async fn connect(url: &str) -> Connection {
    let (connection, driver) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("a database");
    // `driver` transfers the data of `connection` until the process ends. If `driver` fails, the
    // pending statements of `connection` also fail.
    tokio::spawn(driver);
    connection
        .batch_execute(
            "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set jit = off",
        )
        .await
        .expect("known settings");
    connection
}

pub struct PostgresStore {
    reader: Connection,
    read: Statement,
}

pub struct PostgresWriter {
    connection: Connection,
    write: Statement,
}

/// Creates the tables in an empty database. Returns the store and `count` writers.
pub async fn open(url: &str, count: usize) -> (PostgresStore, Vec<PostgresWriter>) {
    let reader = connect(url).await;
    let schema = reader.batch_execute(SCHEMA).await;
    schema.expect("an empty database");
    let mut writers = Vec::new();
    for _ in 0..count {
        let connection = connect(url).await;
        let write = connection.prepare(WRITE).await;
        let write = write.expect("a valid statement");
        writers.push(PostgresWriter { connection, write });
    }
    let read = reader.prepare(READ).await.expect("a valid statement");
    (PostgresStore { reader, read }, writers)
}

impl Store for PostgresStore {
    async fn read(&self, request_id: Uuid) -> Journal {
        let rows = self.reader.query(&self.read, &[&request_id]).await;
        let rows = rows.expect("a journal");
        let first = rows.first().expect("a known request");
        Journal {
            task_id: first.get(0),
            session_id: first.get(1),
            call_id: first.get(2),
            bodies: rows.iter().map(|row| row.get(3)).collect(),
        }
    }
}

impl Writer for PostgresWriter {
    type Change = Change;
    type Done = ();

    async fn write(&mut self, batch: Vec<Change>) -> Vec<()> {
        let columns = Columns::of(&batch);
        let row = self
            .connection
            .query_one(&self.write, &columns.values())
            .await
            .expect("a written batch");
        // Column 0 is the number of changes that the statement wrote. It is too low if another
        // change has already stored the same version. Column 1 is the number of requests that the
        // statement decided. It is too low if another change has already decided the same request.
        assert_eq!(row.get::<_, i64>(0), length(&batch));
        assert_eq!(row.get::<_, i64>(1), length(&columns.decided));
        vec![(); batch.len()]
    }
}

fn length<T>(list: &[T]) -> i64 {
    i64::try_from(list.len()).expect("a short list")
}

/// The changes of a batch as parameters of the statement: one array for each column.
#[derive(Default)]
struct Columns<'b> {
    task_id: Vec<Uuid>,
    version: Vec<i64>,
    session_id: Vec<Uuid>,
    status: Vec<Option<&'b str>>,
    last_seq: Vec<i64>,
    item_change: Vec<Uuid>,
    item_task: Vec<Uuid>,
    item_seq: Vec<i64>,
    item_kind: Vec<&'b str>,
    item_role: Vec<&'b str>,
    item_request: Vec<Option<Uuid>>,
    item_body: Vec<&'b str>,
    opened: Vec<Uuid>,
    opened_task: Vec<Uuid>,
    opened_call: Vec<Uuid>,
    decided: Vec<Uuid>,
}

impl<'b> Columns<'b> {
    fn of(batch: &'b [Change]) -> Self {
        let mut columns = Self::default();
        for change in batch {
            columns.add(change);
        }
        columns
    }

    fn add(&mut self, change: &'b Change) {
        self.task_id.push(change.task_id);
        self.version.push(change.version);
        self.session_id.push(change.session_id);
        self.status.push(change.status);
        self.last_seq.push(change.last_seq + length(&change.items));
        for (seq, item) in (change.last_seq + 1..).zip(&change.items) {
            self.item_change.push(change.change_id);
            self.item_task.push(change.task_id);
            self.item_seq.push(seq);
            self.item_kind.push(item.kind);
            self.item_role.push(item.role);
            self.item_request.push(item.request_id);
            self.item_body.push(&item.body);
        }
        match change.request {
            RequestChange::None => {}
            RequestChange::Opened(request_id) => {
                self.opened.push(request_id);
                self.opened_task.push(change.task_id);
                self.opened_call.push(change.call_id);
            }
            RequestChange::Decided(request_id) => self.decided.push(request_id),
        }
    }

    fn values(&self) -> [&(dyn ToSql + Sync); 16] {
        [
            &self.task_id,
            &self.version,
            &self.session_id,
            &self.status,
            &self.last_seq,
            &self.item_change,
            &self.item_task,
            &self.item_seq,
            &self.item_kind,
            &self.item_role,
            &self.item_request,
            &self.item_body,
            &self.opened,
            &self.opened_task,
            &self.opened_call,
            &self.decided,
        ]
    }
}
