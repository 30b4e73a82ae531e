//! Reads the answer to one request over HTTP: one JSON message, or an event stream up to the event
//! with the answer.

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderValue};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::wire::{RpcAnswer, ServerMessage, is_list_change, raw_result, readable};
use crate::net::ResponseSink;
use crate::net::sse::{Decoder, is_event_stream};

pub(super) const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct HttpReply {
    pub(super) status: StatusCode,
    /// The value of `Mcp-Session-Id`, if the server began a session.
    pub(super) session: Option<HeaderValue>,
    /// The JSON-RPC answer; `None` if the body holds no answer to the request.
    pub(super) answer: Option<RpcAnswer>,
    /// The result exactly as the server wrote it; `None` if the answer is missing or is an error.
    pub(super) raw: Option<String>,
    /// Whether the answer carries the id of the request, which proves that the server read the
    /// request.
    pub(super) has_request_id: bool,
    /// Whether the body was an event stream whose events could be read.
    pub(super) is_event_stream: bool,
}

/// The maximum number of a server's requests that wait for a reply. Further requests get no reply.
pub(super) const MAX_QUEUED_REQUESTS: usize = 16;

/// The queue of the requests that the server sends to this client. Each entry is the id and the
/// method of a request.
pub(super) type ServerRequestQueue = mpsc::Sender<(Value, String)>;

pub(super) struct ReplyReader {
    id: Value,
    reply: HttpReply,
    body: Body,
    server_requests: ServerRequestQueue,
    changes: watch::Sender<u64>,
}

enum Body {
    Json(Vec<u8>),
    Events(Decoder),
    /// The reader takes no bytes: the response has not begun, or the reader has stopped because the
    /// body, or one event in it, is too long.
    Ignored,
}

impl ReplyReader {
    /// Creates a reader for the answer to the request `id`. The server's own requests go to
    /// `server_requests`. `changes` counts the notifications by which the server says that its
    /// tools have changed.
    pub(super) fn new(
        id: &str,
        server_requests: ServerRequestQueue,
        changes: watch::Sender<u64>,
    ) -> Self {
        Self {
            id: Value::from(id),
            reply: HttpReply {
                status: StatusCode::OK,
                session: None,
                answer: None,
                raw: None,
                has_request_id: false,
                is_event_stream: false,
            },
            body: Body::Ignored,
            server_requests,
            changes,
        }
    }

    /// Returns the reply. Call this after `take` has returned false or the body has ended.
    pub(super) fn finish(mut self) -> HttpReply {
        self.reply.is_event_stream = matches!(self.body, Body::Events(_));
        if let Body::Json(body) = std::mem::replace(&mut self.body, Body::Ignored)
            && let text = readable(&body)
            && let Some(ServerMessage::Answer(id, answer)) = ServerMessage::read(&text)
        {
            // A server that could not parse the request answers with the id `null`.
            let is_unparsed = id.is_null() && matches!(answer, RpcAnswer::Error { .. });
            if id == self.id || is_unparsed {
                self.reply.has_request_id = !is_unparsed;
                self.reply.raw = raw_result(&text);
                self.reply.answer = Some(answer);
            }
        }
        self.reply
    }

    /// Processes one event. Returns whether further events are needed.
    fn event(&mut self, text: &str) -> bool {
        let text = &readable(text.as_bytes());
        match ServerMessage::read(text) {
            Some(ServerMessage::Answer(id, answer)) if id == self.id => {
                self.reply.answer = Some(answer);
                self.reply.raw = raw_result(text);
                self.reply.has_request_id = true;
                false
            }
            Some(ServerMessage::Request(id, method)) => {
                let _ = self.server_requests.try_send((id, method));
                true
            }
            Some(ServerMessage::Notification(method)) => {
                if is_list_change(&method) {
                    self.changes.send_modify(|count| *count += 1);
                }
                true
            }
            Some(ServerMessage::Answer(..)) | None => true,
        }
    }
}

impl ResponseSink for ReplyReader {
    fn begin(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.reply.status = status;
        self.reply.session = headers.get("mcp-session-id").cloned();
        self.body = if is_event_stream(headers) {
            Body::Events(Decoder::new(MAX_MESSAGE_BYTES))
        } else {
            Body::Json(Vec::new())
        };
    }

    fn take(&mut self, bytes: &[u8]) -> bool {
        let events = match &mut self.body {
            Body::Json(text) => {
                text.extend_from_slice(bytes);
                if text.len() <= MAX_MESSAGE_BYTES {
                    return true;
                }
                self.body = Body::Ignored;
                return false;
            }
            Body::Ignored => return false,
            Body::Events(decoder) => decoder.push(bytes),
        };
        let Ok(events) = events else {
            self.body = Body::Ignored;
            return false;
        };
        events
            .iter()
            .filter(|event| event.name.is_empty() || event.name == "message")
            .all(|event| self.event(&event.data))
    }
}
