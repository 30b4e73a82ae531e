//! Runs the whole service in the test's process, on a real port, with a real database, a fake model
//! and a fake tool.

mod actor;

use std::fmt;
use std::sync::Arc;

use holdpoint::app::{DatabaseOptions, Replica};
use holdpoint::config::Source;
use holdpoint::config::environment::Environment;
use holdpoint::config::layers::Flags;
use holdpoint::store::Store;
use holdpoint::world::{Clock, RandomIds, SystemClock};
use holdpoint::{app, config};
use serde_json::{Value, json};

use super::database::Database;
use super::endless_sleep::{BETWEEN_ROUNDS, EndlessSleep};
use super::fake_chat_completions::FakeModel;
use super::fake_tool::FakeTool;
use super::{http_client, http_client_builder, repetitions};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Sqlite,
    Postgres,
}

impl On {
    /// Returns the cases that a test has on this database. A usual run divides them: the first case
    /// and every second one after it on `SQLite`, the others on Postgres. `scripts/chaos counts`
    /// has every case on both.
    pub fn share<T>(self, cases: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        let step = repetitions(2, 1);
        cases.into_iter().skip(self as usize % step).step_by(step)
    }
}

pub struct TestApp {
    running: Option<Replica>,
    yaml: String,
    clock: Arc<dyn Clock>,
    pub model: FakeModel,
    pub tool: FakeTool,
    pub database: Database,
    http: reqwest::Client,
}

pub struct Actor<'a> {
    app: &'a TestApp,
    key: Option<&'static str>,
    headers: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
    pub body: Value,
    about: String,
}

impl Reply {
    pub async fn read(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        Self {
            status,
            headers,
            body: serde_json::from_str(&text).unwrap_or(Value::Null),
            text,
            about: String::new(),
        }
    }

    pub fn str(&self, pointer: &str) -> String {
        self.body
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_else(|| panic!("no {pointer} in {}", self.text))
            .to_owned()
    }

    /// Returns the same reply. If an assertion of it fails, `about` stands before the text of the
    /// body.
    #[must_use]
    pub fn about(&self, about: &dyn fmt::Display) -> Self {
        let about = format!("{about}: ");
        Self {
            about,
            ..self.clone()
        }
    }

    #[track_caller]
    fn list(&self, name: &str) -> &[Value] {
        let list = self.body[name].as_array();
        list.unwrap_or_else(|| panic!("no {name} in {}", self.text))
    }

    /// Returns the number of elements of a list in the body.
    #[track_caller]
    pub fn count(&self, list: &str) -> usize {
        self.list(list).len()
    }

    /// Returns the text that each element of a list in the body has as this member.
    #[track_caller]
    pub fn texts(&self, list: &str, member: &str) -> Vec<&str> {
        let elements = self.list(list).iter();
        elements
            .map(|element| element[member].as_str().unwrap())
            .collect()
    }

    /// Asserts the HTTP status of the reply, and the `code` of the refusal in its body.
    #[track_caller]
    pub fn assert_code(&self, status: u16, code: &str) {
        let found = (self.status, self.str("/code"));
        assert_eq!(found, (status, code.to_owned()), "{self}");
    }

    /// Asserts the HTTP status of the reply, and the task's `status` in its body.
    #[track_caller]
    pub fn assert_status(&self, status: u16, task: &str) {
        let found = (self.status, self.str("/status"));
        assert_eq!(found, (status, task.to_owned()), "{self}");
    }

    /// Asserts that the task in the body is completed, with this `output`.
    #[track_caller]
    pub fn assert_completed(&self, output: &str) {
        let found = (self.str("/status"), self.str("/output"));
        let expected = ("Completed".to_owned(), output.to_owned());
        assert_eq!(found, expected, "{self}");
    }

    /// Asserts the HTTP status of the reply, and the text at `pointer` in its body.
    #[track_caller]
    pub fn assert_text(&self, status: u16, pointer: &str, text: &str) {
        let found = (self.status, self.str(pointer));
        assert_eq!(found, (status, text.to_owned()), "{self}");
    }

