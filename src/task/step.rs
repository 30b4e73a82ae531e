//! Decides the next step of a task. [`next_step`] is a pure and total function: it reads no clock,
//! does no I/O and keeps no state. Equal progress and equal context always give the same step.

use std::collections::BTreeSet;

pub use super::asker::AskerState;
use super::asker::{result_at_end, step_at_gate};
use super::call_state::{CallState, Phase};
use super::failure::Failure;
use super::id::{CallId, RequestId, TaskId};
use super::item::Outcome;
use super::planned_request::{
    PlannedRequest, awaited_events, calls_to_elicit, external_result_requests, next_parallel_calls,
    planned_requests, settlements, sub_agents_to_start, unfinished_ids,
};
use super::progress::{LastMessage, Progress};
use super::status::TaskStatus;

/// The next step of a task. A driver matches all variants without a wildcard, so that the compiler
/// reports a driver that does not handle a new variant.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Call the model for its next turn.
    CallModel,
    /// Ask the policy for verdicts on these calls.
    Judge(Vec<CallId>),
    /// Open these requests.
    OpenRequests(Vec<PlannedRequest>),
    /// Wait until one of these events happens.
    Wait(Vec<AwaitedEvent>),
    /// Start a sub-agent's task for each of these calls.
    StartSubAgents(Vec<CallId>),
    /// Run these calls together. The next step is decided after all of them have ended.
    RunCalls(Vec<CallId>),
    /// Hand this gate call over: the asker that waits for the verdict gets the permit to run it.
    HandOver(CallId),
    /// Open a request for each of these calls, with the next question of the tool's server.
    Elicit(Vec<CallId>),
    /// Ask a person about the outcome of each of these calls: a started call that has no result and
    /// is no longer in flight, or a call that may have run in a lost part of the task's history.
    Reconcile(Vec<CallId>),
    /// Write results (outcome and text) for these calls. No further attempt at them will be made.
    Settle(Vec<(CallId, Outcome, String)>),
    /// End the task.
    Finish(Ending),
}

/// An event that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedEvent {
    /// A person's decision of this request.
    Request(RequestId),
    /// The end of an attempt that may still be in flight on some replica or at an asker.
    Attempt(CallId),
    /// The end of a sub-agent's task.
    Child(TaskId),
    /// The closing of any request of the tree, which has the maximum number of open requests.
    RequestClosed,
    /// A user message or another command. A terminal task waits for this event.
    Message,
    /// A new proposal of the gate call. Its asker has left, and the call waits for its return.
    Asker,
}

/// How a task ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// The task completes with the model's final text.
    Completed(String),
    /// The task of a gate call completes, because the call has a result.
    Settled,
    /// The task fails and cannot continue.
    Failed(Failure),
    /// A person, a deadline or an ancestor has canceled the task.
    Canceled,
}

/// The part of the input of [`next_step`] that the driver knows and the journal does not contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepContext {
    /// Name of the limit that is reached, if any.
    pub spent_limit: Option<&'static str>,
    /// The started calls with an attempt that may be in flight on a replica or at an asker.
    pub running: BTreeSet<CallId>,
    /// The calls whose last attempt by this process ended with questions of the tool's server.
    pub ended_with_questions: BTreeSet<CallId>,
    /// Whether another driver holds the lease of the task, and may have attempts in flight.
    pub is_driven_elsewhere: bool,
    /// In the task of a gate call, whether the call's asker waits. `None` in any other task.
    pub asker: Option<AskerState>,
    /// The sub-agents that have one conversation for all calls. Their calls run in sequence.
    pub session_agents: BTreeSet<String>,
}

