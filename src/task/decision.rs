//! A human's answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::id::CallId;

/// What an answer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Run the call as shown.
    Approve,
    /// Do not run it.
    Reject,
    /// Run it with other arguments.
    Edit,
    /// Take the human's answer or result instead.
    Respond,
    /// Run a call whose outcome is unknown again.
    Retry,
    /// Of a whole request only: its calls were decided differently.
    #[schemars(skip)]
    Mixed,
}

impl Action {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Reject => "reject",
            Self::Edit => "edit",
            Self::Respond => "respond",
            Self::Retry => "retry",
            Self::Mixed => "mixed",
        }
    }
}

/// What follows a rejection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The model is told, and goes on.
    Continue,
    /// The task that asked is canceled.
    #[default]
    Cancel,
    /// The root of the tree is canceled.
    CancelRoot,
}

/// One person's answer to one call, inside a [`Decision`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallAnswer {
    /// What was answered.
    pub action: Action,
    /// The reason given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The replacement, of an edit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edit: Option<Edit>,
    /// The human's result as JSON text, of a respond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_text: Option<String>,
    /// Whether the call may run with this answer: it completes the approval, or needs no other. Not on the wire.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leave: bool,
}

impl CallAnswer {
    /// One without a reason or anything beside it.
    #[must_use]
    pub fn plain(action: Action) -> Self {
        Self { action, reason: None, edit: None, result_text: None, leave: false }
    }

    /// Whether the call is decided by this answer, however many have to agree.
    #[must_use]
    pub fn settles(&self) -> bool {
        self.leave || !matches!(self.action, Action::Approve | Action::Retry)
    }
}

/// What a human wrote in place of a call's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    /// The exact text, which is what runs.
    pub arguments_text: String,
    /// Digest of the call with it. Not on the wire.
    pub digest: String,
    /// The rule under which it may run. Not on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// Somebody who approved, as far as it matters whether he still may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote {
    /// Who.
    pub by: String,
    /// The user of the key that spoke for him, if one did.
    pub via: Option<String>,
    /// His groups then, where a key spoke for him.
    pub groups: Vec<String>,
}

/// One answer to a request: what the journal keeps. Its moment is its item's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// What was answered; `mixed` when the calls were answered differently.
    pub action: Action,
    /// Who.
    pub by: String,
    /// The user of the key that spoke for him, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// His groups, where a key spoke for him. Not on the wire.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The reason given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was said to follow a rejection; of the answer that decides the last call, what took effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Then>,
    /// What was filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Value>,
    /// The result that was supplied, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_text: Option<String>,
    /// Each call this answer decides.
    pub decisions: BTreeMap<CallId, CallAnswer>,
    /// Whether the request has no undecided call after this answer, or ends with it. Not on the wire.
    pub closes: bool,
}

impl Decision {
    /// Who gave it, as a vote.
    #[must_use]
    pub fn vote(&self) -> Vote {
        Vote { by: self.by.clone(), via: self.via.clone(), groups: self.groups.clone() }
    }
}
