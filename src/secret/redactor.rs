//! Finds and replaces known secrets in texts of other services and of people.
//!
//! Invariant: a secret of 8 or more characters is redacted in plain form and in base64 at any
//! offset, even under up to three levels of JSON, percent or form escapes. The search takes time
//! linear in the length of the text, for any text and any secret. Building a redactor takes time
//! and memory linear in the length of the secrets.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};

use super::Secret;
use super::layer::{self, Layer, UnescapeOptions};
use super::needle::Needle;

/// The minimum length of a secret in characters; shorter values are not searched for.
pub(crate) const MIN_SECRET_CHARS: usize = 8;

/// Finds and replaces known secrets in texts of other services and of people.
#[derive(Clone, Default)]
pub struct Redactor {
    sets: Vec<Arc<SecretSet>>,
}

/// Secrets that are searched for together. A needle is the value of a secret, or a base64 form of
/// the value.
struct SecretSet {
    /// Finds the needles; `None` if there are too many needles to build the automaton. Without a
    /// finder, the redactor replaces the whole of every text by a placeholder.
    finder: Option<AhoCorasick>,
    /// For each needle in the finder's order: the index in `placeholders`, and whether the needle
    /// is base64.
    origins: Vec<(usize, bool)>,
    /// For each secret, the placeholder that replaces its value.
    placeholders: Vec<String>,
    /// The needles in the finder's order. `needle_prefix_start` checks whether a text ends with the
    /// beginning of a needle.
    needles: Vec<Needle>,
    /// The length of the longest needle in bytes.
    longest: usize,
    /// Whether the value of a secret has a space. If so, a `+` in a text may stand for a space, as
    /// in form data.
    has_spaces: bool,
}

/// A range of the original text. A placeholder replaces this range.
#[derive(Clone, Copy)]
struct Match<'r> {
    start: usize,
    end: usize,
    /// The length in bytes of the longest of the matches that were merged into this range.
    /// `placeholder` is the placeholder of this longest match.
    longest: usize,
    placeholder: &'r str,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Redactor({} values)",
            self.sets
                .iter()
                .map(|set| set.placeholders.len())
                .sum::<usize>()
        )
    }
}

