//! Tests of sign-in and sign-out in a browser.

use super::*;

#[tokio::test]
async fn browser_without_a_key_is_redirected_to_sign_in_and_a_program_is_not() {
    let app = app(false, &[]);
    let html = ("accept", "text/html,*/*;q=0.8");
    for method in ["GET", "HEAD"] {
        for (path, next) in [
            (REQUEST, REQUEST),
            ("/resume/7/approve?a=b", "/resume/7/approve%3Fa%3Db"),
            ("/v1/me", "/v1/me"),
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
    let large = format!(
        "key={}",
        "x".repeat(crate::http::server::operation::SMALL_BODY)
    );
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
