//! Tests of `Idempotency-Key` on every POST: a repeated POST has no further effect, and a POST with
//! a malformed key has none.

mod every_operation;

use futures_util::future::{join, join_all};
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{ALICE, Actor, BOB, OTHER, On, REFUNDS, Reply, TestApp};

const KEY: &str = "idempotency-key";

const NARROWED: &str = r#"
auth:
  api_keys:
    - { user: alice, tenant: acme, key: "alice-key-0123456789" }
    - { user: bob, tenant: acme, groups: [finance], key: "bob-key-0123456789ab" }
    - { user: carol, tenant: acme, groups: [finance], key: "carol-key-0123456789" }
"#;

/// Sends the same body twice with the actor's `Idempotency-Key`. Asserts that the second reply
/// shows the same task, unchanged, and is marked as replayed. Then sends the body with one more
/// space under the same key, and asserts that this POST is refused. Returns the first reply.
async fn twice(actor: &Actor<'_>, path: &str, body: &Value) -> Reply {
    let first = actor.post(path, body).await;
    assert!(first.status < 300, "{path}: {}", first.text);
    assert_eq!(first.header("idempotency-replayed"), "");
    let again = actor.post(path, body).await;
    again
        .about(&path)
        .assert_header(first.status, "idempotency-replayed", "true");
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(again.body["task_id"], first.body["task_id"], "{path}");
    assert_eq!(
        again.body["updated_at"], first.body["updated_at"],
        "{path}: nothing more was done"
    );
    let other = actor.bytes(path, format!(" {body}").into_bytes()).await;
    other
        .about(&path)
        .assert_code(422, "idempotency_key_reused");
    first
}

