//! The headers that an operator sets on requests to a tool. Invariant: each header's value is
//! marked sensitive, and no error quotes a value.

use std::collections::BTreeMap;

use reqwest::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};

use super::credential::Credentials;
use super::template::Template;
use crate::secret::Secret;
use crate::world::Mistakes;

/// The headers that an operator may not set, because Holdpoint or the connection sets them.
const RESERVED_HEADERS: [&str; 6] = [
    "idempotency-key",
    "traceparent",
    "content-length",
    "transfer-encoding",
    "connection",
    "te",
];
/// The prefix of further headers that Holdpoint sets itself. An operator may not set a header with
/// this prefix.
const RESERVED_PREFIX: &str = "holdpoint-";

/// Checked headers, whose values may refer to credentials.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers {
    /// The headers that refer to no credential and are the same for every request.
    fixed: HeaderMap,
    templates: Vec<(HeaderName, Template)>,
}

impl Headers {
    /// Checks configured headers. Adds each mistake to `mistakes`, with the path of the header in
    /// the settings.
    pub(crate) fn read(
        written: &BTreeMap<String, Secret<String>>,
        mistakes: &mut Mistakes,
    ) -> Self {
        let mut headers = Self::default();
        for (name, value) in written {
            match parse_header(name, value) {
                Ok((parsed, value, template)) => {
                    if headers.fixed.insert(parsed.clone(), value).is_some() {
                        mistakes.add(&["headers", name], "is there twice");
                    }
                    if template.credential_names().next().is_some() {
                        headers.templates.push((parsed, template));
                    }
                }
                Err(detail) => mistakes.add(&["headers", name], detail),
            }
        }
        for (name, _) in &headers.templates {
            headers.fixed.remove(name);
        }
        headers
    }

    pub(crate) fn credential_names(&self) -> impl Iterator<Item = &str> {
        self.templates
            .iter()
            .flat_map(|(_, template)| template.credential_names())
    }

    pub(crate) fn fixed(&self) -> &HeaderMap {
        &self.fixed
    }

    /// Returns the headers with credentials filled in.
    ///
    /// # Errors
    /// Fails if a credential is missing, or if its value has a character that no header can hold.
    /// The error names the credential and never contains the value.
    pub(crate) fn fill(&self, credentials: &Credentials) -> Result<HeaderMap, String> {
        let mut filled = self.fixed.clone();
        for (name, template) in &self.templates {
            let unfit = || {
                let needs: Vec<_> = template
                    .credential_names()
                    .map(|name| format!("`{name}`"))
                    .collect();
                format!(
                    "the credential {} holds what no header can hold",
                    needs.join(" or ")
                )
            };
            let value = header_value(&template.fill(credentials)?).ok_or_else(unfit)?;
            filled.insert(name.clone(), value);
        }
        Ok(filled)
    }
}

fn parse_header(
    name: &str,
    value: &Secret<String>,
) -> Result<(HeaderName, HeaderValue, Template), String> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| "is not a name of a header".to_owned())?;
    if RESERVED_HEADERS.contains(&parsed.as_str()) || parsed.as_str().starts_with(RESERVED_PREFIX) {
        return Err("is set by Holdpoint or by the connection".to_owned());
    }
    let template = Template::read(value.reveal())?;
    if parsed == HOST && template.credential_names().next().is_some() {
        return Err("takes no credential: the host of a request is fixed".to_owned());
    }
    let value =
        header_value(value).ok_or_else(|| "has a value that no header can have".to_owned())?;
    Ok((parsed, value, template))
}

fn header_value(value: &Secret<String>) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value.reveal()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Returns a digest of filled-in headers. Callers find kept connections, MCP sessions and
/// comparisons of tool definitions by this digest. Therefore requests with different credentials in
/// their headers never share a connection, a session or a comparison.
pub(crate) fn headers_digest(headers: &HeaderMap) -> [u8; 32] {
    let mut pairs: Vec<(&str, &[u8])> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    pairs.sort_unstable();
    let mut hash = Sha256::new();
    for part in pairs
        .iter()
        .flat_map(|(name, value)| [name.as_bytes(), value])
    {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credential_changes_no_host() {
        let reference = "{{credential:jira.host}}";
        let fixed = Some("takes no credential: the host of a request is fixed");
        for (name, value, expected) in [
            ("Host", reference, fixed),
            ("hOST", "a.{{credential:jira.host}}:80", fixed),
            (":authority", reference, Some("is not a name of a header")),
            ("Host", "h.internal", None),
            ("X-Host", reference, None),
        ] {
            let written = BTreeMap::from([(name.to_owned(), Secret::new(value.to_owned()))]);
            let mut mistakes = Mistakes::default();
            let _ = Headers::read(&written, &mut mistakes);
            let found = mistakes.found.iter();
            let details: Vec<_> = found.map(|mistake| mistake.detail.as_str()).collect();
            assert_eq!(details, Vec::from_iter(expected), "{name}: {value}");
        }
    }
}
