//! The settings of one MCP server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use globset::Glob;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use url::Url;

use super::stdio::ServerCommand;
use crate::net::plain_http_url;
use crate::secret::Secret;
use crate::task::tool_spec::Effect;
use crate::task::units::duration_text;
use crate::tool::headers::Headers;
use crate::tool::shell::Env;
use crate::world::Mistakes;

const MAX_TIMEOUT: Duration = Duration::from_mins(10);

/// An MCP server whose tools agents may call. The server speaks Streamable HTTP (`url`), or is a
/// child process that speaks over its standard input and output (`command`).
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "McpServer", extend("oneOf" = ["url", "command"].map(|key| json!({"required": [key]}))))]
pub struct Settings {
    /// The address of a server that speaks Streamable HTTP.
    pub url: Option<String>,
    /// The headers of each request to `url`. `{{credential:NAME.FIELD}}` stands for a field of a
    /// credential of the task's user.
    pub headers: BTreeMap<String, Secret<String>>,
    /// The OAuth client credentials with which the service fetches a token for `url`. Not allowed
    /// together with an `Authorization` header in `headers`.
    pub oauth: Option<OAuth>,
    /// The program and its arguments, for a server that runs as a child process. The program is
    /// started without a shell.
    pub command: Vec<Secret<String>>,
    /// The directory in which `command` runs. A relative path is relative to the configuration
    /// file. Default: `.`.
    pub working_dir: Option<String>,
    /// The whole environment of `command`: a list of variables that the service passes on, or a map
    /// of names and values. Default: no variable.
    pub env: Env,
    /// How long one call may take; at most `10m`.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub timeout: Duration,
    /// The server's tools that this configuration uses, by names and globs. Default: all tools that
    /// the lock file has.
    #[schemars(with = "Vec<String>")]
    pub tools: Option<Vec<String>>,
    /// The prefix of the tools' names in this configuration. Default: the server's name and `_`.
    pub prefix: Option<String>,
    /// The effect of repeating a call: a map from names and globs of the server's tools to effects.
    /// An exact name takes precedence over globs; if several globs match, the strictest effect
    /// counts. Default: `once`.
    pub effects: BTreeMap<String, Effect>,
    /// Whether the server's own annotations count as effects: `readOnlyHint` as `read_only`, else
    /// `idempotentHint` as `idempotent`.
    pub trust_annotations: bool,
    /// How a call is treated if the server has changed the tool's definition since the review.
    /// Default: `hold`.
    pub on_change: OnChange,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: None,
            headers: BTreeMap::new(),
            oauth: None,
            command: Vec::new(),
            working_dir: None,
            env: Env::default(),
            timeout: Duration::from_secs(30),
            tools: None,
            prefix: None,
            effects: BTreeMap::new(),
            trust_annotations: false,
            on_change: OnChange::default(),
        }
    }
}

/// How a call is treated if the server has changed the tool's definition since the review.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "McpOnChange")]
pub enum OnChange {
    /// A person must approve each call.
    #[default]
    Hold,
    /// Each call is refused.
    Deny,
}

/// OAuth 2.0 client credentials (RFC 6749, section 4.4), sent as `client_secret_basic`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "McpOAuth", extend("required" = ["token_url", "client_id", "client_secret"]))]
pub struct OAuth {
    /// The address of the token endpoint.
    pub token_url: String,
    /// The client's id at the authorization server.
    pub client_id: String,
    /// The client's secret at the authorization server.
    pub client_secret: Secret<String>,
    /// The scopes that the token request asks for. If empty, the request names no scope.
    pub scopes: Vec<String>,
    /// The resource indicator (RFC 8707) in the token request. Default: none.
    pub resource: Option<String>,
}

/// The transport to a server, with its checked settings.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    /// Streamable HTTP.
    Http {
        url: Url,
        headers: Headers,
        oauth: Option<Box<OAuth>>,
    },
    /// A child process that speaks over its standard input and output.
    Stdio(ServerCommand),
}

impl Transport {
    /// Returns the names of the credentials that the headers refer to, sorted and without
    /// duplicates.
    pub(crate) fn credential_names(&self) -> Vec<String> {
        match self {
            Self::Http { headers, .. } => {
                let needs: BTreeSet<&str> = headers.credential_names().collect();
                needs.into_iter().map(str::to_owned).collect()
            }
            Self::Stdio(_) => Vec::new(),
        }
    }
}

