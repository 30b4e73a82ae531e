//! Defines standing decisions. A standing decision is an approval that also lets later calls of the
//! same rule run without a request. A rule offers a standing decision, and a person gives it
//! together with an approval. The policy computes the [`Offer`] of a held call, if the rule that
//! holds the call offers a standing decision. A standing decision ([`Grant`]) covers a call if its
//! [`Grant::basis`] equals the [`Offer::basis`] of the call.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::id::GrantId;
use super::words::word_enum;

word_enum! {
    /// The tasks in which a standing decision is valid.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
    )]
    #[serde(rename_all = "snake_case")]
    pub enum GrantScope {
        /// The tree of the call that was approved, until the user's next message.
        Task = "task",
        /// Every task of the same owner and root agent.
        Owner = "owner",
    }
}

/// The standing decision that a rule offers for one held call. The API shows all fields except
/// `basis`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Digest of the rule and of the tool's definition. If `when` is `None`, the digest also
    /// includes the call's arguments. A standing decision stores the basis of its offer, and covers
    /// the calls whose offers have the same basis.
    pub basis: String,
    /// The operator's condition that later calls must meet. `None` means that later calls must have
    /// the same arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// The scopes that a person may choose from.
    #[serde(rename = "for")]
    pub scopes: Vec<GrantScope>,
    /// The longest lifetime that a person may choose.
    pub most: Duration,
    /// The maximum number of calls that the standing decision lets through.
    pub uses: u32,
}

/// A person's wish to give a standing decision together with an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    /// The scope that the person chose.
    pub scope: GrantScope,
    /// Lifetime of the standing decision, from the commit of the approval.
    pub expires_in: Duration,
}

/// A standing decision. The journal stores it as part of the approval that gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Id by which the standing decision is listed and ended.
    pub grant_id: GrantId,
    /// The tasks in which the standing decision is valid.
    #[serde(rename = "for")]
    pub scope: GrantScope,
    /// Lifetime of the standing decision, from the commit of the approval.
    pub expires_in: Duration,
    /// The maximum number of calls that the standing decision lets through.
    pub uses: u32,
    /// The tool of the calls that the standing decision covers. Not on the wire.
    pub tool: String,
    /// The rule that offered the standing decision. Not on the wire.
    pub rule: String,
    /// Basis of the offer (see [`Offer::basis`]). Not on the wire.
    pub basis: String,
}

/// The use of a standing decision by a started call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantUse {
    /// Id of the standing decision that lets the call through.
    pub grant_id: GrantId,
    /// Whether the store has already counted an earlier attempt at the call as a use of this
    /// standing decision. If so, the store does not count this attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// Why a standing decision is no longer valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantEnd {
    /// A person ended the standing decision.
    Revoked,
    /// The lifetime of the standing decision is over.
    Expired,
    /// The standing decision has let its last call through.
    UsedUp,
    /// The user has sent the tree a message since the standing decision was given.
    Message,
    /// The standing decision was given before a backup was restored or a standby was promoted.
    HistoryLost,
    /// The giver's approval alone no longer lets a call of the rule run. Either the giver may no
    /// longer approve such calls, or the rule now requires several approvals.
    Giver,
    /// The rule or the tool has changed since the standing decision was given.
    Changed,
}
