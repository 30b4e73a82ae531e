//! Tests which names folding treats as different people, and how the service compares stored names
//! after the setting `user_ids` has changed.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::{answer, app, approval, finance, ids};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, TestApp, WEB};

/// Returns the status of the reply to a user who reads this task.
async fn status_for(app: &TestApp, user: &str, task: &str) -> u16 {
    let reader = app.actor(WEB).header("holdpoint-user", user);
    reader.task(task).await.status
}

#[apply(on_both)]
async fn letters_that_folding_keeps_apart_are_two_people(on: On) {
    let app = app(on).await;
    for (one, other) in [
        ("alice", "ａｌｉｃｅ"),
        ("ines", "\u{131}nes"),
        ("Ines", "\u{130}nes"),
        ("alice", "аlice"),
        ("jose", "josé"),
    ] {
        let held = app.held_by(&finance(&app, one)).await;
        let path = format!("/v1/tasks/{}", held.task);
        let stranger = app.actor(WEB).header("holdpoint-user", other);
        assert_eq!(stranger.get(&path).await.status, 403, "{other}");
        assert_eq!(
            ids(&stranger.get("/v1/tasks").await),
            Vec::<String>::new(),
            "{other}"
        );
        assert_eq!(
            stranger.hit(&format!("{path}/cancel")).await.status,
            403,
            "{other}"
        );
        assert_eq!(
            answer(&finance(&app, other), &held, &approval())
                .await
                .status,
            200,
            "{other}"
        );
    }
}

#[apply(on_both)]
async fn stored_votes_of_two_spellings_count_once_after_ids_are_folded(on: On) {
    let mut app = app(on).await;
    app.restart_with(|yaml| {
        yaml.replace("required: 2", "required: 3")
            .replace("auth:", "auth:\n  user_ids: exact")
    })
    .await;
    let old = app.held_by(&finance(&app, "Olga")).await;
    let other = app.held_by(&app.owner()).await;
    for spelling in ["zoe", "Zoe"] {
        assert_eq!(
            answer(&finance(&app, spelling), &other, &approval())
                .await
                .status,
            200,
            "two people then"
        );
    }
    assert_eq!(status_for(&app, "olga", &old.task).await, 403);
    app.restart_with(|yaml| yaml.replace("user_ids: exact", "user_ids: folded"))
        .await;
    // Each spelling names the owner of the task. The list of tasks shows the task to its owner, but
    // the service refuses the owner's approval.
    for spelling in ["Olga", "olga", "OLGA"] {
        assert_eq!(
            ids(&app
                .actor(WEB)
                .header("holdpoint-user", spelling)
                .get("/v1/tasks")
                .await),
            [old.task.as_str()],
            "{spelling}"
        );
        assert_eq!(
            answer(&finance(&app, spelling), &old, &approval())
                .await
                .status,
            403,
            "{spelling}"
        );
    }
    for spelling in ["zoe", "Zoe", "ZOE"] {
        assert_eq!(
            answer(&finance(&app, spelling), &other, &approval())
                .await
                .status,
            409,
            "{spelling}"
        );
    }
    let third = answer(&app.approver(), &other, &approval()).await;
    third
        .about(&"zoe and bob are two")
        .assert_status(200, "Paused");
    let shown = finance(&app, "eve").request(&other.request).await;
    assert_eq!(
        (&shown.body["status"], &shown.body["can_decide"]),
        (&json!("pending"), &json!(true))
    );
    assert!(app.tool.ledger().is_empty());
    app.model.then(text_answer("refunded"));
    let last = answer(&finance(&app, "Eve"), &other, &approval()).await;
    assert_eq!(last.str("/status"), "Completed", "{}", last.text);
    assert_eq!(app.tool.ledger().len(), 1);
    app.restart_with(|yaml| yaml.replace("user_ids: folded", "user_ids: exact"))
        .await;
    assert_eq!(status_for(&app, "olga", &old.task).await, 403);
    assert_eq!(status_for(&app, "Olga", &old.task).await, 200);
}

#[apply(on_both)]
async fn call_approved_by_two_spellings_is_asked_again_after_ids_are_folded(on: On) {
    let mut app = app(on).await;
    app.restart_with(|yaml| yaml.replace("auth:", "auth:\n  user_ids: exact"))
        .await;
    app.model.then(calls(&[
        ("refund", r#"{"order": 1, "amount": 120}"#),
        ("refund", r#"{"order": 2, "amount": 130}"#),
    ]));
    let reply = app.owner().create_task("please").await;
    let (task, request) = (reply.str("/task_id"), reply.str("/pending/0/request_id"));
    let call = reply.str("/pending/0/tool_calls/0/tool_call_id");
    for spelling in ["zoe", "Zoe"] {
        let body = json!({"decisions": {call.as_str(): {"action": "approve"}}});
        let voted = finance(&app, spelling).answer(&request, &body).await;
        assert_eq!(voted.status, 200, "{}", voted.text);
    }
    app.restart_with(|yaml| yaml.replace("user_ids: exact", "user_ids: folded"))
        .await;
    // With folded user ids, both approvals of the first call come from one person, but the rule
    // requires two people. So after the rejection of the second call, the service does not run the
    // first call, and opens a new request for it.
    let rest = app
        .approver()
        .answer(&request, &json!({"action": "reject", "then": "continue"}))
        .await;
    rest.assert_status(200, "Paused");
    assert!(app.tool.ledger().is_empty());
    let asked = app.owner().task(&task).await;
    assert_eq!(
        asked.count("pending"),
        1,
        "the first call is asked about anew: {}",
        asked.text
    );
    assert_ne!(asked.str("/pending/0/request_id"), request);
}
