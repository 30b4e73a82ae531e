//! A tool's `url`, with `{name}` for arguments. What must stay true: what is filled in never changes scheme, host, port
//! or which segment of the path it stands in; it can only be the text of one segment, or of one value of the query.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;
use serde_json::Value;

use super::credential::{self, Credentials};
use super::names::folded;

/// What stays as it is: the unreserved characters of RFC 3986.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// One part of a template after its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Argument(String),
    Credential(String, String),
}

/// A checked template.
#[derive(Clone, Debug)]
pub struct UrlTemplate {
    /// Scheme, host and port, as they are shown: `http://payments.internal`.
    pub origin: String,
    /// As it is sent: what stands before the path.
    start: String,
    path: Vec<Piece>,
    query: Option<Vec<Piece>>,
}

impl UrlTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(text: &str) -> Result<Self, String> {
        let after_scheme = text.split_once("://").map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest));
        let Some((scheme, rest)) = after_scheme.filter(|(scheme, _)| scheme == "http" || scheme == "https") else {
            return Err("must begin with `http://` or `https://`".to_owned());
        };
        let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if authority.contains(['{', '}']) {
            return Err("has a placeholder in its host or port; they are fixed".to_owned());
        }
        if authority.contains('@') {
            return Err("names a user; credentials belong in `headers`".to_owned());
        }
        if text.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
            return Err("has a space, a control character or a backslash".to_owned());
        }
        if rest.contains('#') {
            return Err("has a `#`, which is never sent".to_owned());
        }
        let start = format!("{scheme}://{authority}");
        let origin = match Url::parse(&start) {
            Ok(url) if url.host_str().is_some_and(|host| !host.is_empty()) => url.origin().ascii_serialization(),
            Ok(_) | Err(_) => return Err("has no usable host and port".to_owned()),
        };
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        if path.split('/').any(has_dots) {
            return Err("has a segment `.` or `..`".to_owned());
        }
        let query = query.map(pieces).transpose()?;
        if !query.iter().all(|pieces| credentials_are_values(pieces)) {
            return Err("has a credential in its query that is not a value behind a `=`".to_owned());
        }
        Ok(Self { origin, start, path: pieces(path)?, query })
    }

    /// The arguments it takes, each with whether it stands in the path.
    pub fn arguments(&self) -> impl Iterator<Item = (&str, bool)> {
        let path = self.path.iter().map(|piece| (piece, true));
        let query = self.query.iter().flatten().map(|piece| (piece, false));
        path.chain(query).filter_map(|(piece, in_path)| match piece {
            Piece::Argument(name) => Some((name.as_str(), in_path)),
            Piece::Text(_) | Piece::Credential(..) => None,
        })
    }

    /// The credentials it needs.
    pub fn needs(&self) -> impl Iterator<Item = &str> {
        self.path.iter().chain(self.query.iter().flatten()).filter_map(|piece| match piece {
            Piece::Credential(name, _) => Some(name.as_str()),
            Piece::Text(_) | Piece::Argument(_) => None,
        })
    }

    /// The names its own query has, folded.
    pub fn query_names(&self) -> BTreeSet<String> {
        let mut text = String::new();
        for piece in self.query.iter().flatten() {
            match piece {
                Piece::Text(literal) => text.push_str(literal),
                Piece::Argument(_) | Piece::Credential(..) => text.push('x'),
            }
        }
        url::form_urlencoded::parse(text.as_bytes()).map(|(name, _)| folded(&name)).collect()
    }

    /// The URL of one call. `rest` says that arguments which the template does not name go into the query.
    ///
    /// # Errors
    /// Why there is none; names the argument or the credential, never its value.
    pub fn fill(&self, arguments: &Value, credentials: &Credentials, rest: bool) -> Result<Url, String> {
        self.filled(arguments, rest, &|name, field| credentials.value(name, field))
    }

    /// Why there is no URL with these arguments, whatever the credentials; names the argument, never its value.
    #[must_use]
    pub fn refuses(&self, arguments: &Value, rest: bool) -> Option<String> {
        self.filled(arguments, rest, &|_, _| Ok("x")).err()
    }

    fn filled(&self, arguments: &Value, rest: bool, credential: Credential<'_>) -> Result<Url, String> {
        let path = filled(&self.path, arguments, credential, true)?;
        if path.split('/').any(has_dots) {
            return Err("what is filled in would make `.` or `..` a segment of the path".to_owned());
        }
        let mut query = match &self.query {
            Some(pieces) => Some(filled(pieces, arguments, credential, false)?),
            None => None,
        };
        for (name, text) in if rest { self.others(arguments)? } else { BTreeMap::new() } {
            let query = query.get_or_insert_default();
            if !query.is_empty() && !query.ends_with('&') {
                query.push('&');
            }
            let _ = write!(query, "{}={}", encoded(name), encoded(&text));
        }
        let mut whole = format!("{}{path}", self.start);
        if let Some(query) = query {
            whole.push('?');
            whole.push_str(&query);
        }
        let url = Url::parse(&whole).map_err(|_| "what is filled in makes no usable URL".to_owned())?;
        let segments = url.path().split('/').count();
        if url.origin().ascii_serialization() != self.origin || segments != path.split('/').count().max(2) {
            return Err("what is filled in would change where the call goes".to_owned());
        }
        Ok(url)
    }

    /// The address of one call for a person: without the query, credentials as they are referred to. What is filled in
    /// stands there as it is sent; an argument that cannot be sent stays a `{name}`.
    pub fn shown(&self, arguments: &Value) -> String {
        let none = |_: &str, _: &str| Err(String::new());
        let piece = |piece: &Piece| filled(std::slice::from_ref(piece), arguments, &none, true);
        self.address(piece).or_else(|| self.address(|_| Err(String::new()))).unwrap_or_else(|| self.origin.clone())
    }

    /// The address with the pieces that `fill` has a text for; the others as they are written.
    fn address(&self, fill: impl Fn(&Piece) -> Result<String, String>) -> Option<String> {
        // A `'` is encoded in whatever is filled in, so that nothing can pass for a piece that was kept.
        let mark = |index: usize| format!("'{index}'");
        let (mut path, mut kept) = (String::new(), Vec::new());
        for (index, piece) in self.path.iter().enumerate() {
            match piece {
                Piece::Text(literal) => path.push_str(literal),
                Piece::Argument(name) => {
                    path.push_str(&fill(piece).unwrap_or_else(|_| mark(index)));
                    kept.push((mark(index), format!("{{{name}}}")));
                }
                Piece::Credential(name, field) => {
                    path.push_str(&mark(index));
                    kept.push((mark(index), format!("{}{name}.{field}}}}}", credential::OPEN)));
                }
            }
        }
        let url = Url::parse(&format!("{}{path}", self.start)).ok()?;
        let segments = path.split('/').count().max(2);
        let stays = url.path().split('/').count() == segments && url.origin().ascii_serialization() == self.origin;
        let address = format!("{}{}", self.origin, url.path());
        stays.then(|| kept.iter().fold(address, |address, (mark, shown)| address.replace(mark, shown)))
    }

    fn others<'a>(&self, arguments: &'a Value) -> Result<BTreeMap<&'a str, String>, String> {
        let taken = self.query_names();
        let used: BTreeSet<&str> = self.arguments().map(|(name, _)| name).collect();
        let mut others = BTreeMap::new();
        for (name, value) in arguments.as_object().into_iter().flatten() {
            if used.contains(name.as_str()) || value.is_null() {
                continue;
            }
            if taken.contains(&folded(name)) {
                return Err("an argument has the name of something that the URL's query has already".to_owned());
            }
            let Some(text) = scalar_text(value) else {
                return Err(format!("the argument `{}` is no text, number or boolean", short(name)));
            };
            others.insert(name.as_str(), text);
        }
        Ok(others)
    }
}

