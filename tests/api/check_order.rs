//! Tests the order in which an HTTP request is checked. If several checks fail, the first of them
//! determines the status.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::text_answer;
use crate::support::test_app::{ALICE, BOB, CAROL, Held, OTHER, On, TestApp};

const NO_KEY: &str = "";
const NOT_THERE: &str = "/resume/00000000-0000-7000-8000-000000000000";
const EVIL: (&str, &str) = ("origin", "https://evil.example");
const BAD_KEY: (&str, &str) = ("idempotency-key", "a b");
const SPEAKS: (&str, &str) = ("holdpoint-user", "zoe");
const JSON: &str = "application/json";

/// An HTTP request with its expected status: method, path, API key (empty for none), headers,
/// content type, body, status.
struct Attempt<'a>(
    Method,
    &'a str,
    &'static str,
    &'a [(&'a str, &'a str)],
    &'a str,
    &'a str,
    u16,
);

async fn tell(app: &TestApp, attempts: &[Attempt<'_>]) {
    for Attempt(method, path, key, headers, kind, body, status) in attempts {
        let mut actor = match *key {
            NO_KEY => app.anonymous(),
            ALICE => app.actor(ALICE),
            BOB => app.actor(BOB),
            CAROL => app.actor(CAROL),
            _ => app.actor(OTHER),
        };
        for (name, value) in *headers {
            actor = actor.header(name, value);
        }
        let reply = actor
            .send(method.clone(), path, Some((kind, (*body).to_owned())))
            .await;
        let short: String = body.chars().take(60).collect();
        assert_eq!(
            reply.status, *status,
            "{method} {path} {headers:?} {kind} {short}: {}",
            reply.text
        );
        assert_eq!(reply.body["status"], *status, "{}", reply.text);
    }
}

async fn updated(app: &TestApp, held: &Held) -> Value {
    app.owner().task(&held.task).await.body["updated_at"].clone()
}

#[apply(on_both)]
async fn earlier_of_two_failing_checks_answers(on: On) {
    let app = TestApp::with_finance(on).await;
    let held = app.held().await;
    let resume = format!("/resume/{}", held.request);
    let large = "x".repeat(1024 * 1024 + 1);
    let wrong = r#"{"action":"approve","digest":"sha256:00","x":1}"#;
    let other = r#"{"action":"approve","digest":"sha256:00"}"#;
    let post = Method::POST;
    tell(
        &app,
        &[
            Attempt(
                Method::PUT,
                "/v1/nothing",
                NO_KEY,
                &[EVIL],
                JSON,
                &large,
                404,
            ),
            Attempt(Method::PUT, &resume, NO_KEY, &[EVIL], JSON, &large, 405),
            Attempt(post.clone(), &resume, NO_KEY, &[EVIL], JSON, &large, 403),
            Attempt(post.clone(), &resume, NO_KEY, &[SPEAKS], JSON, &large, 413),
            Attempt(post.clone(), NOT_THERE, NO_KEY, &[SPEAKS], JSON, "{", 401),
            Attempt(post.clone(), NOT_THERE, BOB, &[SPEAKS], JSON, "{", 403),
            Attempt(post.clone(), NOT_THERE, CAROL, &[BAD_KEY], JSON, "{", 404),
            Attempt(post.clone(), &resume, OTHER, &[BAD_KEY], JSON, "{", 404),
            Attempt(post.clone(), &resume, CAROL, &[BAD_KEY], JSON, "{", 403),
            Attempt(post.clone(), &resume, CAROL, &[], "text/plain", "{", 403),
            Attempt(post.clone(), &resume, BOB, &[BAD_KEY], JSON, wrong, 400),
            Attempt(post.clone(), &resume, BOB, &[], JSON, "{", 400),
            Attempt(post.clone(), &resume, BOB, &[], "text/plain", wrong, 415),
            Attempt(post.clone(), &resume, BOB, &[], JSON, wrong, 422),
            Attempt(post.clone(), &resume, BOB, &[], JSON, other, 412),
        ],
    )
    .await;
    assert_eq!(
        updated(&app, &held).await,
        held.body["updated_at"],
        "nothing changed"
    );
    app.model.then(text_answer("done"));
    let key = ("idempotency-key", "first");
    let first = app
        .approver()
        .header(key.0, key.1)
        .post(&resume, &json!({"action": "approve"}))
        .await;
    assert_eq!(first.status, 200, "{}", first.text);
    tell(
        &app,
        &[
            Attempt(post.clone(), &resume, BOB, &[], JSON, wrong, 422),
            Attempt(post.clone(), &resume, BOB, &[], JSON, other, 412),
            Attempt(
                post.clone(),
                &resume,
                BOB,
                &[],
                JSON,
                r#"{"action":"approve"}"#,
                409,
            ),
            Attempt(
                post.clone(),
                &resume,
                CAROL,
                &[key],
                JSON,
                r#"{"action":"approve"}"#,
                403,
            ),
            Attempt(post.clone(), &resume, BOB, &[key], "text/plain", "{", 422),
            Attempt(post.clone(), &resume, NO_KEY, &[key], JSON, "{", 401),
        ],
    )
    .await;
    let replay = app
        .approver()
        .header(key.0, key.1)
        .post(&resume, &json!({"action": "approve"}))
        .await;
    replay.assert_header(200, "idempotency-replayed", "true");
    app.stop().await;
}

#[apply(on_both)]
async fn task_is_checked_before_its_body_and_the_body_before_the_status(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    for verb in ["messages", "cancel", "retry"] {
        let path = format!("/v1/tasks/{}/{verb}", held.task);
        let post = Method::POST;
        tell(
            &app,
            &[
                Attempt(
                    post.clone(),
                    "/v1/tasks/x/cancel",
                    CAROL,
                    &[BAD_KEY],
                    JSON,
                    "{",
                    404,
                ),
                Attempt(post.clone(), &path, OTHER, &[BAD_KEY], JSON, "{", 404),
                Attempt(post.clone(), &path, CAROL, &[BAD_KEY], JSON, "{", 403),
                Attempt(
                    post.clone(),
                    &path,
                    ALICE,
                    &[BAD_KEY],
                    "text/plain",
                    "{",
                    400,
                ),
                Attempt(post.clone(), &path, ALICE, &[], "text/plain", "{", 415),
                Attempt(post.clone(), &path, ALICE, &[], JSON, "{", 400),
                Attempt(post.clone(), &path, ALICE, &[], JSON, r#"{"zzz":1}"#, 422),
            ],
        )
        .await;
    }
    let message = app
        .owner()
        .message(&held.task, &json!({"input": "x"}))
        .await;
    message.assert_code(409, "task_paused");
    assert_eq!(
        message.body["pending"][0]["request_id"],
        json!(held.request)
    );
    assert_eq!(
        updated(&app, &held).await,
        held.body["updated_at"],
        "nothing changed"
    );
    app.stop().await;
}
