//! The typed settings of the service itself: listeners, storage, accounts, models. `parts.rs` has
//! those of tools and agents. The doc comments are the descriptions in the file's JSON Schema.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::units::duration_text;
use crate::secret::Secret;
use crate::task::user::UserIds;

/// Where and how the service listens.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// Address and port.
    pub listen: String,
    /// What links begin with; default `http://<listen>`. May carry a path, which the proxy strips.
    /// Needed when `listen` is not on loopback.
    pub public_url: Option<String>,
    /// Your own page for a request instead of ours: `https://app.acme.com/approvals/{request_id}`.
    pub request_url: Option<String>,
    /// Frontends on other origins, each `https://host[:port]`.
    pub cors_origins: Vec<String>,
    /// How long a POST waits unless it says so; `300s` at most.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub wait: Duration,
    /// Tasks that run at once in this process.
    pub max_running: u32,
    /// Connections at once; always fewer than the process may have descriptors, less what the
    /// database and tools need.
    pub max_connections: u32,
    /// Address and port of `/metrics`, which is then there only.
    pub metrics_listen: Option<String>,
    /// Event streams at once in this process.
    pub max_streams: u32,
    /// Event streams of one caller.
    pub max_streams_per_caller: u32,
    /// How long an event stream lives before it is ended and asked for again.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub stream_life: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            public_url: None,
            request_url: None,
            cors_origins: Vec::new(),
            wait: Duration::from_secs(10),
            max_running: 64,
            max_connections: 1024,
            metrics_listen: None,
            max_streams: 1000,
            max_streams_per_caller: 20,
            stream_life: Duration::from_hours(1),
        }
    }
}

/// The database.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DatabaseSettings {
    /// `sqlite://<file>` or `postgres://user@host/db`; default `sqlite://holdpoint.db`.
    pub url: Secret<String>,
    /// Connections at most.
    pub max_connections: u32,
    /// How long to wait for a connection.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub acquire_timeout: Duration,
    /// How long one statement may take.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub statement_timeout: Duration,
    /// Whether migrations are applied at start.
    pub migrate: bool,
}

pub const DEFAULT_DATABASE: &str = "sqlite://holdpoint.db";

impl Default for DatabaseSettings {
    fn default() -> Self {
        Self {
            url: Secret::new(DEFAULT_DATABASE.to_owned()),
            max_connections: 32,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(10),
            migrate: true,
        }
    }
}

/// Who may come in. Without it: loopback only, everybody is `local`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuthSettings {
    /// When two user ids are one person's: `folded` (equal in NFC and folded case), or `exact`.
    pub user_ids: UserIds,
    /// The keys.
    pub api_keys: Vec<ApiKey>,
}

/// One key: `Authorization: Bearer <key>`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["user"], "oneOf" = [{"required": ["key"]}, {"required": ["key_sha256"]}]))]
pub struct ApiKey {
    /// Whose it is.
    pub user: String,
    /// The user's tenant.
    pub tenant: String,
    /// The user's groups; the same user twice has the same ones.
    pub groups: Vec<String>,
    /// The key, at least 16 characters, 8 of them different.
    pub key: Option<Secret<String>>,
    /// Instead of `key`: its SHA-256, in hex.
    pub key_sha256: Option<Secret<String>>,
    /// Whether it may speak for people, with `Holdpoint-User` and `Holdpoint-Groups`.
    pub act_as: bool,
    /// Whether it sees the tenant's tasks, and may cancel and retry them.
    pub admin: bool,
    /// What it may be used for; default: all.
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
            may: vec![Use::Create, Use::Read, Use::Decide],
        }
    }
}

/// What a key may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// Every POST under `/v1`.
    Create,
    /// Every GET.
    Read,
    /// Every POST under `/resume`, and reading what one may decide.
    Decide,
}

/// What seals credentials at rest.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SecretsSettings {
    /// The first one writes, all of them read.
    pub keys: Vec<SealingKey>,
}

/// One sealing key.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["id", "key"]))]
pub struct SealingKey {
    /// Its name, kept beside what it sealed.
    pub id: String,
    /// 32 bytes, base64.
    pub key: Secret<String>,
}

impl Default for SealingKey {
    fn default() -> Self {
        Self {
            id: String::new(),
            key: Secret::new(String::new()),
        }
    }
}

impl SealingKey {
    /// The key itself; `None` unless it is 32 bytes in base64.
    #[must_use]
    pub fn bytes(&self) -> Option<Secret<[u8; 32]>> {
        let bytes = BASE64_STANDARD.decode(self.key.reveal().trim()).ok()?;
        bytes.try_into().ok().map(Secret::new)
    }
}

/// A login that `request_credentials` may ask for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CredentialSettings {
    /// What the person is told it is for.
    pub description: String,
    /// What is asked for.
    pub fields: BTreeMap<String, CredentialField>,
    /// How long it is kept, at most; without it, until the task ends.
    #[serde(with = "optional_duration")]
    #[schemars(with = "Option<duration_text::Text>")]
    pub expires_in: Option<Duration>,
}

/// One field of a login.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CredentialField {
    /// JSON Schema `format` of the text: `email`, `uri`, `date`.
    pub format: Option<String>,
    /// What the person is told it is.
    pub description: Option<String>,
    /// Whether its value is searched for in what comes back, and no call may hold it: `true` unless
    /// `format` is `email`.
    pub secret: Option<bool>,
}

impl CredentialField {
    /// Whether the value is kept from view.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.secret
            .unwrap_or(self.format.as_deref() != Some("email"))
    }
}

/// Which protocol a model speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// Chat Completions, at any `base_url`.
    #[default]
    Openai,
    /// Messages.
    Anthropic,
    /// Rules in a file instead of a model.
    Scripted,
}

/// A model.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["provider"]))]
pub struct ModelSettings {
    /// Which protocol it speaks.
    pub provider: Provider,
    /// Where; default the provider's own address. Filled in when the file was read.
    pub base_url: Option<String>,
    /// The model's name there.
    pub model: Option<String>,
    /// Sent as the provider wants it; a local model needs none.
    pub api_key: Option<Secret<String>>,
    /// How long one attempt waits until its answer begins, and then for each next piece; a whole
    /// answer may take ten times as long.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub timeout: Duration,
    /// How often to try again on 429, 5xx and connection errors.
    pub retries: u32,
    /// Added to each request.
    pub headers: BTreeMap<String, Secret<String>>,
    /// Added to each request's URL.
    pub query: BTreeMap<String, Secret<String>>,
    /// Merged into each request; may not name messages, tools, model, stream, nor `stream_options`
    /// (`openai`), nor system where that is a member of its own (`anthropic`).
    pub body: Map<String, Value>,
    /// Of `scripted`: a file, or `builtin:refunds`. A relative path is the file's, and made
    /// absolute or relative to the working directory when the file was read.
    pub script: Option<String>,
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self {
            provider: Provider::default(),
            base_url: None,
            model: None,
            api_key: None,
            timeout: Duration::from_mins(1),
            retries: 4,
            headers: BTreeMap::new(),
            query: BTreeMap::new(),
            body: Map::new(),
            script: None,
        }
    }
}

/// A duration that may be left out or `null`.
pub mod optional_duration {
    use super::{Duration, duration_text};
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Wrap(#[serde(with = "duration_text")] Duration);

    /// # Errors
    /// When the text is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Wrap>::deserialize(from)?.map(|Wrap(duration)| duration))
    }

    /// # Errors
    /// When the writer fails.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => duration_text::serialize(duration, to),
            None => to.serialize_none(),
        }
    }
}