/// A scalar as it stands in a URL; a whole number without a fraction, however it was written.
fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(yes) => Some(yes.to_string()),
        Value::Number(number) => {
            let text = number.to_string();
            Some(text.strip_suffix(".0").map(str::to_owned).unwrap_or(text))
        }
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Whether each credential stands where a value does: behind the `=` of its pair.
fn credentials_are_values(query: &[Piece]) -> bool {
    let mut in_value = false;
    query.iter().all(|piece| {
        if let Piece::Text(literal) = piece {
            let last = literal.rsplit('&').next().unwrap_or_default();
            in_value = last.contains('=') || (in_value && !literal.contains('&'));
        }
        in_value || !matches!(piece, Piece::Credential(..))
    })
}

/// The value of a credential's field.
type Credential<'c> = &'c dyn Fn(&str, &str) -> Result<&'c str, String>;

fn filled(pieces: &[Piece], arguments: &Value, credential: Credential<'_>, in_path: bool) -> Result<String, String> {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(literal) => text.push_str(literal),
            Piece::Credential(name, field) => {
                let value = credential(name, field)?;
                if in_path && (value.is_empty() || has_dots(value)) {
                    return Err(format!("the field `{field}` of the credential `{name}` {NO_SEGMENT}"));
                }
                text.push_str(&encoded(value));
            }
            Piece::Argument(name) => {
                let Some(value) = arguments.get(name) else {
                    return Err(format!("the argument `{name}`, which its URL needs, is missing"));
                };
                let Some(value) = scalar_text(value) else {
                    return Err(format!("the argument `{name}`, which its URL needs, is no text, number or boolean"));
                };
                if in_path && (value.is_empty() || has_dots(&value)) {
                    return Err(format!("the argument `{name}` {NO_SEGMENT}"));
                }
                text.push_str(&encoded(&value));
            }
        }
    }
    Ok(text)
}

