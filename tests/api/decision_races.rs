//! Tests of simultaneous decisions and cancels. The first of them wins, on one replica or on two.

use futures_util::future::join_all;
use macro_rules_attribute::apply;
use serde_json::json;

use super::approval_cycle::on_both;
use super::request_kinds::{ask, asking, items, last_tool_results, results_of};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::repetitions;
use crate::support::test_app::{On, TestApp};

const RACERS: usize = 64;

/// Creates `times` requests, one after another. [`RACERS`] clients approve each request at once. If
/// `other` is given, half of the clients use that replica.
async fn approved_by_all_at_once(app: &TestApp, other: Option<&TestApp>, times: usize) {
    app.model.otherwise(|body| {
        let last = body["messages"].as_array().unwrap().last().unwrap().clone();
        if last["role"] == "tool" {
            text_answer("done")
        } else {
            calls(&[("refund", r#"{"order":1,"amount":50}"#)])
        }
    });
    for round in 1..=times {
        let task = app.owner().create_task("go").await;
        let path = format!("/resume/{}/approve", task.str("/pending/0/request_id"));
        let replies = join_all((0..RACERS).map(|racer| {
            let path = path.clone();
            async move {
                let app = if racer % 2 == 0 {
                    app
                } else {
                    other.unwrap_or(app)
                };
                // The winner's reply comes when the task has ended. With so many clients, this may
                // take long.
                app.owner().prefer("wait=120").hit(&path).await
            }
        }))
        .await;
        let (won, lost): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 200);
        assert_eq!(
            won.len(),
            1,
            "one winner: {:?}",
            replies.iter().map(|reply| reply.status).collect::<Vec<_>>()
        );
        for reply in lost {
            reply.assert_code(409, "already_decided");
            assert_eq!(reply.str("/decision/by"), "alice");
        }
        assert_eq!(won[0].str("/status"), "Completed", "{}", won[0].text);
        assert_eq!(app.tool.ledger().len(), round, "one execution each");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_simultaneous_approvals_run_the_call_once_on_sqlite() {
    let app = TestApp::start(On::Sqlite).await;
    approved_by_all_at_once(&app, None, repetitions(10, 100)).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_simultaneous_approvals_over_two_replicas_run_the_call_once() {
    let app = TestApp::start(On::Postgres).await;
    let other = app.replica().await;
    approved_by_all_at_once(&app, Some(&other), repetitions(10, 100)).await;
    other.stop().await;
    app.stop().await;
}

#[apply(on_both)]
async fn twelve_simultaneous_answers_to_one_request_call_the_model_once(on: On) {
    let app = asking(on, "").await;
    let question = ask(&app, "guidance").await;
    let (path, before) = (question.path(), app.model.sent().len());
    let replies = join_all((0..12).map(|person| {
        let body =
            json!({"action": "respond", "response": {"answer": format!("the shop of p{person}")}});
        let (app, path) = (&app, &path);
        async move { app.owner().post(path, &body).await }
    }))
    .await;
    assert_eq!(
        replies.iter().filter(|reply| reply.status == 200).count(),
        1
    );
    assert_eq!(
        app.model.sent().len(),
        before + 1,
        "one of twelve answers is stored, and the model is shown that one"
    );
    let stored = items(&app, &question.task).await;
    let result = results_of(&stored, &question.call)[0]["content"].clone();
    assert_eq!(last_tool_results(&app), [result.as_str().unwrap()]);
    app.stop().await;
}

#[apply(on_both)]
async fn approval_racing_a_rejection_and_a_cancel_has_one_outcome(on: On) {
    let app = TestApp::start(on).await;
    app.model.otherwise(|body| {
        let last = body["messages"].as_array().unwrap().last().unwrap().clone();
        if last["role"] == "tool" {
            text_answer("done")
        } else {
            calls(&[("refund", r#"{"order":1,"amount":50}"#)])
        }
    });
    for _ in 0..25 {
        let before = app.tool.ledger().len();
        let task = app.owner().create_task("go").await;
        let (id, request) = (task.str("/task_id"), task.str("/pending/0/request_id"));
        let owner = app.owner();
        let (approve, reject, cancel) = (
            format!("/resume/{request}/approve"),
            format!("/resume/{request}/reject"),
            format!("/v1/tasks/{id}/cancel"),
        );
        let (approved, rejected, canceled) =
            tokio::join!(owner.hit(&approve), owner.hit(&reject), owner.hit(&cancel));
        assert!(
            approved.status == 409 || rejected.status == 409,
            "not both: {} {}",
            approved.text,
            rejected.text
        );
        let end = app.owner().task(&id).await;
        let ran = app.tool.ledger().len() - before;
        match end.str("/status").as_str() {
            "Completed" => assert_eq!((approved.status, ran), (200, 1), "{}", canceled.text),
            "Canceled" => assert!(
                ran <= 1 && (approved.status == 200 || ran == 0),
                "{ran} {}",
                approved.text
            ),
            other => panic!("{other}: {}", end.text),
        }
        let results = app.owner().items(&id).await;
        let count = results.body["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|item| item["type"] == "tool_result")
            .count();
        assert_eq!(count, 1, "exactly one result: {}", results.text);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn answered_cancel_lets_nothing_start_and_a_result_in_flight_is_late(on: On) {
    let app = TestApp::start(on).await;
    app.tool.close();
    app.model.then(calls(&[
        ("refund", r#"{"order":1,"amount":5}"#),
        ("refund", r#"{"order":2,"amount":5}"#),
    ]));
    let task = app.owner().prefer("respond-async").create_task("go").await;
    assert_eq!(task.status, 202, "{}", task.text);
    app.tool.reached(1).await;
    let path = format!("/v1/tasks/{}", task.str("/task_id"));
    let canceled = app.owner().hit(&format!("{path}/cancel")).await;
    canceled.assert_status(200, "Canceled");
    assert_eq!(
        app.owner().hit(&format!("{path}/cancel")).await.status,
        200,
        "idempotent"
    );
    app.tool.open();
    let kept = async || {
        Some(app.owner().get(&format!("{path}/items")).await)
            .filter(|items| items.text.contains("late_result"))
    };
    let items = crate::support::eventually("the late result is kept", kept).await;
    let outcomes: Vec<_> = items.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["type"] == "tool_result" || item["type"] == "late_result")
        .map(|item| {
            (
                item["type"].as_str().unwrap(),
                item["outcome"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        outcomes,
        [
            ("tool_result", "unknown"),
            ("tool_result", "canceled"),
            ("late_result", "succeeded")
        ]
    );
    let late = items.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["type"] == "late_result")
        .unwrap();
    assert_eq!(late["role"], "system");
    assert_eq!(app.tool.ledger().len(), 1, "the second call never started");
    app.stop().await;
}

#[apply(on_both)]
async fn client_that_hangs_up_stops_nothing(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    app.tool.close();
    app.model.then(text_answer("paid"));
    let (owner, path) = (app.owner(), format!("/resume/{}/approve", held.request));
    tokio::select! {
        reply = owner.hit(&path) => panic!("it waits for the call: {}", reply.text),
        () = app.tool.reached(1) => {}
    }
    app.tool.open();
    let waits = app.owner().prefer("wait=30");
    let done = waits.task(&held.task).await;
    assert_eq!(done.str("/output"), "paid", "{}", done.text);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}
