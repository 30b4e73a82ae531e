//! A configured text with references `{{credential:NAME.FIELD}}`: the value of a header or of an
//! environment variable. Invariant: only the operator's text is a template; a filled-in value is
//! never parsed again.

use super::credential::{self, Credentials};
use crate::secret::Secret;

#[derive(Clone, Debug)]
pub(super) struct Template(Vec<TemplatePart>);

#[derive(Clone, Debug)]
enum TemplatePart {
    Text(Secret<String>),
    /// The credential's name and the field's name.
    Credential(String, String),
}

impl Template {
    /// Parses the operator's text.
    ///
    /// # Errors
    /// Fails if a reference has a mistake. The error describes the mistake.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest
            .find(credential::REFERENCE_START)
            .and_then(|at| rest.split_at_checked(at))
        {
            let ((name, field), tail) = credential::split_reference(after)?;
            parts.push(TemplatePart::Text(Secret::new(before.to_owned())));
            parts.push(TemplatePart::Credential(name.to_owned(), field.to_owned()));
            rest = tail;
        }
        parts.push(TemplatePart::Text(Secret::new(rest.to_owned())));
        Ok(Self(parts))
    }

    pub(super) fn credential_names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            TemplatePart::Text(_) => None,
            TemplatePart::Credential(name, _) => Some(name.as_str()),
        })
    }

    /// Returns the text with the credentials filled in.
    ///
    /// # Errors
    /// Fails if a credential's value is missing or cannot be sent. The error names the credential
    /// and the reason, and never contains the value.
    pub(super) fn fill(&self, credentials: &Credentials) -> Result<Secret<String>, String> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                TemplatePart::Text(literal) => text.push_str(literal.reveal()),
                TemplatePart::Credential(name, field) => {
                    text.push_str(credentials.value(name, field)?);
                }
            }
        }
        Ok(Secret::new(text))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn filled_in_values_are_never_expanded_again() {
        let mut credentials = Credentials::default();
        let value = |text: &str| Secret::new(text.to_owned());
        credentials.insert(
            "a",
            BTreeMap::from([("x".to_owned(), value("{{credential:b.y}}"))]),
        );
        credentials.insert("b", BTreeMap::from([("y".to_owned(), value("inner"))]));
        let template =
            Template::read("1{{credential:a.x}}2{{credential:b.y}}{{credential:b.y}}3").unwrap();
        assert_eq!(
            template.credential_names().collect::<Vec<_>>(),
            ["a", "b", "b"]
        );
        let filled = template.fill(&credentials).unwrap();
        assert_eq!(filled.reveal(), "1{{credential:b.y}}2innerinner3");
        assert_eq!(
            Template::read("plain {x}")
                .unwrap()
                .fill(&credentials)
                .unwrap()
                .reveal(),
            "plain {x}"
        );
        assert!(
            Template::read("{{credential:b.z}}")
                .unwrap()
                .fill(&credentials)
                .is_err()
        );
        assert!(Template::read("{{credential:b}}").is_err());
        assert!(!format!("{:?}", Template::read("s3cr3t").unwrap()).contains("s3cr3t"));
    }
}
