//! The settings of a webhook and their checks.

use std::collections::BTreeMap;

use reqwest::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::net::plain_http_url;
use crate::notify::sign;
use crate::secret::Secret;
use crate::world::{Mistakes, earlier_key_in_other_case};

/// The headers that an operator may not set, because the service or the connection sets them.
const RESERVED_HEADERS: [&str; 8] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];
/// The prefix of the signature's headers. An operator may not set headers with this prefix.
const RESERVED_PREFIX: &str = "webhook-";

/// A receiver of POST requests that are signed according to the specification Standard Webhooks.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Webhook", extend("required" = ["url", "secrets"]))]
pub struct Webhook {
    /// The URL to which messages are posted.
    pub url: Secret<String>,
    /// The secrets with which each message is signed, the newest first. A secret is `whsec_` and
    /// the base64 of 24 bytes or more. With several secrets, each message has one signature for
    /// each secret, and a receiver may check any of the signatures.
    pub secrets: Vec<Secret<String>>,
    /// The content of a message. `thin` has ids, names and statuses. `full` has the event's whole
    /// data, with arguments and texts.
    pub payload: Payload,
    /// Whether the brief of a request shows the tools' summaries of the calls. The summaries
    /// contain arguments of the calls.
    pub summaries: bool,
    /// Further headers of each message, by name.
    pub headers: BTreeMap<String, Secret<String>>,
}

/// The amount of data in a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// Only ids, names and statuses.
    #[default]
    Thin,
    /// The event's whole data, as in the event stream of the task tree.
    Full,
}

impl Webhook {
    pub(super) fn check(&self, place: &[&str], mistakes: &mut Mistakes) {
        let url = self.url.reveal();
        if !url.is_empty() && plain_http_url(url).is_none() {
            let detail = "expected an address such as `https://host/path`, without user or fragment; credentials \
                          belong in `headers`";
            mistakes.add(&[place, &["url"]].concat(), detail);
        }
        for (index, secret) in self.secrets.iter().enumerate() {
            let index = index.to_string();
            let place = [place, &["secrets", &index]].concat();
            if let Err(detail) = sign::parse_key(secret) {
                mistakes.add(&place, detail);
            }
        }
        for (name, value) in &self.headers {
            let place = [place, &["headers", name]].concat();
            if let Err(detail) = parse_header(name, value) {
                mistakes.add(&place, detail);
            } else if earlier_key_in_other_case(&self.headers, name).is_some() {
                mistakes.add(&place, format!("`{name}` is there twice"));
            }
        }
    }
}

/// Parses a header that the operator sets.
///
/// # Errors
/// Fails if the header is not allowed. The error is the reason, which does not contain the header's
/// value.
pub(in crate::notify) fn parse_header(
    name: &str,
    value: &Secret<String>,
) -> Result<(HeaderName, HeaderValue), String> {
    let header = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{name}` is not a name of a header"))?;
    if RESERVED_HEADERS.contains(&header.as_str()) || header.as_str().starts_with(RESERVED_PREFIX) {
        return Err(format!("the service sets `{name}` itself"));
    }
    let mut value = HeaderValue::from_str(value.reveal())
        .map_err(|_| format!("`{name}` has a value that no header can have"))?;
    value.set_sensitive(true);
    Ok((header, value))
}
