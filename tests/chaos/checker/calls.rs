//! Checks the calls of a task: compares their facts in the task's journal with the executions that
//! the tools' process (`tool_server.rs`) has recorded.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use holdpoint::task::decision::{Action, Decision};
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::item::{Fact, Outcome, ToolResult};
use holdpoint::task::request::RequestKind;

use super::super::tool_server::Execution;
use super::{Evidence, Findings, Kind, TaskRecord};

#[derive(Default)]
pub struct Call {
    pub name: String,
    pub arguments: String,
    /// Each start: its time in microseconds since 1970, and the process that committed it.
    pub starts: Vec<(i64, String)>,
    pub results: Vec<ToolResult>,
    pub late: Vec<ToolResult>,
    /// The number of reconcile requests that were opened for the call.
    pub reconciles: usize,
    /// The number of the call's reconcile requests that were opened because the connection broke.
    /// The others were opened because a process ended.
    pub broken: usize,
    pub children: Vec<TaskId>,
}

pub const AGENTS: [&str; 3] = ["scout", "clerk", "hand"];

impl Call {
    pub fn repeatable(&self) -> bool {
        !matches!(self.name.as_str(), "refund" | "short" | "shell")
    }
}

/// Checks one call that starts a sub-agent. The sub-agent must have been started at most once, and
/// the result of the call must agree with the end of the sub-agent's task.
pub fn one_delegation(
    record: &TaskRecord,
    id: CallId,
    call: &Call,
    tasks: &HashMap<TaskId, &TaskRecord>,
    found: &mut Findings,
) {
    let name = &call.name;
    if call.children.len() > 1 {
        found.add(
            Kind::Duplicate,
            record.task,
            format!("{name} {id} was started {} times", call.children.len()),
        );
    }
    if call.results.len() != 1 || !call.late.is_empty() || !call.starts.is_empty() {
        found.add(
            Kind::Other,
            record.task,
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
                record.task,
                format!("{name} {id} is said to have succeeded; it was never started"),
            );
        }
        return;
    };
    let Some(child) = tasks.get(child) else {
        found.add(
            Kind::Lost,
            record.task,
            format!("{name} {id} was started as {child}, which is not there"),
        );
        return;
    };
    if child.parent.is_none_or(|(parent, _)| parent != record.task) || child.root != record.root {
        found.add(
            Kind::Other,
            record.task,
            format!("{name} {id}: {} is not its own", child.task),
        );
    }
    // The clerk keeps its conversation, so the output of its task may be the answer to a later
    // call.
    let said = name == "clerk" || child.output.as_ref() == Some(&result.content);
    if result.outcome == Outcome::Succeeded && !(child.status == "Completed" && said) {
        let (status, output) = (&child.status, &child.output);
        found.add(
            Kind::Lost,
            record.task,
            format!("{name} {id} handed back {result:?}; it is {status} with {output:?}"),
        );
    }
}

pub fn read(
    record: &TaskRecord,
    evidence: &Evidence<'_>,
    found: &mut Findings,
) -> BTreeMap<CallId, Call> {
    let mut calls: BTreeMap<CallId, Call> = BTreeMap::new();
    let mut decided: BTreeSet<(String, CallId)> = BTreeSet::new();
    let mut replicas: Vec<String> = Vec::new();
    for (item, _) in &record.journal {
        match &item.fact {
            Fact::AssistantMessage(turn) => {
                for (id, call) in calls.iter().filter(|(_, call)| call.results.is_empty()) {
                    found.add(
                        Kind::Other,
                        record.task,
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
                    call.reconciles += 1;
                    call.broken += usize::from(!lost);
                }
            }
            Fact::Decision {
                request_id,
                decision,
            } => {
                one_decision(
                    record.task,
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

pub fn one_decision(
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

/// Compares one call's facts in the journal with the recorded executions of the call.
pub fn one_call(
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
    executed_as_started(task, id, call, executions, one_clock, found);
    results_match_executions(task, id, call, executions, found);
    let undisturbed = executions
        .first()
        .is_none_or(|execution| matches!(execution.fault.as_str(), "" | "no"));
    found.cut_off += call.reconciles - call.broken.min(call.reconciles);
    if call.repeatable() && undisturbed {
        found.cut_off += call.starts.len().saturating_sub(1);
    }
}

pub fn executed_as_started(
    task: TaskId,
    id: CallId,
    call: &Call,
    executions: &[&Execution],
    one_clock: bool,
    found: &mut Findings,
) {
    let name = &call.name;
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
}

pub fn results_match_executions(
    task: TaskId,
    id: CallId,
    call: &Call,
    executions: &[&Execution],
    found: &mut Findings,
) {
    let name = &call.name;
    for result in call
        .results
        .iter()
        .chain(&call.late)
        .filter(|result| result.outcome == Outcome::Succeeded)
    {
        // The tool answers with a receipt. The receipt contains the idempotency key, which is the
        // call's id.
        if executions.is_empty() || !result.content.contains(&id.to_string()) {
            found.add(
                Kind::Lost,
                task,
                format!(
                    "{name} {id} is said to have succeeded; the tool server has not executed it"
                ),
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
}
