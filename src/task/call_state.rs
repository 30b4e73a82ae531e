//! The state of one tool call, after the journal items read so far.

use std::time::Duration;

use uuid::Uuid;

use super::decision::Vote;
use super::elicitation::Elicitation;
use super::grant::GrantUse;
use super::id::{CallId, GrantId, RequestId, TaskId};
use super::item::{Outcome, ToolCall};
use super::time::Time;
use super::tool_spec::{Effect, ToolKind};
use super::verdict::{Judgement, Terms};

/// Phase of one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// Proposed by the model, not judged yet.
    New,
    /// The policy allows the call.
    Allowed,
    /// Needs an approval; the request is not open yet.
    Held(Terms),
    /// The call is itself a request to a person; the request is not open yet.
    Human(Terms),
    /// The call's server has another question; the request is not open yet.
    Questioned,
    /// An open request asks people to decide the call.
    Asked(RequestId),
    /// Approved by as many people as required, or to run with a person's edit.
    Approved(Approval),
    /// Will not run (again); its result is known and not written yet.
    Settled(Outcome, String),
    /// Started, without a result yet.
    Started(Start),
    /// Outcome unknown; an open request asks a person about it.
    OutcomeUnknown(RequestId),
    /// A sub-agent's task performs the call.
    Delegated(TaskId),
    /// The call's result is written.
    Done(Outcome),
}

/// An approval to run a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Approval {
    /// Request whose decision approved the call.
    pub request_id: RequestId,
    /// The approvers.
    pub by: Vec<Vote>,
    /// Terms of the request.
    pub terms: Terms,
    /// Digest of the call as it was approved, with an edit's arguments if there is one.
    pub digest: String,
    /// Rule that the approved call runs under, if any.
    pub rule: Option<String>,
}

/// The prefix of [`Start::replica`] where the asker of a gate call runs the call. The id of the ask
/// whose commit gave out the permit follows, a colon, and the name of the runner.
const ELSEWHERE: &str = "elsewhere:";

/// A started attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Time of the commit that recorded the start.
    pub at: Time,
    /// Number of the attempt: 1, 2, 3 …
    pub attempt: u32,
    /// Timeout of the attempt.
    pub timeout: Duration,
    /// Process that sends the call; of a call that its asker runs, the text of
    /// [`Start::elsewhere`].
    pub replica: String,
}

impl Start {
    /// The `replica` of a call that the asker `ask` gets the permit for, to run it in `runner`.
    #[must_use]
    pub fn elsewhere(ask: Uuid, runner: &str) -> String {
        format!("{ELSEWHERE}{}:{runner}", ask.simple())
    }

    /// The ask whose commit gave out the permit, and the runner that has it, `""` if it has no
    /// name; `None` for a call of this service.
    #[must_use]
    pub fn permitted(&self) -> Option<(Uuid, &str)> {
        let (ask, runner) = self.replica.strip_prefix(ELSEWHERE)?.split_once(':')?;
        Some((Uuid::try_parse(ask).ok()?, runner))
    }

    /// Whether the asker of a gate call runs the call.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.replica.starts_with(ELSEWHERE)
    }

    /// When the attempt is over. An attempt of this service may be noticed up to `grace` (the
    /// duration of a lease) later.
    #[must_use]
    pub fn over(&self, grace: Duration) -> Time {
        let end = self.at + self.timeout;
        if self.is_elsewhere() {
            end
        } else {
            end + grace
        }
    }
}

/// One call and its state.
#[derive(Clone, Debug, PartialEq)]
pub struct CallState {
    /// The call as the model proposed it.
    pub call: ToolCall,
    /// A person's replacement of the call's arguments, if any.
    pub edited: Option<Edited>,
    /// Number of the turn that proposed the call.
    pub turn: u32,
    /// Phase that the call has reached.
    pub phase: Phase,
    /// The policy's last judgement.
    pub judgement: Option<Judgement>,
    /// Effect of repeating the call.
    pub effect: Effect,
    /// Kind of the called tool.
    pub performer: ToolKind,
    /// The call's approval, also after the call was started.
    pub approval: Option<Approval>,
    /// Attempts started so far.
    pub attempts: u32,
    /// The last started attempt.
    pub start: Option<Start>,
    /// Whether the asker of a gate call has given the permit of the last attempt back: it does not
    /// know the outcome.
    pub given_back: bool,
    /// The last questions of the call's server, with the answers that the next attempt returns.
    pub elicited: Option<Box<Elicitation>>,
    /// Whether the call's turn belongs to the uncertain history, see `restore.rs`.
    pub of_uncertain_turn: bool,
    /// Whether the call's approval came after the uncertain history.
    pub vouched: bool,
    /// The standing decision of which an attempt at the call has already counted a use.
    pub used_grant: Option<GrantId>,
}

/// A person's replacement of a call's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// The exact text that runs.
    pub arguments_text: String,
    /// User id of the person who wrote the replacement.
    pub by: String,
}

impl CallState {
    /// The text that is judged, shown and run: a person's edit where there is one, else the model's
    /// text.
    #[must_use]
    pub fn arguments_text(&self) -> &str {
        self.edited
            .as_ref()
            .map_or(&self.call.arguments_text, |edited| &edited.arguments_text)
    }

