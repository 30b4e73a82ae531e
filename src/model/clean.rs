//! Prepares the texts of a model endpoint before they are stored or shown. In every text, known
//! secrets are redacted and U+0000 is replaced. In error texts, URLs are replaced, too. Every text
//! of an endpoint passes through this file before the text leaves the module `model`.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use regex::Regex;
use serde_json::Value;

use super::AnswerCall;
use crate::secret::{Redactor, StreamRedactor};
use crate::task::text::{InvalidEscape, escape_length, map_texts, replace_escapes, without_nul};

/// The maximum number of characters of an endpoint's error text that are kept.
const MAX_PROBLEM_CHARS: usize = 500;

#[derive(Clone, Debug)]
pub(crate) struct Cleaner(pub(crate) Arc<Redactor>);

impl Cleaner {
    /// Redacts secrets and replaces U+0000.
    pub(crate) fn text(&self, text: &str) -> String {
        without_nul(self.0.redact(text).into_owned())
    }

    /// Like [`Cleaner::text`], for a text that was cut. Leaves out the end of the text if it may be
    /// the beginning of a secret.
    pub(crate) fn cut_text(&self, text: &str) -> String {
        // A cut inside a character has left U+FFFD at the end.
        let text = text.trim_end_matches('\u{FFFD}');
        without_nul(self.0.redact_prefix(text).into_owned())
    }

    /// Redacts a call. The arguments keep their exact text, except for secrets and U+0000 (as a
    /// character or as an escape).
    pub(crate) fn call(&self, provider_id: &str, name: &str, arguments: &str) -> AnswerCall {
        let arguments = replace_escapes(arguments, InvalidEscape::Nul);
        AnswerCall {
            provider_id: self.text(provider_id),
            name: self.text(name),
            holds_secret: self.0.finds_secret_in(&arguments),
            arguments_text: self.text(&arguments),
        }
    }

    /// Returns a redactor for a text that arrives in pieces. The joined outputs of the redactor
    /// equal the result of [`Cleaner::text`] for the whole text.
    pub(crate) fn text_stream(&self) -> StreamCleaner {
        StreamCleaner {
            redactor: StreamRedactor::new(Arc::clone(&self.0)),
            incomplete_escape: None,
        }
    }

    /// Returns a redactor for arguments that arrive in pieces. The joined outputs of the redactor
    /// equal the `arguments_text` that [`Cleaner::call`] returns for the whole arguments.
    pub(crate) fn arguments_stream(&self) -> StreamCleaner {
        StreamCleaner {
            redactor: StreamRedactor::new(Arc::clone(&self.0)),
            incomplete_escape: Some(String::new()),
        }
    }

    /// Redacts a JSON value, including the names of members. A number is redacted, too, if its
    /// digits contain a secret; it then becomes a text.
    pub(crate) fn json(&self, value: Value) -> Value {
        map_texts(value, &|text| self.text(text))
    }

    /// Prepares an error text for a person: one line, without URLs. A text of more than
    /// [`MAX_PROBLEM_CHARS`] characters is cut and ends with `…`, by which the engine recognizes a
    /// cut text.
    pub(crate) fn problem(&self, text: &str) -> String {
        let text = self.text(text);
        let text = ADDRESS.as_ref().map_or(Cow::Borrowed(""), |address| {
            address.replace_all(&text, "[address]")
        });
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.char_indices().nth(MAX_PROBLEM_CHARS) {
            Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default().trim_end()),
            None => line,
        }
    }
}

/// Redacts a text in pieces. The joined outputs equal the redacted whole text.
#[derive(Debug)]
pub(crate) struct StreamCleaner {
    redactor: StreamRedactor,
    /// The incomplete escape at the end of the pieces so far; empty if there is none. `None` if the
    /// text is not JSON and therefore has no escapes.
    incomplete_escape: Option<String>,
}

impl StreamCleaner {
    /// Takes the next piece, and returns the part that is safe to show now.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        let Some(incomplete_escape) = &mut self.incomplete_escape else {
            return without_nul(self.redactor.push(piece));
        };
        incomplete_escape.push_str(piece);
        let rest = incomplete_escape.split_off(complete_escapes_len(incomplete_escape));
        let complete = std::mem::replace(incomplete_escape, rest);
        without_nul(
            self.redactor
                .push(&replace_escapes(&complete, InvalidEscape::Nul)),
        )
    }

    pub(crate) fn finish(&mut self) -> String {
        let rest = self
            .incomplete_escape
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default();
        let shown = self
            .redactor
            .push(&replace_escapes(&rest, InvalidEscape::Nul));
        without_nul(shown + &self.redactor.finish())
    }
}

