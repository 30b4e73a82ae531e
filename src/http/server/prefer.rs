//! Reads the header `Prefer` (RFC 7240): how long the client wants to wait for the task. A
//! malformed preference is ignored.

use std::time::Duration;

use http::HeaderMap;

/// The maximum time to wait, in seconds. A longer `wait` is reduced to this time.
const MAX_WAIT_SECONDS: u64 = 300;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefer {
    wait: Option<u64>,
    respond_async: bool,
}

impl Prefer {
    /// Reads the `Prefer` headers. When `wait` is repeated, the first valid value counts.
    #[must_use]
    pub(crate) fn read(headers: &HeaderMap) -> Self {
        let mut prefer = Self::default();
        let values = headers
            .get_all("prefer")
            .iter()
            .filter_map(|value| value.to_str().ok());
        for preference in values.flat_map(|value| split_unquoted(value, ',')) {
            let preference = split_unquoted(preference, ';').next().unwrap_or("").trim();
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name.eq_ignore_ascii_case("respond-async") && value.is_empty() {
                prefer.respond_async = true;
            } else if name.eq_ignore_ascii_case("wait")
                && !value.is_empty()
                && value.bytes().all(|b| b.is_ascii_digit())
            {
                prefer.wait.get_or_insert(
                    value
                        .parse()
                        .unwrap_or(MAX_WAIT_SECONDS)
                        .min(MAX_WAIT_SECONDS),
                );
            }
        }
        prefer
    }

    /// Reduces the client's `wait`, if it is longer, to the time `longest`.
    #[must_use]
    pub(crate) fn at_most(self, longest: Duration) -> Self {
        let wait = self.wait.map(|seconds| seconds.min(longest.as_secs()));
        Self { wait, ..self }
    }

    /// Returns the time to wait, at most 300 s: the client's `wait`, else zero for `respond-async`,
    /// else `default`.
    #[must_use]
    pub(crate) fn wait_or(self, default: Duration) -> Duration {
        match (self.wait, self.respond_async) {
            (Some(seconds), _) => Duration::from_secs(seconds),
            (None, true) => Duration::ZERO,
            (None, false) => default.min(Duration::from_secs(MAX_WAIT_SECONDS)),
        }
    }

    /// Returns the time that an HTTP request may wait, and the value of `Preference-Applied`. If
    /// `has_slot` is false, too many clients already wait at gates, so this request does not wait.
    /// The response then confirms the client's preference only if the client prefers not to wait.
    pub(crate) fn within_slot(
        self,
        has_slot: bool,
        default: Duration,
    ) -> (Duration, Option<String>) {
        let wait = self.wait_or(default);
        if has_slot {
            (wait, self.applied())
        } else {
            let applied = self.applied().filter(|_| wait.is_zero());
            (Duration::ZERO, applied)
        }
    }

    /// Returns the value of the response's header `Preference-Applied`; `None` without a
    /// preference.
    #[must_use]
    pub(crate) fn applied(self) -> Option<String> {
        match (self.wait, self.respond_async) {
            (Some(seconds), true) => Some(format!("respond-async, wait={seconds}")),
            (Some(seconds), false) => Some(format!("wait={seconds}")),
            (None, true) => Some("respond-async".to_owned()),
            (None, false) => None,
        }
    }
}

/// Splits a header's value at each `separator` outside of quoted strings (RFC 9110, section 5.6.4).
fn split_unquoted(value: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    value.split(move |c| {
        let is_separator = c == separator && !is_quoted;
        if is_escaped {
            is_escaped = false;
        } else if c == '"' {
            is_quoted = !is_quoted;
        } else if c == '\\' {
            is_escaped = is_quoted;
        }
        is_separator
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferences_are_read_or_ignored() {
        let cases: &[(&[&str], u64, Option<&str>)] = &[
            (&[], 10, None),
            (&["wait=5"], 5, Some("wait=5")),
            (&["WAIT=\"5\""], 5, Some("wait=5")),
            (&["foo=\"a,wait=0\", bar=\"\\\",wait=1\""], 10, None),
            (&["foo=\"a;b\";c=\",\", wait=2"], 2, Some("wait=2")),
            (&["wait=0"], 0, Some("wait=0")),
            (&["wait=301"], 300, Some("wait=300")),
            (&["wait=99999999999999999999999"], 300, Some("wait=300")),
            (&["respond-async"], 0, Some("respond-async")),
            (&["respond-async, wait=3"], 3, Some("respond-async, wait=3")),
            (
                &["respond-async", "wait=3"],
                3,
                Some("respond-async, wait=3"),
            ),
            (&["wait=3; x=y, return=minimal"], 3, Some("wait=3")),
            (&["wait=3, wait=9"], 3, Some("wait=3")),
            (&["wait=abc"], 10, None),
            (&["wait=-1"], 10, None),
            (&["wait=1.5"], 10, None),
            (&["wait"], 10, None),
            (&["wait=abc, wait=4"], 4, Some("wait=4")),
        ];
        for (values, seconds, applied) in cases {
            let mut headers = HeaderMap::new();
            for value in *values {
                headers.append("prefer", value.parse().unwrap());
            }
            let prefer = Prefer::read(&headers);
            assert_eq!(
                prefer.wait_or(Duration::from_secs(10)),
                Duration::from_secs(*seconds),
                "{values:?}"
            );
            assert_eq!(prefer.applied().as_deref(), *applied, "{values:?}");
        }
    }
}
