//! Tests the demands of wanaku-ai/wanaku#1967: the proxy keeps a record of each approval and
//! enforces the approval by this record. It relies neither on the agent nor on a dialog of the
//! agent's client. Each demand has one test. The gate deviates from one demand: its record keeps
//! the arguments of a call, because people approve the arguments. The record keeps no values of
//! credentials.

use std::time::Duration;

use futures_util::future::join_all;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{about, answer, call, older, post_as, post_text, refund, result_text};
use crate::api::approval_cycle::on_both;
use crate::api::gate::{AGENT, CAROLS_AGENT, NAMESAKES_AGENT, gate, types, yaml};
use crate::support::eventually;
use crate::support::test_app::{CAROL, On, Reply, TestApp};
use crate::support::test_clock::TestClock;

/// Returns the path of the request about a held call.
fn request_path(held: &Reply) -> String {
    format!("/resume/{}", about(held)["request_id"].as_str().unwrap())
}

#[apply(on_both)]
async fn agent_that_ignores_the_pending_response_runs_nothing(on: On) {
    let app = gate(on, "").await;
    let first = call(&app, "0", &refund(120)).await;
    for _ in 0..4 {
        let again = call(&app, "0", &refund(120)).await;
        let (text, is_error) = result_text(&again);
        assert!(
            text.starts_with("HELD.") && text.contains("It has NOT run.") && is_error,
            "{text}"
        );
        assert_eq!(about(&again)["task_id"], about(&first)["task_id"]);
    }
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn action_is_dispatched_with_its_credential_only_after_its_approval(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    assert_eq!(app.tool.count(), 0);
    answer(&app, &held, &json!({"action": "approve"})).await;
    call(&app, "10", &refund(120)).await;
    let sent = app.tool.ledger();
    assert_eq!(
        (sent.len(), sent[0].header("x-secret")),
        (1, "tool-secret-0123456789")
    );
    let agents_key = sent[0].header("authorization");
    assert_eq!(agents_key, "", "the agent's key is not passed on");
    app.stop().await;
}

#[apply(on_both)]
async fn actions_of_one_canonical_form_have_one_record(on: On) {
    let app = gate(on, "hold: 0s").await;
    let mut records = Vec::new();
    for arguments in [
        r#"{"order":17,"amount":120}"#,
        r#"{ "amount" : 120.0, "order" : 17 }"#,
        r#"{"order":17,"amount":1.2e2}"#,
        r#"{"order":17,"amount":121}"#,
    ] {
        let params = format!(r#"{{"name":"refund","arguments":{arguments}}}"#);
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        records.push(about(&post_text(&app, &message).await)["request_id"].clone());
    }
    assert!(
        records[0] == records[1] && records[0] == records[2],
        "{records:?}"
    );
    assert_ne!(records[0], records[3]);
    app.stop().await;
}

#[apply(on_both)]
async fn approval_is_bound_to_its_actor_and_its_namespace(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    answer(&app, &held, &json!({"action": "approve"})).await;
    for other in [CAROLS_AGENT, NAMESAKES_AGENT] {
        let actor = app.actor(other).prefer("wait=0");
        let reply = post_as(actor, &older("tools/call", &refund(120))).await;
        assert_eq!(about(&reply)["state"], "pending", "{other}: {}", reply.text);
        assert_ne!(about(&reply)["task_id"], about(&held)["task_id"]);
    }
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn pending_response_is_stable_and_has_the_id_of_its_approval(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    let again = call(&app, "0", &refund(120)).await;
    assert_eq!(again.body["result"], held.body["result"]);
    let shown = app.approver().get(&request_path(&held)).await;
    assert_eq!(
        (shown.status, &shown.body["request_id"]),
        (200, &about(&held)["request_id"])
    );
    app.stop().await;
}

#[apply(on_both)]
async fn approval_is_consumed_once_and_its_replay_is_held_anew(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    answer(&app, &held, &json!({"action": "approve"})).await;
    let ran = call(&app, "10", &refund(120)).await;
    assert_eq!(about(&ran)["task_id"], about(&held)["task_id"]);
    let next = call(&app, "0", &refund(120)).await;
    assert_eq!(about(&next)["state"], "pending", "{}", next.text);
    assert_ne!(about(&next)["task_id"], about(&held)["task_id"]);
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn reviewers_list_approve_and_deny_and_only_they_may(on: On) {
    let app = gate(on, "").await;
    let approved = call(&app, "0", &refund(120)).await;
    let denied = call(&app, "0", &refund(130)).await;
    for path in [request_path(&approved), request_path(&denied)] {
        for other in [AGENT, CAROLS_AGENT, CAROL] {
            for verb in ["approve", "reject"] {
                let refused = app.actor(other).hit(&format!("{path}/{verb}")).await;
                assert_eq!(refused.status, 403, "{other}: {}", refused.text);
            }
        }
        let other_tenant = app
            .actor(NAMESAKES_AGENT)
            .hit(&format!("{path}/approve"))
            .await;
        assert_eq!(other_tenant.status, 404, "{}", other_tenant.text);
    }
    let listed = async || {
        let list = app.approver().get("/v1/requests?status=pending").await;
        list.count("requests")
    };
    assert_eq!(listed().await, 2);
    let reviewer = || app.approver().prefer("wait=0");
    reviewer()
        .hit(&format!("{}/approve", request_path(&approved)))
        .await;
    reviewer()
        .hit(&format!("{}/reject", request_path(&denied)))
        .await;
    assert_eq!(listed().await, 0);
    assert!(!result_text(&call(&app, "10", &refund(120)).await).1);
    assert!(result_text(&call(&app, "10", &refund(130)).await).1);
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn lifecycle_of_an_approval_is_in_the_journal_with_its_reviewer(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    answer(&app, &held, &json!({"action": "approve"})).await;
    call(&app, "10", &refund(120)).await;
    let path = format!(
        "/v1/tasks/{}/items",
        about(&held)["task_id"].as_str().unwrap()
    );
    let items = app.owner().get(&path).await.body["items"]
        .as_array()
        .unwrap()
        .clone();
    let lifecycle = [
        "intervention_requested",
        "task_status",
        "decision",
        "task_status",
        "tool_started",
        "tool_result",
        "task_status",
    ];
    assert_eq!(types(&items)[4..], lifecycle);
    assert_eq!(
        (&items[6]["decision"]["by"], &items[4]["request_id"]),
        (&json!("bob"), &items[6]["request_id"]),
        "{items:?}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn record_keeps_no_credential(on: On) {
    let app = gate(on, "").await;
    app.tool.answers(200, "Paid with tool-secret-0123456789.");
    let held = call(&app, "0", &refund(120)).await;
    answer(&app, &held, &json!({"action": "approve"})).await;
    let (text, _) = result_text(&call(&app, "10", &refund(120)).await);
    assert_eq!(text, "Paid with [secret TOOL_SECRET].");
    let bodies = app.database.texts("select body from agent_task_item").await;
    assert!(
        bodies
            .iter()
            .any(|body| body.contains("[secret TOOL_SECRET]")),
        "{bodies:?}"
    );
    assert!(
        !bodies
            .iter()
            .any(|body| body.contains("tool-secret-0123456789")),
        "{bodies:?}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn approval_needs_no_elicitation_by_the_client(on: On) {
    let app = gate(on, "").await;
    let client = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}});
    let begun = post_as(app.actor(AGENT), &older("initialize", &client)).await;
    assert_eq!(
        begun.body["result"]["capabilities"],
        json!({"tools": {}}),
        "{}",
        begun.text
    );
    let held = call(&app, "0", &refund(120)).await;
    held.assert_lacks("elicitation");
    answer(&app, &held, &json!({"action": "approve"})).await;
    assert!(!result_text(&call(&app, "10", &refund(120)).await).1);
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_retries_at_two_replicas_consume_one_approval() {
    let app = gate(On::Postgres, "").await;
    let other = app.replica().await;
    let held = call(&app, "0", &refund(120)).await;
    answer(&app, &held, &json!({"action": "approve"})).await;
    let params = refund(120);
    let retries = (0..8).map(|number| {
        let replica = if number % 2 == 0 { &app } else { &other };
        call(replica, "0", &params)
    });
    let replies = join_all(retries).await;
    let ran = replies.iter().filter(|reply| !result_text(reply).1).count();
    // At most two retries get the result: the retry whose driver runs the call, and another retry
    // that has reserved the result by a commit.
    assert!(ran <= 2, "{ran} retries got the result");
    app.tool.reached(1).await;
    let starts = "select type from agent_task_item where type = 'tool_started'";
    assert_eq!(
        (app.database.texts(starts).await.len(), app.tool.count()),
        (1, 1)
    );
    other.stop().await;
    app.stop().await;
}

/// Approves a held call, starts the service again with a changed configuration, and makes the call
/// again. Asserts that people are asked anew.
async fn is_asked_anew(change: impl Fn(&str) -> String) {
    let mut app = gate(On::Sqlite, "").await;
    let held = call(&app, "0", &refund(120)).await;
    answer(&app, &held, &json!({"action": "approve"})).await;
    app.restart_with(|yaml| {
        let changed = change(yaml);
        assert_ne!(changed, yaml);
        changed
    })
    .await;
    let asked_anew = async || {
        let again = call(&app, "0", &refund(120)).await;
        let request = &about(&again)["request_id"];
        let is_new = request.is_string() && *request != about(&held)["request_id"];
        is_new.then_some(again)
    };
    let again = eventually("people are asked anew", asked_anew).await;
    assert_eq!(
        (&about(&again)["state"], &about(&again)["task_id"]),
        (&json!("pending"), &about(&held)["task_id"]),
        "{}",
        again.text
    );
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approval_is_bound_to_its_target() {
    is_asked_anew(|yaml| yaml.replace("/refund\", headers", "/refund/v2\", headers")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approval_is_bound_to_the_policy_revision() {
    let (old, new) = ("{ groups: [finance] }", "{ users: [carol] }");
    is_asked_anew(|yaml| yaml.replace(old, new)).await;
}

/// The test runs on `SQLite`, where the service compares the time with the clock that the test
/// moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approval_has_an_end_after_which_it_runs_nothing() {
    let clock = TestClock::new();
    let app = TestApp::timed(On::Sqlite, &yaml(""), clock.clone()).await;
    let held = call(&app, "0", &refund(120)).await;
    answer(&app, &held, &json!({"action": "approve"})).await;
    let task = about(&held)["task_id"].as_str().unwrap();
    let path = format!("/v1/gate/calls/{task}");
    let look = app.actor(AGENT).get(&path).await;
    assert_eq!(look.str("/state"), "approved", "{}", look.text);
    assert_ne!(look.body["expires_at"], Value::Null, "{}", look.text);
    clock.advance(Duration::from_mins(61));
    let late = call(&app, "10", &refund(120)).await;
    assert_eq!(about(&late)["outcome"], "expired", "{}", late.text);
    let anew = call(&app, "0", &refund(120)).await;
    assert_eq!(about(&anew)["state"], "pending", "{}", anew.text);
    assert_ne!(about(&anew)["task_id"], task);
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}
