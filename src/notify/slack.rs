//! Sends messages to a channel of Slack. A bot posts messages and updates them. An incoming webhook
//! posts messages but cannot update them.
//!
//! Invariants: the token is sent in the header `Authorization` and nowhere else. The message's id
//! is all that is kept of an answer's body.

mod blocks;
mod reply;

pub(super) use self::blocks::{content, plain_content};
pub(super) use self::reply::MESSAGE_DELETED;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::{Map, Value};
use url::Url;

use self::reply::SlackReply;
use super::attempt_result::AttemptResult;
use super::chat::RoomMessage;
use super::exchange::{ATTEMPT_TIMEOUT, exchange};
use super::settings::{Slack as Settings, bearer};
use crate::net::{Net, plain_http_url};
use crate::world::Clock;

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// A channel of Slack with parsed settings.
pub(super) struct SlackChannel {
    transport: SlackTransport,
    pub(super) shows_summaries: bool,
}

enum SlackTransport {
    Bot(Bot),
    IncomingWebhook(Url),
}

struct Bot {
    post: Url,
    update: Url,
    token: HeaderValue,
    channel: String,
}

impl SlackChannel {
    /// Returns the channel of these settings; `None` if the settings have mistakes.
    pub(super) fn from_settings(settings: &Settings) -> Option<Self> {
        let transport = match (&settings.url, &settings.token, &settings.channel) {
            (Some(url), None, None) => {
                SlackTransport::IncomingWebhook(plain_http_url(url.reveal())?)
            }
            (None, Some(token), Some(channel)) => {
                let method = |name| method(&settings.api_url, name);
                SlackTransport::Bot(Bot {
                    post: method("chat.postMessage")?,
                    update: method("chat.update")?,
                    token: bearer(token)?,
                    channel: channel.clone(),
                })
            }
            _ => return None,
        };
        Some(Self {
            transport,
            shows_summaries: settings.summaries,
        })
    }

    /// Whether the channel can update messages that it has posted.
    pub(super) fn can_update(&self) -> bool {
        matches!(self.transport, SlackTransport::Bot(_))
    }

    /// Posts a message. If a bot posts the message, the result contains the message's id.
    pub(super) async fn post(
        &self,
        net: &Net,
        clock: &dyn Clock,
        mut content: Map<String, Value>,
    ) -> AttemptResult {
        for off in ["unfurl_links", "unfurl_media"] {
            content.insert(off.to_owned(), false.into());
        }
        match &self.transport {
            SlackTransport::Bot(bot) => bot.call(net, clock, &bot.post, content).await,
            SlackTransport::IncomingWebhook(url) => {
                let body = Value::Object(content).to_string();
                let request = net.repeatable().post(url.clone());
                let request = request.header(CONTENT_TYPE, JSON).body(body);
                exchange(clock, request, ATTEMPT_TIMEOUT).await.0
            }
        }
    }

    /// Replaces the content of the posted message whose id is `ts`. Fails for an incoming webhook.
    pub(super) async fn update(
        &self,
        net: &Net,
        clock: &dyn Clock,
        ts: &str,
        message: &RoomMessage,
    ) -> AttemptResult {
        let SlackTransport::Bot(bot) = &self.transport else {
            return AttemptResult::without_status("an incoming webhook cannot update a message");
        };
        let mut content = content(message);
        content.insert("ts".to_owned(), ts.into());
        bot.call(net, clock, &bot.update, content).await
    }
}

impl Bot {
    async fn call(
        &self,
        net: &Net,
        clock: &dyn Clock,
        method: &Url,
        mut content: Map<String, Value>,
    ) -> AttemptResult {
        content.insert("channel".to_owned(), self.channel.as_str().into());
        let request = net
            .repeatable()
            .post(method.clone())
            .header(AUTHORIZATION, self.token.clone())
            .header(CONTENT_TYPE, JSON)
            .body(Value::Object(content).to_string());
        let (result, body) = exchange(clock, request, ATTEMPT_TIMEOUT).await;
        if result.is_success() {
            SlackReply::parse(&body).attempt_result(&result)
        } else {
            result
        }
    }
}

/// Returns the URL of a method of Slack's API; `None` if `api` is not a URL.
fn method(api: &str, name: &str) -> Option<Url> {
    plain_http_url(&format!("{}/{name}", api.trim_end_matches('/')))
}
