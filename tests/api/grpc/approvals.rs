//! Tests the acceptance matrix of envoyproxy/ai-gateway#2073 for approvals behind a gateway. Each
//! line of the matrix has one test. Two more tests show that an approval also binds the place and
//! the other members of a call. The service differs from the matrix in one point: a denial while
//! the database does not answer has no id of a decision, because nothing is read or stored then.

use std::time::Duration;

use super::*;
use crate::support::database::Database;
use crate::support::forwarder::Forwarder;
use crate::support::test_clock::TestClock;

async fn held(grpc: &mut Grpc, body: &Value) -> Verdict {
    // The configurations of these tests set the gate's `hold` to zero, so a check of a held call
    // does not wait.
    let held = grpc.check(body).await;
    assert_eq!(held.state(), "pending", "{held:?}");
    assert!(held.text().starts_with("HELD."), "{held:?}");
    held
}

/// Returns a member of `holdpoint/gate` in the `_meta` of a result that denies a call.
fn meta(verdict: &Verdict, member: &str) -> String {
    let Verdict::Denied(_, body) = verdict else {
        panic!("{verdict:?}")
    };
    let meta = &body["result"]["_meta"]["holdpoint/gate"];
    meta[member].as_str().unwrap().to_owned()
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
async fn call_with_other_arguments_than_the_approved_ones_is_held_anew() {
    let app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, &bash("rm a")).await;
    decide(&app, &first, "approve").await;
    held(&mut grpc, &bash("rm b")).await;
    // The gateway forwards the checked request byte for byte. So equal arguments in a different
    // spelling are a different call.
    let body = bash("rm a").to_string();
    let respelled = body.replace("\"rm a\"", "\"\\u0072m a\"");
    assert_ne!(respelled, body);
    let message = http_request("POST", respelled.as_bytes(), &[("x-user", "alice")]);
    let other = verdict(&grpc.call(CHECK, EDGE, &message).await.message);
    assert_eq!(other.state(), "pending", "{other:?}");
    assert_ne!(meta(&other, "task_id"), meta(&first, "task_id"));
    let passed = Verdict::Passes(Some(meta(&first, "task_id")));
    assert_eq!(grpc.check(&bash("rm a")).await, passed);
    app.stop().await;
}

