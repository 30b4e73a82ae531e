//! A harness for trees of tasks. The agents delegate level by level, and each has its own model
//! name. A [`TreeDriver`] drives a whole tree. It polls the drivers of the tree's tasks only when
//! the test says so, and the test can drop the drivers at any moment.

mod driver;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::{DecisionBody, Engine, EngineParts, Settings};
use holdpoint::model::{self, AnswerCall, Prompt};
use holdpoint::store::{RequestRow, TaskFilter};
use holdpoint::task::change::{Journal, TaskRow};
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::item::{Fact, FinishReason, Outcome, ToolResult};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::transcript::Message;
use serde_json::{Value, json};

use super::super::call_decisions::edit;
use super::super::engine_harness::{
    EngineHarness, alice_decides, fills, rejects, tool_results, turn, whole,
};
use super::super::invariants::check_ended;
use crate::store::store_fixture::StoreFixture;

pub use self::driver::TreeDriver;

/// The names of the agents by level. The agent of the last level is called [`LEAF`] instead.
const NAMES: [&str; 3] = ["boss", "mid", "low"];
/// The agent at the bottom of a tree.
pub const LEAF: &str = "leaf";
/// A number of slots that is enough for every task of a tree.
pub const ROOM: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of levels of sub-agents.
    pub depth: usize,
    /// The number of children of the wide agent. Every other agent above the leaves starts one
    /// child.
    pub children: usize,
    /// The level of the wide agent.
    pub wide: usize,
}

/// The script of the leaves' model. `task` is the text of a leaf's task, and `turn` counts from 1.
/// Returns the calls of the model's answer in that turn: for each call, the tool's name and the
/// JSON arguments. An answer without calls is the leaf's last answer.
pub type LeafScript = fn(task: &str, turn: u32) -> Vec<(String, String)>;

impl Shape {
    /// Returns the shape of a tree in which the root's agent (`boss`) starts this many leaves.
    pub fn flat(children: usize) -> Self {
        Self::branched(1, children)
    }

    /// Returns the shape of a tree in which the root's agent (`boss`) starts this many branches. A
    /// branch has one task on each of the `depth` levels.
    pub const fn branched(depth: usize, children: usize) -> Self {
        Self {
            depth,
            children,
            wide: 0,
        }
    }

    pub fn name(self, level: usize) -> &'static str {
        if level == self.depth {
            LEAF
        } else {
            NAMES[level]
        }
    }

    fn level(self, name: &str) -> usize {
        (0..=self.depth)
            .find(|level| self.name(*level) == name)
            .unwrap()
    }

    /// Returns the number of tasks in the tree after all its agents have started.
    pub fn tasks(self) -> usize {
        (0..=self.depth)
            .map(|level| if level > self.wide { self.children } else { 1 })
            .sum()
    }

    /// Adds the tree's agents to a configuration. The boss is the default agent.
    fn agents(self, yaml: &str) -> String {
        let levels = || (0..=self.depth).map(|level| (self.name(level), level));
        let model = |(name, _)| {
            format!(
                "  {name}: {{ provider: openai, base_url: \"{{model}}\", model: {name}, retries: 1 }}\n"
            )
        };
        let agent = |(name, level): (&str, usize)| {
            let does = if level == self.depth {
                "tools: [lookup, tag, refund, forbidden], human: [guidance, confirmation]"
                    .to_owned()
            } else {
                format!("sub_agents: [{}]", self.name(level + 1))
            };
            format!(
                "  {name}: {{ description: Is the {name}., model: {name}, instructions: You are the {name}., {does} }}\n"
            )
        };
        let yaml = yaml.replace(
            "models:\n",
            &format!("models:\n{}", levels().map(model).collect::<String>()),
        );
        let yaml = yaml.replace(
            "agents:\n",
            &format!("agents:\n{}", levels().map(agent).collect::<String>()),
        );
        yaml + "default_agent: boss\n"
    }

    /// Returns the scripted answer of the model of the agent `name` to the prompt. A leaf's answer
    /// has the calls that `leaf` returns.
    pub fn answer(self, leaf: LeafScript, name: &str, prompt: &Prompt) -> model::Answer {
        let task = said(prompt);
        if name == LEAF {
            return speaks(name, &task, &leaf(&task, prompt.turn));
        }
        let level = self.level(name);
        let count = if level == self.wide { self.children } else { 1 };
        let hand_on = (1..=count)
            .map(|child| hands_on(self.name(level + 1), &format!("{task}.{child}")))
            .collect();
        speaks(
            name,
            &task,
            if prompt.turn == 1 {
                hand_on
            } else {
                Vec::new()
            }
            .as_slice(),
        )
    }
}

