//! Tests who may propose a call at a gate, read it and report its outcome.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::{AGENT, CAROLS_AGENT, ask, ask_as, assert_call, bash, gate, refund, yaml};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn gate_is_closed_to_keys_that_decide_and_to_other_users(on: On) {
    let app = gate(on, "").await;
    for actor in [app.owner(), app.approver()] {
        let refused = ask_as(actor, &refund(5), 0).await;
        refused.assert_code(403, "forbidden");
    }
    assert_eq!(ask_as(app.anonymous(), &refund(5), 0).await.status, 401);
    let held = ask(&app, &refund(120), 0).await;
    let path = format!("/v1/gate/calls/{}", held.str("/task_id"));
    assert_eq!(app.actor(AGENT).get(&path).await.status, 200);
    assert_eq!(app.owner().get(&path).await.status, 200);
    assert_eq!(app.actor(CAROLS_AGENT).get(&path).await.status, 403);
    assert_eq!(
        app.actor(crate::support::test_app::OTHER)
            .get(&path)
            .await
            .status,
        404
    );
    let report = json!({"task_id": held.str("/task_id"), "outcome": "succeeded"});
    assert_eq!(
        app.actor(CAROLS_AGENT)
            .post("/v1/gate/outcomes", &report)
            .await
            .status,
        403
    );
    let gateless = json!({"gate": "other", "tool": "refund", "arguments": {}});
    let refused = ask(&app, &gateless, 0).await;
    refused.assert_text(422, "/errors/0/pointer", "/gate");
    let agents = app.owner().get("/v1/agents").await;
    assert_eq!(agents.count("agents"), 1);
    let task = app
        .owner()
        .post("/v1/tasks", &json!({"agent": "refunds", "input": "x"}))
        .await;
    assert_eq!(task.status, 422);
    app.stop().await;
}

#[tokio::test]
async fn gate_is_left_out_only_by_a_caller_to_whom_a_single_gate_is_open() {
    let gates = "\ngates:\n  other: { tools: [refund], open_to: { users: [carol] } }\n";
    let yaml = yaml("").replacen("\ngates:\n", gates, 1);
    let app = TestApp::with(On::Sqlite, &yaml).await;
    let call = ask(&app, &refund(5), 10).await;
    assert_call(&call, 200, "allow", "settled", "succeeded");
    assert_eq!(call.str("/gate"), "refunds");
    let refused = ask_as(app.actor(CAROLS_AGENT), &refund(5), 0).await;
    refused.assert_text(422, "/errors/0/pointer", "/gate");
    app.stop().await;
}

#[apply(on_both)]
async fn key_that_may_decide_is_refused_whatever_its_body(on: On) {
    let app = gate(on, "").await;
    let bodies = [
        ("application/json", "{", 400),
        ("text/plain", "{}", 415),
        ("application/json", r#"{"zzz":1}"#, 422),
        ("text/plain", "", 422),
    ];
    for path in ["/v1/gate/calls", "/v1/gate/outcomes"] {
        for (kind, body, status) in bodies {
            let body = || Some((kind, body.to_owned()));
            let refused = app.owner().send(reqwest::Method::POST, path, body()).await;
            refused.about(&path).assert_code(403, "forbidden");
            let read = app
                .actor(AGENT)
                .send(reqwest::Method::POST, path, body())
                .await;
            assert_eq!(read.status, status, "{path}: {}", read.text);
        }
    }
    app.stop().await;
}

#[apply(on_both)]
async fn rule_reads_the_user_and_the_groups_of_the_asker(on: On) {
    let rule = "policy:\n  - { name: own, tools: [Bash], when: 'user.id == \"alice\" && \"support\" in user.groups', decide: allow }";
    let app = TestApp::with(on, &yaml("").replacen("policy:", rule, 1)).await;
    let allowed = ask(&app, &bash("make"), 5).await;
    assert_call(&allowed, 200, "allow", "started", Value::Null);
    assert_eq!(allowed.str("/rule"), "own");
    let held = ask_as(app.actor(CAROLS_AGENT), &bash("make"), 0).await;
    assert_call(&held, 202, "pending", "pending", Value::Null);
    app.stop().await;
}

#[apply(on_both)]
async fn without_accounts_the_one_user_asks_and_decides(on: On) {
    let all = yaml("");
    let open = all
        .split("\nauth:")
        .next()
        .unwrap()
        .replace("groups: [finance]", "owner: true");
    let app = TestApp::with(on, &open).await;
    let anonymous = || app.anonymous();
    let call = ask_as(anonymous(), &refund(5), 5).await;
    assert_call(&call, 200, "allow", "settled", "succeeded");
    app.stop().await;
}
