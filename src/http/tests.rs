//! Tests of responses that the service gives without the engine and the database. In these tests,
//! the engine has no agents, and the store is closed.

mod after_commit;
mod bodies;
mod origins;
mod problem_pages;
mod public;
mod sign_in;
mod starting;
pub(crate) mod stored_task;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::response::Response;
use http::{HeaderMap, Method, Request, StatusCode};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::engine::{Engine, EngineParts};
use crate::http::api::submit::run_detached;
use crate::http::edge::Edge;
use crate::http::events::inbox::tail::InboxTails;
use crate::http::events::stream_limiter::StreamLimiter;
use crate::http::events::tail::Tails;
use crate::http::openapi::sample;
use crate::http::server::problem::Code;
use crate::http::{Http, Settings};
use crate::people::Caller;
use crate::people::authenticator::{AuthError, Authenticator};
use crate::store::Store;
use crate::world::captured::Captured;
use crate::world::{RandomIds, SystemClock};

struct OneKey;

impl Authenticator for OneKey {
    fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, AuthError> {
        match headers
            .get("authorization")
            .map(http::HeaderValue::as_bytes)
        {
            None => Err(AuthError::Missing),
            Some(b"Bearer key") => Ok(sample::caller()),
            Some(b"Bearer narrow") => Err(AuthError::Forbidden(
                "This key may not act for others.".into(),
            )),
            Some(_) => Err(AuthError::UnknownKey),
        }
    }
}

/// Returns a store whose operations fail: the store is closed, and its file is deleted.
fn closed_store() -> Store {
    let opened = std::thread::spawn(|| {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/closed.db", folder.path().display());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let settings = crate::store::Settings {
                url: crate::secret::Secret::new(url),
                ..crate::store::Settings::default()
            };
            let store = Store::open(&settings, Arc::new(SystemClock)).await.unwrap();
            store.close().await;
            store
        })
    });
    opened.join().unwrap()
}

/// Returns the service's state. If `open` is true, the service runs without accounts.
pub(crate) fn http(open: bool, cors_origins: &[&str]) -> Http {
    let cors_origins: Vec<String> = cors_origins.iter().map(ToString::to_string).collect();
    let settings = Settings {
        without_accounts: open,
        cors_origins,
        wait: Duration::ZERO,
        ..sample::settings()
    };
    let store = closed_store();
    let engine = Engine::new(EngineParts {
        store: store.clone(),
        agents: Arc::default(),
        policy: Arc::default(),
        catalog: Arc::default(),
        models: std::collections::BTreeMap::new(),
        roster: settings.roster.clone(),
        sealer: settings.sealer.clone(),
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds),
        settings: crate::engine::Settings::default(),
    });
    let tracker = TaskTracker::new();
    let ids: Arc<dyn crate::world::Ids> = Arc::new(RandomIds);
    let edge = Arc::new(Edge::new(&settings, &ids, &tracker));
    Http {
        engine,
        store,
        agents: Vec::new(),
        gate_tools: std::collections::BTreeMap::new(),
        waiting_asks: crate::http::api::gate::waiting::WaitingAsks::default(),
        authenticator: Arc::new(OneKey),
        clock: Arc::new(SystemClock),
        edge,
        settings,
        shutdown: CancellationToken::new(),
        tracker,
        stream_limiter: StreamLimiter::default(),
        tails: Tails::default(),
        inbox_tails: InboxTails::default(),
        body_parser: crate::http::server::body::BodyParser::default(),
        wrong_keys: crate::http::server::wrong_keys::WrongKeys::default(),
        metrics: Arc::new(|| Box::pin(async { "metric 1\n".to_owned() })),
    }
}

fn app(open: bool, cors_origins: &[&str]) -> Router {
    super::routers(http(open, cors_origins)).0
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    fn code(&self) -> String {
        self.json()["code"].as_str().unwrap().to_owned()
    }

    fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

const KEY: (&str, &str) = ("authorization", "Bearer key");
const JSON: (&str, &str) = ("content-type", "application/json");
const REQUEST: &str = "/resume/019a4b2c-7000-7000-8000-000000000002";

async fn ask(
    app: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "127.0.0.1:8080");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    answer(
        app.clone()
            .oneshot(request.body(Body::from(body.to_owned())).unwrap())
            .await
            .unwrap(),
    )
    .await
}

