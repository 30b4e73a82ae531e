//! A tool's `url`, in which `{name}` stands for an argument. Invariant: a filled-in value is text
//! inside one path segment or one query value. The value never changes the scheme, the host, the
//! port or the number of segments.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;
use serde_json::Value;

use super::credential::{self, Credentials};
use super::names::{folded, shortened};

/// The characters that are percent-encoded: all but the unreserved characters of RFC 3986.
const SEGMENT_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

#[derive(Clone, Debug, PartialEq, Eq)]
enum UrlPart {
    Text(String),
    Argument(String),
    /// The credential's name and the field's name.
    Credential(String, String),
}

#[derive(Clone, Debug)]
pub(crate) struct UrlTemplate {
    /// The normalized scheme, host and port, such as `http://payments.internal`.
    pub origin: String,
    /// The scheme in lower case, and the host and port as the operator wrote them.
    start: String,
    path: Vec<UrlPart>,
    query: Option<Vec<UrlPart>>,
}

impl UrlTemplate {
    /// Parses and checks the operator's text, and adds each mistake to `mistakes`. Returns `None`
    /// if the text does not begin with `http://` or `https://`. After any other mistake, returns a
    /// template with the arguments that could be read. The caller must not fill in this template.
    pub(crate) fn parse(text: &str, mistakes: &mut Vec<String>) -> Option<Self> {
        let mut add = |detail: &str| mistakes.push(detail.to_owned());
        let after_scheme = text
            .split_once("://")
            .map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest));
        let Some((scheme, rest)) =
            after_scheme.filter(|(scheme, _)| scheme == "http" || scheme == "https")
        else {
            add("must begin with `http://` or `https://`");
            return None;
        };
        let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let start = format!("{scheme}://{authority}");
        let origin = usable_origin(&start);
        if authority.contains(['{', '}']) {
            add("has a placeholder in its host or port; they are fixed");
        } else if authority.contains('@') {
            add("names a user; credentials belong in `headers`");
        } else if origin.is_none() {
            add("has no usable host and port");
        }
        if text.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
            add("has a space, a control character or a backslash");
        }
        let rest = match rest.split_once('#') {
            Some((rest, _)) => {
                add("has a `#`, which is never sent");
                rest
            }
            None => rest,
        };
        let (path, query) = rest
            .split_once('?')
            .map_or((rest, None), |(path, query)| (path, Some(query)));
        if path.split('/').any(has_dots) {
            add("has a segment `.` or `..`");
        }
        let path = parse_parts(path, mistakes);
        let query = query.map(|query| parse_parts(query, mistakes));
        if !query.iter().all(|parts| credentials_are_values(parts)) {
            let detail = "has a credential in its query that is not a value behind a `=`";
            mistakes.push(detail.to_owned());
        }
        Some(Self {
            origin: origin.unwrap_or_default(),
            start,
            path,
            query,
        })
    }

    /// Returns the name of each argument.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &str> {
        self.parts().filter_map(|part| match part {
            UrlPart::Argument(name) => Some(name.as_str()),
            UrlPart::Text(_) | UrlPart::Credential(..) => None,
        })
    }

    pub(crate) fn credential_names(&self) -> impl Iterator<Item = &str> {
        self.parts().filter_map(|part| match part {
            UrlPart::Credential(name, _) => Some(name.as_str()),
            UrlPart::Text(_) | UrlPart::Argument(_) => None,
        })
    }

    fn parts(&self) -> impl Iterator<Item = &UrlPart> {
        self.path.iter().chain(self.query.iter().flatten())
    }

    /// Returns the names of the parameters in the template's query, folded (see [`folded`]).
    pub(crate) fn query_names(&self) -> BTreeSet<String> {
        let mut text = String::new();
        for part in self.query.iter().flatten() {
            match part {
                UrlPart::Text(literal) => text.push_str(literal),
                UrlPart::Argument(_) | UrlPart::Credential(..) => text.push('x'),
            }
        }
        url::form_urlencoded::parse(text.as_bytes())
            .map(|(name, _)| folded(&name))
            .collect()
    }

    /// Returns the URL of one call. If `extras_in_query` is true, arguments that the template does
    /// not name go into the query.
    ///
    /// # Errors
    /// Fails if the arguments and the credentials give no usable URL. The error is the reason,
    /// which never contains the value of an argument or a credential.
    pub(crate) fn fill(
        &self,
        arguments: &Value,
        credentials: &Credentials,
        extras_in_query: bool,
    ) -> Result<Url, String> {
        self.fill_with(arguments, extras_in_query, &|name, field| {
            credentials.value(name, field)
        })
    }

    /// Checks the arguments without the credentials. Returns the reason why the arguments cannot be
    /// part of a URL; `None` if they can. The reason names the argument, never its value.
    #[must_use]
    pub(crate) fn refusal_reason(
        &self,
        arguments: &Value,
        extras_in_query: bool,
    ) -> Option<String> {
        self.fill_with(arguments, extras_in_query, &|_, _| Ok("x"))
            .err()
    }

    fn fill_with(
        &self,
        arguments: &Value,
        extras_in_query: bool,
        credential: CredentialLookup<'_>,
    ) -> Result<Url, String> {
        let path = fill_parts(&self.path, arguments, credential, true)?;
        if path.split('/').any(has_dots) {
            return Err("a filled-in text would make `.` or `..` a segment of the path".to_owned());
        }
        let mut query = match &self.query {
            Some(parts) => Some(fill_parts(parts, arguments, credential, false)?),
            None => None,
        };
        for (name, text) in if extras_in_query {
            self.extra_arguments(arguments)?
        } else {
            BTreeMap::new()
        } {
            let query = query.get_or_insert_default();
            if !query.is_empty() && !query.ends_with('&') {
                query.push('&');
            }
            let _ = write!(
                query,
                "{}={}",
                percent_encoded(name),
                percent_encoded(&text)
            );
        }
        let mut url_text = format!("{}{path}", self.start);
        if let Some(query) = query {
            url_text.push('?');
            url_text.push_str(&query);
        }
        let url = Url::parse(&url_text)
            .map_err(|_| "the filled-in texts make no usable URL".to_owned())?;
        if self.leads_to_target(&url, &path) {
            Ok(url)
        } else {
            Err("a filled-in text would change where the call goes".to_owned())
        }
    }

    /// Whether `url` has the template's origin, and as many segments as the filled-in path `path`.
    fn leads_to_target(&self, url: &Url, path: &str) -> bool {
        url.origin().ascii_serialization() == self.origin
            && url.path().split('/').count() == path.split('/').count().max(2)
    }

    /// Returns the address of one call, as a person sees it. The address has no query. A credential
    /// appears as its reference `{{credential:name.field}}`. An argument appears as it is sent, or
    /// as `{name}` if it cannot be sent. If the arguments would lead away from the target, each
    /// appears as its name.
    pub(crate) fn display_address(&self, arguments: &Value) -> String {
        let none = |_: &str, _: &str| Err(String::new());
        let part = |part: &UrlPart| fill_parts(std::slice::from_ref(part), arguments, &none, true);
        self.address(part)
            .or_else(|| self.address(|_| Err(String::new())))
            .unwrap_or_else(|| self.origin.clone())
    }

    /// Returns the address. The text that `fill` returns for an argument replaces the argument. If
    /// `fill` fails, the argument stays a placeholder. Every credential stays a placeholder.
    /// Returns `None` if the texts would change the origin or the number of segments.
    fn address(&self, fill: impl Fn(&UrlPart) -> Result<String, String>) -> Option<String> {
        // `Url::parse` would percent-encode the braces of a placeholder. Therefore a mark (a number
        // between quotes) stands for each placeholder until the URL is parsed. A mark begins with
        // more `'` in a row than any text of the template has. Filled-in values have no `'`,
        // because `fill` percent-encodes it. So no other text looks like a mark.
        let mut mark_quotes = "'".to_owned();
        while self
            .path
            .iter()
            .any(|part| matches!(part, UrlPart::Text(text) if text.contains(&mark_quotes)))
        {
            mark_quotes.push('\'');
        }
        let mark = |index: usize| format!("{mark_quotes}{index}{mark_quotes}");
        let (mut path, mut kept) = (String::new(), Vec::new());
        for (index, part) in self.path.iter().enumerate() {
            match part {
                UrlPart::Text(literal) => path.push_str(literal),
                UrlPart::Argument(name) => {
                    path.push_str(&fill(part).unwrap_or_else(|_| mark(index)));
                    kept.push((mark(index), format!("{{{name}}}")));
                }
                UrlPart::Credential(name, field) => {
                    path.push_str(&mark(index));
                    kept.push((
                        mark(index),
                        format!("{}{name}.{field}}}}}", credential::REFERENCE_START),
                    ));
                }
            }
        }
        if path.split('/').any(has_dots) {
            return None;
        }
        let url = Url::parse(&format!("{}{path}", self.start)).ok()?;
        let address = format!("{}{}", self.origin, url.path());
        self.leads_to_target(&url, &path).then(|| {
            kept.iter().fold(address, |address, (mark, shown)| {
                address.replace(mark, shown)
            })
        })
    }

    fn extra_arguments<'a>(
        &self,
        arguments: &'a Value,
    ) -> Result<BTreeMap<&'a str, String>, String> {
        let taken = self.query_names();
        let used: BTreeSet<&str> = self.arguments().collect();
        let mut extras = BTreeMap::new();
        for (name, value) in arguments.as_object().into_iter().flatten() {
            if used.contains(name.as_str()) || value.is_null() {
                continue;
            }
            if taken.contains(&folded(name)) {
                return Err(
                    "an argument has the name of something that the URL's query has already"
                        .to_owned(),
                );
            }
            let Some(text) = scalar_text(value) else {
                return Err(format!(
                    "the argument `{}` is not a text, a number or a boolean",
                    shortened(name)
                ));
            };
            extras.insert(name.as_str(), text);
        }
        Ok(extras)
    }
}

