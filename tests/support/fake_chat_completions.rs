//! A fake Chat Completions endpoint on loopback. It gives the answers that a test scripts and
//! records every prompt. Like most endpoints, it answers a request for a stream with a stream. A
//! test can turn streaming off.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::model_stream::{Gate, Stream};

/// A function that returns the answer to a request when no scripted answer is left.
type Rule = Box<dyn Fn(&Value) -> Value + Send + Sync>;

#[derive(Clone)]
pub struct FakeModel {
    pub base_url: String,
    inner: Arc<Inner>,
}

enum Next {
    Whole(u16, Value),
    Stream(Stream),
}

struct Inner {
    answers: Mutex<VecDeque<Next>>,
    rule: Mutex<Rule>,
    sent: Mutex<Vec<Value>>,
    streaming: AtomicBool,
    gate: Arc<Gate>,
}

impl FakeModel {
    /// Starts an endpoint that answers "done" until a test scripts it.
    pub async fn start() -> Self {
        let inner = Arc::new(Inner {
            answers: Mutex::default(),
            rule: Mutex::new(Box::new(|_| text_answer("done"))),
            sent: Mutex::default(),
            streaming: AtomicBool::new(true),
            gate: Arc::default(),
        });
        let router = Router::new()
            .route("/v1/chat/completions", post(answer))
            .with_state(Arc::clone(&inner));
        Self {
            base_url: format!("http://{}/v1", super::serve(router).await),
            inner,
        }
    }

    /// Sets whether a request for a stream gets a stream. If not, the answer comes in one piece.
    pub fn streaming(&self, on: bool) -> &Self {
        self.inner.streaming.store(on, Ordering::SeqCst);
        self
    }

    pub fn then(&self, message: Value) -> &Self {
        self.next(Next::Whole(200, message))
    }

    pub fn then_streams(&self, stream: Stream) -> &Self {
        self.next(Next::Stream(stream))
    }

    pub fn then_fails(&self, status: u16) -> &Self {
        self.then_fails_with(status, json!({"error": {"message": "no"}}))
    }

    pub fn then_fails_with(&self, status: u16, body: Value) -> &Self {
        self.next(Next::Whole(status, body))
    }

    fn next(&self, next: Next) -> &Self {
        self.inner.answers.lock().unwrap().push_back(next);
        self
    }

    /// Waits until the endpoint holds a stream, which it does after the number of chunks that
    /// [`Stream::hold_after`] sets.
    pub async fn holds(&self) {
        self.inner.gate.is_held().await;
    }

    /// Releases one held stream or, if no stream is held, the next stream that will be held.
    pub fn go_on(&self) {
        self.inner.gate.open_once();
    }

    /// Sets the function that gives the answer when no scripted answer is left. An answer with a
    /// member `error` gets the status 400.
    pub fn otherwise(&self, rule: impl Fn(&Value) -> Value + Send + Sync + 'static) -> &Self {
        *self.inner.rule.lock().unwrap() = Box::new(rule);
        self
    }

    pub fn sent(&self) -> Vec<Value> {
        self.inner.sent.lock().unwrap().clone()
    }
}

async fn answer(State(inner): State<Arc<Inner>>, Json(body): Json<Value>) -> Response {
    inner.sent.lock().unwrap().push(body.clone());
    let next = inner.answers.lock().unwrap().pop_front();
    let ruled = || {
        let answer = (inner.rule.lock().unwrap())(&body);
        Next::Whole(
            if answer["error"].is_object() {
                400
            } else {
                200
            },
            answer,
        )
    };
    match next.unwrap_or_else(ruled) {
        Next::Stream(stream) => stream.response(&inner.gate),
        Next::Whole(200, answer)
            if body["stream"] == true && inner.streaming.load(Ordering::SeqCst) =>
        {
            match Stream::of(&answer) {
                Some(stream) => stream.response(&inner.gate),
                None => Json(answer).into_response(),
            }
        }
        Next::Whole(status, answer) => {
            (StatusCode::from_u16(status).unwrap(), Json(answer)).into_response()
        }
    }
}

pub fn text_answer(text: &str) -> Value {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "model": "fake",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    })
}

/// Returns an answer with one tool call for each entry of `calls`: the tool's name and the text of
/// the arguments. In every answer, the ids of the calls count up from `call_0`.
pub fn calls(calls: &[(&str, &str)]) -> Value {
    let tool_calls: Vec<_> = calls
        .iter()
        .enumerate()
        .map(|(place, (name, arguments))| {
            json!({"id": format!("call_{place}"), "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    json!({
        "id": "chatcmpl-2", "object": "chat.completion", "model": "fake",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": null, "tool_calls": tool_calls},
                     "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    })
}
