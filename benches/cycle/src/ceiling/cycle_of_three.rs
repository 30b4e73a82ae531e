//! A cycle of three changes: (1) the task is created and paused; (2) the request is decided; (3)
//! the task is completed with the tool's result. The tool's result is a constant, and the journal
//! has four short items.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Router, routing::post};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client as Connection, Statement};
use uuid::Uuid;

use super::client::Client;
use super::committer::{Committer, Writer};
use super::postgres::connect;

const SCHEMA: &str = "
create table task (
    task_id uuid primary key, request_id uuid not null, session_id uuid not null, user_id text not null,
    status text not null, created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(), answer jsonb
) with (fillfactor = 80);
create unique index task_request on task (request_id);
create table task_item (
    task_id uuid not null, seq int not null, role text not null, content jsonb not null, request_id uuid not null,
    created_at timestamptz not null default now(), primary key (task_id, seq)
)";

const CREATE: &str = "
with new as (
    select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[])
        as n (task_id, request_id, session_id, message, call)
), tasks as (
    insert into task (task_id, request_id, session_id, user_id, status)
    select task_id, request_id, session_id, 'user-1', 'Paused' from new
)
insert into task_item (task_id, seq, role, content, request_id)
select task_id, 0, 'user', message::jsonb, request_id from new
union all select task_id, 1, 'assistant', call::jsonb, request_id from new";
const DECIDE: &str = "
with decided as (
    update task set status = 'Running', updated_at = now()
     where request_id = any ($1::uuid[]) and status = 'Paused' returning task_id, request_id
)
select d.request_id, i.content from decided d join task_item i using (task_id) order by d.request_id, i.seq";
const COMPLETE: &str = "
with ended as (
    select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) as e (request_id, answer, result, message)
), tasks as (
    update task t set status = 'Completed', answer = e.answer::jsonb, updated_at = now() from ended e
     where t.request_id = e.request_id and t.status <> 'Completed'
    returning t.task_id, e.request_id, e.result, e.message
)
insert into task_item (task_id, seq, role, content, request_id)
select task_id, 2, 'tool', result::jsonb, request_id from tasks
union all select task_id, 3, 'assistant', message::jsonb, request_id from tasks";

pub enum Change {
    Create {
        task: Uuid,
        request: Uuid,
        session: Uuid,
        message: String,
        call: String,
    },
    Decide {
        request: Uuid,
    },
    Complete {
        request: Uuid,
        answer: String,
        result: String,
        message: String,
    },
}

pub struct PostgresWriter {
    connection: Connection,
    create: Statement,
    decide: Statement,
    complete: Statement,
}

/// Builds the server. Opens `writers` connections. Each connection commits batches of up to `limit`
/// changes.
pub async fn router(database: &str, writers: usize, limit: usize, client: Client) -> Router {
    let schema = connect(database).await.batch_execute(SCHEMA).await;
    schema.expect("an empty database");
    let mut all = Vec::new();
    for _ in 0..writers {
        let connection = connect(database).await;
        let prepare = |text| connection.prepare(text);
        all.push(PostgresWriter {
            create: prepare(CREATE).await.expect("a valid statement"),
            decide: prepare(DECIDE).await.expect("a valid statement"),
            complete: prepare(COMPLETE).await.expect("a valid statement"),
            connection,
        });
    }
    let server = Server {
        store: Committer::start(all, limit),
        client,
    };
    Router::new()
        .route("/v1/tasks", post(create))
        .route("/resume/{request_id}", post(resume))
        .with_state(Arc::new(server))
}

/// The changes of a batch as parameters of the statements. Each kind of change has one array for
/// each column.
#[derive(Default)]
struct Columns {
    created_ids: [Vec<Uuid>; 3],
    created_texts: [Vec<String>; 2],
    decided: Vec<Uuid>,
    completed: Vec<Uuid>,
    completed_texts: [Vec<String>; 3],
}

impl Columns {
    fn add(&mut self, change: Change) {
        match change {
            Change::Create {
                task,
                request,
                session,
                message,
                call,
            } => {
                push(&mut self.created_ids, [task, request, session]);
                push(&mut self.created_texts, [message, call]);
            }
            Change::Decide { request } => self.decided.push(request),
            Change::Complete {
                request,
                answer,
                result,
                message,
            } => {
                self.completed.push(request);
                push(&mut self.completed_texts, [answer, result, message]);
            }
        }
    }
}

fn push<T, const N: usize>(columns: &mut [Vec<T>; N], row: [T; N]) {
    for (column, value) in columns.iter_mut().zip(row) {
        column.push(value);
    }
}