impl Redactor {
    /// Creates a redactor from (name, value) pairs. The redactor replaces each value of 8 or more
    /// characters by `[secret NAME]`. It also finds the value without the white space at its ends:
    /// HTTP, for example, drops this white space from the value of a header.
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a Secret<String>)>) -> Self {
        let (mut placeholders, mut needles, mut has_spaces) = (Vec::new(), Vec::new(), false);
        for (name, secret) in secrets {
            let value = secret.reveal();
            if value.chars().count() < MIN_SECRET_CHARS {
                continue;
            }
            for text in BTreeSet::from([value.as_str(), value.trim()]) {
                if text.chars().count() < MIN_SECRET_CHARS {
                    continue;
                }
                needles.push((text.to_owned(), (placeholders.len(), false)));
                needles.extend(
                    in_base64(text.as_bytes())
                        .into_iter()
                        .map(|needle| (needle, (placeholders.len(), true))),
                );
            }
            has_spaces |= value.contains(' ');
            placeholders.push(format!("[secret {name}]"));
        }
        // If two values share a needle, the placeholder of the first value is shown.
        needles.sort();
        needles.dedup_by(|later, first| later.0 == first.0);
        if needles.is_empty() {
            return Self::default();
        }
        let longest = needles
            .iter()
            .map(|(text, _)| text.len())
            .max()
            .unwrap_or(0);
        let (needles, origins): (Vec<Needle>, Vec<_>) = needles
            .into_iter()
            .map(|(text, origin)| (Needle::new(text), origin))
            .unzip();
        Self {
            sets: vec![Arc::new(SecretSet {
                finder: finder(&needles),
                origins,
                placeholders,
                needles,
                longest,
                has_spaces,
            })],
        }
    }

    #[must_use]
    pub fn merged_with(&self, other: &Self) -> Self {
        Self {
            sets: [self.sets.as_slice(), other.sets.as_slice()].concat(),
        }
    }

    #[must_use]
    pub fn finds_secret_in(&self, text: &str) -> bool {
        !self.all_matches(text).is_empty()
    }

    #[must_use]
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        Self::replace(text, &self.all_matches(text))
    }

    /// Replaces the matches, which must be in order and must not overlap.
    fn replace<'t>(text: &'t str, matches: &[Match<'_>]) -> Cow<'t, str> {
        if matches.is_empty() {
            return Cow::Borrowed(text);
        }
        let (mut out, mut from) = (String::with_capacity(text.len()), 0);
        for found in matches {
            out.push_str(text.get(from..found.start).unwrap_or_default());
            out.push_str(found.placeholder);
            from = found.end;
        }
        out.push_str(text.get(from..).unwrap_or_default());
        Cow::Owned(out)
    }

    /// Redacts `text`, which is the beginning of a longer text. If the end of `text` may be the
    /// beginning of a secret, this end is cut off.
    #[must_use]
    pub fn redact_prefix<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.redact_safe_prefix(text).0
    }

    /// Returns the length in bytes of the longest needle (a secret, or its base64 form) in a text
    /// that escapes each byte of the needle as six bytes (`\u0041`). A caller that keeps only the
    /// beginning of a text reads this many further bytes before the redaction, so that a secret
    /// that begins in the kept part is read to its end.
    #[must_use]
    pub fn max_escaped_secret_len(&self) -> usize {
        self.sets
            .iter()
            .map(|set| set.longest * 6)
            .max()
            .unwrap_or(0)
    }

    /// Redacts a prefix of `text`. More text may follow later. No secret and no escape can cross
    /// the end of the prefix, so the later text does not change the redaction of the prefix.
    /// Returns the redacted prefix, and the length in bytes that the prefix has in `text`.
    pub(super) fn redact_safe_prefix<'t>(&self, text: &'t str) -> (Cow<'t, str>, usize) {
        if self.sets.is_empty() {
            return (Cow::Borrowed(text), text.len());
        }
        let (mut cut, mut unsplittable) = (text.len(), Vec::new());
        let mut matches = self.all_matches(text);
        layer::for_each_layer(
            text,
            UnescapeOptions {
                decode_forms: self.has_spaces(),
                more_follows: true,
            },
            &mut |layer| {
                for set in &self.sets {
                    cut = cut.min(layer.start(set.needle_prefix_start(&layer.bytes)));
                }
                unsplittable.extend(layer.escapes());
            },
        );
        unsplittable.extend(matches.iter().map(|found| (found.start, found.end)));
        unsplittable.sort_unstable();
        // Overlapping matches and escapes form a run. A cut inside a run moves to the run's start.
        let mut run = (0, 0);
        for (start, end) in unsplittable {
            run = if start < run.1 {
                (run.0, run.1.max(end))
            } else {
                (start, end)
            };
            if run.1 > cut {
                cut = cut.min(run.0);
                break;
            }
        }
        // The cut splits no match, so this keeps all matches in the prefix.
        matches.retain(|found| found.end <= cut);
        let prefix = text.get(..cut).unwrap_or_default();
        (Self::replace(prefix, &matches), cut)
    }

    fn has_spaces(&self) -> bool {
        self.sets.iter().any(|set| set.has_spaces)
    }

    /// Returns all matches in order; overlapping matches are merged.
    fn all_matches(&self, text: &str) -> Vec<Match<'_>> {
        let mut matches = Vec::new();
        if !self.sets.is_empty() {
            layer::for_each_layer(
                text,
                UnescapeOptions {
                    decode_forms: self.has_spaces(),
                    more_follows: false,
                },
                &mut |layer| {
                    self.sets
                        .iter()
                        .for_each(|set| matches.append(&mut set.matches(layer)));
                },
            );
        }
        matches.sort_by_key(|found| (found.start, Reverse(found.end)));
        let mut merged: Vec<Match<'_>> = Vec::new();
        for found in matches {
            push_merged(&mut merged, found);
        }
        merged
    }
}

