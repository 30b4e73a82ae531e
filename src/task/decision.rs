//! A decision: a person's answer to a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::grant::Grant;
use super::id::CallId;
use super::words::word_enum;

word_enum! {
    /// The effect of an answer.
    #[derive(
        Clone,
        Copy,
        Debug,
        PartialEq,
        Eq,
        Hash,
        PartialOrd,
        Ord,
        Serialize,
        Deserialize,
        schemars::JsonSchema,
    )]
    #[serde(rename_all = "snake_case")]
    pub enum Action {
        /// Run the call as shown.
        Approve = "approve",
        /// Do not run the call.
        Reject = "reject",
        /// Run the call with other arguments.
        Edit = "edit",
        /// Do not run the call. The result of the call is the answer or the result that the human gave.
        Respond = "respond",
        /// Run the call again, although the outcome of an earlier attempt is unknown.
        Retry = "retry",
        /// The decision of a whole request whose calls were decided by different actions.
        #[schemars(skip)]
        Mixed = "mixed",
    }
}

word_enum! {
    /// How a person proved who they are.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Door {
        /// With an API key.
        Key = "key",
        /// With the cookie of a browser session.
        Session = "session",
        /// With a link from a message.
        Link = "link",
        /// With a Slack account that is mapped to a person.
        Slack = "slack",
    }
}

/// The effect of a rejection on the task.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Consequence {
    /// The model is told of the rejection and continues.
    Continue,
    /// The task that opened the request is canceled.
    #[default]
    Cancel,
    /// The root of the tree is canceled.
    CancelRoot,
}

/// One person's answer about one call, inside a [`Decision`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallAnswer {
    /// The person's choice for this call.
    pub action: Action,
    /// Reason for the answer about this call, if the person gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The new arguments, for `edit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edit: Option<Edit>,
    /// The person's result as JSON text, for `respond`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_text: Option<String>,
    /// Whether this answer lets the call run. True for an answer that completes the required
    /// approvals, and for an edit that needs no further approval. Not on the wire.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leave: bool,
    /// The standing decision that the person gave with this approval, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remember: Option<Box<Grant>>,
}

impl CallAnswer {
    /// Creates an answer with an action and no other data.
    #[must_use]
    pub fn plain(action: Action) -> Self {
        Self {
            action,
            reason: None,
            edit: None,
            result_text: None,
            leave: false,
            remember: None,
        }
    }

    /// Whether this answer alone decides the call, so that no approvals need to be counted. An
    /// answer with `leave` decides the call alone. So does an answer other than an approval or a
    /// retry. An approval or a retry without `leave` decides the call only if there are enough
    /// approvals (see [`Self::decides`]).
    #[must_use]
    pub fn settles(&self) -> bool {
        self.leave || !matches!(self.action, Action::Approve | Action::Retry)
    }

    /// Whether this answer decides the call: it settles the call alone, or completes the `required`
    /// approvals. `approvers` is the number of people who have approved the call, including the
    /// person who gave this answer.
    #[must_use]
    pub fn decides(&self, approvers: usize, required: u32) -> bool {
        self.settles() || approvers >= required.max(1) as usize
    }
}

/// A person's replacement of a call's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    /// The new arguments: the exact text with which the call runs.
    pub arguments_text: String,
    /// Digest of the call with the new arguments. Not on the wire.
    pub digest: String,
    /// Rule under which the edited call may run. Not on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// An approval, with the data for a later check whether the approver may still approve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote {
    /// User id of the approver.
    pub by: String,
    /// If an API key spoke for the approver (`act_as`), the user id of the key's user; otherwise
    /// `None`.
    pub via: Option<String>,
    /// If an API key spoke for the approver, the approver's groups at the time of the approval.
    /// Otherwise empty: a later check of the approval then takes the approver's groups from the
    /// configuration.
    pub groups: Vec<String>,
    /// How the approver proved who they are. `None` in a service without accounts, and in approvals
    /// that older versions recorded.
    pub door: Option<Door>,
}

/// One answer to a request, as the journal keeps it. The time of the answer is the time of its
/// journal item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The action; `mixed` if the calls were answered with different actions.
    pub action: Action,
    /// User id of the person who answered.
    pub by: String,
    /// If an API key spoke for the person who answered (`act_as`), the user id of the key's user;
    /// otherwise `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// If an API key spoke for the person, the person's groups at the time of the answer. Otherwise
    /// empty (see [`Vote::groups`]). Not on the wire.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// How the person proved who they are. `None` in a service without accounts, and in decisions
    /// that older versions recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub door: Option<Door>,
    /// Reason for the whole answer, if the person gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The consequence of this answer's rejections for the task. The consequence takes effect if
    /// this answer closes the request. `None` in two cases: the answer rejects no call, or the
    /// answer leaves the request open and the person named no consequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Consequence>,
    /// The form as the person filled it in. In the answer to a credentials request, every value in
    /// the form is null, because the values are stored sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Value>,
    /// The result that the person supplied for the whole request, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_text: Option<String>,
    /// The person's answers, by call.
    pub decisions: BTreeMap<CallId, CallAnswer>,
    /// Whether this answer closes the request: every call is now decided, or the answer ends the
    /// task. Not on the wire.
    pub closes: bool,
}

impl Decision {
    /// Returns the standing decisions that the person gave with this answer. The answers about
    /// several calls may have the same standing decision, which is returned once.
    #[must_use]
    pub fn grants(&self) -> Vec<&Grant> {
        let mut grants: Vec<&Grant> = Vec::new();
        let answers = self.decisions.values();
        for grant in answers.filter_map(|answer| answer.remember.as_deref()) {
            if grants.iter().all(|known| known.grant_id != grant.grant_id) {
                grants.push(grant);
            }
        }
        grants
    }

    /// Whether this answer closes its request, and the task continues. Such an answer also decides
    /// the calls that lack approvals. For example, a service without accounts closes a request
    /// after one approval, even if the request requires several.
    #[must_use]
    pub fn closes_and_continues(&self) -> bool {
        self.closes && self.then.is_none_or(|then| then == Consequence::Continue)
    }

    /// Returns the person's reason for the answer about this call. If there is none, returns the
    /// reason for the whole answer.
    #[must_use]
    pub fn reason_about(&self, call: CallId) -> Option<&str> {
        let own = self.decisions.get(&call);
        let own = own.and_then(|answer| answer.reason.as_deref());
        own.or(self.reason.as_deref())
    }

    /// Returns the [`Vote`] of the person who gave this answer.
    #[must_use]
    pub fn vote(&self) -> Vote {
        Vote {
            by: self.by.clone(),
            via: self.via.clone(),
            groups: self.groups.clone(),
            door: self.door,
        }
    }
}
