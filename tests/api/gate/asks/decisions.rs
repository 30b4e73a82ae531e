//! Tests decisions about held calls, whose askers wait for the decision or are gone.

use std::time::{Duration, Instant};

use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::{
    AGENT, ask, ask_by_key, assert_call, decide, gate, items, refund, types, until_asker, yaml,
};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn held_call_runs_once_for_the_asker_that_waits(on: On) {
    let app = gate(on, "").await;
    let held = ask_by_key(&app, "k1", &refund(120), 0).await;
    assert_call(&held, 202, "pending", "pending", Value::Null);
    assert!(
        held.header("location")
            .ends_with(&format!("/v1/gate/calls/{}", held.str("/task_id")))
    );
    assert_eq!(
        (
            held.header("retry-after"),
            held.str("/request/status").as_str()
        ),
        ("5", "pending")
    );
    let refund_120 = refund(120);
    let waits = ask_by_key(&app, "k1", &refund_120, 30);
    let says = async {
        until_asker(&app, &held, |until| until > Time(0)).await;
        decide(&app, &held, "approve").await
    };
    let (call, _) = tokio::join!(waits, says);
    assert_call(&call, 200, "allow", "settled", "succeeded");
    assert_eq!(
        (
            call.body["by"].clone(),
            call.str("/message"),
            app.tool.count()
        ),
        (json!(["bob"]), "Approved by bob.".to_owned(), 1)
    );
    let again = ask_by_key(&app, "k1", &refund(120), 5).await;
    assert_call(&again, 200, "allow", "settled", "succeeded");
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(
        (again.body["result"].clone(), app.tool.count()),
        (call.body["result"].clone(), 1)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn approved_call_whose_asker_is_gone_does_not_run_until_asked_for_again(on: On) {
    let app = gate(on, "").await;
    let held = ask_by_key(&app, "k1", &refund(120), 0).await;
    decide(&app, &held, "approve").await;
    let look = app
        .actor(AGENT)
        .get(&format!("/v1/gate/calls/{}", held.str("/task_id")))
        .await;
    assert_call(&look, 200, "pending", "approved", Value::Null);
    assert!(look.body["expires_at"].is_string());
    assert_eq!(app.tool.count(), 0);
    let call = ask_by_key(&app, "k1", &refund(120), 10).await;
    assert_call(&call, 200, "allow", "settled", "succeeded");
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn approval_of_a_call_whose_asker_is_gone_is_answered_at_once(on: On) {
    let app = TestApp::with(on, &(yaml("") + "\nserver: { wait: 60s }\n")).await;
    let held = ask_by_key(&app, "k1", &refund(120), 0).await;
    let path = format!("/resume/{}/approve", held.str("/request/request_id"));
    // By `server.wait`, a POST without `Prefer: wait` may wait a minute for the call's result. The
    // call does not run without its asker, so the service must answer each approval at once.
    for (prefer, replayed) in [("x=1", ""), ("x=1", "true"), ("wait=60", "true")] {
        let began = Instant::now();
        let approver = app.approver().keyed("yes").prefer(prefer);
        let decided = approver.hit(&path).await;
        decided.assert_status(202, "Running");
        assert_eq!(decided.header("idempotency-replayed"), replayed);
        assert_eq!(decided.header("preference-applied"), "");
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{:?}",
            began.elapsed()
        );
    }
    let call = ask_by_key(&app, "k1", &refund(120), 10).await;
    assert_call(&call, 200, "allow", "settled", "succeeded");
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn approved_call_without_an_ask_expires(on: On) {
    let app = gate(on, "use_within: 200ms").await;
    let held = ask_by_key(&app, "k1", &refund(120), 0).await;
    decide(&app, &held, "approve").await;
    let path = format!("/v1/gate/calls/{}", held.str("/task_id"));
    let ended = app.actor(AGENT).prefer("wait=20").get(&path).await;
    assert_call(&ended, 200, "deny", "settled", "expired");
    let items = items(&app, &ended).await;
    let result = items
        .iter()
        .find(|item| item["type"] == "tool_result")
        .unwrap();
    assert_eq!(
        result["content"],
        "Approved, but its agent did not ask for it again in time."
    );
    let again = ask_by_key(&app, "k1", &refund(120), 5).await;
    assert_call(&again, 200, "deny", "settled", "expired");
    let message =
        "The call was not run (expired): Approved, but its agent did not ask for it again in time.";
    assert_eq!(again.str("/message"), message);
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn rejected_call_is_denied_with_the_reason_and_again_without_a_question(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &refund(120), 0).await;
    let request = held.str("/request/request_id");
    let answer = json!({"action": "reject", "reason": "Wrong order:\n it is 18."});
    let rejected = app.approver().answer(&request, &answer).await;
    assert_eq!(rejected.str("/status"), "Canceled", "{}", rejected.text);
    // The client of the held call has left without the call's result. So the next equal proposal
    // gets this result. Every later equal proposal begins a new call.
    let call = ask(&app, &refund(120), 5).await;
    assert_call(&call, 200, "deny", "settled", "rejected");
    assert_eq!(
        (call.str("/task_id"), call.str("/reason").as_str()),
        (held.str("/task_id"), "Wrong order:\n it is 18."),
        "{}",
        call.text
    );
    assert_eq!(
        call.str("/message"),
        "The call was not run (rejected): Wrong order: it is 18.",
        "one line"
    );
    until_asker(&app, &call, |until| until == ASKER_UNTIL_DELIVERED).await;
    let next = ask(&app, &refund(120), 5).await;
    assert_call(&next, 200, "deny", "settled", "rejected");
    assert_ne!(next.str("/task_id"), held.str("/task_id"));
    assert!(next.str("/reason").contains("Wrong order"), "{}", next.text);
    let new = ask_by_key(&app, "k2", &refund(120), 5).await;
    assert_call(&new, 200, "deny", "settled", "rejected");
    assert_ne!(new.str("/task_id"), held.str("/task_id"));
    assert!(
        new.str("/message")
            .starts_with("The call was not run (rejected): "),
        "{}",
        new.text
    );
    assert!(
        new.body["result"].is_null() && call.body["result"].is_null(),
        "it has not run: {}",
        new.text
    );
    assert_eq!(
        types(&items(&app, &new).await),
        [
            "task_status",
            "user_message",
            "assistant_message",
            "judged",
            "tool_result",
            "task_status"
        ]
    );
    assert_eq!(app.tool.count(), 0);
    app.stop().await;
}

#[apply(on_both)]
async fn person_may_edit_or_answer_a_held_call(on: On) {
    let app = gate(on, "").await;
    let held = ask_by_key(&app, "edit", &refund(120), 0).await;
    let path = format!("/resume/{}", held.str("/request/request_id"));
    let id = held.str("/tool_call_id");
    app.approver().prefer("wait=0").post(&path, &json!({"decisions": {(&id): {"action": "edit", "arguments": {"order": 17, "amount": 50}}}})).await;
    let call = ask_by_key(&app, "edit", &refund(120), 10).await;
    assert_call(&call, 200, "allow", "settled", "succeeded");
    assert_eq!(
        (call.body["edited"].clone(), call.str("/arguments_text")),
        (json!(true), app.tool.ledger()[0].body.clone())
    );
    let held = ask_by_key(&app, "answer", &refund(130), 0).await;
    let (request, id) = (held.str("/request/request_id"), held.str("/tool_call_id"));
    let answer = json!({"decisions": {(&id): {"action": "respond", "result": "Paid by hand."}}});
    app.approver().answer(&request, &answer).await;
    let call = ask_by_key(&app, "answer", &refund(130), 10).await;
    assert_call(&call, 200, "deny", "settled", "responded");
    assert_eq!(
        (call.str("/result/content").as_str(), app.tool.count()),
        ("Paid by hand.", 1)
    );
    assert_eq!(
        call.str("/message"),
        "The call was not run: a person gave its result."
    );
    app.stop().await;
}
