//! A fake tool endpoint on loopback. It records the calls that it executes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

#[derive(Clone, Debug)]
pub struct Execution {
    pub method: Method,
    pub uri: String,
    pub headers: HeaderMap,
    pub body: String,
    pub at: std::time::Instant,
}

impl Execution {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
    }
}

#[derive(Clone)]
pub struct FakeTool {
    pub url: String,
    inner: Arc<Inner>,
}

struct Inner {
    answer: Mutex<(u16, Vec<u8>)>,
    /// The statuses of the next calls. These calls ignore `answer` and `open`.
    next: Mutex<VecDeque<u16>>,
    open: tokio::sync::watch::Sender<bool>,
    ledger: Mutex<Vec<Execution>>,
    seen: tokio::sync::watch::Sender<usize>,
}

impl FakeTool {
    pub async fn start() -> Self {
        let inner = Arc::new(Inner {
            answer: Mutex::new((200, br#"{"ok":true}"#.to_vec())),
            next: Mutex::default(),
            open: tokio::sync::watch::Sender::new(true),
            ledger: Mutex::default(),
            seen: tokio::sync::watch::Sender::new(0),
        });
        let router = Router::new()
            .fallback(execute)
            .with_state(Arc::clone(&inner));
        Self {
            url: format!("http://{}", super::serve(router).await),
            inner,
        }
    }

    pub fn answers(&self, status: u16, body: impl Into<Vec<u8>>) -> &Self {
        *self.inner.answer.lock().unwrap() = (status, body.into());
        self
    }

    /// Answers the next calls at once, also while the tool is closed: each call with one of these
    /// statuses, in this order, and no body. Later calls get the ordinary answer.
    pub fn answers_next(&self, statuses: &[u16]) {
        *self.inner.next.lock().unwrap() = statuses.iter().copied().collect();
    }

    pub fn ledger(&self) -> Vec<Execution> {
        self.inner.ledger.lock().unwrap().clone()
    }

    /// Returns the number of calls at this path that the tool has executed for a task.
    pub fn executions(&self, task: &str, path: &str) -> usize {
        let ledger = self.inner.ledger.lock().unwrap();
        let of_task =
            |call: &&Execution| call.uri == path && call.header("holdpoint-task-id") == task;
        ledger.iter().filter(of_task).count()
    }

    pub fn count(&self) -> usize {
        *self.inner.seen.borrow()
    }

    pub fn since(&self, count: usize) -> Vec<Execution> {
        self.inner.ledger.lock().unwrap()[count..].to_vec()
    }

    /// Leaves all calls without an answer from now on, until the test calls [`FakeTool::open`]. The
    /// calls are still executed.
    pub fn close(&self) {
        self.inner.open.send_replace(false);
    }

    /// Answers the calls that wait for an answer, and answers all later calls at once.
    pub fn open(&self) {
        self.inner.open.send_replace(true);
    }

    pub async fn reached(&self, count: usize) {
        self.inner
            .seen
            .subscribe()
            .wait_for(|seen| *seen >= count)
            .await
            .unwrap();
    }
}

async fn execute(
    State(inner): State<Arc<Inner>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let at = std::time::Instant::now();
    let body = String::from_utf8_lossy(&body).into_owned();
    let count = {
        let mut ledger = inner.ledger.lock().unwrap();
        ledger.push(Execution {
            method,
            uri: uri.to_string(),
            headers,
            body,
            at,
        });
        ledger.len()
    };
    // The lock is already released, so a later execution may have stored its higher count first.
    // `max` keeps that count.
    inner.seen.send_modify(|seen| *seen = count.max(*seen));
    let next = inner.next.lock().unwrap().pop_front();
    if let Some(status) = next {
        return StatusCode::from_u16(status).unwrap().into_response();
    }
    let mut open = inner.open.subscribe();
    let _ = open.wait_for(|open| *open).await;
    let (status, body) = inner.answer.lock().unwrap().clone();
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}
