//! Tests of the rights of gRPC callers. Also tests that other operations keep their checks when a
//! client uses HTTP/2.

use http::StatusCode;

use super::ext_mcp::{LS, REQUEST, REQUIRED, RESPONSE, guardrails_yaml, request};
use super::ext_mcp_reports::{response, results};
use super::gate::rights::{ADMIN, ADMINS_AGENT, CREATES, DECIDES, NARROW, READS, stored};
use super::*;
use crate::support::test_app::{ALICE, OPS, OTHER, WEB};

/// A kind of key: its name, the key, and the gRPC statuses of two checks with the key. The first
/// checked request names the user Alice. The second names no user, so the check is for the user of
/// the key. A report with the key gets the second status.
struct Row(&'static str, Option<&'static str>, [u32; 2]);

#[rustfmt::skip]
const TABLE: &[Row] = &[
    Row("no key",                          None,                          [16, 16]),
    Row("unknown key",                     Some("nobody-key-0123456789"), [16, 16]),
    Row("key that reads",                  Some(READS),                   [7, 7]),
    Row("key that decides",                Some(DECIDES),                 [7, 7]),
    Row("key that may do everything",      Some(ALICE),                   [7, 7]),
    Row("service key that decides",        Some(WEB),                     [7, 7]),
    Row("key of an agent",                 Some(gate::AGENT),             [7, 0]),
    Row("key that creates",                Some(CREATES),                 [7, 0]),
    Row("another user's agent",            Some(gate::CAROLS_AGENT),      [7, 0]),
    Row("another tenant's agent",          Some(gate::NAMESAKES_AGENT),   [7, 0]),
    Row("another tenant's user",           Some(OTHER),                   [7, 7]),
    Row("admin who reads",                 Some(OPS),                     [7, 7]),
    Row("admin who may do everything",     Some(ADMIN),                   [7, 7]),
    Row("admin's agent",                   Some(ADMINS_AGENT),            [7, 0]),
    Row("gateway",                         Some(EDGE),                    [0, 0]),
];

/// Returns the metadata of a gRPC call with this value of `authorization`.
fn metadata(authorization: Option<&str>) -> Vec<(&str, &str)> {
    let kind = ("content-type", "application/grpc");
    let key = authorization.map(|value| ("authorization", value));
    [Some(kind), key].into_iter().flatten().collect()
}

