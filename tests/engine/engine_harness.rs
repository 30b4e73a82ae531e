//! A harness of engines that run no workers. A test holds the drivers, polls them as often as it
//! needs, and drops them.

mod configuration;
mod readings;
mod steps;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint::engine::{
    DecisionBody, DecisionInput, Engine, EngineParts, Refusal, Settings, TaskInput,
};
use holdpoint::model::{self, AnswerCall, ModelClient, ModelError, PieceSink, Prompt};
use holdpoint::people::authorization::Roster;
use holdpoint::people::directory::{Account, Directory};
use holdpoint::people::{Caller, Permissions};
use holdpoint::secret::Secret;
use holdpoint::task::change::{ClientColumns, Journal};
use holdpoint::task::decision::{Action, Consequence, Door};
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{FinishReason, Outcome, Part, PartType, Usage};
use holdpoint::task::progress::Progress;
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::tool_spec::ToolSpec;
use holdpoint::tool::Tool;
use holdpoint::tool::catalog::Catalog;
use holdpoint::world::RandomIds;
use serde_json::Value;
use tokio::task::JoinHandle;

use self::configuration::ConfiguredParts;
use super::stored_prompts::PromptChecker;
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::StoreFixture;
use crate::support::fake_tool::FakeTool;
use crate::support::test_app::{VARIABLES, refunds};
use crate::support::until;

pub use self::readings::tool_results;
pub use self::steps::{
    alice_decides, alice_is_refused, alice_writes, decides, message, superseding,
};

/// Maps the name of a model and the prompt to the model's answer.
pub type Script = Arc<dyn Fn(&str, &Prompt) -> Result<model::Answer, ModelError> + Send + Sync>;

/// Calls of a model in a turn: for each, the tool and the JSON arguments.
pub type Calls = &'static [(&'static str, &'static str)];

