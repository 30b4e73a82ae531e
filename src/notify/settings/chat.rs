//! The settings of rooms in Slack and Teams.

use reqwest::header::HeaderValue;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::net::plain_http_url;
use crate::secret::Secret;
use crate::world::Mistakes;

const DEFAULT_SLACK_API: &str = "https://slack.com/api";
const EXPECTED_URL: &str =
    "expected an address such as `https://host/path`, without user or fragment";

/// A channel of Slack. Set either `token` and `channel`, or `url`. With `token` and `channel`, a
/// bot posts the messages and updates them with the outcomes. With `url`, an incoming webhook posts
/// the messages, and they are not updated.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Slack {
    /// The token of the bot, `xoxb-…`. The bot needs the scope `chat:write`.
    pub token: Option<Secret<String>>,
    /// The id of the channel to which the bot posts, such as `C012AB3CD`. The bot must be a member
    /// of the channel.
    pub channel: Option<String>,
    /// The base URL of Slack's API.
    pub api_url: String,
    /// The URL of an incoming webhook, in place of a bot.
    pub url: Option<Secret<String>>,
    /// Whether messages show the tools' summaries of the calls. The summaries contain arguments of
    /// the calls.
    pub summaries: bool,
}

impl Default for Slack {
    fn default() -> Self {
        Self {
            token: None,
            channel: None,
            api_url: DEFAULT_SLACK_API.to_owned(),
            url: None,
            summaries: false,
        }
    }
}

/// A channel or chat of Teams that a workflow posts to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["url"]))]
pub struct Teams {
    /// The URL of the workflow "When a Teams webhook request is received".
    pub url: Secret<String>,
    /// Whether messages show the tools' summaries of the calls. The summaries contain arguments of
    /// the calls.
    pub summaries: bool,
}

impl Slack {
    /// Whether a bot posts the messages. Only a bot can update them.
    pub(super) fn is_bot(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn check(&self, place: &[&str], mistakes: &mut Mistakes) {
        let mut add = |key: &str, detail: &str| mistakes.add(&[place, &[key]].concat(), detail);
        if plain_http_url(&self.api_url).is_none_or(|url| url.query().is_some()) {
            add(
                "api_url",
                "expected an address such as `https://slack.com/api`",
            );
        }
        match (&self.url, &self.token, &self.channel) {
            (Some(_), None, None) if self.api_url != DEFAULT_SLACK_API => {
                add("api_url", "an incoming webhook has its address in `url`");
            }
            (Some(url), None, None) => {
                if plain_http_url(url.reveal()).is_none() {
                    add("url", EXPECTED_URL);
                }
            }
            (Some(_), _, _) => add(
                "url",
                "`url` is an incoming webhook, `token` and `channel` are a bot: leave one of the two out",
            ),
            (None, None, None) => add(
                "url",
                "`token` and `channel` of a bot, or the `url` of an incoming webhook, are missing",
            ),
            (None, Some(_), None) => add("channel", "`channel` is missing: a bot posts to one"),
            (None, None, Some(_)) => add("token", "`token` is missing: a bot needs one"),
            (None, Some(token), Some(channel)) => {
                if bearer(token).is_none() {
                    add("token", "expected the token of a bot, such as `xoxb-…`");
                }
                if !is_channel(channel) {
                    add(
                        "channel",
                        "expected the id of a channel, such as `C012AB3CD`: only with the id can its messages be updated",
                    );
                }
            }
        }
    }
}

impl Teams {
    pub(super) fn check(&self, place: &[&str], mistakes: &mut Mistakes) {
        let url = self.url.reveal();
        if !url.is_empty() && plain_http_url(url).is_none() {
            mistakes.add(&[place, &["url"]].concat(), EXPECTED_URL);
        }
    }
}

/// Returns the value of the header `Authorization` for a token; `None` if the token is not valid.
pub(in crate::notify) fn bearer(token: &Secret<String>) -> Option<HeaderValue> {
    let text = token.reveal();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {text}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Returns whether a text is the id of a channel, a private channel or a direct message.
fn is_channel(id: &str) -> bool {
    let rest = id.strip_prefix(['C', 'G', 'D']).unwrap_or_default();
    let fits = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    rest.len() >= 2 && rest.bytes().all(fits)
}
