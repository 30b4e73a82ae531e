//! Tests of requests of every kind that an agent opens two levels below the root: each answer
//! reaches the agent that asked.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{KINDS, TOKEN, asks, filled_in, items, results_of};
use super::{
    assert_invariants, call, does, give, id, of, only, open, paused, still, task, tree, trees, turn,
};
use crate::support::test_app::On;

/// Returns a call with which an agent opens a request of this kind.
fn asking(kind: &str) -> Value {
    let (name, arguments) = asks(kind);
    call(name, &serde_json::from_str(arguments).unwrap())
}

/// Returns an answer to a request of this kind, and the outcome that the answered call then has.
fn answer(kind: &str) -> (Value, &'static str) {
    match kind {
        "approval" => (json!({"action": "approve"}), "succeeded"),
        "external_result" | "reconcile" => (
            json!({"action": "respond", "result": {"by": "hand"}}),
            "responded",
        ),
        _ => (
            json!({"action": "respond", "response": filled_in(kind)}),
            "responded",
        ),
    }
}

#[apply(on_both)]
async fn every_kind_of_request_is_shown_at_the_root_and_its_answer_reaches_the_asking_task(on: On) {
    let app = trees(on, "").await;
    for kind in KINDS {
        app.tool.answers(
            if kind == "reconcile" { 502 } else { 200 },
            r#"{"ok":true}"#,
        );
        let ran = app.tool.ledger().len();
        let clerk = give("clerk", &does(&[asking(kind)], "clerk: so be it"));
        let root = paused(&app, &does(&[give("analyst", &[turn(&[clerk])])], "end")).await;
        app.tool.answers(200, r#"{"ok":true}"#);
        let root_id = root.str("/task_id");
        let asked = &root.body["pending"][0];
        assert_eq!(
            (&asked["kind"], &asked["agent_path"]),
            (&json!(kind), &json!(["supervisor", "analyst", "clerk"])),
            "{asked}"
        );
        assert_eq!(root.count("pending"), 1, "{}", root.text);
        let path: Vec<String> = tree(&app, &root_id).await.iter().map(id).collect();
        for one in &path {
            let shown = task(&app, one).await;
            assert_eq!(
                (shown.str("/status").as_str(), &shown.body["pending"][0]),
                ("Paused", asked),
                "{kind}"
            );
        }
        let inbox = app.owner().get("/v1/requests").await;
        assert_eq!(inbox.body["requests"], json!([asked]), "{kind}");

        let own = asked["tool_calls"].as_array().unwrap()[0]["tool_call_id"]
            .as_str()
            .unwrap()
            .to_owned();
        let (body, outcome) = answer(kind);
        let end = app.owner().answer(&open(&root)[0].1, &body).await;
        assert_eq!(end.status, 200, "{kind}: {}", end.text);
        end.about(&kind).assert_completed("end");
        let clerk = only(&app, &root_id, "clerk").await;
        assert_eq!(open(&root)[0].0, id(&clerk));
        let journal = items(&app, &id(&clerk)).await;
        let results = results_of(&journal, &own);
        assert_eq!(
            (results.len(), &results[0]["outcome"]),
            (1, &json!(outcome)),
            "{kind}: {journal:#?}"
        );
        assert_eq!(
            only(&app, &root_id, "analyst").await["output"],
            "analyst: clerk: so be it"
        );
        let runs = usize::from(["approval", "reconcile"].contains(&kind));
        assert_eq!(app.tool.ledger().len(), ran + runs, "{kind}");
        assert_invariants(&app, &root_id).await;
    }
    assert!(!format!("{:?}", app.model.sent()).contains(TOKEN));
    app.stop().await;
}

#[apply(on_both)]
async fn lost_call_of_a_sub_agent_is_repeated_on_retry(on: On) {
    let app = trees(on, "").await;
    app.tool.answers(502, "");
    let clerk = give("clerk", &does(&[asking("reconcile")], "clerk: done"));
    let root = paused(&app, &[turn(&[give("analyst", &[turn(&[clerk])])])]).await;
    app.tool.answers(200, "{}");
    let end = app
        .owner()
        .answer(&open(&root)[0].1, &json!({"action": "retry"}))
        .await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    let ledger = app.tool.ledger();
    assert_eq!(ledger.len(), 2);
    assert_eq!(
        ledger[0].header("idempotency-key"),
        ledger[1].header("idempotency-key")
    );
    app.stop().await;
}

#[apply(on_both)]
async fn tool_that_failed_with_503_is_quarantined_in_the_whole_tree(on: On) {
    let app = trees(on, "").await;
    app.tool.answers(503, "");
    let loses = give("analyst", &does(&[asking("reconcile")], "analyst: failed"));
    let again = give(
        "clerk",
        &does(&[call("lose", &json!({"order": 18}))], "clerk: done"),
    );
    let root = paused(&app, &[turn(&[loses]), turn(&[again])]).await;
    app.tool.answers(200, "{}");
    let asked = &root.body["pending"][0];
    assert_eq!(
        (&asked["kind"], &asked["agent_path"]),
        (&json!("approval"), &json!(["supervisor", "clerk"])),
        "{}",
        root.text
    );
    let end = app.owner().approve(&open(&root)[0].1).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert_eq!(app.tool.ledger().len(), 2);
    app.stop().await;
}

#[apply(on_both)]
async fn agents_of_one_tree_each_get_their_own_answer(on: On) {
    let app = trees(on, "").await;
    let wonders = |who: &str| {
        turn(&[call(
            "request_human_guidance",
            &json!({"question": format!("{who}?")}),
        )])
    };
    let below = give("clerk", &[wonders("clerk")]);
    let root = paused(
        &app,
        &[turn(&[
            give("analyst", &[turn(&[below])]),
            give("clerk", &[wonders("other clerk")]),
        ])],
    )
    .await;
    let root_id = root.str("/task_id");
    let pending = root.body["pending"].as_array().unwrap();
    assert_eq!(pending.len(), 2);
    for asked in pending {
        let question = asked["question"].as_str().unwrap();
        let body = json!({"action": "respond", "response": {"answer": format!("to {question}")}});
        assert_eq!(
            app.owner()
                .answer(asked["request_id"].as_str().unwrap(), &body)
                .await
                .status,
            200
        );
    }
    let end = still(&app, &root_id).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    for (clerk, said) in of(&app, &root_id, "clerk")
        .await
        .iter()
        .map(|clerk| (clerk, clerk["output"].as_str().unwrap()))
    {
        let deep = clerk["parent"]["task_id"] != root_id.as_str();
        let expected = if deep { "to clerk?" } else { "to other clerk?" };
        assert!(said.contains(expected), "{clerk:#?}");
    }
    app.stop().await;
}
