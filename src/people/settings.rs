//! The settings of accounts and of people who get messages.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Permissions;
use super::directory::{Account, hash_key};
use super::language::Language;
use super::person::Person;
use crate::secret::Secret;
use crate::task::user::UserIds;

/// The accounts. Without this section the service listens on loopback only, and every caller is the
/// user `local`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Auth")]
pub struct Settings {
    /// The comparison that tells whether two user ids belong to one person: `folded` if they are
    /// equal in NFC and folded case, `exact` if they are equal byte by byte.
    pub user_ids: UserIds,
    /// The keys that callers send as `Authorization: Bearer <key>`.
    pub api_keys: Vec<ApiKey>,
    /// The people whom messages reach.
    pub people: Vec<PersonSettings>,
}

impl Settings {
    /// Returns the people who get messages. A person without a tenant gets the tenant of the first
    /// key, or the default tenant if there are no keys.
    #[must_use]
    pub fn people(&self) -> Vec<Person> {
        let default_tenant = ApiKey::default().tenant;
        let common_tenant = self
            .api_keys
            .first()
            .map_or(&default_tenant, |key| &key.tenant);
        let people = self.people.iter().map(|person| Person {
            user: person.user.clone(),
            tenant: person.tenant.as_ref().unwrap_or(common_tenant).clone(),
            groups: person.groups.clone(),
            email: person.email.clone(),
            language: person.language,
        });
        people.collect()
    }
}

/// A person whom messages reach. Without a key of their own, the person decides only by the links
/// in messages, or through a key with `act_as`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Person", extend("required" = ["user"]))]
pub struct PersonSettings {
    /// The id of the person. Keys of the same `user` belong to this person.
    pub user: String,
    /// The tenant of the person. Default: the tenant of all keys. Required if the keys have several
    /// tenants.
    pub tenant: Option<String>,
    /// The groups of a person without a key. A person with a key gets the groups of the key
    /// instead.
    pub groups: Vec<String>,
    /// The mail address, such as `bob@acme.com`. It must be unique in the tenant.
    pub email: Option<String>,
    /// The language of messages to the person.
    pub language: Language,
}

/// An API key and its user. Exactly one of `key` and `key_sha256` must be set.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["user"], "oneOf" = [{"required": ["key"]}, {"required": ["key_sha256"]}]))]
pub struct ApiKey {
    /// The id of the user to whom the key belongs.
    pub user: String,
    /// The tenant of the user. A key sees nothing of other tenants.
    pub tenant: String,
    /// The groups of the user. All keys of a user must name the same groups.
    pub groups: Vec<String>,
    /// The key: at least 16 visible ASCII characters, 8 of them different.
    pub key: Option<Secret<String>>,
    /// The SHA-256 of the key as 64 hex digits, in place of `key`.
    pub key_sha256: Option<Secret<String>>,
    /// Whether the key may speak for other people, with the headers `Holdpoint-User` and
    /// `Holdpoint-Groups`.
    pub act_as: bool,
    /// Whether the key sees all tasks, standing decisions and deliveries of its tenant, may cancel
    /// and retry the tasks, end the standing decisions and send the deliveries again, each as far
    /// as `may` permits. An admin decides only the requests that the rules let them decide.
    pub admin: bool,
    /// The permissions of the key. `create`: every POST under `/v1` except at gates; includes
    /// `gate`. `read`: every GET except of calls at gates. `decide`: every POST under `/resume`,
    /// ending standing decisions, and reading the requests that the user may decide. `gate`:
    /// proposing calls at gates, reporting their outcomes and reading them; a key with `decide` can
    /// only read them, so that no agent approves its own calls: an agent needs a key without
    /// `decide`. A permission gives no right to the tasks and requests of other users: that needs a
    /// rule's `approvers`, or `admin`. With `act_as`, the permissions and `admin` hold for every
    /// user for whom the key speaks.
    pub may: Vec<Use>,
}

impl Default for ApiKey {
    fn default() -> Self {
        Self {
            user: String::new(),
            tenant: "default".to_owned(),
            groups: Vec::new(),
            key: None,
            key_sha256: None,
            act_as: false,
            admin: false,
            may: vec![Use::Create, Use::Read, Use::Decide, Use::Gate],
        }
    }
}

/// A kind of operation that a key permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// Permits every POST under `/v1`, except at gates. Includes `gate`.
    Create,
    /// Permits every GET, except of gate calls.
    Read,
    /// Permits every POST under `/resume`, ending standing decisions, and reading the requests that
    /// the user may decide.
    Decide,
    /// Permits every operation at gates. `create` includes `gate`. A key that also has `decide` can
    /// only look at calls: it can neither propose calls nor report outcomes.
    Gate,
}

impl ApiKey {
    /// Returns the account of the key. `None` if `key` and `key_sha256` are both set or both
    /// missing, or if `key_sha256` is malformed.
    #[must_use]
    pub fn account(&self) -> Option<Account> {
        let key_sha256 = match (&self.key, &self.key_sha256) {
            (Some(text), None) => hash_key(text.reveal()),
            (None, Some(hex)) => parse_hex(hex.reveal())?,
            (_, _) => return None,
        };
        Some(Account {
            user: self.user.clone(),
            tenant: self.tenant.clone(),
            groups: self.groups.clone(),
            act_as: self.act_as,
            admin: self.admin,
            permissions: self.permissions(),
            key_sha256,
        })
    }

    #[must_use]
    pub(crate) fn permissions(&self) -> Permissions {
        let may = |permission: Use| self.may.contains(&permission);
        Permissions {
            create: may(Use::Create),
            read: may(Use::Read),
            decide: may(Use::Decide),
            gate: may(Use::Gate) || may(Use::Create),
        }
    }
}

#[must_use]
pub(crate) fn parse_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(hash)
}
