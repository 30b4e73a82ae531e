//! The search for known secrets in text that came from outside. What must stay true: no text that went through here holds
//! one of them, plain, percent-encoded or in base64 at any offset, nor either of these escaped once more in JSON or percent.
//! The search takes time in proportion to the text, whatever it holds.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};

use super::Secret;
use super::layer::{self, Layer, Reading};

/// How many characters a value has at least that is searched for.
const SHORTEST: usize = 8;

/// Finds known secrets in text that came from outside.
#[derive(Clone, Default)]
pub struct Redactor {
    sets: Vec<Arc<Set>>,
}

/// Secrets that are searched for together.
struct Set {
    /// Finds the needles; `None` where they are too many for it.
    finder: Option<AhoCorasick>,
    /// For each needle in the finder's order: the value it is made of, and whether it is base64.
    origins: Vec<(usize, bool)>,
    /// For each value, what is shown instead.
    shown: Vec<String>,
    /// The needles in order.
    sorted: Vec<String>,
    /// How long the longest needle is.
    longest: usize,
    /// Whether a value has a space, which a form writes as `+`.
    spaces: bool,
}

/// A part of the text that is replaced.
#[derive(Clone, Copy)]
struct Find<'r> {
    start: usize,
    end: usize,
    /// How long the longest value in it is, and what is shown for that one.
    longest: usize,
    shown: &'r str,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} values)", self.sets.iter().map(|set| set.shown.len()).sum::<usize>())
    }
}

impl Redactor {
    /// Looks for each value of 8 characters or more. Takes (name, value) pairs; a find shows `[secret NAME]` instead.
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a Secret<String>)>) -> Self {
        let (mut shown, mut needles, mut spaces) = (Vec::new(), Vec::new(), false);
        for (name, secret) in secrets {
            let value = secret.reveal();
            if value.chars().count() < SHORTEST {
                continue;
            }
            needles.push((value.clone(), (shown.len(), false)));
            needles.extend(in_base64(value.as_bytes()).into_iter().map(|needle| (needle, (shown.len(), true))));
            spaces |= value.contains(' ');
            shown.push(format!("[secret {name}]"));
        }
        // Of a text that is the same for two values, the first is shown.
        needles.sort();
        needles.dedup_by(|later, first| later.0 == first.0);
        if needles.is_empty() {
            return Self::default();
        }
        let (sorted, origins): (Vec<String>, Vec<_>) = needles.into_iter().unzip();
        let finder = AhoCorasick::new(&sorted).ok();
        let longest = sorted.iter().map(String::len).max().unwrap_or(0);
        Self { sets: vec![Arc::new(Set { finder, origins, shown, sorted, longest, spaces })] }
    }

    /// Looks for what both look for.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self { sets: [self.sets.as_slice(), other.sets.as_slice()].concat() }
    }

    /// Whether the text holds a known secret.
    #[must_use]
    pub fn finds(&self, text: &str) -> bool {
        !self.all_finds(text).is_empty()
    }

    /// The text without any known secret.
    #[must_use]
    pub fn clean<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let finds = self.all_finds(text);
        if finds.is_empty() {
            return Cow::Borrowed(text);
        }
        let (mut out, mut from) = (String::with_capacity(text.len()), 0);
        for find in finds {
            out.push_str(text.get(from..find.start).unwrap_or_default());
            out.push_str(find.shown);
            from = find.end;
        }
        out.push_str(text.get(from..).unwrap_or_default());
        Cow::Owned(out)
    }

    /// The beginning of a longer text without any known secret, and without what may be the beginning of one.
    #[must_use]
    pub fn clean_beginning<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.clean(text.get(..self.settled(text)).unwrap_or_default())
    }

    /// The length in bytes of the longest text it looks for, each byte spelled `\u0000`: how much more to read of something
    /// that is cut off than is kept of it.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.sets.iter().map(|set| set.longest * 6).max().unwrap_or(0)
    }

    /// How many bytes at the beginning of a text can be cleaned by themselves, whatever follows.
    pub(super) fn settled(&self, text: &str) -> usize {
        let (mut cut, mut whole) = (text.len(), Vec::new());
        if self.sets.is_empty() {
            return cut;
        }
        layer::each(text, Reading { forms: self.spaces(), begun: true }, &mut |layer| {
            for set in &self.sets {
                cut = cut.min(layer.start(set.begun(&layer.bytes)));
            }
            whole.extend(layer.escapes());
        });
        whole.extend(self.all_finds(text).iter().map(|find| (find.start, find.end)));
        whole.sort_unstable();
        // What overlaps is cut nowhere.
        let mut row = (0, 0);
        for (start, end) in whole {
            row = if start < row.1 { (row.0, row.1.max(end)) } else { (start, end) };
            if row.0 >= cut {
                break;
            }
            if row.1 > cut {
                return row.0;
            }
        }
        cut
    }

    fn spaces(&self) -> bool {
        self.sets.iter().any(|set| set.spaces)
    }

    /// Every find in its order, those that overlap as one.
    fn all_finds(&self, text: &str) -> Vec<Find<'_>> {
        let mut finds = Vec::new();
        if !self.sets.is_empty() {
            layer::each(text, Reading { forms: self.spaces(), begun: false }, &mut |layer| {
                self.sets.iter().for_each(|set| finds.append(&mut set.finds(layer)));
            });
        }
        finds.sort_by_key(|find| (find.start, Reverse(find.end)));
        let mut apart: Vec<Find<'_>> = Vec::new();
        for find in finds {
            joined(&mut apart, find);
        }
        apart
    }
}

