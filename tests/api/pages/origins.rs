//! Tests which origins, hosts and proxies may send an approval to the service.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::json;

use super::super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::raw_http;
use crate::support::test_app::{ACCOUNTS, On, REFUNDS, TestApp, refunds};

/// One attempt to approve by a POST: its headers, its content type and body, and the expected
/// status.
type Attempt = (
    &'static [(&'static str, &'static str)],
    Option<(&'static str, &'static str)>,
    u16,
);

const APPROVAL: Option<(&str, &str)> = Some(("application/json", r#"{"action":"approve"}"#));

const HOSTILE: [Attempt; 12] = [
    (&[("origin", "null")], APPROVAL, 403),
    (&[("origin", "https://evil.example")], APPROVAL, 403),
    (&[("origin", "http://127.0.0.1")], APPROVAL, 403),
    (&[("origin", "http://127.0.0.1:1")], APPROVAL, 403),
    (
        &[("origin", "https://app.example.evil.example")],
        APPROVAL,
        403,
    ),
    (&[("origin", "")], APPROVAL, 403),
    (&[("sec-fetch-site", "cross-site")], APPROVAL, 403),
    (&[("sec-fetch-site", "same-site")], APPROVAL, 403),
    (&[("sec-fetch-site", "cross-site")], None, 403),
    (&[], Some(("text/plain", r#"{"action":"approve"}"#)), 415),
    (&[], Some(("multipart/form-data; boundary=x", "x")), 415),
    (
        &[("origin", "https://evil.example")],
        Some(("application/x-www-form-urlencoded", "action=approve")),
        403,
    ),
];

/// Asserts that a service without accounts refuses each HTTP request that names another host or
/// comes through a proxy. Only the health check works through a proxy.
async fn other_hosts_and_proxies_are_refused(app: &TestApp, approve: &str) {
    for host in [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
    ] {
        assert_eq!(
            app.anonymous()
                .header("host", host)
                .hit(&format!("{approve}/approve"))
                .await
                .status,
            403,
            "{host}"
        );
        assert_eq!(
            app.anonymous()
                .header("host", host)
                .get("/v1/tasks")
                .await
                .status,
            403,
            "{host}"
        );
    }
    for name in [
        "forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "via",
        "x-real-ip",
        "cf-connecting-ip",
        "true-client-ip",
        "x-original-forwarded-for",
    ] {
        let refused = app
            .anonymous()
            .header(name, "x")
            .hit(&format!("{approve}/approve"))
            .await;
        assert_eq!(refused.status, 403, "{name}");
        assert!(
            refused.str("/detail").contains("through a proxy"),
            "{name}: {}",
            refused.text
        );
        assert_eq!(
            app.anonymous()
                .header(name, "x")
                .get("/healthz")
                .await
                .status,
            200,
            "{name}"
        );
    }
    // nginx with a bare `proxy_pass` sends a request of this form: HTTP/1.0, and no header that
    // names a proxy.
    for (method, path, status) in [
        ("POST", format!("{approve}/approve"), "403 Forbidden"),
        ("GET", "/v1/tasks".to_owned(), "403 Forbidden"),
        ("GET", "/metrics".to_owned(), "403 Forbidden"),
        ("GET", "/healthz".to_owned(), "200 OK"),
        ("GET", "/readyz".to_owned(), "200 OK"),
    ] {
        let request =
            format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        let answer = raw_http::first_line(&app.url(), request.as_bytes()).await;
        assert_eq!(answer, format!("HTTP/1.0 {status}"), "{method} {path}");
    }
    assert_eq!(
        app.anonymous()
            .header("host", "evil.example")
            .get("/healthz")
            .await
            .status,
        200
    );
}

#[apply(on_both)]
async fn foreign_page_can_neither_create_nor_approve(on: On) {
    for accounts in [true, false] {
        let yaml = REFUNDS.replace("{approvers}", "{ owner: true }")
            + if accounts { ACCOUNTS } else { "" };
        let app = TestApp::with(on, &yaml).await;
        app.model
            .then(calls(&[("refund", r#"{"order":1,"amount":50}"#)]));
        let me = || {
            if accounts {
                app.owner()
            } else {
                app.anonymous()
            }
        };
        let held = me().create_task("go").await;
        let approve = format!("/resume/{}", held.str("/pending/0/request_id"));
        for (headers, body, status) in HOSTILE {
            for path in [approve.as_str(), "/v1/tasks"] {
                let mut actor = me();
                for (name, value) in headers {
                    actor = actor.header(name, value);
                }
                let body = body.map(|(kind, text)| (kind, text.to_owned()));
                let reply = actor.send(Method::POST, path, body.clone()).await;
                assert_eq!(
                    reply.status, status,
                    "{path} {headers:?} {body:?}: {}",
                    reply.text
                );
                assert_eq!(reply.header("access-control-allow-origin"), "");
            }
        }
        if !accounts {
            other_hosts_and_proxies_are_refused(&app, &approve).await;
        }
        let now = me().task(&held.str("/task_id")).await;
        assert_eq!(
            now.body["updated_at"], held.body["updated_at"],
            "nothing changed"
        );
        assert!(app.tool.ledger().is_empty());
        app.model.then(text_answer("ok"));
        let same = me()
            .header("origin", &app.url())
            .hit(&format!("{approve}/approve"))
            .await;
        assert_eq!(
            same.str("/status"),
            "Completed",
            "our own page may: {}",
            same.text
        );
        app.stop().await;
    }
}

#[apply(on_both)]
async fn allowed_origin_works_with_its_preflight(on: On) {
    let yaml =
        refunds("{ owner: true }") + "\nserver: { cors_origins: [\"https://app.example\"] }\n";
    let app = TestApp::with(on, &yaml).await;
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    let asks = app
        .anonymous()
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,content-type",
        );
    let preflight = asks.send(Method::OPTIONS, &path, None).await;
    assert_eq!(preflight.status, 204, "{}", preflight.text);
    assert_eq!(
        preflight.header("access-control-allow-origin"),
        "https://app.example"
    );
    assert!(
        preflight
            .header("access-control-allow-headers")
            .to_ascii_lowercase()
            .contains("authorization")
    );
    assert_eq!(preflight.header("access-control-allow-credentials"), "");
    let foreign = app
        .anonymous()
        .header("origin", "https://evil.example")
        .header("access-control-request-method", "POST");
    let refused = foreign.send(Method::OPTIONS, &path, None).await;
    refused.assert_header(204, "access-control-allow-origin", "");
    app.model.then(text_answer("ok"));
    let done = app
        .owner()
        .header("origin", "https://app.example")
        .post(&path, &json!({"action": "approve"}))
        .await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert_eq!(
        done.header("access-control-allow-origin"),
        "https://app.example"
    );
    let error = app
        .anonymous()
        .header("origin", "https://app.example")
        .get(&path)
        .await;
    error.assert_header(401, "access-control-allow-origin", "https://app.example");
    app.stop().await;
}
