//! An MCP server over HTTP for tests. It records each request. The test supplies the answers.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use url::Url;
use uuid::Uuid;

use super::client::{Client, McpCall, McpOutcome};
use super::settings::{OAuth, Transport};
use super::wire::Revision;
use crate::net::Net;
use crate::secret::{Redactor, Secret};
use crate::task::id::CallId;
use crate::task::time::Time;
use crate::tool::headers::Headers;
use crate::tool::{AttemptPermit, LateAnswerCell, RawResultCell};
use crate::world::Clock;

/// All tests share this value, because reading the machine's certificates is slow.
pub(super) static NET: LazyLock<Net> = LazyLock::new(|| Net::new().unwrap());

#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) http: String,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Seen {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// Returns the method of the message in the body. Returns an empty text if the message is a
    /// reply or there is no message.
    pub(super) fn method(&self) -> String {
        let json = self.json();
        json["method"].as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(super) fn result(&self, result: &Value) -> Response {
        let text = self.result_text(result);
        answer(200, "application/json", text)
    }

    pub(super) fn result_text(&self, result: &Value) -> String {
        json!({"jsonrpc": "2.0", "id": self.json()["id"], "result": result}).to_string()
    }

    pub(super) fn error(&self, status: u16, code: i64) -> Response {
        let error = json!({"code": code, "message": "no"});
        let text = json!({"jsonrpc": "2.0", "id": self.json()["id"], "error": error});
        answer(status, "application/json", text.to_string())
    }
}

pub(super) fn answer(status: u16, kind: &str, body: impl Into<Body>) -> Response {
    let response = Response::builder().status(status);
    let response = response.header("content-type", kind);
    response.body(body.into()).unwrap()
}

pub(super) fn events(texts: &[String]) -> String {
    let lines = texts.iter().map(|text| format!("data: {text}\n\n"));
    lines.collect::<Vec<_>>().concat()
}

/// Returns an event stream with one event for each text. After the last event, the stream stays
/// open.
pub(super) fn endless(texts: &[String]) -> Response {
    use futures_util::StreamExt as _;
    let begun = futures_util::stream::iter([Ok::<_, std::io::Error>(events(texts))]);
    let stream = begun.chain(futures_util::stream::pending());
    answer(200, "text/event-stream", Body::from_stream(stream))
}

/// Returns the result of a successful call, with `text` as its content.
pub(super) fn said(text: &str) -> Value {
    json!({"resultType": "complete", "content": [{"type": "text", "text": text}]})
}

pub(super) fn succeeded(text: &str) -> McpOutcome {
    McpOutcome::Succeeded(text.to_owned())
}

/// Answers `server/discover` like a server that speaks the stateless revision (2026-07-28). Returns
/// `None` for any other method.
pub(super) fn modern(seen: &Seen) -> Option<Response> {
    (seen.method() == "server/discover").then(|| {
        seen.result(&json!({"supportedVersions": ["2026-07-28"], "resultType": "complete"}))
    })
}

/// Answers the requests that begin a session, like a server of an older revision. Returns `None`
/// for other requests. `session` is the session's id.
pub(super) fn older(seen: &Seen, session: &str) -> Option<Response> {
    match seen.method().as_str() {
        "server/discover" => Some(seen.error(200, -32601)),
        "initialize" => {
            let result = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "old"}});
            let mut response = seen.result(&result);
            let session = session.parse().unwrap();
            response.headers_mut().insert("mcp-session-id", session);
            Some(response)
        }
        "notifications/initialized" => Some(answer(202, "text/plain", "")),
        _ => None,
    }
}

/// A clock that records each sleep, and whose sleeps end at once.
#[derive(Default)]
pub(super) struct Quick(pub(super) Mutex<Vec<Duration>>);

#[async_trait::async_trait]
impl Clock for Quick {
    fn now(&self) -> Time {
        Time(0)
    }

    fn uptime(&self) -> Duration {
        Duration::ZERO
    }

    async fn sleep(&self, time: Duration) {
        self.0.lock().unwrap().push(time);
    }
}

