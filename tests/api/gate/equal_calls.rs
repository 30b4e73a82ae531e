//! Tests of equal calls at a gate: which proposals continue an earlier call, and which begin a new
//! call.

mod rejections;

use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::{
    AGENT, CAROLS_AGENT, ask, ask_as, ask_by_key, assert_call, bash, decide, decide_as, gate,
    items, refund, until_asker, yaml,
};
use crate::api::approval_cycle::on_both;
use crate::support::test_app::{On, TestApp};

#[apply(on_both)]
async fn equal_bytes_written_differently_attach_and_the_approved_bytes_run(on: On) {
    let app = gate(on, "").await;
    let first = ask(
        &app,
        &json!({"tool": "refund", "arguments_text": "{\"order\":17,\"amount\":120.0}"}),
        0,
    )
    .await;
    let again = ask(
        &app,
        &json!({"tool": "refund", "arguments_text": "{ \"amount\": 120, \"order\": 17 }"}),
        0,
    )
    .await;
    assert_eq!(
        again.str("/task_id"),
        first.str("/task_id"),
        "{}",
        again.text
    );
    let other = ask(&app, &refund(121), 0).await;
    assert_ne!(other.str("/task_id"), first.str("/task_id"));
    decide(&app, &first, "approve").await;
    let call = ask(
        &app,
        &json!({"tool": "refund", "arguments_text": "{\"amount\": 120, \"order\": 17}"}),
        10,
    )
    .await;
    assert_call(&call, 200, "allow", "settled", "succeeded");
    assert_eq!(
        (app.tool.count(), app.tool.ledger()[0].body.as_str()),
        (1, "{\"order\":17,\"amount\":120.0}")
    );
    app.stop().await;
}

