//! Tests of the limit of 256 calls in one answer.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{KEY, Provider};
use crate::model::anthropic::Messages;
use crate::model::clean::Cleaner;
use crate::model::openai::ChatCompletions;
use crate::model::openai_responses::Responses;
use crate::model::protocol::{
    AttemptOutcome, PieceEmitter, Protocol, StreamReader as _, StreamState,
};
use crate::model::test_sinks::CollectingSink;
use crate::net::sse::SseEvent;
use crate::secret::{Redactor, Secret};

const TOO_MANY: &str = "it asked for more than 256 calls";

fn cleaner() -> Cleaner {
    Cleaner(Arc::new(Redactor::new([(
        "KEY",
        &Secret::new(KEY.to_owned()),
    )])))
}

fn function(call: usize) -> Value {
    json!({"type": "function_call", "call_id": format!("c{call}"), "name": "pay", "arguments": "{}"})
}

fn events(provider: Provider, call: usize) -> Vec<Value> {
    match provider {
        Provider::OpenAi => vec![json!({"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": call, "id": format!("c{call}"), "function": {"name": "pay", "arguments": "{}"}}]}}]})],
        Provider::Responses => vec![
            json!({"type": "response.output_item.added", "output_index": call, "item": function(call)}),
            json!({"type": "response.output_item.done", "output_index": call, "item": function(call)}),
        ],
        Provider::Anthropic => vec![
            json!({"type": "content_block_start", "index": call,
                "content_block": {"type": "tool_use", "id": format!("c{call}"), "name": "pay", "input": {}}}),
            json!({"type": "content_block_stop", "index": call}),
        ],
    }
}

fn end(provider: Provider) -> Vec<String> {
    match provider {
        Provider::OpenAi => vec![
            json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
                .to_string(),
            "[DONE]".to_owned(),
        ],
        Provider::Responses => {
            vec![json!({"type": "response.completed", "response": {"output": []}}).to_string()]
        }
        Provider::Anthropic => vec![
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}).to_string(),
            json!({"type": "message_stop"}).to_string(),
        ],
    }
}

fn whole(provider: Provider, calls: usize) -> String {
    let calls = (0..calls).map(|call| match provider {
        Provider::OpenAi => {
            json!({"id": format!("c{call}"), "function": {"name": "pay", "arguments": "{}"}})
        }
        Provider::Responses => function(call),
        Provider::Anthropic => {
            json!({"type": "tool_use", "id": format!("c{call}"), "name": "pay", "input": {}})
        }
    });
    let calls: Vec<_> = calls.collect();
    let body = match provider {
        Provider::OpenAi => {
            json!({"choices": [{"index": 0, "message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]})
        }
        Provider::Responses => json!({"status": "completed", "output": calls}),
        Provider::Anthropic => json!({"content": calls, "stop_reason": "tool_use"}),
    };
    body.to_string()
}

/// Returns the number of calls in an answer, or the error of a failed attempt. Panics if the
/// outcome asks for a repetition of the attempt.
fn counted(attempt: AttemptOutcome) -> Result<usize, String> {
    match attempt {
        AttemptOutcome::Answered(answer) => Ok(answer.calls.len()),
        AttemptOutcome::Failed(why) => Err(why.into_owned()),
        AttemptOutcome::Retry(why, _) | AttemptOutcome::RetrySimpler(why, _) => {
            panic!("it would be asked again: {why}")
        }
    }
}

/// Reads a stream with `calls` calls until the stream ends or a call causes an error. The first
/// result is the number of calls that were read, including the call that caused the error. The
/// second result is the number of calls in the answer, or the error.
fn streamed<P: Protocol>(provider: Provider, calls: usize) -> (usize, Result<usize, String>) {
    let (heard, mut reading) = (CollectingSink::default(), P::StreamReader::new(&cleaner()));
    let mut emitter = PieceEmitter::new(&heard);
    let mut take = |data: String, emitter: &mut PieceEmitter<'_>| {
        reading.read_event(
            &SseEvent {
                name: String::new(),
                data,
            },
            emitter,
        )
    };
    for call in 0..calls {
        for event in events(provider, call) {
            match take(event.to_string(), &mut emitter) {
                Ok(progress) => assert_eq!(progress, StreamState::Open),
                Err(attempt) => return (call + 1, counted(attempt)),
            }
        }
    }
    for event in end(provider) {
        let _ = take(event, &mut emitter).unwrap();
    }
    (calls, counted(reading.finish(&mut emitter)))
}

fn is_bounded<P: Protocol>(provider: Provider) {
    assert_eq!(streamed::<P>(provider, 256), (256, Ok(256)));
    assert_eq!(
        streamed::<P>(provider, 60_000),
        (257, Err(TOO_MANY.to_owned())),
        "the rest is not read"
    );
    assert_eq!(
        counted(P::read_unstreamed(&whole(provider, 256), &cleaner())),
        Ok(256)
    );
    assert_eq!(
        counted(P::read_unstreamed(&whole(provider, 257), &cleaner())),
        Err(TOO_MANY.to_owned())
    );
}

#[test]
fn chat_completions_answer_with_257_calls_is_refused_and_read_no_further() {
    is_bounded::<ChatCompletions>(Provider::OpenAi);
}

#[test]
fn responses_answer_with_257_calls_is_refused_and_read_no_further() {
    is_bounded::<Responses>(Provider::Responses);
}

#[test]
fn messages_answer_with_257_calls_is_refused_and_read_no_further() {
    is_bounded::<Messages>(Provider::Anthropic);
}

#[test]
fn chunk_with_60000_calls_is_read_up_to_call_257() {
    let calls: Vec<_> = (0..60_000)
        .map(|call| json!({"index": call, "function": {"name": "pay"}}))
        .collect();
    let chunk = json!({"choices": [{"index": 0, "delta": {"tool_calls": calls}}]});
    let (heard, mut reading) = (
        CollectingSink::default(),
        <ChatCompletions as Protocol>::StreamReader::new(&cleaner()),
    );
    let event = SseEvent {
        name: String::new(),
        data: chunk.to_string(),
    };
    let ended = reading
        .read_event(&event, &mut PieceEmitter::new(&heard))
        .unwrap_err();
    assert_eq!(counted(ended), Err(TOO_MANY.to_owned()));
    assert_eq!(heard.collected().calls.len(), 257);
}
