//! Reads an endpoint's answer. A stream of events is read as it arrives, and any other answer is
//! read as a whole. Invariant: reading is bounded in bytes and in time, and an incomplete answer is
//! rejected.

use std::sync::LazyLock;
use std::time::Duration;

use reqwest::Response;

use super::{AttemptOutcome, Endpoint, NetFailure, PieceEmitter, Protocol, net};
use crate::model::protocol::{StreamReader, StreamState, retryable};
use crate::net::sse::{Decoder, SseEvent, is_event_stream};
use crate::task::text::from_bytes;

/// The maximum length of an answer, in bytes. The limit applies to an unstreamed body, to each
/// event of a stream, and to the message that the reader of a stream collects from all events.
pub(in crate::model) const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
pub(super) const MAX_PROBLEM_BYTES: usize = 64 * 1024;
/// The maximum length of a stream, in bytes. A stream is much longer than the answer that it adds
/// up to, because every few characters come in their own JSON object.
const MAX_STREAM_BYTES: usize = 16 * MAX_ANSWER_BYTES;
/// The maximum time for a whole answer, as a multiple of the endpoint's `timeout`. The `timeout`
/// itself limits the wait for each part of the answer.
pub(super) const ANSWER_TIMEOUT_FACTOR: u32 = 10;

/// Returns whether a body looks like a stream of events. Some endpoints send a stream without
/// declaring it in the headers.
fn looks_like_stream(body: &str) -> bool {
    let begins = body.trim_start_matches(['\u{FEFF}', '\r', '\n']);
    ["data:", "event:", "id:", "retry:", ":"]
        .iter()
        .any(|field| begins.starts_with(field))
}

/// The problem of an answer that is longer than [`MAX_ANSWER_BYTES`]. An [`AttemptOutcome`] borrows
/// this static text, because the logs show borrowed texts only: an owned text may quote the
/// endpoint.
static TOO_LONG: LazyLock<String> = LazyLock::new(|| {
    let mebibytes = MAX_ANSWER_BYTES / (1024 * 1024);
    format!("its answer is longer than {mebibytes} MiB")
});

pub(super) fn too_long() -> AttemptOutcome {
    AttemptOutcome::Failed(TOO_LONG.as_str().into())
}

/// Reads one streamed answer: decodes its events and passes them to the protocol's reader.
struct EventStream<P: Protocol> {
    decoder: Decoder,
    reader: P::StreamReader,
    bytes_read: usize,
    /// The bytes received so far, until the first event arrives. They are kept because some
    /// endpoints declare a stream but send an unstreamed answer. `None` once an event has arrived,
    /// or once the stream is longer than `MAX_ANSWER_BYTES`.
    unparsed: Option<Vec<u8>>,
}

impl<P: Protocol> EventStream<P> {
    /// Takes the next bytes, and returns whether the stream is still open.
    ///
    /// # Errors
    /// Fails if these bytes end the attempt without an answer. The error is the attempt's outcome.
    fn take(
        &mut self,
        bytes: &[u8],
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<StreamState, AttemptOutcome> {
        self.bytes_read = self.bytes_read.saturating_add(bytes.len());
        let events = self.decoder.push(bytes).map_err(|_| too_long())?;
        if !events.is_empty() || self.bytes_read > MAX_ANSWER_BYTES {
            self.unparsed = None;
        }
        if let Some(unparsed) = &mut self.unparsed {
            unparsed.extend_from_slice(bytes);
        }
        for event in events {
            match self.read_event(&event, emitter)? {
                StreamState::Ended => return Ok(StreamState::Ended),
                StreamState::Open => {}
            }
        }
        if self.bytes_read > MAX_STREAM_BYTES {
            Err(too_long())
        } else {
            Ok(StreamState::Open)
        }
    }

    fn read_event(
        &mut self,
        event: &SseEvent,
        emitter: &mut PieceEmitter<'_>,
    ) -> Result<StreamState, AttemptOutcome> {
        let state = self.reader.read_event(event, emitter)?;
        if self.reader.held_bytes() > MAX_ANSWER_BYTES {
            Err(too_long())
        } else {
            Ok(state)
        }
    }

    /// Reads the event that the end of the stream completes, if there is one. Returns the outcome.
    fn finish(mut self, emitter: &mut PieceEmitter<'_>) -> AttemptOutcome {
        let last = self.decoder.finish();
        match last.map(|event| self.read_event(&event, emitter)) {
            Some(Err(attempt)) => attempt,
            Some(Ok(_)) | None => self.reader.finish(emitter),
        }
    }
}

impl<P: Protocol> Endpoint<P> {
    fn new_stream(&self) -> EventStream<P> {
        EventStream {
            decoder: Decoder::new(MAX_ANSWER_BYTES),
            reader: P::StreamReader::new(&self.cleaner),
            bytes_read: 0,
            unparsed: Some(Vec::new()),
        }
    }

