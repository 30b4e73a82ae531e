//! Authentication and authorization: identifies the caller of an HTTP request, and checks the
//! caller's permissions.

pub(crate) mod authenticator;
pub mod directory;
pub mod language;
pub mod link;
pub mod may;
pub mod person;
pub(crate) mod session;
pub(crate) mod settings;

use crate::task::decision::Door;
use crate::task::user::UserId;

/// The user id of every caller when there are no accounts.
pub const LOCAL: &str = "local";

/// The authenticated sender of an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user that the operation is for: the key's user, or the user that a key with `act_as`
    /// named.
    pub user_id: UserId,
    /// The key's tenant.
    pub tenant: String,
    /// The user's groups: from the configuration, or as named by a key with `act_as`.
    pub groups: Vec<String>,
    /// The key's user, when the key speaks for another person.
    pub via: Option<String>,
    /// How the caller proved who they are; `None` in a service without accounts.
    pub door: Option<Door>,
    /// Whether the key belongs to an admin.
    pub admin: bool,
    /// The permissions of the key.
    pub may: May,
    /// Whether there are no accounts: then every caller is `local`, who satisfies the approvers of
    /// every rule.
    pub unaccounted: bool,
}

/// The permissions of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a word of `may` in the configuration"
)]
pub struct May {
    /// Every POST under `/v1`.
    pub create: bool,
    /// Every GET.
    pub read: bool,
    /// Every POST under `/resume`, and reading the requests that the user may decide.
    pub decide: bool,
    /// Proposing calls at gates, looking at them and reporting their outcomes.
    pub gate: bool,
}

impl May {
    /// All permissions: the default.
    pub const ALL: Self = Self {
        create: true,
        read: true,
        decide: true,
        gate: true,
    };
}
