//! Standing decisions as the API shows them.

use serde::Serialize;
use utoipa::ToSchema;

use super::decision::{WireDoor, WireGrantScope};
use super::wire_enum;
use crate::store::GrantRow;
use crate::task::grant;

wire_enum! {
    /// Why a standing decision counts no more: somebody ended it (`revoked`), its time is over
    /// (`expired`), it has let its last call through (`used_up`), the user has sent the tree a
    /// `message` since, a restored backup or a promoted standby has made the history before it
    /// uncertain (`history_lost`), its `giver` may not approve such a call any more, or its rule or
    /// tool has `changed`.
    WireGrantEnd as GrantEnd from grant::GrantEnd, "snake_case" { Revoked, Expired, UsedUp, Message, HistoryLost, Giver, Changed }
}

/// A page of standing decisions, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct GrantList {
    /// The standing decisions.
    pub grants: Vec<Grant>,
    /// The value of `cursor` for the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// A standing decision: an approval that also lets later calls of its rule through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the API's members")]
pub(crate) struct Grant {
    /// Its id.
    #[schema(format = Uuid)]
    pub grant_id: String,
    /// The rule that offered it, and whose calls it lets through.
    pub rule: String,
    /// The tool of these calls.
    pub tool: String,
    /// The root agent.
    pub agent: String,
    /// The owner of the tasks.
    pub owner: String,
    /// The tasks in which it counts.
    pub r#for: WireGrantScope,
    /// The root of the tree in which it was given; with `task`, it counts only there.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The user who gave it.
    pub by: String,
    /// The user of the service key that acted for them.
    pub via: Option<String>,
    /// How the person proved who they are; null in a service without accounts.
    pub door: Option<WireDoor>,
    /// When it was given.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The end of its time.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// How many calls it lets through.
    pub uses: i64,
    /// How many calls have started with it.
    pub used: i64,
    /// Why it counts no more; null while it counts.
    pub ended: Option<WireGrantEnd>,
}

impl Grant {
    /// The standing decision of a row, which counts no more if it has `ended`.
    #[must_use]
    pub(crate) fn of(row: &GrantRow, ended: Option<grant::GrantEnd>) -> Self {
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