    /// Asserts the HTTP status of the reply, and the value of a header. The value of a missing
    /// header is empty.
    #[track_caller]
    pub fn assert_header(&self, status: u16, name: &str, value: &str) {
        let found = (self.status, self.header(name));
        assert_eq!(found, (status, value), "{self}");
    }

    /// Asserts that the body contains `text`.
    #[track_caller]
    pub fn assert_has(&self, text: &str) {
        assert!(self.text.contains(text), "no {text} in {self}");
    }

    /// Asserts that the body does not contain `text`.
    #[track_caller]
    pub fn assert_lacks(&self, text: &str) {
        assert!(!self.text.contains(text), "{text} in {self}");
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
    }

    /// Returns the cookie that this reply sets, in the form in which a browser sends it back.
    pub fn cookie(&self) -> String {
        let (cookie, _) = self.header("set-cookie").split_once(';').unwrap();
        cookie.to_owned()
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.about, self.text)
    }
}

pub const ALICE: &str = "alice-key-0123456789";
pub const BOB: &str = "bob-key-0123456789ab";
pub const CAROL: &str = "carol-key-0123456789";
pub const OPS: &str = "ops-key-0123456789ab";
pub const WEB: &str = "web-key-0123456789ab";
pub const OTHER: &str = "other-key-0123456789";

/// Accounts of two tenants. In acme, alice creates tasks, bob of finance approves them, and carol
/// takes no part.
pub const ACCOUNTS: &str = r#"
auth:
  api_keys:
    - { user: alice, tenant: acme, groups: [support], key: "alice-key-0123456789" }
    - { user: bob, tenant: acme, groups: [finance], key: "bob-key-0123456789ab" }
    - { user: carol, tenant: acme, key: "carol-key-0123456789" }
    - { user: ops, tenant: acme, key: "ops-key-0123456789ab", admin: true, may: [read] }
    - { user: web, tenant: acme, key: "web-key-0123456789ab", act_as: true }
    - { user: mallory, tenant: other, groups: [finance], key: "other-key-0123456789" }
"#;

/// Tools of every effect at the fake endpoint, one agent, and rules that allow, hold and deny.
pub const REFUNDS: &str = r#"
models:
  main: { provider: openai, base_url: "{model}", model: fake, api_key: "${MODEL_KEY}", retries: 1 }
tools:
  lookup: { effect: read_only, http: { method: POST, url: "{tool}/lookup" }, parameters: { type: object, properties: { order: { type: integer } } } }
  tag: { effect: idempotent, http: { method: POST, url: "{tool}/tag" }, parameters: { type: object, properties: { text: { type: string } } } }
  refund:
    description: Pay an order back.
    summary: "Refund {amount} for order {order}"
    parameters: { type: object, properties: { order: { type: integer }, amount: { type: number, exclusiveMinimum: 0 } }, required: [order, amount] }
    http: { method: POST, url: "{tool}/refund", headers: { X-Secret: "${TOOL_SECRET}" }, timeout: 5s }
  forbidden: { http: { method: POST, url: "{tool}/forbidden" } }
agents:
  billing: { description: Refunds., model: main, instructions: You handle refunds., tools: [lookup, tag, refund, forbidden] }
policy:
  - { name: reads, tools: [lookup, tag], decide: allow }
  - { name: small, tools: [refund], when: "args.amount <= 20.0", decide: allow }
  - { name: large, tools: [refund], decide: hold, reason: Refunds above 20 need a look., approvers: {approvers} }
  - { name: never, tools: [forbidden], decide: deny, reason: Not this one. }
"#;

/// The environment variables to which the test configurations refer, with their values.
pub const VARIABLES: [(&str, &str); 2] = [
    ("MODEL_KEY", "sk-model-key-0123456789"),
    ("TOOL_SECRET", "tool-secret-0123456789"),
];

/// The lock file beside the test configurations. Its one MCP server, `shop`, was reviewed with the
/// revision 2026-07-28, and has the tool `book`.
pub const LOCK: &str = include_str!("../browser/holdpoint.mcp.json");

