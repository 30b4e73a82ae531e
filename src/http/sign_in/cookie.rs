//! The cookie: read, set, cleared. Scripts do not see it, other sites do not send it with what changes something, and over
//! https it never goes out in the clear.

use http::header::{COOKIE, HeaderMap, HeaderValue};

use crate::http::problem::{Problem, prefix};
use crate::people::session::{LIFE, Token};

/// Its name.
pub const NAME: &str = "holdpoint_session";

/// The token in a request's cookie. Where two come, one may be somebody else's (a neighbour on the same domain can set
/// one): none is taken.
#[must_use]
pub fn token(headers: &HeaderMap) -> Option<Token> {
    let mut values = values(headers);
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    Token::read(value)
}

/// Whether the cookie came at all, whatever it is worth.
#[must_use]
pub fn came(headers: &HeaderMap) -> bool {
    values(headers).next().is_some()
}

fn values(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|header| header.to_str().ok())
        .flat_map(|header| header.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter_map(|(name, value)| (name == NAME).then_some(value))
}

/// The header that gives a browser its token.
///
/// # Errors
/// `internal`, when it cannot be written.
pub fn set(token: &Token, public_url: &str) -> Result<HeaderValue, Problem> {
    write(&token.text(), LIFE.as_secs(), public_url)
}

/// The header that takes it away.
///
/// # Errors
/// `internal`, when it cannot be written.
pub fn clear(public_url: &str) -> Result<HeaderValue, Problem> {
    write("", 0, public_url)
}

fn write(value: &str, seconds: u64, public_url: &str) -> Result<HeaderValue, Problem> {
    let secure =
        if public_url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:")) { "; Secure" } else { "" };
    let text = format!(
        "{NAME}={value}; Path={}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}",
        path(&prefix(public_url))
    );
    let mut header = HeaderValue::from_str(&text).map_err(|_| Problem::internal())?;
    header.set_sensitive(true);
    Ok(header)
}

/// Where a browser sends it: what is under `public_url`, and not to the neighbours behind the same proxy.
fn path(prefix: &str) -> &str {
    let plain = |c: char| c.is_ascii_graphic() && c != ';';
    if prefix.is_empty() || !prefix.chars().all(plain) { "/" } else { prefix }
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
    fn the_flags_follow_the_public_url() {
        let token = Token::of([1; 32]);
        let text = |url| set(&token, url).unwrap().to_str().unwrap().to_owned();
        let start = format!("holdpoint_session={}; ", token.text());
        assert_eq!(text("http://127.0.0.1:8080"), format!("{start}Path=/; Max-Age=43200; HttpOnly; SameSite=Lax"));
        assert_eq!(
            text("https://hold.example"),
            format!("{start}Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure")
        );
        assert_eq!(
            text("HTTPS://hold.example/base"),
            format!("{start}Path=/base; Max-Age=43200; HttpOnly; SameSite=Lax; Secure")
        );
        assert!(text("https://hold.example/a;Domain=example").contains("; Path=/; "));
        assert_eq!(
            clear("https://hold.example/base").unwrap().to_str().unwrap(),
            "holdpoint_session=; Path=/base; Max-Age=0; HttpOnly; SameSite=Lax; Secure"
        );
        assert!(set(&token, "http://x").unwrap().is_sensitive());
    }

    #[test]
    fn the_cookie_is_found_among_others_and_two_are_none() {
        let token = Token::of([1; 32]).text();
        let own = format!("holdpoint_session={token}");
        for cookies in [vec![own.as_str()], vec![&format!("a=b;{own} ; c=d")], vec!["a=b", &own], vec!["a", &own]] {
            assert_eq!(super::token(&sent(&cookies)).unwrap().text(), token, "{cookies:?}");
        }
        let other = format!("holdpoint_session={}", Token::of([2; 32]).text());
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
            assert!(super::token(&sent(&cookies)).is_none(), "{cookies:?}");
        }
        assert!(came(&sent(&["holdpoint_session=nonsense"])) && !came(&sent(&["a=holdpoint_session"])));
    }
}
