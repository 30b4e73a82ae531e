//! The router with an engine and a store that do nothing: refusals that need neither.

mod bodies;

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

use crate::engine::{Engine, Parts};
use crate::http::events::seats::Seats;
use crate::http::openapi::sample;
use crate::http::server::origin::Origins;
use crate::http::{Http, Settings};
use crate::people::Caller;
use crate::people::authenticator::{AuthError, Authenticator};
use crate::store::Store;
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
            Some(_) => Err(AuthError::Wrong),
        }
    }
}

/// A store that does not answer: it was opened and closed, and its file is deleted.
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

/// The only function that builds an engine and a store that do nothing.
fn http(open: bool, cors_origins: &[&str]) -> Http {
    let cors_origins: Vec<String> = cors_origins.iter().map(ToString::to_string).collect();
    let settings = Settings {
        open,
        cors_origins,
        wait: Duration::ZERO,
        ..sample::settings()
    };
    let store = closed_store();
    let engine = Engine::new(Parts {
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
    Http {
        engine,
        store,
        agents: Vec::new(),
        authenticator: Arc::new(OneKey),
        ids: Arc::new(RandomIds),
        clock: Arc::new(SystemClock),
        origins: Origins::default(),
        settings,
        shutdown: CancellationToken::new(),
        tracker: TaskTracker::new(),
        seats: Seats::default(),
        parsing: crate::http::server::body::Parsing::default(),
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
async fn errors_carry_their_headers() {
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
async fn checks_run_in_their_order() {
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
    let body = "x".repeat(crate::http::server::operation::SMALL + 1);
    let answer = ask(&app, "POST", REQUEST, &[KEY], &body).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "too_large"));
    assert_eq!(ask(&app, "POST", REQUEST, &[], &body).await.status, 401);
}

#[tokio::test]
async fn pages_of_other_origins_change_nothing() {
    for open in [false, true] {
        let app = app(open, &["https://app.example"]);
        for (headers, expected) in [
            (vec![("origin", "https://evil.example")], 403),
            (vec![("origin", "null")], 403),
            (vec![("origin", "http://127.0.0.1:9999")], 403),
            (vec![("origin", "http://localhost:8080")], 403),
            (vec![("sec-fetch-site", "cross-site")], 403),
            (vec![("sec-fetch-site", "same-site")], 403),
            (
                vec![("host", "evil.example"), ("origin", "http://evil.example")],
                if open { 403 } else { 401 },
            ),
            (vec![("host", "evil.example")], if open { 403 } else { 401 }),
            (
                vec![("x-forwarded-for", "1.2.3.4")],
                if open { 403 } else { 401 },
            ),
            (vec![("origin", "http://127.0.0.1:8080")], 401),
            (
                vec![
                    ("origin", "https://app.example"),
                    ("sec-fetch-site", "cross-site"),
                ],
                401,
            ),
            (vec![("sec-fetch-site", "same-origin")], 401),
            (vec![("sec-fetch-site", "none")], 401),
            (vec![], 401),
        ] {
            for path in ["/v1/tasks", REQUEST, &format!("{REQUEST}/approve")] {
                for body in ["", "action=approve"] {
                    let answer = ask(&app, "POST", path, &headers, body).await;
                    assert_eq!(answer.status, expected, "open {open}: {path} {headers:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn health_is_answered_under_every_name_without_accounts() {
    let app = app(true, &[]);
    let host = [("host", "probe.internal"), ("x-forwarded-for", "10.0.0.1")];
    assert_eq!(ask(&app, "GET", "/healthz", &host, "").await.status, 200);
    assert_eq!(ask(&app, "GET", "/readyz", &host, "").await.status, 503);
    for path in [
        "/docs",
        "/openapi.json",
        "/metrics",
        "/problems/invalid",
        "/v1/me",
        REQUEST,
    ] {
        let answer = ask(&app, "GET", path, &host, "").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (403, "forbidden"),
            "{path}"
        );
    }
    assert_eq!(ask(&app, "GET", "/nowhere", &host, "").await.status, 404);
}

#[tokio::test]
async fn known_origin_gets_cors_headers_and_another_does_not() {
    let app = app(false, &["https://app.example"]);
    let preflight = |origin| {
        [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization"),
        ]
    };
    let known = ask(
        &app,
        "OPTIONS",
        REQUEST,
        &preflight("https://app.example"),
        "",
    )
    .await;
    assert_eq!(
        (known.status, known.header("access-control-allow-origin")),
        (204, "https://app.example")
    );
    assert_eq!(
        known.header("access-control-allow-headers"),
        "Authorization, Content-Type, Idempotency-Key, Prefer, Last-Event-ID"
    );
    assert!(
        known
            .header("access-control-allow-methods")
            .contains("POST")
    );
    let other = ask(
        &app,
        "OPTIONS",
        REQUEST,
        &preflight("https://evil.example"),
        "",
    )
    .await;
    assert_eq!(other.status, 204);
    assert!(
        !other
            .headers
            .keys()
            .any(|name| name.as_str().starts_with("access-control"))
    );
    assert_eq!(
        ask(
            &app,
            "OPTIONS",
            "/nowhere",
            &preflight("https://app.example"),
            ""
        )
        .await
        .status,
        404
    );
    assert_eq!(ask(&app, "OPTIONS", REQUEST, &[], "").await.status, 405);
    for (path, status) in [("/v1/me", 401), ("/nowhere", 404), ("/healthz", 200)] {
        let answer = ask(&app, "GET", path, &[("origin", "https://app.example")], "").await;
        assert_eq!(
            (answer.status, answer.header("access-control-allow-origin")),
            (status, "https://app.example")
        );
        assert!(
            answer
                .header("access-control-expose-headers")
                .contains("X-Request-Id")
        );
        assert!(
            !answer
                .headers
                .contains_key("access-control-allow-credentials")
        );
        assert_eq!(answer.header("vary"), "Origin".to_owned(), "{path}");
    }
}

#[tokio::test]
async fn without_accounts_preflight_through_a_proxy_or_for_another_host_is_403() {
    let app = app(true, &["https://app.example"]);
    let asks = [
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
    ];
    assert_eq!(ask(&app, "OPTIONS", REQUEST, &asks, "").await.status, 204);
    for added in [("host", "evil.example"), ("x-forwarded-for", "1.2.3.4")] {
        let answer = ask(&app, "OPTIONS", REQUEST, &[asks[0], asks[1], added], "").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (403, "forbidden"),
            "{added:?}"
        );
    }
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
async fn browser_without_a_key_is_redirected_to_sign_in_and_a_program_is_not() {
    let app = app(false, &[]);
    let html = ("accept", "text/html,*/*;q=0.8");
    for method in ["GET", "HEAD"] {
        for (path, next) in [
            (REQUEST, "%2Fresume%2F019a4b2c-7000-7000-8000-000000000002"),
            ("/resume/7/approve?a=b", "%2Fresume%2F7%2Fapprove%3Fa%3Db"),
            ("/v1/me", "%2Fv1%2Fme"),
        ] {
            let answer = ask(&app, method, path, &[html], "").await;
            assert_eq!(
                (answer.status, answer.header("location")),
                (303, format!("/sign-in?next={next}").as_str())
            );
            assert_eq!(
                (answer.text.as_str(), answer.header("cache-control")),
                ("", "no-store")
            );
        }
    }
    for (method, path, headers, status) in [
        ("GET", REQUEST, vec![], 401),
        (
            "GET",
            REQUEST,
            vec![("accept", "application/json, text/html;q=0.5")],
            401,
        ),
        ("GET", REQUEST, vec![("accept", "text/event-stream")], 401),
        (
            "GET",
            REQUEST,
            vec![html, ("authorization", "Bearer other")],
            401,
        ),
        (
            "GET",
            REQUEST,
            vec![html, ("cookie", "holdpoint_session=nonsense")],
            303,
        ),
        ("GET", "/resume", vec![html], 404),
        ("POST", REQUEST, vec![html], 401),
        ("POST", "/sign-out", vec![html], 401),
        (
            "POST",
            "/sign-out",
            vec![
                ("cookie", "holdpoint_session=nonsense"),
                ("authorization", "Bearer other"),
            ],
            401,
        ),
        (
            "POST",
            "/sign-out",
            vec![
                ("cookie", "holdpoint_session=nonsense"),
                ("holdpoint-user", "bob"),
            ],
            403,
        ),
        (
            "POST",
            "/sign-out",
            vec![("cookie", "holdpoint_session=nonsense")],
            303,
        ),
        ("POST", "/sign-out", vec![KEY], 303),
    ] {
        let answer = ask(&app, method, path, &headers, "").await;
        assert_eq!(answer.status, status, "{method} {path} {headers:?}");
        assert_eq!(
            answer.header("www-authenticate"),
            if status == 401 { "Bearer" } else { "" },
            "{path}"
        );
    }
}

#[tokio::test]
async fn invalid_sign_in_form_starts_no_session() {
    let app = app(false, &[]);
    let form = ("content-type", "application/x-www-form-urlencoded");
    let html = ("accept", "text/html");
    for (headers, body, status) in [
        (vec![form], "key=nobody-0123456789", 401),
        (vec![form], "key=", 401),
        (vec![form], "", 422),
        (vec![JSON], r#"{"key":"key"}"#, 415),
        (vec![], "key=key", 415),
        (vec![("content-type", "text/plain")], "key=key", 415),
        (vec![form], "key=a&key=b", 400),
        (vec![form], "key=a&user=b", 422),
        (vec![form], "key=%00", 422),
        (vec![form, ("content-length", "2000000")], "key=a", 413),
        (vec![form, ("origin", "https://evil.example")], "key=a", 403),
        (vec![form, ("origin", "null")], "key=a", 403),
        (vec![form, ("sec-fetch-site", "same-site")], "key=a", 403),
        (vec![form, ("sec-fetch-site", "cross-site")], "key=a", 403),
    ] {
        let answer = ask(&app, "POST", "/sign-in", &headers, body).await;
        assert_eq!(answer.status, status, "{headers:?} {body}");
        assert!(
            answer.header("set-cookie").is_empty() && !answer.text.contains("nobody-0123456789")
        );
        let page: Vec<_> = headers.iter().copied().chain([html]).collect();
        let answer = ask(&app, "POST", "/sign-in", &page, body).await;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (status, "text/html; charset=utf-8"),
            "{body}"
        );
        assert_eq!(
            (
                answer.header("cache-control"),
                answer.header("x-frame-options")
            ),
            ("no-store", "DENY")
        );
        assert!(
            answer
                .header("content-security-policy")
                .contains("default-src 'none'")
        );
        assert_eq!(answer.header("referrer-policy"), "same-origin");
    }
    let large = format!("key={}", "x".repeat(crate::http::server::operation::SMALL));
    assert_eq!(
        ask(&app, "POST", "/sign-in", &[form], &large).await.status,
        413
    );
}

#[tokio::test]
async fn sign_in_page_needs_no_key_without_accounts() {
    let app = app(true, &[]);
    let form = ("content-type", "application/x-www-form-urlencoded");
    for (method, headers, body) in [("GET", vec![], ""), ("POST", vec![form], "key=key")] {
        let answer = ask(&app, method, "/sign-in", &headers, body).await;
        assert_eq!(answer.status, 200);
        assert!(
            answer.text.contains("No sign-in is needed") && !answer.text.contains("<form"),
            "{}",
            answer.text
        );
        assert!(answer.header("set-cookie").is_empty());
        let host = [("host", "evil.example")];
        assert_eq!(ask(&app, method, "/sign-in", &host, body).await.status, 403);
    }
    let chinese = ask(
        &app,
        "GET",
        "/sign-in",
        &[("accept-language", "zh-CN,zh;q=0.9,en;q=0.8")],
        "",
    )
    .await;
    assert!(
        chinese.text.contains("无需登录") && chinese.text.contains(r#"lang="zh-Hans""#),
        "{}",
        chinese.text
    );
}

#[tokio::test]
async fn public_endpoints_are_served_without_a_key() {
    let app = app(false, &[]);
    assert_eq!(ask(&app, "GET", "/healthz", &[], "").await.text, "ok\n");
    assert_eq!(ask(&app, "HEAD", "/healthz", &[], "").await.text, "");
    assert_eq!(
        ask(&app, "GET", "/metrics", &[], "").await.text,
        "metric 1\n"
    );
    assert_eq!(
        ask(&app, "GET", "/openapi.json", &[], "").await.json()["openapi"],
        "3.1.0"
    );
    let page = ask(&app, "GET", "/problems/task_paused", &[], "").await;
    assert!(
        page.text.contains("supersede") && page.header("content-type").starts_with("text/html")
    );
    let script = ask(&app, "GET", "/follow.js", &[], "").await;
    assert_eq!(
        (script.status, script.header("content-type")),
        (200, "text/javascript; charset=utf-8")
    );
    assert_eq!(
        (
            script.header("cache-control"),
            script.header("x-content-type-options")
        ),
        ("no-cache", "nosniff")
    );
    let docs = ask(&app, "GET", "/docs", &[], "").await;
    assert_eq!(docs.status, 200);
    let assets: Vec<&str> = docs
        .text
        .split('"')
        .filter(|text| text.starts_with("docs/"))
        .collect();
    assert!(assets.len() >= 4, "{}", docs.text);
    for asset in assets {
        assert_eq!(
            ask(&app, "GET", &format!("/{asset}"), &[], "").await.status,
            200,
            "{asset}"
        );
    }
    assert!(!docs.text.contains("./"), "{}", docs.text);
    let setup = ask(&app, "GET", "/docs/swagger-initializer.js", &[], "")
        .await
        .text;
    assert!(
        setup.contains("\"openapi.json\"") && setup.contains("\"none\""),
        "{setup}"
    );
    assert_eq!(
        ask(&app, "GET", "/docs/", &[], "").await.header("location"),
        "../docs"
    );
}

#[tokio::test]
async fn panic_is_an_internal_problem() {
    let http = Arc::new(http(false, &[]));
    let boom = axum::routing::get(|| async { std::hint::black_box(None::<&str>).expect("boom") });
    let app = super::wrapped(Router::new().route("/boom", boom), http);
    let answer = ask(&app, "GET", "/boom", &[], "").await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "internal"));
    assert_eq!(answer.json()["instance"], answer.header("x-request-id"));
    assert!(!answer.text.contains("boom"));
}

#[tokio::test]
async fn me_returns_the_caller() {
    let answer = ask(&app(false, &[]), "GET", "/v1/me", &[KEY], "").await;
    assert_eq!(
        answer.json(),
        serde_json::json!({"user_id": "alice", "tenant": "acme", "groups": ["support"], "via": null, "admin": false,
            "may": ["create", "read", "decide"]})
    );
    assert_eq!(answer.status, StatusCode::OK.as_u16());
}
