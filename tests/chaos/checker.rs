//! Compares the journals with the world's ledger and with the acknowledged answers: nothing may be
//! lost, nothing may happen twice.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an item of a new type proves nothing here by itself"
)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use holdpoint::task::decision::{Action, Decision};
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::item::{Fact, Item, Outcome, ToolResult};
use holdpoint::task::request::RequestKind;

use super::simulated_people::Deed;
use super::world::Execution;
use crate::engine::invariants;

/// The state of one task after the run.
pub struct Told {
    pub task: TaskId,
    pub root: TaskId,
    /// For a sub-agent's task, the task and the call that started it.
    pub parent: Option<(TaskId, CallId)>,
    /// The status shown by the service.
    pub status: String,
    pub output: Option<String>,
    /// The row's counters of its subtree: busy tasks and open requests.
    pub counted: (i32, i32),
    /// The journal, each item with its event number.
    pub journal: Vec<(Item, i64)>,
}

/// Everything that a run left behind.
pub struct Evidence<'a> {
    pub tasks: &'a [Told],
    pub ledger: &'a [Execution],
    pub history: &'a [Deed],
    pub attempted: &'a BTreeMap<String, Vec<&'static str>>,
    /// Whether the database and the world share a clock, so that their times can be compared.
    pub one_clock: bool,
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct Findings {
    pub tasks: usize,
    pub calls: usize,
    pub executions: usize,
    /// Acknowledged decisions.
    pub decisions: usize,
    /// Reconcile requests.
    pub to_human: usize,
    /// Starts without a result because the process died, although the world broke nothing.
    pub cut_off: usize,
    /// Tasks that went on in another process.
    pub takeovers: usize,
    pub rejected: usize,
    /// Tasks of sub-agents.
    pub children: usize,
    pub wrong: Vec<Wrong>,
}

/// A broken promise.
#[derive(Debug)]
pub struct Wrong {
    pub kind: Kind,
    pub task: Option<TaskId>,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Duplicate,
    Lost,
    Other,
}

impl Findings {
    pub fn count(&self, kind: Kind) -> usize {
        self.wrong.iter().filter(|wrong| wrong.kind == kind).count()
    }

    fn add(&mut self, kind: Kind, task: impl Into<Option<TaskId>>, what: impl fmt::Display) {
        self.wrong.push(Wrong {
            kind,
            task: task.into(),
            what: what.to_string(),
        });
    }
}

/// The journal's facts about one call.
#[derive(Default)]
struct Call {
    name: String,
    arguments: String,
    starts: Vec<(i64, String)>,
    results: Vec<ToolResult>,
    late: Vec<ToolResult>,
    asked: usize,
    /// Reconcile requests that the process opened itself, since the connection broke.
    broken: usize,
    /// The sub-agents' tasks that were started for this call.
    children: Vec<TaskId>,
}

/// The tools that are sub-agents.
const AGENTS: [&str; 3] = ["scout", "clerk", "hand"];

impl Call {
    fn repeatable(&self) -> bool {
        self.name != "refund" && self.name != "short"
    }
}

/// Checks all evidence.
pub fn check(evidence: &Evidence<'_>) -> Findings {
    let mut found = Findings {
        tasks: evidence.tasks.len(),
        executions: evidence.ledger.len(),
        ..Findings::default()
    };
    let mut by_key: HashMap<&str, Vec<&Execution>> = HashMap::new();
    for execution in evidence.ledger {
        by_key.entry(&execution.key).or_default().push(execution);
    }
    let children: HashMap<TaskId, &Told> = evidence
        .tasks
        .iter()
        .map(|told| (told.task, told))
        .collect();
    numbered(evidence, &mut found);
    for told in evidence.tasks {
        stands(told, &mut found);
        let calls = read(told, evidence, &mut found);
        for (id, call) in &calls {
            if AGENTS.contains(&call.name.as_str()) {
                one_delegation(told, *id, call, &children, &mut found);
                continue;
            }
            let executions = by_key.remove(id.to_string().as_str()).unwrap_or_default();
            one_call(
                told.task,
                *id,
                call,
                &executions,
                evidence.one_clock,
                &mut found,
            );
        }
    }
    for (key, executions) in by_key {
        let task = executions[0].task.parse().ok();
        found.add(
            Kind::Lost,
            task,
            format!("{key} was executed and stands in no journal"),
        );
    }
    acknowledged(evidence, &mut found);
    found
}