/// Why something may stand in no path.
const NO_SEGMENT: &str =
    "is empty, or has `.` or `..` between slashes or its ends, also after percent-decoding: no segment of a path may";

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Whether a server that decodes a segment, and decodes it again, could read a `.` or `..` between slashes, backslashes or
/// the ends.
fn has_dots(segment: &str) -> bool {
    let mut decoded = Vec::with_capacity(segment.len());
    for byte in segment.bytes() {
        decoded.push(byte);
        // What an escape stands for may end another one.
        while let [.., b'%', high, low] = decoded.as_slice()
            && let (Some(high), Some(low)) = (char::from(*high).to_digit(16), char::from(*low).to_digit(16))
        {
            decoded.truncate(decoded.len() - 3);
            decoded.extend(u8::try_from(high * 16 + low));
        }
    }
    decoded.split(|byte| matches!(byte, b'/' | b'\\')).any(|part| matches!(part, b"." | b".."))
}

fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, after) = rest.split_at(at);
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        if after.starts_with(credential::OPEN) {
            let ((name, field), tail) = credential::split(after)?;
            pieces.push(Piece::Credential(name.to_owned(), field.to_owned()));
            rest = tail;
            continue;
        }
        let name = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let Some((name, tail)) = name.filter(|(name, _)| !name.is_empty() && !name.contains('{')) else {
            return Err("has a `{` or `}` that is not part of a `{name}`".to_owned());
        };
        pieces.push(Piece::Argument(name.to_owned()));
        rest = tail;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

fn short(name: &str) -> &str {
    crate::task::text::cut(name, 80)
}

#[cfg(test)]
mod tests {
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::secret::Secret;

    fn url(template: &str, arguments: &Value) -> Result<String, String> {
        UrlTemplate::read(template)?.fill(arguments, &Credentials::default(), true).map(String::from)
    }

    #[test]
    fn an_argument_is_one_segment_whatever_it_holds() {
        for (id, expected) in [
            ("17", "17"),
            ("a/b", "a%2Fb"),
            ("a..b/..c", "a..b%2F..c"),
            ("a b?c#d&e=f", "a%20b%3Fc%23d%26e%3Df"),
            ("%2e%2e%2e", "%252e%252e%252e"),
            ("a\\b", "a%5Cb"),
            ("@evil.com:80", "%40evil.com%3A80"),
            ("é", "%C3%A9"),
            ("...", "..."),
            (";v=1", "%3Bv%3D1"),
            ("\n", "%0A"),
        ] {
            let found = url("http://h/orders/{id}/x", &json!({"id": id}));
            assert_eq!(found, Ok(format!("http://h/orders/{expected}/x")));
        }
        assert_eq!(url("http://h/{a}-{b}", &json!({"a": 1, "b": true})), Ok("http://h/1-true".to_owned()));
        assert_eq!(url("http://h/{a}", &json!({"a": 17.0})), Ok("http://h/17".to_owned()));
        assert_eq!(url("http://h/{a}", &json!({"a": 0.5})), Ok("http://h/0.5".to_owned()));
    }

