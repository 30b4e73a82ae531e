//! Folds and shortens member names. Folding makes names equal that differ only in case or Unicode
//! normal form, because some JSON readers treat such names as equal.

use unicode_normalization::UnicodeNormalization as _;

use crate::task::text::cut;

/// Returns the beginning of a name, for a message about the name.
pub(super) fn shortened(name: &str) -> &str {
    cut(name, 80)
}

/// Returns the name in lower case and in the Unicode normal form NFKC.
#[must_use]
pub(crate) fn folded(name: &str) -> String {
    if name.is_ascii() {
        return name.to_ascii_lowercase();
    }
    // The name is converted to upper case first, because `to_lowercase` alone would keep `ſ`
    // different from `s`, and `ß` different from `ss`. Each character is converted separately,
    // because `str::to_lowercase` converts a `Σ` at the end of a word to `ς` instead of `σ`.
    let upper = name
        .nfkc()
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase);
    upper.nfkc().flat_map(char::to_lowercase).nfkc().collect()
}

#[cfg(test)]
mod tests {
    use super::folded;

    #[test]
    fn names_equal_in_case_or_normal_form_fold_to_the_same() {
        for (one, other) in [
            ("amount", "Amount"),
            ("caf\u{e9}", "cafe\u{301}"),
            ("caf\u{e9}", "CAFE\u{301}"),
            ("\u{fb01}le", "file"),
            ("\u{17f}um", "sum"),
            ("stra\u{df}e", "STRASSE"),
            ("\u{212a}ey", "key"),
            ("\u{3a3}\u{3a3}", "\u{3c3}\u{3c2}"),
            ("\u{ff41}mount", "amount"),
        ] {
            assert_eq!(folded(one), folded(other), "{one} {other}");
        }
    }

    #[test]
    fn names_that_only_look_alike_stay_apart() {
        assert_ne!(folded("amount"), folded("am\u{43e}unt"));
        assert_ne!(folded("a_b"), folded("ab"));
    }
}
