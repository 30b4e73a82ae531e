//! A needle is a text that is searched for. This module finds the longest prefix of a needle that
//! is a suffix of another text.

/// A text that is searched for, with its table for the algorithm of Knuth, Morris and Pratt.
pub(super) struct Needle {
    bytes: Vec<u8>,
    /// The value at index `n` is the length of the longest border of the needle's first `n + 1`
    /// bytes. A border is a proper prefix of these bytes that is also a suffix of them.
    borders: Vec<usize>,
}

impl Needle {
    pub(super) fn new(text: String) -> Self {
        let bytes = text.into_bytes();
        let (mut borders, mut matched) = (Vec::with_capacity(bytes.len()), 0);
        for (at, byte) in bytes.iter().enumerate() {
            if at > 0 {
                matched = extended(&bytes, &borders, matched, *byte);
            }
            borders.push(matched);
        }
        Self { bytes, borders }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the length of the longest proper prefix of the needle that is a suffix of `text`.
    pub(super) fn beginning_at_end_of(&self, text: &[u8]) -> usize {
        let from = text
            .len()
            .saturating_sub(self.bytes.len().saturating_sub(1));
        let end = text.get(from..).unwrap_or_default();
        end.iter().fold(0, |matched, byte| {
            extended(&self.bytes, &self.borders, matched, *byte)
        })
    }
}

/// Returns the length of the longest prefix of `needle` that is a suffix of a text. The last byte
/// of the text is `byte`. `matched` is this length for the text without `byte`. `borders` has at
/// least the first `matched` values of the needle's table ([`Needle`]).
fn extended(needle: &[u8], borders: &[usize], mut matched: usize, byte: u8) -> usize {
    loop {
        if needle.get(matched) == Some(&byte) {
            return matched + 1;
        }
        let Some(last) = matched.checked_sub(1) else {
            return 0;
        };
        matched = borders.get(last).copied().unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes [`Needle::beginning_at_end_of`] without a table: compares each proper prefix of the
    /// needle with the end of the text, the longest prefix first.
    fn compared_at_each_place(needle: &str, text: &str) -> usize {
        let is_found = |len: &usize| text.as_bytes().ends_with(&needle.as_bytes()[..*len]);
        (0..needle.len()).rev().find(is_found).unwrap()
    }

    proptest! {
        #[test]
        fn beginning_at_the_end_is_the_longest_that_a_comparison_at_each_place_finds(
            needle in "[ab]{1,12}", (before, cut) in ("[abc]{0,20}", any::<prop::sample::Index>()),
        ) {
            let begun = &needle[..cut.index(needle.len() + 1)];
            for text in [before.clone(), format!("{before}{begun}")] {
                let expected = compared_at_each_place(&needle, &text);
                let found = Needle::new(needle.clone()).beginning_at_end_of(text.as_bytes());
                prop_assert_eq!(found, expected);
            }
        }
    }
}