/// Returns the `CheckRequest` of a call whose request has these headers.
fn called(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut message = [field(1, b"up"), field(2, b"tools/call")].concat();
    message.extend(field(4, LS.as_bytes()));
    for (name, value) in headers {
        message.extend(field(5, &pair(name, value.as_bytes())));
    }
    message
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_key_that_asks_and_may_speak_for_the_user_gets_an_answer() {
    let app = TestApp::with(On::Sqlite, &(gateway_yaml(ENVOY) + NARROW)).await;
    let mut grpc = Grpc::to(&app).await;
    let before = stored(&app).await;
    let users: [&[(&str, &str)]; 2] = [&[("x-user", "alice")], &[]];
    // The refused checks come first, because a served check may write a moment after its answer.
    for refused in [true, false] {
        for Row(name, key, statuses) in TABLE {
            for (user, status) in users.into_iter().zip(*statuses) {
                if (status > 0) != refused {
                    continue;
                }
                let key = key.map(|key| format!("Bearer {key}"));
                let headers = metadata(key.as_deref());
                for (method, message) in
                    [(CHECK, checked(&bash("ls"), user)), (REQUEST, called(user))]
                {
                    let answered = grpc.send(method, &headers, framed(&message)).await;
                    let place = format!("{name}, {method}, {user:?}");
                    assert_eq!(answered.unwrap().status, Some(status), "{place}");
                    if refused {
                        assert_eq!(stored(&app).await, before, "{place}");
                    }
                }
            }
        }
    }
    assert_ne!(stored(&app).await, before);
    app.stop().await;
}

/// Even a report that is not stored lets its result pass, unless its key may propose no calls.
#[tokio::test(flavor = "multi_thread")]
async fn report_is_stored_only_with_a_key_that_may_speak_for_the_user_of_the_call() {
    let app = TestApp::with(On::Sqlite, &(guardrails_yaml(REQUIRED) + NARROW)).await;
    let mut grpc = Grpc::to(&app).await;
    for (number, Row(name, key, [_, status])) in TABLE.iter().enumerate() {
        let arguments = json!({"command": "ls", "timeout": number});
        let params = json!({"name": "Bash", "arguments": arguments}).to_string();
        let task = request(&mut grpc, &params).await.task();
        let speaks_for_alice = [Some(gate::AGENT), Some(CREATES), Some(EDGE)].contains(key);
        let key = key.map(|key| format!("Bearer {key}"));
        let report = framed(&response(&task, "{}"));
        let answered = grpc.send(RESPONSE, &metadata(key.as_deref()), report).await;
        assert_eq!(answered.unwrap().status, Some(*status), "{name}");
        let is_stored = !results(&app, &task).await.is_empty();
        assert_eq!(is_stored, speaks_for_alice, "{name}");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_counts_in_the_session_that_its_header_names_and_a_bad_header_is_denied() {
    let settings = "report: optional\n    hold: 0s\n    ext_authz: { user_header: x-user, session_header: x-session }";
    let app = gateway_app(settings).await;
    let mut grpc = Grpc::to(&app).await;
    let mut check = async |session: Option<&str>| {
        let named = session.map(|session| ("x-session", session));
        let headers: Vec<_> = [Some(("x-user", "alice")), named]
            .into_iter()
            .flatten()
            .collect();
        let message = checked(&bash("make"), &headers);
        grpc.call(CHECK, EDGE, &message).await
    };
    let first = verdict(&check(Some("s1")).await.message);
    assert_eq!(first.state(), "pending");
    decide(&app, &first, "approve").await;
    for other in [Some("s2"), None] {
        let held = verdict(&check(other).await.message);
        assert_eq!(held.state(), "pending", "{other:?}");
    }
    let passed = verdict(&check(Some("s1")).await.message);
    assert!(matches!(passed, Verdict::Passes(Some(_))), "{passed:?}");
    let long = "x".repeat(129);
    for malformed in ["", "a b", "s1,s2", &long] {
        let refused = check(Some(malformed)).await;
        assert_eq!(refused.status, Some(7), "{malformed:?}");
    }
    let headers = [
        ("x-user", "alice"),
        ("x-session", "s1"),
        ("X-Session", "s1"),
    ];
    let refused = grpc.call(REQUEST, EDGE, &called(&headers)).await;
    assert_eq!(refused.status, Some(7), "two sessions");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_at_an_unknown_gate_is_denied() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let for_alice = checked(&bash("ls"), &[("x-user", "alice")]);
    let key = format!("Bearer {EDGE}");
    let elsewhere = [
        ("content-type", "application/grpc"),
        ("authorization", key.as_str()),
        ("holdpoint-gate", "other"),
    ];
    let answered = grpc
        .send(CHECK, &elsewhere, framed(&for_alice))
        .await
        .unwrap();
    assert_eq!(answered.status, Some(7));
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_that_names_two_gates_or_names_one_twice_in_the_metadata_is_denied() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let key = format!("Bearer {EDGE}");
    let cases: [(&[&str], Option<&str>, u32); 9] = [
        (&["refunds"], None, 0),
        (&[], Some("refunds"), 0),
        (&["refunds"], Some("refunds"), 0),
        (&["other"], Some("refunds"), 7),
        (&["refunds"], Some("other"), 7),
        (&["refunds"], Some(""), 7),
        (&["refunds", "refunds"], None, 7),
        (&["refunds", "other"], None, 7),
        (&["other", "refunds"], Some("refunds"), 7),
    ];
    for (metadata, route, status) in cases {
        let mut headers = vec![
            ("content-type", "application/grpc"),
            ("authorization", key.as_str()),
        ];
        headers.extend(metadata.iter().map(|name| ("holdpoint-gate", *name)));
        let mut message = checked(&bash("ls"), &[("x-user", "alice")]);
        if let Some(name) = route {
            let extension = pair("holdpoint-gate", name.as_bytes());
            message.extend(field(1, &field(10, &extension)));
        }
        let answered = grpc.send(CHECK, &headers, framed(&message)).await.unwrap();
        assert_eq!(answered.status, Some(status), "{metadata:?} {route:?}");
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_without_the_user_header_is_checked_for_the_user_of_the_key() {
    let settings = "report: optional\n    hold: 0s\n    ext_authz: { user_header: x-user, groups_header: x-groups }";
    let app = gateway_app(settings).await;
    let mut grpc = Grpc::to(&app).await;
    for (key, other) in [(EDGE, gate::AGENT), (gate::AGENT, EDGE)] {
        let unnamed = checked(&bash("make"), &[]);
        let held = verdict(&grpc.call(CHECK, key, &unnamed).await.message);
        let Verdict::Denied(_, body) = &held else {
            panic!("{held:?}")
        };
        let task = &body["result"]["_meta"]["holdpoint/gate"]["task_id"];
        let path = format!("/v1/gate/calls/{}", task.as_str().unwrap());
        assert_eq!(app.actor(key).get(&path).await.status, 200, "{key}");
        assert_eq!(app.actor(other).get(&path).await.status, 403, "{key}");
    }
    let groups_alone = checked(&bash("make"), &[("x-groups", "finance")]);
    let answered = grpc.call(CHECK, EDGE, &groups_alone).await;
    assert_eq!(answered.status, Some(7), "groups without a user");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_requests_to_other_operations_keep_their_guards() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let json_kind = ("content-type", "application/json");
    let body = || br#"{"tool":"Bash","arguments":{"command":"ls"}}"#.to_vec();
    let path = "/v1/gate/calls";
    let no_key = grpc.send(path, &[json_kind], body()).await.unwrap();
    assert_eq!(no_key.http, StatusCode::UNAUTHORIZED);
    let key = format!("Bearer {}", gate::AGENT);
    let known = [json_kind, ("authorization", key.as_str())];
    let asked = grpc.send(path, &known, body()).await.unwrap();
    assert_eq!(asked.http, StatusCode::OK);
    let foreign = [known[0], known[1], ("origin", "https://elsewhere.example")];
    let refused = grpc.send(path, &foreign, body()).await.unwrap();
    assert_eq!(refused.http, StatusCode::FORBIDDEN);
    let large = grpc
        .send(path, &known, vec![b' '; 2 * 1024 * 1024])
        .await
        .unwrap();
    assert_eq!(large.http, StatusCode::PAYLOAD_TOO_LARGE);
    let reply = app.actor(gate::AGENT).post(CHECK, &json!({})).await;
    assert_eq!(reply.status, 404, "HTTP/1.1");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_is_refused_where_no_gate_is_open_to_gateways() {
    let app = gateway_app("report: optional").await;
    // The client opens the connection with the preface of HTTP/2. The service must close it.
    Grpc::to(&app).await.is_closed().await;
    let reply = app.actor(gate::AGENT).post(CHECK, &json!({})).await;
    assert_eq!(reply.status, 404);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_that_the_service_runs_is_not_run_twice_by_a_check() {
    let app = gateway_app(ENVOY).await;
    let mut grpc = Grpc::to(&app).await;
    let mut lookup = bash("ls");
    lookup["params"] = json!({"name": "lookup", "arguments": {"order": 1}});
    let refused = grpc.check(&lookup).await;
    assert!(
        refused.text().contains("is run by Holdpoint"),
        "{refused:?}"
    );
    app.stop().await;
}
