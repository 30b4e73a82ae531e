//! The requests that a turn opens, the sub-agents that it starts, and the events that it waits for.

use std::collections::BTreeSet;

use super::call_state::{CallState, Phase};
use super::decision::Action;
use super::id::CallId;
use super::request::RequestKind;
use super::step::On;
use super::tool_spec::ToolKind;
use super::turn::{Open, Progress};
use super::verdict::Terms;

/// Maximum number of open requests in a tree; further requests wait.
pub(crate) const OPEN: usize = 20;

/// Maximum number of calls that run together.
const TOGETHER: usize = 8;

/// A request that the driver is to open.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Kind of the request, which decides the actions that people may take.
    pub kind: RequestKind,
    /// The calls that the request decides.
    pub calls: Vec<CallId>,
    /// Terms that the request gets from the rule of its calls.
    pub terms: Terms,
}

impl Progress {
    /// Whether no call of the turn may run before a person has answered.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        let unasked = |state: &CallState| matches!(state.phase, Phase::Held(_) | Phase::Human(_));
        self.open.iter().any(|open| open.asked.kind.facts().blocks)
            || self.unfinished().any(unasked)
    }

    /// Whether the task has work now. The turn must not be blocked; and if the task waits for
    /// requests or sub-agents, some unfinished call must wait for neither.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        let delegated = |state: &CallState| state.child().is_some();
        let waits = |state: &CallState| matches!(state.phase, Phase::Asked(_) | Phase::Settled(..));
        let awaited = !self.open.is_empty() || self.unfinished().any(delegated);
        !self.is_blocked()
            && (!awaited
                || !self
                    .unfinished()
                    .all(|state| waits(state) || delegated(state)))
    }

    /// Whether one of the task's calls opens a request now, or may open one later. Such a task
    /// waits while the tree has the maximum number of open requests.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        self.unfinished().any(|state| match state.phase {
            Phase::New
            | Phase::Allowed
            | Phase::Held(_)
            | Phase::Human(_)
            | Phase::Questioned
            | Phase::Approved(_)
            | Phase::Started(_) => true,
            Phase::Asked(_)
            | Phase::Settled(..)
            | Phase::OutcomeUnknown(_)
            | Phase::Delegated(_)
            | Phase::Done(_) => false,
        })
    }

    /// Whether a person has supplied this call's result in a request that is still open. The result
    /// may yet be dropped: an answer about another call of that request may end the task.
    pub(super) fn may_be_given_up(&self, state: &CallState) -> bool {
        let given = Some(&Action::Respond);
        let decides = |open: &Open| open.decided.get(&state.call.tool_call_id) == given;
        self.open
            .iter()
            .any(|open| open.asked.kind.facts().decides_calls && decides(open))
    }

    /// Returns the number of further requests that the tree may open.
    #[must_use]
    pub fn room(&self) -> usize {
        OPEN.saturating_sub(self.open.len())
            .saturating_sub(self.elsewhere)
    }
}

/// Returns the requests to open now: one for all held calls with equal terms, and one for each call
/// that is itself a request or that a person has edited. Requests beyond [`Progress::room`] are
/// opened later.
pub(super) fn questions(progress: &Progress) -> Vec<Question> {
    // Each request, and whether other calls may join it.
    let mut questions: Vec<(bool, Question)> = Vec::new();
    for state in progress.unfinished() {
        let (kind, terms) = match &state.phase {
            Phase::Held(terms) => (RequestKind::Approval, terms),
            // If the verdict is `human` but the tool's name is unknown, an approver has to look at
            // the call.
            Phase::Human(terms) => (
                RequestKind::of_tool(&state.call.name).unwrap_or(RequestKind::Approval),
                terms,
            ),
            Phase::New
            | Phase::Allowed
            | Phase::Questioned
            | Phase::Asked(_)
            | Phase::Approved(_)
            | Phase::Settled(..)
            | Phase::Started(_)
            | Phase::OutcomeUnknown(_)
            | Phase::Delegated(_)
            | Phase::Done(_) => continue,
        };
        let shares = kind.facts().decides_calls && state.edited.is_none();
        let with = |(alike, question): &&mut (bool, Question)| {
            shares && *alike && question.terms == *terms
        };
        if let Some((_, question)) = questions.iter_mut().find(with) {
            question.calls.push(state.call.tool_call_id);
        } else {
            let calls = vec![state.call.tool_call_id];
            questions.push((
                shares,
                Question {
                    kind,
                    calls,
                    terms: terms.clone(),
                },
            ));
        }
    }
    questions
        .into_iter()
        .map(|(_, question)| question)
        .take(progress.room())
        .collect()
}

