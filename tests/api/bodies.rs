//! Tests of request bodies that are too large, that arrive in pieces, or that have numbers which do
//! not fit a double.

use std::time::Duration;

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::json;
use tokio::time::timeout;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::raw_http;
use crate::support::test_app::{On, TestApp};

/// The time limit for steps that must not block, even on a busy machine.
const SOON: Duration = Duration::from_secs(50);
const SMALL: usize = 1024 * 1024;
const LARGE: usize = 20 * SMALL;

/// One caller's bodies may take 64 MiB at once. The test sends 68 MiB, which works because a POST
/// that waits has released its body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_body_of_a_post_that_waits_leaves_room_for_the_next() {
    let app = TestApp::start(On::Sqlite).await;
    app.tool.close();
    app.model.otherwise(|messages| {
        let called = messages.to_string().contains("tool_call_id");
        if called {
            text_answer("done")
        } else {
            calls(&[("lookup", r#"{"order":1}"#)])
        }
    });
    let body = format!(r#"{{"input":"go"{}}}"#, " ".repeat(17 * SMALL));
    let post = async || {
        app.owner()
            .prefer("wait=300")
            .bytes("/v1/tasks", body.clone().into_bytes())
            .await
    };
    let opened = async {
        timeout(SOON, app.tool.reached(4))
            .await
            .expect("every body has been read");
        app.tool.open();
    };
    let (first, second, third, fourth, ()) = tokio::join!(post(), post(), post(), post(), opened);
    for reply in [first, second, third, fourth] {
        reply.assert_text(201, "/output", "done");
    }
    app.stop().await;
}

#[apply(on_both)]
async fn client_refused_while_still_sending_reads_the_reason(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let (resume, messages) = (
        format!("/resume/{}", held.request),
        format!("/v1/tasks/{}/messages", held.task),
    );
    let json = |size: usize| Some(("application/json", "x".repeat(size)));
    let evil = || app.owner().header("origin", "https://evil.example");
    for (path, limit) in [
        ("/v1/tasks", LARGE),
        (messages.as_str(), LARGE),
        (resume.as_str(), SMALL),
    ] {
        let large = app.owner().send(Method::POST, path, json(limit + 1)).await;
        large.about(&path).assert_code(413, "too_large");
        let none = app
            .anonymous()
            .send(Method::POST, path, json(limit + 1))
            .await;
        assert_eq!(
            none.status, 413,
            "the announced length is checked before the key: {path}"
        );
        assert_eq!(
            app.anonymous()
                .send(Method::POST, path, json(limit))
                .await
                .status,
            401,
            "{path}"
        );
        assert_eq!(
            evil().send(Method::POST, path, json(limit)).await.status,
            403,
            "{path}"
        );
        assert_eq!(
            app.owner()
                .send(Method::POST, path, json(limit))
                .await
                .str("/code"),
            "bad_json",
            "{path}"
        );
    }
    assert_eq!(
        app.owner()
            .send(Method::POST, "/v1/nothing", json(LARGE))
            .await
            .status,
        404
    );
    assert_eq!(
        app.owner()
            .send(Method::PUT, "/v1/tasks", json(LARGE))
            .await
            .status,
        405
    );
    app.stop().await;
}

#[apply(on_both)]
async fn announced_size_over_the_limit_is_refused_at_once(on: On) {
    let app = TestApp::start(on).await;
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 20971521\r\n";
    for more in [
        "\r\n",
        "expect: 100-continue\r\n\r\n",
        "connection: close\r\n\r\n",
    ] {
        let answer = raw_http::first_line(&app.url(), format!("{head}{more}").as_bytes()).await;
        assert_eq!(answer, "HTTP/1.1 413 Payload Too Large", "{more:?}");
    }
    app.stop().await;
}

#[apply(on_both)]
async fn chunked_body_is_measured_after_the_key_is_checked(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let piece = format!("{:x}\r\n{}\r\n", SMALL, "x".repeat(SMALL));
    for (key, expected) in [
        (None, "401 Unauthorized"),
        (Some("alice-key-0123456789"), "413 Payload Too Large"),
    ] {
        let key = key
            .map(|key| format!("authorization: Bearer {key}\r\n"))
            .unwrap_or_default();
        let request = format!(
            "POST /resume/{} HTTP/1.1\r\nhost: x\r\n{key}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{piece}{piece}0\r\n\r\n",
            held.request
        );
        let answer = raw_http::first_line(&app.url(), request.as_bytes()).await;
        assert_eq!(answer, format!("HTTP/1.1 {expected}"));
    }
    app.stop().await;
}

#[apply(on_both)]
async fn metadata_comes_back_as_it_was_sent(on: On) {
    let app = TestApp::start(on).await;
    let metadata = r#"{"z":1.10,"big":123456789012345678901234567890,"u64":12345678901234567890,"e":1E2,"neg":-0,"t":" \" é \u00e9 "}"#;
    let pretty = metadata.replace(",\"", " ,\n\t\"").replace("\":", "\" : ");
    let body = format!(r#"{{"input": "hi", "metad\u0061ta": {pretty}}}"#);
    let reply = app.owner().bytes("/v1/tasks", body.into_bytes()).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let shown = app.owner().task(&reply.str("/task_id")).await;
    let listed = app.owner().get("/v1/tasks").await;
    for text in [&reply.text, &shown.text, &listed.text] {
        assert!(
            text.contains(&format!(r#""metadata":{metadata},"#)),
            "{text}"
        );
    }
    let room = 16 * 1024 - r#"{"a":""}"#.len();
    for (more, status) in [(0, 201), (1, 422)] {
        let body = json!({"input": "hi", "metadata": {"a": "x".repeat(room + more)}});
        assert_eq!(app.owner().post("/v1/tasks", &body).await.status, status);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn body_is_json_in_utf_8_with_its_type_in_any_case(on: On) {
    let app = TestApp::start(on).await;
    let body = r#"{"input":"hi"}"#;
    for (kind, status) in [
        ("application/json; charset=utf-8", 201),
        ("Application/JSON", 201),
        ("application/json;charset=UTF-8", 201),
        ("text/json", 415),
        ("application/problem+json", 415),
        ("application/json, text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ] {
        let reply = app
            .owner()
            .send(Method::POST, "/v1/tasks", Some((kind, body.to_owned())))
            .await;
        assert_eq!(reply.status, status, "{kind}: {}", reply.text);
    }
    let utf16: Vec<u8> = "\u{feff}{\"input\":\"hi\"}"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    for bytes in [
        utf16,
        b"{\"input\":\"\xff\"}".to_vec(),
        b"\xef\xbb\xbf{}".to_vec(),
        br#"{"input":"\ud800"}"#.to_vec(),
    ] {
        let reply = app.owner().bytes("/v1/tasks", bytes.clone()).await;
        reply
            .about(&format_args!("{bytes:?}"))
            .assert_code(400, "bad_json");
    }
    app.stop().await;
}

#[apply(on_both)]
async fn body_of_more_than_100_000_values_is_refused_and_changes_nothing(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let (resume, messages) = (
        format!("/resume/{}", held.request),
        format!("/v1/tasks/{}/messages", held.task),
    );
    let zeros = |count: usize| format!("[0{}]", ",0".repeat(count - 1));
    let respond = format!(
        r#"{{"decisions":{{"{}":{{"action":"respond","result":X}}}}}}"#,
        held.call
    );
    let edit = format!(
        r#"{{"decisions":{{"{}":{{"action":"edit","arguments":{{"a":X}}}}}}}}"#,
        held.call
    );
    let before = app.owner().task(&held.task).await;
    // A list of zeros replaces `X`. `around` is the number of JSON values in the body besides the
    // zeros.
    for (path, body, around) in [
        ("/v1/tasks", r#"{"input":"hi","metadata":{"a":X}}"#, 4),
        ("/v1/tasks", r#"{"items":X}"#, 2),
        ("/v1/tasks", r#"{"input":"hi","user_context":{"a":X}}"#, 4),
        (&messages, r#"{"input":"hi","supersede":true,"a":X}"#, 4),
        (&format!("/v1/tasks/{}/cancel", held.task), r#"{"a":X}"#, 2),
        (&resume, r#"{"action":"respond","response":X}"#, 3),
        (&resume, &edit, 6),
        (&resume, &respond, 5),
    ] {
        let post = async |values: usize| {
            app.owner()
                .bytes(path, body.replace('X', &zeros(values - around)).into())
                .await
        };
        let refused = post(100_001).await;
        refused
            .about(&format_args!("{path} {body}"))
            .assert_code(422, "invalid");
        assert_eq!(
            refused.body["errors"],
            json!([{"pointer": "", "detail": "at most 100000 JSON values"}])
        );
        if body != respond {
            // A body of 100,000 values does not exceed the limit on values, so the reply
            // names the other errors of the body.
            let other = post(100_000).await;
            assert_eq!(other.status, 422, "{path} {body}");
            assert_ne!(
                other.body["errors"], refused.body["errors"],
                "{path} {body}"
            );
        }
    }
    // Nested lists and objects count as values, too. These bodies lack closing brackets. If the
    // service read them to the end, it would answer 400 (bad JSON) instead.
    for body in [
        "[[[".to_owned() + &"[],".repeat(100_000),
        format!("[{}", r#"{"a":{}},"#.repeat(60_000)),
    ] {
        assert_eq!(
            app.owner().bytes("/v1/tasks", body.into()).await.status,
            422
        );
    }
    let after = app.owner().task(&held.task).await;
    assert_eq!(before.text, after.text, "nothing changed");
    app.model.then(text_answer("ok"));
    let taken = app
        .owner()
        .bytes(&resume, respond.replace('X', &zeros(100_000 - 5)).into())
        .await;
    taken
        .about(&"100,000 values are taken")
        .assert_status(200, "Completed");
    app.stop().await;
}
