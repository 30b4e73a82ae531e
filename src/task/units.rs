//! Reads and writes durations (for example `500ms`, `30s`, `10m`, `24h`, `7d`) and sizes (`64KiB`,
//! `1MiB`) as text. A text is one number and one unit, without blanks. Every setting with a
//! duration or a size uses this module. The module parses durations itself, because `jiff` also
//! accepts sums, blanks and words.

use std::fmt;
use std::time::Duration;

use serde::de::{Error, Unexpected, Visitor};

/// A serde visitor that reads a value from text. `expecting` describes the text. An error of
/// `parse` is the message about the text, or `None` if the description is enough.
pub(crate) struct TextVisitor<T> {
    pub expecting: &'static str,
    pub parse: fn(&str) -> Result<T, Option<String>>,
}

impl<T> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(|message| match message {
            Some(message) => E::custom(message),
            None => E::invalid_value(Unexpected::Other("text"), &self),
        })
    }
}

/// Parses a duration, for a [`TextVisitor`].
///
/// # Errors
/// Fails if [`parse_duration`] returns `None`. If the duration is too long, the error names the
/// maximum.
pub(crate) fn read_duration(text: &str) -> Result<Duration, Option<String>> {
    let is_duration =
        split(text).is_some_and(|(_, unit)| matches!(unit, "ms" | "s" | "m" | "h" | "d"));
    let too_long = || format!("expected `{}d` at most", MAX_SECONDS / 86_400);
    parse_duration(text).ok_or_else(|| is_duration.then(too_long))
}

/// Parses a duration; `None` if the text is malformed, or the duration exceeds a hundred years.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let (count, unit) = split(text)?;
    let seconds = |factor: u64| {
        count
            .checked_mul(factor)
            .filter(|all| *all <= MAX_SECONDS)
            .map(Duration::from_secs)
    };
    match unit {
        "ms" => (count / 1000 <= MAX_SECONDS).then(|| Duration::from_millis(count)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3600),
        "d" => seconds(86_400),
        _ => None,
    }
}

/// A hundred years, in seconds. A longer duration is surely a mistake, and a time computed with it
/// could overflow.
const MAX_SECONDS: u64 = 100 * 366 * 86_400;

/// Parses a size and returns it in bytes; `None` if the text is malformed.
pub(crate) fn parse_size(text: &str) -> Option<usize> {
    let (count, unit) = split(text)?;
    let count = usize::try_from(count).ok()?;
    match unit {
        "KiB" => count.checked_mul(1024),
        "MiB" => count.checked_mul(1024 * 1024),
        _ => None,
    }
}

#[must_use]
pub(crate) fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if !millis.is_multiple_of(1000) || millis == 0 {
        return format!("{millis}ms");
    }
    let seconds = duration.as_secs();
    // Each row: a unit's length in seconds, the least count that is written in the unit, the unit's
    // name. The least counts of 2 make a day `24h` instead of `1d`, and a minute `60s`, not `1m`.
    let units = [(86_400, 2, "d"), (3600, 1, "h"), (60, 2, "m")];
    let unit = units
        .into_iter()
        .find(|(factor, least, _)| seconds.is_multiple_of(*factor) && seconds / factor >= *least);
    unit.map_or_else(
        || format!("{seconds}s"),
        |(factor, _, unit)| format!("{}{unit}", seconds / factor),
    )
}

#[must_use]
pub(crate) fn format_size(bytes: usize) -> String {
    const MIB: usize = 1024 * 1024;
    if bytes >= MIB && bytes.is_multiple_of(MIB) {
        format!("{}MiB", bytes / MIB)
    } else {
        format!("{}KiB", bytes / 1024)
    }
}

fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at_checked(end)?;
    Some((digits.parse().ok()?, unit))
}

/// Durations as text, for serde and for the configuration file's schema.
pub(crate) mod duration_text {
    use super::{Duration, TextVisitor, format_duration, read_duration};
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use serde::{Deserializer, Serializer};

    #[derive(Debug)]
    pub(crate) struct Text;

    impl JsonSchema for Text {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "Duration".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$", "description": "`500ms`, `30s`, `10m`, `24h` or `7d`"})
        }
    }

    /// Reads a duration from text.
    ///
    /// # Errors
    /// Fails if the text is not a duration.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        from.deserialize_str(TextVisitor {
            expecting: "a duration such as `500ms`, `30s`, `10m`, `24h` or `7d`",
            parse: read_duration,
        })
    }

    /// Writes a duration as text.
    ///
    /// # Errors
    /// Fails if the serializer fails.
    pub(crate) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format_duration(*duration))
    }
}

/// Like [`duration_text`], for a duration that may be left out or `null`.
pub(crate) mod optional_duration {
    use super::{Duration, duration_text};
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Wrap(#[serde(with = "duration_text")] Duration);

    /// Reads a duration from text. `null` gives `None`.
    ///
    /// # Errors
    /// Fails if the text is not a duration.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Wrap>::deserialize(from)?.map(|Wrap(duration)| duration))
    }

    /// Writes a duration as text. `None` gives `null`.
    ///
    /// # Errors
    /// Fails if the serializer fails.
    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(crate) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => duration_text::serialize(duration, to),
            None => to.serialize_none(),
        }
    }
}

/// Sizes as text, for serde and for the configuration file's schema.
pub(crate) mod size_text {
    use super::{TextVisitor, format_size, parse_size};
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use serde::{Deserializer, Serializer};

    #[derive(Debug)]
    pub(crate) struct Text;

    impl JsonSchema for Text {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "Size".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({"type": "string", "pattern": "^[0-9]+(KiB|MiB)$", "description": "`64KiB` or `1MiB`"})
        }
    }

    /// Reads a size from text.
    ///
    /// # Errors
    /// Fails if the text is not a size.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        from.deserialize_str(TextVisitor {
            expecting: "a size such as `64KiB` or `1MiB`",
            parse: |text| parse_size(text).ok_or(None),
        })
    }

    /// Writes a size as text.
    ///
    /// # Errors
    /// Fails if the serializer fails.
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference to the field"
    )]
    pub(crate) fn serialize<S: Serializer>(bytes: &usize, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format_size(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_one_number_and_one_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("10m", 600_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for text in [
            "",
            "s",
            "30",
            "30 s",
            "-1s",
            "+1s",
            "1.5h",
            "1h30m",
            "1w",
            "1S",
            "1H",
            "99999999999999999999s",
            "9999999999d",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_kib_or_mib() {
        assert_eq!(parse_size("64KiB"), Some(65_536));
        assert_eq!(parse_size("1MiB"), Some(1_048_576));
        for text in [
            "64",
            "64kb",
            "64KB",
            "1GiB",
            "1 MiB",
            "-1KiB",
            "99999999999999999999MiB",
            "18446744073709551615MiB",
        ] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn written_durations_and_sizes_read_the_same() {
        for text in [
            "500ms", "30s", "10m", "24h", "7d", "1h", "90s", "60s", "0ms",
        ] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        for text in ["64KiB", "1MiB", "1536KiB"] {
            assert_eq!(format_size(parse_size(text).unwrap()), text);
        }
    }
}