    /// The rule that the call runs under: that of its approval, else that of its last judgement.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        match &self.approval {
            Some(approval) => approval.rule.as_deref(),
            None => self
                .judgement
                .as_ref()
                .and_then(|judgement| judgement.rule.as_deref()),
        }
    }

    /// The standing decision that allows the call, if it needs one to run.
    #[must_use]
    pub fn grant(&self) -> Option<GrantId> {
        let judgement = self.judgement.as_ref();
        judgement
            .filter(|_| self.approval.is_none())
            .and_then(|judgement| judgement.grant_id)
    }

    /// The use of the standing decision that lets the next attempt through, if any.
    #[must_use]
    pub fn grant_use(&self) -> Option<GrantUse> {
        self.grant().map(|grant_id| GrantUse {
            grant_id,
            again: self.used_grant == Some(grant_id),
        })
    }

    /// The terms of its approval, else of its last judgement, else the default terms.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let of_rule = self
            .judgement
            .as_ref()
            .and_then(|judgement| judgement.terms.clone());
        self.approval
            .as_ref()
            .map(|approval| approval.terms.clone())
            .or(of_rule)
            .unwrap_or_default()
    }

    /// Whether an attempt with this number has ended with questions and none was started since.
    #[must_use]
    pub fn ended_asking(&self, attempt: u32) -> bool {
        matches!(&self.phase, Phase::Started(start) if start.attempt == attempt)
    }

    /// The sub-agent's task that performs the call.
    #[must_use]
    pub fn child(&self) -> Option<TaskId> {
        if let Phase::Delegated(child) = self.phase {
            Some(child)
        } else {
            None
        }
    }

    /// The phase of a call with an unknown outcome after the request about the call was closed.
    pub(super) fn unasked(&self) -> Phase {
        self.start.clone().map_or(Phase::New, Phase::Started)
    }

    /// The call's result when the task is canceled before the call has one.
    #[must_use]
    pub fn canceled(&self) -> (CallId, Outcome, String) {
        let (outcome, text) = match &self.phase {
            // A call settled with one of these outcomes keeps its result.
            Phase::Settled(
                outcome @ (Outcome::Rejected
                | Outcome::Responded
                | Outcome::Failed
                | Outcome::Unknown),
                text,
            ) => (*outcome, text.clone()),
            Phase::New
            | Phase::Allowed
            | Phase::Held(_)
            | Phase::Human(_)
            | Phase::Questioned
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
                    (
                        Outcome::Canceled,
                        "The task was canceled; this call was not run.".to_owned(),
                    )
                }
            }
        };
        (self.call.tool_call_id, outcome, text)
    }

    /// The result of a gate call that was not asked for in time.
    #[must_use]
    pub fn not_asked_for(&self) -> (CallId, Outcome, String) {
        let id = self.call.tool_call_id;
        if matches!(self.phase, Phase::Started(_)) {
            let text =
                "The call was let through, and no outcome was reported. It may have taken effect.";
            return (id, Outcome::Failed, text.to_owned());
        }
        let text =
            "The call was approved, but its agent did not ask for it in time; it was not run.";
        (id, Outcome::Expired, text.to_owned())
    }

    /// The last attempt, if the tool has not answered it; also after the call has ended as
    /// `unknown`.
    #[must_use]
    pub fn unanswered(&self) -> Option<(CallId, &Start)> {
        let open = matches!(
            self.phase,
            Phase::Started(_) | Phase::Done(Outcome::Unknown)
        );
        self.start
            .as_ref()
            .filter(|_| open)
            .map(|start| (self.call.tool_call_id, start))
    }

    /// Whether this open request asks about the call.
    pub(super) fn is_asked_by(&self, request: RequestId) -> bool {
        matches!(self.phase, Phase::Asked(by) | Phase::OutcomeUnknown(by) if by == request)
    }

    /// Applies a later user message. A call that was not started is withdrawn (this program closes
    /// such calls in the commit of the message). A call that was to be started again goes back to
    /// `Started`, even if a person had approved the repetition. A delegated call is settled as
    /// canceled.
    pub(super) fn passed_over(&mut self) {
        self.phase = match (&self.phase, &self.start) {
            (
                Phase::New
                | Phase::Allowed
                | Phase::Held(_)
                | Phase::Human(_)
                | Phase::Asked(_)
                | Phase::Approved(_),
                None,
            ) => Phase::Settled(Outcome::Withdrawn, WITHDRAWN.to_owned()),
            (Phase::Allowed | Phase::Approved(_) | Phase::Questioned, Some(start)) => {
                Phase::Started(start.clone())
            }
            (Phase::Delegated(_), _) => Phase::Settled(Outcome::Canceled, STOPPED.to_owned()),
            (phase, _) => phase.clone(),
        };
    }

    /// The result to write for a call that will not run (again): the call is settled, or it is
    /// repeatable and its last permitted attempt got no answer.
    #[must_use]
    pub fn settlement(&self) -> Option<(CallId, Outcome, String)> {
        let id = self.call.tool_call_id;
        if let Phase::Settled(outcome, text) = &self.phase {
            return Some((id, *outcome, text.clone()));
        }
        // An attempt that ended with questions was answered.
        let asked = self.elicited.as_ref().map_or(0, |asked| asked.round);
        let given_up = self.effect.repeatable() && self.attempts.saturating_sub(asked) >= ATTEMPTS;
        let text = || {
            format!("There was no answer in {ATTEMPTS} attempts. The call may have taken effect.")
        };
        (given_up && matches!(self.phase, Phase::Started(_))).then(|| (id, Outcome::Failed, text()))
    }
}

/// Maximum number of attempts at a repeatable call, those that ended in a crash included.
pub const ATTEMPTS: u32 = 3;

/// Result of a call that was started and whose outcome stays unknown.
pub const UNKNOWN: &str =
    "This call was started and its outcome is not known: it may have taken effect.";

/// Result of a call whose sub-agent was canceled while it was at work.
pub const STOPPED: &str =
    "The sub-agent was at work and was canceled. What it had done before is not undone.";

/// Result of a call that had not started when the user sent another message.
pub const WITHDRAWN: &str = "The user went on with another message; this call was not run.";
