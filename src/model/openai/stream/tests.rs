//! Tests of streams as endpoints send them. Each stream is cut at every position.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::test_sinks::{Collected, CollectingSink};
use crate::model::{Answer, DiscardingSink};
use crate::net::sse::Decoder;
use crate::secret::{Redactor, Secret};
use crate::task::item::{FinishReason, Usage};

mod wild;

fn cleaner() -> Cleaner {
    let key = Secret::new("sk-very-secret".to_owned());
    Cleaner(Arc::new(Redactor::new([("KEY", &key)])))
}

fn delta(delta: Value) -> Value {
    let mut chunk = json!({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": null}],
        "usage": null});
    chunk["choices"][0]["delta"] = delta;
    chunk
}

fn finish(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn used() -> Value {
    json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}})
}

fn call(fragment: Value) -> Value {
    delta(Value::Object(Map::from_iter([(
        "tool_calls".to_owned(),
        Value::Array(vec![fragment]),
    )])))
}

fn events(chunks: &[Value]) -> String {
    chunks
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect::<Vec<_>>()
        .concat()
}

fn stream(chunks: &[Value]) -> String {
    events(chunks) + "data: [DONE]\n\n"
}

/// Reads a stream that arrives in these pieces. On failure, returns the reason, and whether the
/// outcome is [`AttemptOutcome::Retry`].
fn read<'p>(
    pieces: impl IntoIterator<Item = &'p [u8]>,
    heard: &CollectingSink,
) -> Result<Answer, (String, bool)> {
    let (mut decoder, mut emitter) = (Decoder::new(1 << 20), PieceEmitter::new(heard));
    let mut reading = ChatStreamReader::new(&cleaner());
    let mut end = None;
    'read: for piece in pieces {
        for event in decoder.push(piece).unwrap() {
            match reading.read_event(&event, &mut emitter) {
                Ok(StreamState::Open) => {}
                Ok(StreamState::Ended) => break 'read,
                Err(attempt) => {
                    end = Some(attempt);
                    break 'read;
                }
            }
        }
    }
    match end.unwrap_or_else(|| reading.finish(&mut emitter)) {
        AttemptOutcome::Answered(answer) => Ok(*answer),
        AttemptOutcome::Retry(why, _) => Err((why.into_owned(), true)),
        AttemptOutcome::Failed(why) | AttemptOutcome::RetrySimpler(why, _) => {
            Err((why.into_owned(), false))
        }
    }
}

/// Returns the answer of a stream. Asserts that the answer is the same wherever the stream is cut,
/// and that the emitted pieces add up to the answer.
fn answered(stream: &str) -> (Answer, Collected) {
    let (stream, heard) = (stream.as_bytes(), CollectingSink::default());
    let answer = read([stream], &heard).unwrap_or_else(|(why, _)| panic!("{why}"));
    heard.assert_adds_up_to(&answer);
    for cut in 0..=stream.len() {
        let (before, after) = stream.split_at(cut);
        let heard = CollectingSink::default();
        assert_eq!(read([before, after], &heard).as_ref(), Ok(&answer), "{cut}");
        heard.assert_adds_up_to(&answer);
    }
    let again = CollectingSink::default();
    assert_eq!(read(stream.chunks(1), &again).as_ref(), Ok(&answer));
    again.assert_adds_up_to(&answer);
    (answer, heard.collected())
}

fn calls(answer: &Answer) -> Vec<(&str, &str, &str)> {
    let read = answer.calls.iter();
    read.map(|call| {
        (
            call.provider_id.as_str(),
            call.name.as_str(),
            call.arguments_text.as_str(),
        )
    })
    .collect()
}

fn why(stream: &str) -> (String, bool) {
    read([stream.as_bytes()], &CollectingSink::default()).expect_err("it is no answer")
}