/// Returns the `CheckRequest` of a call that Alice posts to the path and query `target` of `host`.
fn posted(host: &str, target: &str, body: &Value) -> Vec<u8> {
    let http = [
        field(2, b"POST"),
        field(3, &pair("x-user", b"alice")),
        field(4, target.as_bytes()),
        field(5, host.as_bytes()),
        field(12, body.to_string().as_bytes()),
    ];
    field(1, &field(4, &field(2, &http.concat())))
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_binds_the_host_and_the_path_without_the_query_and_approvers_see_both() {
    let app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    let mut check = async |host: &str, target: &str| {
        let message = posted(host, target, &bash("rm"));
        verdict(&grpc.call(CHECK, EDGE, &message).await.message)
    };
    let first = check("mcp.acme.com", "/staging/mcp?key=one").await;
    let task = meta(&first, "task_id");
    let items = app.owner().items(&task).await;
    let context = r#""Host: mcp.acme.com\nPath: /staging/mcp""#;
    assert!(items.text.contains(context), "{}", items.text);
    decide(&app, &first, "approve").await;
    for (host, target) in [
        ("mcp.acme.com", "/prod/mcp?key=one"),
        ("mcp.acme.com", "/"),
        ("mcp.acme.com/staging", "/mcp"),
        ("prod.acme.com", "/staging/mcp"),
    ] {
        let other = check(host, target).await;
        assert_eq!(other.state(), "pending", "{host}{target}");
        assert_ne!(meta(&other, "task_id"), task, "{host}{target}");
    }
    let again = check("mcp.acme.com", "/staging/mcp?key=two").await;
    assert_eq!(again, Verdict::Passes(Some(task)));
    let unprintable = posted("mcp.acme.com", "/staging\nPath: /mcp", &bash("ls"));
    assert_eq!(grpc.call(CHECK, EDGE, &unprintable).await.status, Some(13));
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leg_of_an_approved_call_is_held_anew_and_passes_once_its_own_input_is_approved() {
    let app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, &bash("rm")).await;
    decide(&app, &first, "approve").await;
    let leg = |state: &str, action: &str| {
        let mut leg = bash("rm");
        leg["params"]["requestState"] = json!(state);
        leg["params"]["inputResponses"] = json!({"sure": {"action": action}});
        leg
    };
    let second = held(&mut grpc, &leg("s1", "accept")).await;
    let task = meta(&second, "task_id");
    assert_ne!(task, meta(&first, "task_id"));
    let items = app.owner().items(&task).await;
    let shown = r#"{\"inputResponses\":{\"sure\":{\"action\":\"accept\"}}}"#;
    assert!(items.text.contains(shown), "{}", items.text);
    let text = second.text();
    assert!(
        text.ends_with("that you make now is another call."),
        "{text}"
    );
    decide(&app, &second, "approve").await;
    for other in [leg("s1", "decline"), leg("s2", "accept")] {
        let other = held(&mut grpc, &other).await;
        assert_ne!(meta(&other, "task_id"), task);
    }
    let passed = Verdict::Passes(Some(task));
    assert_eq!(grpc.check(&leg("s1", "accept")).await, passed);
    let passed = Verdict::Passes(Some(meta(&first, "task_id")));
    assert_eq!(grpc.check(&bash("rm")).await, passed);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_with_more_input_than_approvers_can_see_passes_only_if_a_rule_allows_it() {
    let app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    let large = |command: &str| {
        let mut call = bash(command);
        call["params"]["inputResponses"] = json!("x".repeat(17 * 1024));
        call
    };
    let passed = grpc.check(&large("ls")).await;
    assert!(matches!(passed, Verdict::Passes(Some(_))), "{passed:?}");
    let refused = grpc.check(&large("rm")).await;
    let why = "it has over 16 KiB to show besides its arguments. It has not run.";
    assert!(refused.text().ends_with(why), "{refused:?}");
    assert_eq!(meta(&refused, "outcome"), "invalid");
    let listed = app.owner().get("/v1/requests").await;
    assert_eq!(listed.count("requests"), 0, "{}", listed.text);
    app.stop().await;
}

/// The test runs on `SQLite`, because there the service takes the time from its own clock, which
/// the test advances.
#[tokio::test(flavor = "multi_thread")]
async fn changed_policy_or_expired_approval_is_rejected_or_asked_anew() {
    let clock = TestClock::new();
    let mut app = TestApp::timed(On::Sqlite, &gateway_yaml(NO_HOLD), clock.clone()).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, &bash("rm")).await;
    decide(&app, &first, "approve").await;
    drop(grpc);
    let deny = "policy:\n  - { name: no_rm, tools: [Bash], when: 'args.command == \"rm\"', decide: deny, reason: Not any more. }";
    app.restart_with(|yaml| yaml.replacen("policy:", deny, 1))
        .await;
    let mut grpc = Grpc::to(&app).await;
    let refused = grpc.check(&bash("rm")).await;
    assert!(refused.text().contains("It has not run"), "{refused:?}");
    assert_eq!(meta(&refused, "outcome"), "denied");
    let second = held(&mut grpc, &bash("make")).await;
    decide(&app, &second, "approve").await;
    drop(grpc);
    // An approval may be used within an hour.
    clock.advance(Duration::from_mins(61));
    let mut grpc = Grpc::to(&app).await;
    let expired = grpc.check(&bash("make")).await;
    assert!(expired.text().contains("It has not run"), "{expired:?}");
    assert_eq!(meta(&expired, "outcome"), "expired");
    let anew = held(&mut grpc, &bash("make")).await;
    assert_ne!(meta(&anew, "request_id"), meta(&second, "request_id"));
    app.stop().await;
}

/// While the database answers, a denied client gets a result, whose `_meta` has the ids of the
/// request and of the call's task. While the database does not answer, a denial is a gRPC status
/// without ids. After the outage, the held call still has its request. When the approved call
/// passes, the header `holdpoint-call` has the id of its task.
#[tokio::test(flavor = "multi_thread")]
async fn approval_system_that_is_down_is_a_denial_and_the_decision_keeps_its_id() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = TestApp::at_with(line.url(), &gateway_yaml(NO_HOLD)).await;
    let mut grpc = Grpc::to(&app).await;
    let first = held(&mut grpc, &bash("rm")).await;
    let listed = app.owner().get("/v1/requests").await;
    assert_eq!(
        meta(&first, "request_id"),
        listed.str("/requests/0/request_id")
    );
    line.cut();
    // A person must approve the first call. A rule allows the second.
    for command in ["rm", "ls"] {
        let call = checked(&bash(command), &[("x-user", "alice")]);
        let denied = grpc.call(CHECK, EDGE, &call).await;
        let unavailable = (Some(14), Vec::new());
        assert_eq!((denied.status, denied.message), unavailable, "{command}");
    }
    line.mend();
    let call = checked(&bash("rm"), &[("x-user", "alice")]);
    let mut answered = grpc.call(CHECK, EDGE, &call).await;
    while answered.status == Some(14) {
        answered = grpc.call(CHECK, EDGE, &call).await;
    }
    let again = verdict(&answered.message);
    assert_eq!(meta(&again, "request_id"), meta(&first, "request_id"));
    decide(&app, &again, "approve").await;
    let passed = Verdict::Passes(Some(meta(&first, "task_id")));
    assert_eq!(grpc.check(&bash("rm")).await, passed);
    app.stop().await;
    grpc.is_closed().await;
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
