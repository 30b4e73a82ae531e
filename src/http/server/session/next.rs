//! The path of the page that opens after the sign-in. The path must be a path of this service, so
//! that a link to the sign-in page cannot redirect to another site. A path that a browser and this
//! service could read differently is refused.

use url::Url;
use url::form_urlencoded::byte_serialize;

const MAX_PATH_BYTES: usize = 2048;

/// Returns `text` if a browser reads it as a path of this service, at or below `prefix` (the path
/// of `public_url`).
#[must_use]
pub(crate) fn local_path<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let visible = text
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if text.len() > MAX_PATH_BYTES || !visible || !text.starts_with('/') || text.starts_with("//") {
        return None;
    }
    let below = text.strip_prefix(prefix)?;
    if !(below.is_empty() || below.starts_with(['/', '?', '#'])) {
        return None;
    }
    // Resolves the text as a browser does. The URL must have the origin of `base`. Its path must be
    // the path in `text`: if a browser changes the path, for example because of `..` (also written
    // `%2e%2e`), the new path may be outside `prefix`.
    let base = Url::parse("http://own.invalid/").ok()?;
    let read = base.join(text).ok()?;
    let path = text.split(['?', '#']).next().unwrap_or_default();
    (read.origin() == base.origin() && read.path() == path).then_some(text)
}

/// Returns the address of the sign-in page. After the sign-in, the page opens the path `next`.
#[must_use]
pub(crate) fn sign_in_address(prefix: &str, next: Option<&str>) -> String {
    let address = format!("{prefix}/sign-in");
    match next {
        Some(next) => {
            let next: String = byte_serialize(next.as_bytes()).collect();
            // A query may contain `/`. A `%2F` in `next` itself is written `%252F`.
            let next = next.replace("%2F", "/");
            format!("{address}?next={next}")
        }
        None => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_paths_are_kept_unchanged() {
        for text in [
            "/",
            "/resume/019a4b2c-7000-7000-8000-000000000002",
            "/resume/x/approve?a=b&c=/d//e",
            "/v1/me",
            "/resume/x#calls",
            "/resume/%ff",
            "/?next=https://evil.example",
        ] {
            assert_eq!(local_path(text, ""), Some(text));
        }
        for text in ["/base", "/base/", "/base/resume/x", "/base?a"] {
            assert_eq!(local_path(text, "/base"), Some(text));
        }
    }

    #[test]
    fn paths_that_could_lead_elsewhere_are_refused() {
        let long = format!("/{}", "x".repeat(MAX_PATH_BYTES));
        for text in [
            "",
            "resume/x",
            "//evil.example",
            "///evil.example",
            "/\\evil.example",
            "\\/evil.example",
            "\\\\evil.example",
            "/resume\\..\\..",
            "https://evil.example",
            "https:evil.example",
            "HTTPS://evil.example/resume/x",
            "javascript:alert(1)",
            "data:text/html,x",
            "/\t/evil.example",
            "\t//evil.example",
            " /resume/x",
            "/resume/x ",
            "/\n/evil.example",
            "/resume/x\r\nset-cookie: a=b",
            "/resume/\0",
            "/resume/\u{7f}",
            "/resume/\u{202e}",
            "/é",
            "/..//evil.example",
            "/./x",
            "/a/../b",
            "/a/%2e%2e/b",
            "/a/.%2E",
            "/.",
            "?next=/",
            "#x",
            &long,
        ] {
            assert_eq!(local_path(text, ""), None, "{text:?}");
        }
        for text in [
            "/",
            "/other",
            "/basement",
            "/base/../other",
            "/base/%2e%2e/other",
            "//base/x",
            "/Base/x",
            "/base\\x",
        ] {
            assert_eq!(local_path(text, "/base"), None, "{text:?}");
        }
    }
}
