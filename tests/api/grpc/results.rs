//! Tests of the results that a client gets from Envoy if its call does not pass.

use super::ext_mcp::resume;
use super::*;

const NO_HOLD: &str = "report: optional\n    hold: 0s\n    ext_authz: { user_header: x-user }";

/// Checks a call that does not pass, for Alice's client of the revision `revision` of MCP. Returns
/// the result that the client gets.
async fn result(grpc: &mut Grpc, revision: Option<&str>, body: &Value) -> Value {
    let mut headers = vec![("x-user", "alice")];
    headers.extend(revision.map(|revision| ("mcp-protocol-version", revision)));
    let answered = grpc.call(CHECK, EDGE, &checked(body, &headers)).await;
    let verdict = verdict(&answered.message);
    let Verdict::Denied(_, reply) = &verdict else {
        panic!("{verdict:?}")
    };
    assert!(reply["result"].is_object(), "{reply}");
    reply["result"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn result_has_a_type_only_in_the_revision_that_requires_it() {
    let app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    let mut ours = bash("rm");
    ours["params"]["name"] = json!("refund");
    for body in [bash("rm"), ours] {
        for older in [None, Some("2025-06-18"), Some("2025-11-25"), Some("x")] {
            let result = result(&mut grpc, older, &body).await;
            assert_eq!(result.get("resultType"), None, "{result}");
        }
        let newest = result(&mut grpc, Some("2026-07-28"), &body).await;
        assert_eq!(newest["resultType"], "complete", "{newest}");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_of_a_person_is_an_error_because_the_schema_of_the_tool_is_unknown() {
    let app = gateway_app(NO_HOLD).await;
    let mut grpc = Grpc::to(&app).await;
    let held = result(&mut grpc, None, &bash("date")).await;
    let request = held["_meta"]["holdpoint/gate"]["request_id"]
        .as_str()
        .unwrap();
    let answer = r#"{"action":"respond","result":"It is Tuesday."}"#;
    resume(&app, request, answer).await;
    let answered = result(&mut grpc, None, &bash("date")).await;
    assert_eq!(
        (&answered["content"][0]["text"], &answered["isError"]),
        (&json!("It is Tuesday."), &json!(true))
    );
    let account = &answered["_meta"]["holdpoint/gate"];
    assert_eq!(account["outcome"], "responded");
    app.stop().await;
}
