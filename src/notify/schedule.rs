//! The schedule of the attempts at a message: a fixed backoff with jitter.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::attempt_result::AttemptResult;
use crate::store::NextState;

/// The wait after each failed attempt. If an attempt after the last wait fails, the delivery ends.
const BACKOFF: [Duration; 9] = [
    Duration::from_secs(5),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(5),
    Duration::from_hours(10),
    Duration::from_hours(14),
    Duration::from_hours(20),
    Duration::from_hours(24),
];
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Returns the wait after `attempts` failed attempts; `None` if no further attempt is made. Random
/// jitter changes the wait by up to a fifth, so that messages that failed together are not retried
/// at the same moment. The wait is at least `retry_after`, for which the receiver asked.
pub(super) fn backoff(attempts: i64, retry_after: Option<Duration>) -> Option<Duration> {
    let index = usize::try_from(attempts.checked_sub(1)?).ok()?;
    let base = BACKOFF.get(index)?;
    let random = RandomState::new().hash_one(attempts) % 1001;
    let part = f64::from(u16::try_from(random).unwrap_or(0)) / 1000.0;
    let jittered = base.mul_f64(0.8 + 0.4 * part);
    Some(jittered.max(retry_after.unwrap_or_default()))
}

/// Returns the state of a delivery after an attempt with this result. `attempts` counts earlier
/// attempts.
pub(super) fn next(result: &AttemptResult, attempts: i64) -> NextState {
    if result.is_success() {
        NextState::Sent
    } else if result.is_permanent_failure {
        NextState::Dead
    } else {
        backoff(attempts + 1, result.retry_after).map_or(NextState::Dead, NextState::Again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_is_the_one_that_is_written_each_wait_within_a_fifth() {
        let seconds = [
            5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400_u64,
        ];
        for (attempts, base) in (1..).zip(seconds) {
            let base = Duration::from_secs(base);
            let mut seen = Vec::new();
            for _ in 0..50 {
                let wait = backoff(attempts, None).unwrap();
                assert!(
                    base.mul_f64(0.799) <= wait && wait <= base.mul_f64(1.201),
                    "{attempts}: {wait:?}"
                );
                seen.push(wait);
            }
            seen.dedup();
            assert!(seen.len() > 1, "it varies");
        }
        assert_eq!(backoff(10, None), None);
        assert_eq!(backoff(0, None), None);
    }

    #[test]
    fn wait_is_never_shorter_than_a_receiver_has_asked_for() {
        let hour = Duration::from_hours(1);
        assert_eq!(backoff(1, Some(hour)), Some(hour));
        assert!(backoff(5, Some(hour)).unwrap() > hour);
    }
}
