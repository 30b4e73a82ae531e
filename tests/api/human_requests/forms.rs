//! Tests how an answer that does not fit the form of its question is refused.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{Question, ask, asking, begin, items};
use super::{FORM, answer, response};
use crate::support::test_app::{On, TestApp};

/// Sends an invalid answer. Returns the JSON pointers of its errors, sorted and without
/// repetitions. Asserts that the reply does not repeat `s3cret`.
async fn places(app: &TestApp, question: &Question, body: &Value) -> Vec<String> {
    let reply = app.owner().post(&question.path(), body).await;
    reply.about(&body).assert_code(422, "invalid");
    reply.about(&"no value is repeated").assert_lacks("s3cret");
    let errors = reply.body["errors"].as_array().unwrap();
    let mut places: Vec<_> = errors
        .iter()
        .map(|error| error["pointer"].as_str().unwrap().to_owned())
        .collect();
    places.sort();
    places.dedup();
    places
}

/// Malformed answers to a question for a login, each with the place of its first error.
const UNFIT_LOGINS: [(&str, &str); 12] = [
    (
        r#"{"action":"respond","response":{"s3cret":"a","email":"a@b.example","token":"t"}}"#,
        "/response",
    ),
    (
        r#"{"action":"respond","response":{"s3cret":{"s3cret":1e999}}}"#,
        "",
    ),
    (
        r#"{"action":"respond","response":{"s3cret":{"s3cret\u0000":1}}}"#,
        "/response",
    ),
    (
        r#"{"action":"respond","response":{"s3cret":"a\u0000"}}"#,
        "/response",
    ),
    (
        r#"{"action":"respond","response":{"token":"t","TOKEN":"s3cret","email":"a@b.example"}}"#,
        "/response",
    ),
    (
        r#"{"action":"respond","response":{"token":{"s3cret":"x","S3CRET":1}}}"#,
        "/response/token",
    ),
    (
        r#"{"action":"respond","response":{"token":[{"s3cret":12345678901234567890123}]}}"#,
        "/response/token",
    ),
    (
        r#"{"action":"respond","s3cret":{"token":"t"}}"#,
        "/response",
    ),
    (r#"{"s3cret":"t"}"#, ""),
    (
        r#"{"decisions":{"s3cret":{"action":"respond","s3cret":1}}}"#,
        "/decisions",
    ),
    (r#"{"decisions":{"s3cret":1}}"#, "/decisions"),
    (r#"{"action":"reject","s3cret":"t"}"#, ""),
];

/// Returns answers to a question that do not fit its form, each with the places of its errors.
fn unfit_answers(kind: &str) -> Vec<(Value, &'static str)> {
    match kind {
        "own form" => vec![
            (json!({"shop": "s3cret"}), "/response/shop"),
            (
                json!({"shop": "s3cret", "days": "s3cret"}),
                "/response/days /response/shop",
            ),
            (json!({"shop": "north", "days": 0}), "/response/days"),
            (json!({"shop": "north", "days": 1.5}), "/response/days"),
            (json!({"shop": "north", "mail": "s3cret"}), "/response/mail"),
            (json!({"shop": "north", "more": "s3cret"}), "/response/more"),
            (json!({"days": 3}), "/response/shop"),
            (json!({"shop": null}), "/response/shop"),
            (json!({"shop": "north", "SHOP": "s3cret"}), "/response/shop"),
            (json!("s3cret"), "/response"),
            (json!(["s3cret"]), "/response"),
            (Value::Null, "/response"),
        ],
        "guidance" => vec![
            (json!({}), "/response/answer"),
            (json!({"answer": 17}), "/response/answer"),
            (
                json!({"answer": "x", "reason": "s3cret"}),
                "/response/reason",
            ),
        ],
        "confirmation" => vec![
            (json!({}), "/response/confirmed"),
            (json!({"confirmed": "s3cret"}), "/response/confirmed"),
            (
                json!({"confirmed": true, "comment": 1}),
                "/response/comment",
            ),
            (json!({"comment": "s3cret"}), "/response/confirmed"),
        ],
        _ => vec![
            (json!({"email": "a@b.example"}), "/response/token"),
            (
                json!({"email": "s3cret", "token": "s3cret"}),
                "/response/email",
            ),
            (
                json!({"email": "a@b.example", "token": ""}),
                "/response/token",
            ),
            (
                json!({"email": "a@b.example", "token": {"s3cret": 1}}),
                "/response/token",
            ),
            (
                json!({"email": "a@b.example", "token": "s3cret\r\nx: y"}),
                "/response/token",
            ),
            (
                json!({"email": "a@b.example", "token": "s3cret", "more": "s3cret"}),
                "/response",
            ),
        ],
    }
}

/// Asserts that errors about a credentials form do not repeat unknown member names, because the
/// user may have typed the secret as a name.
async fn refusals_of_a_login_repeat_no_name(app: &TestApp, credentials: &Question) {
    for (body, expected) in UNFIT_LOGINS {
        let refused = app.owner().bytes(&credentials.path(), body.into()).await;
        let status = if body.contains("999") { 400 } else { 422 };
        assert_eq!(refused.status, status, "{body} {}", refused.body);
        assert!(
            !refused
                .body
                .to_string()
                .to_ascii_lowercase()
                .contains("s3cret"),
            "{body} {}",
            refused.body
        );
        if status == 422 {
            assert_eq!(refused.str("/errors/0/pointer"), expected, "{body}");
        }
    }
    for fields in [
        "s3cret=",
        "action=respond&field.s3cret=1",
        "action=respond&field.token=s3cret&s3cret=x",
        "call.s3cret.action=approve",
    ] {
        for accept in ["text/html", "application/json"] {
            let form = Some(("application/x-www-form-urlencoded", fields.to_owned()));
            let refused = app
                .owner()
                .header("accept", accept)
                .send(Method::POST, &credentials.path(), form)
                .await;
            assert_eq!(refused.status, 422, "{fields}");
            refused.about(&fields).assert_lacks("s3cret");
        }
    }
}

#[apply(on_both)]
async fn answer_that_does_not_fit_is_refused_by_place_and_never_by_value(on: On) {
    let app = asking(on, "").await;
    let own = Question::of(
        &begin(&app, &[("request_human_guidance", FORM)]).await,
        "guidance",
    );
    let plain = ask(&app, "guidance").await;
    assert_eq!(
        plain.request["details"],
        json!({"options": ["north", "south"]})
    );
    let (confirmation, credentials) = (
        ask(&app, "confirmation").await,
        ask(&app, "credentials").await,
    );
    let before = items(&app, &own.task).await;
    for (question, kind) in [
        (&own, "own form"),
        (&plain, "guidance"),
        (&confirmation, "confirmation"),
        (&credentials, "credentials"),
    ] {
        for (filled, expected) in unfit_answers(kind) {
            let found = places(&app, question, &response(filled.clone())).await;
            assert_eq!(found.join(" "), expected, "{filled}");
        }
    }
    refusals_of_a_login_repeat_no_name(&app, &credentials).await;
    let twice = r#"{"action":"respond","response":{"shop":"north","shop":"south"}}"#;
    assert_eq!(
        app.owner().bytes(&own.path(), twice.into()).await.status,
        400
    );
    assert_eq!(
        items(&app, &own.task).await,
        before,
        "a refusal changed something"
    );
    answer(
        &app,
        &own,
        &response(json!({"shop": "south", "mail": "a@b.example"})),
    )
    .await;
    app.stop().await;
}
