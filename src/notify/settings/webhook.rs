//! The settings of a webhook, and the mistakes in them.

use std::collections::BTreeMap;

use reqwest::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use crate::notify::sign;
use crate::secret::Secret;
use crate::world::Mistakes;

/// Headers that an operator may not set: our own, and those of the connection.
const OURS: [&str; 8] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];
/// The prefix of the signature's headers.
const OURS_PREFIX: &str = "webhook-";

/// A receiver of Standard Webhooks.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Webhook", extend("required" = ["url", "secrets"]))]
pub struct Webhook {
    /// The URL that messages are posted to.
    pub url: Secret<String>,
    /// The secrets that sign each message, the newest first: `whsec_` and the base64 of 24 bytes or
    /// more. While there are several, a receiver may check any of them.
    pub secrets: Vec<Secret<String>>,
    /// How much a message says: `thin` names what happened, `full` has the event's whole data, with
    /// arguments and texts.
    pub payload: Payload,
    /// Whether a request's brief has the tools' summaries, which show arguments.
    pub summaries: bool,
    /// Further headers of each message.
    pub headers: BTreeMap<String, Secret<String>>,
}

impl Default for Webhook {
    fn default() -> Self {
        Self {
            url: Secret::new(String::new()),
            secrets: Vec::new(),
            payload: Payload::default(),
            summaries: false,
            headers: BTreeMap::new(),
        }
    }
}

/// How much a message says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// Ids, names and statuses.
    #[default]
    Thin,
    /// The event's data, as its stream has it.
    Full,
}

impl Webhook {
    pub(super) fn check(&self, place: &[&str], mistakes: &mut Mistakes) {
        let url = self.url.reveal();
        if !url.is_empty() && address(url).is_none() {
            let detail = "expected an address such as `https://host/path`, without user or fragment; credentials \
                          belong into `headers`";
            mistakes.add(&[place, &["url"]].concat(), detail);
        }
        for (index, secret) in self.secrets.iter().enumerate() {
            let index = index.to_string();
            let place = [place, &["secrets", &index]].concat();
            if let Err(detail) = sign::key(secret) {
                mistakes.add(&place, detail);
            }
        }
        for (name, value) in &self.headers {
            if let Err(detail) = header(name, value) {
                mistakes.add(&[place, &["headers", name]].concat(), detail);
            }
        }
    }
}

/// The address of a webhook.
pub(in crate::notify) fn address(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let sound = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.fragment().is_none();
    sound.then_some(url)
}

/// A header of a message.
pub(in crate::notify) fn header(
    name: &str,
    value: &Secret<String>,
) -> Result<(HeaderName, HeaderValue), String> {
    let header = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{name}` is no name of a header"))?;
    if OURS.contains(&header.as_str()) || header.as_str().starts_with(OURS_PREFIX) {
        return Err(format!("the service sets `{name}` itself"));
    }
    let mut value = HeaderValue::from_str(value.reveal())
        .map_err(|_| format!("`{name}` has a value that no header can have"))?;
    value.set_sensitive(true);
    Ok((header, value))
}