#[apply(on_both)]
async fn delivered_result_is_not_given_again_and_what_is_held_is_held_anew(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &refund(120), 0).await;
    decide(&app, &held, "approve").await;
    let call = ask(&app, &refund(120), 10).await;
    assert_call(&call, 200, "allow", "settled", "succeeded");
    until_asker(&app, &call, |until| until == ASKER_UNTIL_DELIVERED).await;
    let next = ask(&app, &refund(120), 0).await;
    assert_call(&next, 202, "pending", "pending", Value::Null);
    assert_ne!(next.str("/task_id"), call.str("/task_id"));
    assert!(
        next.str("/reason").contains("The same call ran at"),
        "{}",
        next.text
    );
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn call_that_equal_calls_do_not_continue_says_so_while_it_runs(on: On) {
    let app = gate(on, "").await;
    let tag = json!({"tool": "tag", "arguments": {"text": "x"}});
    app.tool.close();
    let first = ask(&app, &tag, 0).await;
    assert_call(&first, 202, "pending", "started", Value::Null);
    assert!(
        first
            .str("/message")
            .contains("without its key is run again"),
        "{}",
        first.text
    );
    let message = crate::api::mcp_gate::call(
        &app,
        "0",
        &json!({"name": "tag", "arguments": {"text": "x"}}),
    )
    .await;
    message.assert_has("that would run it a second time");
    let named =
        json!({"name": "tag", "arguments": {"text": "x"}, "_meta": {"holdpoint/key": "run-8"}});
    let message = crate::api::mcp_gate::call(&app, "0", &named).await;
    message.assert_has("make exactly the same call again");
    app.tool.open();
    let path = format!("/v1/gate/calls/{}", first.str("/task_id"));
    let ended = app.actor(AGENT).prefer("wait=10").get(&path).await;
    assert_call(&ended, 200, "allow", "settled", "succeeded");
    let again = crate::api::mcp_gate::call(&app, "10", &named).await;
    assert_eq!(
        (
            crate::api::mcp_gate::result_text(&again).1,
            app.tool.count()
        ),
        (false, 3),
        "{}",
        again.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn call_that_may_have_run_is_held_when_it_is_made_again(on: On) {
    let app = gate(on, "").await;
    let first = ask(&app, &bash("ls"), 5).await;
    assert!(first.body["permit"].is_object(), "{}", first.text);
    app.owner().cancel(&first.str("/task_id")).await;
    let ended = ask(&app, &bash("ls"), 5).await;
    assert_call(&ended, 200, "allow", "settled", "unknown");
    assert_eq!(ended.str("/task_id"), first.str("/task_id"));
    until_asker(&app, &first, |until| until == ASKER_UNTIL_DELIVERED).await;
    for held in [
        ask_by_key(&app, "k1", &bash("ls"), 0).await,
        ask(&app, &bash("ls"), 0).await,
    ] {
        assert_call(&held, 202, "pending", "pending", Value::Null);
        assert!(
            held.str("/reason")
                .contains("was started, and its outcome is not known"),
            "{}",
            held.text
        );
        decide_as(app.owner(), &held, "approve").await;
    }
    let allowed = ask(&app, &bash("ls"), 5).await;
    assert!(allowed.body["permit"].is_object(), "{}", allowed.text);
    app.stop().await;
}

#[apply(on_both)]
async fn secrets_in_a_persons_answer_are_hidden(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &refund(120), 0).await;
    let path = format!("/resume/{}", held.str("/request/request_id"));
    let id = held.str("/tool_call_id");
    let result = json!({"paid": ["with tool-secret-0123456789"]});
    let answer =
        json!({"action": "respond", "result": result, "reason": "See tool-secret-0123456789."});
    let decided = app
        .approver()
        .post(&path, &json!({"decisions": {(&id): answer}}))
        .await;
    assert_eq!(decided.status, 200, "{}", decided.text);
    let call = ask(&app, &refund(120), 10).await;
    assert_eq!(
        call.str("/result/content"),
        r#"{"paid":["with [secret TOOL_SECRET]"]}"#,
        "{}",
        call.text
    );
    let journal = items(&app, &call).await;
    let text = serde_json::to_string(&journal).unwrap();
    assert!(
        text.contains("See [secret TOOL_SECRET].") && !text.contains("tool-secret-0123456789"),
        "{text}"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn answered_call_that_did_not_run_is_called_ended(on: On) {
    let app = gate(on, "").await;
    let held = ask(&app, &refund(120), 0).await;
    let (request, id) = (held.str("/request/request_id"), held.str("/tool_call_id"));
    let answer = json!({"decisions": {(&id): {"action": "respond", "result": "Paid by hand."}}});
    app.approver().answer(&request, &answer).await;
    let call = ask(&app, &refund(120), 10).await;
    assert_call(&call, 200, "deny", "settled", "responded");
    until_asker(&app, &call, |until| until == ASKER_UNTIL_DELIVERED).await;
    let next = ask(&app, &refund(120), 0).await;
    assert!(
        next.str("/reason").contains("The same call ended at"),
        "{}",
        next.text
    );
    assert_eq!((next.status, app.tool.count()), (202, 0));
    app.stop().await;
}

#[apply(on_both)]
async fn equal_call_of_another_session_or_user_is_a_call_of_its_own(on: On) {
    let app = gate(on, "").await;
    let first = ask(&app, &refund(120), 0).await;
    let mut elsewhere = refund(120);
    elsewhere["session_id"] = json!("s2");
    let second = ask(&app, &elsewhere, 0).await;
    let third = ask_as(app.actor(CAROLS_AGENT), &refund(120), 0).await;
    let detached = ask(
        &app,
        &json!({"tool": "refund", "arguments": {"order": 17, "amount": 120}, "attach": false}),
        0,
    )
    .await;
    let ids = [&first, &second, &third, &detached].map(|call| call.str("/task_id"));
    let different: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(different.len(), 4);
    app.stop().await;
}

#[apply(on_both)]
async fn key_names_one_call_and_refuses_another(on: On) {
    let gates = "\ngates:\n  other: { tools: [refund] }\n";
    let app = TestApp::with(on, &yaml("").replacen("\ngates:\n", gates, 1)).await;
    let at = |gate: &str, mut body: Value| {
        body["gate"] = json!(gate);
        body
    };
    let call = at("refunds", refund(120));
    let first = ask_by_key(&app, "k1", &call, 0).await;
    let mut elsewhere = call.clone();
    elsewhere["session_id"] = json!("s2");
    let spelling = r#"{ "order": 17, "amount": 120 }"#;
    let respelled = json!({"tool": "refund", "arguments_text": spelling});
    for other in [
        at("refunds", refund(121)),
        at("refunds", bash("ls")),
        elsewhere,
        at("refunds", respelled),
        at("other", refund(120)),
    ] {
        let refused = ask_by_key(&app, "k1", &other, 0).await;
        refused
            .about(&other)
            .assert_code(422, "idempotency_key_reused");
    }
    let second = ask_by_key(&app, "k2", &call, 0).await;
    assert_ne!(first.str("/task_id"), second.str("/task_id"));
    app.stop().await;
}

#[apply(on_both)]
async fn new_key_with_attach_continues_an_equal_call_and_names_it_from_then_on(on: On) {
    let app = gate(on, "report: optional").await;
    let mut body = bash("make");
    body["attach"] = json!(true);
    let first = ask_by_key(&app, "use-1", &body, 0).await;
    assert_call(&first, 202, "pending", "pending", Value::Null);
    decide_as(app.owner(), &first, "approve").await;
    let second = ask_by_key(&app, "use-2", &body, 5).await;
    assert_call(&second, 200, "allow", "settled", "released");
    assert_eq!(second.str("/task_id"), first.str("/task_id"));
    let report = json!({"key": "use-2", "outcome": "succeeded", "content": "built"});
    let done = app.actor(AGENT).post("/v1/gate/outcomes", &report).await;
    done.assert_text(200, "/task_id", &first.str("/task_id"));
    app.stop().await;
}

#[apply(on_both)]
async fn ask_that_may_attach_is_held_while_the_permit_of_a_call_with_a_key_is_out(on: On) {
    let app = gate(on, "").await;
    for (session, attaching_key) in [("s1", None), ("s2", Some("k2"))] {
        let mut call = bash("ls");
        call["session_id"] = json!(session);
        let first = ask_by_key(&app, &format!("{session}-1"), &call, 5).await;
        assert!(first.body["permit"].is_object(), "{}", first.text);
        let held = if let Some(key) = attaching_key {
            let mut attaching = call.clone();
            attaching["attach"] = json!(true);
            ask_by_key(&app, key, &attaching, 0).await
        } else {
            ask(&app, &call, 0).await
        };
        assert_call(&held, 202, "pending", "pending", Value::Null);
        assert_ne!(held.str("/task_id"), first.str("/task_id"));
        assert_eq!(held.str("/reason"), "The same call is being run.");
        let second = ask_by_key(&app, &format!("{session}-2"), &call, 5).await;
        assert!(second.body["permit"].is_object(), "{}", second.text);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn held_call_says_when_an_equal_call_with_a_key_ran(on: On) {
    let app = gate(on, "").await;
    let held = ask_by_key(&app, "k1", &refund(120), 0).await;
    decide(&app, &held, "approve").await;
    let call = ask_by_key(&app, "k1", &refund(120), 10).await;
    assert_call(&call, 200, "allow", "settled", "succeeded");
    until_asker(&app, &call, |until| until == ASKER_UNTIL_DELIVERED).await;
    let next = ask(&app, &refund(120), 0).await;
    assert_call(&next, 202, "pending", "pending", Value::Null);
    let reason = next.str("/reason");
    assert!(reason.contains("The same call ran at"), "{}", next.text);
    app.stop().await;
}

#[apply(on_both)]
async fn sixty_four_equal_asks_attach_one(on: On) {
    let app = gate(on, "max_open: 1000").await;
    let first = ask(&app, &refund(120), 0).await;
    let refund_120 = refund(120);
    let asks = (0..64).map(|_| ask(&app, &refund_120, 0));
    let answers = futures_util::future::join_all(asks).await;
    let attached = answers
        .iter()
        .filter(|answer| answer.str("/task_id") == first.str("/task_id"));
    assert!(attached.count() >= 1);
    assert!(answers.iter().all(|answer| answer.status == 202));
    decide(&app, &first, "approve").await;
    let asks = (0..16).map(|_| ask(&app, &refund_120, 5));
    let answers = futures_util::future::join_all(asks).await;
    let ran = answers
        .iter()
        .filter(|answer| answer.str("/decision") == "allow")
        .count();
    assert_eq!((ran, app.tool.count()), (1, 1));
    app.stop().await;
}

/// The first proposal has `attach: false` and no idempotency key, so a later proposal cannot name
/// its call by a key. An equal proposal without `attach: false` continues the call.
#[tokio::test]
async fn approved_call_that_was_asked_without_attaching_is_continued_by_an_equal_ask() {
    let app = gate(On::Sqlite, "").await;
    let mut alone = refund(120);
    alone["attach"] = json!(false);
    let held = ask(&app, &alone, 0).await;
    decide(&app, &held, "approve").await;
    let beside = ask(&app, &alone, 0).await;
    assert_ne!(beside.str("/task_id"), held.str("/task_id"));
    let call = ask(&app, &refund(120), 10).await;
    assert_call(&call, 200, "allow", "settled", "succeeded");
    assert_eq!(call.str("/task_id"), held.str("/task_id"));
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}