#[test]
fn last_of_equal_members_of_a_chunk_counts() {
    let choices = |text: &str| format!(r#""choices": [{{"delta": {{"content": "{text}"}}}}]"#);
    let (first, last) = (choices("no"), choices("yes"));
    let twice = format!("data: {{{first}, \"id\": 1, \"id\": [], {last}}}\n\n");
    let (answer, _) = answered(&(twice + &stream(&[finish("stop")])));
    assert_eq!(answer.text.as_deref(), Some("yes"));
}

#[test]
fn chunk_with_a_broken_member_that_is_not_read_is_retried() {
    let broken = r#"data: {"choices": [{"delta": {"content": "no"}}], "id": {"a" 1}}"#;
    let (reason, retried) = why(&format!("{broken}\n\n{}", stream(&[finish("stop")])));
    assert_eq!(reason, "a part of its answer is not complete JSON");
    assert!(retried);
}

#[test]
fn text_comes_in_pieces_with_its_usage_at_the_end() {
    let (answer, told) = answered(&stream(&[
        delta(json!({"role": "assistant", "content": "", "refusal": null})),
        delta(json!({"content": "Grüß"})),
        delta(json!({"content": " dich 😀"})),
        finish("stop"),
        used(),
    ]));
    assert_eq!(answer.text.as_deref(), Some("Grüß dich 😀"));
    assert_eq!(answer.finish_reason, FinishReason::Stop);
    assert_eq!(
        answer.usage,
        Usage {
            prompt_tokens: 5,
            completion_tokens: 6,
            total_tokens: 11
        }
    );
    assert_eq!(
        answer.raw,
        json!({"role": "assistant", "content": "Grüß dich 😀", "refusal": null})
    );
    assert_eq!((told.pieces, told.resets), (2, 0));
}

#[test]
fn interleaved_calls_are_put_together_by_their_index() {
    let (answer, told) = answered(&stream(&[
        delta(json!({"role": "assistant", "content": null})),
        call(
            json!({"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": ""}}),
        ),
        delta(json!({"tool_calls": [
            {"index": 0, "function": {"arguments": "{\"or"}},
            {"index": 1, "id": "b", "type": "function", "x": {"y": 1}, "function": {"name": "pay", "arguments": "{ "}}]})),
        call(json!({"index": 1, "function": {"arguments": "\"n\": 1 "}})),
        call(json!({"index": 0, "function": {"arguments": "der\":7}"}})),
        call(json!({"index": 1, "function": {"arguments": "}"}})),
        finish("tool_calls"),
        used(),
    ]));
    assert_eq!(
        calls(&answer),
        [("a", "look", "{\"order\":7}"), ("b", "pay", "{ \"n\": 1 }")]
    );
    assert_eq!(
        (answer.text, answer.finish_reason),
        (None, FinishReason::ToolCalls)
    );
    assert_eq!(
        answer.raw,
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{\"order\":7}"}},
            {"id": "b", "type": "function", "x": {"y": 1}, "function": {"name": "pay", "arguments": "{ \"n\": 1 }"}}]})
    );
    assert_eq!((told.pieces, told.resets), (7, 0));
}

#[test]
fn pieces_are_reported_as_soon_as_they_come() {
    let heard = CollectingSink::default();
    let mut emitter = PieceEmitter::new(&heard);
    let mut reading = ChatStreamReader::new(&cleaner());
    let mut after = |chunk: Value| {
        let event = SseEvent {
            name: String::new(),
            data: chunk.to_string(),
        };
        assert_eq!(
            reading.read_event(&event, &mut emitter).unwrap(),
            StreamState::Open
        );
        let told = heard.collected();
        (
            told.text,
            told.calls.into_values().next().unwrap_or_default(),
        )
    };
    let owned = |text: &str, name: &str, arguments: &str| {
        (text.to_owned(), (name.to_owned(), arguments.to_owned()))
    };
    assert_eq!(
        after(delta(json!({"content": "Hm, my key is sk-very"}))),
        owned("Hm, my key is ", "", "")
    );
    assert_eq!(
        after(delta(json!({"content": " nice"}))),
        owned("Hm, my key is sk-very nice", "", "")
    );
    let name = json!({"index": 0, "id": "a", "function": {"name": "pay"}});
    assert_eq!(
        after(call(name)),
        owned("Hm, my key is sk-very nice", "pay", "")
    );
    let some = json!({"index": 0, "function": {"arguments": "{\"n\":1, \"s\":\"\\u00"}});
    assert_eq!(
        after(call(some)),
        owned("Hm, my key is sk-very nice", "pay", "{\"n\":1, \"s\":\"")
    );
}

