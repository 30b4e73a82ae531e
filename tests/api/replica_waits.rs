//! Tests of HTTP requests that wait on one replica for a task which another replica changes. The
//! reply shows every commit that was made before the HTTP request.

use serde_json::json;

use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, TestApp};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_shows_the_commit_that_another_replica_made_before_it() {
    let app = TestApp::start(On::Postgres).await;
    let other = app.replica().await;
    let keyed = app.owner().keyed("k1");
    app.model
        .then(calls(&[("refund", r#"{"order": 17, "amount": 120}"#)]));
    let body = json!({"input": "please"});
    let held = keyed.post("/v1/tasks", &body).await;
    assert_eq!(held.str("/status"), "Paused", "{}", held.text);
    let (task, request) = (held.str("/task_id"), held.str("/pending/0/request_id"));
    app.model.then(text_answer("done"));
    let path = format!("/resume/{request}/approve");
    let approved = other.owner().post(&path, &json!({})).await;
    assert_eq!(approved.str("/status"), "Completed", "{}", approved.text);
    // The replica `app` last read the task when the task paused. The reply must show the end of the
    // task, which the replica `other` has committed since then.
    let waits = app.owner().prefer("wait=5");
    let shown = waits.task(&task).await;
    assert_eq!(shown.str("/status"), "Completed", "{}", shown.text);
    let again = keyed.post("/v1/tasks", &body).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.str("/status"), "Completed", "{}", again.text);
    other.stop().await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_shows_no_pause_that_another_replica_has_ended() {
    let app = TestApp::start(On::Postgres).await;
    let other = app.replica().await;
    app.model
        .then(calls(&[("refund", r#"{"order": 17, "amount": 120}"#)]));
    let body = json!({"input": "please"});
    // While the stream is open, the process `app` gets notifications about the tree. The last
    // notification is about the pause.
    let mut watch = app.owner().post_and_watch("/v1/tasks", &body).await;
    let paused = watch.until("task.paused").await;
    let task = paused[0].data["task_id"].as_str().unwrap().to_owned();
    drop(watch);
    let path = format!("/v1/tasks/{task}");
    let held = app.owner().get(&path).await;
    other.store().mute();
    app.store().mute();
    app.tool.close();
    let approve = format!("/resume/{}/approve", held.str("/pending/0/request_id"));
    let at_once = other.owner().prefer("wait=0");
    let approved = at_once.post(&approve, &json!({})).await;
    assert_eq!(approved.str("/status"), "Running", "{}", approved.text);
    app.tool.reached(1).await;
    let waits = app.owner().prefer("wait=1");
    let shown = waits.get(&path).await;
    assert_eq!(shown.str("/status"), "Running", "{}", shown.text);
    app.model.then(text_answer("done"));
    app.tool.open();
    other.stop().await;
    app.stop().await;
}
