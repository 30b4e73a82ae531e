//! Reads, sets and clears the session's cookie. The cookie is `HttpOnly`, `SameSite=Lax`, and
//! `Secure` over https.

use http::header::{COOKIE, HeaderMap, HeaderValue};

use crate::http::server::problem::{Problem, path_prefix};
use crate::people::session::{SESSION_DURATION, Token};

/// The cookie's name over plain http.
pub(crate) const PLAIN_NAME: &str = "holdpoint_session";
/// The cookie's name over https when `public_url` has no path. A browser accepts a `__Host-` cookie
/// only with `Secure`, with `Path=/` and without `Domain`, so no other host of the domain can set a
/// cookie of this name.
const HOST_PREFIX_NAME: &str = "__Host-holdpoint_session";
/// The cookie's name over https when `public_url` has a path.
const SECURE_PREFIX_NAME: &str = "__Secure-holdpoint_session";

#[must_use]
pub(crate) fn name(public_url: &str) -> &'static str {
    match (is_https(public_url), path_prefix(public_url).is_empty()) {
        (true, true) => HOST_PREFIX_NAME,
        (true, false) => SECURE_PREFIX_NAME,
        (false, _) => PLAIN_NAME,
    }
}

fn is_https(public_url: &str) -> bool {
    public_url
        .get(..6)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
}

/// Returns the token in the cookie of an HTTP request; `None` without the cookie, or for a
/// malformed token. Also `None` for two cookies of this name, because another host of the domain
/// may have set one of them.
#[must_use]
pub(crate) fn token(headers: &HeaderMap, public_url: &str) -> Option<Token> {
    let mut values = values(headers, name(public_url));
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    Token::read(value)
}

/// Returns whether the request has the session's cookie, even if the token in the cookie is
/// malformed or no longer valid.
#[must_use]
pub(crate) fn is_sent(headers: &HeaderMap, public_url: &str) -> bool {
    values(headers, name(public_url)).next().is_some()
}

fn values<'h>(headers: &'h HeaderMap, cookie_name: &'static str) -> impl Iterator<Item = &'h str> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|header| header.to_str().ok())
        .flat_map(|header| header.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter_map(move |(name, value)| (name == cookie_name).then_some(value))
}

/// Returns the `Set-Cookie` header that gives a browser the session's token.
///
/// # Errors
/// `internal` when the value is no valid header.
pub(crate) fn set(token: &Token, public_url: &str) -> Result<HeaderValue, Problem> {
    write(&token.text(), SESSION_DURATION.as_secs(), public_url)
}

/// Returns the `Set-Cookie` header that deletes the cookie.
///
/// # Errors
/// `internal` when the value is no valid header.
pub(crate) fn clear(public_url: &str) -> Result<HeaderValue, Problem> {
    write("", 0, public_url)
}

fn write(value: &str, seconds: u64, public_url: &str) -> Result<HeaderValue, Problem> {
    let secure = if is_https(public_url) { "; Secure" } else { "" };
    let (name, prefix) = (name(public_url), path_prefix(public_url));
    let text = format!(
        "{name}={value}; Path={}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}",
        path(&prefix)
    );
    let mut header =
        HeaderValue::from_str(&text).map_err(|_| Problem::internal("a cookie cannot be sent"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Returns the cookie's `Path`: `prefix`, or `/` if `prefix` is empty or cannot be a cookie's path.
/// A browser sends the cookie to URLs at or below this path, so other services behind the same
/// proxy do not get it.
fn path(prefix: &str) -> &str {
    let plain = |c: char| c.is_ascii_graphic() && c != ';';
    if prefix.is_empty() || !prefix.chars().all(plain) {
        "/"
    } else {
        prefix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(cookies: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(COOKIE, HeaderValue::from_bytes(cookie.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn cookie_flags_follow_the_public_url() {
        let token = Token::from_bytes([1; 32]);
        let text = |url| set(&token, url).unwrap().to_str().unwrap().to_owned();
        let pair = format!("holdpoint_session={}; ", token.text());
        for (url, expected) in [
            (
                "http://127.0.0.1:8080",
                format!("{pair}Path=/; Max-Age=43200; HttpOnly; SameSite=Lax"),
            ),
            (
                "http://hold.example/base",
                format!("{pair}Path=/base; Max-Age=43200; HttpOnly; SameSite=Lax"),
            ),
            (
                "https://hold.example",
                format!("__Host-{pair}Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"),
            ),
            (
                "HTTPS://hold.example/",
                format!("__Host-{pair}Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"),
            ),
            (
                "HTTPS://hold.example/base",
                format!("__Secure-{pair}Path=/base; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"),
            ),
        ] {
            assert_eq!(text(url), expected, "{url}");
        }
        assert!(text("https://hold.example/a;Domain=example").contains("; Path=/; "));
        assert_eq!(
            clear("https://hold.example/base")
                .unwrap()
                .to_str()
                .unwrap(),
            "__Secure-holdpoint_session=; Path=/base; Max-Age=0; HttpOnly; SameSite=Lax; Secure"
        );
        assert!(set(&token, "http://x").unwrap().is_sensitive());
    }

    #[test]
    fn cookie_is_found_among_others_and_duplicates_are_refused() {
        let token = Token::from_bytes([1; 32]).text();
        let own = format!("holdpoint_session={token}");
        for cookies in [
            vec![own.as_str()],
            vec![&format!("a=b;{own} ; c=d")],
            vec!["a=b", &own],
            vec!["a", &own],
        ] {
            assert_eq!(
                super::token(&sent(&cookies), "http://h").unwrap().text(),
                token,
                "{cookies:?}"
            );
        }
        let other = format!("holdpoint_session={}", Token::from_bytes([2; 32]).text());
        for cookies in [
            vec![],
            vec!["holdpoint_session="],
            vec!["holdpoint_session"],
            vec![&format!("Holdpoint_Session={token}")],
            vec![&format!("xholdpoint_session={token}")],
            vec![&format!("holdpoint_session=\"{token}\"")],
            vec![&format!("{own}; {other}")],
            vec![&own, &other],
            vec![&own, "holdpoint_session="],
        ] {
            assert!(
                super::token(&sent(&cookies), "http://h").is_none(),
                "{cookies:?}"
            );
        }
        let is_sent = |cookie| is_sent(&sent(&[cookie]), "http://h");
        assert!(is_sent("holdpoint_session=nonsense") && !is_sent("a=holdpoint_session"));
    }

    #[test]
    fn cookie_without_the_prefix_is_refused_over_https() {
        let token = Token::from_bytes([1; 32]).text();
        for (url, name) in [
            ("http://h", "holdpoint_session"),
            ("https://h", "__Host-holdpoint_session"),
            ("https://h/base", "__Secure-holdpoint_session"),
        ] {
            for sent_as in [
                "holdpoint_session",
                "__Host-holdpoint_session",
                "__Secure-holdpoint_session",
            ] {
                let headers = sent(&[&format!("{sent_as}={token}")]);
                assert_eq!(
                    super::token(&headers, url).is_some(),
                    sent_as == name,
                    "{url}: {sent_as}"
                );
                assert_eq!(is_sent(&headers, url), sent_as == name, "{url}: {sent_as}");
            }
            // A cookie of another service with a similar name does not hide the session's cookie.
            let both = sent(&[&format!("{name}={token}"), "xholdpoint_session=a"]);
            assert!(super::token(&both, url).is_some(), "{url}");
        }
    }
}
