//! Bare handlers for `POST /v1/gate/calls`. Each handler reads a proposed call and allows it,
//! without a rule. `gate0` stores nothing. `gate1` commits one row. `gate1once` first looks for an
//! equal call, as the service does for a tool with the effect `once`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Router, routing::post};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client as Connection, Statement};
use uuid::Uuid;

use super::committer::{Committer, LARGEST_BATCH, Writer};
use super::postgres::connect;

const SCHEMA: &str = "
create table gate_call (
    task_id uuid primary key, tool text not null, arguments text not null, created_at bigint not null
)";
const INDEX: &str = "create index gate_call_equal on gate_call (tool, arguments)";

const WRITE: &str = "
insert into gate_call (task_id, tool, arguments, created_at)
select c.task_id, c.tool, c.arguments, (extract(epoch from clock_timestamp()) * 1000000)::bigint
  from unnest($1::uuid[], $2::text[], $3::text[]) as c (task_id, tool, arguments)";
const LOOK_UP: &str = "select task_id from gate_call where tool = $1 and arguments = $2 limit 1";

pub struct Call {
    task_id: Uuid,
    tool: String,
    arguments: String,
}

pub struct CallWriter {
    connection: Connection,
    write: Statement,
}

impl Writer for CallWriter {
    type Change = Call;
    type Done = ();

    async fn write(&mut self, batch: Vec<Call>) -> Vec<()> {
        let ids: Vec<_> = batch.iter().map(|call| call.task_id).collect();
        let tools: Vec<_> = batch.iter().map(|call| call.tool.as_str()).collect();
        let arguments: Vec<_> = batch.iter().map(|call| call.arguments.as_str()).collect();
        let values: [&(dyn ToSql + Sync); 3] = [&ids, &tools, &arguments];
        let written = self.connection.execute(&self.write, &values).await;
        written.expect("a written batch");
        vec![(); batch.len()]
    }
}

#[derive(Default)]
struct Server {
    /// Commits the calls. `None` in the mode `gate0`, which stores nothing.
    committer: Option<Committer<CallWriter>>,
    /// The connection and the statement of the look-up; set in the mode `gate1once`.
    reader: Option<(Connection, Statement)>,
}

/// Builds the server of a mode: `gate0` answers without a database, `gate1` commits each call, and
/// `gate1once` also looks for earlier calls. The latter two open `writers` connections, which
/// commit batches of calls.
pub async fn router(mode: &str, database: &str, writers: usize) -> Router {
    let mut server = Server::default();
    if mode != "gate0" {
        let reader = connect(database).await;
        let schema = reader.batch_execute(SCHEMA).await;
        schema.expect("an empty database");
        let mut all = Vec::new();
        for _ in 0..writers {
            let connection = connect(database).await;
            let write = connection.prepare(WRITE).await;
            let write = write.expect("a valid statement");
            all.push(CallWriter { connection, write });
        }
        server.committer = Some(Committer::start(all, LARGEST_BATCH));
        if mode == "gate1once" {
            let index = reader.batch_execute(INDEX).await;
            index.expect("a new index");
            let look_up = reader.prepare(LOOK_UP).await.expect("a valid statement");
            server.reader = Some((reader, look_up));
        }
    }
    Router::new()
        .route("/v1/gate/calls", post(propose))
        .with_state(Arc::new(server))
}

#[derive(Deserialize)]
struct NewCall<'a> {
    tool: String,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

async fn propose(State(server): State<Arc<Server>>, body: Bytes) -> impl IntoResponse {
    let NewCall { tool, arguments } = serde_json::from_slice(&body).expect("a call");
    let call = Call {
        task_id: Uuid::now_v7(),
        tool,
        arguments: arguments.get().to_owned(),
    };
    let answer = format!(r#"{{"task_id":"{}","decision":"allow"}}"#, call.task_id);
    if let Some((reader, look_up)) = &server.reader {
        let values: [&(dyn ToSql + Sync); 2] = [&call.tool, &call.arguments];
        let equal = reader.query_opt(look_up, &values).await;
        assert!(equal.expect("a look-up").is_none(), "no call is repeated");
    }
    if let Some(committer) = &server.committer {
        committer.commit(call).await;
    }
    ([(CONTENT_TYPE, "application/json")], answer)
}
