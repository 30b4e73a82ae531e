//! Sets the headers of responses.

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Sets a header. A value that is not valid in a header is ignored.
pub(crate) fn insert_header(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
