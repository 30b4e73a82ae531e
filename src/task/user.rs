//! User ids, and the rule that says which spellings belong to one person. Invariant: only this
//! module compares user ids. Rows store the spelling of an id, and the current setting decides how
//! spellings are compared. A change of the setting therefore applies to older rows, too.

use std::fmt;

use serde::{Deserialize, Serialize};
use unicase::UniCase;
use unicode_normalization::{UnicodeNormalization as _, is_nfc};

/// The setting that decides whether two user ids belong to one person.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum UserIds {
    /// The ids are equal in NFC and folded case.
    #[default]
    Folded,
    /// The ids are equal byte by byte.
    Exact,
}

/// The comparison form of an id. Ids with equal keys belong to one person.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserKey(String);

impl UserKey {
    /// Returns the key for the database. The key is never shown.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl UserIds {
    /// Returns the comparison form of an id under this setting.
    #[must_use]
    pub fn key(self, id: &str) -> UserKey {
        UserKey(match self {
            Self::Folded => folded(id),
            Self::Exact => id.to_owned(),
        })
    }

    /// Whether two ids belong to one person.
    #[must_use]
    pub fn is_same_person(self, one: &str, other: &str) -> bool {
        one == other || (self == Self::Folded && folded(one) == folded(other))
    }

    /// Creates the id with this spelling. The id is compared under this setting.
    #[must_use]
    pub fn id(self, spelling: impl Into<String>) -> UserId {
        let spelling = spelling.into();
        UserId {
            key: self.key(&spelling),
            spelling,
            ids: self,
        }
    }
}

/// Folds an id for canonical caseless matching (Unicode, D145). The id is normalized, its case is
/// fully folded, and the result is normalized again. Without the first normalization, equivalent
/// spellings could fold differently. The second normalization is needed because case folding can
/// leave marks in another order.
fn folded(id: &str) -> String {
    if id.bytes().all(|byte| byte.is_ascii()) {
        return id.to_ascii_lowercase();
    }
    let decomposed: String = id.nfd().collect();
    UniCase::unicode(decomposed)
        .to_folded_case()
        .nfc()
        .collect()
}

/// Whether a text is in Unicode's normalization form C (NFC).
#[must_use]
pub fn is_normalized(text: &str) -> bool {
    is_nfc(text)
}

/// A user's id, with the setting under which the id is compared. Two values are equal if they
/// belong to one person. [`UserId::is_same_person`] compares an id with a stored spelling.
#[derive(Clone)]
pub struct UserId {
    spelling: String,
    key: UserKey,
    ids: UserIds,
}

impl UserId {
    /// Returns the spelling, as shown and stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.spelling
    }

    /// Returns the comparison form, which is equal for all spellings of one person.
    #[must_use]
    pub fn key(&self) -> &UserKey {
        &self.key
    }

    /// Returns the setting under which this id is compared.
    #[must_use]
    pub fn ids(&self) -> UserIds {
        self.ids
    }

    /// Returns the folded form of the id. The database finds all spellings of the person's id by
    /// this form. `None` under `Exact`: the person's id then has only one spelling.
    #[must_use]
    pub fn folded(&self) -> Option<UserKey> {
        (self.ids == UserIds::Folded).then(|| self.key.clone())
    }

    /// Whether `spelling` belongs to the same person as this id.
    #[must_use]
    pub fn is_same_person(&self, spelling: &str) -> bool {
        self.spelling == spelling || self.ids.key(spelling) == self.key
    }
}

impl PartialEq for UserId {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for UserId {}

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserId({})", self.spelling)
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spelling)
    }
}

impl From<&str> for UserId {
    fn from(spelling: &str) -> Self {
        UserIds::default().id(spelling)
    }
}

impl Default for UserId {
    fn default() -> Self {
        Self::from("")
    }
}

/// The person for whom the database lists requests or standing decisions, and the rights that
/// decide which of them the person sees.
#[derive(Clone, Debug, Default)]
pub struct Viewer {
    /// The person's id. The other stored spellings of this id count as the same person.
    pub user_id: UserId,
    /// The groups that the person is a member of; a group may be an approver.
    pub groups: Vec<String>,
    /// Whether the person may decide every request. True in a service without accounts.
    pub decides_everything: bool,
}

