//! Prepares a tool's output for storage: valid text of bounded length without known secrets.
//! Redaction comes before truncation, so that no part of a secret remains at the cut.

use crate::secret::Redactor;
use crate::task::text::{cut, from_bytes};

pub(crate) const MAX_RESULT_BYTES: usize = 1024 * 1024;
/// The number of bytes reserved for the note that a result was cut.
const CUT_NOTE_BYTES: usize = 96;

/// Returns the number of bytes that must be read so that `limit` bytes can be kept. The number is
/// greater than `limit`, because a secret that crosses the limit must be read to its end.
pub(crate) fn bytes_to_read(redactor: &Redactor, limit: usize) -> usize {
    limit
        .saturating_add(redactor.max_escaped_secret_len())
        .saturating_add(4)
}

/// Redacts `bytes`, and cuts the text to at most `limit` bytes. `complete` says whether `bytes` are
/// the tool's whole output. Returns the text, and whether the text lacks a part of this output.
pub(crate) fn clean(
    redactor: &Redactor,
    bytes: &[u8],
    complete: bool,
    limit: usize,
) -> (String, bool) {
    if complete {
        let text = from_bytes(bytes);
        let text = redactor.redact(&text);
        return (cut(&text, limit).to_owned(), text.len() > limit);
    }
    // The bytes may end inside a UTF-8 character. Therefore the last character is left out if it is
    // not ASCII, even if it is whole. The bytes may also end inside a secret. `redact_prefix` cuts
    // off the beginning of such a secret.
    let last = bytes.iter().rposition(|byte| !(0x80..0xC0).contains(byte));
    let valid_len = last
        .filter(|last| bytes.get(*last).is_some_and(|byte| *byte >= 0xC0))
        .unwrap_or(bytes.len());
    let text = from_bytes(bytes.get(..valid_len).unwrap_or_default());
    (cut(&redactor.redact_prefix(&text), limit).to_owned(), true)
}

/// Returns a redacted result: whole, or cut to [`MAX_RESULT_BYTES`] bytes with a note.
pub(crate) fn result(redactor: &Redactor, bytes: &[u8], complete: bool) -> String {
    let (content, is_cut) = clean(redactor, bytes, complete, MAX_RESULT_BYTES);
    if !is_cut {
        return content;
    }
    let text = cut(&content, MAX_RESULT_BYTES - CUT_NOTE_BYTES).to_owned();
    let mebibytes = MAX_RESULT_BYTES / (1024 * 1024);
    text + &format!("\n[cut: the result is longer than {mebibytes} MiB]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    #[test]
    fn secret_across_the_cut_leaves_nothing_behind() {
        let secret = Secret::new("hunter2-hunter2".to_owned());
        let redactor = Redactor::new([("KEY", &secret)]);
        for before in 0..40 {
            let text = format!(
                "{}hunter2-hunter2 and more, and more, and more",
                "x".repeat(before)
            );
            let read = text.get(..bytes_to_read(&redactor, 20)).unwrap_or(&text);
            let (clean, cut) = clean(&redactor, read.as_bytes(), read.len() == text.len(), 20);
            assert!(cut && !clean.contains("hun"), "{clean}");
            assert!(clean.len() <= 20);
        }
    }

    #[test]
    fn secret_across_the_cut_leaves_nothing_behind_however_it_is_spelled_and_whatever_is_read() {
        let secret = "hünter2-hünter2";
        let redactor = Redactor::new([("KEY", &Secret::new(secret.to_owned()))]);
        let base64 = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, secret);
        let json = secret
            .encode_utf16()
            .fold(String::new(), |json, unit| json + &format!("\\u{unit:04x}"));
        for (spelled, begins) in [
            (secret.to_owned(), "h"),
            (json.clone(), "\\"),
            (json.replace('\\', "\\u005c"), "\\"),
            (base64, "aM"),
        ] {
            for read in 1..spelled.len() {
                let text = format!("xx{spelled}");
                let (clean, cut) = clean(&redactor, &text.as_bytes()[..2 + read], false, 4096);
                assert!(
                    cut && clean.starts_with("xx") && !clean.contains(begins),
                    "{clean} of {read} bytes of {spelled}"
                );
            }
        }
    }

    #[test]
    fn result_of_1_mib_is_whole_and_one_byte_more_is_cut() {
        let redactor = Redactor::default();
        assert_eq!(
            result(&redactor, &vec![b'x'; MAX_RESULT_BYTES], true).len(),
            MAX_RESULT_BYTES
        );
        let cut = result(&redactor, &vec![b'x'; MAX_RESULT_BYTES + 1], true);
        assert!(
            cut.len() <= MAX_RESULT_BYTES
                && cut.ends_with("[cut: the result is longer than 1 MiB]")
        );
    }

    #[test]
    fn unstorable_bytes_are_replaced() {
        assert_eq!(
            result(&Redactor::default(), b"a\0b\xff", true),
            "a\u{FFFD}b\u{FFFD}"
        );
    }
}
