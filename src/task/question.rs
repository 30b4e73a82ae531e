//! Which questions a turn has for humans, and whether the rest of it has to wait for them.

use super::decision::Action;
use super::id::CallId;
use super::request::RequestKind;
use super::standing::{Phase, Standing};
use super::tool_spec::ToolKind;
use super::turn::{Open, Progress};
use super::verdict::Terms;

/// Questions that are open at once; further ones wait.
const OPEN: usize = 20;

/// A question to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// What kind.
    pub kind: RequestKind,
    /// The calls it decides.
    pub calls: Vec<CallId>,
    /// Under which terms.
    pub terms: Terms,
    /// No other call is asked about with it.
    pub alone: bool,
}

impl Progress {
    /// Whether nothing of the turn may run: somebody has to be heard first.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        let unasked = |standing: &Standing| matches!(standing.phase, Phase::Held(_) | Phase::Human(_));
        self.open.iter().any(|open| open.asked.kind.blocks()) || self.unfinished().any(unasked)
    }

    /// Whether something follows that waits for nobody but the calls that a human was asked about alone.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        let waits = |standing: &Standing| matches!(standing.phase, Phase::Asked(_) | Phase::Refused(..));
        !self.is_blocked() && (self.open.is_empty() || !self.unfinished().all(waits))
    }

    /// Whether the question that a human answered a call's result to is still open: an answer to a neighbour may end the
    /// task, and then what he gave is not its result.
    pub(super) fn may_be_given_up(&self, standing: &Standing) -> bool {
        let given = Some(&Action::Respond);
        let decides = |open: &Open| open.decided.get(&standing.call.tool_call_id) == given;
        self.open.iter().any(|open| open.asked.kind == RequestKind::Approval && decides(open))
    }

    /// How many more questions may be open.
    #[must_use]
    pub fn room(&self) -> usize {
        OPEN.saturating_sub(self.open.len())
    }
}

/// One question for all held calls of equal terms, and one for each call that asks by itself or that a human has
/// rewritten. What there is no room for is asked later.
pub(super) fn questions(progress: &Progress) -> Vec<Question> {
    let mut questions: Vec<Question> = Vec::new();
    for standing in progress.unfinished() {
        let (kind, terms) = match &standing.phase {
            Phase::Held(terms) => (RequestKind::Approval, terms),
            // A tool that asks a human and is none of the three is nothing we know: somebody has to look at it.
            Phase::Human(terms) => (RequestKind::of_tool(&standing.call.name).unwrap_or(RequestKind::Approval), terms),
            Phase::New
            | Phase::Allowed
            | Phase::Asked(_)
            | Phase::Approved(_)
            | Phase::Refused(..)
            | Phase::Started(_)
            | Phase::Doubtful(_)
            | Phase::Done(_) => continue,
        };
        let shared = |question: &&mut Question| {
            kind == RequestKind::Approval
                && standing.edited.is_none()
                && question.kind == kind
                && question.terms == *terms
                && !question.alone
        };
        match questions.iter_mut().find(shared) {
            Some(question) => question.calls.push(standing.call.tool_call_id),
            None => questions.push(Question {
                kind,
                calls: vec![standing.call.tool_call_id],
                terms: terms.clone(),
                alone: standing.edited.is_some(),
            }),
        }
    }
    questions.truncate(progress.room());
    questions
}

/// The calls that the caller runs himself: each is asked for when the turn is decided.
pub(super) fn outside(progress: &Progress) -> Vec<Question> {
    let ready = progress.unfinished().filter(|standing| {
        standing.performer == ToolKind::External && matches!(standing.phase, Phase::Allowed | Phase::Approved(_))
    });
    let asked = ready.map(|standing| Question {
        kind: RequestKind::ExternalResult,
        calls: vec![standing.call.tool_call_id],
        terms: standing.terms(),
        alone: true,
    });
    asked.take(progress.room()).collect()
}
