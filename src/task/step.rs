//! What happens next. Pure and total: no clock, no I/O, no memory. A crash anywhere is continued by asking again.

use std::collections::BTreeSet;

use super::call_state::{CallState, Phase};
use super::failure::Failure;
use super::id::{CallId, RequestId, TaskId};
use super::item::Outcome;
use super::question::{Question, awaited, delegated, outside, questions};
use super::status::TaskStatus;
use super::tool_spec::ToolKind;
use super::turn::{Last, Progress};

/// The one thing to do now. Deliberately exhaustive: a new step must break every driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Ask the model.
    CallModel,
    /// Ask the policy; verdicts are journaled: a later policy can tighten them, never loosen.
    Judge(Vec<CallId>),
    /// Write the questions and pause.
    Ask(Vec<Question>),
    /// Nothing to do until one of these happens.
    Wait(Vec<On>),
    /// Start a sub-agent's task for each of these.
    Start(Vec<CallId>),
    /// Run these together; the question is not asked again while one of them is out.
    Run(Vec<CallId>),
    /// Started, no result, nobody runs them any more; or of a history whose end was lost: ask a human.
    Reconcile(Vec<CallId>),
    /// These will not run: write their results.
    Settle(Vec<(CallId, Outcome, String)>),
    /// The task is over.
    Finish(Ending),
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// A human's answer.
    Request(RequestId),
    /// An attempt that may still be running somewhere.
    Attempt(CallId),
    /// The end of a sub-agent's task.
    Child(TaskId),
    /// Room for a question: its tree has as many open as it may.
    Room,
    /// Somebody who asks for more: the task is over.
    Message,
}

/// How a task ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// With the model's final text.
    Completed(String),
    /// It could not go on.
    Failed(Failure),
    /// A human ended it.
    Canceled,
}

/// What the driver knows and the journal does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// The limit that is reached, by name.
    pub spent: Option<&'static str>,
    /// Started calls whose attempt may still be running, by the database's clock.
    pub running: BTreeSet<CallId>,
    /// The sub-agents that keep their conversation, by name: their calls run one after the other.
    pub sessions: BTreeSet<String>,
}

/// Neighbours that run together.
const TOGETHER: usize = 8;

/// The next step of a journal.
#[must_use]
pub fn next_step(progress: &Progress, budget: &Budget) -> Step {
    if progress.status.is_none_or(TaskStatus::is_terminal) {
        return Step::Wait(vec![On::Message]);
    }
    if progress.ending.is_some() {
        let rest: Vec<_> = progress.unfinished().map(CallState::canceled).collect();
        return if rest.is_empty() { Step::Finish(Ending::Canceled) } else { Step::Settle(rest) };
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
    let outside = outside(progress);
    if !outside.is_empty() {
        return Step::Ask(outside);
    }
    let delegated = delegated(progress, &budget.sessions);
    if !delegated.is_empty() {
        return Step::Start(delegated);
    }
    let ready = next_together(progress);
    // What starts may have to ask: where there is no room for that, it waits.
    if !ready.is_empty() && progress.room() > 0 {
        return Step::Run(ready);
    }
    if !progress.open.is_empty() || progress.unfinished().next().is_some() {
        return Step::Wait(awaited(progress, Vec::new()));
    }
    match &progress.last {
        Last::Model(turn) if turn.tool_calls.is_empty() => {
            Step::Finish(Ending::Completed(turn.text.clone().unwrap_or_default()))
        }
        Last::Nothing | Last::User | Last::Model(_) => match budget.spent {
            Some(limit) => Step::Finish(Ending::Failed(Failure::limit(limit))),
            None => Step::CallModel,
        },
    }
}

fn ids(progress: &Progress, which: impl Fn(&CallState) -> bool) -> Vec<CallId> {
    progress.unfinished().filter(|state| which(state)).map(|state| state.call.tool_call_id).collect()
}

/// Started, without a result, and nobody is running it any more.
fn lost(state: &CallState, budget: &Budget) -> bool {
    matches!(state.phase, Phase::Started(_)) && !budget.running.contains(&state.call.tool_call_id)
}

/// A call that must not be repeated and may still be under way somewhere.
fn at_work(state: &CallState, budget: &Budget) -> bool {
    matches!(state.phase, Phase::Started(_)) && !state.effect.repeatable() && !lost(state, budget)
}

/// The next calls, in the model's order: neighbours that may be repeated together, any other alone.
fn next_together(progress: &Progress) -> Vec<CallId> {
    let mut together = Vec::new();
    let ours = |state: &&CallState| !matches!(state.performer, ToolKind::External | ToolKind::Agent);
    for state in progress.unfinished().filter(ours) {
        let repeatable = state.effect.repeatable();
        match state.phase {
            Phase::Allowed | Phase::Approved(_) | Phase::Started(_) if together.is_empty() || repeatable => {
                together.push(state.call.tool_call_id);
            }
            Phase::Allowed
            | Phase::Approved(_)
            | Phase::Started(_)
            | Phase::New
            | Phase::Held(_)
            | Phase::Human(_)
            | Phase::Asked(_)
            | Phase::Settled(..)
            | Phase::OutcomeUnknown(_)
            | Phase::Delegated(_)
            | Phase::Done(_) => break,
        }
        if !repeatable || together.len() == TOGETHER {
            break;
        }
    }
    together
}
