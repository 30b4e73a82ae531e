//! Declares the part of an endpoint that depends on the model protocol: writing a request and
//! reading an answer. Implementations are pure (no I/O and no clock), so that an answer depends
//! only on the received bytes.

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::Duration;

use http::HeaderName;
use serde_json::{Map, Value, json};

use super::clean::Cleaner;
use super::{Answer, Piece, PieceSink, Prompt};
use crate::net::sse::SseEvent;

pub(super) trait Protocol: Send + Sync + 'static {
    type StreamReader: StreamReader;
    /// The provider's own base URL, which is used if none is configured.
    const BASE_URL: &'static str;
    /// The path that is appended to `base_url`.
    const PATH: &'static str;
    /// The members of a request's body that a configuration may not set.
    const RESERVED_MEMBERS: &'static [&'static str];
    /// The fixed headers of each request (names in lower case). The header that carries the key and
    /// the headers of HTTP itself are not included.
    const HEADERS: &'static [(&'static str, &'static str)];
    /// The request modes in order of preference. If an endpoint refuses a mode, the client tries
    /// the next mode.
    const REQUEST_MODES: &'static [RequestMode];

    fn key_header(key: &str) -> (HeaderName, String);

    /// Writes the request body.
    ///
    /// # Errors
    /// Fails if the body cannot be written as JSON. No known prompt causes this.
    fn body(parts: &BodyParts<'_>) -> serde_json::Result<String>;

    /// Returns whether the endpoint's error text complains about the earlier thinking that the
    /// request sends back, or about a member that may contain it. If so, the client repeats the
    /// request without this thinking.
    fn is_about_thinking(_error_text: &str) -> bool {
        false
    }

    /// Reads an unstreamed answer. If the answer cannot be read, the outcome is `Retry`, because
    /// the answer may have been truncated.
    fn read_unstreamed(body: &str, cleaner: &Cleaner) -> AttemptOutcome;
}

/// The parts of a request's body.
pub(super) struct BodyParts<'p> {
    pub(super) prompt: &'p Prompt,
    pub(super) model: &'p str,
    /// Further members from the configuration.
    pub(super) extra: &'p Map<String, Value>,
    pub(super) mode: RequestMode,
    pub(super) earlier_thinking: EarlierThinking,
}

impl BodyParts<'_> {
    /// Returns the members that the bodies of all protocols have.
    pub(super) fn common_members(&self) -> Map<String, Value> {
        let mut members = self.extra.clone();
        members.insert("model".to_owned(), json!(self.model));
        if self.mode != RequestMode::Unstreamed {
            members.insert("stream".to_owned(), json!(true));
        }
        members
    }

    /// Returns the agent's instructions; `None` if they are missing or blank.
    pub(super) fn instructions(&self) -> Option<&str> {
        let system = self.prompt.system.as_deref();
        system.filter(|system| !system.trim().is_empty())
    }
}

pub(super) trait StreamReader: Send {
    fn new(cleaner: &Cleaner) -> Self;

    /// Takes the next event and emits the pieces that the event adds.
    ///
    /// # Errors
    /// Fails if the event ends the attempt without an answer. The error is the outcome of the
    /// attempt.
    fn read_event(
        &mut self,
        event: &SseEvent,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<StreamState, AttemptOutcome>;

    /// Returns the approximate number of bytes held in memory.
    fn held_bytes(&self) -> usize;

    /// Emits the remaining pieces and returns the outcome. The caller calls this after the stream
    /// has ended without an error.
    fn finish(self, emitter: &mut PieceEmitter<'_>) -> AttemptOutcome;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    Open,
    /// The end marker has arrived.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestMode {
    /// The answer is a stream, and the request asks for the token counts at the end of the stream.
    StreamedWithUsage,
    /// The answer is a stream, and the request does not ask for the token counts.
    Streamed,
    /// The answer is one body instead of a stream.
    Unstreamed,
}

/// Whether the model's earlier thinking is sent back to the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EarlierThinking {
    Included,
    /// No thinking is sent back, because the endpoint refused it. Over Chat Completions, any member
    /// may be thinking, so only texts and calls are sent back.
    Omitted,
}

/// The part of a request that an endpoint refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusedPart {
    EarlierThinking,
    /// The parameter `stream` or `stream_options`, which the refusal names.
    StreamParameter,
    /// Possibly the request mode: the refusal mentions streaming, but names no parameter.
    PossiblyStreaming,
}