impl Writer for PostgresWriter {
    type Change = Change;
    /// The messages of the conversation so far, if the change is a decision; otherwise empty.
    type Done = Vec<String>;

    async fn write(&mut self, batch: Vec<Change>) -> Vec<Vec<String>> {
        let requests: Vec<_> = batch
            .iter()
            .map(|change| match change {
                Change::Decide { request } => Some(*request),
                Change::Create { .. } | Change::Complete { .. } => None,
            })
            .collect();
        let mut columns = Columns::default();
        for change in batch {
            columns.add(change);
        }
        let [tasks, opened, sessions] = &columns.created_ids;
        let [inputs, calls] = &columns.created_texts;
        let [answers, results, messages] = &columns.completed_texts;
        let has_new = !tasks.is_empty();
        let has_decided = !columns.decided.is_empty();
        let has_ended = !columns.completed.is_empty();
        let several = u8::from(has_new) + u8::from(has_decided) + u8::from(has_ended) > 1;
        let connection = &self.connection;
        // Pipelined: the statements are sent in this order, without waiting for results.
        let (begun, created, rows, completed, committed) = tokio::join!(biased;
            async { if several { connection.batch_execute("begin").await } else { Ok(()) } },
            async {
                let values: [&(dyn ToSql + Sync); 5] = [tasks, opened, sessions, inputs, calls];
                if has_new { connection.execute(&self.create, &values).await } else { Ok(0) }
            },
            async {
                let values: [&(dyn ToSql + Sync); 1] = [&columns.decided];
                if has_decided { connection.query(&self.decide, &values).await } else { Ok(vec![]) }
            },
            async {
                let values: [&(dyn ToSql + Sync); 4] = [&columns.completed, answers, results, messages];
                if has_ended { connection.execute(&self.complete, &values).await } else { Ok(0) }
            },
            async { if several { connection.batch_execute("commit").await } else { Ok(()) } },
        );
        begun.and(committed).expect("a transaction");
        created.and(completed).expect("written changes");
        let mut conversations: HashMap<Uuid, Vec<String>> = HashMap::new();
        for row in rows.expect("decided requests") {
            let message = row.get::<_, Value>(1).to_string();
            conversations.entry(row.get(0)).or_default().push(message);
        }
        requests
            .into_iter()
            .map(|request| request.and_then(|id| conversations.remove(&id)))
            .map(Option::unwrap_or_default)
            .collect()
    }
}

struct Server {
    store: Committer<PostgresWriter>,
    client: Client,
}

#[derive(Deserialize)]
struct NewTask {
    input: String,
}

async fn create(State(server): State<Arc<Server>>, body: Bytes) -> impl IntoResponse {
    let NewTask { input } = serde_json::from_slice(&body).expect("a task");
    let (task, request, session) = (Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7());
    let message = json!({ "role": "user", "content": input }).to_string();
    let call = server.client.ask(std::slice::from_ref(&message)).await;
    let call = call.get().to_owned();
    let tool_calls: Value = serde_json::from_str(&call).expect("a message");
    let created = Change::Create {
        task,
        request,
        session,
        message,
        call,
    };
    server.store.commit(created).await;
    answer(&json!({
        "task_id": task,
        "status": "Paused",
        "output": null,
        "pending": [{ "request_id": request, "tool_calls": tool_calls["tool_calls"] }],
    }))
}

async fn resume(State(server): State<Arc<Server>>, Path(request): Path<Uuid>) -> impl IntoResponse {
    let mut messages = server.store.commit(Change::Decide { request }).await;
    let [_, call] = messages.as_slice() else {
        panic!("{request} is not open");
    };
    let call: Value = serde_json::from_str(call).expect("a message");
    let id = &call["tool_calls"][0]["id"];
    let result = json!({ "refund_id": "R-1", "status": "refunded" }).to_string();
    let result = json!({ "role": "tool", "tool_call_id": id, "content": result }).to_string();
    messages.push(result.clone());
    let message = server.client.ask(&messages).await;
    let output: Value = serde_json::from_str(message.get()).expect("a message");
    let completed = Change::Complete {
        request,
        answer: output["content"].to_string(),
        result,
        message: message.get().to_owned(),
    };
    server.store.commit(completed).await;
    answer(&json!({ "status": "Completed", "output": output["content"], "pending": [] }))
}

fn answer(body: &Value) -> impl IntoResponse + use<> {
    ([(CONTENT_TYPE, "application/json")], body.to_string())
}