/// Returns as many questions as a tree may have open, and then the call `last`.
pub const fn beyond_the_maximum(
    last: (&'static str, &'static str),
) -> [(&'static str, &'static str); 21] {
    let mut calls = [("request_human_guidance", r#"{"question":"How?"}"#); 21];
    calls[20] = last;
    calls
}

pub type MakeTool = Arc<dyn Fn(&ToolSpec) -> Arc<dyn Tool> + Send + Sync>;

/// Spawns a driver on the test's runtime. If the driver still runs when the runtime ends, the
/// runtime drops it.
#[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
pub fn spawn(driver: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(driver)
}

pub async fn claimed(engine: &Arc<Engine>) -> Vec<JoinHandle<()>> {
    let drivers = engine.claim().await.unwrap();
    drivers.into_iter().map(spawn).collect()
}

/// Waits until spawned drivers have ended.
pub async fn join(drivers: Vec<JoinHandle<()>>) {
    for driver in drivers {
        driver.await.unwrap();
    }
}

/// Aborts drivers that still run, as the end of their process does.
pub async fn kill(drivers: Vec<JoinHandle<()>>) {
    for driver in drivers {
        driver.abort();
        assert!(driver.await.unwrap_err().is_cancelled());
    }
}

/// Claims tasks, and drives them one after another.
pub async fn drive(engine: &Arc<Engine>) {
    for driver in engine.claim().await.unwrap() {
        driver.await;
    }
}

/// A model inside the test's process. It answers with a delay and records its prompts.
pub struct StubModel {
    script: Mutex<Script>,
    shown: Mutex<Vec<(String, Prompt)>>,
}

type Variables = Vec<(&'static str, &'static str)>;

/// A [`StubModel`], with the name by which an agent refers to it.
struct Named(String, Arc<StubModel>, Option<Arc<PromptChecker>>);

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl ModelClient for Named {
    async fn answer(
        &self,
        prompt: &Prompt,
        _: &dyn PieceSink,
    ) -> Result<model::Answer, ModelError> {
        let Self(name, model, checker) = self;
        held(&model.shown).push((name.clone(), prompt.clone()));
        if let Some(checker) = checker {
            checker.reads(prompt).await;
        }
        tokio::task::yield_now().await;
        // The lock is not held during the call: several model calls may be in flight.
        let script = Arc::clone(&held(&model.script));
        let answer = script(name, prompt);
        tokio::task::yield_now().await;
        answer
    }
}

/// Returns a turn of the model: the calls, or a text if there are no calls.
pub fn turn(calls: &[(&str, &str)]) -> model::Answer {
    let calls: Vec<_> = calls
        .iter()
        .map(|(name, arguments)| AnswerCall {
            provider_id: "call_0".to_owned(),
            name: (*name).to_owned(),
            arguments_text: (*arguments).to_owned(),
            holds_secret: false,
        })
        .collect();
    model::Answer {
        text: calls.is_empty().then(|| "done".to_owned()),
        finish_reason: if calls.is_empty() {
            FinishReason::Stop
        } else {
            FinishReason::ToolCalls
        },
        calls,
        usage: Usage::default(),
        raw: Value::Null,
    }
}

/// A database, a model and a tool, which all engines of a test share.
pub struct EngineHarness {
    pub fixture: StoreFixture,
    pub tool: FakeTool,
    pub model: Arc<StubModel>,
    /// If set, creates the tool `refund` in place of the tool that the configuration describes.
    pub refund: Option<MakeTool>,
    /// If set, compares each prompt with the journal while the model is asked.
    checker: Option<Arc<PromptChecker>>,
    /// The values of `${…}` in the configuration of engines that are created from now on.
    pub variables: Variables,
    yaml: String,
    /// The configuration of the newest engine, with the text and the variables that it came from.
    /// A test that replaces its engine at each step would spend most of its time on reading it.
    read: Mutex<Option<(String, Variables, ConfiguredParts)>>,
}

impl EngineHarness {
    /// Creates a harness of the refund agent. The model makes these calls (tool, JSON arguments) in
    /// its first turn and then finishes.
    pub async fn new(fixture: StoreFixture, calls: Calls) -> Self {
        let script: Script =
            Arc::new(move |_, prompt| Ok(turn(if prompt.turn == 1 { calls } else { &[] })));
        let yaml = refunds("{ owner: true }");
        let model = Arc::new(StubModel {
            script: Mutex::new(script),
            shown: Mutex::default(),
        });
        Self {
            fixture,
            tool: FakeTool::start().await,
            model,
            refund: None,
            checker: None,
            variables: VARIABLES.to_vec(),
            yaml,
            read: Mutex::default(),
        }
    }

    /// Returns a new checker, which compares each prompt with the journal while the model is asked.
    /// The checker gets the prompts of all engines that are created from now on.
    pub fn prompt_checker(&mut self) -> Arc<PromptChecker> {
        let checker = Arc::new(PromptChecker::new(self.fixture.store.clone()));
        self.checker = Some(Arc::clone(&checker));
        checker
    }

    /// Sets the function that maps the number of a turn to the model's answer in this turn.
    pub fn script(
        &self,
        script: impl Fn(u32) -> Result<model::Answer, ModelError> + Send + Sync + 'static,
    ) {
        self.script_by_name(move |_, prompt| script(prompt.turn));
    }

    /// Lets the model make these calls (tool, JSON arguments), turn by turn, and then finish.
    pub fn script_turns(&self, turns: &'static [Calls]) {
        let calls = move |number: u32| turns.get(number as usize - 1).copied().unwrap_or_default();
        self.script(move |number| Ok(turn(calls(number))));
    }

    /// Sets the function that maps the model's name and the prompt to the answer, for all models.
    pub fn script_by_name(
        &self,
        script: impl Fn(&str, &Prompt) -> Result<model::Answer, ModelError> + Send + Sync + 'static,
    ) {
        *held(&self.model.script) = Arc::new(script);
    }

    pub fn prompted(&self) -> (String, Prompt) {
        held(&self.model.shown).last().cloned().unwrap()
    }

    pub fn prompt_count(&self) -> usize {
        held(&self.model.shown).len()
    }

    /// Returns the prompts after the first `count` prompts, each with the name of its model.
    pub fn prompts_since(&self, count: usize) -> Vec<(String, Prompt)> {
        held(&self.model.shown)[count..].to_vec()
    }

    /// Creates an engine that runs at most `max_running` tasks at once. With 0 it queues every task
    /// that it accepts.
    pub fn engine(&self, max_running: usize) -> Arc<Engine> {
        Engine::new(self.parts(max_running))
    }

    pub fn parts(&self, max_running: usize) -> EngineParts {
        let ConfiguredParts {
            config,
            agents,
            policy,
            mut catalog,
        } = self.configured();
        if let Some(refund) = &self.refund {
            let made = |spec: &ToolSpec| (spec.name == "refund").then(|| refund(spec));
            catalog = Arc::new(Catalog::clone(&catalog).with_tools(made));
        }
        let store = &self.fixture.store;
        let kept = async {
            for agent in agents.definitions() {
                let kept = store.store_agent_version(&agent.version, &agent.definition);
                kept.await.unwrap();
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(kept));
        let model = |name: &String| -> Arc<dyn ModelClient> {
            let model = Named(name.clone(), self.model.clone(), self.checker.clone());
            Arc::new(model)
        };
        let models = config.models.keys();
        EngineParts {
            store: self.fixture.store.clone(),
            agents,
            policy,
            catalog,
            models: models.map(|name| (name.clone(), model(name))).collect(),
            roster: roster(),
            sealer: config.sealer(),
            clock: self.fixture.clock.clone(),
            ids: Arc::new(RandomIds),
            settings: Settings {
                max_running,
                ..Settings::default()
            },
        }
    }

    /// Advances the clock past the end of every lease and every attempt.
    pub fn later(&self) {
        self.fixture.forward(Duration::from_mins(2));
    }

    pub async fn journal(&self, task: TaskId) -> Journal {
        self.fixture.store.journal(task).await.unwrap().unwrap()
    }

    pub async fn status(&self, task: TaskId) -> TaskStatus {
        self.fixture.row(task).await.status
    }

    /// Waits until the task does not run any more.
    pub async fn until_stopped(&self, task: TaskId) {
        let is_stopped = async || self.status(task).await != TaskStatus::Running;
        until("the task does not run", is_stopped).await;
    }

    pub async fn open(&self, task: TaskId) -> Vec<(RequestId, RequestKind)> {
        let asked = self.open_specs(task).await.into_iter();
        asked.map(|spec| (spec.request_id, spec.kind)).collect()
    }

    pub async fn open_specs(&self, task: TaskId) -> Vec<RequestSpec> {
        let progress = Progress::from_items(&self.journal(task).await.items);
        progress.open.into_iter().map(|open| open.spec).collect()
    }

    /// Answers all open requests of the task. Approves held calls, confirms calls of unknown
    /// outcome as done, and fills in every credential field.
    pub async fn answer_all(&self, engine: &Arc<Engine>, task: TaskId) {
        for asked in self.open_specs(task).await {
            let answer = match (asked.kind, &asked.form) {
                (RequestKind::Reconcile, _) => whole(Action::Respond, Some("it was paid".into())),
                (RequestKind::Credentials, Some(form)) => {
                    let fields = form["properties"].as_object().unwrap().keys();
                    let filled = |field: &String| (field.clone(), format!("of-{field}@acme.com"));
                    fills(&fields.map(filled).collect())
                }
                _ => whole(Action::Approve, None),
            };
            alice_decides(engine, asked.request_id, answer).await;
        }
    }

    /// Creates a task, which is queued. Returns the task's id.
    pub async fn queued(&self) -> TaskId {
        let accepted = self.engine(0).create(&alice(), go(), None).await;
        accepted.unwrap().task_id
    }

    /// Creates a task and drives it until it stops. Returns the task's id.
    pub async fn stopped(&self) -> TaskId {
        let task = self.queued().await;
        self.run().await;
        task
    }

    /// Creates a task and drives it until its first call is in flight. The tool answers once the
    /// test calls `FakeTool::open`. Returns the task's id and the drivers.
    pub async fn in_flight(&self) -> (TaskId, Vec<JoinHandle<()>>) {
        self.tool.close();
        let task = self.queued().await;
        let drivers = claimed(&self.engine(1)).await;
        self.tool.reached(1).await;
        (task, drivers)
    }

    /// Creates a task whose process dies while the first call is in flight, so that no process sees
    /// the response. Returns the task's id.
    pub async fn lost_call(&self) -> TaskId {
        let (task, drivers) = self.in_flight().await;
        kill(drivers).await;
        self.tool.open();
        task
    }

    /// Creates a task and drives it until it waits for an approval. Returns the task's id.
    pub async fn held(&self) -> TaskId {
        let task = self.stopped().await;
        assert_eq!(self.status(task).await, TaskStatus::Paused);
        task
    }

    /// Drives at most 4 tasks that can run now. Uses a new engine, as a restarted process would.
    pub async fn run(&self) {
        drive(&self.engine(4)).await;
    }

    /// Drives the task to its end in a new engine. Advances the clock and answers the task's
    /// requests on the way.
    pub async fn finish(&self, task: TaskId) {
        let engine = self.engine(4);
        for _ in 0..20 {
            self.later();
            drive(&engine).await;
            match self.status(task).await {
                TaskStatus::Running => {}
                TaskStatus::Paused => self.answer_all(&self.engine(0), task).await,
                TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Canceled => return,
            }
        }
        panic!(
            "the task does not end: {:#?}",
            self.journal(task).await.items
        );
    }

    pub fn executions(&self, task: TaskId, path: &str) -> usize {
        self.tool.executions(&task.to_string(), path)
    }
}

/// Returns a roster with one key that may speak for every user.
fn roster() -> Roster {
    let web = Account {
        user: "web".to_owned(),
        tenant: "acme".to_owned(),
        groups: Vec::new(),
        act_as: true,
        admin: false,
        permissions: Permissions::ALL,
        key_sha256: [0; 32],
    };
    Roster::new(Some(Directory::new(vec![web])))
}

pub fn alice() -> Caller {
    person("alice")
}

pub fn person(user: &str) -> Caller {
    Caller {
        user_id: user.into(),
        tenant: "acme".to_owned(),
        groups: Vec::new(),
        via: Some("web".to_owned()),
        door: Some(Door::Key),
        admin: false,
        permissions: Permissions::ALL,
        without_accounts: false,
    }
}

pub fn outcomes(journal: &Journal) -> Vec<Outcome> {
    tool_results(&journal.items)
        .map(|result| result.outcome)
        .collect()
}

pub fn rejects(then: Consequence) -> DecisionInput {
    answer(Action::Reject, Some(then), None, None)
}

pub fn go() -> TaskInput {
    TaskInput {
        agent: None,
        items: vec![Part {
            content_type: PartType::Text,
            content: "go".to_owned(),
        }],
        session_id: None,
        user_context: None,
        client: ClientColumns::with_metadata("{}".to_owned()),
    }
}

/// Returns whether the result is a refusal because another answer to the request came first.
pub fn too_late<T>(said: &Result<T, Refusal>, to: RequestId) -> bool {
    matches!(said, Err(Refusal::AlreadyDecided { request, .. }) if *request == to)
}

pub fn fills(response: &Value) -> DecisionInput {
    answer(Action::Respond, None, Some(response), None)
}

pub fn whole(action: Action, result: Option<Value>) -> DecisionInput {
    answer(action, None, None, result)
}

/// Returns an answer to all calls of a request.
fn answer(
    action: Action,
    then: Option<Consequence>,
    response: Option<&Value>,
    result: Option<Value>,
) -> DecisionInput {
    let body = DecisionBody::Whole {
        action,
        reason: None,
        then,
        response: response.map(|it| Secret::new(it.to_string())),
        result: result.map(|it| it.to_string()),
        remember: None,
    };
    DecisionInput { digest: None, body }
}