/// Checks that a journal has no gaps, a beginning and an end, and obeys the laws of the loop.
fn stands(told: &Told, found: &mut Findings) {
    let items: Vec<Item> = told.journal.iter().map(|(item, _)| item.clone()).collect();
    for (place, (item, _)) in (1..).zip(&told.journal) {
        if item.seq != place {
            found.add(
                Kind::Lost,
                told.task,
                format!("a gap: item {} in place {place}", item.seq),
            );
        }
    }
    if told.counted != (0, 0) {
        found.add(
            Kind::Other,
            told.task,
            format!("it is over and counts {:?}", told.counted),
        );
    }
    if !matches!(told.status.as_str(), "Completed" | "Canceled") {
        found.add(
            Kind::Lost,
            told.task,
            format!("it did not end: {}", told.status),
        );
    }
    let last = items.iter().rev().find_map(|item| match &item.fact {
        Fact::TaskStatus { status, .. } => Some(format!("{status:?}")),
        _ => None,
    });
    if last.as_deref() != Some(told.status.as_str()) {
        found.add(
            Kind::Other,
            told.task,
            format!(
                "it is said to be {}, its journal says {last:?}",
                told.status
            ),
        );
    }
    for (name, law) in [
        (
            "every call has one result",
            invariants::every_call_has_one_result as fn(&[Item]),
        ),
        ("no start without leave", invariants::check),
    ] {
        if std::panic::catch_unwind(|| law(&items)).is_err() {
            found.add(Kind::Other, told.task, format!("the law is broken: {name}"));
        }
    }
}

/// Checks that the events of each tree are numbered 1, 2, 3 … over all its tasks.
fn numbered(evidence: &Evidence<'_>, found: &mut Findings) {
    let mut trees: BTreeMap<TaskId, Vec<i64>> = BTreeMap::new();
    for told in evidence.tasks {
        found.children += usize::from(told.parent.is_some());
        trees
            .entry(told.root)
            .or_default()
            .extend(told.journal.iter().map(|(_, event)| *event));
    }
    for (root, mut events) in trees {
        events.sort_unstable();
        if !(1..).zip(&events).all(|(place, event)| place == *event) {
            found.add(
                Kind::Lost,
                root,
                format!("the events of its tree have gaps: {events:?}"),
            );
        }
    }
}

/// Checks one call of a sub-agent: started once, and handed back as the task ended.
fn one_delegation(
    told: &Told,
    id: CallId,
    call: &Call,
    tasks: &HashMap<TaskId, &Told>,
    found: &mut Findings,
) {
    let name = &call.name;
    if call.children.len() > 1 {
        found.add(
            Kind::Duplicate,
            told.task,
            format!("{name} {id} was started {} times", call.children.len()),
        );
    }
    if call.results.len() != 1 || !call.late.is_empty() || !call.starts.is_empty() {
        found.add(
            Kind::Other,
            told.task,
            format!("{name} {id} has {} results", call.results.len()),
        );
    }
    let Some(result) = call.results.first() else {
        return;
    };
    let Some(child) = call.children.first() else {
        if result.outcome == Outcome::Succeeded {
            found.add(
                Kind::Lost,
                told.task,
                format!("{name} {id} is said to have succeeded; it was never started"),
            );
        }
        return;
    };
    let Some(child) = tasks.get(child) else {
        found.add(
            Kind::Lost,
            told.task,
            format!("{name} {id} was started as {child}, which is not there"),
        );
        return;
    };
    if child.parent.is_none_or(|(parent, _)| parent != told.task) || child.root != told.root {
        found.add(
            Kind::Other,
            told.task,
            format!("{name} {id}: {} is not its own", child.task),
        );
    }
    // A sub-agent that keeps its conversation has given later answers since.
    let said = name == "clerk" || child.output.as_ref() == Some(&result.content);
    if result.outcome == Outcome::Succeeded && !(child.status == "Completed" && said) {
        let (status, output) = (&child.status, &child.output);
        found.add(
            Kind::Lost,
            told.task,
            format!("{name} {id} handed back {result:?}; it is {status} with {output:?}"),
        );
    }
}