/// Returns the normalized scheme, host and port of a URL; `None` if the URL has no usable host and
/// port.
fn usable_origin(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    has_host.then(|| url.origin().ascii_serialization())
}

/// Returns the text of a scalar in a URL; `None` for other values. A whole number is written
/// without a fraction: `17.0` becomes `17`.
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

/// Whether each credential in the query is in the value of a pair, after the `=`.
fn credentials_are_values(query: &[UrlPart]) -> bool {
    let mut in_value = false;
    query.iter().all(|part| {
        if let UrlPart::Text(literal) = part {
            let last = literal.rsplit('&').next().unwrap_or_default();
            in_value = last.contains('=') || (in_value && !literal.contains('&'));
        }
        in_value || !matches!(part, UrlPart::Credential(..))
    })
}

/// A function that returns the value of a credential's field. Its parameters are the names of the
/// credential and of the field.
type CredentialLookup<'c> = &'c dyn Fn(&str, &str) -> Result<&'c str, String>;

fn fill_parts(
    parts: &[UrlPart],
    arguments: &Value,
    credential: CredentialLookup<'_>,
    in_path: bool,
) -> Result<String, String> {
    let mut text = String::new();
    for part in parts {
        match part {
            UrlPart::Text(literal) => text.push_str(literal),
            UrlPart::Credential(name, field) => {
                let value = credential(name, field)?;
                if in_path && (value.is_empty() || has_dots(value)) {
                    return Err(format!(
                        "the field `{field}` of the credential `{name}` {NO_SEGMENT}"
                    ));
                }
                text.push_str(&percent_encoded(value));
            }
            UrlPart::Argument(name) => {
                let Some(value) = arguments.get(name) else {
                    return Err(format!(
                        "the argument `{name}`, which its URL needs, is missing"
                    ));
                };
                let Some(value) = scalar_text(value) else {
                    return Err(format!(
                        "the argument `{name}`, which its URL needs, is not a text, a number or a boolean"
                    ));
                };
                if in_path && (value.is_empty() || has_dots(&value)) {
                    return Err(format!("the argument `{name}` {NO_SEGMENT}"));
                }
                text.push_str(&percent_encoded(&value));
            }
        }
    }
    Ok(text)
}