/// Decides the next step from a task's progress.
#[must_use]
pub fn next_step(progress: &Progress, context: &StepContext) -> Step {
    if progress.status.is_none_or(TaskStatus::is_terminal) {
        return Step::Wait(vec![AwaitedEvent::Message]);
    }
    if progress.ending.is_some() {
        let result = |state| result_at_end(state, context.asker);
        let rest: Vec<_> = progress.unfinished().map(result).collect();
        return if rest.is_empty() {
            Step::Finish(Ending::Canceled)
        } else {
            Step::Settle(rest)
        };
    }
    let new = unfinished_ids(progress, |state| state.phase == Phase::New);
    if !new.is_empty() {
        return Step::Judge(new);
    }
    let settlements = settlements(progress, context);
    if !settlements.is_empty() {
        return Step::Settle(settlements);
    }
    let requests = planned_requests(progress);
    if !requests.is_empty() {
        return Step::OpenRequests(requests);
    }
    let mut asking = calls_to_elicit(progress, &context.ended_with_questions);
    let mut needs_request = !asking.is_empty();
    let mut remaining = progress.remaining_requests();
    asking.retain(|call| {
        // The maximum of requests does not hold back questions that only this process's memory has.
        let is_asked = remaining > 0 || context.ended_with_questions.contains(call);
        remaining = remaining.saturating_sub(1);
        is_asked
    });
    if !asking.is_empty() {
        return Step::Elicit(asking);
    }
    let mut lost = unfinished_ids(progress, |state| {
        is_lost(state, context) && !state.effect.is_repeatable() || state.is_ready_but_uncertain()
    });
    needs_request |= !lost.is_empty();
    lost.truncate(progress.remaining_requests());
    if !lost.is_empty() {
        return Step::Reconcile(lost);
    }
    let attempts = unfinished_ids(progress, |state| is_in_flight(state, context));
    if progress.is_blocked() || needs_request || !attempts.is_empty() {
        return Step::Wait(awaited_events(progress, attempts));
    }
    if let Some(asker) = context.asker {
        return step_at_gate(progress, asker);
    }
    unblocked_step(progress, context)
}

/// Decides the next step if no request and no attempt in flight blocks the turn.
fn unblocked_step(progress: &Progress, context: &StepContext) -> Step {
    let external = external_result_requests(progress);
    if !external.is_empty() {
        return Step::OpenRequests(external);
    }
    let sub_agents = sub_agents_to_start(progress, &context.session_agents);
    if !sub_agents.is_empty() {
        return Step::StartSubAgents(sub_agents);
    }
    let ready = next_parallel_calls(progress);
    if !ready.is_empty() {
        return Step::RunCalls(ready);
    }
    if !progress.open.is_empty() || progress.unfinished().next().is_some() {
        return Step::Wait(awaited_events(progress, Vec::new()));
    }
    step_after_turn(progress, context)
}

/// Decides the next step once every call has a result. A last turn without calls ends the task.
fn step_after_turn(progress: &Progress, context: &StepContext) -> Step {
    match (&progress.last_message, context.spent_limit) {
        (LastMessage::Model(turn), _) if turn.tool_calls.is_empty() => {
            Step::Finish(Ending::Completed(turn.text.clone().unwrap_or_default()))
        }
        (LastMessage::Nothing | LastMessage::User | LastMessage::Model(_), Some(limit)) => {
            Step::Finish(Ending::Failed(Failure::limit(limit)))
        }
        (LastMessage::Nothing | LastMessage::User | LastMessage::Model(_), None) => Step::CallModel,
    }
}

/// Whether a call was started, has no result and is no longer in flight.
fn is_lost(state: &CallState, context: &StepContext) -> bool {
    matches!(state.phase, Phase::Started(_)) && !context.running.contains(&state.call.tool_call_id)
}

/// Whether the task must wait for an attempt at the call that may be in flight. A repeatable call
/// that this service runs needs no wait: a further attempt may start beside the first.
fn is_in_flight(state: &CallState, context: &StepContext) -> bool {
    let exclusive = !state.effect.is_repeatable() || state.performer.properties().runs_at_client;
    matches!(state.phase, Phase::Started(_)) && exclusive && !is_lost(state, context)
}