async fn answer(response: Response) -> Answer {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    Answer {
        status,
        headers,
        text: String::from_utf8_lossy(&bytes).into_owned(),
    }
}

#[tokio::test]
async fn every_error_is_a_complete_problem() {
    let app = app(false, &[]);
    for (method, path, headers, body, status, code) in [
        ("GET", "/nowhere", vec![], "", 404, "not_found"),
        ("GET", "/v1/tasks/%ff", vec![KEY], "", 404, "not_found"),
        (
            "GET",
            "/v1/tasks/not-an-id",
            vec![KEY],
            "",
            404,
            "not_found",
        ),
        ("POST", "/resume/7", vec![KEY, JSON], "{}", 404, "not_found"),
        ("GET", "/problems/nonsense", vec![], "", 404, "not_found"),
        ("GET", "/docs/nothing.js", vec![], "", 404, "not_found"),
        ("GET", "/docs/%ff", vec![], "", 404, "not_found"),
        ("POST", "/mcp/%ff", vec![KEY, JSON], "{}", 404, "not_found"),
        (
            "DELETE",
            "/v1/tasks",
            vec![KEY],
            "",
            405,
            "method_not_allowed",
        ),
        ("GET", "/v1/me", vec![], "", 401, "unauthorized"),
        (
            "GET",
            "/v1/me",
            vec![("authorization", "Bearer other")],
            "",
            401,
            "unauthorized",
        ),
        (
            "GET",
            "/v1/me",
            vec![("authorization", "Bearer narrow")],
            "",
            403,
            "forbidden",
        ),
        ("GET", "/v1/tasks?limit=0", vec![KEY], "", 422, "invalid"),
        (
            "GET",
            "/v1/tasks?status=running",
            vec![KEY],
            "",
            422,
            "invalid",
        ),
        (
            "GET",
            "/v1/requests?kind=any",
            vec![KEY],
            "",
            422,
            "invalid",
        ),
        ("GET", "/v1/tasks", vec![KEY], "", 503, "unavailable"),
        ("GET", "/readyz", vec![], "", 503, "unavailable"),
    ] {
        let answer = ask(&app, method, path, &headers, body).await;
        let problem = answer.json();
        assert_eq!(
            (answer.status, problem["code"].as_str().unwrap()),
            (status, code),
            "{method} {path}"
        );
        assert_eq!(
            answer.header("content-type"),
            "application/problem+json",
            "{path}"
        );
        assert_eq!(
            problem["type"],
            format!("http://127.0.0.1:8080/problems/{code}")
        );
        assert_eq!(problem["status"], status);
        assert_eq!(problem["instance"], answer.header("x-request-id"));
        assert!(problem["title"].is_string() && problem["detail"].is_string());
    }
}

#[tokio::test]
async fn error_responses_have_the_headers_of_their_code() {
    let app = app(false, &[]);
    assert_eq!(
        ask(&app, "GET", "/v1/me", &[], "")
            .await
            .header("www-authenticate"),
        "Bearer"
    );
    let allow = ask(&app, "DELETE", "/v1/tasks", &[], "").await;
    assert!(
        allow.header("allow").contains("POST") && allow.header("allow").contains("GET"),
        "{}",
        allow.header("allow")
    );
    assert_eq!(
        ask(&app, "GET", "/readyz", &[], "")
            .await
            .header("retry-after"),
        "1"
    );
    for path in ["/v1/me", "/v1/nowhere", REQUEST] {
        assert_eq!(
            ask(&app, "GET", path, &[], "")
                .await
                .header("cache-control"),
            "no-store",
            "{path}"
        );
    }
}