/// Adds a find that ends, or begins, no earlier than those before it.
fn joined<'r>(finds: &mut Vec<Find<'r>>, mut find: Find<'r>) {
    while let Some(last) = finds.pop_if(|last| find.start < last.end) {
        let longer = if last.longest >= find.longest { last } else { find };
        find = Find { start: last.start.min(find.start), end: last.end.max(find.end), ..longer };
    }
    finds.push(find);
}

impl Set {
    fn finds(&self, layer: &Layer<'_>) -> Vec<Find<'_>> {
        let mut finds = Vec::new();
        let Some(finder) = &self.finder else {
            // Not searched is not shown.
            let whole = layer.end(layer.bytes.len());
            return vec![Find { start: 0, end: whole, longest: whole, shown: "[secret]" }];
        };
        for found in finder.find_overlapping_iter(layer.bytes.as_ref()) {
            let Some((value, base64)) = self.origins.get(found.pattern().as_usize()) else { continue };
            let Some(shown) = self.shown.get(*value).filter(|_| *base64 || !layer.joined) else { continue };
            let (start, end) = (layer.start(found.start()), layer.end(found.end()));
            joined(&mut finds, Find { start, end, longest: end - start, shown });
        }
        finds
    }

    /// Where the longest ending starts that may be the beginning of a needle; the end where there is none.
    fn begun(&self, bytes: &[u8]) -> usize {
        let from = bytes.len().saturating_sub(self.longest.saturating_sub(1));
        let begins = |at: &usize| {
            let ending = bytes.get(*at..).unwrap_or_default();
            let next = self.sorted.partition_point(|needle| needle.as_bytes() <= ending);
            self.sorted.get(next).is_some_and(|needle| needle.as_bytes().starts_with(ending))
        };
        (from..bytes.len()).find(begins).unwrap_or(bytes.len())
    }
}

/// What a value looks like inside of something longer that is base64, whatever stands before and behind it: for each of the
/// three offsets the characters that it decides alone, and those with the last one where nothing follows, padded or not.
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
        let sorted = vec!["hunter2-hunter2".to_owned()];
        let (origins, shown) = (vec![(0, false)], vec!["[secret KEY]".to_owned()]);
        let set = Set { finder: None, origins, shown, longest: 15, spaces: false, sorted };
        let redactor = Redactor { sets: vec![Arc::new(set)] };
        assert_eq!(redactor.clean("hunter2-hunter2 and more"), "[secret]");
        assert!(redactor.finds("nothing of it"));
    }
}