/// Returns a call that starts the sub-agent `agent`: the tool's name and the JSON arguments.
pub fn hands_on(agent: &str, task: &str) -> (String, String) {
    (agent.to_owned(), json!({"task": task}).to_string())
}

pub fn said(prompt: &Prompt) -> String {
    let mut users = prompt.messages.iter().filter_map(|message| match message {
        Message::User { parts, .. } => Some(parts),
        Message::Assistant { .. } | Message::Result { .. } => None,
    });
    users
        .next_back()
        .unwrap()
        .iter()
        .map(|part| part.content.as_str())
        .collect()
}

/// Returns an answer with these calls. An answer without calls is the agent's last answer.
pub fn speaks(name: &str, task: &str, calls: &[(String, String)]) -> model::Answer {
    if calls.is_empty() {
        return model::Answer {
            text: Some(format!("{name} is done with {task}")),
            ..turn(&[])
        };
    }
    let call = |(place, (name, arguments)): (usize, &(String, String))| AnswerCall {
        provider_id: format!("call_{place}"),
        name: name.clone(),
        arguments_text: arguments.clone(),
        holds_secret: false,
    };
    let calls = calls.iter().enumerate().map(call).collect();
    model::Answer {
        text: None,
        finish_reason: FinishReason::ToolCalls,
        calls,
        ..turn(&[])
    }
}

/// Returns a call that refunds this amount. No two leaves refund the same order, so a rejection of
/// a leaf's refund does not apply to the other leaves.
pub fn refund(task: &str, amount: u32) -> (String, String) {
    let order: String = task.chars().filter(char::is_ascii_digit).collect();
    (
        "refund".to_owned(),
        format!(r#"{{"order":{order},"amount":{amount}}}"#),
    )
}

/// Scripts one refund that is held.
pub fn one_large(task: &str, turn: u32) -> Vec<(String, String)> {
    if turn == 1 {
        vec![refund(task, 120)]
    } else {
        Vec::new()
    }
}

/// Scripts one refund that is small enough to run without an approval.
pub fn one_small(task: &str, turn: u32) -> Vec<(String, String)> {
    if turn == 1 {
        vec![refund(task, 5)]
    } else {
        Vec::new()
    }
}

/// The way in which people answer a tree's requests. They answer reconcile requests from the tool's
/// ledger in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum People {
    Approve,
    /// Rejects, and lets the agent go on.
    Reject,
    Edit,
    /// Answers guidance requests.
    Guide,
}

pub const EDITED: u32 = 130;

impl EngineHarness {
    pub async fn of_trees(fixture: StoreFixture, shape: Shape, leaf: LeafScript) -> Self {
        let mut harness = Self::new(fixture, &[]).await;
        harness.use_shape(shape, leaf);
        harness
    }

    /// Adds the agents of a tree of this shape to the configuration, and scripts their models.
    pub fn use_shape(&mut self, shape: Shape, leaf: LeafScript) {
        self.configure(|yaml| shape.agents(yaml));
        self.script_by_name(move |name, prompt| Ok(shape.answer(leaf, name, prompt)));
    }

    /// Returns an engine with these parts, but with `max_running` slots.
    pub fn like(parts: &EngineParts, max_running: usize) -> Arc<Engine> {
        Engine::new(EngineParts {
            settings: Settings {
                max_running,
                ..parts.settings
            },
            ..parts.clone()
        })
    }

