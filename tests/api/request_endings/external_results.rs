//! Tests results that people give for calls of external tools.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{
    Question, ask, asking, asks, begin, items, last_tool_results, results_of,
};
use super::BIG;
use crate::support::test_app::On;

#[apply(on_both)]
async fn external_result_is_passed_on_as_it_was_written(on: On) {
    let app = asking(on, "").await;
    for (result, passed_on) in [
        (r#""plain text""#, "plain text"),
        (r#""""#, ""),
        ("null", "null"),
        ("false", "false"),
        ("1.10", "1.10"),
        (BIG, BIG),
        (r#"[1E2,{"b":1,"a":-0}]"#, r#"[1E2,{"b":1,"a":-0}]"#),
        (
            r#"{"n":12345678901234567890123,"t":"é"}"#,
            r#"{"n":12345678901234567890123,"t":"é"}"#,
        ),
    ] {
        let question = ask(&app, "external_result").await;
        assert_eq!(question.request["form"], Value::Null);
        let body = format!(r#"{{"action":"respond","result": {result} }}"#);
        let answer = async || {
            app.owner()
                .bytes(&question.path(), body.clone().into_bytes())
                .await
        };
        let done = answer().await;
        done.about(&result).assert_status(200, "Completed");
        assert_eq!(last_tool_results(&app), [passed_on]);
        let late = answer().await;
        late.assert_code(409, "already_decided");
        late.assert_has(&format!(r#""result":{result}"#));
        let journal = items(&app, &question.task).await;
        assert_eq!(
            results_of(&journal, &question.call)[0]["content"],
            passed_on
        );
        for path in [
            question.path(),
            format!("/v1/tasks/{}/items", question.task),
        ] {
            let shown = app.owner().get(&path).await;
            shown
                .about(&path)
                .assert_has(&format!(r#""result":{result}"#));
        }
    }
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn external_result_that_does_not_fit_the_tool_is_refused(on: On) {
    let app = asking(on, "").await;
    let question = Question::of(&begin(&app, &[("measure", "{}")]).await, "external_result");
    assert_eq!(question.request["form"]["required"], json!(["metres"]));
    let before = items(&app, &question.task).await;
    for (result, place) in [
        (json!({}), "/result/metres"),
        (json!({"metres": "s3cret"}), "/result/metres"),
        (json!({"metres": -1}), "/result/metres"),
        (json!({"metres": 1, "note": {"s3cret": 1}}), "/result/note"),
        (json!("s3cret"), "/result"),
        (json!([{"metres": 1}]), "/result"),
        (Value::Null, "/result"),
    ] {
        let reply = app
            .owner()
            .post(
                &question.path(),
                &json!({"action": "respond", "result": result}),
            )
            .await;
        reply.about(&result).assert_code(422, "invalid");
        assert_eq!(
            (
                reply.str("/errors/0/pointer").as_str(),
                reply.text.contains("s3cret")
            ),
            (place, false),
            "{}",
            reply.text
        );
    }
    assert_eq!(
        items(&app, &question.task).await,
        before,
        "a refusal changed something"
    );
    let body = format!(r#"{{"action":"respond","result":{{"metres":{BIG},"more":true}}}}"#);
    let done = app.owner().bytes(&question.path(), body.into_bytes()).await;
    done.assert_status(200, "Completed");
    assert_eq!(
        last_tool_results(&app),
        [format!(r#"{{"metres":{BIG},"more":true}}"#)]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn external_result_is_requested_for_the_edited_arguments(on: On) {
    let app = asking(on, "  - { name: counted, tools: [count], decide: hold }\n").await;
    let held = Question::of(&begin(&app, &[asks("external_result")]).await, "approval");
    let edit = json!({"action": "edit", "arguments": {"what": "bills"}});
    let decision = json!({"decisions": {&held.call: edit}});
    let asked = app.owner().post(&held.path(), &decision).await;
    let outside = Question::of(&asked, "external_result");
    assert_eq!(
        outside.request["tool_calls"][0]["arguments"],
        json!({"what": "bills"}),
        "the result is requested for the approved arguments"
    );
    let done = app
        .owner()
        .post(&outside.path(), &json!({"action": "respond", "result": 4}))
        .await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert!(
        last_tool_results(&app)[0].contains("bills"),
        "the model is told which bytes counted: {:?}",
        last_tool_results(&app)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn external_result_is_its_owners_after_other_people_have_approved_the_call(on: On) {
    let more =
        "  - { name: counts, tools: [count], decide: hold, approvers: { groups: [finance] } }\n";
    let app = asking(on, more).await;
    let held = Question::of(&begin(&app, &[asks("external_result")]).await, "approval");
    assert_eq!(
        app.owner()
            .hit(&format!("{}/approve", held.path()))
            .await
            .status,
        403
    );
    let asked = app
        .approver()
        .hit(&format!("{}/approve", held.path()))
        .await;
    let outside = Question::of(&asked, "external_result");
    let result = json!({"action": "respond", "result": 4});
    assert_eq!(
        app.approver().post(&outside.path(), &result).await.status,
        403
    );
    let done = app.owner().post(&outside.path(), &result).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    app.stop().await;
}
