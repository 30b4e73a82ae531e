//! Which language a page for a person speaks: English, unless the reader would rather have Chinese.

use http::HeaderMap;
use http::header::ACCEPT_LANGUAGE;

/// The languages of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// English.
    English,
    /// Chinese, in simplified characters.
    Chinese,
}

impl Language {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::English, Self::Chinese];

    /// The one that `Accept-Language` gives more weight; of two with the same weight the one that is named first.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let ranges: Vec<(String, f32)> = headers
            .get_all(ACCEPT_LANGUAGE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(range)
            .collect();
        let (chinese, english) = (weight(&ranges, "zh"), weight(&ranges, "en"));
        let first = || {
            let place = |name: &str| ranges.iter().position(|(range, _)| range == name).unwrap_or(ranges.len());
            place("zh") < place("en")
        };
        if chinese > english || (chinese > 0.0 && chinese >= english && first()) {
            Self::Chinese
        } else {
            Self::English
        }
    }

    /// Its tag, for the `lang` of what is written in it.
    #[must_use]
    pub fn tag(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Chinese => "zh-Hans",
        }
    }
}

/// A range's language without its region or script, and its weight; one that cannot be read is none.
fn range(text: &str) -> Option<(String, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next()?.split('-').next()?.to_ascii_lowercase();
    let weight = match parts.next() {
        None => 1.0,
        Some(part) => part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="))?.parse().ok()?,
    };
    (!name.is_empty() && (0.0..=1.0).contains(&weight)).then_some((name, weight))
}

/// A language's weight: its own, or else that of `*`.
fn weight(ranges: &[(String, f32)], language: &str) -> f32 {
    let of = |name: &str| ranges.iter().filter(|(range, _)| range == name).map(|(_, weight)| *weight).reduce(f32::max);
    of(language).or_else(|| of("*")).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_gets_the_language_he_would_rather_have() {
        let cases = [
            ("", Language::English),
            ("en-US,en;q=0.9", Language::English),
            ("zh-CN,zh;q=0.9,en;q=0.8", Language::Chinese),
            ("zh", Language::Chinese),
            ("ZH-Hant-TW", Language::Chinese),
            ("en;q=0.5, zh;q=0.6", Language::Chinese),
            ("en, zh", Language::English),
            ("zh, en", Language::Chinese),
            ("de, zh;q=0.1", Language::Chinese),
            ("de, fr", Language::English),
            ("zh;q=0", Language::English),
            ("zh;q=0, *", Language::English),
            ("*", Language::English),
            ("en;q=0.1, *;q=0.5", Language::Chinese),
            ("zhx", Language::English),
            ("zh;q=much", Language::English),
            ("zh;q=2", Language::English),
            ("zh;q=NaN", Language::English),
            (",;,zh;q=0.2,", Language::Chinese),
        ];
        for (accepted, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_LANGUAGE, accepted.parse().unwrap());
            assert_eq!(Language::of(&headers), expected, "{accepted}");
        }
        assert_eq!(Language::of(&HeaderMap::new()), Language::English);
        let mut two = HeaderMap::new();
        two.append(ACCEPT_LANGUAGE, "en;q=0.3".parse().unwrap());
        two.append(ACCEPT_LANGUAGE, "zh;q=0.4".parse().unwrap());
        assert_eq!(Language::of(&two), Language::Chinese);
    }
}
