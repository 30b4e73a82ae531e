//! The schedule of the attempts at a message: a fixed backoff with jitter.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::attempt_result::AttemptResult;
use crate::store::{ClaimedDelivery, NextState};
use crate::task::time::Time;

/// The wait after each failed attempt. If the attempt after the last wait fails, the delivery ends.
/// [`MIN_AGE_AT_END`] documents an exception.
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
/// The minimum wait after a 429.
const MIN_POSTPONEMENT: Duration = Duration::from_secs(1);
/// The maximum number of times that [`MIN_POSTPONEMENT`] doubles. It doubles with each attempt if
/// the `Retry-After` of the 429 is 0 or a time in the past. Without the doubling, the same message
/// would be sent every second for days.
const MAX_DOUBLINGS: i64 = 10;
/// The minimum age at which a delivery ends if an attempt at it came early, sooner than [`BACKOFF`]
/// says. Until then, the delivery gets further attempts, even if its attempts are used up. An
/// attempt comes early if a 429 sets its time, or if the success of another message makes the
/// delivery due. Without this age, a series of such attempts could end a delivery within seconds.
/// The waits of [`BACKOFF`] together take at least this long.
const MIN_AGE_AT_END: Duration = Duration::from_hours(60);

/// Returns the wait after `attempts` failed attempts; `None` if no further attempt is made. Random
/// jitter changes the wait by up to a fifth, so that messages that failed together are not retried
/// at the same moment. The wait is at least `retry_after`, for which the receiver asked.
pub(super) fn backoff(attempts: i64, retry_after: Option<Duration>) -> Option<Duration> {
    let index = usize::try_from(attempts.checked_sub(1)?).ok()?;
    let base = BACKOFF.get(index)?;
    let jittered = base.mul_f64(0.8 + 0.4 * random_part());
    Some(jittered.max(retry_after.unwrap_or_default()))
}

/// Returns a random number from 0 to 1.
fn random_part() -> f64 {
    let random = RandomState::new().hash_one(0_u8) % 1001;
    f64::from(u16::try_from(random).unwrap_or(0)) / 1000.0
}

/// Returns the wait after a 429 that asked for the wait `asked`. `attempts` counts earlier
/// attempts. Random jitter lengthens the wait by up to a fifth. The wait is at most
/// [`MAX_RETRY_AFTER`].
fn postponement(asked: Duration, attempts: i64) -> Duration {
    let doublings = if asked.is_zero() {
        u32::try_from(attempts.min(MAX_DOUBLINGS)).unwrap_or(0)
    } else {
        0
    };
    let asked = asked.max(MIN_POSTPONEMENT * 2_u32.pow(doublings));
    (asked + asked.mul_f64(0.2 * random_part())).min(MAX_RETRY_AFTER)
}

/// The facts about a claimed delivery on which its next attempt depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RetryContext {
    /// The number of attempts before the claim ([`ClaimedDelivery::attempts`]).
    attempts: i64,
    /// Whether the delivery is younger than [`MIN_AGE_AT_END`].
    is_young: bool,
    /// Whether an attempt came sooner than [`BACKOFF`] says.
    came_early: bool,
}

impl RetryContext {
    pub(super) fn of(claimed: &ClaimedDelivery, now: Time) -> Self {
        Self {
            attempts: claimed.attempts,
            is_young: now.since(claimed.created_at) < MIN_AGE_AT_END,
            came_early: claimed.came_early,
        }
    }
}

