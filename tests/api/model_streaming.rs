//! Tests of a model that streams its answer: a call that arrives in deltas runs once it is
//! complete.

use macro_rules_attribute::apply;
use serde_json::json;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::model_stream::Stream;
use crate::support::test_app::{On, TestApp};

const SAFE: (&str, &str) = ("lookup", r#"{"order":1}"#);
const HELD: (&str, &str) = ("refund", r#"{"order":1,"amount":50}"#);

#[apply(on_both)]
async fn call_streamed_byte_by_byte_is_held_and_runs_as_it_was_written(on: On) {
    let app = TestApp::start(on).await;
    app.model
        .then_streams(Stream::of(&calls(&[SAFE, HELD])).unwrap().byte_by_byte())
        .then(text_answer("paid"));
    let paused = app.owner().create_task("go").await;
    assert_eq!(paused.str("/status"), "Paused", "{}", paused.text);
    assert_eq!(paused.str("/pending/0/tool_calls/1/arguments_text"), HELD.1);
    let path = format!("/resume/{}/approve", paused.str("/pending/0/request_id"));
    let done = app.owner().hit(&path).await;
    done.assert_completed("paid");
    let ran: Vec<_> = app
        .tool
        .ledger()
        .into_iter()
        .map(|call| call.body)
        .collect();
    assert_eq!(ran, [SAFE.1, HELD.1]);
    assert_eq!(done.body["usage"]["total_tokens"], 27);
    app.stop().await;
}

#[apply(on_both)]
async fn call_that_was_cut_off_runs_nothing(on: On) {
    for (reason, whole) in [
        ("length", true),
        ("length", false),
        ("content_filter", false),
    ] {
        let app = TestApp::start(on).await;
        let cut = if whole { SAFE.1 } else { r#"{"order":1"# };
        let mut answer = calls(&[SAFE, (SAFE.0, cut)]);
        answer["choices"][0]["finish_reason"] = json!(reason);
        app.model
            .then_streams(Stream::of(&answer).unwrap())
            .then(text_answer("ok"));
        let done = app.owner().create_task("go").await;
        assert_eq!(done.str("/status"), "Completed", "{}", done.text);
        assert!(app.tool.ledger().is_empty());
        let items = app.owner().items(&done.str("/task_id")).await;
        let results = items.body["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|item| item["type"] == "tool_result");
        let outcomes: Vec<_> = results.map(|item| item["outcome"].clone()).collect();
        assert_eq!(outcomes, ["invalid", "invalid"], "{}", items.text);
        app.stop().await;
    }
}

#[apply(on_both)]
async fn lost_or_unfinished_stream_is_no_answer(on: On) {
    let stream = || Stream::of(&calls(&[SAFE])).unwrap();
    let chunks = stream().len();
    for lost in [1, 3, chunks - 3] {
        for void in [stream().lost_after(lost), stream().cut_after(lost)] {
            let app = TestApp::start(on).await;
            app.model
                .then_streams(void.clone())
                .then(calls(&[SAFE]))
                .then(text_answer("ok"));
            let done = app.owner().create_task("go").await;
            assert_eq!(done.str("/output"), "ok", "{}", done.text);
            assert_eq!(
                (app.tool.ledger().len(), app.model.sent().len()),
                (1, 3),
                "{lost}"
            );
            app.model.then_streams(void.clone()).then_streams(void);
            let failed = app.owner().create_task("go").await;
            assert_eq!(failed.str("/error/code"), "model_failed", "{}", failed.text);
            assert_eq!(app.tool.ledger().len(), 1, "{lost}");
            app.stop().await;
        }
    }
}

#[apply(on_both)]
async fn calls_do_not_run_before_their_answer_is_complete(on: On) {
    let app = TestApp::start(on).await;
    let stream = Stream::of(&calls(&[SAFE])).unwrap();
    let before_its_end = stream.len() - 3;
    app.model
        .then_streams(stream.hold_after(before_its_end))
        .then(text_answer("ok"));
    let running = app.owner().prefer("wait=0").create_task("go").await;
    assert_eq!(running.status, 202, "{}", running.text);
    app.model.holds().await;
    let path = format!("/v1/tasks/{}", running.str("/task_id"));
    assert_eq!(app.owner().get(&path).await.str("/status"), "Running");
    assert!(app.tool.ledger().is_empty());
    app.model.go_on();
    let done = app.owner().prefer("wait=20").get(&path).await;
    assert_eq!(done.str("/output"), "ok", "{}", done.text);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

#[apply(on_both)]
async fn endpoint_that_does_not_stream_works_the_same(on: On) {
    let app = TestApp::start(on).await;
    app.model
        .streaming(false)
        .then(calls(&[SAFE]))
        .then(text_answer("ok"));
    let done = app.owner().create_task("go").await;
    assert_eq!(
        (done.str("/output").as_str(), app.tool.ledger().len()),
        ("ok", 1),
        "{}",
        done.text
    );
    app.stop().await;
}