/// Returns the length of the text in bytes, without an incomplete escape at the end of the text.
fn complete_escapes_len(text: &str) -> usize {
    let mut at = 0;
    while let Some(escape) = text
        .get(at..)
        .and_then(|rest| rest.find('\\'))
        .and_then(|found| text.get(at + found..))
    {
        let start = text.len() - escape.len();
        let digits = escape.strip_prefix("\\u");
        if escape.len() == 1
            || digits.is_some_and(|digits| {
                digits.len() < 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
            })
        {
            return start;
        }
        at = start + escape_length(escape);
    }
    text.len()
}

static ADDRESS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"(?i)\b[a-z][a-z0-9+.-]*://(?:\[secret [^\]]*\]|[^\s"'<>`)\]}])*"#).ok()
});

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::secret::Secret;
    use crate::task::text::from_bytes;

    fn cleaner() -> Cleaner {
        let key = Secret::new("sk-very-secret".to_owned());
        Cleaner(Arc::new(Redactor::new([("KEY", &key)])))
    }

    #[test]
    fn error_is_one_short_line_without_addresses_and_secrets() {
        let problem = cleaner()
            .problem("bad key\n sk-very-secret\0, see https://host.internal/x?y=sk-very-secret.");
        assert_eq!(problem, "bad key [secret KEY]\u{FFFD}, see [address]");
        let long = cleaner().problem(&"é".repeat(900));
        assert_eq!(long.chars().count(), 501);
        assert!(long.ends_with('…'), "{long}");
    }

    #[test]
    fn cut_text_ends_before_a_secret_wherever_the_secret_is_cut() {
        let key = Secret::new("pässwört".to_owned());
        let cleaner = Cleaner(Arc::new(Redactor::new([("KEY", &key)])));
        let (before, secret) = ("wrong: ", key.reveal().as_bytes());
        for end in 0..secret.len() {
            let read = from_bytes(&[before.as_bytes(), &secret[..end]].concat());
            assert_eq!(cleaner.cut_text(&read), before, "{read}");
        }
    }

    #[test]
    fn call_says_whether_its_arguments_held_a_secret() {
        let call = cleaner().call("call_0", "pay", r#"{"to":"sk-very\u002dsecret"}"#);
        assert!(call.holds_secret);
        assert_eq!(call.arguments_text, r#"{"to":"[secret KEY]"}"#);
        for arguments in [r#"{"to":"[secret KEY]"}"#, r#"{"to":"\u0000"}"#, ""] {
            assert!(
                !cleaner()
                    .call("sk-very-secret", "sk-very-secret", arguments)
                    .holds_secret,
                "{arguments}"
            );
        }
    }

    #[test]
    fn value_is_cleaned_everywhere() {
        let clean = cleaner().json(json!({"a\0": ["x sk-very-secret", {"b": "\0"}], "n": 1.5}));
        assert_eq!(
            clean,
            json!({"a\u{FFFD}": ["x [secret KEY]", {"b": "\u{FFFD}"}], "n": 1.5})
        );
    }

    #[test]
    fn streamed_text_is_cleaned_like_the_whole_text_wherever_it_is_cut() {
        let cleaner = cleaner();
        for text in [
            r#"{"a":"x\u0000y\\u0000 \\\u0000 \u00e9\n\u000"}"#,
            r#"{"key":"sk-very-secret","k":"\u0073k-very-secret","é":"\\\\"}\"#,
            "\0 \\u00 \\uzzzz \\u00é sk-very\\u002dsecret sk-very-secre",
        ] {
            let whole = [
                cleaner.text(text),
                cleaner.call("", "", text).arguments_text,
            ];
            let cuts: Vec<_> = text.char_indices().map(|(at, _)| at).collect();
            for (first, second) in cuts
                .iter()
                .flat_map(|first| cuts.iter().map(move |second| (*first, *second)))
            {
                let (first, second) = (first.min(second), first.max(second));
                let mut both = [cleaner.text_stream(), cleaner.arguments_stream()];
                let shown = both.each_mut().map(|stream| {
                    let pieces = [&text[..first], &text[first..second], &text[second..]];
                    let shown: String = pieces.map(|piece| stream.push(piece)).concat();
                    shown + &stream.finish()
                });
                assert_eq!(shown, whole, "{text} {first} {second}");
            }
        }
    }
}
