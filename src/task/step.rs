//! What happens next. Pure and total: no clock, no I/O, no memory. A crash anywhere is continued by asking again.

use std::collections::BTreeSet;

use super::failure::Failure;
use super::id::{CallId, RequestId, TaskId};
use super::item::Outcome;
use super::question::{Question, awaited, delegated, outside, questions};
use super::standing::{Phase, Standing};
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
    Refuse(Vec<(CallId, Outcome, String)>),
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
        let rest: Vec<_> = progress.unfinished().map(Standing::canceled).collect();
        return if rest.is_empty() { Step::Finish(Ending::Canceled) } else { Step::Refuse(rest) };
    }
    let new = ids(progress, |standing| standing.phase == Phase::New);
    if !new.is_empty() {
        return Step::Judge(new);
    }
    let refused: Vec<_> = progress
        .unfinished()
        .filter(|standing| !progress.may_be_given_up(standing))
        .filter_map(Standing::refusal)
        .collect();
    if !refused.is_empty() {
        return Step::Refuse(refused);
    }
    let questions = questions(progress);
    if !questions.is_empty() {
        return Step::Ask(questions);
    }
    let lost = |standing: &Standing| lost(standing, budget) && !standing.effect.repeatable();
    let mut lost = ids(progress, |standing| lost(standing) || standing.ready_in_doubt());
    let unasked = !lost.is_empty();
    lost.truncate(progress.room());
    if !lost.is_empty() {
        return Step::Reconcile(lost);
    }
    let attempts = ids(progress, |standing| at_work(standing, budget));
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

fn ids(progress: &Progress, which: impl Fn(&Standing) -> bool) -> Vec<CallId> {
    progress.unfinished().filter(|standing| which(standing)).map(|standing| standing.call.tool_call_id).collect()
}

/// Started, without a result, and nobody is running it any more.
fn lost(standing: &Standing, budget: &Budget) -> bool {
    matches!(standing.phase, Phase::Started(_)) && !budget.running.contains(&standing.call.tool_call_id)
}

/// A call that must not be repeated and may still be under way somewhere.
fn at_work(standing: &Standing, budget: &Budget) -> bool {
    matches!(standing.phase, Phase::Started(_)) && !standing.effect.repeatable() && !lost(standing, budget)
}

/// The next calls, in the model's order: neighbours that may be repeated together, any other alone.
fn next_together(progress: &Progress) -> Vec<CallId> {
    let mut together = Vec::new();
    let ours = |standing: &&Standing| !matches!(standing.performer, ToolKind::External | ToolKind::Agent);
    for standing in progress.unfinished().filter(ours) {
        let repeatable = standing.effect.repeatable();
        match standing.phase {
            Phase::Allowed | Phase::Approved(_) | Phase::Started(_) if together.is_empty() || repeatable => {
                together.push(standing.call.tool_call_id);
            }
            Phase::Allowed
            | Phase::Approved(_)
            | Phase::Started(_)
            | Phase::New
            | Phase::Held(_)
            | Phase::Human(_)
            | Phase::Asked(_)
            | Phase::Refused(..)
            | Phase::Doubtful(_)
            | Phase::Delegated(_)
            | Phase::Done(_) => break,
        }
        if !repeatable || together.len() == TOGETHER {
            break;
        }
    }
    together
}