    /// Returns the rows of a tree: first the root, then the other tasks by age.
    pub async fn tree(&self, root: TaskId) -> Vec<TaskRow> {
        let filter = TaskFilter {
            tenant: "acme".to_owned(),
            roots: vec![root],
            limit: 200,
            ..TaskFilter::default()
        };
        let mut rows = self.fixture.store.tasks(&filter).await.unwrap().rows;
        rows.sort_by_key(|row| (row.task_id != root, row.task_id));
        rows
    }

    pub async fn of_agent(&self, root: TaskId, agent: &str) -> Vec<TaskId> {
        let rows = self.tree(root).await.into_iter();
        rows.filter(|row| row.agent == agent)
            .map(|row| row.task_id)
            .collect()
    }

    /// Returns the row of a task. The row can be read even if the task's journal cannot be read.
    pub async fn row(&self, task: TaskId) -> TaskRow {
        self.fixture.row(task).await
    }

    /// Renames a type of items in a task's journal. If `to` is unknown to this version, the items
    /// look as if a newer version had written them.
    pub async fn rename_type(&self, task: TaskId, from: &str, to: &str) {
        let id = self.fixture.literal(task.0);
        let [from, to] = [from, to].map(|name| format!(r#""type":"{name}""#));
        let sql = format!(
            "update agent_task_item set body = replace(body, '{from}', '{to}') where task_id = {id}"
        );
        self.fixture.execute(&sql).await;
    }

    pub async fn asked_by_tree(&self, root: TaskId) -> Vec<RequestRow> {
        self.fixture.store.pending(root, root).await.unwrap()
    }

    /// Returns the open requests of a tree. Panics unless exactly `N` are open.
    pub async fn asked_exactly<const N: usize>(&self, root: TaskId) -> [RequestRow; N] {
        self.asked_by_tree(root).await.try_into().unwrap()
    }

    /// Creates a tree and drives it until nothing can be driven. Returns the root.
    pub async fn grown(&self, parts: &EngineParts) -> TaskId {
        let mut driver = TreeDriver::start(self, parts).await;
        assert!(driver.drive(usize::MAX).await);
        driver.root
    }

    /// Drives a tree until nothing can be driven.
    pub async fn drive_tree(&self, parts: &EngineParts, root: TaskId) {
        assert!(TreeDriver::of(self, parts, root).drive(usize::MAX).await);
    }

    pub async fn answer_tree(&self, engine: &Arc<Engine>, root: TaskId, people: People) {
        for request in self.asked_by_tree(root).await {
            self.answer_one(engine, &request, people).await;
        }
    }

    pub async fn answer_one(&self, engine: &Arc<Engine>, request: &RequestRow, people: People) {
        let asked = &request.spec;
        let call = asked.own_calls().next().unwrap();
        let answer = match (asked.kind, people) {
            (RequestKind::Reconcile, _) => {
                let id = call.tool_call_id.to_string();
                let ran = self
                    .tool
                    .ledger()
                    .iter()
                    .any(|known| known.header("idempotency-key") == id);
                if ran {
                    whole(Action::Respond, Some(json!("it was paid")))
                } else {
                    whole(Action::Retry, None)
                }
            }
            (RequestKind::Guidance, _) => fills(&json!({"answer": "42"})),
            (RequestKind::Approval, People::Reject) => rejects(Consequence::Continue),
            (RequestKind::Approval, People::Edit) => {
                let mut arguments: Value = serde_json::from_str(&call.arguments_text).unwrap();
                arguments["amount"] = json!(EDITED);
                let replies = asked
                    .own_calls()
                    .map(|call| (call.tool_call_id.to_string(), edit(&arguments.to_string())));
                holdpoint::engine::DecisionInput {
                    digest: None,
                    body: DecisionBody::PerCall(replies.collect()),
                }
            }
            _ => whole(Action::Approve, None),
        };
        alice_decides(engine, request.spec.request_id, answer).await;
    }

    /// Drives the rest of a tree in new processes and answers its requests, until the tree has
    /// ended.
    pub async fn finish_tree(&self, parts: &EngineParts, root: TaskId, people: People) {
        let api = Self::like(parts, 0);
        for _ in 0..40 {
            self.later();
            self.drive_tree(parts, root).await;
            match self.row(root).await.status {
                TaskStatus::Running => {}
                TaskStatus::Paused => self.answer_tree(&api, root, people).await,
                TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Canceled => return,
            }
        }
        panic!("the tree does not end: {}", self.description(root).await);
    }

    pub async fn description(&self, root: TaskId) -> String {
        let mut told = String::new();
        for row in self.tree(root).await {
            let head = (
                row.agent_path.join("/"),
                row.status,
                row.busy,
                row.open_requests,
                row.version,
            );
            let _ = writeln!(told, "\n{} {head:?}", row.task_id);
            match self.fixture.store.items(row.task_id, 0, 1000).await {
                Ok(items) => {
                    for (item, event) in items {
                        let _ = writeln!(told, "  {} {event} {:?}", item.seq, item.fact);
                    }
                }
                Err(error) => drop(writeln!(told, "  {error}")),
            }
        }
        told
    }

    /// Checks the invariants of a tree whose root has completed. Returns its journals.
    pub async fn completed_journals(&self, root: TaskId) -> BTreeMap<TaskId, Journal> {
        let journals = self.checked_journals(root).await;
        assert_eq!(
            journals[&root].row.status,
            TaskStatus::Completed,
            "{}",
            self.description(root).await
        );
        journals
    }

    /// Checks the invariants of an ended tree. Returns its journals.
    pub async fn checked_journals(&self, root: TaskId) -> BTreeMap<TaskId, Journal> {
        let mut journals = BTreeMap::new();
        for row in self.tree(root).await {
            let journal = self.journal(row.task_id).await;
            let counted = (
                row.status.is_terminal(),
                row.busy,
                row.open_requests,
                row.lease_owner.is_some(),
            );
            assert_eq!(
                counted,
                (true, 0, 0, false),
                "{:?}: {}",
                row.agent_path,
                self.description(root).await
            );
            check_ended(&journal.items);
            journals.insert(row.task_id, journal);
        }
        for (task, journal) in &journals {
            let mut started: BTreeMap<CallId, TaskId> = BTreeMap::new();
            for item in &journal.items {
                let Fact::SubAgentStarted {
                    tool_call_id,
                    child_task_id,
                    agent,
                } = &item.fact
                else {
                    continue;
                };
                let known = started.insert(*tool_call_id, *child_task_id);
                assert_eq!(
                    known,
                    None,
                    "one start for each call: {}",
                    self.description(root).await
                );
                let child = &journals[child_task_id].row;
                assert_eq!(child.parent.map(|parent| parent.0), Some(*task));
                assert_eq!(&child.agent, agent);
                let path = [journal.row.agent_path.clone(), vec![agent.clone()]].concat();
                assert_eq!((&child.agent_path, child.root_task_id), (&path, root));
            }
            let children = journals
                .values()
                .filter(|child| child.row.parent.is_some_and(|parent| parent.0 == *task));
            for child in children {
                assert_eq!(
                    started.get(&child.row.parent.unwrap().1),
                    Some(&child.row.task_id),
                    "no call started it"
                );
            }
        }
        journals
    }
}

/// Returns the result of the call that started this task, or `None` if the call has no result.
pub fn handed_back(journals: &BTreeMap<TaskId, Journal>, child: TaskId) -> Option<&ToolResult> {
    let (parent, call) = journals[&child].row.parent.unwrap();
    tool_results(&journals[&parent].items).find(|result| result.tool_call_id == call)
}

pub fn ended_as(journals: &BTreeMap<TaskId, Journal>, task: TaskId) -> Vec<Outcome> {
    super::super::engine_harness::outcomes(&journals[&task])
}

/// A long time without an answer to a request, yet shorter than the time to the request's deadline.
pub const DAYS: Duration = Duration::from_hours(20);