/// Returns requests for the results of external calls, which the API's client runs. `next_step`
/// opens them once no call of the turn waits for a decision.
pub(super) fn outside(progress: &Progress) -> Vec<Question> {
    let ready = progress.unfinished().filter(|state| {
        state.performer == ToolKind::External
            && matches!(state.phase, Phase::Allowed | Phase::Approved(_))
    });
    let asked = ready.map(|state| Question {
        kind: RequestKind::ExternalResult,
        calls: vec![state.call.tool_call_id],
        terms: state.terms(),
    });
    asked.take(progress.room()).collect()
}

/// Returns the calls whose sub-agents start now. All of them start at once, but a sub-agent that
/// keeps its conversation (its name is in `sessions`) performs its calls one after the other.
pub(super) fn delegated(progress: &Progress, sessions: &BTreeSet<String>) -> Vec<CallId> {
    let mut talking: BTreeSet<&str> = BTreeSet::new();
    let mut starting = Vec::new();
    for state in progress
        .unfinished()
        .filter(|state| state.performer == ToolKind::Agent)
    {
        let name = state.call.name.as_str();
        let ready = matches!(state.phase, Phase::Allowed | Phase::Approved(_));
        let at_work = state.child().is_some();
        if ready && !talking.contains(name) {
            starting.push(state.call.tool_call_id);
        }
        if (ready || at_work) && sessions.contains(name) {
            talking.insert(name);
        }
    }
    starting
}

/// Returns the next calls to run, in the model's order: consecutive repeatable calls together, any
/// other call alone. Each of these calls may have to open a request, so there are at most as many
/// calls as the tree may open requests.
pub(super) fn next_together(progress: &Progress) -> Vec<CallId> {
    let mut together = Vec::new();
    let ours = |state: &&CallState| !state.performer.facts().performed_elsewhere;
    for state in progress.unfinished().filter(ours) {
        let repeatable = state.effect.repeatable();
        match state.phase {
            Phase::Allowed | Phase::Approved(_) | Phase::Started(_)
                if together.is_empty() || repeatable =>
            {
                together.push(state.call.tool_call_id);
            }
            Phase::Allowed
            | Phase::Approved(_)
            | Phase::Started(_)
            | Phase::New
            | Phase::Held(_)
            | Phase::Human(_)
            | Phase::Questioned
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
    together.truncate(progress.room());
    together
}

/// Returns the calls whose server has a question that no request asks yet. Either the last attempt
/// ended with questions (the call is in `ended`), or a person answered a question and the same
/// attempt has a further question.
pub(super) fn asking(progress: &Progress, ended: &BTreeSet<CallId>) -> Vec<CallId> {
    let asks = |state: &&CallState| match state.phase {
        Phase::Questioned => true,
        Phase::Started(_) => ended.contains(&state.call.tool_call_id),
        Phase::New
        | Phase::Allowed
        | Phase::Held(_)
        | Phase::Human(_)
        | Phase::Asked(_)
        | Phase::Approved(_)
        | Phase::Settled(..)
        | Phase::OutcomeUnknown(_)
        | Phase::Delegated(_)
        | Phase::Done(_) => false,
    };
    let asking = progress.unfinished().filter(asks);
    asking.map(|state| state.call.tool_call_id).collect()
}

/// Returns the events that the task waits for. `attempts` are the calls that may still be in
/// flight.
pub(super) fn awaited(progress: &Progress, attempts: Vec<CallId>) -> Vec<On> {
    let requests = progress
        .open
        .iter()
        .map(|open| On::Request(open.asked.request_id));
    let children = progress
        .unfinished()
        .filter_map(CallState::child)
        .map(On::Child);
    let room = (progress.room() == 0 && progress.wants_room()).then_some(On::Room);
    requests
        .chain(attempts.into_iter().map(On::Attempt))
        .chain(children)
        .chain(room)
        .collect()
}
