//! Sends a POST to a receiver of messages, and reads the beginning of the answer.

use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, StatusCode};

use crate::net::{Failure, NO_ANSWER_IN_TIME, next_bytes, send_request};
use crate::world::Clock;

pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);
const MAX_BODY_BYTES: usize = 16 * 1024;

pub(super) struct HttpResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The first 16 KiB of the body. Fewer bytes if the connection failed or a part of the body was
    /// late.
    pub(super) body: Vec<u8>,
}

/// Sends a request. Waits at most `body_timeout` for each part of the answer's body.
///
/// # Errors
/// Fails if there is no answer. The error is the reason, in fixed words.
pub(super) async fn exchange(
    clock: &dyn Clock,
    request: RequestBuilder,
    body_timeout: Duration,
) -> Result<HttpResponse, &'static str> {
    tokio::select! {
        response = read_response(request, body_timeout) => response,
        () = clock.sleep(ATTEMPT_TIMEOUT) => Err(NO_ANSWER_IN_TIME),
    }
}

async fn read_response(
    request: RequestBuilder,
    body_timeout: Duration,
) -> Result<HttpResponse, &'static str> {
    let mut response = match send_request(request, ATTEMPT_TIMEOUT).await {
        Ok(response) => response,
        Err(Failure::NotSent(problem) | Failure::Lost(problem)) => return Err(problem),
    };
    let (status, headers) = (response.status(), response.headers().clone());
    let mut body = Vec::new();
    while body.len() < MAX_BODY_BYTES {
        match next_bytes(&mut response, body_timeout).await {
            Ok(Some(bytes)) => body.extend_from_slice(&bytes),
            Ok(None) | Err(_) => break,
        }
    }
    body.truncate(MAX_BODY_BYTES);
    Ok(HttpResponse {
        status,
        headers,
        body,
    })
}