impl Settings {
    /// Checks the settings. Returns the transport, and the mistakes with the paths of their keys.
    /// If there is a mistake, the transport is `None`.
    pub(crate) fn checked(&self) -> (Option<Transport>, Mistakes) {
        let mut mistakes = Mistakes::default();
        if self.timeout.is_zero() || self.timeout > MAX_TIMEOUT {
            mistakes.add(&["timeout"], "must be more than 0 and at most 10m");
        }
        for (key, patterns) in [
            ("tools", self.tools.iter().flatten().collect::<Vec<_>>()),
            ("effects", self.effects.keys().collect()),
        ] {
            if patterns.iter().any(|pattern| Glob::new(pattern).is_err()) {
                mistakes.add(&[key], "has an entry that is neither a name nor a glob");
            }
        }
        let transport = match (&self.url, self.command.as_slice()) {
            (Some(url), []) => self.http(url, &mut mistakes),
            (None, [_, ..]) => self.stdio(&mut mistakes),
            (None, []) => {
                mistakes.add(
                    &["url"],
                    "or `command` is missing: it says how to reach the server",
                );
                None
            }
            (Some(_), [_, ..]) => {
                mistakes.add(&["command"], "and `url` exclude each other");
                None
            }
        };
        (transport.filter(|_| mistakes.is_empty()), mistakes)
    }

    fn http(&self, url: &str, mistakes: &mut Mistakes) -> Option<Transport> {
        let headers = Headers::read(&self.headers, mistakes);
        for (key, set) in [
            ("working_dir", self.working_dir.is_some()),
            ("env", !self.env.0.is_empty()),
        ] {
            if set {
                mistakes.add(&[key], "belongs to a `command`, not to a `url`");
            }
        }
        if let Some(oauth) = &self.oauth {
            if !oauth.token_url.is_empty() && plain_http_url(&oauth.token_url).is_none() {
                mistakes.add(&["oauth", "token_url"], INVALID_URL);
            }
            let authorizes = |name: &String| name.eq_ignore_ascii_case("authorization");
            if self.headers.keys().any(authorizes) {
                mistakes.add(
                    &["oauth"],
                    "and a header `Authorization` exclude each other",
                );
            }
        }
        let Some(url) = plain_http_url(url) else {
            mistakes.add(&["url"], INVALID_URL);
            return None;
        };
        let oauth = self.oauth.clone().map(Box::new);
        Some(Transport::Http {
            url,
            headers,
            oauth,
        })
    }

    fn stdio(&self, mistakes: &mut Mistakes) -> Option<Transport> {
        self.env.check(mistakes);
        for (key, set) in [
            ("headers", !self.headers.is_empty()),
            ("oauth", self.oauth.is_some()),
        ] {
            if set {
                mistakes.add(&[key], "belongs to a `url`, not to a `command`");
            }
        }
        let program = self.command.first()?;
        let unfit = |text: &Secret<String>| text.reveal().contains('\0');
        if program.reveal().is_empty() || self.command.iter().any(unfit) {
            mistakes.add(&["command"], "must be a program and its arguments");
        }
        let working_dir = self.working_dir.clone().unwrap_or_else(|| ".".to_owned());
        if working_dir.is_empty() || working_dir.contains('\0') {
            mistakes.add(&["working_dir"], "must be a directory");
        }
        let values = self.env.0.iter();
        let environment: BTreeMap<_, _> = values
            .filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
            .collect();
        let reference = |value: &Secret<String>| value.reveal().contains("{{credential:");
        if environment.values().chain(&self.command).any(reference) {
            mistakes.add(
                &["command"],
                "serves all users: neither it nor its `env` can hold a person's credential",
            );
        }
        let command = (self.command.clone(), working_dir, environment);
        Some(Transport::Stdio(command))
    }

    /// Returns the name of a server's tool in this configuration: the prefix and the name, with `_`
    /// for each `.`, because models accept no `.` in a name.
    #[must_use]
    pub fn exposed_name(&self, server: &str, tool: &str) -> String {
        let prefix = self.prefix.clone().unwrap_or_else(|| format!("{server}_"));
        format!("{prefix}{tool}").replace('.', "_")
    }

    /// Returns whether `tools` selects this tool of the server.
    #[must_use]
    pub fn selects(&self, tool: &str) -> bool {
        let matches = |pattern: &String| pattern == tool || matches_glob(pattern, tool);
        self.tools
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(matches))
    }

    /// Returns the effect that `effects` gives to this tool; `None` if no entry matches.
    #[must_use]
    pub fn effect(&self, tool: &str) -> Option<Effect> {
        if let Some(effect) = self.effects.get(tool) {
            return Some(*effect);
        }
        let globs = self.effects.iter();
        let effects = globs.filter(|(pattern, _)| matches_glob(pattern, tool));
        effects.map(|(_, effect)| *effect).max()
    }
}

const INVALID_URL: &str = "must be an address such as `https://mcp.acme.com/mcp`";

/// Returns whether a glob matches a name; an invalid glob matches no name.
#[must_use]
pub(crate) fn matches_glob(pattern: &str, name: &str) -> bool {
    let matcher = Glob::new(pattern).ok().map(|glob| glob.compile_matcher());
    matcher.is_some_and(|matcher| matcher.is_match(name))
}
