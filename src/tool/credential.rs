//! The decrypted credentials of calls, and the references `{{credential:NAME.FIELD}}` in a tool's
//! headers, `url` and `env`. Invariant: a credential's value is filled in right before sending, and
//! a secret value is shown nowhere. A call is not sent if a value is missing or has a control
//! character.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::secret::seal::{SealError, Sealed, Sealer};
use crate::secret::{Redactor, Secret};
use crate::task::credential::{CredentialRow, SealedCredential, credential_associated_data};
use crate::task::id::{RequestId, TaskId};

pub(crate) mod settings;

pub(crate) const REFERENCE_START: &str = "{{credential:";

/// The fields of one credential, by name.
pub(crate) type CredentialFields = BTreeMap<String, Secret<String>>;

/// The decrypted credentials for the calls of one task.
#[derive(Clone, Default)]
pub struct Credentials {
    fields: BTreeMap<String, CredentialFields>,
    /// The credentials in the task's tree that the task's calls do not use, as pairs of name and
    /// fields. The redactor replaces their values, too.
    of_others: Vec<(String, CredentialFields)>,
    plain: Arc<PlainFields>,
}

/// Pairs (credential, field) of the fields whose values may be shown.
pub(crate) type PlainFields = BTreeSet<(String, String)>;

/// The minimum length of a redacted value, in characters. A shorter value, or a value with
/// whitespace, may occur in ordinary text. If such values were redacted, a person could hide words
/// from others by entering these words as a credential.
const MIN_REDACTED_CHARS: usize = 12;

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.fields.keys()).finish()
    }
}

impl Credentials {
    pub fn insert(&mut self, name: impl Into<String>, fields: CredentialFields) {
        self.fields.insert(name.into(), fields);
    }

    /// Whether the calls of the task can use no credential. Other credentials in the tree do not
    /// count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Whether the tree has credentials that the calls of the task do not use.
    pub(super) fn has_others(&self) -> bool {
        !self.of_others.is_empty()
    }

    #[must_use]
    pub fn has(&self, name: &str, field: &str) -> bool {
        self.fields
            .get(name)
            .is_some_and(|fields| fields.contains_key(field))
    }

    /// Returns these credentials, with the fields in `plain` exempt from redaction.
    #[must_use]
    pub fn with_plain_fields(self, plain: &Arc<PlainFields>) -> Self {
        Self {
            plain: Arc::clone(plain),
            ..self
        }
    }

    /// Returns a redactor for the secret values that have no whitespace and at least
    /// `MIN_REDACTED_CHARS` characters. Whitespace at the ends of a value does not count.
    #[must_use]
    pub fn redactor(&self) -> Redactor {
        let of_others = self.of_others.iter().map(|(name, fields)| (name, fields));
        let all = self
            .fields
            .iter()
            .chain(of_others)
            .flat_map(|(name, fields)| fields.iter().map(move |field| (name, field)));
        let secret = all.filter(|(name, (field, value))| {
            let value = value.reveal().trim();
            let is_word =
                value.chars().count() >= MIN_REDACTED_CHARS && !value.contains(char::is_whitespace);
            is_word && !self.plain.contains(&((*name).clone(), (*field).clone()))
        });
        let named: Vec<_> = secret
            .map(|(name, (field, value))| (format!("{name}.{field}"), value))
            .collect();
        Redactor::new(named.iter().map(|(name, value)| (name.as_str(), *value)))
    }

    /// Returns the value of a field, for use right before the call is sent.
    ///
    /// # Errors
    /// Fails if the value is missing or cannot be sent. The error names the credential and the
    /// reason, and never contains the value.
    pub(super) fn value(&self, name: &str, field: &str) -> Result<&str, String> {
        let Some(fields) = self.fields.get(name) else {
            return Err(format!("the credential `{name}` is missing"));
        };
        let Some(value) = fields.get(field) else {
            return Err(format!("the credential `{name}` has no field `{field}`"));
        };
        let value = value.reveal();
        if is_sendable(value) {
            Ok(value)
        } else {
            Err(format!(
                "the field `{field}` of the credential `{name}` has a character that cannot be sent"
            ))
        }
    }

