//! The operator's settings of messages, and the mistakes in them that no other room has to know of.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use super::sign;
use crate::people::link::LinkSettings;
use crate::secret::Secret;
use crate::task::event_name::TOLD;
use crate::world::Mistakes;

/// The events of an entry that names none.
const USUAL: [&str; 8] = [
    "task.paused",
    "task.completed",
    "task.failed",
    "task.canceled",
    "request.created",
    "request.decided",
    "request.expired",
    "request.withdrawn",
];
/// The prefix of the events that an entry with `groups` or `users` may name.
const OF_REQUESTS: &str = "request.";
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

/// The messages that are sent about tasks and requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Notify")]
pub struct Settings {
    /// The links in messages to people. Default: messages have the URL of the page, which asks
    /// people to sign in.
    pub links: Option<LinkSettings>,
    /// The receivers.
    pub to: Vec<EntrySettings>,
}

/// One receiver, and the events of which it gets a message.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "NotifyEntry", extend("required" = ["name", "webhook"]))]
pub struct EntrySettings {
    /// The name of the entry, in lists of deliveries and in metrics: 1 to 64 of `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// The webhook that gets the messages.
    pub webhook: Option<Webhook>,
    /// The tenants whose events are sent. Required if there are several tenants.
    pub tenants: Vec<String>,
    /// The agents of root tasks whose events are sent, with those of their sub-agents. Default: every
    /// agent.
    pub agents: Vec<String>,
    /// The events that are sent.
    pub events: Vec<String>,
    /// Only events of requests that a member of one of these groups may decide; no events of tasks.
    pub groups: Vec<String>,
    /// Only events of requests that one of these users may decide, also as a member of a group; no
    /// events of tasks.
    pub users: Vec<String>,
}

impl Default for EntrySettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            webhook: None,
            tenants: Vec::new(),
            agents: Vec::new(),
            events: USUAL.map(str::to_owned).to_vec(),
            groups: Vec::new(),
            users: Vec::new(),
        }
    }
}

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

impl EntrySettings {
    /// Whether only requests are told of, because the entry names groups or users.
    pub(super) fn only_requests(&self) -> bool {
        !self.groups.is_empty() || !self.users.is_empty()
    }

    /// The events that are sent.
    pub(super) fn wanted(&self) -> BTreeSet<&'static str> {
        let named = |event: &&str| self.events.iter().any(|name| name == event);
        let fits = |event: &&str| !self.only_requests() || event.starts_with(OF_REQUESTS);
        TOLD.into_iter().filter(named).filter(fits).collect()
    }
}

impl Settings {
    /// Finds mistakes that concern this room alone.
    pub fn check(&self, mistakes: &mut Mistakes) {
        for (index, entry) in self.to.iter().enumerate() {
            let at = index.to_string();
            let place = ["notify", "to", &at];
            if self
                .to
                .iter()
                .take(index)
                .any(|other| other.name == entry.name)
                && !entry.name.is_empty()
            {
                let detail = format!("`{}` is the name of an entry above, too", entry.name);
                mistakes.add(&[&place[..], &["name"]].concat(), detail);
            }
            events(entry, &place, mistakes);
            if let Some(webhook) = &entry.webhook {
                let place = [&place[..], &["webhook"]].concat();
                webhook.check(&place, mistakes);
            }
        }
    }
}

fn events(entry: &EntrySettings, place: &[&str], mistakes: &mut Mistakes) {
    let place = [place, &["events"]].concat();
    if entry.events.is_empty() {
        mistakes.add(&place, "`events` is empty: leave it out for the usual ones");
    }
    let usual = entry.events == USUAL;
    for (index, event) in entry.events.iter().enumerate() {
        let index = index.to_string();
        let place = [&place[..], &[&index]].concat();
        if !TOLD.contains(&event.as_str()) {
            let known = TOLD.map(|event| format!("`{event}`")).join(", ");
            mistakes.add(
                &place,
                format!("unknown event `{event}`; known are {known}"),
            );
        } else if entry.only_requests() && !usual && !event.starts_with(OF_REQUESTS) {
            let detail = format!(
                "`{event}` is no event of a request: an entry with `groups` or `users` gets those only"
            );
            mistakes.add(&place, detail);
        }
    }
}

impl Webhook {
    fn check(&self, place: &[&str], mistakes: &mut Mistakes) {
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
pub(super) fn address(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let sound = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.fragment().is_none();
    sound.then_some(url)
}

/// A header of a message.
pub(super) fn header(
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
