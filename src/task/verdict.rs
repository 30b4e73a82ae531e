//! What the policy says of a call, and the terms under which a human is asked.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::decision::{Action, Then};
use super::id::CallId;

/// The policy's word on one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Runs unasked.
    Allow,
    /// A human is asked first.
    Hold,
    /// Refused.
    Deny,
    /// The name is not offered or the arguments do not fit; the policy was not asked.
    Invalid,
    /// The call is itself a question to a human.
    Human,
}

/// Who may decide a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approvers {
    /// Whether the task's owner may.
    pub owner: bool,
    /// Users by id.
    pub users: Vec<String>,
    /// Groups by name.
    pub groups: Vec<String>,
    /// How many different people have to approve.
    pub required: u32,
}

impl Default for Approvers {
    /// The owner alone.
    fn default() -> Self {
        Self { owner: true, users: Vec::new(), groups: Vec::new(), required: 1 }
    }
}

/// What happens to undecided calls at the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// The model is told that it expired.
    #[default]
    Continue,
    /// The task is canceled.
    Cancel,
}

/// The terms of a rule, copied into each request it opens; they never change there.
/// Held calls of one turn whose terms are equal share one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Who may decide.
    pub approvers: Approvers,
    /// How long the request stays open; `None` is for ever.
    pub expires_in: Option<Duration>,
    /// What happens at the deadline.
    pub on_expiry: OnExpiry,
    /// What a rejection of every call does unless the decision says `then`.
    pub on_reject: Then,
    /// The answers the rule allows of an approval.
    pub allow: Vec<Action>,
    /// The operator's words instead of "Human intervention required."
    pub message: Option<String>,
}

impl Default for Terms {
    /// The terms of a request that no rule opened: the owner decides, within 24 hours.
    fn default() -> Self {
        Self {
            approvers: Approvers::default(),
            expires_in: Some(Duration::from_hours(24)),
            on_expiry: OnExpiry::Continue,
            on_reject: Then::Cancel,
            allow: vec![Action::Approve, Action::Reject, Action::Edit, Action::Respond],
            message: None,
        }
    }
}

/// One judgement, as it is journaled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// The word.
    pub verdict: Verdict,
    /// The rule that gave it, if one did.
    pub rule: Option<String>,
    /// Why: the rule's reason, or what does not fit.
    pub reason: Option<String>,
    /// Under which terms a human is asked. Present when `verdict` is `hold` or `human`. Not on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
    /// The call that a human has said no to, where this one is the same: it is refused as he said. Not on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<CallId>,
}

impl Judgement {
    /// A word without a rule, a reason or terms.
    #[must_use]
    pub fn of(verdict: Verdict) -> Self {
        Self { verdict, rule: None, reason: None, terms: None, repeats: None }
    }

    /// What does not fit is not put to the policy.
    #[must_use]
    pub fn invalid(reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..Self::of(Verdict::Invalid) }
    }
}
