//! Tests of checks that wait for a person: how many may wait at once, clients that leave, and a
//! shutdown of the service.

use std::time::Duration;

use holdpoint::task::time::Time;
use holdpoint::world::{Clock as _, SystemClock};
use tokio::time::timeout;

use super::ext_mcp::{REQUEST, guardrails, message};
use super::*;
use crate::support::allocator::{allocated_bytes, assert_grows_less_than};
use crate::support::test_app::Reply;

/// The time limit for steps that must not block, even on a busy machine.
const SOON: Duration = Duration::from_secs(50);
const LONG: &str = "report: optional\n    hold: 5m\n    ext_authz: { user_header: x-user }";

/// Sends a `Check` for a call that Alice proposes. The gRPC request has a deadline of ten minutes.
async fn patient(grpc: Grpc, command: &str) -> Verdict {
    patient_with(grpc, checked(&bash(command), &[("x-user", "alice")])).await
}

/// Sends `message` to `Check`. The gRPC request has a deadline of ten minutes.
async fn patient_with(mut grpc: Grpc, message: Vec<u8>) -> Verdict {
    let key = format!("Bearer {EDGE}");
    let headers = [
        ("content-type", "application/grpc"),
        ("authorization", key.as_str()),
        ("grpc-timeout", "600S"),
    ];
    let answered = grpc.send(CHECK, &headers, framed(&message)).await.unwrap();
    verdict(&answered.message)
}

/// Waits until Alice sees a request in her list, and returns the first request.
async fn first_request(app: &TestApp) -> Value {
    let first = async || {
        let list = app.owner().get("/v1/requests").await;
        list.body.pointer("/requests/0").cloned()
    };
    crate::support::eventually("Alice sees a request", first).await
}

/// Returns the stored time until which a client counts as waiting for the call of this request.
async fn asker_until(app: &TestApp, request: &Value) -> Time {
    let task = request["task_id"].as_str().unwrap().parse().unwrap();
    let row = app.store().task(task).await.unwrap().unwrap();
    row.asker_until.unwrap_or(Time(0))
}

async fn is_present(app: &TestApp, request: &Value) -> bool {
    asker_until(app, request).await > Time(0)
}

/// Returns whether a client counts as present for more than another minute. A client that may wait
/// counts as present for the five minutes of `hold`. A client that may not wait gets its answer at
/// once and counts as present for a few seconds.
async fn waits_for_minutes(app: &TestApp, request: &Value) -> bool {
    asker_until(app, request).await > SystemClock.now() + Duration::from_mins(1)
}

