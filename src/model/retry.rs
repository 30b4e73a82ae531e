//! Decides whether a request to a model is repeated, and how long the client waits before the
//! repetition. Asking a model has no side effects, so a repetition is always safe.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use http::HeaderMap;

use crate::net;
use crate::task::time::Time;

/// The wait before the first retry, without jitter. The wait doubles with each further retry.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The maximum wait between attempts, unless the endpoint asks for a longer wait.
const MAX_WAIT: Duration = Duration::from_secs(8);
/// The maximum wait that an endpoint can cause. A longer wait is shortened to this limit.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);

pub(crate) fn is_retryable(status: u16) -> bool {
    matches!(status, 429 | 500..=599)
}

/// Returns the wait that an endpoint asks for, counted from `now`. The header `retry-after-ms` of
/// `OpenAI` and Azure takes precedence over `Retry-After`, because it is more exact.
pub(crate) fn requested_wait(headers: &HeaderMap, now: Time) -> Option<Duration> {
    let exact = headers.get("retry-after-ms");
    let exact = exact.and_then(|wait| wait.to_str().ok()?.trim().parse::<u64>().ok());
    match exact {
        Some(milliseconds) => Some(Duration::from_millis(milliseconds).min(MAX_RETRY_AFTER)),
        None => net::retry_after(headers, now, MAX_RETRY_AFTER),
    }
}

/// Returns the wait before the retry with the number `attempt` (1, 2, 3 …). The wait doubles with
/// each retry up to [`MAX_WAIT`]. Random jitter shortens the wait by up to a half, so that clients
/// that failed together do not retry together. The wait is at least `requested`.
pub(crate) fn backoff(attempt: u32, requested: Option<Duration>) -> Duration {
    let full_wait = FIRST_WAIT
        .saturating_mul(1 << attempt.saturating_sub(1).min(10))
        .min(MAX_WAIT);
    let random = RandomState::new().hash_one(attempt) % 1000;
    let jittered =
        full_wait / 2 + full_wait.mul_f64(f64::from(u16::try_from(random).unwrap_or(0)) / 2000.0);
    jittered.max(requested.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_a_bound_and_varies() {
        for (attempt, full_wait) in [
            (1, 500),
            (2, 1000),
            (3, 2000),
            (4, 4000),
            (5, 8000),
            (9, 8000),
            (u32::MAX, 8000),
        ] {
            let (least, most) = (
                Duration::from_millis(full_wait / 2),
                Duration::from_millis(full_wait),
            );
            for requested in [None, Some(Duration::ZERO)].repeat(25) {
                let wait = backoff(attempt, requested);
                assert!(least <= wait && wait <= most, "{attempt}: {wait:?}");
            }
            let long = Duration::from_secs(9);
            assert_eq!(backoff(attempt, Some(long)), long);
        }
    }

    #[test]
    fn requested_wait_is_read_in_whole_milliseconds_before_seconds() {
        for (exact, seconds, wait) in [
            (Some("1500"), "9", Some(1500)),
            (Some("7200000"), "9", Some(60_000)),
            (Some("1.5"), "9", Some(9000)),
            (Some("-1"), "9", Some(9000)),
            (None, "9", Some(9000)),
            (Some("soon"), "soon", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", seconds.parse().unwrap());
            if let Some(exact) = exact {
                headers.insert("retry-after-ms", exact.parse().unwrap());
            }
            assert_eq!(
                requested_wait(&headers, Time(0)),
                wait.map(Duration::from_millis),
                "{exact:?}"
            );
        }
    }
}
