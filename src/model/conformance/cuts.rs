//! Tests that a stream gives the same answer wherever its bytes are cut, and no other answer where
//! it ends early.

use std::sync::Arc;

use super::traffic::{RecordedReply, Traffic};
use super::{KEY, Provider};
use crate::model::Answer;
use crate::model::anthropic::Messages;
use crate::model::clean::Cleaner;
use crate::model::openai::ChatCompletions;
use crate::model::openai_responses::Responses;
use crate::model::protocol::{
    AttemptOutcome, PieceEmitter, Protocol, StreamReader as _, StreamState,
};
use crate::model::test_sinks::CollectingSink;
use crate::net::sse::Decoder;
use crate::secret::{Redactor, Secret};

/// Reads a stream whose bytes arrive in `pieces`. Returns the answer, or the problem that prevented
/// an answer. Also returns the sink, which holds everything that the reader emitted.
fn read<P: Protocol>(pieces: &[&[u8]]) -> (Result<Answer, String>, CollectingSink) {
    let cleaner = Cleaner(Arc::new(Redactor::new([(
        "KEY",
        &Secret::new(KEY.to_owned()),
    )])));
    let (mut decoder, mut reading, heard) = (
        Decoder::new(64 * 1024),
        P::StreamReader::new(&cleaner),
        CollectingSink::default(),
    );
    let mut emitter = PieceEmitter::new(&heard);
    let mut broken = None;
    let events = pieces.iter().flat_map(|piece| decoder.push(piece).unwrap());
    let mut events: Vec<_> = events.collect();
    events.extend(decoder.finish());
    for event in events {
        match reading.read_event(&event, &mut emitter) {
            Ok(StreamState::Open) => {}
            Ok(StreamState::Ended) => break,
            Err(attempt) => {
                broken = Some(attempt);
                break;
            }
        }
    }
    let answer = match broken.unwrap_or_else(|| reading.finish(&mut emitter)) {
        AttemptOutcome::Answered(answer) => Ok(*answer),
        AttemptOutcome::Retry(why, _)
        | AttemptOutcome::RetrySimpler(why, _)
        | AttemptOutcome::Failed(why) => Err(why.into_owned()),
    };
    (answer, heard)
}

fn is_the_same_wherever_it_is_cut<P: Protocol>(provider: Provider) {
    for case in provider.cases() {
        let traffic = Traffic::of(provider.name(), case.name);
        let Some(stream) = traffic.answers.iter().find_map(RecordedReply::stream) else {
            continue;
        };
        let (answer, heard) = read::<P>(&[stream.as_bytes()]);
        if let Ok(answer) = &answer {
            heard.assert_adds_up_to(answer);
        }
        for (end, _) in stream.match_indices('\n') {
            let (cut, _) = read::<P>(&[&stream.as_bytes()[..end]]);
            assert!(cut.is_err() || cut == answer, "{} up to {end}", case.name);
        }
        let (trimmed, _) = read::<P>(&[stream.trim_end().as_bytes()]);
        assert_eq!(trimmed, answer, "{} without its last line ends", case.name);
        for size in 1..30 {
            let pieces: Vec<_> = stream.as_bytes().chunks(size).collect();
            let (same, again) = read::<P>(&pieces);
            assert_eq!(same, answer, "{} in pieces of {size}", case.name);
            let (told, again) = (heard.collected(), again.collected());
            assert_eq!(
                (told.text, told.calls),
                (again.text, again.calls),
                "{} in pieces of {size}",
                case.name
            );
        }
    }
}

#[test]
fn chat_completions_stream_is_the_same_wherever_it_is_cut() {
    is_the_same_wherever_it_is_cut::<ChatCompletions>(Provider::OpenAi);
}

#[test]
fn responses_stream_is_the_same_wherever_it_is_cut() {
    is_the_same_wherever_it_is_cut::<Responses>(Provider::Responses);
}

#[test]
fn messages_stream_is_the_same_wherever_it_is_cut() {
    is_the_same_wherever_it_is_cut::<Messages>(Provider::Anthropic);
}
