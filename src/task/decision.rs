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
    pub arguments: Option<Value>,
    /// The human's result, of a respond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
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
    /// The reason given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What took effect after a rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Then>,
    /// What was filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Value>,
    /// The result that was supplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Each call this answer decides.
    pub decisions: BTreeMap<CallId, CallAnswer>,
    /// Whether the request has no undecided call after this answer, or ends with it. Not on the wire.
    pub closes: bool,
}
