//! Tests of HTTP bodies that are expensive to read, or that can be read in two ways.

use std::fmt::Write as _;
use std::time::Duration;

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::json;
use tokio::time::timeout;

use super::approval_cycle::on_both;
use crate::support::test_app::{On, TestApp};

/// The time limit for a reply. It suffices on a slow machine, and is too short for a service that
/// reads the whole body again for each call in it.
const SOON: Duration = Duration::from_mins(2);
/// The size of the largest accepted body of a decision, in bytes.
const MOST: usize = 1024 * 1024;

#[apply(on_both)]
async fn body_that_names_very_many_calls_is_refused_quickly(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let mut body = String::from(r#"{"decisions":{"#);
    for number in 0.. {
        if body.len() > MOST - 100 {
            break;
        }
        let _ = write!(body, r#""{number}":{{"action":"approve"}},"#);
    }
    let _ = write!(body, r#""{}":{{"action":"approve"}}}}}}"#, held.call);
    let path = format!("/resume/{}", held.request);
    let owner = app.owner();
    let reply = timeout(SOON, owner.bytes(&path, body.into_bytes()))
        .await
        .expect("it is read once");
    reply.assert_code(422, "invalid");

    let mut form = String::new();
    for number in 0.. {
        if form.len() > MOST - 100 {
            break;
        }
        let _ = write!(form, "call.{number}.action=approve&");
    }
    let _ = write!(form, "call.{}.action=approve", held.call);
    let form = Some(("application/x-www-form-urlencoded", form));
    let reply = timeout(SOON, owner.send(Method::POST, &path, form))
        .await
        .expect("it is read once");
    reply.assert_code(422, "invalid");
    assert_eq!(
        app.owner().request(&held.request).await.str("/status"),
        "pending"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn decision_with_a_call_or_digest_of_another_request_changes_nothing(on: On) {
    let app = TestApp::start(on).await;
    let (held, other) = (app.held().await, app.held().await);
    let path = format!("/resume/{}", held.request);
    let digest = other.body["pending"][0]["digest"].clone();
    let (upper, braced) = (held.call.to_uppercase(), format!("{{{}}}", held.call));
    for (body, status) in [
        (
            json!({"decisions": {other.call.as_str(): {"action": "approve"}}}),
            422,
        ),
        (
            json!({"decisions": {held.call.as_str(): {"action": "approve"}, other.call.as_str(): {"action": "reject"}}}),
            422,
        ),
        (json!({"decisions": {upper: {"action": "approve"}}}), 422),
        (json!({"decisions": {braced: {"action": "approve"}}}), 422),
        (
            json!({"decisions": {held.call.replace('-', ""): {"action": "approve"}}}),
            422,
        ),
        (
            json!({"decisions": {format!("{} ", held.call): {"action": "approve"}}}),
            422,
        ),
        (
            json!({"decisions": {"__proto__": {"action": "approve"}}}),
            422,
        ),
        (json!({"decisions": {"a/b~c": {"action": "approve"}}}), 422),
        (json!({"action": "approve", "digest": digest}), 412),
    ] {
        let reply = app.owner().post(&path, &body).await;
        assert_eq!(reply.status, status, "{body}: {}", reply.text);
    }
    let twice = format!(
        r#"{{"decisions":{{"{0}":{{"action":"reject"}},"\u00{1:02x}{2}":{{"action":"approve"}}}}}}"#,
        held.call,
        held.call.as_bytes()[0],
        &held.call[1..]
    );
    assert_eq!(
        app.owner().bytes(&path, twice.into_bytes()).await.status,
        400
    );
    for held in [held, other] {
        assert_eq!(
            app.owner().request(&held.request).await.str("/status"),
            "pending"
        );
    }
    assert_eq!(app.tool.ledger().len(), 0);
    app.stop().await;
}