    /// Reads the answer, streamed or whole, in a response with a success status.
    pub(super) async fn read(
        &self,
        response: Response,
        emitter: &mut PieceEmitter<'_>,
    ) -> AttemptOutcome {
        if is_event_stream(response.headers()) {
            return self.read_stream(response, emitter).await;
        }
        match self.read_up_to(response, MAX_ANSWER_BYTES).await {
            Ok((_, true)) => too_long(),
            Ok((bytes, false)) => self.parse_body(&bytes, emitter),
            Err(NetFailure::NotSent(why) | NetFailure::Lost(why)) => retryable(why),
        }
    }

    fn parse_body(&self, bytes: &[u8], emitter: &mut PieceEmitter<'_>) -> AttemptOutcome {
        let body = from_bytes(bytes);
        if !looks_like_stream(&body) {
            return P::read_unstreamed(&body, &self.cleaner);
        }
        let mut stream = self.new_stream();
        match stream.take(bytes, emitter) {
            Ok(StreamState::Open) => stream.finish(emitter),
            Ok(StreamState::Ended) => stream.reader.finish(emitter),
            Err(attempt) => attempt,
        }
    }

    async fn read_stream(
        &self,
        mut response: Response,
        emitter: &mut PieceEmitter<'_>,
    ) -> AttemptOutcome {
        let (mut stream, deadline) = (self.new_stream(), self.deadline());
        loop {
            match self.next_bytes(&mut response, deadline).await {
                Ok(Some(bytes)) => match stream.take(&bytes, emitter) {
                    Ok(StreamState::Open) => {}
                    Ok(StreamState::Ended) => {
                        net::drain(response).await;
                        return stream.reader.finish(emitter);
                    }
                    Err(attempt) => return attempt,
                },
                Ok(None) => {
                    let body = from_bytes(&stream.unparsed.take().unwrap_or_default());
                    return if body.trim().is_empty() || looks_like_stream(&body) {
                        stream.finish(emitter)
                    } else {
                        P::read_unstreamed(&body, &self.cleaner)
                    };
                }
                Err(NetFailure::NotSent(why) | NetFailure::Lost(why)) => return retryable(why),
            }
        }
    }

    /// Reads at most `limit` bytes of a body. Also returns whether the body has more bytes.
    pub(super) async fn read_up_to(
        &self,
        mut response: Response,
        limit: usize,
    ) -> Result<(Vec<u8>, bool), NetFailure> {
        let (mut bytes, deadline) = (Vec::new(), self.deadline());
        while let Some(chunk) = self.next_bytes(&mut response, deadline).await? {
            let space_left = limit.saturating_sub(bytes.len());
            bytes.extend_from_slice(chunk.get(..space_left).unwrap_or(&chunk));
            if chunk.len() > space_left {
                return Ok((bytes, true));
            }
        }
        Ok((bytes, false))
    }

    /// Returns the deadline of an answer that begins now, on the scale of
    /// [`crate::world::Clock::uptime`].
    fn deadline(&self) -> Duration {
        self.clock
            .uptime()
            .saturating_add(self.settings.timeout.saturating_mul(ANSWER_TIMEOUT_FACTOR))
    }

    async fn next_bytes(
        &self,
        response: &mut Response,
        deadline: Duration,
    ) -> Result<Option<bytes::Bytes>, NetFailure> {
        let remaining = deadline.saturating_sub(self.clock.uptime());
        if remaining.is_zero() {
            return Err(NetFailure::Lost(net::NO_ANSWER_IN_TIME));
        }
        net::next_bytes(response, self.settings.timeout.min(remaining)).await
    }
}
