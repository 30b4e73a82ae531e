//! Tests of a stolen key of an agent. The thief has the key `AGENT`, which Alice's agent goes on to
//! use. `docs/guarantees.md` lists what a thief can try.

use std::time::Duration;

use holdpoint::task::time::Time;
use holdpoint::world::{Clock as _, SystemClock};
use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use super::outcomes::report;
use super::{
    AGENT, CAROLS_AGENT, NAMESAKES_AGENT, ask, ask_as, ask_by_key, assert_call, bash, decide,
    decide_as, gate, items, refund, types, until_asker,
};
use crate::api::approval_cycle::on_both;
use crate::support::raw_http;
use crate::support::test_app::{On, Reply, TestApp};

/// Returns how often the call was started, as its journal shows.
async fn starts(app: &TestApp, call: &Reply) -> usize {
    let items = items(app, call).await;
    let types = types(&items);
    types.iter().filter(|kind| **kind == "tool_started").count()
}

/// The line of the configuration that gives Alice's agent its key.
fn key_line() -> String {
    format!(
        "    - {{ user: alice, tenant: acme, groups: [support], key: \"{AGENT}\", may: [gate] }}\n"
    )
}

#[apply(on_both)]
async fn stolen_key_approves_and_rejects_nothing_not_even_calls_of_its_own_user(on: On) {
    let app = gate(on, "").await;
    // No rule matches this call. So Alice may decide the call, but not with the key of Alice's
    // agent.
    let held = ask(&app, &bash("make"), 0).await;
    let path = format!("/resume/{}", held.str("/request/request_id"));
    let session = app.sign_in(AGENT).await;
    let id = held.str("/tool_call_id");
    let approves = json!({"action": "approve"});
    let edits = json!({"decisions": {(&id): {"action": "edit", "arguments": {"command": "rm"}}}});
    let responds = json!({"decisions": {(&id): {"action": "respond", "result": "Made."}}});
    for thief in [app.actor(AGENT), app.anonymous().header("cookie", &session)] {
        let mut refused = Vec::new();
        for verb in ["approve", "reject"] {
            refused.push(thief.hit(&format!("{path}/{verb}")).await);
        }
        for body in [&approves, &edits, &responds] {
            refused.push(thief.post(&path, body).await);
        }
        for reply in refused {
            reply.assert_code(403, "forbidden");
            assert_eq!(
                reply.str("/detail"),
                "This key may not decide requests.",
                "{}",
                reply.text
            );
        }
    }
    assert_eq!(
        types(&items(&app, &held).await),
        [
            "task_status",
            "user_message",
            "assistant_message",
            "judged",
            "intervention_requested",
            "task_status"
        ]
    );
    decide_as(app.owner(), &held, "approve").await;
    app.stop().await;
}

#[apply(on_both)]
async fn stolen_key_reads_and_cancels_nothing_and_speaks_for_no_other_user(on: On) {
    let app = gate(on, "").await;
    let own = ask(&app, &refund(120), 0).await;
    let carols = ask_as(app.actor(CAROLS_AGENT), &refund(130), 0).await;
    let thief = || app.actor(AGENT);
    for call in [&own, &carols] {
        let task = format!("/v1/tasks/{}", call.str("/task_id"));
        let request = format!("/resume/{}", call.str("/request/request_id"));
        for path in [
            &task,
            &format!("{task}/items"),
            &format!("{task}/events"),
            &request,
        ] {
            assert_eq!(thief().get(path).await.status, 403, "{path}");
        }
        assert_eq!(thief().hit(&format!("{task}/cancel")).await.status, 403);
    }
    for path in [
        "/v1/tasks?agent=refunds",
        "/v1/requests",
        "/v1/grants",
        "/v1/me",
    ] {
        assert_eq!(thief().get(path).await.status, 403, "{path}");
    }
    let task = thief()
        .post("/v1/tasks", &json!({"agent": "billing", "input": "x"}))
        .await;
    assert_eq!(task.status, 403, "{}", task.text);
    let speaks = ask_as(thief().header("holdpoint-user", "carol"), &refund(5), 0).await;
    assert_eq!(speaks.status, 403, "{}", speaks.text);
    assert_eq!((app.tool.count(), app.model.sent().len()), (0, 0));
    app.stop().await;
}

