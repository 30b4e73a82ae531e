//! Points in time, in microseconds. Both databases, Postgres and `SQLite`, store times with this
//! precision.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The microseconds since 1970-01-01T00:00:00Z. `Display` writes RFC 3339 in UTC, with six
/// fractional digits and a `Z`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub i64);

impl Time {
    /// Returns the time that passed from `earlier` to `self`; zero if `earlier` is after `self`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Returns the date, hour and minute in UTC, for people. Leaves the date out if it is the date
    /// of `day`.
    #[must_use]
    pub fn to_minute(self, day: Option<Self>) -> String {
        let text = self.to_string();
        let date = text.get(..10).unwrap_or(&text);
        let minute = text.get(11..16).unwrap_or_default();
        if day.is_some_and(|day| day.to_string().starts_with(date)) {
            minute.to_owned()
        } else {
            format!("{date} {minute}")
        }
    }

    /// Parses an RFC 3339 time; `None` if the text is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let moment: jiff::Timestamp = text.parse().ok()?;
        Some(Self(moment.as_microsecond()))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)),
        )
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(moment) => write!(f, "{moment:.6}"),
            Err(_) => f.write_str("9999-12-31T23:59:59.999999Z"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_another_day_is_shown_with_its_date() {
        let at = |text: &str| Time::parse(text).unwrap();
        let now = at("2026-11-22T09:30:00Z");
        assert_eq!(at("2026-11-22T10:15:59Z").to_minute(Some(now)), "10:15");
        let tomorrow = at("2026-11-23T00:00:00Z");
        assert_eq!(tomorrow.to_minute(Some(now)), "2026-11-23 00:00");
        assert_eq!(now.to_minute(None), "2026-11-22 09:30");
    }

    #[test]
    fn time_is_written_with_six_digits_and_z() {
        assert_eq!(Time(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(
            Time(1_700_000_000_123_000).to_string(),
            "2023-11-14T22:13:20.123000Z"
        );
    }

    #[test]
    fn time_is_read_with_any_offset_and_refused_without_an_offset() {
        for text in ["2023-11-14T22:13:20.123Z", "2023-11-15T00:13:20.123+02:00"] {
            assert_eq!(
                Time::parse(text),
                Some(Time(1_700_000_000_123_000)),
                "{text}"
            );
        }
        for text in ["", "2023-11-14", "2023-11-14T22:13:20", "tomorrow"] {
            assert_eq!(Time::parse(text), None, "{text}");
        }
    }
}