async fn approve(app: &TestApp, request: &Value) {
    let path = format!(
        "/resume/{}/approve",
        request["request_id"].as_str().unwrap()
    );
    let reply: Reply = app.owner().prefer("wait=0").hit(&path).await;
    assert!(reply.status < 300, "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_of_all_surfaces_count_together_and_a_further_one_is_pending_at_once() {
    let yaml = gateway_yaml(LONG) + "\nserver: { max_waiting: 1 }\n";
    let app: &'static TestApp = Box::leak(Box::new(TestApp::with(On::Sqlite, &yaml).await));
    let grpc = Grpc::to(app).await;
    let waiting = TaskTracker::new();
    let rest = waiting.spawn(gate::ask_as(
        app.actor(gate::AGENT),
        Box::leak(Box::new(gate::bash("cargo"))),
        300,
    ));
    first_request(app).await;
    // The call proposed over REST takes the only place for a waiting client.
    assert_eq!(patient(grpc.clone(), "make").await.state(), "pending");
    rest.abort();
    assert!(rest.await.unwrap_err().is_cancelled());
    // The place becomes free once the service has noticed that the REST client has left.
    let held = 'free: loop {
        let held = waiting.spawn(patient(grpc.clone(), "date"));
        while !held.is_finished() {
            let list = app.owner().get("/v1/requests").await;
            for request in list.body["requests"].as_array().unwrap() {
                if request["tool_calls"].to_string().contains("date")
                    && waits_for_minutes(app, request).await
                {
                    break 'free held;
                }
            }
            crate::support::pause().await;
        }
    };
    let reply = gate::ask(app, &gate::bash("make more"), 300).await;
    assert_eq!(reply.str("/decision"), "pending", "the check has the place");
    assert_eq!(reply.header("preference-applied"), "");
    let reply = gate::ask(app, &gate::bash("make more"), 0).await;
    assert_eq!(reply.header("preference-applied"), "wait=0");
    held.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn call_beyond_the_bound_of_pending_calls_is_exhausted() {
    let settings = "max_open: 1\n    hold: 0s\n    ext_authz: { user_header: x-user }";
    let app = guardrails(On::Sqlite, settings).await;
    let mut grpc = Grpc::to(&app).await;
    assert_eq!(grpc.check(&bash("make")).await.state(), "pending");
    let params = r#"{"name":"Bash","arguments":{"command":"date"}}"#;
    for (method, further) in [
        (CHECK, checked(&bash("date"), &[("x-user", "alice")])),
        (REQUEST, message(&["up"], "tools/call", params, "alice")),
    ] {
        let refused = grpc.call(method, EDGE, &further).await;
        assert_eq!(refused.status, Some(8), "{method}");
    }
    app.stop().await;
}

/// The request bodies of a gateway may take 64 MiB of memory at once. The test sends 66 MiB in all.
/// The service accepts every body, because a check releases its body before it waits for a person.
#[tokio::test(flavor = "multi_thread")]
async fn large_body_of_a_check_that_waits_leaves_room_for_the_next() {
    let yaml = gateway_yaml(&format!("max_open: 100\n    {LONG}"));
    let yaml = yaml + "\nserver: { max_streams_per_caller: 100 }\n";
    let app: &'static TestApp = Box::leak(Box::new(TestApp::with(On::Sqlite, &yaml).await));
    let grpc = Grpc::to(app).await;
    let waiting = TaskTracker::new();
    // Envoy's messages have no field 15, so the service skips the field.
    let padding = field(15, &vec![0; 1_110_000]);
    for count in 1..=62 {
        let mut message = checked(&bash(&format!("make {count}")), &[("x-user", "alice")]);
        message.extend_from_slice(&padding);
        waiting.spawn(patient_with(grpc.clone(), message));
        let held = async {
            while app.owner().get("/v1/requests?limit=1").await.body["open"] != count {
                crate::support::pause().await;
            }
        };
        timeout(SOON, held).await.expect("the body has been read");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_that_waits_holds_none_of_its_headers() {
    const CHECKS: usize = 8;
    const HEADER_BYTES: usize = 512 * 1024;
    let app: &'static TestApp = Box::leak(Box::new(gateway_app(LONG).await));
    let grpc = Grpc::to(app).await;
    let waiting = TaskTracker::new();
    let key = format!("Bearer {EDGE}");
    let mut before = 0;
    // The first check fills the caches of the service and of the test.
    for count in 0..=CHECKS {
        if count == 1 {
            before = allocated_bytes();
        }
        let cookie = "x".repeat(HEADER_BYTES);
        let headers = [("x-user", "alice"), ("cookie", cookie.as_str())];
        let body = framed(&checked(&bash(&format!("make {count}")), &headers));
        let (mut grpc, key) = (grpc.clone(), key.clone());
        // This future owns the body only until the body is sent.
        waiting.spawn(async move {
            let headers = [
                ("content-type", "application/grpc"),
                ("authorization", key.as_str()),
                ("grpc-timeout", "600S"),
            ];
            let _ = grpc.send(CHECK, &headers, body).await;
        });
        let held = async {
            while app.owner().get("/v1/requests?limit=1").await.body["open"] != count + 1 {
                crate::support::pause().await;
            }
        };
        timeout(SOON, held).await.expect("the call is held");
    }
    assert_grows_less_than(before, CHECKS * HEADER_BYTES / 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_that_resets_its_stream_has_left_and_a_later_approval_waits() {
    let app: &'static TestApp = Box::leak(Box::new(gateway_app(LONG).await));
    let mut grpc = Grpc::to(app).await;
    let waits = TaskTracker::new().spawn(patient(grpc.clone(), "make"));
    let request = first_request(app).await;
    let until = async |present: bool| {
        let is_so = async || is_present(app, &request).await == present;
        crate::support::until("the presence is as expected", is_so).await;
    };
    until(true).await;
    waits.abort();
    until(false).await;
    approve(app, &request).await;
    let path = format!("/v1/tasks/{}/items", request["task_id"].as_str().unwrap());
    let items = app.owner().get(&path).await;
    items.assert_lacks("tool_started");
    // The gateway has reset only the stream, so the connection is still open. The next check on
    // this connection continues the approved call, which passes.
    let passed = grpc.check(&bash("make")).await;
    assert!(matches!(passed, Verdict::Passes(Some(_))), "{passed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_that_waits_at_a_shutdown_is_pending_and_passes_after_the_restart_once_approved() {
    let mut app = gateway_app(LONG).await;
    let waiting = TaskTracker::new().spawn(patient(Grpc::to(&app).await, "make"));
    let request = first_request(&app).await;
    let waits = async || waits_for_minutes(&app, &request).await;
    crate::support::until("the check waits", waits).await;
    let (told, ()) = tokio::join!(waiting, app.restart());
    let told = told.unwrap();
    assert_eq!(told.state(), "pending");
    assert!(told.text().starts_with("HELD."), "{told:?}");
    let Verdict::Denied(_, body) = &told else {
        panic!("{told:?}")
    };
    let gate = &body["result"]["_meta"]["holdpoint/gate"];
    assert_eq!(gate["task_id"], request["task_id"]);
    assert_eq!(gate["request_id"], request["request_id"]);
    approve(&app, &request).await;
    let passed = Grpc::to(&app).await.check(&bash("make")).await;
    let task = request["task_id"].as_str().unwrap().to_owned();
    assert_eq!(passed, Verdict::Passes(Some(task)));
    app.stop().await;
}
