//! The schedule of the attempts at a message: a fixed backoff with jitter.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::answer::Answer;
use crate::store::Next;

/// The backoff: the wait after each failed attempt. A failure after the last wait ends the
/// delivery.
const WAITS: [Duration; 9] = [
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
/// The upper bound of the wait that a receiver may ask for.
pub(super) const LONGEST_ASKED: Duration = Duration::from_hours(1);

/// Returns the wait after `attempts` failed attempts; `None` if no further attempt is made. The
/// wait has a jitter of a fifth, so that messages which failed together are not all retried at
/// once, and is never shorter than the receiver has `asked` for.
pub(super) fn wait(attempts: i64, asked: Option<Duration>) -> Option<Duration> {
    let index = usize::try_from(attempts.checked_sub(1)?).ok()?;
    let usual = WAITS.get(index)?;
    let random = RandomState::new().hash_one(attempts) % 1001;
    let part = f64::from(u16::try_from(random).unwrap_or(0)) / 1000.0;
    let varied = usual.mul_f64(0.8 + 0.4 * part);
    Some(varied.max(asked.unwrap_or_default()))
}

/// Returns the next state of a delivery after an attempt with this answer. `attempts` is the number
/// of earlier attempts.
pub(super) fn next(answer: &Answer, attempts: i64) -> Next {
    if answer.is_success() {
        Next::Sent
    } else if answer.unwanted {
        Next::Dead
    } else {
        wait(attempts + 1, answer.asked).map_or(Next::Dead, Next::Again)
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
        for (attempts, usual) in (1..).zip(seconds) {
            let usual = Duration::from_secs(usual);
            let mut seen = Vec::new();
            for _ in 0..50 {
                let wait = wait(attempts, None).unwrap();
                assert!(
                    usual.mul_f64(0.799) <= wait && wait <= usual.mul_f64(1.201),
                    "{attempts}: {wait:?}"
                );
                seen.push(wait);
            }
            seen.dedup();
            assert!(seen.len() > 1, "it varies");
        }
        assert_eq!(wait(10, None), None);
        assert_eq!(wait(0, None), None);
    }

    #[test]
    fn wait_is_never_shorter_than_a_receiver_has_asked_for() {
        let hour = Duration::from_hours(1);
        assert_eq!(wait(1, Some(hour)), Some(hour));
        assert!(wait(5, Some(hour)).unwrap() > hour);
    }
}
