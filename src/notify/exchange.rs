//! Sends a POST to a receiver of messages, and reads the beginning of the answer.

use std::time::Duration;

use reqwest::{RequestBuilder, Response};

use super::attempt_result::AttemptResult;
use crate::net::{NO_ANSWER_IN_TIME, NetFailure, next_bytes, send_request};
use crate::world::Clock;

pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);
const MAX_BODY_BYTES: usize = 16 * 1024;

/// Sends a request, and returns the result of this attempt and the beginning of the answer's body.
/// Waits at most `body_timeout` for each part of the body.
pub(super) async fn exchange(
    clock: &dyn Clock,
    request: RequestBuilder,
    body_timeout: Duration,
) -> (AttemptResult, Vec<u8>) {
    let mut timeout = clock.sleep(ATTEMPT_TIMEOUT);
    let sent = tokio::select! {
        sent = send_request(request, ATTEMPT_TIMEOUT) => sent,
        () = &mut timeout => Err(NetFailure::Lost(NO_ANSWER_IN_TIME)),
    };
    match sent {
        Ok(mut response) => {
            let body = read_body(&mut response, timeout, body_timeout).await;
            (AttemptResult::from_response(&response, clock.now()), body)
        }
        Err(NetFailure::NotSent(problem) | NetFailure::Lost(problem)) => {
            (AttemptResult::without_status(problem), Vec::new())
        }
    }
}

/// Reads the first 16 KiB of a body. Returns fewer bytes if the body is shorter, the connection
/// failed, a part of the body was late, or `timeout` ended. A slow body does not make the attempt
/// fail, because the receiver has already answered.
async fn read_body(
    response: &mut Response,
    timeout: impl Future<Output = ()>,
    body_timeout: Duration,
) -> Vec<u8> {
    let mut body = Vec::new();
    let read = async {
        while body.len() < MAX_BODY_BYTES
            && let Ok(Some(bytes)) = next_bytes(response, body_timeout).await
        {
            body.extend_from_slice(&bytes);
        }
    };
    tokio::select! {
        () = read => {}
        () = timeout => {}
    }
    body.truncate(MAX_BODY_BYTES);
    body
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{self, StreamExt as _};
    use reqwest::{Body, StatusCode};

    use super::*;

    #[tokio::test]
    async fn answer_whose_body_does_not_end_counts_with_what_came_of_it() {
        let first = stream::iter([Ok::<_, std::io::Error>("ok")]);
        let body = Body::wrap_stream(first.chain(stream::pending()));
        let mut response = Response::from(http::Response::new(body));
        let timeout = tokio::task::yield_now();
        let read = read_body(&mut response, timeout, Duration::from_hours(1)).await;
        assert_eq!((response.status(), read), (StatusCode::OK, b"ok".to_vec()));
    }
}