/// Returns the configuration of the refund agent with accounts. `approvers` is the YAML of the
/// approvers of large refunds.
pub fn refunds(approvers: &str) -> String {
    REFUNDS.replace("{approvers}", approvers) + ACCOUNTS
}

impl TestApp {
    /// Starts the refund agent with accounts. The owner of a task decides its requests.
    pub async fn start(on: On) -> Self {
        Self::with(on, &refunds("{ owner: true }")).await
    }

    /// Starts the refund agent with accounts. The approvers are the members of finance.
    pub async fn with_finance(on: On) -> Self {
        Self::with(on, &refunds("{ groups: [finance] }")).await
    }

    pub async fn open(on: On) -> Self {
        Self::with(on, &REFUNDS.replace("{approvers}", "{ groups: [finance] }")).await
    }

    /// Starts a service with this configuration, in which `{model}` and `{tool}` stand for the fake
    /// endpoints.
    pub async fn with(on: On, yaml: &str) -> Self {
        Self::on_database(
            Database::of(on).await,
            yaml,
            FakeModel::start().await,
            FakeTool::start().await,
        )
        .await
    }

    /// Like `with`, but the worker looks for overdue requests only at its start. It closes no
    /// request whose deadline passes later.
    pub async fn unswept(on: On, yaml: &str) -> Self {
        let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
        let clock = EndlessSleep::new(|time| time == BETWEEN_ROUNDS);
        Self::by_clock(clock, Database::of(on).await, yaml, model, tool).await
    }

    /// Like `with`, but with this clock instead of the machine's.
    pub async fn timed(on: On, yaml: &str, clock: Arc<dyn Clock>) -> Self {
        let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
        let mut app = Self::by_clock(clock, Database::of(on).await, yaml, model, tool).await;
        // The service closes idle connections when the clock advances, so the client keeps no idle
        // connections. Otherwise the client might reuse a connection that the service is closing.
        let http = http_client_builder().pool_max_idle_per_host(0);
        app.http = http.build().unwrap();
        app
    }

    /// Starts the refund agent on the database at this URL, for example on a server that the test
    /// crashes. Sets short database timeouts.
    pub async fn at(url: &str) -> Self {
        Self::at_with(url, &refunds("{ owner: true }")).await
    }

    /// Like `at`, but with this configuration.
    pub async fn at_with(url: &str, yaml: &str) -> Self {
        Self::at_timed(url, yaml, Arc::new(SystemClock)).await
    }

    /// Like `at_with`, but with this clock instead of the machine's.
    pub async fn at_timed(url: &str, yaml: &str, clock: Arc<dyn Clock>) -> Self {
        let times = "\ndatabase: { acquire_timeout: 3s, statement_timeout: 2s }\n";
        let yaml = format!("{yaml}{times}");
        let (model, tool) = (FakeModel::start().await, FakeTool::start().await);
        Self::by_clock(clock, Database::at(url), &yaml, model, tool).await
    }

    pub async fn replica(&self) -> Self {
        Self::on_database(
            self.database.shared(),
            &self.yaml,
            self.model.clone(),
            self.tool.clone(),
        )
        .await
    }

    async fn on_database(database: Database, yaml: &str, model: FakeModel, tool: FakeTool) -> Self {
        Self::by_clock(Arc::new(SystemClock), database, yaml, model, tool).await
    }

    async fn by_clock(
        clock: Arc<dyn Clock>,
        database: Database,
        yaml: &str,
        model: FakeModel,
        tool: FakeTool,
    ) -> Self {
        let yaml = yaml
            .replace("{model}", &model.base_url)
            .replace("{tool}", &tool.url);
        let running = Some(start(&yaml, &database, &clock).await);
        Self {
            running,
            yaml,
            clock,
            model,
            tool,
            database,
            http: http_client(),
        }
    }

    fn running(&self) -> &Replica {
        self.running.as_ref().unwrap()
    }