pub(super) struct Fake {
    pub(super) url: Url,
    pub(super) pauses: Arc<Quick>,
    seen: Arc<Mutex<Vec<Seen>>>,
    serving: JoinHandle<()>,
}

impl Fake {
    /// Starts a server. If `answer` returns `None`, the request is never answered.
    pub(super) async fn new(
        answer: impl Fn(&Seen) -> Option<Response> + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let record = Arc::clone(&seen);
        let router = axum::Router::new().fallback(move |request: Request| {
            let (record, answer) = (Arc::clone(&record), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = to_bytes(body, usize::MAX).await.unwrap();
                let seen = Seen {
                    http: head.method.to_string(),
                    path: head.uri.path().to_owned(),
                    headers: head.headers,
                    body: String::from_utf8(body.to_vec()).unwrap(),
                };
                record.lock().unwrap().push(seen.clone());
                let Some(response) = answer(&seen) else {
                    return std::future::pending().await;
                };
                response
            }
        });
        #[expect(clippy::disallowed_methods, reason = "the fake server of a test")]
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let url = url.parse().unwrap();
        Self {
            url,
            pauses: Arc::default(),
            seen,
            serving,
        }
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(super) fn methods(&self) -> Vec<String> {
        self.seen().iter().map(Seen::method).collect()
    }

    pub(super) fn calls(&self) -> Vec<Seen> {
        let all = self.seen().into_iter();
        all.filter(|seen| seen.method() == "tools/call").collect()
    }

    pub(super) fn client(&self) -> Client {
        self.client_with(None, None, Duration::from_secs(20))
    }

    pub(super) fn client_with(
        &self,
        oauth: Option<OAuth>,
        hint: Option<Revision>,
        timeout: Duration,
    ) -> Client {
        let transport = Transport::Http {
            url: self.url.clone(),
            headers: Headers::default(),
            oauth: oauth.map(Box::new),
        };
        let clock: Arc<dyn Clock> = Arc::clone(&self.pauses) as _;
        let log = (Arc::default(), false);
        Client::new("tickets", transport, timeout, hint, &NET, &clock, log)
    }

    /// Returns client credentials whose token endpoint is this server.
    pub(super) fn oauth(&self) -> OAuth {
        OAuth {
            token_url: self.url.join("/token").unwrap().to_string(),
            client_id: "hold point".to_owned(),
            client_secret: Secret::new("cl1ent-s3cret".to_owned()),
            scopes: vec!["a".to_owned(), "b".to_owned()],
            resource: Some("https://mcp.acme.com/mcp".to_owned()),
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Owns the values that a [`McpCall`] borrows.
pub(super) struct OwnedCall {
    pub(super) arguments: String,
    pub(super) schema: Value,
    pub(super) headers: HeaderMap,
    pub(super) permit: AttemptPermit,
    pub(super) redactor: Redactor,
    pub(super) id: u128,
    pub(super) late: LateAnswerCell,
    pub(super) raw: RawResultCell,
}

impl Default for OwnedCall {
    fn default() -> Self {
        Self {
            arguments: "{}".to_owned(),
            schema: json!({"type": "object"}),
            headers: HeaderMap::new(),
            permit: AttemptPermit::permitted_while(|| true),
            redactor: Redactor::default(),
            id: 2,
            late: LateAnswerCell::default(),
            raw: RawResultCell::default(),
        }
    }
}

impl OwnedCall {
    pub(super) fn call(&self) -> McpCall<'_> {
        McpCall {
            tool: "ticket.close",
            arguments: &self.arguments,
            schema: &self.schema,
            id: CallId(Uuid::from_u128(self.id)),
            traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            headers: self.headers.clone(),
            permit: &self.permit,
            redactor: &self.redactor,
            resume: None,
            late: &self.late,
            raw: &self.raw,
        }
    }
}

/// Makes the call of the default [`OwnedCall`], and returns the outcome.
pub(super) async fn called(client: &Client) -> McpOutcome {
    client.call(OwnedCall::default().call()).await
}