fn read(told: &Told, evidence: &Evidence<'_>, found: &mut Findings) -> BTreeMap<CallId, Call> {
    let mut calls: BTreeMap<CallId, Call> = BTreeMap::new();
    let mut decided: BTreeSet<(String, CallId)> = BTreeSet::new();
    let mut replicas: Vec<String> = Vec::new();
    for (item, _) in &told.journal {
        match &item.fact {
            Fact::AssistantMessage(turn) => {
                for (id, call) in calls.iter().filter(|(_, call)| call.results.is_empty()) {
                    found.add(
                        Kind::Other,
                        told.task,
                        format!(
                            "the model was asked before {id} ({}) had a result",
                            call.name
                        ),
                    );
                }
                for call in &turn.tool_calls {
                    let fresh = Call {
                        name: call.name.clone(),
                        arguments: call.arguments_text.clone(),
                        ..Call::default()
                    };
                    calls.insert(call.tool_call_id, fresh);
                }
            }
            Fact::ToolStarted {
                tool_call_id,
                replica,
                ..
            } => {
                calls
                    .entry(*tool_call_id)
                    .or_default()
                    .starts
                    .push((item.at.0, replica.clone()));
                if replicas.last() != Some(replica) {
                    replicas.push(replica.clone());
                }
            }
            Fact::ToolResult(result) => calls
                .entry(result.tool_call_id)
                .or_default()
                .results
                .push(result.clone()),
            Fact::LateResult(result) => calls
                .entry(result.tool_call_id)
                .or_default()
                .late
                .push(result.clone()),
            Fact::SubAgentStarted {
                tool_call_id,
                child_task_id,
                ..
            } => {
                calls
                    .entry(*tool_call_id)
                    .or_default()
                    .children
                    .push(*child_task_id);
            }
            Fact::InterventionRequested(asked) if asked.kind == RequestKind::Reconcile => {
                found.to_human += 1;
                let lost = asked.details.as_ref().is_some_and(|details| {
                    details["problem"]
                        .as_str()
                        .is_some_and(|problem| problem.contains("ended before its result"))
                });
                for own in asked.own_calls() {
                    let call = calls.entry(own.tool_call_id).or_default();
                    call.asked += 1;
                    call.broken += usize::from(!lost);
                }
            }
            Fact::Decision {
                request_id,
                decision,
            } => {
                one_decision(
                    told.task,
                    &request_id.to_string(),
                    decision,
                    evidence,
                    &mut decided,
                    found,
                );
            }
            _ => {}
        }
    }
    found.calls += calls.len();
    found.takeovers += replicas.len().saturating_sub(1);
    calls
}

fn one_decision(
    task: TaskId,
    request: &str,
    decision: &Decision,
    evidence: &Evidence<'_>,
    decided: &mut BTreeSet<(String, CallId)>,
    found: &mut Findings,
) {
    found.rejected += usize::from(decision.action == Action::Reject);
    for id in decision.decisions.keys() {
        if !decided.insert((request.to_owned(), *id)) {
            found.add(
                Kind::Duplicate,
                task,
                format!("{id} is decided twice in request {request}"),
            );
        }
    }
    let attempted = evidence
        .attempted
        .get(request)
        .is_some_and(|all| all.contains(&decision.action.as_str()));
    if !attempted {
        found.add(
            Kind::Other,
            task,
            format!(
                "nobody said {} to request {request}",
                decision.action.as_str()
            ),
        );
    }
}

