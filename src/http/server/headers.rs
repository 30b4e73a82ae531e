//! Reads a header of a request, and sets the headers of responses.

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Returns the value of the header `name`; `None` without the header.
///
/// # Errors
/// Fails if the header is repeated, or is not 1 to `max` visible ASCII characters. The error is a
/// text for the client.
pub(crate) fn visible_header(
    headers: &HeaderMap,
    name: &str,
    max: usize,
) -> Result<Option<String>, String> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let fits = values.next().is_none()
        && (1..=max).contains(&value.len())
        && value.as_bytes().iter().all(u8::is_ascii_graphic);
    let text = value.to_str().ok().filter(|_| fits);
    text.map(|text| Some(text.to_owned()))
        .ok_or_else(|| format!("{name} must be one header of 1 to {max} visible ASCII characters."))
}

/// Sets a header. A value that is not valid in a header is ignored.
pub(crate) fn insert_header(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