    #[test]
    fn what_would_leave_its_segment_is_refused() {
        for (template, arguments) in [
            ("http://h/orders/{id}", json!({"id": "."})),
            ("http://h/orders/{id}", json!({"id": ".."})),
            ("http://h/orders/{id}/x", json!({"id": ""})),
            ("http://h/orders/.{id}", json!({"id": "."})),
            ("http://h/orders/%2e{id}", json!({"id": "."})),
            ("http://h/orders/{a}{b}", json!({"a": ".", "b": "."})),
            ("http://h/orders/{id}", json!({})),
            ("http://h/orders/{id}", json!({"id": null})),
            ("http://h/orders/{id}", json!({"id": ["a"]})),
            ("http://h/orders/{id}", json!({"id": {"a": 1}})),
        ] {
            assert!(url(template, &arguments).is_err(), "{template} {arguments}");
        }
    }

    #[test]
    fn shown_address_has_the_arguments_as_they_are_sent_and_no_query() {
        let shown = |template: &str, arguments: &Value| UrlTemplate::read(template).unwrap().shown(arguments);
        for (template, arguments, expected) in [
            ("http://h/refunds/{id}", json!({"id": 17}), "http://h/refunds/17"),
            ("HTTP://H:80/refunds/{id}?k=1&x={id}", json!({"id": "17"}), "http://h/refunds/17"),
            ("http://h", json!({}), "http://h/"),
            ("http://h/{a}-{b}/x", json!({"a": "a/b", "b": "\u{202e}"}), "http://h/a%2Fb-%E2%80%AE/x"),
            ("http://h/{id}", json!({"id": "../admin?x#y"}), "http://h/..%2Fadmin%3Fx%23y"),
            ("http://h/é/{id}", json!({"id": "א"}), "http://h/%C3%A9/%D7%90"),
            ("http://h/{id}/x", json!({}), "http://h/{id}/x"),
            ("http://h/{id}/x", json!({"id": ".."}), "http://h/{id}/x"),
            ("http://h/{id}/{x}", json!({"id": ["a"], "x": 1}), "http://h/{id}/1"),
            ("http://h/.{id}/x", json!({"id": "."}), "http://h/.{id}/x"),
            (
                "http://h/{{credential:jira.token}}/{id}?k={{credential:jira.token}}",
                json!({"id": "{{credential:jira.token}}'0'"}),
                "http://h/{{credential:jira.token}}/%7B%7Bcredential%3Ajira.token%7D%7D%270%27",
            ),
        ] {
            assert_eq!(shown(template, &arguments), expected, "{template} {arguments}");
        }
    }

    #[test]
    fn other_arguments_go_into_the_query() {
        let arguments = json!({"id": "7", "q": "a&b=c d", "n": 2, "yes": false, "none": null});
        assert_eq!(url("http://h/x/{id}", &arguments), Ok("http://h/x/7?n=2&q=a%26b%3Dc%20d&yes=false".to_owned()));
        assert_eq!(url("http://h?k=1", &json!({"a": 1})), Ok("http://h/?k=1&a=1".to_owned()));
        assert_eq!(url("http://h/?k={id}", &json!({"id": "", "a": "#"})), Ok("http://h/?k=&a=%23".to_owned()));
        assert!(url("http://h/?k=1", &json!({"K": 2})).is_err());
        assert!(url("http://h/", &json!({"a": [1]})).is_err());
        let post = UrlTemplate::read("http://h/{id}").unwrap();
        assert_eq!(
            post.fill(&json!({"id": 1, "a": 2}), &Credentials::default(), false).map(String::from),
            Ok("http://h/1".to_owned())
        );
    }