/// Adds a match at the end of `matches`. As long as the last element overlaps the match, merges
/// this element into the match. Does not look at elements before an element without overlap. So the
/// caller must add all matches in order of their starts, or all matches in order of their ends.
fn push_merged<'r>(matches: &mut Vec<Match<'r>>, mut found: Match<'r>) {
    while let Some(last) = matches.pop_if(|last| found.start < last.end) {
        let longer = if last.longest >= found.longest {
            last
        } else {
            found
        };
        found = Match {
            start: last.start.min(found.start),
            end: last.end.max(found.end),
            ..longer
        };
    }
    matches.push(found);
}

impl SecretSet {
    fn matches(&self, layer: &Layer<'_>) -> Vec<Match<'_>> {
        let mut matches = Vec::new();
        let Some(finder) = &self.finder else {
            // The text cannot be searched, so all of it is redacted.
            let whole = layer.end(layer.bytes.len());
            return vec![Match {
                start: 0,
                end: whole,
                longest: whole,
                placeholder: "[secret]",
            }];
        };
        for found in finder.find_overlapping_iter(layer.bytes.as_ref()) {
            let Some((value, base64)) = self.origins.get(found.pattern().as_usize()) else {
                continue;
            };
            let Some(placeholder) = self
                .placeholders
                .get(*value)
                .filter(|_| *base64 || !layer.joined)
            else {
                continue;
            };
            let (start, end) = (layer.start(found.start()), layer.end(found.end()));
            push_merged(
                &mut matches,
                Match {
                    start,
                    end,
                    longest: end - start,
                    placeholder,
                },
            );
        }
        matches
    }

    /// Returns the offset of the longest suffix of `bytes` that may be the beginning of a needle.
    /// If there is no such suffix, returns the length of `bytes`.
    fn needle_prefix_start(&self, bytes: &[u8]) -> usize {
        let beginnings = self
            .needles
            .iter()
            .map(|needle| needle.beginning_at_end_of(bytes));
        bytes.len() - beginnings.max().unwrap_or(0)
    }
}

/// Returns the automaton that finds the needles; `None` if there are too many needles. The
/// automaton is an NFA, which is built in time linear in the length of the needles. The crate's
/// default for few needles is a DFA; its construction takes time quadratic in the length of a
/// periodic needle.
fn finder(needles: &[Needle]) -> Option<AhoCorasick> {
    AhoCorasick::builder()
        .kind(Some(AhoCorasickKind::ContiguousNFA))
        .build(needles.iter().map(Needle::bytes))
        .ok()
}

/// Returns the base64 forms of a value inside a longer text. The forms depend on the base64
/// alphabet, and on the value's offset in the text modulo 3. For each alphabet and offset, one form
/// has only the characters that do not depend on the bytes before and after the value.
///
/// The character after this form may encode the value's last bits together with bits of the next
/// byte. If the text ends with the value, there is no next byte. So two further forms include this
/// character: one with padding, one without.
fn in_base64(value: &[u8]) -> Vec<String> {
    let mut needles = Vec::new();
    for (engine, before) in [&BASE64_STANDARD_NO_PAD, &BASE64_URL_SAFE_NO_PAD]
        .into_iter()
        .flat_map(|engine| [(engine, 0), (engine, 1), (engine, 2)])
    {
        let bytes = [vec![0; before], value.to_vec()].concat();
        let text = engine.encode(&bytes);
        let own = (before * 8).div_ceil(6);
        let (alone, all) = (text.get(own..bytes.len() * 8 / 6), text.get(own..));
        needles.extend(alone.map(str::to_owned));
        if let Some(all) = all.filter(|all| alone != Some(all)) {
            needles.push(all.to_owned());
            needles.push(format!("{all}{}", "=".repeat(3 - bytes.len() % 3)));
        }
    }
    needles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_finder_nothing_of_a_text_is_shown() {
        let needles = vec![Needle::new("hunter2-hunter2".to_owned())];
        let (origins, placeholders) = (vec![(0, false)], vec!["[secret KEY]".to_owned()]);
        let set = SecretSet {
            finder: None,
            origins,
            placeholders,
            needles,
            longest: 15,
            has_spaces: false,
        };
        let redactor = Redactor {
            sets: vec![Arc::new(set)],
        };
        assert_eq!(redactor.redact("hunter2-hunter2 and more"), "[secret]");
        assert!(redactor.finds_secret_in("nothing of it"));
    }
}