#[apply(on_both)]
async fn repeated_post_in_flight_gets_the_same_reply(on: On) {
    let app = TestApp::start(on).await;
    let owner = || app.owner().header(KEY, "at-once");
    let at_once = async |path: &str, body: &Value| {
        let replies = join_all((0..16).map(|_| async { owner().post(path, body).await })).await;
        let first = replies
            .iter()
            .filter(|reply| reply.header("idempotency-replayed").is_empty())
            .count();
        let told: Vec<_> = replies.iter().map(|reply| reply.status).collect();
        assert!(
            first == 1 && told.iter().all(|status| [200, 202].contains(status)),
            "{path}: {first}, {told:?}"
        );
    };
    for _ in 0..4 {
        app.model
            .then(calls(&[("refund", r#"{"order":1,"amount":50}"#)]));
        let held = app.owner().create_task("go").await;
        app.model.then_fails(400);
        at_once(
            &format!("/resume/{}", held.str("/pending/0/request_id")),
            &json!({"action": "approve"}),
        )
        .await;
        let task = format!("/v1/tasks/{}", held.str("/task_id"));
        app.model.then(text_answer("refunded"));
        at_once(&format!("{task}/retry"), &json!({})).await;
        app.model
            .then(calls(&[("refund", r#"{"order":2,"amount":50}"#)]));
        at_once(&format!("{task}/messages"), &json!({"input": "more"})).await;
        at_once(&format!("{task}/cancel"), &json!({})).await;
    }
    assert_eq!(app.tool.ledger().len(), 4);
}

#[apply(on_both)]
async fn every_post_may_be_repeated(on: On) {
    let app = TestApp::start(on).await;
    let owner = || app.owner().header(KEY, "the same for all: no");
    assert_eq!(
        owner().create_task("x").await.status,
        400,
        "a key has no blanks"
    );
    let owner = || app.owner().header(KEY, "\"one\"");
    let refund = calls(&[("refund", r#"{"order":1,"amount":50}"#)]);
    app.model.then(refund.clone());
    let held = twice(&owner(), "/v1/tasks", &json!({"input": "go"})).await;
    let task = format!("/v1/tasks/{}", held.str("/task_id"));
    let refused = owner()
        .post(&format!("{task}/messages"), &json!({"input": "more"}))
        .await;
    assert_eq!(refused.status, 409);
    app.model.then(text_answer("refunded"));
    let request = format!("/resume/{}", held.str("/pending/0/request_id"));
    assert_eq!(
        owner()
            .post(&request, &json!({"action": "aprove"}))
            .await
            .status,
        422
    );
    twice(&owner(), &request, &json!({"action": "approve"})).await;
    app.model.then(refund);
    let more = twice(
        &owner(),
        &format!("{task}/messages"),
        &json!({"input": "more"}),
    )
    .await;
    let request = format!("/resume/{}/reject", more.str("/pending/0/request_id"));
    assert_eq!(
        twice(&owner(), &request, &json!({"reason": "no"}))
            .await
            .str("/status"),
        "Canceled"
    );
    let held = app.held().await;
    let cancel = format!("/v1/tasks/{}/cancel", held.task);
    assert_eq!(
        twice(&owner(), &cancel, &json!({})).await.str("/status"),
        "Canceled"
    );
    app.model.then_fails(400);
    let failed = app.owner().create_task("fail").await;
    assert_eq!(failed.str("/status"), "Failed");
    app.model.then(text_answer("now"));
    let retry = format!("/v1/tasks/{}/retry", failed.str("/task_id"));
    assert_eq!(
        twice(&owner(), &retry, &json!({})).await.str("/status"),
        "Completed"
    );
    assert_eq!(app.tool.ledger().len(), 1);
    assert_eq!(app.model.sent().len(), 6, "no question was asked twice");
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_post_waits_with_the_first(on: On) {
    let app = TestApp::start(on).await;
    app.tool.close();
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":5}"#)]))
        .then(text_answer("paid"));
    let owner = || app.owner().header(KEY, "k");
    let body = json!({"input": "go"});
    let first = async { owner().post("/v1/tasks", &body).await };
    let later = async {
        app.tool.reached(1).await;
        let now = owner().prefer("wait=0").post("/v1/tasks", &body).await;
        now.assert_status(202, "Running");
        assert_eq!(
            (
                now.header("idempotency-replayed"),
                now.header("preference-applied")
            ),
            ("true", "wait=0")
        );
        let waits = async { owner().post("/v1/tasks", &body).await };
        let ((), last) = join(async { app.tool.open() }, waits).await;
        last
    };
    let (first, last) = join(first, later).await;
    first.assert_text(201, "/output", "paid");
    last.assert_text(201, "/output", "paid");
    assert_eq!(first.body["task_id"], last.body["task_id"]);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_post_of_a_caller_who_lost_the_right_is_refused(on: On) {
    let mut app = TestApp::with(
        on,
        &(REFUNDS.replace("{approvers}", "{ groups: [finance] }") + NARROWED),
    )
    .await;
    let held = app.held().await;
    app.model.then(text_answer("paid"));
    let path = format!("/resume/{}/approve", held.request);
    assert_eq!(app.actor(BOB).header(KEY, "k").hit(&path).await.status, 200);
    let created = json!({"input": "mine"});
    app.model.then(text_answer("hello"));
    assert_eq!(
        app.actor(BOB)
            .header(KEY, "c")
            .post("/v1/tasks", &created)
            .await
            .status,
        201
    );
    let narrow = r#"key: "bob-key-0123456789ab", may: [read]"#;
    app.restart_with(|yaml| yaml.replace(r#"key: "bob-key-0123456789ab""#, narrow))
        .await;
    assert_eq!(app.actor(BOB).header(KEY, "k").hit(&path).await.status, 403);
    assert_eq!(
        app.actor(BOB)
            .header(KEY, "c")
            .post("/v1/tasks", &created)
            .await
            .status,
        403
    );
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn repeated_cancel_does_not_end_a_task_reopened_since(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let path = format!("/v1/tasks/{}", held.task);
    assert_eq!(
        app.owner()
            .hit(&format!("{path}/cancel"))
            .await
            .str("/status"),
        "Canceled"
    );
    let key = || app.owner().header(KEY, "again");
    assert_eq!(key().hit(&format!("{path}/cancel")).await.status, 200);
    app.tool.close();
    app.model
        .then(calls(&[("lookup", r#"{"order":1}"#)]))
        .then(text_answer("hello"));
    let reopened = app.owner().prefer("respond-async");
    assert_eq!(
        reopened
            .post(&format!("{path}/messages"), &json!({"input": "go on"}))
            .await
            .status,
        202
    );
    let repeated = key().hit(&format!("{path}/cancel")).await;
    repeated.assert_header(200, "idempotency-replayed", "true");
    app.tool.open();
    let waits = app.owner().prefer("wait=30");
    assert_eq!(waits.get(&path).await.str("/output"), "hello");
    app.stop().await;
}

#[apply(on_both)]
async fn idempotency_key_is_scoped_to_one_path_user_and_tenant(on: On) {
    let app = TestApp::start(on).await;
    let body = json!({"input": "go"});
    let mut tasks = Vec::new();
    for who in [ALICE, BOB, OTHER] {
        let made = app
            .actor(who)
            .header(KEY, "k")
            .post("/v1/tasks", &body)
            .await;
        made.assert_header(201, "idempotency-replayed", "");
        tasks.push(made.str("/task_id"));
    }
    let more = app
        .owner()
        .header(KEY, "k")
        .post(&format!("/v1/tasks/{}/messages", tasks[0]), &body)
        .await;
    more.assert_header(200, "idempotency-replayed", "");
    tasks.sort();
    tasks.dedup();
    assert_eq!((tasks.len(), app.model.sent().len()), (3, 4));
    app.stop().await;
}

#[apply(on_both)]
async fn refused_post_spends_no_key(on: On) {
    let app = TestApp::start(on).await;
    let owner = || app.owner().header(KEY, "k");
    assert_eq!(
        owner()
            .post("/v1/tasks", &json!({"input": "go", "agent": "nobody"}))
            .await
            .status,
        422
    );
    let made = owner().create_task("go").await;
    made.assert_header(201, "idempotency-replayed", "");
    app.stop().await;
}

#[apply(on_both)]
async fn thirty_two_simultaneous_posts_with_one_key_create_one_task(on: On) {
    let app = TestApp::start(on).await;
    let mut others = Vec::new();
    if on == On::Postgres {
        others.push(app.replica().await);
    }
    let body = json!({"input": "go"});
    let posts = (0..32).map(|number: usize| {
        let at = if number.is_multiple_of(2) {
            &app
        } else {
            others.first().unwrap_or(&app)
        };
        let body = &body;
        async move { at.owner().header(KEY, "k").post("/v1/tasks", body).await }
    });
    let replies = join_all(posts).await;
    let first = replies[0].str("/task_id");
    for reply in &replies {
        reply.assert_status(201, "Completed");
        assert_eq!(reply.str("/task_id"), first);
    }
    let fresh = replies
        .iter()
        .filter(|reply| reply.header("idempotency-replayed").is_empty())
        .count();
    assert_eq!((fresh, app.model.sent().len()), (1, 1));
    for other in others {
        other.stop().await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn idempotency_key_expires_after_a_day_except_for_a_decision(on: On) {
    let app = TestApp::start(on).await;
    let owner = || app.owner().header(KEY, "k");
    let body = json!({"input": "go"});
    let made = owner().post("/v1/tasks", &body).await;
    let held = app.held().await;
    let path = format!("/resume/{}/approve", held.request);
    assert_eq!(owner().hit(&path).await.status, 200);
    app.database
        .execute("update idempotency set created_at = created_at - 86400000000")
        .await;
    let again = owner().create_task("another").await;
    again.assert_header(201, "idempotency-replayed", "");
    assert_ne!(again.str("/task_id"), made.str("/task_id"));
    let answered = owner().hit(&path).await;
    answered.assert_header(200, "idempotency-replayed", "true");
    app.stop().await;
}
