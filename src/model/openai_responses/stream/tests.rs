//! Tests of streamed answers of the Responses protocol.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::model::Answer;
use crate::model::test_sinks::CollectingSink;
use crate::secret::{Redactor, Secret};
use crate::task::item::FinishReason;

fn read(events: &[Value]) -> (AttemptOutcome, CollectingSink) {
    let key = Secret::new("sk-very-secret".to_owned());
    let cleaner = Cleaner(Arc::new(Redactor::new([("KEY", &key)])));
    let (heard, mut stream) = (
        CollectingSink::default(),
        ResponseStreamReader::new(&cleaner),
    );
    let mut emitter = PieceEmitter::new(&heard);
    for data in events {
        let event = SseEvent {
            name: String::new(),
            data: data.to_string(),
        };
        if let Err(attempt) = stream.read_event(&event, &mut emitter) {
            return (attempt, heard);
        }
    }
    (stream.finish(&mut emitter), heard)
}

/// Returns the answer and the number of resets. Asserts that the pieces add up to the answer.
fn answered(events: &[Value]) -> (Answer, usize) {
    match read(events) {
        (AttemptOutcome::Answered(answer), heard) => {
            heard.assert_adds_up_to(&answer);
            (*answer, heard.collected().resets)
        }
        (attempt, _) => panic!("{attempt:?}"),
    }
}

fn outcome(events: &[Value]) -> String {
    match read(events).0 {
        AttemptOutcome::Answered(answer) => format!("says {}", answer.text.unwrap_or_default()),
        AttemptOutcome::Retry(why, _) => format!("again: {why}"),
        AttemptOutcome::RetrySimpler(why, _) | AttemptOutcome::Failed(why) => {
            format!("failed: {why}")
        }
    }
}

fn item(kind: &str, at: u64, item: Value) -> Value {
    let mut event = json!({"type": format!("response.output_item.{kind}"), "output_index": at});
    event["item"] = item;
    event
}

fn call(name: &str, arguments: &str) -> Value {
    json!({"type": "function_call", "call_id": "c", "name": name, "arguments": arguments})
}

fn message(text: &str) -> Value {
    json!({"type": "message", "content": [{"type": "output_text", "text": text}]})
}

fn delta(kind: &str, at: u64, delta: &str) -> Value {
    json!({"type": format!("response.{kind}.delta"), "output_index": at, "delta": delta})
}

fn completed(output: &Value) -> Value {
    json!({"type": "response.completed", "response": {"status": "completed", "output": output}})
}

const TEXT: &str = "output_text";
const ARGUMENTS: &str = "function_call_arguments";

#[test]
fn ended_item_wins_over_its_deltas() {
    let (answer, resets) = answered(&[
        item("added", 0, message("")),
        delta(TEXT, 0, "Wrong"),
        item("done", 0, message("Right")),
        item("added", 1, call("look", "")),
        delta(ARGUMENTS, 1, "{\"n\":1}"),
        item("done", 1, call("pay", "{\"n\":2}")),
        completed(&json!([message("Other"), call("other", "{}")])),
    ]);
    assert_eq!(answer.text.as_deref(), Some("Right"));
    assert_eq!(
        (
            answer.calls[0].name.as_str(),
            answer.calls[0].arguments_text.as_str()
        ),
        ("pay", "{\"n\":2}")
    );
    assert_eq!(answer.raw["items"][1], call("pay", "{\"n\":2}").to_string());
    assert_eq!(resets, 1);
}

#[test]
fn item_that_no_event_ended_is_taken_from_the_response() {
    let (answer, resets) = answered(&[
        item("added", 0, message("")),
        delta(TEXT, 0, "He"),
        completed(&json!([message("Hello"), call("pay", "{}")])),
    ]);
    assert_eq!(
        (answer.text.as_deref(), answer.calls.len()),
        (Some("Hello"), 1)
    );
    assert_eq!(resets, 0);
    assert_eq!(
        outcome(&[
            item("added", 0, message("")),
            delta(TEXT, 0, "He"),
            completed(&json!([]))
        ]),
        "again: its answer ended within an item"
    );
}