    /// Decrypts the credentials in `rows` for the calls of one task. `path` holds this task, then
    /// its ancestors, the nearest first. If several tasks in `path` have a credential of the same
    /// name, the calls use the credential of the first of these tasks. The other credentials in
    /// `rows` are kept only to redact their values. A credential that cannot be decrypted is left
    /// out.
    #[must_use]
    pub fn open(sealer: &Sealer, tenant: &str, path: &[TaskId], rows: &[CredentialRow]) -> Self {
        let distance = |row: &CredentialRow| path.iter().position(|task| *task == row.task_id);
        let mut sorted: Vec<_> = rows.iter().map(|row| (distance(row), row)).collect();
        sorted.sort_by_key(|(distance, _)| distance.unwrap_or(usize::MAX));
        let mut credentials = Self::default();
        let mut used: BTreeSet<&str> = BTreeSet::new();
        for (distance, row) in sorted {
            let is_used = distance.is_some() && used.insert(&row.name);
            match open_credential(sealer, tenant, row) {
                Ok(fields) if is_used => credentials.insert(&row.name, fields),
                Ok(fields) => credentials.of_others.push((row.name.clone(), fields)),
                Err(error) if is_used => {
                    tracing::warn!(task = %row.task_id, credential = row.name, key = row.key_id, %error,
                        "a credential cannot be opened; it is requested again");
                }
                Err(_) => {}
            }
        }
        credentials
    }
}

/// Whether a value has no control character, so that a header, a URL or an environment variable can
/// hold the value.
#[must_use]
pub(crate) fn is_sendable(value: &str) -> bool {
    !value.chars().any(char::is_control)
}

/// Encrypts the credential that a person entered, and binds the ciphertext to the row in which it
/// will be stored.
///
/// # Errors
/// Fails with [`SealError::SealingFailed`] if the credential cannot be encrypted.
pub(crate) fn seal_credential(
    sealer: &Sealer,
    tenant: &str,
    (task, request_id): (TaskId, RequestId),
    (name, fields): (&str, &CredentialFields),
    expires_in: Option<Duration>,
) -> Result<SealedCredential, SealError> {
    let fields: BTreeMap<&str, &str> = fields
        .iter()
        .map(|(field, value)| (field.as_str(), value.reveal().as_str()))
        .collect();
    let plain = Zeroizing::new(serde_json::to_vec(&fields).map_err(|_| SealError::SealingFailed)?);
    let Sealed { key_id, text } = sealer.seal(
        &credential_associated_data(tenant, &task, &request_id, name),
        &plain,
    )?;
    Ok(SealedCredential {
        name: name.to_owned(),
        request_id,
        key_id,
        text,
        expires_in,
    })
}

fn open_credential(
    sealer: &Sealer,
    tenant: &str,
    row: &CredentialRow,
) -> Result<CredentialFields, SealError> {
    let ciphertext = Sealed {
        key_id: row.key_id.clone(),
        text: row.text.clone(),
    };
    let plain = sealer.open(
        &credential_associated_data(tenant, &row.task_id, &row.request_id, &row.name),
        &ciphertext,
    )?;
    let plain = Zeroizing::new(plain.into_inner());
    serde_json::from_slice(&plain).map_err(|_| SealError::OpeningFailed)
}

/// Returns the pairs (credential, field) that a text refers to, in the order of the references.
///
/// # Errors
/// Fails if a reference has a mistake. The error describes the mistake.
pub(crate) fn references(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(REFERENCE_START) {
        let (reference, tail) = split_reference(rest.get(at..).unwrap_or_default())?;
        found.push(reference);
        rest = tail;
    }
    Ok(found)
}

