//! The search for secrets in a text that comes in pieces: what may be the beginning of one is held back until it is clear.

use std::sync::Arc;

use super::{Redactor, after_spelling};

/// The longest spelling of one character: two JSON escapes, or four percent-encoded bytes.
const SPELLING: usize = 12;

/// A text that comes in pieces. What is given out adds up to what [`Redactor::clean`] makes of the whole.
#[derive(Debug)]
pub struct Redacting {
    redactor: Arc<Redactor>,
    held: String,
}

impl Redacting {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(redactor: Arc<Redactor>) -> Self {
        Self { redactor, held: String::new() }
    }

    /// Takes the next piece, gives what may be shown of all that came: nothing that a later piece could make a secret of.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        let rest = self.held.split_off(self.redactor.settled(&self.held));
        let shown = std::mem::replace(&mut self.held, rest);
        self.redactor.clean(&shown).into_owned()
    }

    /// Nothing comes any more: gives the rest.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        self.redactor.clean(&rest).into_owned()
    }
}

impl Redactor {
    /// How many bytes at the beginning of a text can be cleaned by themselves, whatever follows.
    fn settled(&self, text: &str) -> usize {
        let mut settled = self.begun(text);
        while let Some(start) = self.cut_at(text, settled) {
            settled = start;
        }
        settled
    }

    /// Where the longest ending starts that may be the beginning of something it looks for; the end where there is none.
    fn begun(&self, text: &str) -> usize {
        let plain = self.needles.iter().filter_map(|(needle, _)| {
            let most = needle.len().saturating_sub(1).min(text.len());
            let starts = text.len() - most..text.len();
            let first = needle.as_bytes().first();
            starts.into_iter().find(|at| {
                text.as_bytes().get(*at) == first && text.get(*at..).is_some_and(|tail| needle.starts_with(tail))
            })
        });
        let spelled = self.values.iter().filter_map(|(value, _)| {
            let window = tail(text, value.len() * 6);
            let mut starts = text.char_indices().map(|(at, _)| at).skip_while(|at| *at < window);
            starts.find(|at| text.get(*at..).is_some_and(|tail| begins(tail, value)))
        });
        let escapes = text.get(tail(text, self.longest())..).is_some_and(|tail| tail.contains(['%', '\\', '+']));
        let spelled = if escapes { spelled.min() } else { None };
        plain.min().into_iter().chain(spelled).min().unwrap_or(text.len())
    }

    /// Where a find starts that the cut at `at` would go through.
    fn cut_at(&self, text: &str, at: usize) -> Option<usize> {
        if at == text.len() {
            return None;
        }
        let longest = self.longest().max(self.needles.first().map_or(0, |(needle, _)| needle.len()));
        let window = tail(text.get(..at)?, longest);
        let starts = text.get(..at)?.char_indices().map(|(start, _)| start).skip_while(|start| *start < window);
        starts.into_iter().find(|start| {
            let Some(here) = text.get(*start..) else { return false };
            let plain = self.needles.iter().any(|(needle, _)| start + needle.len() > at && here.starts_with(needle));
            plain
                || self.values.iter().any(|(value, _)| {
                    let after = value.chars().try_fold(here, after_spelling);
                    after.is_some_and(|after| text.len() - after.len() > at)
                })
        })
    }
}

/// Where the last `most` bytes of a text start, or the character they are in.
fn tail(text: &str, most: usize) -> usize {
    let at = text.len().saturating_sub(most);
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Whether a text may be the beginning of a spelling of that value, and not a whole one.
fn begins(text: &str, value: &str) -> bool {
    let mut rest = text;
    for wanted in value.chars() {
        if rest.is_empty() {
            return true;
        }
        match after_spelling(rest, wanted) {
            Some(after) => rest = after,
            None => return rest.len() < SPELLING && rest.starts_with(['%', '\\']),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    fn redactor() -> Arc<Redactor> {
        let keys = ["sk-very-secret/1+2", "another secret ü\"q", "sk-very-long-key", "aaaaaaaab"];
        let keys = keys.map(|key| Secret::new(key.to_owned()));
        Arc::new(Redactor::new(["ONE", "TWO", "THREE", "FOUR"].into_iter().zip(&keys)))
    }

    const TEXTS: [&str; 9] = [
        "the key is sk-very-secret/1+2, and again sk-very-secret/1+2",
        "sk-very-sec sk-very-secret/1 sk-very-",
        "x sk-very-secret%2F1%2b2 y %2",
        "a\\u006eother\\u0020secret \\u00fc\\\"q! \\",
        "c2stdmVyeS1zZWNyZXQvMSsy and c2stdmVyeS1zZWNyZXQvMSs",
        "YW5vdGhlciBzZWNyZXQgw7wicQ== YW5vdGhlciBzZWNyZXQgw7wicQ= YW5vdGhlciBzZWNyZXQgw7wicQ",
        "aaaaaaaaaaaaaab aaaaaaaaab aaaaaaaa",
        "another+secret+%C3%BC%22q another secret %C3 ü",
        "nothing of it, 100 % sure \\u00",
    ];

    #[test]
    fn what_comes_in_pieces_is_cleaned_as_the_whole_wherever_it_is_cut() {
        for text in TEXTS {
            let whole = redactor().clean(text).into_owned();
            let cuts: Vec<_> = text.char_indices().map(|(at, _)| at).collect();
            for first in &cuts {
                for second in cuts.iter().filter(|second| *second >= first) {
                    let mut redacting = Redacting::new(redactor());
                    let mut shown = redacting.push(&text[..*first]);
                    shown += &redacting.push(&text[*first..*second]);
                    shown += &redacting.push(&text[*second..]);
                    assert!(whole.starts_with(&shown), "{text} {first} {second}: {shown}");
                    assert_eq!(shown + &redacting.finish(), whole, "{text} {first} {second}");
                }
            }
            let mut redacting = Redacting::new(redactor());
            let letters: String = text.chars().map(|letter| redacting.push(letter.encode_utf8(&mut [0; 4]))).collect();
            assert_eq!(letters + &redacting.finish(), whole);
        }
    }

    #[test]
    fn only_what_may_become_a_secret_is_held_back() {
        let mut redacting = Redacting::new(redactor());
        assert_eq!(redacting.push("Hello, the key is sk-ve"), "Hello, the key is ");
        assert_eq!(redacting.push("ry nice. "), "sk-very nice. ");
        assert_eq!(redacting.push("sk-very-secret/1+2."), "[secret ONE].");
        assert_eq!(redacting.finish(), "");
        let mut nothing = Redacting::new(Arc::default());
        assert_eq!(nothing.push("sk-very-secret/1+"), "sk-very-secret/1+");
    }
}