#[cfg(test)]
mod tests {
    use unicode_normalization::char::is_combining_mark;

    use super::*;

    const ONE_PERSON: [(&str, &str); 13] = [
        ("alice", "Alice"),
        ("bob@acme.com", "BOB@Acme.com"),
        ("josé", "JOSE\u{301}"),
        ("jose\u{301}", "jos\u{e9}"),
        ("strasse", "Straße"),
        ("STRASSE", "stra\u{1e9e}e"),
        ("οδυσσευς", "ΟΔΥΣΣΕΥΣ"),
        ("οδυσσευς", "οδυσσευσ"),
        ("kelvin", "\u{212a}elvin"),
        ("ångström", "\u{212b}NGSTRO\u{308}M"),
        ("ﬁn", "FIN"),
        ("Ａｌｉｃｅ", "ａｌｉｃｅ"),
        // In this pair, case folding changes the order of the marks.
        ("\u{1f0}\u{323}", "J\u{30c}\u{323}"),
    ];
    const TWO_PEOPLE: [(&str, &str); 8] = [
        ("alice", "alice1"),
        ("alice", "ａｌｉｃｅ"),
        ("alice", "аlice"),
        ("i", "\u{131}"),
        ("i", "\u{130}"),
        ("I", "\u{131}"),
        ("jose", "josé"),
        ("", "a"),
    ];

    #[test]
    fn spellings_that_differ_in_case_and_form_are_one_person() {
        for (one, other) in ONE_PERSON {
            assert!(UserIds::Folded.is_same_person(one, other), "{one} {other}");
            assert!(
                UserIds::Folded.id(one).is_same_person(other)
                    && UserIds::Folded.id(other) == UserIds::Folded.id(one)
            );
            assert!(
                !UserIds::Exact.is_same_person(one, other)
                    && !UserIds::Exact.id(one).is_same_person(other),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn different_letters_are_different_people() {
        for (one, other) in TWO_PEOPLE {
            for ids in [UserIds::Folded, UserIds::Exact] {
                assert!(
                    !ids.is_same_person(one, other) && !ids.id(one).is_same_person(other),
                    "{one} {other}"
                );
            }
        }
    }

    /// Returns the combining marks of Unicode's planes 0 and 1, and the other characters of these
    /// planes that folding or normalization changes. Leaves out the CJK unified ideographs, the
    /// Hangul syllables and the private-use characters.
    fn characters() -> impl Iterator<Item = char> {
        let moves = |c: &char| {
            !('\u{3400}'..='\u{9fff}').contains(c) && !('\u{ac00}'..='\u{f8ff}').contains(c)
        };
        let changes = |c: &char| {
            let text = c.to_string();
            is_combining_mark(*c) || folded(&text) != text || text.nfd().ne(text.chars())
        };
        (0..=0x1_ffff)
            .filter_map(char::from_u32)
            .filter(moves)
            .filter(changes)
    }

    #[test]
    fn key_of_a_key_equals_the_key_for_every_character() {
        assert!(characters().count() > 4000);
        for c in characters() {
            for text in [
                c.to_string(),
                format!("a{c}"),
                format!("{c}\u{323}"),
                format!("\u{345}{c}\u{301}"),
            ] {
                let key = folded(&text);
                assert_eq!(folded(&key), key, "{text:?}");
                assert!(is_normalized(&key), "{text:?}");
            }
        }
    }

    #[test]
    fn every_form_of_a_character_has_its_key() {
        for c in characters() {
            let text = c.to_string();
            let (composed, decomposed): (String, String) =
                (text.nfc().collect(), text.nfd().collect());
            assert_eq!(folded(&composed), folded(&text), "{text:?}");
            assert_eq!(folded(&decomposed), folded(&text), "{text:?}");
            // The dotless i is left out: its capital is `I`, which folds to the dotted i.
            if c != '\u{131}' {
                let (upper, lower) = (text.to_uppercase(), text.to_lowercase());
                assert!(
                    folded(&upper) == folded(&text) || folded(&lower) == folded(&text),
                    "{text:?}"
                );
            }
        }
    }
}
