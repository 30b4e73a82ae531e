//! What a tool sent back, as it may be kept: text that can be stored, without known secrets, of bounded length. Secrets
//! are looked for before anything is cut off, so that no part of one stays at the cut.

use crate::secret::Redactor;
use crate::task::text::{cut, from_bytes};

/// How many bytes of a result are kept.
pub(super) const KEPT: usize = 1024 * 1024;
/// How long the note may be that says that a result was cut.
const NOTE: usize = 96;

/// How much has to be read of something of which `limit` bytes are kept.
pub(super) fn to_read(redactor: &Redactor, limit: usize) -> usize {
    limit.saturating_add(redactor.longest()).saturating_add(4)
}

/// The text of at most `limit` bytes of what was read, and whether something is missing. `complete`: nothing followed.
pub(super) fn clean(redactor: &Redactor, bytes: &[u8], complete: bool, limit: usize) -> (String, bool) {
    let text = from_bytes(bytes);
    let text = redactor.clean(&text);
    if complete && text.len() <= limit {
        return (text.into_owned(), false);
    }
    // Where reading stopped, the beginning of a secret may stand.
    let doubtful = if complete { 0 } else { redactor.longest() + 4 };
    let keep = limit.min(text.len().saturating_sub(doubtful));
    (cut(&text, keep).to_owned(), true)
}

/// A result: whole, or cut and saying so.
pub(super) fn result(redactor: &Redactor, bytes: &[u8], complete: bool) -> String {
    let (whole, missing) = clean(redactor, bytes, complete, KEPT);
    if !missing {
        return whole;
    }
    let mut text = cut(&whole, KEPT - NOTE).to_owned();
    text.push_str("\n[cut: the result is longer than 1 MiB]");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    #[test]
    fn a_secret_across_the_cut_leaves_nothing_behind() {
        let secret = Secret::new("hunter2-hunter2".to_owned());
        let redactor = Redactor::new([("KEY", &secret)]);
        for before in 0..40 {
            let text = format!("{}hunter2-hunter2 and more, and more, and more", "x".repeat(before));
            let read = text.get(..to_read(&redactor, 20)).unwrap_or(&text);
            let (clean, cut) = clean(&redactor, read.as_bytes(), read.len() == text.len(), 20);
            assert!(cut && !clean.contains("hun"), "{clean}");
            assert!(clean.len() <= 20);
        }
    }

    #[test]
    fn a_result_of_exactly_one_mebibyte_is_whole_and_one_byte_more_is_cut() {
        let redactor = Redactor::default();
        assert_eq!(result(&redactor, &vec![b'x'; KEPT], true).len(), KEPT);
        let cut = result(&redactor, &vec![b'x'; KEPT + 1], true);
        assert!(cut.len() <= KEPT && cut.ends_with("[cut: the result is longer than 1 MiB]"));
    }

    #[test]
    fn what_cannot_be_stored_is_replaced() {
        assert_eq!(result(&Redactor::default(), b"a\0b\xff", true), "a\u{FFFD}b\u{FFFD}");
    }
}
