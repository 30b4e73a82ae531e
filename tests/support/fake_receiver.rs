//! A receiver of webhooks on loopback. It records every message that arrives.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;

#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    pub headers: HeaderMap,
    pub text: String,
    pub body: Value,
}

impl Received {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
    }

    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }

    pub fn kind(&self) -> &str {
        self.body["type"].as_str().unwrap_or("")
    }

    /// Returns whether the message has a signature made with this secret.
    pub fn is_signed_with(&self, secret: &str) -> bool {
        let key = BASE64_STANDARD
            .decode(secret.strip_prefix("whsec_").unwrap())
            .unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        let time = self.header("webhook-timestamp");
        mac.update(format!("{}.{time}.{}", self.id(), self.text).as_bytes());
        let expected = BASE64_STANDARD.encode(mac.finalize().into_bytes());
        self.header("webhook-signature")
            .split(' ')
            .any(|signature| signature == format!("v1,{expected}"))
    }
}

/// A function that returns the answer to a message.
type Answers = dyn Fn(&Received) -> Response + Send + Sync;
/// A function that returns whether a message has to wait for its answer.
type Waits = dyn Fn(&Received) -> bool + Send + Sync;

#[derive(Clone)]
pub struct FakeReceiver {
    pub url: String,
    inner: Arc<Inner>,
}

struct Inner {
    answers: Mutex<Arc<Answers>>,
    gate: tokio::sync::watch::Sender<Arc<Waits>>,
    ledger: Mutex<Vec<Received>>,
    arrived: tokio::sync::watch::Sender<usize>,
}

impl FakeReceiver {
    pub async fn start() -> Self {
        let inner = Arc::new(Inner {
            answers: Mutex::new(Arc::new(|_| StatusCode::NO_CONTENT.into_response())),
            gate: tokio::sync::watch::Sender::new(Arc::new(|_| false)),
            ledger: Mutex::default(),
            arrived: tokio::sync::watch::Sender::new(0),
        });
        let router = Router::new()
            .fallback(receive)
            .with_state(Arc::clone(&inner));
        Self {
            url: format!("http://{}", super::serve(router).await),
            inner,
        }
    }

    pub fn answers(&self, status: u16) {
        self.answers_by(move |_| (status, Vec::new()));
    }

    /// From now on, answers each message with the status and the headers that `answer` returns.
    pub fn answers_by(
        &self,
        answer: impl Fn(&Received) -> (u16, Vec<(&'static str, String)>) + Send + Sync + 'static,
    ) {
        self.replies(move |message| {
            let (status, headers) = answer(message);
            let mut response = StatusCode::from_u16(status).unwrap().into_response();
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        });
    }

    pub fn replies(&self, reply: impl Fn(&Received) -> Response + Send + Sync + 'static) {
        *self.inner.answers.lock().unwrap() = Arc::new(reply);
    }

    /// Leaves all messages without an answer from now on, until the test calls
    /// [`FakeReceiver::open`].
    pub fn close(&self) {
        self.close_to(|_| true);
    }

    /// Leaves the messages for which `waits` returns true without an answer from now on, until the
    /// test calls [`FakeReceiver::open`].
    pub fn close_to(&self, waits: impl Fn(&Received) -> bool + Send + Sync + 'static) {
        self.inner.gate.send_replace(Arc::new(waits));
    }

    /// Answers the messages that wait for an answer. Answers later messages as soon as they arrive.
    pub fn open(&self) {
        self.close_to(|_| false);
    }

    pub fn all(&self) -> Vec<Received> {
        self.inner.ledger.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        *self.inner.arrived.borrow()
    }

    pub fn of(&self, kind: &str) -> Vec<Received> {
        let mut all = self.all();
        all.retain(|message| message.kind() == kind);
        all
    }

    pub async fn reached(&self, count: usize) {
        self.inner
            .arrived
            .subscribe()
            .wait_for(|arrived| *arrived >= count)
            .await
            .unwrap();
    }
}

async fn receive(
    State(inner): State<Arc<Inner>>,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let message = Received {
        path: uri.path().to_owned(),
        headers,
        body: serde_json::from_str(&text).unwrap_or_default(),
        text,
    };
    let count = {
        let mut ledger = inner.ledger.lock().unwrap();
        ledger.push(message.clone());
        ledger.len()
    };
    // The lock is already released, so the handler of a later message may have stored its higher
    // count first. `max` keeps that count.
    inner
        .arrived
        .send_modify(|arrived| *arrived = count.max(*arrived));
    let mut gate = inner.gate.subscribe();
    drop(gate.wait_for(|waits| !waits(&message)).await);
    let answer = Arc::clone(&inner.answers.lock().unwrap());
    answer(&message)
}
