//! Tests of gateways that restart after a call has passed its check and before they forward the
//! call. The service cannot tell such a call from one that the upstream has got.

use macro_rules_attribute::apply;

use super::ext_mcp::{LS, REQUIRED, guardrails, request};
use super::*;
use crate::api::approval_cycle::on_both;
use crate::support::test_app::Reply;

const NO_HOLD: &str = "report: optional\n    hold: 0s\n    ext_authz: { user_header: x-user }";

/// Returns the call of a task as Alice's agent sees it.
async fn read_call(app: &TestApp, task: &str) -> Reply {
    let path = format!("/v1/gate/calls/{task}");
    app.actor(gate::AGENT).get(&path).await
}

#[apply(on_both)]
async fn approved_call_that_envoy_lost_by_a_restart_is_released_and_held_when_asked_again(on: On) {
    let app = TestApp::with(on, &gateway_yaml(NO_HOLD)).await;
    let mut grpc = Grpc::to(&app).await;
    let held = grpc.check(&bash("rm")).await;
    decide(&app, &held, "approve").await;
    let Verdict::Passes(Some(passed)) = grpc.check(&bash("rm")).await else {
        panic!("the call is approved")
    };
    drop(grpc);
    let mut restarted = Grpc::to(&app).await;
    let again = restarted.check(&bash("rm")).await;
    assert_eq!(again.state(), "pending", "{again:?}");
    let Verdict::Denied(_, body) = &again else {
        panic!("{again:?}")
    };
    let second = &body["result"]["_meta"]["holdpoint/gate"]["task_id"];
    assert_ne!(second.as_str(), Some(passed.as_str()));
    let released = read_call(&app, &passed).await;
    gate::assert_call(&released, 200, "allow", "settled", "released");
    app.stop().await;
}

#[apply(on_both)]
async fn allowed_call_that_agentgateway_lost_by_a_restart_is_held_when_asked_again(on: On) {
    let app = guardrails(on, REQUIRED).await;
    let mut grpc = Grpc::to(&app).await;
    let passed = request(&mut grpc, LS).await.task();
    drop(grpc);
    let mut restarted = Grpc::to(&app).await;
    let again = request(&mut restarted, LS).await.members();
    assert_eq!(again["state"], "pending", "{again}");
    assert_ne!(again["task_id"].as_str(), Some(passed.as_str()));
    let shown = app
        .owner()
        .request(again["request_id"].as_str().unwrap())
        .await;
    let reason = shown.str("/tool_calls/0/reason");
    assert!(reason.contains("The same call is being run."), "{reason}");
    let permitted = read_call(&app, &passed).await;
    gate::assert_call(&permitted, 200, "pending", "started", Value::Null);
    app.stop().await;
}
