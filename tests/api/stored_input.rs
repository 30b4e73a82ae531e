//! Tests of stored user input. To recognize a repeated POST with an idempotency key, the service
//! keeps a hash of the body instead of the body. If `secrets.keys` is configured, this hash is a
//! keyed hash. The worker removes an expired credential.

use macro_rules_attribute::apply;
use serde_json::json;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{On, TestApp};

const KEYS: &str =
    "\nsecrets: { keys: [ { id: k1, key: 'MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=' } ] }\n";
const ANEW: &str = "\nsecrets: { keys: [ { id: k2, key: 'YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXoxMjM0NTY=' }, \
    { id: k1, key: 'MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=' } ] }\n";
/// The SHA-256 hash of `{"input":"go"}`.
const UNKEYED: &str = "2423fb4751d4f1b3a4a79d53d7970aaba5abd6c7b409e49b9ea3fb35b331a38a";

#[apply(on_both)]
async fn expired_credential_is_removed_by_the_worker(on: On) {
    let mut app = TestApp::start(on).await;
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":50}"#)]));
    app.owner().create_task("go").await;
    for (name, expires_at) in [("over", "1"), ("endless", "null")] {
        let insert = format!(
                "insert into credential (task_id, name, tenant, root_task_id, request_id, key_id, sealed, created_at, expires_at)
                 select task_id, '{name}', tenant, root_task_id, task_id, 'k1', 'x', 0, {expires_at} from agent_task"
            );
        app.database.execute(&insert).await;
    }
    app.restart().await;
    let is_removed = async || {
        app.database
            .texts("select name from credential order by name")
            .await
            == ["endless"]
    };
    crate::support::until("the expired credential is removed", is_removed).await;
    app.stop().await;
}

#[apply(on_both)]
async fn post_body_is_kept_as_a_keyed_hash_and_recognized_after_a_key_change(on: On) {
    let mut app = TestApp::start(on).await;
    let body = json!({"input": "go"});
    app.model.then(text_answer("hello"));
    let first = app.owner().keyed("1").post("/v1/tasks", &body).await;
    app.restart_with(|yaml| format!("{yaml}{KEYS}")).await;
    app.model.then(text_answer("hello"));
    let second = app.owner().keyed("2").post("/v1/tasks", &body).await;
    app.restart_with(|yaml| yaml.replace(KEYS, ANEW)).await;
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":50}"#)]))
        .then(text_answer("done"));
    let third = app.owner().keyed("3").post("/v1/tasks", &body).await;
    let path = format!("/resume/{}", third.str("/pending/0/request_id"));
    let answer = app
        .owner()
        .keyed("4")
        .post(&path, &json!({"action": "approve"}))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text);

    let rows = app
        .database
        .texts("select body_digest from idempotency order by key")
        .await;
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0], UNKEYED);
    for (row, id) in rows[1..].iter().zip(["k1:", "k2:", "k2:"]) {
        assert!(
            row.starts_with(id) && row.len() == 67 && !row.contains(UNKEYED),
            "{row}"
        );
    }
    assert_ne!(rows[1][3..], rows[2][3..]);

    for (key, task) in [("1", &first), ("2", &second), ("3", &third)] {
        let again = app.owner().keyed(key).post("/v1/tasks", &body).await;
        again.assert_header(201, "idempotency-replayed", "true");
        assert_eq!(again.str("/task_id"), task.str("/task_id"));
        let other = app.owner().keyed(key).create_task("else").await;
        other.assert_code(422, "idempotency_key_reused");
    }
    let again = app
        .owner()
        .keyed("4")
        .post(&path, &json!({"action": "approve"}))
        .await;
    again.assert_header(200, "idempotency-replayed", "true");
    app.stop().await;
}
