//! Which questions a turn has for humans, and whether the rest of it has to wait for them.

use std::collections::BTreeSet;

use super::call_state::{CallState, Phase};
use super::decision::Action;
use super::id::CallId;
use super::request::RequestKind;
use super::step::On;
use super::tool_spec::ToolKind;
use super::turn::{Open, Progress};
use super::verdict::Terms;

/// Questions that a tree has open at once; further ones wait.
pub const OPEN: usize = 20;

/// A question to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// What kind.
    pub kind: RequestKind,
    /// The calls it decides.
    pub calls: Vec<CallId>,
    /// Under which terms.
    pub terms: Terms,
}

impl Progress {
    /// Whether nothing of the turn may run: somebody has to be heard first.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        let unasked = |state: &CallState| matches!(state.phase, Phase::Held(_) | Phase::Human(_));
        self.open.iter().any(|open| open.asked.kind.blocks()) || self.unfinished().any(unasked)
    }

    /// Whether something follows that waits for nobody but the calls that a human was asked about alone, or that
    /// sub-agents are at.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        let delegated = |state: &CallState| state.child().is_some();
        let waits = |state: &CallState| matches!(state.phase, Phase::Asked(_) | Phase::Settled(..));
        let awaited = !self.open.is_empty() || self.unfinished().any(delegated);
        !self.is_blocked() && (!awaited || !self.unfinished().all(|state| waits(state) || delegated(state)))
    }

    /// Whether it has something to ask, or to start that may have to ask, as soon as there is room for a question.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        self.unfinished().any(|state| match state.phase {
            Phase::New | Phase::Allowed | Phase::Held(_) | Phase::Human(_) | Phase::Approved(_) | Phase::Started(_) => {
                true
            }
            Phase::Asked(_) | Phase::Settled(..) | Phase::OutcomeUnknown(_) | Phase::Delegated(_) | Phase::Done(_) => {
                false
            }
        })
    }

    /// Whether the question that a human answered a call's result to is still open: an answer to a neighbour may end the
    /// task, and then what he gave is not its result.
    pub(super) fn may_be_given_up(&self, state: &CallState) -> bool {
        let given = Some(&Action::Respond);
        let decides = |open: &Open| open.decided.get(&state.call.tool_call_id) == given;
        self.open.iter().any(|open| open.asked.kind == RequestKind::Approval && decides(open))
    }

    /// How many more questions its tree may have open.
    #[must_use]
    pub fn room(&self) -> usize {
        OPEN.saturating_sub(self.open.len()).saturating_sub(self.elsewhere)
    }
}

/// One question for all held calls of equal terms, and one for each call that asks by itself or that a human has
/// rewritten. What there is no room for is asked later.
pub(super) fn questions(progress: &Progress) -> Vec<Question> {
    // Each with whether other calls may join it.
    let mut questions: Vec<(bool, Question)> = Vec::new();
    for state in progress.unfinished() {
        let (kind, terms) = match &state.phase {
            Phase::Held(terms) => (RequestKind::Approval, terms),
            // A tool that asks a human and is none of the three is nothing we know: somebody has to look at it.
            Phase::Human(terms) => (RequestKind::of_tool(&state.call.name).unwrap_or(RequestKind::Approval), terms),
            Phase::New
            | Phase::Allowed
            | Phase::Asked(_)
            | Phase::Approved(_)
            | Phase::Settled(..)
            | Phase::Started(_)
            | Phase::OutcomeUnknown(_)
            | Phase::Delegated(_)
            | Phase::Done(_) => continue,
        };
        let shares = kind == RequestKind::Approval && state.edited.is_none();
        let with = |(alike, question): &&mut (bool, Question)| shares && *alike && question.terms == *terms;
        if let Some((_, question)) = questions.iter_mut().find(with) {
            question.calls.push(state.call.tool_call_id);
        } else {
            let calls = vec![state.call.tool_call_id];
            questions.push((shares, Question { kind, calls, terms: terms.clone() }));
        }
    }
    questions.into_iter().map(|(_, question)| question).take(progress.room()).collect()
}

/// The calls that the caller runs himself: each is asked for when the turn is decided.
pub(super) fn outside(progress: &Progress) -> Vec<Question> {
    let ready = progress.unfinished().filter(|state| {
        state.performer == ToolKind::External && matches!(state.phase, Phase::Allowed | Phase::Approved(_))
    });
    let asked = ready.map(|state| Question {
        kind: RequestKind::ExternalResult,
        calls: vec![state.call.tool_call_id],
        terms: state.terms(),
    });
    asked.take(progress.room()).collect()
}

/// The calls whose sub-agents start now: all together, but for those that keep one conversation over several calls
/// (`sessions`, by name), of which each waits for the one before it.
pub(super) fn delegated(progress: &Progress, sessions: &BTreeSet<String>) -> Vec<CallId> {
    let mut talking: BTreeSet<&str> = BTreeSet::new();
    let mut starting = Vec::new();
    for state in progress.unfinished().filter(|state| state.performer == ToolKind::Agent) {
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

/// What has to happen before anything else can.
pub(super) fn awaited(progress: &Progress, attempts: Vec<CallId>) -> Vec<On> {
    let requests = progress.open.iter().map(|open| On::Request(open.asked.request_id));
    let children = progress.unfinished().filter_map(CallState::child).map(On::Child);
    let room = (progress.room() == 0 && progress.wants_room()).then_some(On::Room);
    requests.chain(attempts.into_iter().map(On::Attempt)).chain(children).chain(room).collect()
}
