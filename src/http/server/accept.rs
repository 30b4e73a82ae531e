//! Reads from `Accept` whether a client wants a page or an event stream, and from `Accept-Encoding`
//! whether the client takes gzip. `Accept` must name the media type itself. The range `*/*` does
//! not count: programs that expect JSON often send it, and a browser always names `text/html`.

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderName};

/// Returns whether `Accept` names `text/html` with a quality that is above 0 and not below the
/// quality of JSON.
#[must_use]
pub(crate) fn wants_html(headers: &HeaderMap) -> bool {
    prefers(headers, "text/html")
}

/// Returns whether `Accept` names `text/event-stream` with a quality that is above 0 and not below
/// the quality of JSON.
#[must_use]
pub(crate) fn wants_stream(headers: &HeaderMap) -> bool {
    prefers(headers, "text/event-stream")
}

#[must_use]
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    weight(headers, ACCEPT_ENCODING, "gzip") > 0.0
}

fn prefers(headers: &HeaderMap, kind: &str) -> bool {
    let wanted = weight(headers, ACCEPT, kind);
    wanted > 0.0 && wanted >= weight(headers, ACCEPT, "application/json")
}

/// Returns the quality that the header gives to `wanted`; 0 if the header does not name `wanted`.
fn weight(headers: &HeaderMap, header: HeaderName, wanted: &str) -> f32 {
    ranges(headers, header)
        .filter(|(name, _)| name.eq_ignore_ascii_case(wanted))
        .map(|(_, quality)| quality.and_then(|q| q.parse().ok()).unwrap_or(1.0_f32))
        .fold(0.0_f32, f32::max)
}

/// Returns the names that the header lists, each with its quality as text, if it has one.
pub(crate) fn ranges(
    headers: &HeaderMap,
    header: HeaderName,
) -> impl Iterator<Item = (&str, Option<&str>)> {
    headers
        .get_all(header)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next()?;
            let quality =
                parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            Some((name, quality))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browser_gets_a_page_and_a_program_json() {
        let cases = [
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                true,
            ),
            ("text/html", true),
            ("*/*", false),
            ("application/json", false),
            ("application/json, text/html;q=0.5", false),
            ("text/html;q=0", false),
            ("", false),
        ];
        for (accept, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(wants_html(&headers), expected, "{accept}");
        }
        assert!(!wants_html(&HeaderMap::new()));
        assert!(!wants_stream(&HeaderMap::new()));
    }

    #[test]
    fn gzip_is_taken_where_it_is_named() {
        let cases = [
            ("gzip, deflate, br, zstd", true),
            ("br;q=1.0, GZip;q=0.8", true),
            ("gzip;q=0", false),
            ("*", false),
            ("identity", false),
            ("", false),
        ];
        for (accept, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, accept.parse().unwrap());
            assert_eq!(takes_gzip(&headers), expected, "{accept}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    #[test]
    fn stream_is_requested_by_name() {
        let cases = [
            ("text/event-stream", true),
            ("Text/Event-Stream; q=0.5", true),
            ("text/event-stream, application/json;q=0.5", true),
            ("application/json, text/event-stream", true),
            ("application/json, text/event-stream;q=0.5", false),
            ("text/event-stream;q=0", false),
            ("text/*", false),
            ("*/*", false),
            ("text/html", false),
        ];
        for (accept, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(wants_stream(&headers), expected, "{accept}");
        }
    }
}
