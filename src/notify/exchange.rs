//! Sends one POST to a receiver of messages and reads the beginning of the answer.

use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, StatusCode};

use crate::net::{Failure, NO_ANSWER_IN_TIME, begun, next_bytes};
use crate::world::Clock;

/// The maximum duration of one attempt.
pub(super) const WITHIN: Duration = Duration::from_secs(15);
/// The maximum number of bytes that are read of an answer's body.
const READ: usize = 16 * 1024;

/// The HTTP answer of a receiver.
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The first 16 KiB of the body; less if the connection fails or the next part comes too late.
    pub(super) body: Vec<u8>,
}

/// Sends a request. Waits at most `reading` for each part of the answer's body.
///
/// # Errors
/// The reason why there is no answer, in fixed words.
pub(super) async fn exchange(
    clock: &dyn Clock,
    request: RequestBuilder,
    reading: Duration,
) -> Result<Answered, &'static str> {
    tokio::select! {
        answered = answered(request, reading) => answered,
        () = clock.sleep(WITHIN) => Err(NO_ANSWER_IN_TIME),
    }
}

async fn answered(request: RequestBuilder, reading: Duration) -> Result<Answered, &'static str> {
    let mut response = match begun(request, WITHIN).await {
        Ok(response) => response,
        Err(Failure::NotSent(problem) | Failure::Lost(problem)) => return Err(problem),
    };
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = Vec::new();
    while body.len() < READ {
        match next_bytes(&mut response, reading).await {
            Ok(Some(bytes)) => body.extend_from_slice(&bytes),
            Ok(None) | Err(_) => break,
        }
    }
    body.truncate(READ);
    Ok(Answered {
        status,
        headers,
        body,
    })
}