#[test]
fn secret_and_u0000_are_found_wherever_they_are_cut() {
    let (answer, told) = answered(&stream(&[
        delta(json!({"content": "a\0 sk-ve", "reasoning": "x sk-very-secret"})),
        delta(json!({"content": "ry-secret, sk-very"})),
        call(
            json!({"index": 0, "id": "i\0", "function": {"name": "n\0", "arguments": "{\"a\":\"\\u00"}}),
        ),
        call(json!({"index": 0, "function": {"arguments": "00 sk-very-"}})),
        call(json!({"index": 0, "function": {"arguments": "secret\0 \\\\u0000\"}"}})),
        finish("tool_calls"),
    ]));
    assert_eq!(
        answer.text.as_deref(),
        Some("a\u{FFFD} [secret KEY], sk-very")
    );
    let arguments = "{\"a\":\"\\ufffd [secret KEY]\u{FFFD} \\\\u0000\"}";
    assert_eq!(calls(&answer), [("i\u{FFFD}", "n\u{FFFD}", arguments)]);
    assert_eq!(answer.raw["reasoning"], "x [secret KEY]");
    assert_eq!(
        answer.raw["tool_calls"][0]["function"]["arguments"],
        arguments
    );
    assert!(!format!("{told:?}{answer:?}").contains("sk-very-secret"));
}

#[test]
fn stream_without_a_finish_reason_is_no_answer() {
    let said = [delta(json!({"content": "hello"}))];
    let with = |chunk: Value| [said[0].clone(), chunk];
    let ended = "its answer ended without a finish_reason".to_owned();
    for cut in [
        "",
        ": waiting\n\n",
        &events(&said),
        &stream(&said),
        &stream(&with(used())),
    ] {
        assert_eq!(why(cut), (ended.clone(), true), "{cut}");
    }
    let empty = json!({"choices": [{"delta": {"content": "x"}, "finish_reason": ""}]});
    assert_eq!(why(&stream(&[empty])), (ended, true));
}

