//! The languages of pages and messages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The language of pages and messages for a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Language {
    /// English.
    #[default]
    #[serde(rename = "en")]
    English,
    /// Chinese, in simplified characters.
    #[serde(rename = "zh")]
    Chinese,
}

impl Language {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 2] = [Self::English, Self::Chinese];

    /// Returns the value of the `lang` attribute of a page.
    #[must_use]
    pub fn tag(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Chinese => "zh-Hans",
        }
    }
}

/// Declares a struct of texts, and one static instance of it for each language. Each entry of the
/// macro has a text in both languages, so a missing translation does not compile. `with language`
/// adds the field `language` to the struct.
macro_rules! texts {
    ($texts:ident $(with $language:ident)?; $($name:ident: $english:literal, $chinese:literal;)*) => {
        /// The texts of one language.
        #[derive(Debug)]
        pub(crate) struct $texts {
            $(pub $language: Language,)?
            $(#[doc = $english] pub $name: &'static str),*
        }

        static ENGLISH: $texts = $texts { $($language: Language::English,)? $($name: $english),* };
        static CHINESE: $texts = $texts { $($language: Language::Chinese,)? $($name: $chinese),* };

        /// Each text in English and in Chinese.
        #[cfg(test)]
        const PAIRS: &[(&str, &str)] = &[$(($english, $chinese)),*];

        impl $texts {
            #[must_use]
            pub(crate) fn for_language(language: Language) -> &'static Self {
                match language {
                    Language::English => &ENGLISH,
                    Language::Chinese => &CHINESE,
                }
            }
        }

        #[cfg(test)]
        #[test]
        fn every_text_is_translated_and_fills_in_the_same_values() {
            crate::people::language::assert_translated(PAIRS);
        }
    };
}
pub(crate) use texts;

/// Panics if the two texts of a pair have different placeholders, or if the second text does not
/// look like Chinese.
#[cfg(test)]
pub(crate) fn assert_translated(pairs: &[(&str, &str)]) {
    let placeholders = |text: &str| -> std::collections::BTreeSet<String> {
        let parts = text.split('{').skip(1);
        let names = parts.filter_map(|part| part.split_once('}'));
        names.map(|(name, _)| name.to_owned()).collect()
    };
    for (english, chinese) in pairs {
        assert_eq!(placeholders(english), placeholders(chinese), "{english}");
        assert!(!english.is_empty());
        let translated = |c: char| !c.is_ascii() || "、{}:, /".contains(c);
        assert!(
            *chinese == "JSON" || chinese.chars().any(translated),
            "{english}"
        );
    }
}
