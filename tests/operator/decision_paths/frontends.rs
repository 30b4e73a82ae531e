//! Tests decisions through a frontend on another origin. The service accepts them only from the
//! configured origin.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{APP, EVIL, bearer, serve};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::{ALICE, On};

/// Returns the headers of a `fetch` by the frontend, with `key` in them.
fn fetch(key: &str) -> [(&str, &str); 4] {
    [
        ("authorization", key),
        ("origin", APP),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "cors"),
    ]
}

#[apply(on_both)]
async fn frontend_on_another_origin_decides_with_fetch(on: On) {
    let fixture = serve(on, "{ owner: true }").await;
    let alice = bearer(ALICE);
    let fetch = fetch(&alice);
    let (path, task) = fixture.held(&fetch).await;
    assert_eq!(task.header("access-control-allow-origin"), APP);
    let exposed = task
        .header("access-control-expose-headers")
        .to_ascii_lowercase();
    for name in [
        "location",
        "content-location",
        "retry-after",
        "preference-applied",
        "idempotency-replayed",
        "x-request-id",
    ] {
        assert!(exposed.contains(name), "{exposed}");
    }

    let yes = json!({"action": "approve", "digest": task.str("/pending/0/digest")});
    let keyless = fixture.as_("POST", &path, &[("origin", APP)], &yes).await;
    assert_eq!(
        (
            keyless.status,
            keyless.header("access-control-allow-origin")
        ),
        (401, APP),
        "also an error can be read"
    );
    assert!(fixture.tool.ledger().is_empty());
    let seen = fixture.as_("GET", &path, &fetch, &Value::Null).await;
    assert_eq!(
        (
            seen.status,
            seen.header("access-control-allow-origin"),
            &seen.body["can_decide"]
        ),
        (200, APP, &json!(true))
    );
    let click = [&fetch[..], &[("idempotency-key", "click-1")]].concat();
    let decided = fixture.as_("POST", &path, &click, &yes).await;
    decided.assert_status(200, "Completed");
    let again = fixture.as_("POST", &path, &click, &yes).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (200, "true"),
        "a second click"
    );
    fixture.ran_once();
}

#[apply(on_both)]
async fn preflight_allows_the_configured_origin_and_no_other(on: On) {
    let fixture = serve(on, "{ owner: true }").await;
    let (path, _) = fixture.held(&fetch(&bearer(ALICE))).await;
    let asks = "authorization,content-type,idempotency-key,prefer";
    let preflight = async |origin: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", asks),
        ];
        fixture.as_("OPTIONS", &path, &headers, &Value::Null).await
    };
    let allowed = preflight(APP).await;
    assert_eq!(
        (
            allowed.status,
            allowed.header("access-control-allow-origin")
        ),
        (204, APP),
        "{}",
        allowed.text
    );
    let (methods, headers) = (
        allowed.header("access-control-allow-methods"),
        allowed
            .header("access-control-allow-headers")
            .to_ascii_lowercase(),
    );
    assert!(
        methods.contains("POST") && asks.split(',').all(|name| headers.contains(name)),
        "{methods} {headers}"
    );
    assert_eq!(
        (
            allowed.header("access-control-allow-credentials"),
            allowed
                .header("vary")
                .to_ascii_lowercase()
                .contains("origin")
        ),
        ("", true)
    );
    let foreign = preflight(EVIL).await;
    assert_eq!(foreign.status, 204);
    assert_eq!(foreign.header("access-control-allow-origin"), "");
}

#[apply(on_both)]
async fn decision_from_an_origin_that_is_not_configured_is_refused(on: On) {
    let fixture = serve(on, "{ owner: true }").await;
    let alice = bearer(ALICE);
    let (path, task) = fixture.held(&fetch(&alice)).await;
    let yes = json!({"action": "approve", "digest": task.str("/pending/0/digest")});
    for origin in [
        EVIL,
        "null",
        "https://app.example.evil.example",
        "http://app.example",
        "https://app.example:8443",
    ] {
        let headers = [
            ("authorization", alice.as_str()),
            ("origin", origin),
            ("sec-fetch-site", "cross-site"),
        ];
        let refused = fixture.as_("POST", &path, &headers, &yes).await;
        assert_eq!(
            (refused.status, refused.str("/code").as_str()),
            (403, "forbidden"),
            "{origin}"
        );
        assert_eq!(refused.header("access-control-allow-origin"), "");
    }
    assert!(fixture.tool.ledger().is_empty());
    let decided = fixture.as_("POST", &path, &fetch(&alice), &yes).await;
    decided.assert_status(200, "Completed");
}
