//! Who somebody is and what he may.

pub mod authenticator;
pub mod directory;
pub mod may;
pub mod session;

use crate::task::user::UserId;

/// The user that everybody is without accounts.
pub const LOCAL: &str = "local";

/// Somebody at the door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whom the operation is for: the key's user, or the one a key with `act_as` named.
    pub user_id: UserId,
    /// His tenant (the key's).
    pub tenant: String,
    /// His groups: the configuration's, or those the key with `act_as` named.
    pub groups: Vec<String>,
    /// The key's user, when it speaks for another.
    pub via: Option<String>,
    /// Whether the key is an admin's.
    pub admin: bool,
    /// What the key may be used for.
    pub may: May,
    /// Without accounts everybody is `local`, who satisfies the approvers of every rule.
    pub unaccounted: bool,
}

/// What a key may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct May {
    /// Every POST under `/v1`.
    pub create: bool,
    /// Every GET.
    pub read: bool,
    /// Every POST under `/resume`, and reading what one may decide.
    pub decide: bool,
}

impl May {
    /// Everything: the default.
    pub const ALL: Self = Self { create: true, read: true, decide: true };
}
