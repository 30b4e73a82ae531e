//! Tests of operations that need no key.

use std::io::Read as _;

use flate2::read::GzDecoder;

use super::*;

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
    for path in ["/follow.js", "/inbox.js", "/times.js"] {
        let script = ask(&app, "GET", path, &[], "").await;
        assert_eq!(
            (script.status, script.header("content-type")),
            (200, "text/javascript; charset=utf-8"),
            "{path}"
        );
        assert_eq!(
            (
                script.header("cache-control"),
                script.header("x-content-type-options")
            ),
            ("no-cache", "nosniff"),
            "{path}"
        );
    }
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
async fn link_with_an_unknown_header_is_a_bad_request_and_names_no_other_user() {
    let app = app(false, &[]);
    for (header, status) in [
        ("holdpoint-nope", 400),
        ("holdpoint-user", 403),
        ("holdpoint-groups", 403),
        ("holdpoint-runner", 404),
        ("holdpoint-session", 404),
    ] {
        let answer = ask(&app, "GET", "/l/x", &[(header, "x")], "").await;
        assert_eq!(answer.status, status, "{header}");
        assert!(!answer.text.contains("browser"), "{}", answer.text);
    }
}

/// Requests an asset with the header `accept-encoding: {accepts}`. Returns the encoding and the
/// body of the response.
async fn asset(app: &Router, name: &str, accepts: Option<&str>) -> (String, Vec<u8>) {
    let mut request = Request::get(format!("/docs/{name}")).header("host", "127.0.0.1:8080");
    if let Some(accepts) = accepts {
        request = request.header("accept-encoding", accepts);
    }
    let response = app.clone().oneshot(request.body(Body::empty()).unwrap());
    let response = response.await.unwrap();
    let headers = response.headers().clone();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let mut varies = headers.get_all("vary").iter();
    assert!(varies.any(|vary| vary == "Accept-Encoding"), "{headers:?}");
    let encoding = headers.get("content-encoding");
    let encoding = encoding.map_or("", |encoding| encoding.to_str().unwrap());
    (encoding.to_owned(), bytes.to_vec())
}

#[tokio::test]
async fn docs_asset_is_compressed_where_the_client_takes_gzip() {
    let app = app(false, &[]);
    for name in ["swagger-ui-bundle.js", "swagger-ui.css"] {
        let (encoding, gzipped) = asset(&app, name, Some("gzip, deflate, br")).await;
        assert_eq!(
            (encoding.as_str(), &gzipped[..2]),
            ("gzip", &[0x1f, 0x8b][..])
        );
        for accepts in [None, Some("identity"), Some("gzip;q=0"), Some("br")] {
            let (encoding, bytes) = asset(&app, name, accepts).await;
            assert_eq!(encoding, "", "{accepts:?}");
            let mut expected = Vec::new();
            GzDecoder::new(gzipped.as_slice())
                .read_to_end(&mut expected)
                .unwrap();
            assert!(
                bytes == expected && bytes.len() > 2 * gzipped.len(),
                "{accepts:?}"
            );
        }
    }
    let (encoding, setup) = asset(&app, "swagger-initializer.js", Some("gzip")).await;
    assert!(encoding.is_empty() && setup.starts_with(b"window.onload"));
}
