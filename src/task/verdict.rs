//! The policy's verdict on a call, and the terms of a request.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::decision::{Action, Consequence};
use super::grant::Offer;
use super::id::{CallId, GrantId};
use super::text::as_sentence;

/// The reason that a judgement gives if it holds a call because no rule matches the call.
pub const NO_RULE_MATCHES: &str = "No rule matches.";

/// The policy's verdict on one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The call runs without a request.
    Allow,
    /// A person has to approve the call first.
    Hold,
    /// A rule refuses the call.
    Deny,
    /// The call cannot run, whatever the rules say: for example, the tool is not offered, or the
    /// arguments do not fit the tool.
    Invalid,
    /// The call is itself a request to a person.
    Human,
}

/// The people with the right to decide a request. The order of `users` and the order of `groups` do
/// not matter when two values are compared.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct Approvers {
    /// Whether the task's owner may decide. If false, the owner may not decide even if `users` or
    /// `groups` include the owner.
    pub owner: bool,
    /// Ids of users who may decide.
    pub users: Vec<String>,
    /// Names of groups whose members may decide.
    pub groups: Vec<String>,
    /// Number of distinct people who have to approve.
    pub required: u32,
    /// Whether an answer by a link counts. `None` if the rule leaves this open;
    /// [`Approvers::accepts_links`] then applies the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<bool>,
}

impl PartialEq for Approvers {
    fn eq(&self, other: &Self) -> bool {
        let same = |own: &[String], other: &[String]| {
            own.iter().all(|name| other.contains(name))
                && other.iter().all(|name| own.contains(name))
        };
        same(&self.users, &other.users)
            && same(&self.groups, &other.groups)
            && (self.owner, self.required, self.links) == (other.owner, other.required, other.links)
    }
}

impl Approvers {
    /// Whether an answer by a link counts. A link proves no more than access to a mailbox. By
    /// default, this proof is enough only if a single approval is required.
    #[must_use]
    pub fn accepts_links(&self) -> bool {
        self.links.unwrap_or(self.required <= 1)
    }
}

impl Default for Approvers {
    /// Returns the approvers of a request that only the owner may decide.
    fn default() -> Self {
        Self {
            owner: true,
            users: Vec::new(),
            groups: Vec::new(),
            required: 1,
            links: None,
        }
    }
}

/// The effect of the deadline on undecided calls.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// The model is told that the request expired.
    #[default]
    Continue,
    /// The task is canceled.
    Cancel,
}

/// The terms of a rule. The terms are copied into each request that the rule opens, so that a later
/// change of the rule does not affect the request. Held calls of one turn share one request if
/// their terms are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The people who may decide.
    pub approvers: Approvers,
    /// The time for which the request stays open; `None` if the request has no deadline.
    pub expires_in: Option<Duration>,
    /// The effect of a passed deadline on the undecided calls.
    pub on_expiry: OnExpiry,
    /// The consequence for the task if people reject every call of the request. The `then` of a
    /// decision overrides this consequence.
    pub on_reject: Consequence,
    /// The actions that the rule allows on an approval request.
    pub allow: Vec<Action>,
    /// The operator's text for the request. If `None`, the text is "Human intervention required."
    pub message: Option<String>,
}

impl Default for Terms {
    /// Returns the terms of a request that no rule opened: the owner decides within 24 hours.
    fn default() -> Self {
        Self {
            approvers: Approvers::default(),
            expires_in: Some(Duration::from_hours(24)),
            on_expiry: OnExpiry::Continue,
            on_reject: Consequence::Cancel,
            allow: vec![
                Action::Approve,
                Action::Reject,
                Action::Edit,
                Action::Respond,
            ],
            message: None,
        }
    }
}

/// The policy's judgement of a call, as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// Whether the call may run.
    pub verdict: Verdict,
    /// Rule that gave the verdict, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Reason for the verdict, if any: the rule's own reason, followed by remarks of this service.
    /// A remark says, for example, why the call is invalid, or that a rule could not be evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Terms of the request; `Some` if `verdict` is `hold` or `human`. Not on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
    /// The rejected earlier call that this call repeats, if any. The reason of that rejection is
    /// also the reason for refusing this call. Not on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<CallId>,
    /// The standing decision that a person may give when they approve the held call, if the rule
    /// offers one. Not on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Box<Offer>>,
    /// The standing decision, if any, that allows the call although its rule would hold the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<GrantId>,
}

impl Judgement {
    /// Creates a judgement with a verdict and no other data.
    #[must_use]
    pub fn new(verdict: Verdict) -> Self {
        Self {
            verdict,
            rule: None,
            reason: None,
            terms: None,
            repeats: None,
            offer: None,
            grant_id: None,
        }
    }

    /// Adds sentences, if any, to the judgement's reason. Repeats no text that both have.
    #[must_use]
    pub(crate) fn with_reason(self, reason: Option<&str>) -> Self {
        let Some(reason) = reason else { return self };
        let reason = match self.reason {
            Some(own) if own.contains(reason) => own,
            Some(own) if reason.contains(&own) => reason.to_owned(),
            Some(own) => format!("{} {reason}", as_sentence(&own)),
            None => reason.to_owned(),
        };
        Self {
            reason: Some(reason),
            ..self
        }
    }

    /// Creates the judgement of an invalid call. No rule is involved in this judgement.
    #[must_use]
    pub fn invalid(reason: impl Into<String>) -> Self {
        Self {
            reason: Some(reason.into()),
            ..Self::new(Verdict::Invalid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn approvers(users: &[&str], groups: &[&str]) -> Approvers {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Approvers {
            owner: false,
            users: names(users),
            groups: names(groups),
            ..Approvers::default()
        }
    }

    #[test]
    fn approvers_who_are_named_in_another_order_or_twice_are_equal() {
        let both = approvers(&["bob", "carol"], &["ops", "finance"]);
        let again = approvers(&["carol", "bob", "bob"], &["finance", "ops"]);
        assert_eq!(both, again);
        for other in [
            approvers(&["bob"], &["ops", "finance"]),
            approvers(&["bob", "carol"], &["ops"]),
            approvers(&["Bob", "carol"], &["ops", "finance"]),
            Approvers {
                required: 2,
                ..again.clone()
            },
            Approvers {
                owner: true,
                ..again
            },
        ] {
            assert_ne!(both, other);
        }
    }
}