/// The outcome of one attempt. Each text describes a problem for people. A borrowed text has fixed
/// words, so it may be logged; an owned text may quote the endpoint.
#[derive(Debug)]
pub(super) enum AttemptOutcome {
    Answered(Box<Answer>),
    /// The attempt may succeed when it is repeated. The duration is the wait that the endpoint
    /// asked for; `None` if the endpoint asked for no wait.
    Retry(Cow<'static, str>, Option<Duration>),
    /// The endpoint refused a part of the request. A request without this part may succeed.
    RetrySimpler(Cow<'static, str>, RefusedPart),
    /// The attempt would also fail when it is repeated.
    Failed(Cow<'static, str>),
}

impl AttemptOutcome {
    /// Returns why a response with a success status has no usable answer, in fixed words that may
    /// be logged. Returns `None` for `Answered`.
    pub(super) fn loggable_reason(&self) -> Option<&'static str> {
        match self {
            Self::Answered(_) => None,
            Self::Retry(why, _) | Self::RetrySimpler(why, _) | Self::Failed(why) => match why {
                Cow::Borrowed(why) => Some(*why),
                Cow::Owned(_) => Some("it reported an error"),
            },
        }
    }
}

/// The maximum number of calls in an answer. An answer with more calls is rejected and not read any
/// further.
pub(super) const MAX_CALLS: usize = 256;

/// The problem of an answer with more than [`MAX_CALLS`] calls. The text is a static, so that an
/// [`AttemptOutcome`] can borrow it: only a borrowed text is logged.
pub(super) static TOO_MANY_CALLS: LazyLock<String> =
    LazyLock::new(|| format!("it asked for more than {MAX_CALLS} calls"));

pub(super) fn too_many_calls() -> AttemptOutcome {
    AttemptOutcome::Failed(TOO_MANY_CALLS.as_str().into())
}

/// Returns a length in bytes. If the value is a text, the length is that of the text itself;
/// otherwise it is that of the value's JSON.
pub(super) fn byte_length(value: &Value) -> usize {
    let json_length = || value.to_string().len();
    value.as_str().map_or_else(json_length, str::len)
}

pub(super) fn retryable(why: &'static str) -> AttemptOutcome {
    AttemptOutcome::Retry(why.into(), None)
}

/// Emits the pieces of one answer to a sink. All attempts at the answer share the emitter.
pub(super) struct PieceEmitter<'s> {
    sink: &'s dyn PieceSink,
    has_emitted: bool,
}

impl<'s> PieceEmitter<'s> {
    pub(super) fn new(sink: &'s dyn PieceSink) -> Self {
        Self {
            sink,
            has_emitted: false,
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.emit(Piece::Text(text));
        }
    }

    pub(super) fn call_name(&mut self, call: usize, name: &str) {
        self.emit(Piece::CallName { call, name });
    }

    pub(super) fn arguments(&mut self, call: usize, text: &str) {
        if !text.is_empty() {
            self.emit(Piece::Arguments { call, text });
        }
    }

    /// Tells the sink to discard the pieces that were emitted so far, if there are any.
    pub(super) fn reset(&mut self) {
        if std::mem::take(&mut self.has_emitted) {
            self.sink.receive(Piece::Reset);
        }
    }

    fn emit(&mut self, piece: Piece<'_>) {
        self.has_emitted = true;
        self.sink.receive(piece);
    }
}
