//! Tests of streamed answers of the Messages protocol.

use std::sync::Arc;

use super::*;
use crate::model::test_sinks::CollectingSink;
use crate::secret::{Redactor, Secret};

const START: &str =
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const STOP: &str = r#"{"type":"content_block_stop","index":0}"#;
const END: &str = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#;
const OVER: &str = r#"{"type":"message_stop"}"#;

fn cleaner() -> Cleaner {
    Cleaner(Arc::new(Redactor::new([(
        "KEY",
        &Secret::new("sk-very-secret".to_owned()),
    )])))
}

fn read(events: &[&str]) -> (AttemptOutcome, CollectingSink) {
    let heard = CollectingSink::default();
    let mut emitter = PieceEmitter::new(&heard);
    let mut stream = MessageStreamReader::new(&cleaner());
    for data in events {
        let event = SseEvent {
            name: String::new(),
            data: (*data).to_owned(),
        };
        if let Err(attempt) = stream.read_event(&event, &mut emitter) {
            return (attempt, heard);
        }
    }
    (stream.finish(&mut emitter), heard)
}

fn outcome(events: &[&str]) -> String {
    match read(events).0 {
        AttemptOutcome::Answered(answer) => format!("says {}", answer.text.unwrap_or_default()),
        AttemptOutcome::Retry(why, _) => format!("again: {why}"),
        AttemptOutcome::RetrySimpler(why, _) | AttemptOutcome::Failed(why) => {
            format!("failed: {why}")
        }
    }
}

#[test]
fn inconsistent_events_are_retried() {
    let delta =
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}"#;
    let elsewhere = delta.replace("\"index\":0", "\"index\":1");
    assert_eq!(outcome(&[START, delta, STOP, END, OVER]), "says Hi");
    assert_eq!(
        outcome(&[START, delta, END, OVER]),
        "says Hi",
        "that a block ended need not be said"
    );
    assert_eq!(outcome(&[END, OVER]), "says ");
    for events in [
        &[START, &elsewhere, STOP, END, OVER][..],
        &[START, STOP, delta, END, OVER],
        &[START, START, delta, END, OVER],
        &[STOP, END, OVER],
        &[&START.replace("\"index\":0,", ""), END, OVER],
        &[
            r#"{"type":"content_block_start","index":0,"content_block":7}"#,
            END,
            OVER,
        ],
        &[r#"{"type":"content_block_start","index":0}"#, END, OVER],
        &[
            START,
            r#"{"type":"content_block_delta","index":0}"#,
            END,
            OVER,
        ],
    ] {
        assert_eq!(
            outcome(events),
            "again: its answer cannot be read",
            "{events:?}"
        );
    }
    assert_eq!(
        outcome(&["[DONE]"]),
        "again: an event of its answer is not JSON"
    );
    assert_eq!(
        outcome(&[START, delta, STOP, OVER]),
        "again: its answer ended without a stop_reason"
    );
    assert_eq!(
        outcome(&[START, delta, STOP, END]),
        "again: its answer was cut off"
    );
    assert_eq!(outcome(&[]), "again: its answer was cut off");
}

#[test]
fn error_in_a_stream_is_final_only_for_an_invalid_request() {
    let said = |kind: &str| {
        outcome(&[
            START,
            &format!(
                r#"{{"type":"error","error":{{"type":"{kind}","message":"sk-very-secret"}}}}"#
            ),
        ])
    };
    let words = "it reported an error: [secret KEY]";
    for kind in [
        "overloaded_error",
        "api_error",
        "rate_limit_error",
        "timeout_error",
        "later_error",
    ] {
        assert_eq!(said(kind), format!("again: {words}"));
    }
    for kind in [
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "request_too_large",
    ] {
        assert_eq!(said(kind), format!("failed: {words}"));
    }
    assert_eq!(
        outcome(&[r#"{"type":"error"}"#]),
        "again: it reported an error: "
    );
}

#[test]
fn call_is_named_when_it_begins_and_its_arguments_follow() {
    let start = r#"{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"a","name":"pay"}}"#;
    let delta = |text: &str| {
        format!(
            r#"{{"type":"content_block_delta","index":3,"delta":{{"type":"input_json_delta","partial_json":"{text}"}}}}"#
        )
    };
    let heard = CollectingSink::default();
    let mut emitter = PieceEmitter::new(&heard);
    let mut stream = MessageStreamReader::new(&cleaner());
    let mut tell = |data: &str| {
        let event = SseEvent {
            name: "x".to_owned(),
            data: data.to_owned(),
        };
        assert_eq!(
            stream.read_event(&event, &mut emitter).unwrap(),
            StreamState::Open
        );
        heard.collected().calls.get(&0).cloned()
    };
    let said = |text: &str| Some(("pay".to_owned(), text.to_owned()));
    assert_eq!(tell(start), said(""));
    assert_eq!(tell(&delta("{")), said("{"));
    assert_eq!(
        tell(&delta("\\\"a\\\":\\\"sk-very")),
        said("{\"a\":\""),
        "what may become a secret waits"
    );
    assert_eq!(tell(&delta("-good\\\"}")), said("{\"a\":\"sk-very-good\"}"));
}

#[test]
fn arguments_with_ambiguous_json_are_kept_as_they_came() {
    let start = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"pay","input":{"s": "\ud800", "n": 1.0}}}"#;
    let (attempt, heard) = read(&[start, STOP, &END.replace("end_turn", "tool_use"), OVER]);
    let AttemptOutcome::Answered(answer) = attempt else {
        panic!("{attempt:?}")
    };
    assert_eq!(
        answer.calls[0].arguments_text,
        r#"{"s": "\ud800", "n": 1.0}"#
    );
    assert_eq!(answer.raw["content"][0].get("input"), None);
    heard.assert_adds_up_to(&answer);
}

#[test]
fn held_bytes_of_an_answer_are_counted() {
    let mut stream = MessageStreamReader::new(&cleaner());
    let heard = CollectingSink::default();
    let delta = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x".repeat(5000)}});
    for data in [START, &delta.to_string()] {
        let event = SseEvent {
            name: String::new(),
            data: data.to_owned(),
        };
        let _ = stream
            .read_event(&event, &mut PieceEmitter::new(&heard))
            .unwrap();
    }
    assert!(
        (5000..5200).contains(&stream.held_bytes()),
        "{}",
        stream.held_bytes()
    );
}