    pub fn store(&self) -> &Store {
        &self.running().store
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.running().address)
    }

    /// Stops the service as SIGTERM does, and starts it again on the same database.
    pub async fn restart(&mut self) {
        self.running.take().unwrap().stop().await;
        self.running = Some(start(&self.yaml, &self.database, &self.clock).await);
    }

    /// Stops the service, replaces the `SQLite` file by a copy, and starts the service again.
    pub async fn restart_on_copy(&mut self, file: &str, copy: &str) {
        self.running.take().unwrap().stop().await;
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{file}{suffix}"));
        }
        std::fs::rename(copy, file).unwrap();
        self.running = Some(start(&self.yaml, &self.database, &self.clock).await);
    }

    pub async fn restart_with(&mut self, change: impl Fn(&str) -> String) {
        self.yaml = change(&self.yaml);
        self.restart().await;
    }

    pub fn owner(&self) -> Actor<'_> {
        self.actor(ALICE)
    }

    pub fn approver(&self) -> Actor<'_> {
        self.actor(BOB)
    }

    pub fn stranger(&self) -> Actor<'_> {
        self.actor(CAROL)
    }

    pub fn actor(&self, key: &'static str) -> Actor<'_> {
        Actor {
            app: self,
            key: Some(key),
            headers: Vec::new(),
        }
    }

    /// Returns the frontend that speaks for a user, and names the groups of the user.
    pub fn on_behalf_of(&self, user: &str, groups: &str) -> Actor<'_> {
        let frontend = self.actor(WEB).header("holdpoint-user", user);
        frontend.header("holdpoint-groups", groups)
    }

    pub fn anonymous(&self) -> Actor<'_> {
        Actor {
            app: self,
            key: None,
            headers: Vec::new(),
        }
    }

    /// Signs in with this key, as a browser does. Returns the cookie that the service sets.
    pub async fn sign_in(&self, key: &str) -> String {
        let entered = self.anonymous().submit("/sign-in", &[("key", key)]).await;
        assert_eq!(entered.status, 303, "{}", entered.text);
        entered.cookie()
    }

    /// Creates a task whose model asks for one refund of 120, which is held.
    pub async fn held(&self) -> Held {
        self.held_by(&self.owner()).await
    }

    /// Like `held`, but this actor creates the task.
    pub async fn held_by(&self, actor: &Actor<'_>) -> Held {
        self.model.then(super::fake_chat_completions::calls(&[(
            "refund",
            r#"{"order": 17, "amount": 120}"#,
        )]));
        let reply = actor.post("/v1/tasks", &json!({"input": "please"})).await;
        reply.assert_status(201, "Paused");
        Held {
            task: reply.str("/task_id"),
            request: reply.str("/pending/0/request_id"),
            call: reply.str("/pending/0/tool_calls/0/tool_call_id"),
            body: reply.body,
        }
    }

    pub async fn stop(mut self) {
        self.running.take().unwrap().stop().await;
    }
}

#[derive(Clone, Debug)]
pub struct Held {
    pub task: String,
    pub request: String,
    pub call: String,
    pub body: Value,
}

impl Held {
    /// Returns the digest of the request.
    pub fn digest(&self) -> &str {
        self.body["pending"][0]["digest"].as_str().unwrap()
    }
}

async fn start(yaml: &str, database: &Database, clock: &Arc<dyn Clock>) -> Replica {
    let flags = Flags {
        listen: Some("127.0.0.1:0".to_owned()),
        database_url: Some(database.url().to_owned()),
    };
    let source = Source::File("holdpoint.yaml".into(), yaml.to_owned());
    let environment = Environment::new(&VARIABLES, &[("holdpoint.mcp.json", LOCK)]);
    let loaded = config::load(source, &environment, &flags, app::check);
    let (config, _) = loaded.unwrap_or_else(|report| panic!("{report}"));
    let options = DatabaseOptions {
        permit_unsafe: true,
        ..DatabaseOptions::default()
    };
    Replica::start(
        config,
        Arc::clone(clock),
        Arc::new(RandomIds),
        None,
        options,
    )
    .await
    .unwrap()
}
