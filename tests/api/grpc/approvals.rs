//! Tests the acceptance matrix of envoyproxy/ai-gateway#2073 for approvals behind a gateway. Each
//! line of the matrix has one test.

use super::*;

async fn held(grpc: &mut Grpc, body: &Value) -> Verdict {
    // The configurations of these tests set the gate's `hold` to zero, so a check of a held call
    // does not wait.
    let held = grpc.check(body).await;
    assert_eq!(held.state(), "pending", "{held:?}");
    assert!(held.text().starts_with("HELD."), "{held:?}");
    held
}

const NO_HOLD: &str = "report: optional\n    hold: 0s\n    ext_authz: { user_header: x-user }";

#[tokio::test(flavor = "multi_thread")]
async fn same_caller_server_tool_args_policy_version_and_expiry_resumes() {
    let app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, &bash("rm")).await;
    decide(&app, &first, "approve").await;
    let other_user = checked(&bash("rm"), &[("x-user", "carol")]);
    let other = grpc.call(CHECK, EDGE, &other_user).await;
    assert_eq!(verdict(&other.message).state(), "pending");
    assert!(matches!(
        grpc.check(&bash("rm")).await,
        Verdict::Passes(Some(_))
    ));
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_args_are_rejected() {
    let app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, &bash("rm a")).await;
    decide(&app, &first, "approve").await;
    held(&mut grpc, &bash("rm b")).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_policy_or_expired_approval_is_asked_anew() {
    let mut app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, &bash("rm")).await;
    decide(&app, &first, "approve").await;
    drop(grpc);
    let deny = "policy:\n  - { name: no_rm, tools: [Bash], decide: deny, reason: Not any more. }";
    app.restart_with(|yaml| yaml.replacen("policy:", deny, 1))
        .await;
    let mut grpc = Grpc::to(&app).await;
    let refused = grpc.check(&bash("rm")).await;
    assert!(refused.text().contains("It has not run"), "{refused:?}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_system_that_is_down_is_a_denial() {
    let app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    assert!(matches!(
        grpc.check(&bash("ls")).await,
        Verdict::Passes(Some(_))
    ));
    app.stop().await;
    let headers = [("content-type", "application/grpc")];
    assert!(grpc.send(CHECK, &headers, framed(&[])).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_is_a_single_use_grant_for_exactly_one_call() {
    let app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, &bash("rm")).await;
    decide(&app, &first, "approve").await;
    assert!(matches!(
        grpc.check(&bash("rm")).await,
        Verdict::Passes(Some(_))
    ));
    held(&mut grpc, &bash("rm")).await;
    app.stop().await;
}
