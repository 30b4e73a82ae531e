//! Standing decisions: an approval that also lets later calls of its rule through. The operator's
//! rule offers them, a person gives them with an approval. The policy computes an [`Offer`] for each
//! call that a rule holds; a [`Grant`] counts for a call only while both have the same basis.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::id::GrantId;

/// The tasks in which a standing decision counts.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum GrantScope {
    /// The tree of the call that was approved, until the user's next message.
    Task,
    /// Every task of the same owner and root agent.
    Owner,
}

impl GrantScope {
    /// The word on the wire and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Owner => "owner",
        }
    }

    /// The scope with this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Task, Self::Owner]
            .into_iter()
            .find(|scope| scope.as_str() == word)
    }
}

/// The standing decision that a rule offers about one held call. Not on the wire as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Digest of the rule, of the tool's definition and, without `when`, of the arguments: a
    /// standing decision counts for the calls whose offer has the same basis.
    pub basis: String,
    /// The operator's condition on later calls; `None`: the same arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// The scopes that a person may choose from.
    #[serde(rename = "for")]
    pub scopes: Vec<GrantScope>,
    /// The longest time for which the standing decision may be given.
    pub most: Duration,
    /// How many calls the standing decision lets through.
    pub uses: u32,
}

/// A person's wish to give a standing decision with an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remember {
    /// The scope that the person chose.
    pub scope: GrantScope,
    /// How long the standing decision counts.
    pub expires_in: Duration,
}

/// A standing decision, as the journal keeps it with the approval that gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The standing decision's id.
    pub grant_id: GrantId,
    /// The tasks in which the standing decision counts.
    #[serde(rename = "for")]
    pub scope: GrantScope,
    /// How long the standing decision counts, from the commit of the approval.
    pub expires_in: Duration,
    /// How many calls the standing decision lets through.
    pub uses: u32,
    /// The tool of the calls that the standing decision covers. Not on the wire.
    pub tool: String,
    /// The rule that offered the standing decision. Not on the wire.
    pub rule: String,
    /// The basis of the offer. Not on the wire.
    pub basis: String,
}

/// The standing decision that a started call relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantUse {
    /// The standing decision's id.
    pub grant_id: GrantId,
    /// Whether an earlier attempt at the call has counted as a use already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// Why a standing decision counts no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantEnd {
    /// A person ended the standing decision.
    Revoked,
    /// The time for which the standing decision was given is over.
    Expired,
    /// The standing decision has let its last call through.
    UsedUp,
    /// The user has sent the tree a message since the standing decision was given.
    Message,
    /// A restored backup or a promoted standby has made the history uncertain in which the standing
    /// decision was given.
    HistoryLost,
    /// The person who gave the standing decision may not approve such a call any more.
    Giver,
    /// The rule or the tool has changed since the standing decision was given.
    Changed,
}
