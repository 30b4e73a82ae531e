//! What one model protocol adds to an endpoint: how a question is written and how an answer is read. Pure: nothing in an
//! implementation does I/O or knows the time, so that an answer depends on nothing but the bytes that came.

use std::time::Duration;

use http::HeaderName;
use serde_json::{Map, Value};

use super::clean::Cleaner;
use super::sse::Event;
use super::{Answer, Piece, Prompt, Sink};

/// A protocol.
pub(super) trait Protocol: Send + Sync + 'static {
    /// What reads a streamed answer.
    type Reading: Reading;
    /// What follows `base_url` in the address.
    const PATH: &'static str;
    /// The members of a request's body that are ours: a configuration may not set them.
    const OURS: &'static [&'static str];
    /// The headers of each request (names in lower case), beside the key and what HTTP needs.
    const HEADERS: &'static [(&'static str, &'static str)];
    /// The ways to ask, best first; the next is tried where an endpoint says that it does not take one.
    const MANNERS: &'static [Manner];

    /// The header that carries the key.
    fn key(key: &str) -> (HeaderName, String);

    /// The body of a request; `extra` is what the configuration merges into it.
    ///
    /// # Errors
    /// When it cannot be written as JSON, which no prompt is known to cause.
    fn body(
        prompt: &Prompt,
        model: &str,
        extra: &Map<String, Value>,
        manner: Manner,
        thoughts: Thoughts,
    ) -> serde_json::Result<String>;

    /// Whether the words of a refusal are about what the model thought earlier, as the conversation has it.
    fn is_about_thoughts(_said: &str) -> bool {
        false
    }

    /// Reads an answer that came in one piece. What cannot be read may have been cut, so it is asked for again.
    fn whole(body: &str, cleaner: &Cleaner) -> Attempt;

    /// Reads an answer that comes as events.
    fn reading(cleaner: &Cleaner) -> Self::Reading;
}

/// A streamed answer while it comes.
pub(super) trait Reading: Send {
    /// Takes the next event, and tells what it adds.
    ///
    /// # Errors
    /// What became of the attempt, when the event ends it without an answer.
    fn event(&mut self, event: &Event, telling: &mut Telling<'_>) -> Result<Progress, Attempt>;

    /// How many bytes are held of the answer, about.
    fn held(&self) -> usize;

    /// Nothing more comes, in good order: tells what is left to tell, and says what the answer is, if it is one.
    fn finish(self, telling: &mut Telling<'_>) -> Attempt;
}

/// Whether a stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More is to come.
    GoesOn,
    /// Its end marker came.
    Ended,
}

/// How an answer is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// As a stream, with its usage at the end.
    Counted,
    /// As a stream.
    Streamed,
    /// In one piece.
    Whole,
}

/// What of the model's earlier thinking is sent back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thoughts {
    /// All of it, as it came.
    Kept,
    /// None: the endpoint does not take it any more.
    Left,
}

/// What became of one attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    /// There is an answer.
    Answered(Box<Answer>),
    /// Another attempt may go better, after this time if the endpoint said one.
    Again(String, Option<Duration>),
    /// The endpoint does not take the manner in which it was asked, or what the model thought earlier.
    Plainer(String),
    /// It would fail again.
    Failed(String),
}

/// How many calls an answer may hold: one with more is none, and no more of it is read.
pub(super) const CALLS: usize = 256;

/// What an answer with more calls than [`CALLS`] amounts to, in words.
pub(super) fn too_many_calls() -> String {
    format!("it asked for more than {CALLS} calls")
}

/// Another attempt may go better.
pub(super) fn again(why: &str) -> Attempt {
    Attempt::Again(why.to_owned(), None)
}

/// Tells a sink of one answer, over all attempts to get it.
pub(super) struct Telling<'s> {
    sink: &'s dyn Sink,
    told: bool,
}

impl<'s> Telling<'s> {
    /// Nothing was told yet.
    pub(super) fn new(sink: &'s dyn Sink) -> Self {
        Self { sink, told: false }
    }

    /// More of the text.
    pub(super) fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.piece(Piece::Text(text));
        }
    }

    /// The name of a call.
    pub(super) fn named(&mut self, call: usize, name: &str) {
        self.piece(Piece::Named { call, name });
    }

    /// More of a call's arguments.
    pub(super) fn arguments(&mut self, call: usize, text: &str) {
        if !text.is_empty() {
            self.piece(Piece::Arguments { call, text });
        }
    }

    /// Takes back what was told, if anything was.
    pub(super) fn reset(&mut self) {
        if std::mem::take(&mut self.told) {
            self.sink.piece(Piece::Reset);
        }
    }

    fn piece(&mut self, piece: Piece<'_>) {
        self.told = true;
        self.sink.piece(piece);
    }
}