#[test]
fn stream_without_the_end_marker_is_no_answer() {
    let chunks = [delta(json!({"content": "hello"})), finish("stop"), used()];
    for whole in 2..=3 {
        assert_eq!(
            why(&events(&chunks[..whole])),
            ("its answer ended without its end marker".to_owned(), true)
        );
        assert_eq!(
            answered(&stream(&chunks[..whole])).0.text.as_deref(),
            Some("hello")
        );
    }
    let some =
        |text: &str| json!({"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]});
    assert_eq!(
        answered(&stream(&[some("a"), some("b")])).0.text.as_deref(),
        Some("ab")
    );
}

#[test]
fn error_in_a_stream_is_retried_unless_the_request_is_invalid() {
    let begun = events(&[delta(json!({"content": "a"}))]);
    for (error, again) in [
        (
            "data: {\"error\":{\"message\":\"sk-very-secret\",\"type\":\"server_error\",\"code\":null}}\n\n",
            true,
        ),
        (
            "data: {\"error\":{\"message\":\"m\",\"code\":502}}\n\n",
            true,
        ),
        ("data: {\"error\":\"m\"}\n\n", true),
        ("event: error\ndata: {\"message\":\"m\"}\n\n", true),
        ("event: error\ndata: down\n\n", true),
        (
            "data: {\"object\":\"error\",\"message\":\"m\",\"code\":\"429\"}\n\n",
            true,
        ),
        (
            "data: {\"choices\":[{\"delta\":{\"content\":\"\"},\"error\":{\"message\":\"m\",\"code\":503}}]}\n\n",
            true,
        ),
        (
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"error\"}]}\n\n",
            true,
        ),
        (
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"network_error\"}]}\n\n",
            true,
        ),
        ("data: {\"choi\n\n", true),
        ("data: []\n\n", true),
        (
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":{}}}]}\n\n",
            true,
        ),
        (
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":[7]}}]}\n\n",
            true,
        ),
        (
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"id\":\"a\"}]},\"finish_reason\":\"stop\"}]}\n\n",
            true,
        ),
        (
            "data: {\"error\":{\"message\":\"m\",\"code\":400}}\n\n",
            false,
        ),
        (
            "data: {\"error\":{\"message\":\"m\",\"code\":\"insufficient_quota\"}}\n\n",
            false,
        ),
        (
            "data: {\"error\":{\"message\":\"m\",\"type\":\"invalid_request_error\",\"code\":\"x\"}}\n\n",
            false,
        ),
    ] {
        let (why, worth) = why(&(begun.clone() + error + &stream(&[finish("stop")])));
        assert_eq!(worth, again, "{error}: {why}");
        assert!(!why.contains("sk-very-secret"));
    }
    let empty = json!({"error": {}, "choices": [{"delta": {"content": "x"}, "error": null, "finish_reason": "stop"}]});
    assert_eq!(answered(&stream(&[empty])).0.text.as_deref(), Some("x"));
}

#[test]
fn stream_that_ended_for_length_or_by_a_filter_says_so() {
    for (said, read) in [
        ("length", FinishReason::Length),
        ("content_filter", FinishReason::ContentFilter),
    ] {
        let (answer, _) = answered(&stream(&[
            call(
                json!({"index": 0, "id": "a", "function": {"name": "pay", "arguments": "{\"amount\": 12"}}),
            ),
            finish(said),
        ]));
        assert_eq!(
            (calls(&answer), answer.finish_reason),
            (vec![("a", "pay", "{\"amount\": 12")], read)
        );
    }
}

#[test]
fn held_bytes_of_an_answer_are_counted() {
    let held = |chunk: Value| {
        let mut reading = ChatStreamReader::new(&cleaner());
        let event = SseEvent {
            name: String::new(),
            data: chunk.to_string(),
        };
        reading
            .read_event(&event, &mut PieceEmitter::new(&DiscardingSink))
            .unwrap();
        reading.held_bytes()
    };
    let long = "x".repeat(1000);
    for chunk in [
        delta(json!({"content": long})),
        delta(json!({"content": [{"type": "image", "data": long}]})),
        delta(json!({"reasoning": long})),
        delta(json!({"deep": [{"a": long}]})),
        call(json!({"function": {"arguments": long}})),
        call(json!({"id": long})),
        call(json!({"x": long})),
        call(json!({})),
    ] {
        assert!((1000..3000).contains(&held(chunk.clone())), "{chunk}");
    }
    assert_eq!(held(finish("stop")), 0);
}

fn fragments() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec![
        "",
        "sk-very",
        "-secret",
        "a\"\\u0000",
        "\\",
        "u0000é",
        "{}",
        "{\"n\":1}",
        " 😀",
    ]);
    let name = prop::option::of(prop::sample::select(vec!["", "pay", "look", "_up"]));
    let id = prop::option::of(prop::sample::select(vec!["", "a", "b"]));
    let index = prop::option::of(0..3_u8);
    let call = (index, id, name, prop::option::of(text.clone())).prop_map(|(index, id, name, arguments)| {
        call(json!({"index": index, "id": id, "function": {"name": name, "arguments": arguments}}))
    });
    prop_oneof![
        call,
        text.clone()
            .prop_map(|text| delta(json!({"content": text}))),
        text.clone()
            .prop_map(|text| delta(json!({"refusal": text}))),
        text.clone().prop_map(|text| delta(
            json!({"content": [{"type": "text", "text": text}, {"type": "x"}]})
        )),
        text.prop_map(|text| delta(json!({"reasoning": text}))),
    ]
}

proptest! {
    #[test]
    fn reported_pieces_add_up_to_the_answer_for_any_stream(
        chunks in prop::collection::vec(fragments(), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let stream = stream(&[chunks, vec![finish("stop")]].concat());
        let heard = CollectingSink::default();
        let answer = read([stream.as_bytes()], &heard).unwrap();
        heard.assert_adds_up_to(&answer);
        let shows_the_key = format!("{answer:?}").contains("sk-very-secret");
        prop_assert!(!shows_the_key);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let heard = CollectingSink::default();
        let pieces = cuts.windows(2).map(|cut| &stream.as_bytes()[cut[0]..cut[1]]);
        prop_assert_eq!(read(pieces, &heard), Ok(answer.clone()));
        heard.assert_adds_up_to(&answer);
    }
}