/// Returns the state of a delivery after an attempt with this result. `context` is as of before the
/// attempt. There are two rules for a delivery that is younger than [`MIN_AGE_AT_END`]:
///
/// - If the receiver answers with 429 and `Retry-After`, the delivery is sent again after this
///   wait and not after the wait of [`BACKOFF`], because a 429 limits the rate of all messages.
/// - If the attempts are used up, but one of them came sooner than [`BACKOFF`] says, the delivery
///   is sent again after the last wait of [`BACKOFF`].
pub(super) fn next(result: &AttemptResult, context: RetryContext) -> NextState {
    if result.is_success() {
        return NextState::Sent;
    }
    if result.is_permanent_failure {
        return NextState::Dead;
    }
    match result.retry_after {
        Some(asked) if context.is_young && result.status == Some(429) => {
            NextState::Postponed(postponement(asked, context.attempts))
        }
        asked => {
            let last = i64::try_from(BACKOFF.len()).unwrap_or(i64::MAX);
            let failed = context.attempts + 1;
            let goes_on = context.is_young && context.came_early;
            let failed = if goes_on { failed.min(last) } else { failed };
            backoff(failed, asked).map_or(NextState::Dead, NextState::Again)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn context(attempts: i64, is_young: bool, came_early: bool) -> RetryContext {
        RetryContext {
            attempts,
            is_young,
            came_early,
        }
    }

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
    fn last_attempt_comes_within_the_four_days_for_which_a_receiver_keeps_ids() {
        // docs/webhooks.md says for how long.
        let kept = Duration::from_hours(4 * 24);
        let waits = BACKOFF.map(|wait| wait.mul_f64(1.2).max(MAX_RETRY_AFTER));
        assert!(waits.iter().sum::<Duration>() < kept, "{waits:?}");
        let last = BACKOFF.last().unwrap().mul_f64(1.2);
        assert!(MIN_AGE_AT_END + last < kept, "{last:?}");
    }

    #[test]
    fn wait_is_never_shorter_than_a_receiver_has_asked_for() {
        let hour = Duration::from_hours(1);
        assert_eq!(backoff(1, Some(hour)), Some(hour));
        assert!(backoff(5, Some(hour)).unwrap() > hour);
    }

    #[test]
    fn wait_of_a_429_is_kept_to_while_the_message_is_young_and_no_wait_grows() {
        let result = |status, seconds| AttemptResult {
            status: Some(status),
            retry_after: Some(Duration::from_secs(seconds)),
            ..AttemptResult::without_status("no 2xx")
        };
        for (asked, attempts, least, most) in [
            (0, 0, 1000, 1200),
            (30, 4, 30_000, 36_000),
            (0, 9, 512_000, 614_400),
            (30, 9, 30_000, 36_000),
            (0, 3000, 1_024_000, 1_228_800),
        ] {
            let NextState::Postponed(wait) =
                next(&result(429, asked), context(attempts, true, false))
            else {
                panic!("it is postponed")
            };
            assert!((least..=most).contains(&wait.as_millis()), "{wait:?}");
        }
        let hour = Duration::from_hours(1);
        let longest = next(&result(429, 3600), context(0, true, false));
        assert_eq!(longest, NextState::Postponed(hour));
        assert_eq!(
            next(&result(429, 3600), context(0, false, false)),
            NextState::Again(hour)
        );
        assert_eq!(
            next(&result(503, 3600), context(0, true, false)),
            NextState::Again(hour)
        );
        assert_eq!(
            next(&result(429, 1), context(9, false, true)),
            NextState::Dead
        );
    }

    #[test]
    fn young_message_whose_attempts_came_early_waits_a_day_after_the_last_and_any_other_ends() {
        let failed = AttemptResult::without_status("connection refused");
        let day = Duration::from_hours(24);
        for attempts in [8, 9, 30] {
            let NextState::Again(wait) = next(&failed, context(attempts, true, true)) else {
                panic!("it is not over")
            };
            assert!(
                day.mul_f64(0.8) <= wait && wait <= day.mul_f64(1.2),
                "{wait:?}"
            );
        }
        for (is_young, came_early) in [(true, false), (false, true), (false, false)] {
            let ended = next(&failed, context(9, is_young, came_early));
            assert_eq!(ended, NextState::Dead, "{is_young} {came_early}");
        }
    }
}
