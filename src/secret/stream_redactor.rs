//! Redacts a text that arrives in pieces. The end of the text is held back while this end may be
//! the beginning of a secret.

use std::sync::Arc;

use super::Redactor;

/// Redacts a text that arrives in pieces. The outputs together equal [`Redactor::redact`] of the
/// whole text.
#[derive(Debug)]
pub struct StreamRedactor {
    redactor: Arc<Redactor>,
    held: String,
    /// The length in bytes that `held` must reach before `push` searches it again. If this is 0,
    /// the next `push` searches `held` at any length.
    next_search_len: usize,
}

/// The maximum length in bytes of a held text that `push` searches after each piece. `push`
/// searches a longer held text only when its length has doubled. So even a stream that is held back
/// until its end costs only a few searches of a long text.
const MAX_OFTEN_SEARCHED_BYTES: usize = 4096;

impl StreamRedactor {
    #[must_use]
    pub fn new(redactor: Arc<Redactor>) -> Self {
        Self {
            redactor,
            held: String::new(),
            next_search_len: 0,
        }
    }

    /// Takes the next piece. Returns the redacted text up to the first place at which a secret may
    /// have begun. Holds back the text from this place on, because later pieces may complete the
    /// secret.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        if self.held.len() < self.next_search_len {
            return String::new();
        }
        let (shown, len) = self.redactor.redact_safe_prefix(&self.held);
        let shown = shown.into_owned();
        self.held.drain(..len);
        self.next_search_len = if self.held.len() > MAX_OFTEN_SEARCHED_BYTES {
            self.held.len() * 2
        } else {
            0
        };
        shown
    }

    /// Returns the text that is held back, without redaction.
    pub(crate) fn held(&self) -> &str {
        &self.held
    }

    /// Ends the text and returns the rest, redacted.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        self.redactor.redact(&rest).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    fn redactor() -> Arc<Redactor> {
        let keys = [
            "sk-very-secret/1+2",
            "another secret ü\"q",
            "sk-very-long-key",
            "aaaaaaaab",
        ];
        let keys = keys.map(|key| Secret::new(key.to_owned()));
        Arc::new(Redactor::new(
            ["ONE", "TWO", "THREE", "FOUR"].into_iter().zip(&keys),
        ))
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
    fn long_unclear_text_is_searched_only_a_few_times() {
        let text = format!("%5c{}", "\\".repeat(64 * 1024));
        let (mut redacting, mut shown) = (StreamRedactor::new(redactor()), String::new());
        let mut searches = 0;
        for piece in text.as_bytes().chunks(16) {
            searches +=
                usize::from(redacting.held.len() + piece.len() >= redacting.next_search_len);
            shown += &redacting.push(std::str::from_utf8(piece).unwrap());
        }
        shown += &redacting.finish();
        assert_eq!(shown, redactor().redact(&text));
        assert!(searches < MAX_OFTEN_SEARCHED_BYTES / 8, "{searches}");
    }

    #[test]
    fn streamed_text_is_cleaned_like_the_whole_text_wherever_it_is_cut() {
        let redactor = redactor();
        for text in TEXTS {
            let whole = redactor.redact(text).into_owned();
            let cuts: Vec<_> = text.char_indices().map(|(at, _)| at).collect();
            for first in &cuts {
                for second in cuts.iter().filter(|second| *second >= first) {
                    let mut redacting = StreamRedactor::new(Arc::clone(&redactor));
                    let mut shown = redacting.push(&text[..*first]);
                    shown += &redacting.push(&text[*first..*second]);
                    shown += &redacting.push(&text[*second..]);
                    assert!(
                        whole.starts_with(&shown),
                        "{text} {first} {second}: {shown}"
                    );
                    assert_eq!(
                        shown + &redacting.finish(),
                        whole,
                        "{text} {first} {second}"
                    );
                }
            }
            let mut redacting = StreamRedactor::new(Arc::clone(&redactor));
            let letters: String = text
                .chars()
                .map(|letter| redacting.push(letter.encode_utf8(&mut [0; 4])))
                .collect();
            assert_eq!(letters + &redacting.finish(), whole);
        }
    }

    #[test]
    fn secret_whose_end_begins_another_one_is_held_back_whole() {
        let keys = ["first-and-middle", "middle-and-last"].map(|key| Secret::new(key.to_owned()));
        let mut redacting = StreamRedactor::new(Arc::new(Redactor::new(
            ["ONE", "TWO"].into_iter().zip(&keys),
        )));
        assert_eq!(redacting.push("x first-and-middle"), "x ");
        assert_eq!(redacting.push(" y"), "[secret ONE] y");
    }

    #[test]
    fn text_is_held_back_only_where_it_may_become_a_secret() {
        let mut redacting = StreamRedactor::new(redactor());
        assert_eq!(
            redacting.push("Hello, the key is sk-ve"),
            "Hello, the key is "
        );
        assert_eq!(redacting.push("ry nice. "), "sk-very nice. ");
        assert_eq!(redacting.push("sk-very-secret/1+2."), "[secret ONE].");
        assert_eq!(redacting.finish(), "");
        let mut nothing = StreamRedactor::new(Arc::default());
        assert_eq!(nothing.push("sk-very-secret/1+"), "sk-very-secret/1+");
    }
}
