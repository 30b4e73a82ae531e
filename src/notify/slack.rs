//! Slack: a bot posts messages to a channel and updates them; an incoming webhook only posts them.
//!
//! Invariant: the token is sent only in the header `Authorization`, and of an answer only the
//! message's id is kept.

mod blocks;
mod reply;

pub(super) use self::reply::GONE;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::{Map, Value};
use url::Url;

use self::reply::Reply;
use super::answer::Answer;
use super::chat::Shown;
use super::exchange::{WITHIN, exchange};
use super::settings::{Slack as Settings, address, bearer};
use crate::net::Net;
use crate::world::Clock;

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// A channel of Slack that is ready to post to.
pub(super) struct Slack {
    way: Way,
    /// Whether messages show the tools' summaries of the calls.
    pub(super) summaries: bool,
}

enum Way {
    Bot(Bot),
    Hook(Url),
}

struct Bot {
    post: Url,
    update: Url,
    token: HeaderValue,
    channel: String,
}

impl Slack {
    /// Returns the channel of these settings; `None` if they have mistakes.
    pub(super) fn of(settings: &Settings) -> Option<Self> {
        let way = match (&settings.url, &settings.token, &settings.channel) {
            (Some(url), None, None) => Way::Hook(address(url.reveal())?),
            (None, Some(token), Some(channel)) => {
                let method = |name| method(&settings.api_url, name);
                Way::Bot(Bot {
                    post: method("chat.postMessage")?,
                    update: method("chat.update")?,
                    token: bearer(token)?,
                    channel: channel.clone(),
                })
            }
            _ => return None,
        };
        Some(Self {
            way,
            summaries: settings.summaries,
        })
    }

    /// Whether posted messages can be updated.
    pub(super) fn changes(&self) -> bool {
        matches!(self.way, Way::Bot(_))
    }

    /// Posts a message. For a bot, the answer has the message's id.
    pub(super) async fn post(&self, net: &Net, clock: &dyn Clock, shown: &Shown) -> Answer {
        self.send(net, clock, blocks::content(shown)).await
    }

    /// Posts a message that is only a text.
    pub(super) async fn say(&self, net: &Net, clock: &dyn Clock, words: &str) -> Answer {
        self.send(net, clock, blocks::plain_content(words)).await
    }

    async fn send(&self, net: &Net, clock: &dyn Clock, mut content: Map<String, Value>) -> Answer {
        for off in ["unfurl_links", "unfurl_media"] {
            content.insert(off.to_owned(), false.into());
        }
        match &self.way {
            Way::Bot(bot) => bot.call(net, clock, &bot.post, content).await,
            Way::Hook(url) => {
                let body = Value::Object(content).to_string();
                let request = net.repeatable().post(url.clone());
                let request = request.header(CONTENT_TYPE, JSON).body(body);
                match exchange(clock, request, WITHIN).await {
                    Ok(answered) => Answer::of(&answered, clock.now()),
                    Err(problem) => Answer::none(problem),
                }
            }
        }
    }

    /// Replaces the content of the posted message with the id `ts`. Only a bot can do this.
    pub(super) async fn update(
        &self,
        net: &Net,
        clock: &dyn Clock,
        ts: &str,
        shown: &Shown,
    ) -> Answer {
        let Way::Bot(bot) = &self.way else {
            return Answer::none("an incoming webhook changes no message");
        };
        let mut content = blocks::content(shown);
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
    ) -> Answer {
        content.insert("channel".to_owned(), self.channel.as_str().into());
        let request = net
            .repeatable()
            .post(method.clone())
            .header(AUTHORIZATION, self.token.clone())
            .header(CONTENT_TYPE, JSON)
            .body(Value::Object(content).to_string());
        match exchange(clock, request, WITHIN).await {
            Ok(answered) => {
                let answer = Answer::of(&answered, clock.now());
                if answer.is_success() {
                    Reply::read(&answered.body).answer(&answer)
                } else {
                    answer
                }
            }
            Err(problem) => Answer::none(problem),
        }
    }
}

/// Returns the URL of a method of Slack's API; `None` if `api` is not a URL.
fn method(api: &str, name: &str) -> Option<Url> {
    address(&format!("{}/{name}", api.trim_end_matches('/')))
}
