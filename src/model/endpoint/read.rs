//! Reads an endpoint's answer: a stream of events as it arrives, anything else whole. Invariant:
//! reading is bounded in bytes and in time, and an answer without its end is rejected.

use std::time::Duration;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use reqwest::Response;

use super::{Attempt, Endpoint, Failure, Protocol, Telling, net};
use crate::model::protocol::{Progress, Reading};
use crate::net::sse::Decoder;
use crate::task::text::from_bytes;

/// The longest answer, in bytes. The limit applies to an unstreamed body, to each event of a
/// stream, and to all content of a stream together.
pub(in crate::model) const ANSWER: usize = 8 * 1024 * 1024;
/// How much of an error's body is read, in bytes.
pub(super) const PROBLEM: usize = 64 * 1024;
/// The longest stream, in bytes. A stream is much longer than its content, because every few
/// characters come in a JSON object of their own.
const STREAM: usize = 16 * ANSWER;
/// The longest time for a whole answer, as a multiple of the timeout.
pub(super) const WHOLE: u32 = 10;

/// Whether the headers declare a stream of events.
fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    kind.trim_start()
        .to_ascii_lowercase()
        .starts_with("text/event-stream")
}

/// Whether a body that is not declared as a stream of events looks like one.
fn looks_like_stream(body: &str) -> bool {
    let begins = body.trim_start_matches(['\u{FEFF}', '\r', '\n']);
    ["data:", "event:", "id:", ":"]
        .iter()
        .any(|field| begins.starts_with(field))
}

pub(super) fn too_long() -> Attempt {
    Attempt::Failed(format!(
        "its answer is longer than {} MiB",
        ANSWER / 1024 / 1024
    ))
}

/// Reads one streamed answer: decodes its events and passes them to the protocol's reader.
struct Stream<P: Protocol> {
    decoder: Decoder,
    reading: P::Reading,
    read: usize,
    /// The bytes before the first event, up to `PROBLEM` of them: the body may be an unstreamed
    /// answer although it is declared as a stream.
    odd: Option<Vec<u8>>,
}

impl<P: Protocol> Stream<P> {
    /// Takes the next bytes. `Err` is the outcome of the attempt, if later bytes cannot change it.
    fn take(&mut self, bytes: &[u8], telling: &mut Telling<'_>) -> Result<Progress, Attempt> {
        self.read = self.read.saturating_add(bytes.len());
        let events = self.decoder.push(bytes).map_err(|_| too_long())?;
        if !events.is_empty() {
            self.odd = None;
        }
        if let Some(odd) = self
            .odd
            .as_mut()
            .filter(|odd| odd.len() + bytes.len() <= PROBLEM)
        {
            odd.extend_from_slice(bytes);
        }
        for event in events {
            match self.reading.event(&event, telling)? {
                Progress::Ended => return Ok(Progress::Ended),
                Progress::GoesOn => {}
            }
        }
        if self.read > STREAM || self.reading.held() > ANSWER {
            Err(too_long())
        } else {
            Ok(Progress::GoesOn)
        }
    }
}

impl<P: Protocol> Endpoint<P> {
    fn stream_begins(&self) -> Stream<P> {
        let reading = P::reading(&self.cleaner);
        Stream {
            decoder: Decoder::new(ANSWER),
            reading,
            read: 0,
            odd: Some(Vec::new()),
        }
    }

    /// Reads the answer in a response with a success status, streamed or whole.
    pub(super) async fn read(&self, response: Response, telling: &mut Telling<'_>) -> Attempt {
        if is_stream(response.headers()) {
            return self.streamed(response, telling).await;
        }
        match self.gathered(response, ANSWER).await {
            Ok((_, true)) => too_long(),
            Ok((bytes, false)) => self.read_whole(&bytes, telling),
            Err(failure) => Attempt::Again(failure.to_string(), None),
        }
    }

    fn read_whole(&self, bytes: &[u8], telling: &mut Telling<'_>) -> Attempt {
        let body = from_bytes(bytes);
        if !looks_like_stream(&body) {
            return P::whole(&body, &self.cleaner);
        }
        let mut stream = self.stream_begins();
        match stream.take(bytes, telling) {
            Ok(_) => stream.reading.finish(telling),
            Err(attempt) => attempt,
        }
    }

    async fn streamed(&self, mut response: Response, telling: &mut Telling<'_>) -> Attempt {
        let (mut stream, until) = (self.stream_begins(), self.latest());
        loop {
            match self.next(&mut response, until).await {
                Ok(Some(bytes)) => match stream.take(&bytes, telling) {
                    Ok(Progress::GoesOn) => {}
                    Ok(Progress::Ended) => {
                        net::read_off(response).await;
                        return stream.reading.finish(telling);
                    }
                    Err(attempt) => return attempt,
                },
                Ok(None) => {
                    return match stream.odd.filter(|odd| !odd.trim_ascii().is_empty()) {
                        Some(odd) => P::whole(&from_bytes(&odd), &self.cleaner),
                        None => stream.reading.finish(telling),
                    };
                }
                Err(failure) => return Attempt::Again(failure.to_string(), None),
            }
        }
    }

    /// Reads at most `limit` bytes of a body. Also returns whether the body is longer.
    pub(super) async fn gathered(
        &self,
        mut response: Response,
        limit: usize,
    ) -> Result<(Vec<u8>, bool), Failure> {
        let (mut bytes, until) = (Vec::new(), self.latest());
        while let Some(chunk) = self.next(&mut response, until).await? {
            let room = limit.saturating_sub(bytes.len());
            bytes.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
            if chunk.len() > room {
                return Ok((bytes, true));
            }
        }
        Ok((bytes, false))
    }

    /// Returns the deadline of an answer that begins now, on the scale of
    /// [`crate::world::Clock::uptime`].
    fn latest(&self) -> Duration {
        self.clock
            .uptime()
            .saturating_add(self.timeout.saturating_mul(WHOLE))
    }

    async fn next(
        &self,
        response: &mut Response,
        until: Duration,
    ) -> Result<Option<bytes::Bytes>, Failure> {
        let left = until.saturating_sub(self.clock.uptime());
        if left.is_zero() {
            return Err(Failure::Lost(net::NO_ANSWER_IN_TIME));
        }
        net::next_bytes(response, self.timeout.min(left)).await
    }
}
