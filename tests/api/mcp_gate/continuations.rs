//! Tests the demands of dativo-io/talon#431 for approvals that do not depend on an open connection:
//! after the approval nothing runs until the client continues its call, and a continuation that
//! does not fit runs nothing. Each demand has one test. The gate deviates from one demand: a client
//! of the revision 2026-07-28 repeats its request by itself, so it counts as present for five
//! seconds after each response. An approval within these five seconds starts the call. A test that
//! needs an absent client at the approval therefore uses a client of an older revision.

use std::time::Duration;

use futures_util::future::join_all;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{
    about, answer, answer_task, asker_until, call, newest, older, post, post_as, refund,
    result_text, state_of, with_state,
};
use crate::api::approval_cycle::on_both;
use crate::api::gate::{AGENT, CAROLS_AGENT, NAMESAKES_AGENT, gate, yaml};
use crate::support::test_app::{On, Reply, TestApp};
use crate::support::test_clock::TestClock;
use crate::support::{eventually, until};

/// Makes a call that is held. Returns its `requestState` and its task, as [`state_of`] does.
async fn held(app: &TestApp) -> (Value, String) {
    state_of(&post(app, "1", &newest("tools/call", refund(120))).await)
}

/// Returns the parameters of a call that is identified by a key (`holdpoint/key`).
fn keyed(amount: u32) -> Value {
    let mut params = refund(amount);
    params["_meta"] = json!({"holdpoint/key": "run-7"});
    params
}

/// Makes a call that is identified by a key, and approves it. Returns the reply to the held call.
async fn approved(app: &TestApp) -> Reply {
    let held = call(app, "0", &keyed(120)).await;
    answer(app, &held, &json!({"action": "approve"})).await;
    held
}

/// Waits until no replica drives the task of a call. Asserts that the call is still approved.
async fn until_approved_at_rest(app: &TestApp, held: &Reply) {
    let id = about(held)["task_id"].as_str().unwrap();
    let task = id.parse().unwrap();
    let is_released = async || {
        let row = app.store().task(task).await.unwrap().unwrap();
        row.lease_owner.is_none()
    };
    until("no replica drives the task", is_released).await;
    let look = app.actor(AGENT).get(&format!("/v1/gate/calls/{id}")).await;
    assert_eq!(look.str("/state"), "approved", "{}", look.text);
}

