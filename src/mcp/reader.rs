//! Reads the answer to one request over HTTP: one JSON message, or a stream of events that ends for
//! us with the answer.

use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::wire::{Answer, Message, is_list_change, raw_result};
use crate::net::Sink;
use crate::net::sse::Decoder;

/// The longest message that is read, in bytes.
pub(super) const LONGEST: usize = 16 * 1024 * 1024;

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    /// The session that the server began.
    pub(super) session: Option<HeaderValue>,
    /// `None` if there is no answer in the protocol.
    pub(super) answer: Option<Answer>,
    /// The text of the result, to the byte.
    pub(super) raw: Option<String>,
    /// Whether the answer names our request, so that the server has read it.
    pub(super) is_named: bool,
}

/// How many requests of a server wait for a reply; further ones get none.
pub(super) const REPLIES: usize = 16;

/// Requests of a server: id and method.
pub(super) type Asked = mpsc::Sender<(Value, String)>;

pub(super) struct Reader {
    id: Value,
    reply: Reply,
    body: Body,
    asked: Asked,
    changes: watch::Sender<u64>,
}

enum Body {
    Json(Vec<u8>),
    Events(Decoder),
    /// There is an answer, or there can be none.
    Over,
}

impl Reader {
    /// A reader of the answer to the request with this id.
    pub(super) fn new(id: &str, asked: Asked, changes: watch::Sender<u64>) -> Self {
        Self {
            id: Value::from(id),
            reply: Reply {
                status: StatusCode::OK,
                session: None,
                answer: None,
                raw: None,
                is_named: false,
            },
            body: Body::Over,
            asked,
            changes,
        }
    }

    /// The reply, once the sink needs no more or the body has ended.
    pub(super) fn finish(mut self) -> Reply {
        if let Body::Json(text) = std::mem::replace(&mut self.body, Body::Over)
            && let Some(Message::Answer(id, answer)) = Message::read(&text)
        {
            // A server that could not read the request does not know its id.
            let unread = id.is_null() && matches!(answer, Answer::Error { .. });
            if id == self.id || unread {
                self.reply.is_named = !unread;
                self.reply.raw = raw_result(&text);
                self.reply.answer = Some(answer);
            }
        }
        self.reply
    }

    /// Takes one event. Returns whether more are needed.
    fn event(&mut self, text: &str) -> bool {
        match Message::read(text.as_bytes()) {
            Some(Message::Answer(id, answer)) if id == self.id => {
                self.reply.answer = Some(answer);
                self.reply.raw = raw_result(text.as_bytes());
                self.reply.is_named = true;
                false
            }
            Some(Message::Request(id, method)) => {
                let _ = self.asked.try_send((id, method));
                true
            }
            Some(Message::Notification(method)) => {
                if is_list_change(&method) {
                    self.changes.send_modify(|count| *count += 1);
                }
                true
            }
            Some(Message::Answer(..)) | None => true,
        }
    }
}

impl Sink for Reader {
    fn begin(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.reply.status = status;
        self.reply.session = headers.get("mcp-session-id").cloned();
        let kind = headers
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().trim_start().to_ascii_lowercase();
        self.body = if kind.starts_with("text/event-stream") {
            Body::Events(Decoder::new(LONGEST))
        } else {
            Body::Json(Vec::new())
        };
    }

    fn take(&mut self, bytes: &[u8]) -> bool {
        let events = match &mut self.body {
            Body::Json(text) => {
                text.extend_from_slice(bytes);
                if text.len() <= LONGEST {
                    return true;
                }
                self.body = Body::Over;
                return false;
            }
            Body::Over => return false,
            Body::Events(decoder) => decoder.push(bytes),
        };
        let Ok(events) = events else {
            self.body = Body::Over;
            return false;
        };
        events
            .iter()
            .filter(|event| event.name.is_empty() || event.name == "message")
            .all(|event| self.event(&event.data))
    }
}
