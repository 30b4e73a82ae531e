//! A fake of the part of Slack's API that handles messages. It answers through a [`FakeReceiver`].
//! Its only channel holds the messages that were posted and updated.

use std::sync::{Arc, Mutex};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::fake_receiver::{FakeReceiver, Received};

/// The only token that the fake accepts.
pub const TOKEN: &str = "xoxb-canary-0123456789-abcdefghij";
/// The only channel of the fake.
pub const CHANNEL: &str = "C012AB3CD";

#[derive(Clone, Debug)]
pub struct Posted {
    pub ts: String,
    /// The bodies of the HTTP calls that posted and updated the message, oldest first.
    pub bodies: Vec<Value>,
}

impl Posted {
    pub fn last_body(&self) -> String {
        self.bodies.last().unwrap().to_string()
    }

    /// Returns the current `text` of the message, which Slack shows in notifications.
    pub fn text(&self) -> &str {
        self.bodies.last().unwrap()["text"].as_str().unwrap()
    }
}

#[derive(Clone)]
pub struct FakeSlack {
    pub receiver: FakeReceiver,
    channel: Arc<Mutex<Vec<Posted>>>,
    error: Arc<Mutex<Option<(&'static str, &'static str)>>>,
}

impl FakeSlack {
    /// Serves Slack at the receiver's `/api`, an incoming webhook at `/hook`, and Teams at
    /// `/teams`.
    pub fn serve_on(receiver: &FakeReceiver) -> Self {
        let slack = Self {
            receiver: receiver.clone(),
            channel: Arc::default(),
            error: Arc::default(),
        };
        slack.mend();
        slack
    }

    /// Makes the receiver answer as Slack does from now on. Removes the error that
    /// [`FakeSlack::fails`] has set.
    pub fn mend(&self) {
        *self.error.lock().unwrap() = None;
        let slack = self.clone();
        self.receiver.replies(move |message| slack.reply(message));
    }

    /// Makes calls of this method fail with this error from now on.
    pub fn fails(&self, method: &'static str, error: &'static str) {
        *self.error.lock().unwrap() = Some((method, error));
    }

    /// Returns the messages in the channel, in the order in which they were posted.
    pub fn messages(&self) -> Vec<Posted> {
        self.channel.lock().unwrap().clone()
    }

    /// Returns the only message.
    pub fn message(&self) -> Posted {
        let all = self.messages();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    /// Polls the messages in the channel until `expected` returns true for them. Returns the
    /// messages.
    pub async fn until(&self, expected: impl Fn(&[Posted]) -> bool) -> Vec<Posted> {
        loop {
            let all = self.messages();
            if expected(&all) {
                return all;
            }
            crate::support::pause().await;
        }
    }

    /// Removes every message from the channel, as people may do in Slack.
    pub fn clear(&self) {
        self.channel.lock().unwrap().clear();
    }

    fn reply(&self, message: &Received) -> Response {
        let body = || message.body.clone();
        match message.path.as_str() {
            "/hook" => "ok".into_response(),
            "/teams" => StatusCode::ACCEPTED.into_response(),
            path => {
                let method = path.strip_prefix("/api/").unwrap_or_default();
                answer(self.call(method, message.header("authorization"), &body()))
            }
        }
    }

    fn call(&self, method: &str, authorization: &str, body: &Value) -> Result<Value, &'static str> {
        if let Some((failing, error)) = *self.error.lock().unwrap()
            && failing == method
        {
            return Err(error);
        }
        if authorization != format!("Bearer {TOKEN}") {
            return Err("invalid_auth");
        }
        if body["channel"] != CHANNEL {
            return Err("channel_not_found");
        }
        let mut channel = self.channel.lock().unwrap();
        let ts = match method {
            "chat.postMessage" => {
                let ts = format!("1700000000.{:06}", channel.len() + 1);
                let bodies = vec![body.clone()];
                channel.push(Posted {
                    ts: ts.clone(),
                    bodies,
                });
                ts
            }
            "chat.update" => {
                let known = channel.iter_mut().find(|posted| body["ts"] == posted.ts);
                let posted = known.ok_or("message_not_found")?;
                posted.bodies.push(body.clone());
                posted.ts.clone()
            }
            _ => return Err("unknown_method"),
        };
        Ok(json!({"ok": true, "channel": CHANNEL, "ts": ts, "message": body}))
    }
}

fn answer(called: Result<Value, &'static str>) -> Response {
    let body = called.unwrap_or_else(|error| json!({"ok": false, "error": error}));
    (
        [(header::CONTENT_TYPE, "application/json")],
        body.to_string(),
    )
        .into_response()
}
