//! One call of the model and where it stands, as the journal says so far.

use std::time::Duration;

use super::decision::Vote;
use super::id::{CallId, RequestId, TaskId};
use super::item::{Outcome, ToolCall};
use super::time::Time;
use super::tool_spec::{Effect, ToolKind};
use super::verdict::{Judgement, Terms};

/// Where one call stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// The model asked for it; nobody judged it yet.
    New,
    /// The policy lets it run.
    Allowed,
    /// A human has to be asked, and was not yet.
    Held(Terms),
    /// It is itself a question to a human, and was not asked yet.
    Human(Terms),
    /// An open request decides it.
    Asked(RequestId),
    /// A human lets it run.
    Approved(Approval),
    /// It will not run, and its result is known.
    Settled(Outcome, String),
    /// It was started; what came of it is not written.
    Started(Start),
    /// It was started, nobody knows what happened, and an open request asks.
    OutcomeUnknown(RequestId),
    /// A sub-agent's task is at it.
    Delegated(TaskId),
    /// It has its result.
    Done(Outcome),
}

/// A human's leave to run a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Approval {
    /// Which request gave it.
    pub request_id: RequestId,
    /// Who approved.
    pub by: Vec<Vote>,
    /// Under which terms.
    pub terms: Terms,
    /// What was shown.
    pub digest: String,
    /// The rule under which it was asked.
    pub rule: Option<String>,
}

/// An attempt that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// When its intent was committed.
    pub at: Time,
    /// Which attempt.
    pub attempt: u32,
    /// How long it may take.
    pub timeout: Duration,
    /// Which process.
    pub replica: String,
}

/// One call and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct CallState {
    /// As the model asked for it.
    pub call: ToolCall,
    /// What a human wrote in place of its arguments, and who.
    pub edited: Option<Edited>,
    /// Of which turn.
    pub turn: u32,
    /// Where it stands.
    pub phase: Phase,
    /// The last judgement.
    pub judgement: Option<Judgement>,
    /// What repeating it does.
    pub effect: Effect,
    /// Who performs it.
    pub performer: ToolKind,
    /// The human's leave, also once it was started.
    pub approval: Option<Approval>,
    /// Attempts so far.
    pub attempts: u32,
    /// The last start.
    pub start: Option<Start>,
    /// Of a turn that is in doubt, see `doubt.rs`.
    pub of_uncertain_turn: bool,
    /// The human's leave is not.
    pub vouched: bool,
}

/// A human's replacement of a call's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// The exact text, which is what runs.
    pub arguments_text: String,
    /// Who wrote it.
    pub by: String,
}

impl CallState {
    /// The text that is judged, shown and run: a human's where there is one, else the model's.
    #[must_use]
    pub fn arguments_text(&self) -> &str {
        self.edited.as_ref().map_or(&self.call.arguments_text, |edited| &edited.arguments_text)
    }

    /// The rule it runs under: the one it was approved under, or else the one that judged it last.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        match &self.approval {
            Some(approval) => approval.rule.as_deref(),
            None => self.judgement.as_ref().and_then(|judgement| judgement.rule.as_deref()),
        }
    }

    /// The terms it was asked under, or its rule's; of an allowed call the owner's.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let of_rule = self.judgement.as_ref().and_then(|judgement| judgement.terms.clone());
        self.approval.as_ref().map(|approval| approval.terms.clone()).or(of_rule).unwrap_or_default()
    }

    /// The sub-agent's task that is at it.
    #[must_use]
    pub fn child(&self) -> Option<TaskId> {
        if let Phase::Delegated(child) = self.phase { Some(child) } else { None }
    }

    /// Where a call of which nothing is known stands when nobody is asked about it any more.
    pub(super) fn unasked(&self) -> Phase {
        self.start.clone().map_or(Phase::New, Phase::Started)
    }

    /// What it gets when the task is canceled before it has a result.
    #[must_use]
    pub fn canceled(&self) -> (CallId, Outcome, String) {
        let (outcome, text) = match &self.phase {
            // What a human said of it, and that nobody did, is what became of it.
            Phase::Settled(
                outcome @ (Outcome::Rejected | Outcome::Responded | Outcome::Failed | Outcome::Unknown),
                text,
            ) => (*outcome, text.clone()),
            Phase::New
            | Phase::Allowed
            | Phase::Held(_)
            | Phase::Human(_)
            | Phase::Asked(_)
            | Phase::Approved(_)
            | Phase::Settled(..)
            | Phase::Started(_)
            | Phase::OutcomeUnknown(_)
            | Phase::Delegated(_)
            | Phase::Done(_) => {
                if matches!(self.phase, Phase::Delegated(_)) {
                    (Outcome::Canceled, STOPPED.to_owned())
                } else if self.ends_unknown() {
                    (Outcome::Unknown, self.unknown())
                } else {
                    (Outcome::Canceled, "The task was canceled; this call was not run.".to_owned())
                }
            }
        };
        (self.call.tool_call_id, outcome, text)
    }

    /// Its last attempt, when that was started and has no answer: also once the call was given up.
    #[must_use]
    pub fn unanswered(&self) -> Option<(CallId, &Start)> {
        let open = matches!(self.phase, Phase::Started(_) | Phase::Done(Outcome::Unknown));
        self.start.as_ref().filter(|_| open).map(|start| (self.call.tool_call_id, start))
    }

    /// Whether this open question is about it.
    pub(super) fn is_asked_by(&self, request: RequestId) -> bool {
        matches!(self.phase, Phase::Asked(by) | Phase::OutcomeUnknown(by) if by == request)
    }

    /// The user has gone on with another message: what did not start will not (no task of ours leaves such a call), and
    /// what did, also under a leave to run it again, is asked about first.
    pub(super) fn passed_over(&mut self) {
        self.phase = match (&self.phase, &self.start) {
            (
                Phase::New | Phase::Allowed | Phase::Held(_) | Phase::Human(_) | Phase::Asked(_) | Phase::Approved(_),
                None,
            ) => Phase::Settled(Outcome::Withdrawn, WITHDRAWN.to_owned()),
            (Phase::Allowed | Phase::Approved(_), Some(start)) => Phase::Started(start.clone()),
            (Phase::Delegated(_), _) => Phase::Settled(Outcome::Canceled, STOPPED.to_owned()),
            (phase, _) => phase.clone(),
        };
    }

    /// Its result, when it will not run (again).
    #[must_use]
    pub fn settlement(&self) -> Option<(CallId, Outcome, String)> {
        let id = self.call.tool_call_id;
        if let Phase::Settled(outcome, text) = &self.phase {
            return Some((id, *outcome, text.clone()));
        }
        let given_up = self.effect.repeatable() && self.attempts >= ATTEMPTS;
        let text = || format!("There was no answer in {ATTEMPTS} attempts. The call may have taken effect.");
        (given_up && matches!(self.phase, Phase::Started(_))).then(|| (id, Outcome::Failed, text()))
    }
}

/// Attempts at a call that may be repeated, crashes included.
pub const ATTEMPTS: u32 = 3;

/// What the model is told of a call that was started and whose outcome nobody waits for.
pub const UNKNOWN: &str = "This call was started and its outcome is not known: it may have taken effect.";

/// What the model is told of a sub-agent that was at work when its caller was stopped.
pub const STOPPED: &str = "The sub-agent was at work and was canceled. What it had done before is not undone.";

/// What the model is told of a call that never started before the user went on.
pub const WITHDRAWN: &str = "The user went on with another message; this call was not run.";
