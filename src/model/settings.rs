//! Declares and checks the settings of a model, and creates the client that the settings describe.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use super::anthropic::Messages;
use super::endpoint::Endpoint;
use super::openai::ChatCompletions;
use super::openai_responses::Responses;
use super::protocol::Protocol;
use super::scripted::Scripted;
use super::{ModelClient, ModelError};
use crate::net::Net;
use crate::secret::{Redactor, Secret};
use crate::task::units::duration_text;
use crate::world::{Clock, Mistakes, earlier_key_in_other_case};

/// The protocol of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// The Chat Completions API of `OpenAI`, or of a compatible endpoint at `base_url`.
    #[default]
    Openai,
    /// The Responses API of `OpenAI`, or of a compatible endpoint at `base_url`.
    OpenaiResponses,
    /// The Messages API of Anthropic, or of a compatible endpoint at `base_url`.
    Anthropic,
    /// Answers from the rules of a file, for demonstrations and tests.
    Scripted,
}

/// A language model, and how the service calls it.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Model", extend("required" = ["provider"]))]
pub struct Settings {
    /// The name in the configuration, which errors and metrics use.
    #[serde(skip)]
    pub name: String,
    /// The protocol by which the service calls the model.
    pub provider: Provider,
    /// The base URL of the endpoint, such as `http://127.0.0.1:11434/v1`. Default: the provider's
    /// own, `https://api.openai.com/v1` or `https://api.anthropic.com`.
    pub base_url: Option<String>,
    /// The provider's name for the model. Required unless the provider is `scripted`.
    pub model: Option<String>,
    /// The key, sent in the header that the provider expects. A local model needs none. An empty
    /// key counts as none.
    pub api_key: Option<Secret<String>>,
    /// How long one attempt waits for the answer to begin, and then for each next piece. The whole
    /// answer may take ten times as long.
    #[serde(with = "duration_text")]
    #[schemars(with = "duration_text::Text")]
    pub timeout: Duration,
    /// The number of further attempts after status 429 or 5xx, a connection error, or an incomplete
    /// answer.
    pub retries: u32,
    /// The headers that are added to each request. A configured header replaces the provider's own
    /// header of the same name.
    pub headers: BTreeMap<String, Secret<String>>,
    /// The parameters that are added to the URL of each request.
    pub query: BTreeMap<String, Secret<String>>,
    /// The members that are merged into the body of each request. `tools`, `model` and `stream` are
    /// not allowed. With `openai`, `messages` and `stream_options` are not allowed either; with
    /// `anthropic`, `messages` and `system`; with `openai_responses`, `input`, `instructions`,
    /// `store` and `include`.
    pub body: Map<String, Value>,
    /// The script of a `scripted` model: `builtin:refunds`, or a file. A relative path is relative
    /// to the configuration file.
    pub script: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: String::new(),
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

/// The members that the `body` of a scripted model may not name. The provider `openai` reserves all
/// of them, so a `body` stays valid when an operator changes the provider from `openai` to
/// `scripted`.
const RESERVED_MEMBERS_SCRIPTED: [&str; 4] = ["messages", "tools", "model", "stream"];

/// Adds every mistake in a model's settings to `mistakes`, and the mistakes that are found when its
/// script is read. No mistake quotes the value of a key, header or query parameter.
pub fn check(settings: &Settings, clock: &Arc<dyn Clock>, mistakes: &mut Mistakes) {
    let place = ["models", settings.name.as_str()];
    match settings.provider {
        Provider::Openai => settings.check::<ChatCompletions>(mistakes, &place),
        Provider::OpenaiResponses => settings.check::<Responses>(mistakes, &place),
        Provider::Anthropic => settings.check::<Messages>(mistakes, &place),
        Provider::Scripted => {
            settings.check_timeout(mistakes, &place);
            settings.check_request(&RESERVED_MEMBERS_SCRIPTED, mistakes, &place);
            let _ = settings.scripted(clock, mistakes);
        }
    }
}

/// Creates the client of a model. Returns `None` if the model's script has mistakes, which are then
/// added to `mistakes`.
///
/// # Errors
/// Fails if the `base_url` in the settings is invalid, or if the key or a configured header is
/// not valid as a header.
pub fn client(
    settings: &Settings,
    net: &Net,
    clock: &Arc<dyn Clock>,
    redactor: &Arc<Redactor>,
    mistakes: &mut Mistakes,
) -> Result<Option<Arc<dyn ModelClient>>, ModelError> {
    Ok(match settings.provider {
        Provider::Openai => Some(endpoint::<ChatCompletions>(settings, net, clock, redactor)?),
        Provider::OpenaiResponses => Some(endpoint::<Responses>(settings, net, clock, redactor)?),
        Provider::Anthropic => Some(endpoint::<Messages>(settings, net, clock, redactor)?),
        Provider::Scripted => settings
            .scripted(clock, mistakes)
            .map(|scripted| -> Arc<dyn ModelClient> { Arc::new(scripted) }),
    })
}

fn endpoint<P: Protocol>(
    settings: &Settings,
    net: &Net,
    clock: &Arc<dyn Clock>,
    redactor: &Arc<Redactor>,
) -> Result<Arc<dyn ModelClient>, ModelError> {
    let (clock, redactor) = (Arc::clone(clock), Arc::clone(redactor));
    let endpoint = Endpoint::<P>::new(settings.clone(), net.clone(), clock, redactor)?;
    Ok(Arc::new(endpoint))
}

impl Settings {
    fn scripted(&self, clock: &Arc<dyn Clock>, mistakes: &mut Mistakes) -> Option<Scripted> {
        let script = self.script.as_deref().unwrap_or_default();
        Scripted::load(&self.name, script, Arc::clone(clock), mistakes)
    }