/// Compares one call's facts in the journal with its executions in the world.
fn one_call(
    task: TaskId,
    id: CallId,
    call: &Call,
    executions: &[&Execution],
    one_clock: bool,
    found: &mut Findings,
) {
    let most = if call.repeatable() { 3 } else { 1 };
    let name = &call.name;
    if executions.len() > most {
        found.add(
            Kind::Duplicate,
            task,
            format!("{name} {id} was executed {} times", executions.len()),
        );
    }
    if executions.len() > call.starts.len() {
        let counts = format!(
            "{} executions, {} starts",
            executions.len(),
            call.starts.len()
        );
        found.add(
            Kind::Duplicate,
            task,
            format!("{name} {id} was executed without a start: {counts}"),
        );
    }
    if call.repeatable() && call.starts.len() > 3 {
        found.add(
            Kind::Duplicate,
            task,
            format!("{name} {id} was started {} times", call.starts.len()),
        );
    }
    if call.results.len() != 1 {
        found.add(
            Kind::Other,
            task,
            format!("{name} {id} has {} results", call.results.len()),
        );
    }
    let first = call.starts.iter().map(|(at, _)| *at).min();
    for execution in executions {
        if execution.task != task.to_string() || execution.path != format!("/{name}") {
            found.add(
                Kind::Other,
                task,
                format!(
                    "{id} was executed as {} of {}",
                    execution.path, execution.task
                ),
            );
        }
        if execution.body != call.arguments {
            found.add(
                Kind::Other,
                task,
                format!("{id} ran {} instead of {}", execution.body, call.arguments),
            );
        }
        if one_clock && first.is_some_and(|first| execution.at < first) {
            found.add(
                Kind::Duplicate,
                task,
                format!("{name} {id} was executed before its start was committed"),
            );
        }
    }
    for result in call
        .results
        .iter()
        .chain(&call.late)
        .filter(|result| result.outcome == Outcome::Succeeded)
    {
        // The world's receipt contains the key.
        if executions.is_empty() || !result.content.contains(&id.to_string()) {
            found.add(
                Kind::Lost,
                task,
                format!("{name} {id} is said to have succeeded; the world knows nothing of it"),
            );
        }
    }
    for result in call
        .results
        .iter()
        .filter(|result| result.content.contains("audited"))
    {
        if executions.is_empty() {
            found.add(
                Kind::Other,
                task,
                format!(
                    "{name} {id} was answered for ({}), but never executed",
                    result.content
                ),
            );
        }
    }
    let undisturbed = executions
        .first()
        .is_none_or(|execution| matches!(execution.mood.as_str(), "" | "no"));
    found.cut_off += call.asked - call.broken.min(call.asked);
    if call.repeatable() && undisturbed {
        found.cut_off += call.starts.len().saturating_sub(1);
    }
}

/// Checks that every acknowledged answer is stored as it was acknowledged.
fn acknowledged(evidence: &Evidence<'_>, found: &mut Findings) {
    let told: HashMap<String, &Told> = evidence
        .tasks
        .iter()
        .map(|told| (told.task.to_string(), told))
        .collect();
    let mut trees: HashMap<String, Vec<&Told>> = HashMap::new();
    for told in evidence.tasks {
        trees.entry(told.root.to_string()).or_default().push(told);
    }
    // The request may belong to any task of the tree in which it was decided.
    let stored = |task: &str, request: &str| -> Vec<&'static str> {
        let journals = trees
            .get(task)
            .into_iter()
            .flatten()
            .flat_map(|told| told.journal.as_slice());
        let decisions = journals.filter_map(|(item, _)| match &item.fact {
            Fact::Decision {
                request_id,
                decision,
            } if request_id.to_string() == request => Some(decision.action.as_str()),
            _ => None,
        });
        decisions.collect()
    };
    for deed in evidence.history {
        match deed {
            Deed::Created { task } => {
                if !told.contains_key(task) {
                    found.add(
                        Kind::Lost,
                        task.parse().ok(),
                        "the task was acknowledged and is not there",
                    );
                }
            }
            Deed::Decided {
                task,
                request,
                action,
            } => {
                found.decisions += 1;
                let stored = stored(task, request);
                if stored != [*action] {
                    let what =
                        format!("{action} of {request} was acknowledged; stored is {stored:?}");
                    found.add(Kind::Lost, task.parse().ok(), what);
                }
            }
            Deed::Overruled {
                task,
                request,
                action,
            } => {
                let stored = stored(task, request);
                if stored != [action.as_str()] {
                    let what = format!(
                        "{action} was said to be the answer to {request}; stored is {stored:?}"
                    );
                    found.add(Kind::Lost, task.parse().ok(), what);
                }
            }
        }
    }
}

/// The failures, with the journal and the ledger of the first task concerned.
pub fn report(findings: &Findings, evidence: &Evidence<'_>) -> String {
    let mut text: Vec<String> = findings
        .wrong
        .iter()
        .take(20)
        .map(|wrong| format!("{:?}: {}", wrong.kind, wrong.what))
        .collect();
    let first = findings.wrong.iter().find_map(|wrong| wrong.task);
    if let Some(told) = evidence.tasks.iter().find(|told| Some(told.task) == first) {
        text.push(format!("journal of {}:", told.task));
        text.extend(
            told.journal
                .iter()
                .map(|(item, _)| format!("  {} {} {:?}", item.seq, item.at.0, item.fact)),
        );
        text.push("ledger:".to_owned());
        let lines = evidence
            .ledger
            .iter()
            .filter(|line| line.task == told.task.to_string());
        text.extend(lines.map(|line| format!("  {line:?}")));
    }
    text.join("\n")
}
