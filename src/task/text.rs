//! Text that can be stored on both engines: no U+0000 (Postgres refuses it), cut on a character's border.

/// Text as it may be stored: each U+0000 becomes U+FFFD. For what a model or a tool sent; a request with one is refused.
#[must_use]
pub fn cleaned(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{FFFD}") } else { text }
}

/// Bytes as storable text: invalid UTF-8 and U+0000 become U+FFFD.
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> String {
    cleaned(String::from_utf8_lossy(bytes).into_owned())
}

/// The longest beginning of `text` that has at most `bytes` bytes and ends on a character's border.
#[must_use]
pub fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_stored_becomes_the_replacement_character() {
        assert_eq!(from_bytes(b"a\0b\xff"), "a\u{FFFD}b\u{FFFD}");
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
        assert_eq!(cut("aé", 99), "aé");
    }
}