    /// Adds every mistake in the settings to `mistakes`. No mistake quotes the value of a key,
    /// header or query parameter.
    pub(super) fn check<P: Protocol>(&self, mistakes: &mut Mistakes, place: &[&str]) {
        let mut add = |keys: &[&str], detail: String| mistakes.add(&[place, keys].concat(), detail);
        if let Err(detail) = self.address::<P>() {
            add(&["base_url"], detail.to_owned());
        }
        if self.model.as_deref().unwrap_or_default().trim().is_empty() {
            add(
                &["model"],
                format!(
                    "model `{}` needs `model`, the provider's name for it",
                    self.name
                ),
            );
        }
        self.check_timeout(mistakes, place);
        if self.key::<P>().is_some_and(|key| key.is_err()) {
            let detail = "the key has a character that a header cannot carry";
            mistakes.add(&[place, &["api_key"]].concat(), detail);
        }
        self.check_request(P::RESERVED_MEMBERS, mistakes, place);
    }

    fn check_timeout(&self, mistakes: &mut Mistakes, place: &[&str]) {
        if self.timeout.is_zero() {
            mistakes.add(&[place, &["timeout"]].concat(), "expected more than 0");
        }
    }

    /// Checks the headers and the body. `reserved` lists the members that the body may not name.
    fn check_request(&self, reserved: &[&str], mistakes: &mut Mistakes, place: &[&str]) {
        let mut add = |keys: &[&str], detail: String| mistakes.add(&[place, keys].concat(), detail);
        for (name, value) in &self.headers {
            if let Err(detail) = parse_header(name, value) {
                add(&["headers", name], detail);
            } else if earlier_key_in_other_case(&self.headers, name).is_some() {
                add(&["headers", name], format!("`{name}` is there twice"));
            }
        }
        for name in reserved {
            if self.body.contains_key(*name) {
                add(
                    &["body", name],
                    format!("a model's `body` may not name `{name}`: the service writes it"),
                );
            }
        }
    }

    pub(super) fn address<P: Protocol>(&self) -> Result<Url, &'static str> {
        let mut url = Url::parse(self.base_url.as_deref().unwrap_or(P::BASE_URL))
            .map_err(|_| "base_url is not a URL")?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err("base_url must be an http or https URL");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("base_url may not hold a user or a password: use api_key or headers");
        }
        if url.fragment().is_some() {
            return Err("base_url may not have a fragment");
        }
        let mut base = url.path().trim_end_matches('/');
        if P::PATH.starts_with("/v1/") {
            base = base.strip_suffix("/v1").unwrap_or(base);
        }
        let path = format!("{base}{}", P::PATH);
        url.set_path(&path);
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(
                self.query
                    .iter()
                    .map(|(name, value)| (name, value.reveal())),
            );
        }
        Ok(url)
    }

    /// Returns the header with the key; `None` without a key.
    fn key<P: Protocol>(
        &self,
    ) -> Option<Result<(HeaderName, HeaderValue), http::header::InvalidHeaderValue>> {
        let key = self.api_key.as_ref().map(Secret::reveal);
        let (name, value) = P::key_header(key.filter(|key| !key.trim().is_empty())?);
        Some(HeaderValue::from_str(&value).map(|value| (name, value)))
    }

    /// Returns the headers of each request. Returns `None` if the key or a configured header is not
    /// valid as a header.
    pub(super) fn header_map<P: Protocol>(&self) -> Option<HeaderMap> {
        let mut map = HeaderMap::new();
        map.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        map.insert(
            ACCEPT,
            HeaderValue::from_static("text/event-stream, application/json"),
        );
        for (name, value) in P::HEADERS {
            map.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        if let Some(key) = self.key::<P>() {
            let (name, value) = key.ok()?;
            map.insert(name, value);
        }
        for (name, value) in &self.headers {
            let (name, value) = parse_header(name, value).ok()?;
            map.insert(name, value);
        }
        map.values_mut().for_each(|value| value.set_sensitive(true));
        Some(map)
    }
}

fn parse_header(name: &str, value: &Secret<String>) -> Result<(HeaderName, HeaderValue), String> {
    let header_name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{name}` cannot be the name of a header"))?;
    if header_name == CONTENT_LENGTH || header_name == TRANSFER_ENCODING {
        return Err(format!("the header `{name}` is set by the HTTP client"));
    }
    let value = HeaderValue::from_str(value.reveal()).map_err(|_| {
        format!("the value of the header `{name}` has a character that a header cannot carry")
    })?;
    Ok((header_name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_key_is_sent_in_no_header() {
        for (key, is_sent) in [("", false), (" ", false), ("sk-1", true)] {
            let settings = Settings {
                api_key: Some(Secret::new(key.to_owned())),
                ..Settings::default()
            };
            for headers in [
                settings.header_map::<ChatCompletions>(),
                settings.header_map::<Responses>(),
                settings.header_map::<Messages>(),
            ] {
                let headers = headers.unwrap();
                let mut names = ["authorization", "x-api-key"].iter();
                let has_key = names.any(|name| headers.contains_key(*name));
                assert_eq!(has_key, is_sent, "{key:?}");
            }
        }
    }
}
