//! Decides the next step of a task. Pure and total: no clock, no I/O, no stored state. After a
//! crash at any point, another call of `next_step` continues the task.

use std::collections::BTreeSet;

pub use super::asker::AskerState;
use super::asker::at_gate;
use super::call_state::{CallState, Phase};
use super::failure::Failure;
use super::id::{CallId, RequestId, TaskId};
use super::item::Outcome;
use super::question::{Question, asking, awaited, delegated, next_together, outside, questions};
use super::status::TaskStatus;
use super::tool_spec::ToolKind;
use super::turn::{Last, Progress};

/// The next step. Exhaustive: a driver that does not handle a new variant does not compile.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Call the model for its next turn.
    CallModel,
    /// Ask the policy about these calls. The verdicts are journaled; a later policy can tighten
    /// them, never loosen them.
    Judge(Vec<CallId>),
    /// Open these requests.
    Ask(Vec<Question>),
    /// Wait until one of these events happens.
    Wait(Vec<On>),
    /// Start a sub-agent's task for each of these calls.
    Start(Vec<CallId>),
    /// Run these calls together; `next_step` is not asked again while any of them is in flight.
    Run(Vec<CallId>),
    /// Give this gate call's asker the permit to run the call.
    Hand(CallId),
    /// Open a request for the next question of each call's server. The last attempt at each of
    /// these calls ended with questions.
    Elicit(Vec<CallId>),
    /// Ask a person about the outcome of these calls. Each of them either was started, has no
    /// result and is no longer in flight, or may have run in the lost part of an uncertain history.
    Reconcile(Vec<CallId>),
    /// Write the results (outcome and text) of these calls, which will not run (again).
    Settle(Vec<(CallId, Outcome, String)>),
    /// End the task.
    Finish(Ending),
}

/// An event that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// A decision of this request.
    Request(RequestId),
    /// The end of an attempt that may still be in flight on some replica.
    Attempt(CallId),
    /// The end of a sub-agent's task.
    Child(TaskId),
    /// The close of a request: the tree has reached its limit of open requests.
    Room,
    /// A user message or another command: the task is terminal.
    Message,
    /// The return of the asker of a gate call that may start.
    Asker,
}

/// How a task ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// With the model's final text.
    Completed(String),
    /// A gate call: with the call's result.
    Settled,
    /// By a failure: the task cannot continue.
    Failed(Failure),
    /// By a person, a deadline or an ancestor.
    Canceled,
}

/// The input of [`next_step`] that the driver knows and the journal does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Name of the limit that is reached, if any.
    pub spent: Option<&'static str>,
    /// Started calls whose attempt may still be in flight, by the database's clock.
    pub running: BTreeSet<CallId>,
    /// Started calls whose attempt ended in this process with questions of the tool's server.
    pub asking: BTreeSet<CallId>,
    /// For a gate call, whether its asker waits; `None` for any other task.
    pub asker: Option<AskerState>,
    /// Names of the sub-agents that keep a conversation. The calls of each run one after the other.
    pub sessions: BTreeSet<String>,
}

/// Decides the next step from a task's progress.
#[must_use]
pub fn next_step(progress: &Progress, budget: &Budget) -> Step {
    if progress.status.is_none_or(TaskStatus::is_terminal) {
        return Step::Wait(vec![On::Message]);
    }
    if progress.ending.is_some() {
        let rest: Vec<_> = progress.unfinished().map(CallState::canceled).collect();
        return if rest.is_empty() {
            Step::Finish(Ending::Canceled)
        } else {
            Step::Settle(rest)
        };
    }
    let new = ids(progress, |state| state.phase == Phase::New);
    if !new.is_empty() {
        return Step::Judge(new);
    }
    let refused: Vec<_> = progress
        .unfinished()
        .filter(|state| !progress.may_be_given_up(state))
        .filter_map(CallState::settlement)
        .collect();
    if !refused.is_empty() {
        return Step::Settle(refused);
    }
    let questions = questions(progress);
    if !questions.is_empty() {
        return Step::Ask(questions);
    }
    let asking = asking(progress, &budget.asking);
    if !asking.is_empty() {
        return Step::Elicit(asking);
    }
    let lost = |state: &CallState| lost(state, budget) && !state.effect.repeatable();
    let mut lost = ids(progress, |state| lost(state) || state.ready_but_uncertain());
    let unasked = !lost.is_empty();
    lost.truncate(progress.room());
    if !lost.is_empty() {
        return Step::Reconcile(lost);
    }
    let attempts = ids(progress, |state| at_work(state, budget));
    if progress.is_blocked() || unasked || !attempts.is_empty() {
        return Step::Wait(awaited(progress, attempts));
    }
    if let Some(asker) = budget.asker {
        return at_gate(progress, asker);
    }
    undisturbed(progress, budget)
}

/// Decides the next step if no request blocks the turn and no attempt in flight forbids another.
fn undisturbed(progress: &Progress, budget: &Budget) -> Step {
    let outside = outside(progress);
    if !outside.is_empty() {
        return Step::Ask(outside);
    }
    let delegated = delegated(progress, &budget.sessions);
    if !delegated.is_empty() {
        return Step::Start(delegated);
    }
    let ready = next_together(progress);
    if !ready.is_empty() {
        return Step::Run(ready);
    }
    if !progress.open.is_empty() || progress.unfinished().next().is_some() {
        return Step::Wait(awaited(progress, Vec::new()));
    }
    after_turn(progress, budget)
}

/// Decides the step once every call has its result. A last turn without calls completes the task.
fn after_turn(progress: &Progress, budget: &Budget) -> Step {
    match (&progress.last, budget.spent) {
        (Last::Model(turn), _) if turn.tool_calls.is_empty() => {
            Step::Finish(Ending::Completed(turn.text.clone().unwrap_or_default()))
        }
        (Last::Nothing | Last::User | Last::Model(_), Some(limit)) => {
            Step::Finish(Ending::Failed(Failure::limit(limit)))
        }
        (Last::Nothing | Last::User | Last::Model(_), None) => Step::CallModel,
    }
}

fn ids(progress: &Progress, which: impl Fn(&CallState) -> bool) -> Vec<CallId> {
    progress
        .unfinished()
        .filter(|state| which(state))
        .map(|state| state.call.tool_call_id)
        .collect()
}

/// Whether a call was started, has no result and is no longer in flight.
fn lost(state: &CallState, budget: &Budget) -> bool {
    matches!(state.phase, Phase::Started(_)) && !budget.running.contains(&state.call.tool_call_id)
}

/// Whether an attempt at the call may still be in flight and forbids another one: the call must not
/// be repeated, or an asker has the permit.
fn at_work(state: &CallState, budget: &Budget) -> bool {
    let exclusive = !state.effect.repeatable() || state.performer == ToolKind::External;
    matches!(state.phase, Phase::Started(_)) && exclusive && !lost(state, budget)
}
