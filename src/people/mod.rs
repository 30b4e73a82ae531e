//! Authentication and authorization: identifies the caller of an HTTP request, and checks the
//! caller's permissions.

pub(crate) mod authenticator;
pub mod authorization;
pub mod directory;
pub mod language;
pub mod link;
pub mod person;
pub(crate) mod session;
pub(crate) mod settings;

use crate::task::decision::Door;
use crate::task::user::UserId;

/// The user id of every caller in a service without accounts.
pub const LOCAL_USER: &str = "local";

/// The authenticated sender of an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user for whom the operation is done: the user of the key or session, or the person of
    /// the link or chat. A request with an `act_as` key may name another user.
    pub user_id: UserId,
    /// The tenant of the key or of the person. All data of other tenants is hidden from the caller.
    pub tenant: String,
    /// The user's groups: from the request if the key speaks for another person, otherwise from the
    /// configuration.
    pub groups: Vec<String>,
    /// The key's user if the key speaks for another person, otherwise `None`.
    pub via: Option<String>,
    /// The kind of proof of the caller's identity: key, session, link or chat. `None` in a service
    /// without accounts.
    pub door: Option<Door>,
    /// Whether the caller sees all tasks of the tenant, and may cancel and retry them.
    pub admin: bool,
    /// The operations that the key, session or link permits.
    pub permissions: Permissions,
    /// Whether the service has no accounts. In such a service, every caller is `local`, and counts
    /// as an approver under every rule.
    pub without_accounts: bool,
}

/// The kinds of operation that a key, session or link permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a word of `may` in the configuration"
)]
pub struct Permissions {
    /// Permits every POST under `/v1`, except at gates. A POST about deliveries needs
    /// [`authorization::may_administer`] in addition.
    pub create: bool,
    /// Permits every GET, except of gate calls. A GET of deliveries needs
    /// [`authorization::may_administer`] in addition.
    pub read: bool,
    /// Permits every POST under `/resume`, ending standing decisions, and reading the requests that
    /// the user may decide.
    pub decide: bool,
    /// Permits reading the user's calls at gates. Without `decide`, also permits proposing calls
    /// and reporting their outcomes. In the configuration, `create` includes this permission.
    pub gate: bool,
}

impl Permissions {
    /// All permissions: the default of a key.
    pub const ALL: Self = Self {
        create: true,
        read: true,
        decide: true,
        gate: true,
    };
}