    #[test]
    fn a_template_that_leaves_the_host_open_is_a_mistake() {
        for template in [
            "http://{host}/x",
            "http://h:{port}/x",
            "{scheme}://h/x",
            "{url}",
            "ftp://h/",
            "h/x",
            "",
            "http://",
            "http:///x",
            "http://u:p@h/",
            "http://h/x#y",
            "http://h/a b",
            "http://h/{",
            "http://h/}",
            "http://h/{}",
            "http://h/{a{b}}",
            "http://h\\{x}",
            "http://h/../x",
            "http://h/./x",
            "http://h:99999/",
            "http://h/{{credential:jira}}",
            "http://{{credential:jira.host}}/x",
            "http://h:{{credential:jira.port}}/x",
            "{{credential:jira.scheme}}://h/x",
            "http://{{credential:jira.user}}@h/x",
            "http://h/?{{credential:jira.token}}",
            "http://h/?{{credential:jira.token}}=1",
            "http://h/?a=1&{{credential:jira.token}}",
            "http://h/?a=1&b{{credential:jira.token}}=2",
            "http://h/#{{credential:jira.token}}",
            "builtin:other/x",
            "file:///etc/passwd",
        ] {
            assert!(UrlTemplate::read(template).is_err(), "{template}");
        }
        let template = UrlTemplate::read("HTTPS://H:443/a/{x}?y={z}&k={{credential:jira.token}}").unwrap();
        assert_eq!(template.origin, "https://h");
        assert_eq!(template.needs().collect::<Vec<_>>(), ["jira"]);
        assert_eq!(template.arguments().collect::<Vec<_>>(), [("x", true), ("z", false)]);
    }

    fn holding(value: &str) -> Credentials {
        let mut credentials = Credentials::default();
        credentials.insert("jira", BTreeMap::from([("token".to_owned(), Secret::new(value.to_owned()))]));
        credentials
    }

    #[test]
    fn a_credential_is_one_segment_or_one_value_whatever_it_holds() {
        let fill = |template: &str, value: &str| {
            UrlTemplate::read(template).unwrap().fill(&json!({"id": "7"}), &holding(value), false).map(String::from)
        };
        let (path, query) =
            ("http://h/{id}/{{credential:jira.token}}/x", "http://h/{id}?a=-{{credential:jira.token}}&b={id}");
        for (value, expected) in [
            ("plain", "plain"),
            ("a/b?c#d@evil", "a%2Fb%3Fc%23d%40evil"),
            ("a/b/c", "a%2Fb%2Fc"),
            ("%2e%2x", "%252e%252x"),
            ("a&b=c", "a%26b%3Dc"),
            ("{id}", "%7Bid%7D"),
            ("{{credential:jira.token}}", "%7B%7Bcredential%3Ajira.token%7D%7D"),
            ("clé 中", "cl%C3%A9%20%E4%B8%AD"),
            ("\\\\evil", "%5C%5Cevil"),
        ] {
            assert_eq!(fill(path, value), Ok(format!("http://h/7/{expected}/x")), "{value}");
            assert_eq!(fill(query, value), Ok(format!("http://h/7?a=-{expected}&b=7")), "{value}");
        }
        for value in ["", ".", "..", "../../admin", "%2e%2e", "a%252f..\\b"] {
            assert!(fill(path, value).is_err(), "{value}");
            assert!(fill(query, value).is_ok(), "{value}");
        }
        assert!(fill("http://h/.{{credential:jira.token}}", ".").is_err());
        for value in ["a\r\nb", "\0", "\u{7f}"] {
            assert!(fill(path, value).is_err() && fill(query, value).is_err());
        }
        for template in [path, query] {
            let missing =
                UrlTemplate::read(template).unwrap().fill(&json!({"id": "7"}), &Credentials::default(), false);
            assert_eq!(missing.unwrap_err(), "the credential `jira` is missing");
        }
    }

    /// The text stands in the second of three segments of the address that was written, and nothing else has changed. The
    /// query is returned.
    fn in_its_segment(url: &Url, text: &str) -> Vec<(String, String)> {
        assert_eq!((url.scheme(), url.host_str(), url.port(), url.fragment()), ("http", Some("h"), Some(81), None));
        let segments: Vec<&str> = url.path_segments().unwrap().collect();
        assert_eq!((segments.len(), segments[0], segments[2]), (3, "a", "b"));
        assert_eq!(percent_decode_str(segments[1]).decode_utf8().unwrap(), text);
        url.query_pairs().into_owned().collect()
    }

    /// Whether a `.` or `..` stands between slashes, backslashes or the ends of a text, decoded as often as it changes.
    fn climbs(text: &str) -> bool {
        let dots = |part: &[u8]| part == b"." || part == b"..";
        if text.as_bytes().split(|byte| matches!(byte, b'/' | b'\\')).any(dots) {
            return true;
        }
        let decoded: Vec<u8> = percent_decode_str(text).collect();
        // A byte that is no text decodes to nothing that matters here.
        let decoded: String =
            decoded.into_iter().map(|byte| if byte.is_ascii() { char::from(byte) } else { '?' }).collect();
        decoded.len() < text.len() && climbs(&decoded)
    }

