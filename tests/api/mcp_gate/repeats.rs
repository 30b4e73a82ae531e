//! Tests of calls that are made again: with a `requestState`, with a key, with the same arguments,
//! or by another caller.

use holdpoint::task::time::Time;
use serde_json::{Value, json};

use super::{about, answer, answer_task, call, newest, older, post, post_as, refund, told};
use crate::api::approval_cycle::on_both;
use crate::api::gate::{AGENT, CAROLS_AGENT, gate};
use crate::support::test_app::{On, Reply, TestApp};

/// Makes a call in the newest revision of MCP, with `state` as its `requestState`.
async fn with_state(app: &TestApp, state: &Value, amount: u32, wait: &str) -> Reply {
    let mut params = refund(amount);
    params["requestState"] = state.clone();
    post(app, wait, &newest("tools/call", params)).await
}

/// Returns the `requestState` in the reply to a held call, and the id of the call's task. A client
/// continues the call with the `requestState`.
fn state_of(leg: &Reply) -> (Value, String) {
    let result = &leg.body["result"];
    assert_eq!(result["resultType"], "input_required", "{}", leg.text);
    let state = result["requestState"].clone();
    let task = state.as_str().and_then(|state| state.split('.').nth(1));
    let task = task.expect("a task").to_owned();
    (state, task)
}

/// Makes a call that is held. Returns the same values as [`state_of`].
async fn held(app: &TestApp) -> (Value, String) {
    state_of(&post(app, "1", &newest("tools/call", refund(120))).await)
}

/// Returns the time until which a client counts as waiting for the call of this task.
pub(super) async fn asker_until(app: &TestApp, task: &str) -> Option<Time> {
    let row = app.store().task(task.parse().unwrap()).await.unwrap();
    row.unwrap().asker_until
}

on_both! {
    async fn delivered_result_is_answered_again_to_its_request_state_and_runs_once(on: On) {
        let app = gate(on, "").await;
        let (state, task) = held(&app).await;
        answer_task(&app, &task, &json!({"action": "approve"})).await;
        for _ in 0..3 {
            let reply = with_state(&app, &state, 120, "10").await;
            let result = &reply.body["result"];
            assert_eq!(result["content"][0]["text"], "{\"ok\":true}", "{}", reply.text);
            assert_eq!(result["resultType"], "complete");
            assert_eq!(result["_meta"]["holdpoint/gate"]["task_id"], task.as_str());
        }
        assert_eq!(app.tool.count(), 1);
        app.stop().await;
    }

    async fn request_state_of_another_user_or_of_other_arguments_names_a_new_call(on: On) {
        let app = gate(on, "").await;
        let (state, task) = held(&app).await;
        let mut params = refund(120);
        params["requestState"] = state.clone();
        let carol = app.actor(CAROLS_AGENT).header("prefer", "wait=0");
        let carols = post_as(carol, &newest("tools/call", params)).await;
        let others = with_state(&app, &state, 130, "0").await;
        let forged = json!("hp1.019aa000-0000-7000-8000-000000000000.1");
        let forged = with_state(&app, &forged, 140, "0").await;
        let garbage = with_state(&app, &json!("hp1.x.1-TAMPERED"), 150, "0").await;
        for reply in [carols, others, forged, garbage] {
            assert_ne!(state_of(&reply).1, task);
        }
        assert_eq!(app.tool.count(), 0);
        answer_task(&app, &task, &json!({"action": "approve"})).await;
        with_state(&app, &state, 120, "10").await;
        assert_eq!(app.tool.count(), 1);
        app.stop().await;
    }

    async fn client_that_does_not_wait_gets_nine_states_and_then_the_pending_result(on: On) {
        let app = gate(on, "").await;
        let mut reply = post(&app, "0", &newest("tools/call", refund(120))).await;
        let (_, task) = state_of(&reply);
        let mut until = asker_until(&app, &task).await;
        for repetition in 1..=9 {
            let (state, _) = state_of(&reply);
            assert_eq!(state, format!("hp1.{task}.{repetition}"));
            reply = with_state(&app, &state, 120, "0").await;
            let later = asker_until(&app, &task).await;
            // The ninth reply ends the exchange, so it does not postpone `asker_until`.
            assert_eq!(later > until, repetition < 9, "{repetition}: {later:?} after {until:?}");
            until = later;
        }
        assert!(told(&reply).0.starts_with("HELD."), "{}", reply.text);
        assert_eq!((&about(&reply)["state"], &about(&reply)["task_id"]), (&json!("pending"), &json!(task)));
        app.stop().await;
    }

    async fn result_of_a_key_is_answered_again_with_its_account_in_meta(on: On) {
        let app = gate(on, "").await;
        let mut params = refund(120);
        params["_meta"] = json!({"holdpoint/key": "run-7"});
        let held = call(&app, "0", &params).await;
        let account = about(&held);
        for member in ["state", "task_id", "request_id", "url", "expires_at", "retry_after_ms"] {
            assert!(account.get(member).is_some(), "{member}: {}", held.text);
        }
        answer(&app, &held, &json!({"action": "approve"})).await;
        for _ in 0..2 {
            let reply = call(&app, "10", &params).await;
            assert_eq!(told(&reply), ("{\"ok\":true}".to_owned(), false));
            assert_eq!((&about(&reply)["by"], &about(&reply)["state"]), (&json!(["bob"]), &json!("settled")));
        }
        assert_eq!(app.tool.count(), 1);
        app.stop().await;
    }

    async fn approval_is_consumed_by_one_call_and_the_next_equal_call_is_held(on: On) {
        let app = gate(on, "").await;
        let held = call(&app, "0", &refund(120)).await;
        answer(&app, &held, &json!({"action": "approve"})).await;
        let ran = call(&app, "10", &refund(120)).await;
        assert_eq!(about(&ran)["task_id"], about(&held)["task_id"]);
        let next = call(&app, "0", &refund(120)).await;
        assert_eq!(about(&next)["state"], "pending", "{}", next.text);
        assert_ne!(about(&next)["task_id"], about(&held)["task_id"]);
        assert_eq!(app.tool.count(), 1);
        app.stop().await;
    }

    async fn approved_call_runs_nothing_until_its_own_agent_asks_with_the_same_arguments(on: On) {
        let app = gate(on, "").await;
        let held = call(&app, "0", &refund(120)).await;
        answer(&app, &held, &json!({"action": "approve"})).await;
        let carol = app.actor(CAROLS_AGENT).header("prefer", "wait=0");
        let carols = post_as(carol, &older("tools/call", &refund(120))).await;
        let other = call(&app, "0", &refund(121)).await;
        let session = app.actor(AGENT).header("prefer", "wait=0").header("holdpoint-session", "s2");
        let elsewhere = post_as(session, &older("tools/call", &refund(120))).await;
        for reply in [carols, other, elsewhere] {
            assert_eq!(about(&reply)["state"], "pending", "{}", reply.text);
        }
        assert_eq!(app.tool.count(), 0);
        let ran = call(&app, "10", &refund(120)).await;
        assert_eq!((told(&ran).1, app.tool.count()), (false, 1), "{}", ran.text);
        app.stop().await;
    }
}
