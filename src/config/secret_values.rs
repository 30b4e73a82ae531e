//! The secret values of the configuration: those that are redacted from texts, and those that no
//! stored definition may insert.

use std::collections::BTreeSet;

use url::Url;

use super::interpolate::InsertedValue;
use super::tree::{Node, Origin};
use super::{unexpanded, warnings};
use crate::secret::{MIN_SECRET_CHARS, Secret};

/// Returns the values to redact, each with the name that is shown instead:
/// - the value of each `${…}` in the file, except at places that may be shown
///   (`unexpanded::is_shown`);
/// - the values that are always secret (`unexpanded::is_key`), even if the file itself has them;
/// - each value that an environment variable (`HOLDPOINT_…`) sets at a place that may hold a secret
///   (`unexpanded::is_secret`);
/// - the passwords in the database's URL.
///
/// If such a value is the value of a header, also returns the credential in the value, without the
/// scheme (see [`header_credential`]).
pub(super) fn find(root: &Node, inserted: &[InsertedValue]) -> Vec<(String, Secret<String>)> {
    let mut values: Vec<(String, Secret<String>)> = Vec::new();
    let mut add = |name: &str, value: &str, place: &[String]| {
        let header = place.last().filter(|_| warnings::is_header(place));
        let credential = header.and_then(|header| header_credential(header, value));
        for text in [Some(value), credential].into_iter().flatten() {
            if !values.iter().any(|(_, known)| known.reveal() == text) {
                values.push((name.to_owned(), Secret::new(text.to_owned())));
            }
        }
    };
    for one in inserted {
        if !unexpanded::is_shown(&one.place) {
            add(&one.name, one.value.reveal(), &one.place);
        }
    }
    unexpanded::walk(root, &mut Vec::new(), &mut |place, node| {
        let Some(text) = node.text() else { return };
        if let Origin::Variable(name) = &node.origin
            && unexpanded::is_secret(place)
        {
            add(name, text, place);
        } else if unexpanded::is_key(place) {
            add(&place.join("."), text, place);
        }
    });
    let url = root.at(&["database", "url"]).and_then(Node::text);
    for password in database_passwords(url.unwrap_or_default()) {
        add("database.url", &password, &[]);
    }
    values
}

/// Returns the secrets that the expansion of a stored definition's `${…}` must not insert, because
/// people and models see the expanded text. The expansion may insert two kinds of `secrets`:
/// - a value that is too short to be redacted;
/// - a value that a `${…}` in the file inserts at a place that is shown, unless the value also
///   stands at a place that is always secret (`unexpanded::is_key`).
pub(super) fn never_shown(
    root: &Node,
    inserted: &[InsertedValue],
    secrets: &[(String, Secret<String>)],
) -> Vec<Secret<String>> {
    let values_at = |holds: fn(&[String]) -> bool| {
        let values = inserted.iter().filter(move |one| holds(&one.place));
        values.map(|one| one.value.reveal().as_str())
    };
    let shown: BTreeSet<&str> = values_at(unexpanded::is_shown).collect();
    let mut keys: BTreeSet<&str> = values_at(unexpanded::is_key).collect();
    unexpanded::walk(root, &mut Vec::new(), &mut |place, node| {
        if unexpanded::is_key(place) {
            keys.extend(node.text());
        }
    });
    let is_hidden = |secret: &&Secret<String>| {
        let value = secret.reveal().as_str();
        let is_searched_for = value.chars().count() >= MIN_SECRET_CHARS;
        is_searched_for && (keys.contains(value) || !shown.contains(value))
    };
    let secrets = secrets.iter().map(|(_, secret)| secret);
    secrets.filter(is_hidden).cloned().collect()
}

/// Returns the credential in the value of a header such as `Authorization`: the word that follows
/// the scheme (such as `Bearer`). `None` if the header usually holds no secret, or if the value is
/// not two words.
#[must_use]
pub(crate) fn header_credential<'v>(header: &str, value: &'v str) -> Option<&'v str> {
    let words: Vec<_> = value.split_whitespace().collect();
    match words.as_slice() {
        [_, credential] if warnings::holds_secret(header) => Some(credential),
        _ => None,
    }
}

/// Returns the passwords in the URL of a database: the user's, and those of the parameter
/// `password`.
pub(super) fn database_passwords(url: &str) -> Vec<String> {
    let Ok(url) = Url::parse(url) else {
        return Vec::new();
    };
    let of_user = url.password().map(|password| {
        percent_encoding::percent_decode_str(password)
            .decode_utf8_lossy()
            .into_owned()
    });
    let pairs = url.query_pairs().filter(|(key, _)| key == "password");
    let of_query = pairs.map(|(_, value)| value.into_owned());
    let passwords = of_user.into_iter().chain(of_query);
    passwords.filter(|password| !password.is_empty()).collect()
}
