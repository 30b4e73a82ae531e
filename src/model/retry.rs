//! Decides whether a request to a model is repeated, and how long the client waits before the
//! repetition. Asking a model has no side effects, so a repetition is always safe.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The wait before the second attempt, without jitter. The wait doubles with each further attempt.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The maximum wait between attempts, if the endpoint asks for no wait.
const MAX_WAIT: Duration = Duration::from_secs(8);
/// The maximum wait that an endpoint can cause by `Retry-After`. A longer wait is shortened to this
/// limit.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);

pub(crate) fn is_retryable(status: u16) -> bool {
    matches!(status, 429 | 500..=599)
}

/// Returns the wait after attempt number `attempt` (1, 2, 3 …), if the endpoint named no wait. The
/// wait doubles with each attempt up to [`MAX_WAIT`]. Random jitter shortens the wait by up to a
/// half, so that clients which failed together do not retry together.
pub(crate) fn backoff(attempt: u32) -> Duration {
    let full_wait = FIRST_WAIT
        .saturating_mul(1 << attempt.saturating_sub(1).min(10))
        .min(MAX_WAIT);
    let random = RandomState::new().hash_one(attempt) % 1000;
    full_wait / 2 + full_wait.mul_f64(f64::from(u16::try_from(random).unwrap_or(0)) / 2000.0)
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
            for _ in 0..50 {
                let wait = backoff(attempt);
                assert!(least <= wait && wait <= most, "{attempt}: {wait:?}");
            }
        }
    }
}
