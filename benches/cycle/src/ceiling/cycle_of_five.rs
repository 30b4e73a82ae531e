//! A cycle of five changes, as the service makes them: created; paused with a request; decided and
//! the tool started; the tool's result; completed. The journal's items are those that the service
//! writes in this cycle, byte for byte, except for ids and for the texts of the model and the tool.

use std::sync::Arc;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Router, routing::post};
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::client::Client;
use super::committer::{Committer, LARGEST_BATCH, Writer};

/// Everything that one commit writes of a task.
pub struct Change {
    pub change_id: Uuid,
    pub task_id: Uuid,
    /// The number of the task's earlier changes; 0 creates the task.
    pub version: i64,
    pub session_id: Uuid,
    /// The new status, if it changes.
    pub status: Option<&'static str>,
    /// The number of the task's earlier items.
    pub last_seq: i64,
    pub items: Vec<Item>,
    pub request: RequestChange,
    pub call_id: Uuid,
}

/// An item of the journal.
pub struct Item {
    pub kind: &'static str,
    pub role: &'static str,
    /// The request that the item is about.
    pub request_id: Option<Uuid>,
    pub body: String,
}

#[derive(Clone, Copy)]
pub enum RequestChange {
    None,
    Opened(Uuid),
    Decided(Uuid),
}

/// A writer of these changes.
pub trait ChangeWriter: Writer<Change = Change, Done = ()> {}

impl<W: Writer<Change = Change, Done = ()>> ChangeWriter for W {}

/// A store of tasks with their journals.
pub trait Store: Send + Sync + 'static {
    /// Finds the task of an open request, with the bodies of its items in their order.
    fn read(&self, request_id: Uuid) -> impl Future<Output = Journal> + Send;
}

pub struct Journal {
    pub task_id: Uuid,
    pub session_id: Uuid,
    pub call_id: Uuid,
    pub bodies: Vec<String>,
}

struct Server<S, W: Writer> {
    store: S,
    committer: Committer<W>,
    client: Client,
}

/// The server over a store and the connections that write.
pub fn router<S: Store, W: ChangeWriter>((store, writers): (S, Vec<W>), client: Client) -> Router {
    let server = Server {
        committer: Committer::start(writers, LARGEST_BATCH),
        store,
        client,
    };
    Router::new()
        .route("/v1/tasks", post(create::<S, W>))
        .route("/resume/{request_id}", post(resume::<S, W>))
        .with_state(Arc::new(server))
}

/// The lines of `bodies.txt`: the twelve items of the journal in their order, then the answers to
/// the two requests. Each line has a type, a role and a body, in which `@name@` stands for a value.
static BODIES: LazyLock<Vec<[&str; 3]>> = LazyLock::new(|| {
    let lines = include_str!("bodies.txt").lines();
    let mut parts = lines.map(|line| line.splitn(3, ' '));
    let mut next = || {
        parts
            .next()
            .map(|mut line| [(); 3].map(|()| line.next().expect("3 parts")))
    };
    std::iter::from_fn(&mut next).collect()
});
const PAUSED: usize = 12;
const COMPLETED: usize = 13;

/// A task while one request of a client is served.
struct Task {
    task_id: Uuid,
    session_id: Uuid,
    request_id: Uuid,
    call_id: Uuid,
    version: i64,
    last_seq: usize,
    /// The values of the names in the bodies (`@name@`).
    values: Vec<(&'static str, String)>,
}

impl Task {
    fn new(task_id: Uuid, session_id: Uuid, request_id: Uuid, call_id: Uuid) -> Self {
        Self {
            task_id,
            session_id,
            request_id,
            call_id,
            version: 0,
            last_seq: 0,
            values: vec![
                ("task", task_id.to_string()),
                ("session", session_id.to_string()),
                ("request", request_id.to_string()),
                ("call", call_id.to_string()),
            ],
        }
    }

    /// Sets the value of a name to a text, as JSON.
    fn set(&mut self, name: &'static str, text: &str) {
        let json = serde_json::to_string(text).expect("text");
        self.values.push((name, json));
    }

    fn value(&self, name: &str) -> &str {
        let found = self.values.iter().find(|(set, _)| *set == name);
        &found.expect("a value that was set").1
    }

    fn fill(&self, line: usize) -> String {
        let template = BODIES[line][2];
        let mut text = String::with_capacity(template.len() + 256);
        for (at, part) in template.split('@').enumerate() {
            text += if at % 2 == 0 { part } else { self.value(part) };
        }
        text
    }

