//! The settings of the accounts.

use schemars::JsonSchema;
use serde::Deserialize;

use super::May;
use super::directory::{Account, hash};
use super::language::Language;
use super::person::Person;
use crate::secret::Secret;
use crate::task::user::UserIds;

/// The accounts. Without this section the service listens on loopback only and every caller is the
/// user `local`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Auth")]
pub struct Settings {
    /// When two user ids belong to one person: `folded` if they are equal in NFC and folded case,
    /// `exact` if they are equal byte by byte.
    pub user_ids: UserIds,
    /// The keys that callers send as `Authorization: Bearer <key>`.
    pub api_keys: Vec<ApiKey>,
    /// The people whom messages reach.
    pub people: Vec<PersonSettings>,
}

impl Settings {
    /// The people whom messages reach. A person without a tenant is of the keys' only tenant.
    #[must_use]
    pub fn people(&self) -> Vec<Person> {
        let usual = ApiKey::default().tenant;
        let only = self.api_keys.first().map_or(&usual, |key| &key.tenant);
        let people = self.people.iter().map(|person| Person {
            user: person.user.clone(),
            tenant: person.tenant.as_ref().unwrap_or(only).clone(),
            groups: person.groups.clone(),
            email: person.email.clone(),
            language: person.language,
        });
        people.collect()
    }
}

/// A person whom messages reach. A person without a key decides only by the links in them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Person", extend("required" = ["user"]))]
pub struct PersonSettings {
    /// The id of the person. A key of the same user is the person's.
    pub user: String,
    /// The tenant of the person. Default: the only tenant that has a key. Required if there are
    /// several.
    pub tenant: Option<String>,
    /// The groups of a person without a key. A person with a key is in the key's groups, and needs
    /// none here.
    pub groups: Vec<String>,
    /// The mail address, such as `bob@acme.com`. No other person of the tenant has it.
    pub email: Option<String>,
    /// The language of messages to the person.
    pub language: Language,
}

/// An API key and its user. Either `key` or `key_sha256` is set.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["user"], "oneOf" = [{"required": ["key"]}, {"required": ["key_sha256"]}]))]
pub struct ApiKey {
    /// The id of the key's user.
    pub user: String,
    /// The tenant of the user.
    pub tenant: String,
    /// The groups of the user. All keys of a user name the same groups.
    pub groups: Vec<String>,
    /// The key: at least 16 visible ASCII characters, 8 of them different.
    pub key: Option<Secret<String>>,
    /// The SHA-256 of the key as 64 hex digits, instead of `key`.
    pub key_sha256: Option<Secret<String>>,
    /// Whether the key may speak for other people, with the headers `Holdpoint-User` and
    /// `Holdpoint-Groups`.
    pub act_as: bool,
    /// Whether the key sees all tasks of its tenant, and may cancel and retry them.
    pub admin: bool,
    /// The permissions of the key. `create` includes `gate`. A key that may `decide` is refused at
    /// gates, so that no agent approves its own calls: an agent has a key of its own.
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

/// A permission of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// Every POST under `/v1`.
    Create,
    /// Every GET.
    Read,
    /// Every POST under `/resume`, and reading the requests that the user may decide.
    Decide,
    /// Every operation at gates. `create` includes it; a key that may `decide` may not use it.
    Gate,
}

impl ApiKey {
    /// The account; `None` unless the key has exactly one of `key` and a valid `key_sha256`.
    #[must_use]
    pub fn account(&self) -> Option<Account> {
        let key_sha256 = match (&self.key, &self.key_sha256) {
            (Some(text), None) => hash(text.reveal()),
            (None, Some(hex)) => parse_hex(hex.reveal())?,
            (_, _) => return None,
        };
        Some(Account {
            user: self.user.clone(),
            tenant: self.tenant.clone(),
            groups: self.groups.clone(),
            act_as: self.act_as,
            admin: self.admin,
            may: self.permissions(),
            key_sha256,
        })
    }

    /// The permissions of the key. A key that may create tasks may also propose calls at gates.
    #[must_use]
    pub(crate) fn permissions(&self) -> May {
        let may = |permission: Use| self.may.contains(&permission);
        May {
            create: may(Use::Create),
            read: may(Use::Read),
            decide: may(Use::Decide),
            gate: may(Use::Gate) || may(Use::Create),
        }
    }
}

/// Parses 32 bytes in hex.
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
