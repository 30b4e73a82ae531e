//! A model's answer that is sent in pieces. The stream may be cut short or held back, or its
//! connection may be lost.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

/// The usual number of characters of text or arguments in one chunk. `pieces` makes the chunks of a
/// long text longer.
const PIECE: usize = 6;

#[derive(Clone, Debug)]
pub struct Stream {
    chunks: Vec<Bytes>,
    hold_after: Option<usize>,
    lost_after: Option<usize>,
}

impl Stream {
    /// Returns a stream of these events, each unchanged and in a chunk of its own, followed by the
    /// end marker.
    pub fn of_events(events: impl IntoIterator<Item = Value>) -> Self {
        let events = events
            .into_iter()
            .map(|event| Bytes::from(format!("data: {event}\n\n")));
        let chunks = events
            .chain([Bytes::from_static(b"data: [DONE]\n\n")])
            .collect();
        Self {
            chunks,
            hold_after: None,
            lost_after: None,
        }
    }

    /// Returns an answer (a `chat.completion`) in pieces, or `None` if the answer has no message.
    pub fn of(answer: &Value) -> Option<Self> {
        let choice = answer["choices"].get(0)?;
        let mut message = choice.get("message")?.as_object()?.clone();
        let finish = choice.get("finish_reason")?.clone();
        let chunk = |delta: Value, finish: &Value| {
            json!({"id": answer["id"], "object": "chat.completion.chunk", "model": answer["model"],
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
        };
        let mut deltas = Vec::new();
        let content = message.remove("content").unwrap_or(Value::Null);
        let calls = message.remove("tool_calls").unwrap_or(Value::Null);
        if let Some(text) = content.as_str() {
            deltas.extend(
                pieces(text)
                    .into_iter()
                    .map(|piece| json!({"content": piece})),
            );
        }
        message.insert(
            "content".to_owned(),
            if content.is_string() {
                json!("")
            } else {
                content
            },
        );
        deltas.insert(0, Value::Object(message));
        for (index, call) in calls.as_array().into_iter().flatten().enumerate() {
            deltas.extend(
                call_in_pieces(index, call)
                    .into_iter()
                    .map(|call| json!({"tool_calls": [call]})),
            );
        }
        let mut events: Vec<_> = deltas
            .into_iter()
            .map(|delta| chunk(delta, &Value::Null))
            .collect();
        events.push(chunk(json!({}), &finish));
        if answer["usage"].is_object() {
            events.push(json!({"choices": [], "usage": answer["usage"]}));
        }
        Some(Self::of_events(events))
    }

    /// Holds the stream after `chunks` chunks until
    /// [`super::fake_chat_completions::FakeModel::go_on`].
    #[must_use]
    pub fn hold_after(self, chunks: usize) -> Self {
        Self {
            hold_after: Some(chunks),
            ..self
        }
    }

    /// Loses the connection after `chunks` chunks.
    #[must_use]
    pub fn lost_after(self, chunks: usize) -> Self {
        Self {
            lost_after: Some(chunks),
            ..self
        }
    }

    /// Ends the stream cleanly after `chunks` chunks, without the end marker.
    #[must_use]
    pub fn cut_after(mut self, chunks: usize) -> Self {
        self.chunks.truncate(chunks);
        self
    }

    /// Makes each byte a chunk of its own. After this call, `len`, `hold_after`, `lost_after` and
    /// `cut_after` count bytes.
    #[must_use]
    pub fn byte_by_byte(self) -> Self {
        let chunks = self
            .chunks
            .concat()
            .into_iter()
            .map(|byte| Bytes::from(vec![byte]))
            .collect();
        Self { chunks, ..self }
    }

    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    pub fn response(self, gate: &Arc<Gate>) -> Response {
        let gate = Arc::clone(gate);
        let (pause, lost) = (self.hold_after, self.lost_after);
        let ending =
            stream::iter(lost.map(|_| Err(io::Error::from(io::ErrorKind::ConnectionReset))));
        let chunks = self
            .chunks
            .into_iter()
            .take(lost.unwrap_or(usize::MAX))
            .map(Ok);
        let body = stream::iter(chunks)
            .chain(ending)
            .enumerate()
            .then(move |(at, chunk)| {
                let gate = Arc::clone(&gate);
                async move {
                    if pause == Some(at) {
                        gate.wait().await;
                    }
                    // Yields, so that each chunk becomes a write of its own.
                    tokio::task::yield_now().await;
                    chunk
                }
            });
        (
            [(CONTENT_TYPE, "text/event-stream")],
            Body::from_stream(body),
        )
            .into_response()
    }
}

fn pieces(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    // The client limits the bytes of a stream, and each piece adds the bytes of the JSON around it.
    // Therefore a long text has longer, and thus fewer, pieces.
    characters
        .chunks(PIECE.max(text.len() / 500))
        .map(|piece| piece.iter().collect())
        .collect()
}

/// Returns the pieces of a call: first the name, then the arguments piece by piece. Arguments that
/// are not a JSON string stay in one piece.
fn call_in_pieces(index: usize, call: &Value) -> Vec<Value> {
    let mut first = call.clone();
    first["index"] = json!(index);
    let Some(arguments) = call["function"]["arguments"].as_str() else {
        return vec![first];
    };
    first["function"]["arguments"] = json!("");
    let more = pieces(arguments)
        .into_iter()
        .map(|piece| json!({"index": index, "function": {"arguments": piece}}));
    std::iter::once(first).chain(more).collect()
}

/// Holds streams until a test releases them.
pub struct Gate {
    held: watch::Sender<usize>,
    passes: Semaphore,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            held: watch::Sender::new(0),
            passes: Semaphore::new(0),
        }
    }
}

impl Gate {
    async fn wait(&self) {
        self.held.send_modify(|held| *held += 1);
        self.passes.acquire().await.unwrap().forget();
        self.held.send_modify(|held| *held -= 1);
    }

    pub async fn is_held(&self) {
        self.held
            .subscribe()
            .wait_for(|held| *held > 0)
            .await
            .unwrap();
    }

    pub fn open_once(&self) {
        self.passes.add_permits(1);
    }
}
