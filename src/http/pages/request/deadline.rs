//! Renders times relative to now, and durations. The page only shows a deadline; the database's
//! clock decides whether the deadline has passed.

use std::time::Duration;

use maud::{Markup, html};

use crate::http::pages::layout::time_tag;
use crate::http::pages::translations::{Translations, fill};
use crate::task::time::Time;

/// Renders a moment in UTC, with its distance from `now`.
#[must_use]
pub(crate) fn time_with_distance(at: Time, now: Time, words: &Translations) -> Markup {
    let (text, distance) = if at > now {
        (words.in_time, at.since(now))
    } else {
        (words.ago, now.since(at))
    };
    let distance = fill(text, &[("time", &duration_text(distance, words))]);
    html! { (time_tag(&at)) " · " (distance) }
}

/// Returns a duration in minutes, hours or days. It is rounded down, so that the page never
/// promises more time than is left.
#[must_use]
pub(crate) fn duration_text(time: Duration, words: &Translations) -> String {
    let minutes = time.as_secs() / 60;
    let (text, count) = match minutes {
        0 => return words.less_than_a_minute.to_owned(),
        1..120 => (words.minutes, minutes),
        120..2880 => (words.hours, minutes / 60),
        _ => (words.days, minutes / 1440),
    };
    fill(text, &[("count", &count)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::pages::language::Language;

    #[test]
    fn remaining_time_is_shown_in_a_fitting_unit() {
        let words = Translations::for_language(Language::English);
        let minute = 60;
        for (seconds, expected) in [
            (0, "less than a minute"),
            (59, "less than a minute"),
            (60, "1 min"),
            (119 * minute + 59, "119 min"),
            (120 * minute, "2 h"),
            (3 * 60 * minute + 59 * minute, "3 h"),
            (48 * 60 * minute - 1, "47 h"),
            (48 * 60 * minute, "2 days"),
            (400 * 24 * 60 * minute, "400 days"),
        ] {
            assert_eq!(
                duration_text(Duration::from_secs(seconds), words),
                expected,
                "{seconds}"
            );
        }
        assert_eq!(
            duration_text(
                Duration::from_hours(2),
                Translations::for_language(Language::Chinese)
            ),
            "2 小时"
        );
    }

    #[test]
    fn moment_is_shown_in_utc_and_relative_to_now() {
        let words = Translations::for_language(Language::English);
        let at = Time(1_700_000_000_123_000);
        let before = Time(at.0 - 3 * 3_600_000_000);
        assert_eq!(
            time_with_distance(at, before, words).into_string(),
            "<time datetime=\"2023-11-14T22:13:20.123000Z\">2023-11-14 22:13:20 UTC</time> · in 3 h"
        );
        assert!(
            time_with_distance(before, at, words)
                .into_string()
                .ends_with(" · 3 h ago")
        );
        assert!(
            time_with_distance(at, at, words)
                .into_string()
                .ends_with(" · less than a minute ago")
        );
    }
}
