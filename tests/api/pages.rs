//! Tests of other sites' web pages, which must not be able to approve, and of the service's own
//! page, which may approve.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::json;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::raw_http;
use crate::support::test_app::{ACCOUNTS, On, REFUNDS, TestApp, refunds};

const JSON: &str = "application/json";

/// One attempt to approve by a POST: its headers, its content type and body, and the expected
/// status.
type Attempt = (
    &'static [(&'static str, &'static str)],
    Option<(&'static str, &'static str)>,
    u16,
);

const HOSTILE: [Attempt; 12] = [
    (
        &[("origin", "null")],
        Some((JSON, r#"{"action":"approve"}"#)),
        403,
    ),
    (
        &[("origin", "https://evil.example")],
        Some((JSON, r#"{"action":"approve"}"#)),
        403,
    ),
    (
        &[("origin", "http://127.0.0.1")],
        Some((JSON, r#"{"action":"approve"}"#)),
        403,
    ),
    (
        &[("origin", "http://127.0.0.1:1")],
        Some((JSON, r#"{"action":"approve"}"#)),
        403,
    ),
    (
        &[("origin", "https://app.example.evil.example")],
        Some((JSON, r#"{"action":"approve"}"#)),
        403,
    ),
    (
        &[("origin", "")],
        Some((JSON, r#"{"action":"approve"}"#)),
        403,
    ),
    (
        &[("sec-fetch-site", "cross-site")],
        Some((JSON, r#"{"action":"approve"}"#)),
        403,
    ),
    (
        &[("sec-fetch-site", "same-site")],
        Some((JSON, r#"{"action":"approve"}"#)),
        403,
    ),
    (&[("sec-fetch-site", "cross-site")], None, 403),
    (&[], Some(("text/plain", r#"{"action":"approve"}"#)), 415),
    (&[], Some(("multipart/form-data; boundary=x", "x")), 415),
    (
        &[("origin", "https://evil.example")],
        Some(("application/x-www-form-urlencoded", "action=approve")),
        403,
    ),
];

#[apply(on_both)]
async fn path_that_does_not_exist_is_a_page_for_a_browser_and_json_for_a_program(on: On) {
    let app = TestApp::start(on).await;
    for (path, content_type) in [
        ("/inbx", "text/html"),
        ("/v1/inbx", "application/problem+json"),
    ] {
        let found = app.owner().header("accept", "text/html").get(path).await;
        assert_eq!(found.status, 404, "{path}: {}", found.text);
        assert!(
            found.header("content-type").starts_with(content_type),
            "{path}: {}",
            found.header("content-type")
        );
    }
    let program = app.owner().get("/inbx").await;
    assert_eq!(
        (program.status, program.header("content-type")),
        (404, "application/problem+json")
    );
    app.stop().await;
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
        let held = me().post("/v1/tasks", &json!({"input": "go"})).await;
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
            for host in [
                "evil.example",
                "evil.example:8080",
                "127.0.0.1.evil.example",
                "localhost.evil.example",
                "10.0.0.1",
            ] {
                assert_eq!(
                    me().header("host", host)
                        .hit(&format!("{approve}/approve"))
                        .await
                        .status,
                    403,
                    "{host}"
                );
                assert_eq!(
                    me().header("host", host).get("/v1/tasks").await.status,
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
                let refused = me()
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
                    me().header(name, "x").get("/healthz").await.status,
                    200,
                    "{name}"
                );
            }
            // nginx with a bare `proxy_pass` sends a request of this form: HTTP/1.0, and no
            // header that names a proxy.
            for (method, path, status) in [
                ("POST", format!("{approve}/approve"), "403 Forbidden"),
                ("GET", "/v1/tasks".to_owned(), "403 Forbidden"),
                ("GET", "/metrics".to_owned(), "403 Forbidden"),
                ("GET", "/healthz".to_owned(), "200 OK"),
                ("GET", "/readyz".to_owned(), "200 OK"),
            ] {
                let request = format!(
                    "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
                );
                let answer = raw_http::first_line(&app.url(), request.as_bytes()).await;
                assert_eq!(answer, format!("HTTP/1.0 {status}"), "{method} {path}");
            }
            assert_eq!(
                me().header("host", "evil.example")
                    .get("/healthz")
                    .await
                    .status,
                200
            );
        }
        let now = me()
            .get(&format!("/v1/tasks/{}", held.str("/task_id")))
            .await;
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
    assert_eq!(
        (
            refused.status,
            refused.header("access-control-allow-origin")
        ),
        (204, "")
    );
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
    assert_eq!(
        (error.status, error.header("access-control-allow-origin")),
        (401, "https://app.example")
    );
    app.stop().await;
}

#[apply(on_both)]
async fn person_with_only_a_browser_can_decide(on: On) {
    let app = TestApp::open(on).await;
    app.model
        .then(calls(&[("refund", r#"{"order":17,"amount":50}"#)]));
    let held = app
        .anonymous()
        .post("/v1/tasks", &json!({"input": "go"}))
        .await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let page = app
        .anonymous()
        .header("accept", "text/html")
        .get(&path)
        .await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(
        page.header("content-security-policy")
            .contains("default-src 'none'")
    );
    assert!(
        page.text.contains("Refund 50 for order 17") && page.text.contains("<form"),
        "{}",
        page.text
    );
    for link in [format!("{path}/approve"), format!("{path}/reject")] {
        let page = app.anonymous().get(&link).await;
        assert_eq!(page.status, 200, "{}", page.text);
        assert!(page.header("content-type").starts_with("text/html"));
        assert!(
            page.header("content-security-policy")
                .contains("script-src 'self'; connect-src 'self';")
        );
        assert_eq!(page.text.matches("<script").count(), 2);
    }
    for script in ["/times.js", "/follow.js"] {
        assert_eq!(
            app.anonymous().get(script).await.header("content-type"),
            "text/javascript; charset=utf-8"
        );
    }
    assert!(
        !app.anonymous()
            .header("accept", "text/html")
            .get("/sign-in")
            .await
            .header("content-security-policy")
            .contains("script-src")
    );
    assert!(app.tool.ledger().is_empty(), "reading changes nothing");
    app.model.then(text_answer("ok"));
    let digest = held.str("/pending/0/digest");
    let form = format!("digest={}", digest.replace(':', "%3A"));
    let posted = app
        .anonymous()
        .header("accept", "text/html")
        .header("origin", &app.url())
        .send(
            Method::POST,
            &format!("{path}/approve"),
            Some(("application/x-www-form-urlencoded", form)),
        )
        .await;
    assert_eq!(posted.status, 303, "{}", posted.text);
    assert!(
        posted.header("location").ends_with(&path),
        "{}",
        posted.header("location")
    );
    app.tool.reached(1).await;
    let after = app.anonymous().get(&format!("{path}/approve")).await;
    assert!(
        after.status == 200 && !after.text.contains("<form"),
        "no button where the POST would be refused"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn page_shows_the_users_message_and_after_the_decision_what_followed(on: On) {
    let app = TestApp::open(on).await;
    app.model
        .then(calls(&[("refund", r#"{"order":17,"amount":50}"#)]));
    let held = app
        .anonymous()
        .post(
            "/v1/tasks",
            &json!({"input": "<b>Refund</b> it\u{202e}, please."}),
        )
        .await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let page = app
        .anonymous()
        .header("accept", "text/html")
        .get(&path)
        .await;
    let message =
        "<blockquote dir=\"auto\">&lt;b&gt;Refund&lt;/b&gt; it\\u{202e}, please.</blockquote>";
    assert!(
        page.text.find(message).unwrap() < page.text.find("<button").unwrap(),
        "{}",
        page.text
    );
    app.model.then(text_answer("It is done."));
    app.tool.answers(200, r#"{"paid":true}"#);
    let done = app
        .anonymous()
        .header("prefer", "wait=30")
        .hit(&format!("{path}/approve"))
        .await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let after = app
        .anonymous()
        .header("accept", "text/html")
        .get(&path)
        .await;
    let (_, history) = after.text.split_once("id=\"past\"").unwrap();
    let found: Vec<usize> = [
        "Asked.",
        "Approved by local.",
        "refund was started.",
        "refund: done",
        "paid",
        "The task is completed.",
        "It is done.",
    ]
    .iter()
    .map(|text| {
        history
            .find(text)
            .unwrap_or_else(|| panic!("no {text}: {history}"))
    })
    .collect();
    assert!(
        found.is_sorted() && history.find("id=\"live\"").unwrap() > found[6],
        "{history}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn page_shows_the_users_message_however_many_calls_come_before_the_question(on: On) {
    let app = TestApp::open(on).await;
    for turn in 0..6 {
        let orders = (0..8).map(|place| json!({"order": 8 * turn + place}).to_string());
        let orders: Vec<String> = orders.collect();
        let lookups: Vec<_> = orders
            .iter()
            .map(|order| ("lookup", order.as_str()))
            .collect();
        app.model.then(calls(&lookups));
    }
    app.model
        .then(calls(&[("refund", r#"{"order":17,"amount":50}"#)]));
    let body = json!({"input": "Refund order 17."});
    let held = app
        .anonymous()
        .header("prefer", "wait=30")
        .post("/v1/tasks", &body)
        .await;
    held.assert_status(201, "Paused");
    let path = format!("/v1/tasks/{}/items?limit=200", held.str("/task_id"));
    let journal = app.anonymous().get(&path).await;
    assert!(
        journal.body["items"].as_array().unwrap().len() > 135,
        "{}",
        journal.text
    );
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let page = app
        .anonymous()
        .header("accept", "text/html")
        .get(&path)
        .await;
    let message = "<blockquote dir=\"auto\">Refund order 17.</blockquote>";
    assert!(page.text.contains(message), "{}", page.text);
    app.stop().await;
}

#[apply(on_both)]
async fn arguments_changed_in_the_fields_of_the_page_run(on: On) {
    let app = TestApp::open(on).await;
    app.model
        .then(calls(&[("refund", r#"{"order":17,"amount":50}"#)]));
    let held = app
        .anonymous()
        .post("/v1/tasks", &json!({"input": "go"}))
        .await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let (digest, call) = (
        held.str("/pending/0/digest"),
        held.str("/pending/0/tool_calls/0/tool_call_id"),
    );
    let edit = |amount: &str| {
        Some(form(&[
            ("digest", &digest),
            (&format!("call.{call}.action"), "edit"),
            (&format!("call.{call}.field.order"), "17"),
            (&format!("call.{call}.field.amount"), amount),
            (
                &format!("call.{call}.arguments"),
                r#"{"order":17,"amount":50}"#,
            ),
        ]))
    };
    let browser = || {
        app.anonymous()
            .header("accept", "text/html")
            .header("origin", &app.url())
    };
    for (amount, said) in [("-3.25", "greater"), ("much", "a number")] {
        let page = browser().send(Method::POST, &path, edit(amount)).await;
        assert_eq!(page.status, 422, "{}", page.text);
        let field = format!("href=\"#edit-call_2e_{call}_2e_field_2e_amount\"");
        assert!(
            page.text.contains(&field) && page.text.contains(&format!("value=\"{amount}\"")),
            "{said}: {}",
            page.text
        );
    }
    assert!(app.tool.ledger().is_empty(), "nothing was stored");
    app.model.then(text_answer("ok"));
    let done = browser().send(Method::POST, &path, edit("20.10")).await;
    assert_eq!(done.status, 303, "{}", done.text);
    app.tool.reached(1).await;
    let after = app
        .anonymous()
        .header("accept", "text/html")
        .get(&path)
        .await;
    assert!(
        after
            .text
            .contains("{&quot;order&quot;:17,&quot;amount&quot;:20.10}"),
        "{}",
        after.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn form_that_does_not_fit_comes_back_with_what_was_typed(on: On) {
    let app = TestApp::open(on).await;
    app.model
        .then(calls(&[("refund", r#"{"order":17,"amount":50}"#)]));
    let held = app
        .anonymous()
        .post("/v1/tasks", &json!({"input": "go"}))
        .await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let (digest, call) = (
        held.str("/pending/0/digest"),
        held.str("/pending/0/tool_calls/0/tool_call_id"),
    );
    let edit = |text: &str| {
        Some(form(&[
            ("digest", &digest),
            (&format!("call.{call}.action"), "edit"),
            (&format!("call.{call}.arguments"), text),
        ]))
    };
    let browser = || {
        app.anonymous()
            .header("accept", "text/html")
            .header("origin", &app.url())
    };
    for (typed, said) in [
        (r#"{"order":17,"amount":-3.25}"#, "<code>/amount</code>"),
        ("{\"order\":17,", "unambiguous JSON"),
        (r#"{"order":17,"amount":1,"amount":2}"#, "unambiguous JSON"),
        ("[]", "an object: the full replacement"),
    ] {
        let page = browser().send(Method::POST, &path, edit(typed)).await;
        assert_eq!(page.status, 422, "{}", page.text);
        assert!(page.header("content-type").starts_with("text/html"));
        assert_eq!(page.header("cache-control"), "no-store");
        let shown = typed.replace('"', "&quot;");
        for part in [
            said,
            "role=\"alert\"",
            "aria-invalid=\"true\"",
            shown.as_str(),
            digest.as_str(),
        ] {
            assert!(page.text.contains(part), "{part}: {}", page.text);
        }
        let program = app.anonymous().send(Method::POST, &path, edit(typed)).await;
        assert_eq!(
            (program.status, program.header("content-type")),
            (422, "application/problem+json")
        );
    }
    let unknown = browser()
        .send(
            Method::POST,
            &path,
            Some(form(&[("action", "approve"), ("<x>", "1")])),
        )
        .await;
    assert!(
        unknown.status == 422 && unknown.text.contains("/&lt;x&gt;"),
        "{}",
        unknown.text
    );
    assert!(app.tool.ledger().is_empty(), "nothing was stored");
    app.model.then(text_answer("ok"));
    let done = browser()
        .send(
            Method::POST,
            &path,
            edit("{\"order\": 17,\r\n \"amount\": 20.10}"),
        )
        .await;
    assert_eq!(done.status, 303, "{}", done.text);
    app.tool.reached(1).await;
    let after = app
        .anonymous()
        .header("accept", "text/html")
        .get(&path)
        .await;
    assert!(
        after.text.contains("&quot;amount&quot;:20.10"),
        "as it was typed: {}",
        after.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn edit_that_holds_a_secret_comes_back_without_it(on: On) {
    let app = TestApp::open(on).await;
    app.model
        .then(calls(&[("refund", r#"{"order":17,"amount":50}"#)]));
    let held = app
        .anonymous()
        .post("/v1/tasks", &json!({"input": "go"}))
        .await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let call = held.str("/pending/0/tool_calls/0/tool_call_id");
    let (action, arguments) = (
        format!("call.{call}.action"),
        format!("call.{call}.arguments"),
    );
    let secret = "tool-secret-0123456789";
    for typed in [
        format!(r#"{{"order":17,"amount":1,"x":"{secret}"}}"#),
        format!(r#"{{"x":"{secret}""#),
    ] {
        let edit = Some(form(&[(&action, "edit"), (&arguments, &typed)]));
        let browser = app
            .anonymous()
            .header("accept", "text/html")
            .header("origin", &app.url());
        let page = browser.send(Method::POST, &path, edit).await;
        assert_eq!(page.status, 422, "{}", page.text);
        assert!(!page.text.contains(secret), "{}", page.text);
    }
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn page_answers_each_call_as_it_was_chosen(on: On) {
    let app = TestApp::open(on).await;
    let amounts = [50, 60, 70].map(|amount| format!(r#"{{"order":17,"amount":{amount}}}"#));
    app.model.then(calls(
        &amounts.each_ref().map(|text| ("refund", text.as_str())),
    ));
    let held = app
        .anonymous()
        .post("/v1/tasks", &json!({"input": "go"}))
        .await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let id = |index: usize| held.str(&format!("/pending/0/tool_calls/{index}/tool_call_id"));
    let name = |index: usize, part: &str| format!("call.{}.{part}", id(index));
    let chosen = Some(form(&[
        ("digest", &held.str("/pending/0/digest")),
        (&name(0, "action"), "approve"),
        (&name(0, "arguments"), &amounts[0]),
        (&name(0, "reason"), ""),
        (&name(1, "action"), "reject"),
        (&name(1, "reason"), "not this one"),
        (&name(2, "action"), ""),
        (&name(2, "arguments"), &amounts[2]),
        ("then", "continue"),
    ]));
    let posted = app.anonymous().send(Method::POST, &path, chosen).await;
    assert_eq!(posted.status, 303, "{}", posted.text);
    let half = app.anonymous().get(&path).await;
    assert_eq!(half.str("/status"), "pending");
    assert_eq!(half.str("/tool_calls/0/decision/action"), "approve");
    assert_eq!(half.str("/tool_calls/1/decision/reason"), "not this one");
    assert!(half.body["tool_calls"][2]["decision"].is_null() && app.tool.ledger().is_empty());
    app.model.then(text_answer("ok"));
    let rest = app
        .anonymous()
        .send(
            Method::POST,
            &format!("{path}/approve"),
            Some(form(&[("reason", "")])),
        )
        .await;
    assert_eq!(rest.status, 303, "{}", rest.text);
    app.tool.reached(2).await;
    app.stop().await;
}

#[apply(on_both)]
async fn call_left_beside_an_own_approval_is_rejected_on_the_page(on: On) {
    let two = "{ users: [bob, carol], required: 2 }";
    let app = TestApp::with(on, &refunds(two)).await;
    app.model.then(calls(&[
        ("refund", r#"{"order":1,"amount":50}"#),
        ("refund", r#"{"order":2,"amount":60}"#),
    ]));
    let held = app.owner().post("/v1/tasks", &json!({"input": "go"})).await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let [approved, left] =
        [0, 1].map(|index: usize| held.str(&format!("/pending/0/tool_calls/{index}/tool_call_id")));
    let browser = || {
        app.approver()
            .header("accept", "text/html")
            .header("origin", &app.url())
    };
    let first = Some(form(&[(&format!("call.{approved}.action"), "approve")]));
    let posted = browser().send(Method::POST, &path, first).await;
    assert_eq!(posted.status, 303, "{}", posted.text);
    // The person has approved one of the calls, so the service refuses a rejection of the whole
    // request.
    let whole = browser()
        .send(Method::POST, &format!("{path}/reject"), Some(form(&[])))
        .await;
    assert_eq!(whole.status, 409, "{}", whole.text);
    let one = browser().get(&format!("{path}/reject")).await;
    assert!(
        one.text.contains("You may not give this answer here."),
        "{}",
        one.text
    );
    let page = browser().get(&path).await;
    let (action, reason) = (format!("call.{left}.action"), format!("call.{left}.reason"));
    for part in [
        format!("name=\"{action}\" value=\"reject\">Reject</button>"),
        format!("name=\"{reason}\""),
    ] {
        assert!(page.text.contains(&part), "{part}: {}", page.text);
    }
    assert!(!page.text.contains("/reject\""), "{}", page.text);
    let digest = held.str("/pending/0/digest");
    let reject = Some(form(&[
        ("digest", &digest),
        (&reason, "no"),
        (&action, "reject"),
    ]));
    let posted = browser().send(Method::POST, &path, reject).await;
    assert_eq!(posted.status, 303, "{}", posted.text);
    let after = app.approver().get(&path).await;
    assert_eq!(
        (
            after.str("/status").as_str(),
            after.str("/tool_calls/1/decision/action").as_str()
        ),
        ("pending", "reject")
    );
    assert_eq!(after.str("/tool_calls/1/decision/reason"), "no");
    app.stop().await;
}

#[apply(on_both)]
async fn refusal_of_a_page_post_is_shown_on_a_page(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let path = format!("/resume/{}", held.request);
    let approve = format!("{path}/approve");
    let stale = app
        .approver()
        .header("accept", "text/html")
        .send(
            Method::POST,
            &approve,
            Some(form(&[("digest", "sha256:0")])),
        )
        .await;
    assert_eq!(stale.status, 412, "{}", stale.text);
    assert!(
        stale.text.contains(&format!("href=\"{path}\"")) && stale.text.contains("digest_mismatch")
    );
    let twice = app
        .approver()
        .header("accept", "text/html")
        .send(
            Method::POST,
            &approve,
            Some(form(&[("reason", "a"), ("reason", "b")])),
        )
        .await;
    assert!(
        twice.status == 400 && twice.text.contains(&format!("href=\"{path}\"")),
        "{}",
        twice.text
    );
    let other = app
        .owner()
        .header("accept", "text/html")
        .send(Method::POST, &approve, Some(form(&[])))
        .await;
    assert!(
        other.status == 403 && other.text.contains("Other people decide this."),
        "{}",
        other.text
    );
    let chinese = app
        .owner()
        .header("accept", "text/html")
        .header("accept-language", "zh-CN,zh;q=0.9,en;q=0.1");
    let page = chinese.send(Method::POST, &approve, Some(form(&[]))).await;
    assert!(
        page.status == 403 && page.text.contains("此请求由其他人决定"),
        "{}",
        page.text
    );
    assert!(
        page.headers
            .get_all("vary")
            .iter()
            .any(|vary| vary == "Accept-Language")
    );
    let same = chinese.get(&path).await;
    assert!(
        same.status == 200 && same.text.contains("lang=\"zh-Hans\""),
        "{}",
        same.text
    );
    assert!(
        same.headers
            .get_all("vary")
            .iter()
            .any(|vary| vary == "Accept-Language")
    );
    let json = app.owner().header("accept-language", "zh").get(&path).await;
    assert!(
        !json
            .headers
            .get_all("vary")
            .iter()
            .any(|vary| vary == "Accept-Language")
    );
    app.model.then(text_answer("ok"));
    assert_eq!(
        app.approver()
            .send(Method::POST, &approve, Some(form(&[])))
            .await
            .status,
        303
    );
    let late = app
        .approver()
        .header("accept", "text/html")
        .send(Method::POST, &approve, Some(form(&[])))
        .await;
    assert!(
        late.status == 409
            && late
                .text
                .contains("The first decision counts: bob approved at "),
        "{}",
        late.text
    );
    app.stop().await;
}

/// Returns the content type and the body that a browser sends for a form with these fields.
pub(super) fn form(fields: &[(&str, &str)]) -> (&'static str, String) {
    let body = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish();
    ("application/x-www-form-urlencoded", body)
}
