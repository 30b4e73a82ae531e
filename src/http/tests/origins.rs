//! Tests of origins, CORS, and requests through a proxy or for another host.

use super::*;

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