#[test]
fn ended_item_that_the_response_has_at_another_index_is_taken_once() {
    let with_id = |id: &str, arguments: &str| {
        let mut call = call("pay", arguments);
        call["id"] = json!(id);
        call
    };
    let mut other_text = with_id("a", "{ \"n\": 1 }");
    other_text["call_id"] = json!("other");
    let (pay, reasoning) = (call("pay", "{\"n\":1}"), json!({"type": "reasoning"}));
    for (index, ended, output, count) in [
        (1, &pay, json!([pay]), 1),
        (0, &pay, json!([reasoning, pay]), 2),
        (1, &pay, json!([message("Hello"), pay]), 2),
        (1, &with_id("a", "{\"n\":1}"), json!([other_text]), 1),
        (
            1,
            &with_id("a", "{\"n\":1}"),
            json!([with_id("b", "{\"n\":1}")]),
            1,
        ),
    ] {
        let (answer, _) = answered(&[item("done", index, ended.clone()), completed(&output)]);
        let calls = answer.calls.iter().map(|call| call.arguments_text.as_str());
        assert_eq!(calls.collect::<Vec<_>>(), ["{\"n\":1}"], "{output}");
        let items = answer.raw["items"].as_array().unwrap();
        assert_eq!(items.len(), count, "{output}");
    }
    for again in [message("Hello"), reasoning] {
        let end = completed(&json!([again]));
        let (answer, _) = answered(&[item("done", 1, again.clone()), end]);
        assert_eq!(answer.raw["items"], json!([again.to_string()]));
    }
}

#[test]
fn call_that_differs_from_every_ended_call_is_taken_from_the_response() {
    let calls = ["{\"n\":1}", "{\"n\":2}"].map(|arguments| call("pay", arguments));
    let end = completed(&json!(calls));
    let (answer, _) = answered(&[item("done", 0, calls[0].clone()), end]);
    let taken = answer.calls.iter().map(|call| call.arguments_text.as_str());
    assert_eq!(taken.collect::<Vec<_>>(), ["{\"n\":1}", "{\"n\":2}"]);
}

#[test]
fn call_that_equals_an_ended_call_is_taken_from_the_response_that_has_both_ids() {
    let [first, second] = ["a", "b"].map(|id| {
        let mut call = call("pay", "{}");
        (call["id"], call["call_id"]) = (json!(id), json!(id));
        call
    });
    let end = completed(&json!([first, second]));
    let done = item("done", 0, first.clone());
    for events in [
        vec![done.clone(), end.clone()],
        vec![item("added", 1, second.clone()), done, end],
    ] {
        let (answer, _) = answered(&events);
        let items = json!([first.to_string(), second.to_string()]);
        assert_eq!(answer.raw["items"], items, "{events:?}");
        assert_eq!(answer.calls.len(), 2, "{events:?}");
    }
}

#[test]
fn calls_to_which_an_endpoint_gives_one_id_are_told_apart_by_their_call_ids() {
    let calls = ["c1", "c2"].map(|call_id| {
        let mut call = call("pay", &json!({"for": call_id}).to_string());
        (call["id"], call["call_id"]) = (json!("x"), json!(call_id));
        call
    });
    let done = item("done", 0, calls[1].clone());
    let (answer, _) = answered(&[done, completed(&json!(calls))]);
    let items = json!(calls.each_ref().map(Value::to_string));
    assert_eq!(answer.raw["items"], items);
}

#[test]
fn equal_calls_of_the_response_without_ids_are_two_calls_whichever_of_them_ended() {
    let calls = ["c1", "c2"].map(|id| {
        let mut call = call("pay", "{}");
        call["call_id"] = json!(id);
        call
    });
    let items = json!(calls.each_ref().map(Value::to_string));
    for ended in &calls {
        let done = item("done", 0, ended.clone());
        let (answer, _) = answered(&[done, completed(&json!(calls))]);
        assert_eq!(answer.raw["items"], items, "{ended}");
    }
}

