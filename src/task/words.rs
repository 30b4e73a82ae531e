//! Declares enums whose variants have words: the texts on the wire, in the configuration or in the
//! database.

/// Declares an enum, each variant with its word. The macro builds the list of the variants and both
/// conversions from the declaration, so that no variant can be missing.
macro_rules! word_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$about:meta])* $variant:ident = $word:literal,)*
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $name { $($(#[$about])* $variant,)* }

        impl $name {
            /// All variants, in the order of declaration.
            $visibility const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            /// Returns the variant's word.
            #[must_use]
            $visibility const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Returns the variant with exactly this word (letter case counts).
            #[must_use]
            $visibility fn parse(word: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|known| known.as_str() == word)
            }
        }
    };
}
pub(crate) use word_enum;