#[apply(on_both)]
async fn approval_calls_no_upstream_without_a_continuation_of_the_client(on: On) {
    let app = gate(on, "").await;
    let held = approved(&app).await;
    until_approved_at_rest(&app, &held).await;
    assert_eq!(app.tool.count(), 0);
    let ran = call(&app, "10", &keyed(120)).await;
    assert_eq!(
        (result_text(&ran), app.tool.count()),
        (("{\"ok\":true}".to_owned(), false), 1)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn approved_call_is_continued_only_by_its_own_agent_with_its_arguments_and_session(on: On) {
    let app = gate(on, "").await;
    let held = call(&app, "0", &refund(120)).await;
    answer(&app, &held, &json!({"action": "approve"})).await;
    let carol = app.actor(CAROLS_AGENT).prefer("wait=0");
    let carols = post_as(carol, &older("tools/call", &refund(120))).await;
    let namesake = app.actor(NAMESAKES_AGENT).prefer("wait=0");
    let namesakes = post_as(namesake, &older("tools/call", &refund(120))).await;
    let other = call(&app, "0", &refund(121)).await;
    let session = app
        .actor(AGENT)
        .prefer("wait=0")
        .header("holdpoint-session", "s2");
    let elsewhere = post_as(session, &older("tools/call", &refund(120))).await;
    for reply in [carols, namesakes, other, elsewhere] {
        assert_eq!(about(&reply)["state"], "pending", "{}", reply.text);
    }
    assert_eq!(app.tool.count(), 0);
    let ran = call(&app, "10", &refund(120)).await;
    assert_eq!(
        (result_text(&ran).1, app.tool.count()),
        (false, 1),
        "{}",
        ran.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn continuation_reference_is_no_permission_for_another_tenant_user_or_operation(on: On) {
    let app = gate(on, "").await;
    let (state, task) = held(&app).await;
    let mut params = refund(120);
    params["requestState"] = state.clone();
    let message = newest("tools/call", params);
    let carol = app.actor(CAROLS_AGENT).prefer("wait=0");
    let carols = post_as(carol, &message).await;
    let namesake = app.actor(NAMESAKES_AGENT).prefer("wait=0");
    let namesakes = post_as(namesake, &message).await;
    let others = with_state(&app, &state, 130, "0").await;
    let forged = json!("hp1.019aa000-0000-7000-8000-000000000000.1");
    let forged = with_state(&app, &forged, 140, "0").await;
    let garbage = with_state(&app, &json!("hp1.x.1-TAMPERED"), 150, "0").await;
    for reply in [carols, namesakes, others, forged, garbage] {
        assert_ne!(state_of(&reply).1, task);
    }
    assert_eq!(app.tool.count(), 0);
    answer_task(&app, &task, &json!({"action": "approve"})).await;
    with_state(&app, &state, 120, "10").await;
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn reference_to_the_call_of_another_is_answered_without_a_read_of_its_journal(on: On) {
    let app = gate(on, "").await;
    let carol = app.actor(CAROLS_AGENT).prefer("wait=0");
    let namesake = app.actor(NAMESAKES_AGENT).prefer("wait=0");
    for (amount, actor) in [(130, carol), (140, namesake)] {
        let (state, task) = state_of(&post_as(actor, &newest("tools/call", refund(120))).await);
        // This damage makes every read of the task's journal fail.
        let of_call = format!(
            "task_id = {} and type = 'assistant_message'",
            app.database.id(&task)
        );
        let damage = format!("update agent_task_item set body = '{{' where {of_call}");
        app.database.execute(&damage).await;
        let own = with_state(&app, &state, amount, "0").await;
        assert_ne!(state_of(&own).1, task);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn key_names_its_call_beside_a_continuation_reference_that_names_no_call_of_its_client(
    on: On,
) {
    let app = gate(on, "").await;
    let known = approved(&app).await;
    let carol = app.actor(CAROLS_AGENT).prefer("wait=0");
    let (foreign, _) = state_of(&post_as(carol, &newest("tools/call", refund(120))).await);
    let forged = json!("hp1.019aa000-0000-7000-8000-000000000000.1");
    let garbage = json!("hp1.x.1-TAMPERED");
    for (state, new_key) in [
        (&foreign, "run-8"),
        (&forged, "run-9"),
        (&garbage, "run-10"),
    ] {
        let mut params = keyed(120);
        params["requestState"] = state.clone();
        let ran = post(&app, "10", &newest("tools/call", params)).await;
        assert_eq!(
            about(&ran)["task_id"],
            about(&known)["task_id"],
            "{state}: {}",
            ran.text
        );
        let mut params = refund(130);
        params["_meta"] = json!({"holdpoint/key": new_key});
        let by_key = params.clone();
        params["requestState"] = state.clone();
        let (_, task) = state_of(&post(&app, "0", &newest("tools/call", params)).await);
        let again = call(&app, "0", &by_key).await;
        assert_eq!(
            about(&again)["task_id"],
            task.as_str(),
            "{state}: {}",
            again.text
        );
    }
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn duplicate_continuation_is_answered_with_the_same_result_and_runs_nothing(on: On) {
    let app = gate(on, "").await;
    let (state, task) = held(&app).await;
    answer_task(&app, &task, &json!({"action": "approve"})).await;
    for _ in 0..3 {
        let reply = with_state(&app, &state, 120, "10").await;
        let result = &reply.body["result"];
        assert_eq!(
            result["content"][0]["text"], "{\"ok\":true}",
            "{}",
            reply.text
        );
        assert_eq!(result["resultType"], "complete");
        assert_eq!(result["_meta"]["holdpoint/gate"]["task_id"], task.as_str());
    }
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn simultaneous_continuations_run_the_call_once(on: On) {
    let app = gate(on, "").await;
    let (state, task) = held(&app).await;
    answer_task(&app, &task, &json!({"action": "approve"})).await;
    let replies = join_all((0..8).map(|_| with_state(&app, &state, 120, "30"))).await;
    for reply in &replies {
        assert_eq!(
            result_text(reply),
            ("{\"ok\":true}".to_owned(), false),
            "{}",
            reply.text
        );
    }
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn wait_for_a_person_needs_no_open_connection_and_survives_a_restart(on: On) {
    let mut app = gate(on, "hold: 0s").await;
    let held = post_as(app.actor(AGENT), &older("tools/call", &refund(120))).await;
    assert_eq!(
        held.header("content-type"),
        "application/json",
        "{}",
        held.text
    );
    let task = about(&held)["task_id"].as_str().unwrap().to_owned();
    assert_eq!(
        asker_until(&app, &task).await,
        Some(Time(0)),
        "no client waits"
    );
    app.restart().await;
    answer(&app, &held, &json!({"action": "approve"})).await;
    let ran = call(&app, "10", &refund(120)).await;
    assert_eq!(
        (&about(&ran)["task_id"], app.tool.count()),
        (&json!(task), 1),
        "{}",
        ran.text
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_of_a_call_with_other_arguments_is_refused_and_runs_nothing() {
    let app = gate(On::Sqlite, "").await;
    let held = approved(&app).await;
    let changed = call(&app, "10", &keyed(130)).await;
    let error = &changed.body["error"];
    assert_eq!(error["code"], -32602, "{}", changed.text);
    assert_eq!(error["data"]["code"], "idempotency_key_reused");
    until_approved_at_rest(&app, &held).await;
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_approved_under_another_schema_runs_nothing_and_is_asked_about_anew() {
    let mut app = gate(On::Sqlite, "").await;
    let held = approved(&app).await;
    app.restart_with(|yaml| {
        yaml.replace(
            "exclusiveMinimum: 0 }",
            "exclusiveMinimum: 0, maximum: 1000 }",
        )
    })
    .await;
    let asked_anew = async || {
        let again = call(&app, "0", &keyed(120)).await;
        let request = &about(&again)["request_id"];
        let is_new = request.is_string() && *request != about(&held)["request_id"];
        is_new.then_some(again)
    };
    let again = eventually("people are asked anew", asked_anew).await;
    let (text, _) = result_text(&again);
    assert!(text.contains("The tool has changed"), "{text}");
    assert_eq!(about(&again)["state"], "pending");
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approved_call_that_the_changed_policy_denies_is_not_run() {
    let mut app = gate(On::Sqlite, "").await;
    approved(&app).await;
    app.restart_with(|yaml| yaml.replace("[refund], decide: hold", "[refund], decide: deny"))
        .await;
    let denied = call(&app, "10", &keyed(120)).await;
    let (text, is_error) = result_text(&denied);
    assert!(text.ends_with("It has not run.") && is_error, "{text}");
    assert_eq!(about(&denied)["outcome"], "denied", "{}", denied.text);
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

/// The test runs on `SQLite`, where the service compares the time with the clock that the test
/// moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_whose_approval_has_expired_is_told_so_and_not_run() {
    let clock = TestClock::new();
    let app = TestApp::timed(On::Sqlite, &yaml(""), clock.clone()).await;
    approved(&app).await;
    clock.advance(Duration::from_mins(61));
    for _ in 0..2 {
        let expired = call(&app, "10", &keyed(120)).await;
        let (text, is_error) = result_text(&expired);
        assert!(text.ends_with("It has not run.") && is_error, "{text}");
        assert_eq!(about(&expired)["outcome"], "expired", "{}", expired.text);
    }
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approved_call_of_unknown_outcome_is_not_repeated() {
    let app = gate(On::Sqlite, "").await;
    app.tool.answers(502, "gone");
    approved(&app).await;
    for _ in 0..3 {
        let is_doubtful = async || {
            let reply = call(&app, "0", &keyed(120)).await;
            (about(&reply)["state"] == "doubtful").then_some(reply)
        };
        let doubtful = eventually("a person is asked about the outcome", is_doubtful).await;
        let (text, is_error) = result_text(&doubtful);
        assert!(
            text.starts_with("It may have run. Do not repeat it.") && is_error,
            "{text}"
        );
    }
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}
