//! A fake Messages endpoint on loopback. It streams the answers that a test scripts and records the
//! bytes of each HTTP request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};

#[derive(Clone)]
pub struct FakeMessages {
    pub base_url: String,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    answers: Mutex<VecDeque<String>>,
    sent: Mutex<Vec<Sent>>,
}

#[derive(Clone, Debug)]
pub struct Sent {
    pub headers: HeaderMap,
    pub text: String,
}

impl Sent {
    pub fn body(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }
}

impl FakeMessages {
    pub async fn start() -> Self {
        Self::at("/v1/messages").await
    }

    pub(super) async fn at(path: &str) -> Self {
        let inner = Arc::<Inner>::default();
        let router = Router::new()
            .route(path, post(answer))
            .with_state(Arc::clone(&inner));
        Self {
            base_url: format!("http://{}", super::serve(router).await),
            inner,
        }
    }

    /// Scripts the next answer. Each entry of `blocks` is a content block, as its
    /// `content_block_start` event contains it, and the deltas that follow this event.
    pub fn then(&self, blocks: &[(Value, Vec<Value>)], stop_reason: &str) -> &Self {
        let mut stream = event(&json!({"type": "message_start", "message":
            {"type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 10, "output_tokens": 1}}}));
        for (index, (block, deltas)) in blocks.iter().enumerate() {
            stream += &event(
                &json!({"type": "content_block_start", "index": index, "content_block": block}),
            );
            for delta in deltas {
                stream +=
                    &event(&json!({"type": "content_block_delta", "index": index, "delta": delta}));
            }
            stream += &event(&json!({"type": "content_block_stop", "index": index}));
        }
        let end = json!({"stop_reason": stop_reason, "stop_sequence": null});
        stream +=
            &event(&json!({"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}}));
        stream += &event(&json!({"type": "message_stop"}));
        self.then_streams(stream)
    }

    pub(super) fn then_streams(&self, stream: String) -> &Self {
        self.inner.answers.lock().unwrap().push_back(stream);
        self
    }

    pub fn sent(&self) -> Vec<Sent> {
        self.inner.sent.lock().unwrap().clone()
    }
}

fn event(data: &Value) -> String {
    format!(
        "event: {}\ndata: {data}\n\n",
        data["type"].as_str().unwrap()
    )
}

async fn answer(State(inner): State<Arc<Inner>>, headers: HeaderMap, text: String) -> Response {
    inner.sent.lock().unwrap().push(Sent { headers, text });
    let stream = inner
        .answers
        .lock()
        .unwrap()
        .pop_front()
        .expect("an answer is scripted");
    (
        [("content-type", "text/event-stream; charset=utf-8")],
        stream,
    )
        .into_response()
}

pub fn text_block(text: &str) -> (Value, Vec<Value>) {
    (
        json!({"type": "text", "text": ""}),
        vec![json!({"type": "text_delta", "text": text})],
    )
}

/// Returns a thinking block with this thought and its signature.
pub fn thinks(thought: &str, signature: &str) -> (Value, Vec<Value>) {
    let deltas = vec![
        json!({"type": "thinking_delta", "thinking": thought}),
        json!({"type": "signature_delta", "signature": signature}),
    ];
    (
        json!({"type": "thinking", "thinking": "", "signature": ""}),
        deltas,
    )
}

/// Returns a tool call whose arguments arrive in two deltas.
pub fn calls(id: &str, name: &str, arguments: &str) -> (Value, Vec<Value>) {
    let (half, rest) = arguments.split_at(arguments.len() / 2);
    let deltas =
        [half, rest].map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
    (
        json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
        deltas.to_vec(),
    )
}
