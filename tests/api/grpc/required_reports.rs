//! Tests of Envoy at a gate that requires reports. Envoy cannot report the outcome of a call.

use macro_rules_attribute::apply;

use super::ext_mcp::resume;
use super::*;
use crate::api::approval_cycle::on_both;

const REQUIRED: &str = "hold: 0s\n    run_within: 5s\n    ext_authz: { user_header: x-user }";

async fn required(on: On) -> TestApp {
    TestApp::with(on, &gateway_yaml(REQUIRED)).await
}

#[apply(on_both)]
async fn call_that_passes_envoy_without_a_report_becomes_a_question_after_run_within(on: On) {
    let app = required(on).await;
    let mut grpc = Grpc::to(&app).await;
    let passed = grpc.check(&bash("ls")).await;
    assert!(matches!(passed, Verdict::Passes(Some(_))), "{passed:?}");
    let first = async || {
        let list = app.owner().get("/v1/requests").await;
        list.body.pointer("/requests/0").cloned()
    };
    let request = crate::support::eventually("a person is asked", first).await;
    let call = &request["tool_calls"][0]["tool_call_id"];
    assert_eq!(
        (&request["kind"], passed),
        (
            &json!("reconcile"),
            Verdict::Passes(call.as_str().map(str::to_owned))
        )
    );
    app.stop().await;
}

#[apply(on_both)]
async fn edited_call_does_not_pass_envoy_and_ends_as_failed(on: On) {
    let app = required(on).await;
    let mut grpc = Grpc::to(&app).await;
    let Verdict::Denied(_, body) = grpc.check(&bash("make")).await else {
        panic!("it is held")
    };
    let account = &body["result"]["_meta"]["holdpoint/gate"];
    let request = account["request_id"].as_str().unwrap();
    resume(
        &app,
        request,
        r#"{"action":"edit","arguments":{"command":"make x"}}"#,
    )
    .await;
    let refused = grpc.check(&bash("make")).await;
    assert!(
        refused.text().contains("A person changed this call"),
        "{refused:?}"
    );
    let path = format!("/v1/tasks/{}/items", account["task_id"].as_str().unwrap());
    let items = app.owner().get(&path).await;
    let result = items.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["type"] == "tool_result");
    assert_eq!(result.unwrap()["outcome"], "failed", "{}", items.text);
    app.stop().await;
}