#[tokio::test]
async fn request_with_several_mistakes_gets_the_status_of_the_first_check() {
    let app = app(false, &[]);
    let evil = ("origin", "https://evil.example");
    let large = ("content-length", "2000000");
    let key = ("idempotency-key", "not a key");
    let text = ("content-type", "text/plain");
    for (method, path, headers, status) in [
        ("POST", "/v1/nowhere", vec![evil, large], 404),
        ("PUT", REQUEST, vec![evil, large], 405),
        ("POST", REQUEST, vec![evil, large], 403),
        ("POST", REQUEST, vec![large], 413),
        (
            "POST",
            "/v1/tasks",
            vec![("content-length", "30000000"), KEY],
            413,
        ),
        ("POST", REQUEST, vec![key, text], 401),
        ("POST", "/resume/7", vec![KEY, key, text], 404),
        ("POST", "/v1/tasks", vec![KEY, key, text], 400),
        ("POST", "/sign-out", vec![key, text], 401),
        ("POST", "/sign-out", vec![KEY, key, text], 400),
        ("POST", "/sign-in", vec![key, text], 400),
        ("POST", "/sign-in", vec![text], 415),
        ("POST", "/v1/tasks", vec![KEY, text], 415),
        ("POST", "/v1/tasks", vec![KEY, JSON], 400),
        (
            "POST",
            "/v1/tasks",
            vec![KEY, ("idempotency-key", "a"), text],
            503,
        ),
        ("POST", REQUEST, vec![KEY, key, text], 503),
    ] {
        assert_eq!(
            ask(&app, method, path, &headers, "x").await.status,
            status,
            "{method} {path} {headers:?}"
        );
    }
}

#[tokio::test]
async fn body_without_a_length_is_too_large_when_it_is_read() {
    let app = app(false, &[]);
    let body = "x".repeat(crate::http::server::operation::SMALL_BODY + 1);
    let answer = ask(&app, "POST", REQUEST, &[KEY], &body).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "too_large"));
    assert_eq!(ask(&app, "POST", REQUEST, &[], &body).await.status, 401);
}

#[tokio::test]
async fn browser_gets_its_error_as_a_page() {
    let app = app(false, &[]);
    let html = ("accept", "text/html,*/*;q=0.8");
    let wrong = ("authorization", "Bearer other");
    let answer = ask(&app, "GET", REQUEST, &[html, wrong], "").await;
    assert_eq!(answer.status, 401);
    assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
    assert!(answer.text.contains("A key is needed") && answer.text.contains("unauthorized"));
    let sign_in = format!("/sign-in?next={REQUEST}");
    assert!(answer.text.contains(&sign_in), "{}", answer.text);
    assert_eq!(answer.header("x-frame-options"), "DENY");
    assert_eq!(answer.header("referrer-policy"), "same-origin");
    assert!(
        answer
            .header("content-security-policy")
            .contains("frame-ancestors 'none'")
    );
    let json = ask(&app, "GET", "/v1/me", &[html, wrong], "").await;
    assert_eq!(json.header("content-type"), "application/problem+json");
}

#[tokio::test]
async fn panic_is_an_internal_problem() {
    let http = Arc::new(http(false, &[]));
    let boom = axum::routing::get(|| async { std::hint::black_box(None::<&str>).expect("boom") });
    let app = super::with_layers(Router::new().route("/boom", boom), http);
    let answer = ask(&app, "GET", "/boom", &[], "").await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "internal"));
    assert_eq!(answer.json()["instance"], answer.header("x-request-id"));
    assert!(!answer.text.contains("boom"));
}

#[tokio::test]
async fn cause_of_an_internal_error_is_logged_where_the_problem_is_built() {
    let captured = Captured::default();
    let printing = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(captured.writer());
    let _printing = tracing::subscriber::set_default(printing.finish());
    let http = http(false, &[]);
    let ended = run_detached::<()>(&http, async { panic!("a private text") }).await;
    assert_eq!(ended.unwrap_err().code, Code::Internal);
    let logged = captured.text();
    let line = "an internal error cause=a command panicked\n";
    assert_eq!(logged.matches(line).count(), 1, "{logged}");
    assert!(!logged.contains("private"), "{logged}");
}

#[tokio::test]
async fn get_me_returns_the_caller() {
    let answer = ask(&app(false, &[]), "GET", "/v1/me", &[KEY], "").await;
    assert_eq!(
        answer.json(),
        serde_json::json!({"user_id": "alice", "tenant": "acme", "groups": ["support"], "via": null, "admin": false,
            "may": ["create", "read", "decide", "gate"], "gates": []})
    );
    assert_eq!(answer.status, StatusCode::OK.as_u16());
}
