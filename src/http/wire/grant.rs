//! Standing decisions as the API shows them.

use serde::Serialize;
use utoipa::ToSchema;

use super::decision::{WireDoor, WireGrantScope};
use super::wire_enum;
use crate::store::GrantRow;
use crate::task::grant;

wire_enum! {
    /// The reason why a standing decision has ended: `revoked` (a person ended it), `expired` (its
    /// time has passed), `used_up` (it has let through the maximum number of calls), `message` (the
    /// user has sent a message to the tree since the decision was given), `history_lost` (since the
    /// decision was given, a backup was restored or a standby was promoted, so stored history may
    /// be lost), `giver` (the giver may no longer approve such calls, or the rule now requires
    /// several approvals) or `changed` (the rule or the tool has changed).
    WireGrantEnd as GrantEnd from grant::GrantEnd, "snake_case" { Revoked, Expired, UsedUp, Message, HistoryLost, Giver, Changed }
}

/// A page of standing decisions, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct GrantList {
    /// The standing decisions of this page.
    pub grants: Vec<WireGrant>,
    /// The value of `cursor` for the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// A standing decision: an approval that also lets later calls of its rule through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Grant)]
pub(crate) struct WireGrant {
    /// The id of the standing decision, as `DELETE /v1/grants/{grant_id}` takes it.
    #[schema(format = Uuid)]
    pub grant_id: String,
    /// The name of the rule that offered the standing decision. Later calls must also match this
    /// rule.
    pub rule: String,
    /// The name of the tool whose calls are let through.
    pub tool: String,
    /// The name of the root agent. The standing decision counts only in trees whose root task runs
    /// this agent.
    pub agent: String,
    /// The id of the user who owns the tasks in which the standing decision counts.
    pub owner: String,
    /// The tasks in which the standing decision counts.
    pub r#for: WireGrantScope,
    /// The id of the root task of the tree in which the standing decision was given. If the scope
    /// is `task`, the standing decision counts in that tree alone.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The id of the user who gave the standing decision.
    pub by: String,
    /// If a service acted for the giver with its own key, the id of that key's user; else null.
    pub via: Option<String>,
    /// How the person proved who they are; null in a service without accounts.
    pub door: Option<WireDoor>,
    /// The time at which the standing decision was given.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time at which the standing decision expires.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// The maximum number of calls that the standing decision lets through.
    pub uses: i64,
    /// The number of calls that have started with the standing decision.
    pub used: i64,
    /// The reason why the standing decision has ended; null if it has not ended.
    pub ended: Option<WireGrantEnd>,
}

impl WireGrant {
    /// Converts a stored standing decision to its API object. `ended` is the reason why the
    /// standing decision has ended; `None` if it has not ended.
    #[must_use]
    pub(crate) fn from_row(row: &GrantRow, ended: Option<grant::GrantEnd>) -> Self {
        Self {
            grant_id: row.grant_id.to_string(),
            rule: row.rule.clone(),
            tool: row.tool.clone(),
            agent: row.agent.clone(),
            owner: row.owner.clone(),
            r#for: row.scope.into(),
            task_id: row.root_task_id.to_string(),
            by: row.by.by.clone(),
            via: row.by.via.clone(),
            door: row.by.door.map(Into::into),
            created_at: row.created_at.to_string(),
            expires_at: row.expires_at.to_string(),
            uses: row.uses,
            used: row.used,
            ended: ended.map(Into::into),
        }
    }
}
