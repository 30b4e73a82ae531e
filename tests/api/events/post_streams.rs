//! Tests of POSTs that are answered with the task's event stream, which begins with the commit of
//! the POST.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::super::trees::{begin, does, give, id, only, pays, trees};
use crate::support::event_stream::{Watch, durable, names, numbers};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ACCOUNTS, Held, On, REFUNDS, TestApp, refunds};

#[apply(on_both)]
async fn new_task_is_answered_with_its_stream(on: On) {
    let app = TestApp::start(on).await;
    app.model.then(text_answer("Hello."));
    let mut watch = app
        .owner()
        .post_and_watch("/v1/tasks", &json!({"input": "hi"}))
        .await;
    assert_eq!(
        (watch.status, watch.header("content-type")),
        (200, "text/event-stream")
    );
    assert_eq!(watch.header("cache-control"), "no-store, no-transform");
    let location = watch.header("content-location").to_owned();
    assert_eq!(
        format!("{}/events", watch.header("location")),
        format!("{}{location}", app.url())
    );
    let told = watch.rest().await;
    let expected = [
        "task.created",
        "message.received",
        "message.completed",
        "task.completed",
    ];
    assert_eq!(names(&durable(&told)), expected);
    assert_eq!(
        told.iter()
            .filter(|event| event.name == "caught_up")
            .count(),
        1
    );
    let task = told[0].data["task_id"].as_str().unwrap().to_owned();
    assert_eq!(location, format!("/v1/tasks/{task}/events"));
    assert_eq!(
        durable(&told),
        durable(&app.owner().events(&task, None).await)
    );
}

#[apply(on_both)]
async fn stream_of_a_decision_message_or_retry_begins_with_its_own_commit(on: On) {
    let app = TestApp::start(on).await;
    let Held { task, request, .. } = app.held().await;
    app.model.then_fails(400);
    let mut watch = app
        .owner()
        .post_and_watch(&format!("/resume/{request}"), &json!({"action": "approve"}))
        .await;
    assert_eq!(
        watch.header("content-location"),
        format!("/v1/tasks/{task}/events")
    );
    assert_eq!((watch.status, watch.header("location")), (200, ""));
    let told = durable(&watch.rest().await);
    assert_eq!(
        (
            numbers(&told)[0],
            names(&told)[0],
            *names(&told).last().unwrap()
        ),
        (7, "request.decided", "task.failed")
    );
    let after = *numbers(&told).last().unwrap();

    app.model.then(text_answer("Again."));
    let told = durable(
        &app.owner()
            .post_and_watch(&format!("/v1/tasks/{task}/retry"), &json!({}))
            .await
            .rest()
            .await,
    );
    assert_eq!(
        names(&told),
        ["task.resumed", "message.completed", "task.completed"]
    );
    assert_eq!(numbers(&told), [after + 1, after + 2, after + 3]);

    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":99}"#)]));
    let mut watch = app
        .owner()
        .post_and_watch(
            &format!("/v1/tasks/{task}/messages"),
            &json!({"input": "more"}),
        )
        .await;
    let told = watch.until("task.paused").await;
    assert_eq!(names(&told)[..2], ["task.resumed", "message.received"]);
    assert_eq!(numbers(&told)[0], after + 4);
    let request = told
        .iter()
        .find(|event| event.name == "request.created")
        .unwrap()
        .data["request_id"]
        .clone();
    // The stream goes on after a pause. It also has the events that another client's POST
    // causes.
    let path = format!("/resume/{}/reject", request.as_str().unwrap());
    let rejected = app
        .owner()
        .post_and_watch(&path, &json!({"reason": "no"}))
        .await
        .rest()
        .await;
    assert_eq!(names(&durable(&rejected)).last(), Some(&"task.canceled"));
    assert_eq!(durable(&watch.rest().await), durable(&rejected));
}

/// The content type that `curl -d ''` gives to an empty body.
const FORM: &str = "application/x-www-form-urlencoded";