/// Returns the reference (credential, field) at the start of a text, and the text after this
/// reference. Fails with a description of the mistake in the reference.
pub(super) fn split_reference(text: &str) -> Result<((&str, &str), &str), String> {
    let inside = text
        .strip_prefix(REFERENCE_START)
        .and_then(|after| after.split_once("}}"));
    let Some((reference, tail)) = inside else {
        return Err("has a `{{credential:` without its `}}`".to_owned());
    };
    let is_name = |word: &str| {
        !word.is_empty()
            && word.len() <= 64
            && word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    match reference
        .split_once('.')
        .filter(|(credential, field)| is_name(credential) && is_name(field))
    {
        Some(pair) => Ok((pair, tail)),
        None => Err("names a credential otherwise than `{{credential:NAME.FIELD}}`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::task::time::Time;

    fn fields(token: &str) -> CredentialFields {
        BTreeMap::from([("token".to_owned(), Secret::new(token.to_owned()))])
    }

    fn sealer(byte: u8) -> Sealer {
        Sealer::new(vec![("k1".to_owned(), Secret::new([byte; 32]))]).unwrap()
    }

    fn row(task: u128, request: u128, name: &str, token: &str) -> CredentialRow {
        let (task_id, request_id) = (
            TaskId(Uuid::from_u128(task)),
            RequestId(Uuid::from_u128(request)),
        );
        let SealedCredential {
            name, key_id, text, ..
        } = seal_credential(
            &sealer(1),
            "acme",
            (task_id, request_id),
            (name, &fields(token)),
            None,
        )
        .unwrap();
        CredentialRow {
            task_id,
            name,
            request_id,
            key_id,
            text,
            created_at: Time(0),
            expires_at: None,
        }
    }

    fn open(rows: &[CredentialRow]) -> Credentials {
        Credentials::open(
            &sealer(1),
            "acme",
            &[TaskId(Uuid::from_u128(2)), TaskId(Uuid::from_u128(1))],
            rows,
        )
    }

    #[test]
    fn references_are_found_and_misspelt_ones_refused() {
        assert_eq!(
            references("Bearer {{credential:jira.token}}"),
            Ok(vec![("jira", "token")])
        );
        assert_eq!(
            references("{{credential:a.b}}{{credential:c.d}}"),
            Ok(vec![("a", "b"), ("c", "d")])
        );
        assert_eq!(references("{{other}}"), Ok(vec![]));
        for wrong in [
            "{{credential:jira}}",
            "{{credential:.x}}",
            "{{credential:a.b}",
            "{{credential:a.b.c}}",
        ] {
            assert!(references(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nearest_tasks_credential_counts_and_another_tasks_never() {
        let (root, child, other) = (
            row(1, 1, "jira", "of the root"),
            row(2, 2, "jira", "of the child"),
            row(3, 3, "crm", "x"),
        );
        for rows in [[root.clone(), child.clone()], [child.clone(), root.clone()]] {
            assert_eq!(open(&rows).value("jira", "token"), Ok("of the child"));
        }
        assert_eq!(
            open(std::slice::from_ref(&root)).value("jira", "token"),
            Ok("of the root")
        );
        let found = open(&[root, other]);
        assert!(found.has("jira", "token") && !found.has("jira", "email"));
        assert_eq!(
            found.value("crm", "token"),
            Err("the credential `crm` is missing".to_owned())
        );
        assert_eq!(
            found.value("jira", "email"),
            Err("the credential `jira` has no field `email`".to_owned())
        );
    }

    #[test]
    fn credential_that_does_not_open_counts_as_never_given() {
        let good = row(1, 1, "jira", "hunter2");
        let moved = [
            CredentialRow {
                task_id: TaskId(Uuid::from_u128(2)),
                ..good.clone()
            },
            CredentialRow {
                request_id: RequestId(Uuid::from_u128(2)),
                ..good.clone()
            },
            CredentialRow {
                name: "crm".to_owned(),
                ..good.clone()
            },
            CredentialRow {
                key_id: "k0".to_owned(),
                ..good.clone()
            },
            CredentialRow {
                text: row(1, 2, "jira", "hunter2").text,
                ..good.clone()
            },
        ];
        for row in moved {
            assert!(open(&[row]).is_empty());
        }
        let path = [good.task_id];
        assert!(
            Credentials::open(&sealer(2), "acme", &path, std::slice::from_ref(&good)).is_empty()
        );
        assert!(
            Credentials::open(&sealer(1), "globex", &path, std::slice::from_ref(&good)).is_empty()
        );
        assert!(!open(&[good]).is_empty());
    }

    #[test]
    fn credential_in_hand_is_never_shown_and_is_found_in_responses() {
        let mut credentials = Credentials::default();
        credentials.insert("jira", fields("hunter2-hunter2"));
        assert_eq!(format!("{credentials:?}"), "{\"jira\"}");
        assert_eq!(
            credentials.redactor().redact("is hunter2-hunter2"),
            "is [secret jira.token]"
        );
        let plain = Arc::new(PlainFields::from([("jira".to_owned(), "token".to_owned())]));
        let plain = credentials.clone().with_plain_fields(&plain);
        assert!(
            !plain.redactor().finds_secret_in("hunter2-hunter2")
                && plain.value("jira", "token").is_ok()
        );
        for (value, searched) in [
            ("fraud suspected", false),
            ("fraud\u{a0}suspected", false),
            ("suspicious!", false),
            ("0123456789é", false),
            ("0123456789éa", true),
            (" 0123456789é ", false),
            (" 0123456789éa\u{a0}", true),
        ] {
            credentials.insert("jira", fields(value));
            assert_eq!(
                credentials.redactor().finds_secret_in(value),
                searched,
                "{value}"
            );
        }
        for value in ["a\r\nb: c", "a\0", "\u{85}", "\t", "\u{7f}"] {
            credentials.insert("jira", fields(value));
            let refused = credentials.value("jira", "token").unwrap_err();
            assert_eq!(
                refused,
                "the field `token` of the credential `jira` has a character that cannot be sent"
            );
        }
    }
}