    #[test]
    fn argument_with_dots_between_slashes_or_ends_is_refused_however_often_it_is_encoded() {
        for id in [
            ".",
            "..",
            "../admin",
            "a/..",
            "a/../b",
            "./a",
            "a/.",
            "..\\a",
            "a\\..\\b",
            "%2e%2e",
            "%2E%2e/a",
            "..%2Fa",
            "..%5ca",
            "%252e%252e",
            "a%252f..",
            "%25252e%25252E%25252f",
            "%%32e%2e",
            "a%2f%2e%2e",
            "\\.",
        ] {
            for template in ["http://h/orders/{id}", "http://h/{id}/x", "http://h/a/{id}?k={n}"] {
                let template = UrlTemplate::read(template).unwrap();
                let arguments = json!({"id": id, "n": 1});
                assert!(template.refuses(&arguments, false).unwrap().contains("the argument `id`"), "{id}");
                assert!(template.fill(&arguments, &Credentials::default(), false).is_err(), "{id}");
            }
            // In a query it climbs nowhere.
            assert!(url("http://h/a?k={id}", &json!({"id": id})).is_ok(), "{id}");
            assert!(climbs(id), "{id}");
        }
        for (template, arguments) in [
            ("http://h/.{id}", json!({"id": "%2e"})),
            ("http://h/{a}{b}", json!({"a": "%2e%2", "b": "e"})),
            ("http://h/{a}{b}", json!({"a": "x%2", "b": "f..", "c": 1})),
            ("http://h/..%2F{a}", json!({"a": "x"})),
        ] {
            assert!(url(template, &arguments).is_err(), "{template} {arguments}");
        }
        for id in ["...", "a..", "..a", "a.b", "..a/b..", ".a", "%2e%2e%2e", "%", "%2", "..%zz", "a%2e.b"] {
            assert!(url("http://h/orders/{id}", &json!({"id": id})).is_ok(), "{id}");
        }
        let long = format!("%{}2e%2e", "25".repeat(100_000));
        assert!(url("http://h/orders/{id}", &json!({"id": long})).is_err(), "in time that grows with the text");
    }

    proptest! {
        #[test]
        fn whatever_a_credential_holds_stays_in_its_place(token in any::<String>(), other in "[./%2eE\\\\?#@:&=]{0,6}") {
            for text in [token, other] {
                let template = UrlTemplate::read("http://h:81/a/{{credential:jira.token}}/b?x={{credential:jira.token}}").unwrap();
                let Ok(url) = template.fill(&json!({}), &holding(&text), false) else {
                    prop_assert!(text.is_empty() || climbs(&text) || text.chars().any(char::is_control));
                    continue;
                };
                let query = in_its_segment(&url, &text);
                prop_assert_eq!(query, [("x".to_owned(), text.clone())]);
            }
        }

        #[test]
        fn whatever_is_filled_in_is_shown_as_it_is_sent(id in any::<String>(), other in "[./%2eE\\\\?#@:'0-9{}]{0,6}") {
            for text in [id, other] {
                let template = UrlTemplate::read("http://h:81/a'0'/{id}/b.{id}?x={id}").unwrap();
                let arguments = json!({"id": text});
                let shown = template.shown(&arguments);
                match template.fill(&arguments, &Credentials::default(), false) {
                    Ok(url) => prop_assert_eq!(shown, format!("http://h:81{}", url.path())),
                    Err(_) => prop_assert!(shown.contains("{id}"), "{}", shown),
                }
            }
        }

        #[test]
        fn whatever_is_filled_in_stays_in_its_segment(id in any::<String>(), other in "[./%2eE\\\\?#@:]{0,6}") {
            for text in [id, other] {
                let template = UrlTemplate::read("http://h:81/a/{id}/b?x={id}").unwrap();
                let Ok(url) = template.fill(&json!({"id": text, "n": text}), &Credentials::default(), true) else {
                    prop_assert!(text.is_empty() || climbs(&text));
                    continue;
                };
                let query = in_its_segment(&url, &text);
                prop_assert_eq!(query, [("x".to_owned(), text.clone()), ("n".to_owned(), text.clone())]);
            }
        }
    }
}