#[apply(on_both)]
async fn retry_with_an_empty_body_is_answered_with_its_stream_whatever_its_type(on: On) {
    let app = TestApp::start(on).await;
    app.model.then_fails(400);
    let failed = app.owner().create_task("hi").await;
    failed.assert_status(201, "Failed");
    app.model.then(text_answer("Again."));
    let path = format!("/v1/tasks/{}/retry", failed.str("/task_id"));
    let asking = app.owner().header("accept", "text/event-stream");
    let body = Some((FORM, Vec::new()));
    let mut watch = Watch::new(asking.sent(Method::POST, &path, body).await);
    assert_eq!(
        (watch.status, watch.header("content-type")),
        (200, "text/event-stream")
    );
    assert_eq!(
        names(&durable(&watch.rest().await)),
        ["task.resumed", "message.completed", "task.completed"]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn form_that_decides_takes_no_stream(on: On) {
    let one = "\nserver: { max_streams_per_caller: 1 }\n";
    let app = TestApp::with(on, &(refunds("{ owner: true }") + one)).await;
    let Held { task, request, .. } = app.held().await;
    let watch = app.owner().watch(&task, None).await;
    assert_eq!(watch.status, 200);
    let asking = app.owner().header("accept", "text/event-stream");
    app.model.then(text_answer("Done."));
    let path = format!("/resume/{request}/approve");
    let decided = asking.submit(&path, &[]).await;
    decided.assert_header(303, "location", &format!("/resume/{request}"));
    drop(watch);
    app.stop().await;
}

#[apply(on_both)]
async fn post_stream_begins_with_its_commit_even_where_another_task_comes_first(on: On) {
    let app = trees(on, "").await;
    let root = begin(
        &app,
        &does(
            &[pays("analyst", 1), give("clerk", &[json!("nothing")])],
            "x",
        ),
    )
    .await;
    let (task, analyst) = (
        root.str("/task_id"),
        only(&app, &root.str("/task_id"), "analyst").await,
    );
    let before = app
        .owner()
        .watch(&task, None)
        .await
        .until("caught_up")
        .await
        .pop()
        .unwrap()
        .data["after"]
        .as_i64()
        .unwrap();
    let body = json!({"input": json!([json!("new")]).to_string(), "supersede": true});
    let told = durable(
        &app.owner()
            .post_and_watch(&format!("/v1/tasks/{task}/messages"), &body)
            .await
            .rest()
            .await,
    );
    assert_eq!(
        (numbers(&told)[0], &told[0].data["task_id"]),
        (before + 1, &json!(id(&analyst)))
    );
    assert_eq!(names(&told).last(), Some(&"task.completed"));
    app.stop().await;
}

#[apply(on_both)]
async fn replayed_post_streams_from_the_commit_it_repeats(on: On) {
    let app = TestApp::start(on).await;
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":99}"#)]));
    let keyed = |key: &str| app.owner().keyed(key);
    let body = json!({"input": "hi"});
    let first = keyed("a").post("/v1/tasks", &body).await;
    let (task, request) = (first.str("/task_id"), first.str("/pending/0/request_id"));
    let path = format!("/resume/{request}");
    let decision = json!({"action": "approve"});
    let mut deciding = keyed("b").post_and_watch(&path, &decision).await;
    assert_eq!(deciding.header("idempotency-replayed"), "");
    let told = deciding.rest().await;
    for (key, path, body, from) in [
        ("a", "/v1/tasks", &body, 1),
        ("b", path.as_str(), &decision, 7),
    ] {
        let mut watch = keyed(key).post_and_watch(path, body).await;
        assert_eq!(
            (watch.status, watch.header("idempotency-replayed")),
            (200, "true")
        );
        assert_eq!(
            watch.header("content-location"),
            format!("/v1/tasks/{task}/events")
        );
        let again = durable(&watch.rest().await);
        assert_eq!(numbers(&again)[0], from);
        assert!(again.ends_with(&durable(&told)));
    }
    assert_eq!(app.tool.count(), 1);
}

#[apply(on_both)]
async fn refused_post_is_answered_with_a_problem_instead_of_a_stream(on: On) {
    let one = "\nserver: { max_streams_per_caller: 1 }\n";
    let app = TestApp::with(on, &(refunds("{ owner: true }") + one)).await;
    let Held { task, request, .. } = app.held().await;
    let app_ref = &app;
    let refused = async |path: &str, body| {
        let accept = app_ref.owner().header("accept", "text/event-stream");
        let reply = accept.post(path, &body).await;
        assert_eq!(
            reply.header("content-type"),
            "application/problem+json",
            "{}",
            reply.text
        );
        (reply.status, reply.str("/code"))
    };
    assert_eq!(
        refused("/v1/tasks", json!({})).await,
        (422, "invalid".to_owned())
    );
    assert_eq!(
        refused(&format!("/v1/tasks/{task}/messages"), json!({"input": "x"})).await,
        (409, "task_paused".to_owned())
    );
    assert_eq!(
        refused(&format!("/v1/tasks/{task}/retry"), json!({})).await,
        (409, "task_not_failed".to_owned())
    );
    let wrong = json!({"action": "approve", "digest": "sha256:00"});
    assert_eq!(
        refused(&format!("/resume/{request}"), wrong).await,
        (412, "digest_mismatch".to_owned())
    );
    // A cancel does not wait, so it is answered with JSON and not with a stream.
    let canceled = app
        .owner()
        .header("accept", "text/event-stream")
        .cancel(&task)
        .await;
    canceled.assert_header(200, "content-type", "application/json");
    assert_eq!(
        app.owner().watch(&task, None).await.status,
        200,
        "none of these took the only stream slot"
    );
}

#[apply(on_both)]
async fn client_that_drops_its_stream_stops_nothing(on: On) {
    let app = TestApp::start(on).await;
    app.model
        .then(calls(&[("lookup", r#"{"order":1}"#)]))
        .then(text_answer("Done."));
    app.tool.close();
    let mut watch = app
        .owner()
        .post_and_watch("/v1/tasks", &json!({"input": "hi"}))
        .await;
    let task = watch.until("tool.started").await[0].data["task_id"]
        .as_str()
        .unwrap()
        .to_owned();
    drop(watch);
    app.tool.open();
    let end = app.owner().prefer("wait=20").task(&task).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
}

#[apply(on_both)]
async fn caller_who_may_only_create_sees_the_stream_of_that_post(on: On) {
    let accounts = ACCOUNTS.replace(
        "{ user: carol, tenant: acme,",
        "{ user: carol, tenant: acme, may: [create],",
    );
    let app = TestApp::with(
        on,
        &(REFUNDS.replace("{approvers}", "{ owner: true }") + &accounts),
    )
    .await;
    app.model.then(text_answer("Hello."));
    let told = app
        .stranger()
        .post_and_watch("/v1/tasks", &json!({"input": "hi"}))
        .await
        .rest()
        .await;
    let told = durable(&told);
    let task = told[0].data["task_id"].as_str().unwrap();
    assert_eq!(names(&told).last(), Some(&"task.completed"));
    assert_eq!(app.stranger().watch(task, None).await.status, 403);
}
