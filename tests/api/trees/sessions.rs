//! Tests of sub-agents with `session: true`. All calls from one task continue one conversation;
//! calls from another task continue another conversation.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{
    assert_asks, assert_invariants, completed, does, give, id, of, only, open, outcomes, paused,
    pays, prompts, results, statuses, text, trees, turn, typed,
};
use crate::support::test_app::{On, TestApp};

/// Returns the scribe's prompts. Each is the list of the texts of the user and of the scribe, in
/// order.
fn conversations(app: &TestApp) -> Vec<Vec<String>> {
    let spoken = |body: &serde_json::Value| {
        let messages = body["messages"].as_array().unwrap().iter();
        messages
            .filter(|message| message["role"] != "system" && message["role"] != "tool")
            .map(text)
            .collect()
    };
    prompts(app, "scribe").iter().map(spoken).collect()
}

fn note(what: &str) -> serde_json::Value {
    give("scribe", &[json!(what)])
}

fn task_of(what: &str) -> String {
    json!([what]).to_string()
}

#[apply(on_both)]
async fn later_call_continues_the_same_conversation(on: On) {
    let app = trees(on, "").await;
    let root = completed(
        &app,
        &[turn(&[note("one")]), turn(&[note("two")]), json!("noted")],
    )
    .await;
    let root_id = root.str("/task_id");
    let scribe = only(&app, &root_id, "scribe").await;
    assert_eq!(
        (&scribe["status"], &scribe["output"]),
        (&json!("Completed"), &json!("two"))
    );
    assert_eq!(
        conversations(&app),
        [
            vec![task_of("one")],
            vec![task_of("one"), "one".to_owned(), task_of("two")]
        ]
    );
    let journal = items(&app, &id(&scribe)).await;
    assert_eq!(
        statuses(&journal),
        ["Running", "Completed", "Running", "Completed"]
    );
    assert_eq!(typed(&journal, "user_message").len(), 2);
    let parent = items(&app, &root_id).await;
    let starts = typed(&parent, "sub_agent_started");
    assert_eq!(starts.len(), 2, "each call has its own start");
    assert!(
        starts
            .iter()
            .all(|start| start["child_task_id"] == scribe["task_id"])
    );
    assert_eq!(
        outcomes(&parent),
        [("scribe", "succeeded"), ("scribe", "succeeded")]
    );
    assert_eq!(
        results(prompts(&app, "supervisor").last().unwrap()),
        ["one", "two"]
    );

    let body = json!({"input": json!([[note("three")], "noted again"]).to_string()});
    let again = app.owner().message(&root_id, &body).await;
    assert_eq!(again.str("/output"), "noted again", "{}", again.text);
    assert_eq!(
        of(&app, &root_id, "scribe").await.len(),
        1,
        "across the messages of one root, too"
    );
    assert_eq!(conversations(&app).last().unwrap().len(), 5);
    let other = completed(&app, &[turn(&[note("four")])]).await;
    assert_eq!(
        conversations(&app).last().unwrap(),
        &[task_of("four")],
        "another root has another conversation"
    );
    assert_ne!(
        id(&only(&app, &other.str("/task_id"), "scribe").await),
        id(&scribe)
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn two_calls_of_one_turn_to_one_sub_agent_run_one_after_the_other(on: On) {
    let app = trees(on, "").await;
    let root = paused(
        &app,
        &does(
            &[pays("scribe", 1), pays("scribe", 2), note("three")],
            "end",
        ),
    )
    .await;
    let root_id = root.str("/task_id");
    assert_eq!(open(&root).len(), 1, "the second waits for the first");
    assert_eq!(
        root.body["pending"][0]["tool_calls"][0]["arguments"]["order"],
        1
    );
    let second = app.owner().approve(&open(&root)[0].1).await;
    assert_asks(&second, 1);
    assert_eq!(
        second.body["pending"][0]["tool_calls"][0]["arguments"]["order"],
        2
    );
    let end = app.owner().approve(&open(&second)[0].1).await;
    end.assert_completed("end");
    assert_eq!(
        results(prompts(&app, "supervisor").last().unwrap()),
        ["scribe paid 1", "scribe paid 2", "three"]
    );
    let scribe = only(&app, &root_id, "scribe").await;
    assert_eq!(
        typed(&items(&app, &id(&scribe)).await, "user_message").len(),
        3
    );
    assert_eq!(
        typed(&items(&app, &root_id).await, "sub_agent_started").len(),
        3
    );
    assert_eq!(app.tool.ledger().len(), 2);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn each_calling_task_has_a_conversation_of_its_own(on: On) {
    let app = trees(on, "").await;
    let below = give("analyst", &does(&[note("below")], "analyst: noted"));
    let root = completed(
        &app,
        &[turn(&[note("above")]), turn(&[below]), json!("end")],
    )
    .await;
    assert_eq!(of(&app, &root.str("/task_id"), "scribe").await.len(), 2);
    assert_eq!(
        conversations(&app),
        [[task_of("above")], [task_of("below")]]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn conversation_goes_on_after_a_canceled_or_failed_call(on: On) {
    let app = trees(on, "").await;
    let root = paused(
        &app,
        &[
            turn(&[pays("scribe", 1)]),
            turn(&[give("scribe", &[json!(0)])]),
            turn(&[note("after all")]),
            json!("end"),
        ],
    )
    .await;
    let root_id = root.str("/task_id");
    let end = app
        .owner()
        .hit(&format!("/resume/{}/reject", open(&root)[0].1))
        .await;
    assert_eq!(end.status, 200, "{}", end.text);
    end.assert_completed("end");
    assert_eq!(
        outcomes(&items(&app, &root_id).await),
        [
            ("scribe", "canceled"),
            ("scribe", "failed"),
            ("scribe", "succeeded")
        ]
    );
    let scribe = only(&app, &root_id, "scribe").await;
    assert_eq!(
        (&scribe["status"], &scribe["output"], &scribe["error"]),
        (&json!("Completed"), &json!("after all"), &json!(null))
    );
    let journal = items(&app, &id(&scribe)).await;
    assert_eq!(
        statuses(&journal),
        [
            "Running",
            "Paused",
            "Canceled",
            "Running",
            "Failed",
            "Running",
            "Completed"
        ]
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}