#[apply(on_both)]
async fn stolen_key_that_asks_first_gets_the_one_permit_of_an_approved_call(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &bash("make"), 0).await;
    decide_as(app.owner(), &held, "approve").await;
    let taken = ask(&app, &bash("make"), 5).await;
    assert_call(&taken, 200, "allow", "started", Value::Null);
    assert_eq!(taken.str("/task_id"), held.str("/task_id"));
    assert_eq!(taken.body["permit"]["attempt"], 1);
    // The thief has taken the permit of the approved call. An equal proposal of the agent
    // therefore begins a new call. Its request warns people that the same call is being run.
    let agents = ask(&app, &bash("make"), 0).await;
    assert_call(&agents, 202, "pending", "pending", Value::Null);
    assert_eq!(agents.body["permit"], Value::Null);
    assert_ne!(agents.str("/task_id"), held.str("/task_id"));
    assert!(
        agents
            .str("/request/tool_calls/0/reason")
            .contains("The same call is being run."),
        "{}",
        agents.text
    );
    assert_eq!(
        (starts(&app, &held).await, starts(&app, &agents).await),
        (1, 0)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn approved_call_is_not_taken_over_without_its_session_its_key_or_its_user(on: On) {
    let app = gate(on, "").await;
    let mut in_session = bash("make");
    in_session["session_id"] = json!("run-7-f3a9c41d");
    let first = ask(&app, &in_session, 0).await;
    let second = ask_by_key(&app, "run-8-5be20774", &bash("make test"), 0).await;
    for call in [&first, &second] {
        decide_as(app.owner(), call, "approve").await;
    }
    let without = [
        ask(&app, &bash("make"), 0).await,
        ask(&app, &bash("make test"), 0).await,
        ask_as(app.actor(CAROLS_AGENT), &in_session, 0).await,
        ask_as(app.actor(NAMESAKES_AGENT), &in_session, 0).await,
    ];
    for other in &without {
        assert_call(other, 202, "pending", "pending", Value::Null);
        assert_eq!(other.body["permit"], Value::Null);
    }
    let agents = [
        ask(&app, &in_session, 5).await,
        ask_by_key(&app, "run-8-5be20774", &bash("make test"), 5).await,
    ];
    for (permitted, held) in agents.iter().zip([&first, &second]) {
        assert_call(permitted, 200, "allow", "started", Value::Null);
        assert_eq!(permitted.str("/task_id"), held.str("/task_id"));
        assert!(permitted.body["permit"].is_object(), "{}", permitted.text);
    }
    // A permit is given once. A thief who knows the idempotency key does not get the permit
    // again.
    let late = ask_by_key(&app, "run-8-5be20774", &bash("make test"), 0).await;
    late.assert_code(409, "call_in_hand");
    assert_eq!(
        (starts(&app, &first).await, starts(&app, &second).await),
        (1, 1)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn false_report_is_marked_as_a_report_and_refuses_the_true_one(on: On) {
    let app = gate(on, "").await;
    let call = ask_by_key(&app, "run-7", &bash("ls"), 5).await;
    let ours = ask_by_key(&app, "run-8", &refund(5), 10).await;
    let report_of = |call: &Reply| json!({"task_id": call.str("/task_id"), "outcome": "succeeded", "content": "All good."});
    for (actor, status) in [(CAROLS_AGENT, 403), (NAMESAKES_AGENT, 404)] {
        let others = app
            .actor(actor)
            .post("/v1/gate/outcomes", &report_of(&call))
            .await;
        assert_eq!(others.status, status, "{}", others.text);
    }
    let lie = report(&app, &report_of(&call)).await;
    assert_call(&lie, 200, "allow", "settled", "succeeded");
    let truth = report(
        &app,
        &json!({"key": "run-7", "outcome": "failed", "content": "It broke."}),
    )
    .await;
    truth.assert_code(409, "call_settled");
    assert_eq!(truth.str("/call/outcome"), "succeeded");
    // The service runs the call `run-8` itself, so it refuses every report about this call.
    for outcome in ["succeeded", "failed", "unknown"] {
        let refused = report(
            &app,
            &json!({"key": "run-8", "outcome": outcome, "content": "No."}),
        )
        .await;
        refused.assert_text(409, "/call/outcome", "succeeded");
    }
    for (call, content, reported) in [(&call, "All good.", true), (&ours, "{\"ok\":true}", false)] {
        let all = items(&app, call).await;
        let mut results = all.iter().filter(|item| item["content"].is_string());
        let result = results.next().expect("a result");
        assert_eq!(
            (&result["content"], &result["reported"]),
            (&json!(content), &json!(reported)),
            "{result}"
        );
        assert_eq!(results.next(), None, "one result");
    }
    app.stop().await;
}

#[apply(on_both)]
async fn removed_key_ends_the_wait_of_its_holder_and_a_later_approval_starts_nothing(on: On) {
    let mut app = gate(on, "").await;
    let session = app.sign_in(AGENT).await;
    let held = ask(&app, &refund(120), 0).await;
    let path = format!("/v1/gate/calls/{}", held.str("/task_id"));
    assert_eq!(
        app.anonymous()
            .header("cookie", &session)
            .get(&path)
            .await
            .status,
        200
    );
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "refund", "arguments": {"order": 17, "amount": 120}}});
    let body = Some(("application/json", message.to_string().into_bytes()));
    // The response is an event stream, so its headers arrive while the call is still held.
    let waiting = app
        .actor(AGENT)
        .prefer("wait=300")
        .sent(Method::POST, "/mcp/refunds", body)
        .await;
    until_asker(&app, &held, |until| until > Time(0)).await;
    let removes = app.restart_with(|yaml| {
        let without = yaml.replace(&key_line(), "");
        assert_ne!(without, yaml);
        without
    });
    let (answer, ()) = tokio::join!(waiting.text(), removes);
    assert!(answer.unwrap().contains("HELD."), "the wait has ended");
    until_asker(&app, &held, |until| until == Time(0)).await;
    let by_session = app.anonymous().header("cookie", &session);
    for refused in [
        ask(&app, &refund(120), 0).await,
        app.actor(AGENT).post("/mcp/refunds", &message).await,
        app.actor(AGENT).get(&path).await,
        report(
            &app,
            &json!({"task_id": held.str("/task_id"), "outcome": "failed"}),
        )
        .await,
        by_session.get(&path).await,
    ] {
        refused.assert_code(401, "unauthorized");
    }
    decide(&app, &held, "approve").await;
    let look = app.owner().get(&path).await;
    assert_call(&look, 200, "pending", "approved", Value::Null);
    assert_eq!((starts(&app, &held).await, app.tool.count()), (0, 0));
    app.stop().await;
}