#[test]
fn call_without_a_place_in_the_answer_makes_the_answer_unreadable() {
    for (event, output) in [
        (item("done", 0, message("Hello")), call("pay", "{}")),
        (item("added", 0, call("pay", "")), message("Hello")),
    ] {
        let events = [event, completed(&json!([output]))];
        assert_eq!(outcome(&events), "again: its answer cannot be read");
    }
}

#[test]
fn response_announced_as_completed_that_says_it_was_cut_runs_no_call() {
    let cut =
        json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}});
    let end = json!({"type": "response.completed", "response": cut});
    let (answer, _) = answered(&[item("done", 0, call("pay", "{}")), end]);
    assert_eq!(answer.finish_reason, FinishReason::Length);
}

#[test]
fn items_stand_in_the_order_of_their_index() {
    let (answer, _) = answered(&[
        item("done", 1, call("pay", "{\"n\":2}")),
        item("added", 0, call("", "")),
        delta(ARGUMENTS, 0, "{\"n\""),
        item("done", 0, call("look", "{\"n\":1}")),
        completed(&json!([])),
    ]);
    let names: Vec<_> = answer.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["look", "pay"]);
}

#[test]
fn name_of_a_call_is_emitted_before_its_arguments_and_redacted() {
    let events = [
        item("added", 0, call("sk-very-secret", "")),
        delta(ARGUMENTS, 0, "{\"k\":\"sk-very"),
    ];
    let told = read(&events).1.collected();
    let (name, arguments) = &told.calls[&0];
    assert_eq!(
        (name.as_str(), arguments.as_str()),
        ("[secret KEY]", "{\"k\":\"")
    );
}

#[test]
fn stream_without_its_end_is_no_answer() {
    let events = [
        item("done", 0, message("Hello")),
        item("done", 1, call("pay", "{}")),
    ];
    assert_eq!(outcome(&events), "again: its answer was cut off");
    let one = json!({"type": "response.in_progress", "response": {"status": "in_progress"}});
    assert_eq!(outcome(&[one]), "again: its answer was cut off");
}

#[test]
fn failure_and_error_events_are_retried_or_final() {
    let failed = |error: Value| json!({"type": "response.failed", "response": {"status": "failed", "error": error}});
    for (event, expected) in [
        (
            failed(json!({"code": "server_error", "message": "m"})),
            "again: it reported an error: m",
        ),
        (
            failed(json!({"code": "invalid_prompt", "message": "m"})),
            "failed: it reported an error: m",
        ),
        (failed(Value::Null), "again: it failed and gave no reason"),
        (
            json!({"type": "error", "code": "server_error", "message": "m"}),
            "again: it reported an error: m",
        ),
        (
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": "m"}}),
            "failed: it reported an error: m",
        ),
        (
            json!({"error": {"code": 400, "message": "m"}}),
            "failed: it reported an error: m",
        ),
    ] {
        assert_eq!(
            outcome(&[item("done", 0, call("pay", "{}")), event.clone()]),
            expected,
            "{event}"
        );
    }
}

#[test]
fn inconsistent_events_are_retried_and_unknown_ones_skipped() {
    let unreadable = "again: its answer cannot be read";
    let (begun, done) = (
        item("added", 0, message("")),
        item("done", 0, message("Hi")),
    );
    let end = completed(&json!([]));
    let later = json!({"type": "response.later", "output_index": 9});
    assert_eq!(
        outcome(&[begun.clone(), later, done.clone(), end.clone()]),
        "says Hi"
    );
    for events in [
        vec![begun.clone(), begun],
        vec![done.clone(), done],
        vec![item("done", 0, json!("text"))],
        vec![json!({"type": "response.output_item.done", "item": {}})],
        vec![json!({"type": "response.completed"})],
        vec![completed(&json!([7]))],
    ] {
        let all: Vec<_> = events.into_iter().chain([end.clone()]).collect();
        assert_eq!(outcome(&all), unreadable, "{all:?}");
    }
}
