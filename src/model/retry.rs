//! When to ask a model again, and after what wait. Asking has no effect outside, so a repetition is
//! always safe.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;

use crate::task::time::Time;

/// The wait before the second attempt; it doubles from there.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait that we choose.
const LONGEST: Duration = Duration::from_secs(8);
/// The longest wait that an endpoint may ask for.
const LONGEST_ASKED: Duration = Duration::from_mins(1);

/// Whether a repeated request may get another status.
pub(crate) fn is_worth_repeating(status: u16) -> bool {
    matches!(status, 408 | 409 | 429 | 500..=599)
}

/// The wait after attempt number `attempt` (1, 2, 3 …), if the endpoint named none. It doubles with
/// each attempt up to [`LONGEST`]. A random part of up to a half is subtracted, so that clients
/// that failed together do not return together.
pub(crate) fn backoff(attempt: u32) -> Duration {
    let whole = FIRST
        .saturating_mul(1 << attempt.saturating_sub(1).min(10))
        .min(LONGEST);
    let random = RandomState::new().hash_one(attempt) % 1000;
    whole / 2 + whole.mul_f64(f64::from(u16::try_from(random).unwrap_or(0)) / 2000.0)
}

/// The wait in `Retry-After`: seconds, or a date.
pub(crate) fn asked_for(headers: &HeaderMap, now: Time) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if let Ok(seconds) = text.parse::<f64>() {
        Duration::try_from_secs_f64(seconds).ok()?
    } else {
        let until = jiff::fmt::rfc2822::DateTimeParser::new()
            .parse_timestamp(text)
            .ok()?;
        Time(until.as_microsecond()).since(now)
    };
    Some(wait.min(LONGEST_ASKED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())])
    }

    #[test]
    fn retry_after_is_read_in_seconds_or_as_a_date_and_bounded() {
        let now = Time(1_445_412_480_000_000 - 5_000_000);
        assert_eq!(asked_for(&header("3"), now), Some(Duration::from_secs(3)));
        assert_eq!(
            asked_for(&header("0.5"), now),
            Some(Duration::from_millis(500))
        );
        assert_eq!(
            asked_for(&header("Wed, 21 Oct 2015 07:28:00 GMT"), now),
            Some(Duration::from_secs(5))
        );
        assert_eq!(
            asked_for(&header("Wed, 21 Oct 2015 07:27:00 GMT"), now),
            Some(Duration::ZERO)
        );
        assert_eq!(
            asked_for(&header("7200"), now),
            Some(Duration::from_mins(1))
        );
        assert_eq!(asked_for(&header("1e300"), now), None);
        for nonsense in ["soon", "-1", "NaN", ""] {
            assert_eq!(asked_for(&header(nonsense), now), None, "{nonsense}");
        }
        assert_eq!(asked_for(&HeaderMap::new(), now), None);
    }

    #[test]
    fn backoff_doubles_up_to_a_bound_and_varies() {
        for (attempt, whole) in [
            (1, 500),
            (2, 1000),
            (3, 2000),
            (4, 4000),
            (5, 8000),
            (9, 8000),
            (u32::MAX, 8000),
        ] {
            let (least, most) = (
                Duration::from_millis(whole / 2),
                Duration::from_millis(whole),
            );
            for _ in 0..50 {
                let wait = backoff(attempt);
                assert!(least <= wait && wait <= most, "{attempt}: {wait:?}");
            }
        }
    }
}
