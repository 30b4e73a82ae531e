//! Writes the state of a gate call in one line, for a model or a person.

use super::{GateCall, GateDecision, GateState, MAY_HAVE_RUN, Repetition, UNDER_WAY};
use crate::task::item::Outcome;
use crate::task::request_kind::ResponseKind;
use crate::task::text::as_sentence;

/// The advice about a call that an equal proposal does not continue ([`Repetition::RunsAgain`]).
const READ_IT: &str = "Read it to get its result: the same call without its key is run again.";

impl GateCall {
    /// Returns the text about a pending call: the awaited action of a person, and the reason for an
    /// approval.
    fn pending_text(&self) -> String {
        let request = self.request.as_ref();
        let asked = request.map(|request| request.spec.kind.properties());
        let approval = if self.attempts > 0 {
            "a person must approve another attempt"
        } else {
            "a person must approve this call"
        };
        let awaited = match asked.map(|asked| asked.response) {
            Some(ResponseKind::ServerForm) => "a person must answer a question of its tool",
            Some(ResponseKind::SecretForm) => {
                "a person must enter a credential that its tool needs"
            }
            Some(
                ResponseKind::PerCall
                | ResponseKind::AgentForm
                | ResponseKind::YesOrNo
                | ResponseKind::Result
                | ResponseKind::FormResult,
            )
            | None => approval,
        };
        let text = if self.attempts > 0 {
            format!("The call was started and has not ended: {awaited}.")
        } else {
            format!("Held: {awaited}. It has not run.")
        };
        let is_approval = asked.is_none_or(|asked| asked.decides_calls);
        let reason = self.reason.as_deref().filter(|_| is_approval);
        text + &reason.map_or_else(String::new, |why| format!(" Reason: {}", as_sentence(why)))
    }

    /// Returns the state of the call in one line, for a model or a person.
    #[must_use]
    pub fn message(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or("No reason is given.");
        match (self.state, self.decision) {
            (GateState::Pending, _) => self.pending_text(),
            (GateState::Approved, _) if self.is_queued() => {
                format!("Allowed; the call is queued and starts by itself. {READ_IT}")
            }
            (GateState::Approved, _) if self.attempts > 0 => {
                "Approved; the call was started before, and starts again when its agent asks for it again."
                    .to_owned()
            }
            (GateState::Approved, _) => {
                "Approved; the call starts when its agent asks for it again.".to_owned()
            }
            (GateState::OutcomeUnknown, _) => {
                format!("{MAY_HAVE_RUN} A person is asked about the outcome of the call.")
            }
            (GateState::Started, GateDecision::Pending) => match self.repetition {
                Repetition::Continues => format!("{UNDER_WAY} Ask for it again to get its result."),
                Repetition::RunsAgain => format!("{UNDER_WAY} {READ_IT}"),
            },
            (GateState::Settled, GateDecision::Deny) => {
                if self.outcome == Some(Outcome::Responded) {
                    return "The call was not run: a person gave its result.".to_owned();
                }
                let outcome = self.outcome.map_or("refused", Outcome::as_str);
                let reason = self.end_text.as_deref().unwrap_or(reason);
                format!("The call was not run ({outcome}): {reason}")
            }
            (GateState::Settled, _) => self.ended_text(),
            (GateState::Started, GateDecision::Allow | GateDecision::Deny) => self.allowed_text(),
        }
    }

    /// Returns the text about the end of a started call.
    fn ended_text(&self) -> String {
        match self.outcome {
            Some(Outcome::Succeeded | Outcome::Released) => self.allowed_text(),
            Some(Outcome::Responded) => {
                "The call was started, and a person gave its result.".to_owned()
            }
            Some(Outcome::Failed) => {
                let text = self.end_text.clone();
                text.unwrap_or_else(|| "The call was started and failed.".to_owned())
            }
            Some(Outcome::Unknown) | None => {
                format!("The outcome of the call is not known. {MAY_HAVE_RUN}")
            }
            Some(
                outcome @ (Outcome::Invalid
                | Outcome::Denied
                | Outcome::Rejected
                | Outcome::Expired
                | Outcome::Withdrawn
                | Outcome::Canceled),
            ) => {
                let outcome = outcome.as_str();
                format!("The call was started and ended as {outcome}. {MAY_HAVE_RUN}")
            }
        }
    }

    /// Returns the text that names the approvers, or else the rule, that let the call start.
    fn allowed_text(&self) -> String {
        if !self.by.is_empty() {
            return format!("Approved by {}.", self.by.join(", "));
        }
        match &self.rule {
            Some(rule) => format!("Allowed by the rule {rule}."),
            None => "Allowed.".to_owned(),
        }
    }
}