/// Returns for how long the client that waits for a call counts as present.
async fn presence_left(app: &TestApp, call: &Reply) -> Duration {
    until_asker(app, call, |until| until > Time(0)).await;
    let task = call.str("/task_id").parse().unwrap();
    let row = app.store().task(task).await.unwrap().unwrap();
    row.asker_until.unwrap().since(SystemClock.now())
}

#[apply(on_both)]
async fn ask_of_a_session_waits_a_minute_at_most_and_gets_no_permit_after_the_sign_out(on: On) {
    let app = gate(on, "").await;
    let session = app.sign_in(AGENT).await;
    let by_session = || app.anonymous().header("cookie", &session);
    let make = bash("make");
    let shell = ask_as(by_session(), &make, 0).await;
    let refunded = ask_as(by_session(), &refund(120), 0).await;
    let arguments = json!({"order": 17, "amount": 120});
    let params = json!({"name": "refund", "arguments": arguments});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let body = Some(("application/json", message.to_string().into_bytes()));
    // The response is an event stream, so its headers arrive while the call is still held.
    let over_mcp = by_session()
        .prefer("wait=300")
        .sent(Method::POST, "/mcp/refunds", body)
        .await;
    // The presence outlasts the wait by five seconds.
    let longest = Duration::from_secs(65);
    let left = presence_left(&app, &refunded).await;
    assert!(left <= longest, "{left:?}");
    drop(over_mcp);
    let signs_out_and_approves = async {
        let left = presence_left(&app, &shell).await;
        assert!(left <= longest, "{left:?}");
        assert_eq!(by_session().hit("/sign-out").await.status, 303);
        decide_as(app.owner(), &shell, "approve").await;
    };
    let waiting = ask_as(by_session(), &make, 300);
    let (answer, ()) = tokio::join!(waiting, signs_out_and_approves);
    assert_call(&answer, 202, "pending", "approved", Value::Null);
    assert_eq!(answer.body["permit"], Value::Null, "{}", answer.text);
    answer.assert_header(202, "preference-applied", "wait=60");
    until_asker(&app, &shell, |until| until == Time(0)).await;
    let again = ask_as(by_session(), &make, 0).await;
    again.assert_code(401, "unauthorized");
    assert_eq!(starts(&app, &shell).await, 0);
    app.stop().await;
}

#[apply(on_both)]
async fn read_of_a_session_waits_a_minute_at_most(on: On) {
    let app = gate(on, "").await;
    let session = app.sign_in(AGENT).await;
    // The call has ended, so the service answers the read at once.
    let ended = ask(&app, &refund(5), 10).await;
    assert_call(&ended, 200, "allow", "settled", "succeeded");
    let path = format!("/v1/gate/calls/{}", ended.str("/task_id"));
    let by_session = app.anonymous().header("cookie", &session);
    let read = by_session.prefer("wait=300").get(&path).await;
    read.assert_header(200, "preference-applied", "wait=60");
    app.stop().await;
}

/// The service asks for the body (`100 Continue`) once it has authenticated the request.
#[apply(on_both)]
async fn allowed_call_whose_body_comes_after_the_sign_out_gets_no_permit(on: On) {
    let app = gate(on, "").await;
    let session = app.sign_in(AGENT).await;
    let body = bash("ls").to_string();
    let head = format!(
        "POST /v1/gate/calls HTTP/1.1\r\nHost: localhost\r\nCookie: {session}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = BufReader::new(raw_http::send(&app.url(), head.as_bytes()).await);
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
    let by_session = app.anonymous().header("cookie", &session);
    assert_eq!(by_session.hit("/sign-out").await.status, 303);
    stream.get_mut().write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("HTTP/1.1 503 "), "{answer}");
    assert_eq!(
        app.database.texts("select agent from agent_task").await,
        [""; 0]
    );
    app.stop().await;
}
