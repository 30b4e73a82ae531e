//! The part of an endpoint that depends on the model protocol: writing a request and reading an
//! answer. Implementations are pure: no I/O and no clock, so that an answer depends only on the
//! received bytes.

use std::time::Duration;

use http::HeaderName;
use serde_json::{Map, Value};

use super::clean::Cleaner;
use super::{Answer, Piece, Prompt, Sink};
use crate::net::sse::Event;

pub(super) trait Protocol: Send + Sync + 'static {
    /// The reader of a streamed answer.
    type Reading: Reading;
    /// The base URL to use if none is configured: the provider's own.
    const BASE_URL: &'static str;
    /// Appended to `base_url`.
    const PATH: &'static str;
    /// The members of a request's body that a configuration may not set.
    const OURS: &'static [&'static str];
    /// The fixed headers of each request (names in lower case), in addition to the key's header and
    /// those of HTTP itself.
    const HEADERS: &'static [(&'static str, &'static str)];
    /// The manners of asking, best first. If an endpoint refuses a manner, the next one is tried.
    const MANNERS: &'static [Manner];

    /// Returns the name and value of the header that carries the key.
    fn key(key: &str) -> (HeaderName, String);

    /// Writes the request body. `extra` holds further members from the configuration.
    ///
    /// # Errors
    /// When the body cannot be written as JSON, which no prompt is known to cause.
    fn body(
        prompt: &Prompt,
        model: &str,
        extra: &Map<String, Value>,
        manner: Manner,
        thoughts: Thoughts,
    ) -> serde_json::Result<String>;

    /// Whether the endpoint's error text `said` is about thinking of earlier turns that the request
    /// contained. If so, the request is repeated without that thinking.
    fn is_about_thoughts(_said: &str) -> bool {
        false
    }

    /// Reads an unstreamed answer. An unreadable answer may have been truncated, so the attempt is
    /// repeated.
    fn whole(body: &str, cleaner: &Cleaner) -> Attempt;

    /// Creates a reader for a streamed answer.
    fn reading(cleaner: &Cleaner) -> Self::Reading;
}

/// A streamed answer while it arrives.
pub(super) trait Reading: Send {
    /// Takes the next event and emits the pieces it adds.
    ///
    /// # Errors
    /// The outcome of the attempt, when the event ends it without an answer.
    fn event(&mut self, event: &Event, telling: &mut Telling<'_>) -> Result<Progress, Attempt>;

    /// Returns the approximate number of bytes held in memory.
    fn held(&self) -> usize;

    /// Emits the remaining pieces and returns the outcome. To be called when the stream has ended
    /// without an error.
    fn finish(self, telling: &mut Telling<'_>) -> Attempt;
}

/// Whether a stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    GoesOn,
    /// The end marker came.
    Ended,
}

/// How to ask for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// As a stream with usage at the end.
    Counted,
    /// As a stream, without usage.
    Streamed,
    /// As one body instead of a stream.
    Whole,
}

/// Whether the model's earlier thinking is sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thoughts {
    /// All of the thinking is sent back, unchanged.
    Kept,
    /// No thinking is sent back, because the endpoint refused it.
    Left,
}

/// The outcome of one attempt. The strings are problem texts for people.
#[derive(Debug)]
pub(super) enum Attempt {
    Answered(Box<Answer>),
    /// A repetition may succeed, after this wait if the endpoint named one.
    Again(String, Option<Duration>),
    /// The endpoint refused the manner of asking, or the model's earlier thinking: a simpler
    /// request may succeed.
    Plainer(String),
    /// A repetition would fail too.
    Failed(String),
}

/// The maximum number of calls in an answer. An answer with more calls is rejected and not read any
/// further.
pub(super) const CALLS: usize = 256;

/// Returns the problem text for an answer with more than [`CALLS`] calls.
pub(super) fn too_many_calls() -> String {
    format!("it asked for more than {CALLS} calls")
}

/// Returns a failed attempt that may succeed when repeated.
pub(super) fn again(why: &str) -> Attempt {
    Attempt::Again(why.to_owned(), None)
}

/// Emits the pieces of one answer to a sink, across all attempts.
pub(super) struct Telling<'s> {
    sink: &'s dyn Sink,
    told: bool,
}

impl<'s> Telling<'s> {
    pub(super) fn new(sink: &'s dyn Sink) -> Self {
        Self { sink, told: false }
    }

    pub(super) fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.piece(Piece::Text(text));
        }
    }

    pub(super) fn named(&mut self, call: usize, name: &str) {
        self.piece(Piece::Named { call, name });
    }

    pub(super) fn arguments(&mut self, call: usize, text: &str) {
        if !text.is_empty() {
            self.piece(Piece::Arguments { call, text });
        }
    }

    /// Voids all pieces that were emitted so far, if any.
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