    /// The next change, with the next `items` of the journal.
    fn change(
        &mut self,
        items: usize,
        status: Option<&'static str>,
        request: RequestChange,
    ) -> Change {
        let first = self.last_seq;
        let item = |line: usize| {
            let [kind, role, _] = BODIES[line];
            let about_request = matches!(kind, "intervention_requested" | "decision");
            Item {
                kind,
                role,
                request_id: about_request.then_some(self.request_id),
                body: self.fill(line),
            }
        };
        let change = Change {
            change_id: Uuid::now_v7(),
            task_id: self.task_id,
            version: self.version,
            session_id: self.session_id,
            status,
            last_seq: i64::try_from(first).expect("a short journal"),
            items: (first..first + items).map(item).collect(),
            request,
            call_id: self.call_id,
        };
        self.version += 1;
        self.last_seq += items;
        change
    }
}

#[derive(Deserialize)]
struct NewTask {
    input: String,
}

async fn create<S: Store, W: ChangeWriter>(
    State(server): State<Arc<Server<S, W>>>,
    body: Bytes,
) -> impl IntoResponse {
    let NewTask { input } = serde_json::from_slice(&body).expect("a task");
    let [task_id, session_id, request_id, call_id] = [(); 4].map(|()| Uuid::now_v7());
    let mut task = Task::new(task_id, session_id, request_id, call_id);
    task.set("input", &input);
    let created = task.change(2, Some("Running"), RequestChange::None);
    server.committer.commit(created).await;
    let message = format!(r#"{{"role":"user","content":{}}}"#, task.value("input"));
    let called = server.client.ask_for_stream(&[message]).await;
    task.values.push(("provider_call", called.call_id));
    task.set("arguments", &called.arguments);
    let paused = task.change(4, Some("Paused"), RequestChange::Opened(request_id));
    server.committer.commit(paused).await;
    answer(task.fill(PAUSED))
}

/// The parts of items that the prompt after the call needs.
#[derive(Deserialize)]
struct UserMessage<'a> {
    #[serde(borrow)]
    items: [TextItem<'a>; 1],
}

#[derive(Deserialize)]
struct TextItem<'a> {
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct AssistantMessage<'a> {
    #[serde(borrow)]
    tool_calls: [ProposedCall<'a>; 1],
}

#[derive(Deserialize)]
struct ProposedCall<'a> {
    name: String,
    provider_id: String,
    /// The arguments as a JSON string that holds JSON text, as the model gets them back.
    #[serde(borrow)]
    arguments_text: &'a RawValue,
}

async fn resume<S: Store, W: ChangeWriter>(
    State(server): State<Arc<Server<S, W>>>,
    Path(request_id): Path<Uuid>,
) -> impl IntoResponse {
    let journal = server.store.read(request_id).await;
    let UserMessage { items: [input] } =
        serde_json::from_str(&journal.bodies[1]).expect("the second item");
    let AssistantMessage { tool_calls: [call] } =
        serde_json::from_str(&journal.bodies[2]).expect("the third item");
    let mut task = Task::new(
        journal.task_id,
        journal.session_id,
        request_id,
        journal.call_id,
    );
    (task.version, task.last_seq) = (2, journal.bodies.len());

    let decided = task.change(3, Some("Running"), RequestChange::Decided(request_id));
    server.committer.commit(decided).await;
    let arguments = serde_json::from_str(call.arguments_text.get()).expect("a JSON text");
    let result = server.client.run_tool(arguments).await;
    task.set("result", &result);
    let returned = task.change(1, None, RequestChange::None);
    server.committer.commit(returned).await;
    let messages = [
        format!(r#"{{"role":"user","content":{}}}"#, input.content),
        format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"{}","type":"function","function":{{"name":"{}","arguments":{}}}}}]}}"#,
            call.provider_id, call.name, call.arguments_text
        ),
        format!(
            r#"{{"role":"tool","tool_call_id":"{}","content":{}}}"#,
            call.provider_id,
            task.value("result")
        ),
    ];
    let answered = server.client.ask_for_stream(&messages).await;
    task.set("output", &answered.text);
    let completed = task.change(2, Some("Completed"), RequestChange::None);
    server.committer.commit(completed).await;
    answer(task.fill(COMPLETED))
}

fn answer(body: String) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], body)
}