/// The end of the error message for a value that cannot be in a path. The message begins with the
/// name of the argument, or of the credential's field.
const NO_SEGMENT: &str = "is empty, or has `.` or `..` between slashes or its ends, also after percent-decoding: no segment of a path may";

fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT_ESCAPES).to_string()
}

/// Percent-decodes a segment, repeatedly if necessary, and splits it at slashes and backslashes.
/// Returns whether one of the parts is `.` or `..`.
fn has_dots(segment: &str) -> bool {
    let mut decoded = Vec::with_capacity(segment.len());
    for byte in segment.bytes() {
        decoded.push(byte);
        // A decoded character may complete another escape.
        while let [.., b'%', high, low] = decoded.as_slice()
            && let (Some(high), Some(low)) = (
                char::from(*high).to_digit(16),
                char::from(*low).to_digit(16),
            )
        {
            decoded.truncate(decoded.len() - 3);
            decoded.extend(u8::try_from(high * 16 + low));
        }
    }
    decoded
        .split(|byte| matches!(byte, b'/' | b'\\'))
        .any(|part| matches!(part, b"." | b".."))
}

/// Splits a text into its parts. At the first mistake, adds a description of the mistake to
/// `mistakes`, and returns the parts before this mistake.
fn parse_parts(text: &str, mistakes: &mut Vec<String>) -> Vec<UrlPart> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, after) = rest.split_at(at);
        if !before.is_empty() {
            parts.push(UrlPart::Text(before.to_owned()));
        }
        if after.starts_with(credential::REFERENCE_START) {
            match credential::split_reference(after) {
                Ok(((name, field), tail)) => {
                    parts.push(UrlPart::Credential(name.to_owned(), field.to_owned()));
                    rest = tail;
                    continue;
                }
                Err(detail) => {
                    mistakes.push(detail);
                    return parts;
                }
            }
        }
        let name = after
            .strip_prefix('{')
            .and_then(|after| after.split_once('}'));
        let Some((name, tail)) = name.filter(|(name, _)| !name.is_empty() && !name.contains('{'))
        else {
            mistakes.push("has a `{` or `}` that is not part of a `{name}`".to_owned());
            return parts;
        };
        parts.push(UrlPart::Argument(name.to_owned()));
        rest = tail;
    }
    if !rest.is_empty() {
        parts.push(UrlPart::Text(rest.to_owned()));
    }
    parts
}

#[cfg(test)]
mod tests;
