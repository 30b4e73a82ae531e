//! A cycle of five changes, as the service commits them: (1) the task is created; (2) the task is
//! paused with a request; (3) the request is decided, and the tool is started; (4) the tool's
//! result is stored; (5) the task is completed. The service writes the same journal items in such a
//! cycle, byte for byte, apart from ids and from the texts of the model and the tool.

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

/// The data that one commit writes about one task.
pub struct Change {
    pub change_id: Uuid,
    pub task_id: Uuid,
    /// The number of the task's earlier changes. A change with version 0 creates the task.
    pub version: i64,
    pub session_id: Uuid,
    /// The new status; `None` if the status stays the same.
    pub status: Option<&'static str>,
    /// The number of items that the task's journal already has.
    pub last_seq: i64,
    pub items: Vec<Item>,
    pub request: RequestChange,
    pub call_id: Uuid,
}

pub struct Item {
    pub kind: &'static str,
    pub role: &'static str,
    pub request_id: Option<Uuid>,
    pub body: String,
}

#[derive(Clone, Copy)]
pub enum RequestChange {
    None,
    Opened(Uuid),
    Decided(Uuid),
}

/// A [`Writer`] of this module's [`Change`]s. Every such writer implements this trait.
pub trait ChangeWriter: Writer<Change = Change, Done = ()> {}

impl<W: Writer<Change = Change, Done = ()>> ChangeWriter for W {}

pub trait Store: Send + Sync + 'static {
    /// Finds the task of an open request. Returns the task's ids and the bodies of its journal's
    /// items, in the order of the journal.
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

/// Builds the server. The server reads tasks from `store` and commits changes with `writers`.
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

/// The lines of `bodies.txt`: the twelve items of the journal in order, then the answers to the
/// client's two requests. Each line has a type, a role and a body. A `@name@` in a body is replaced
/// by a value.
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

/// The state of a task while the server handles one request of a client.
struct Task {
    task_id: Uuid,
    session_id: Uuid,
    request_id: Uuid,
    call_id: Uuid,
    version: i64,
    last_seq: usize,
    /// Pairs of a name and the value that replaces `@name@` in the bodies.
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

    /// Sets the value of `name` to `text`, encoded as a JSON string.
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

    /// Returns the task's next change, which has the next `items` items of the journal.
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

/// The body of the journal's `user_message` item. After the tool call, `resume` sends the text of
/// this item to the model again.
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
    /// The arguments as JSON text inside a JSON string. The model expects this form.
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
