//! The language of a page, English or Chinese, from `Accept-Language` (RFC 9110, 12.5.4). Only
//! pages have a language; the API has none.

use http::HeaderMap;
use http::header::ACCEPT_LANGUAGE;

pub(crate) use crate::people::language::Language;

impl Language {
    /// The supported language with the highest quality; of equal ones the first.
    #[must_use]
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut best: Option<(Self, f32)> = None;
        let ranges = headers
            .get_all(ACCEPT_LANGUAGE)
            .iter()
            .filter_map(|value| value.to_str().ok());
        for (language, quality) in ranges.flat_map(|value| value.split(',')).filter_map(range) {
            if quality > 0.0 && best.is_none_or(|(_, most)| quality > most) {
                best = Some((language, quality));
            }
        }
        best.map_or(Self::English, |(language, _)| language)
    }
}

/// The language of a range (`*` is English) and the range's quality; `None` if we do not support
/// the language or the quality is malformed.
fn range(text: &str) -> Option<(Language, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let primary = parts.next()?.split('-').next()?;
    let language = match primary {
        "*" => Language::English,
        _ if primary.eq_ignore_ascii_case("en") => Language::English,
        _ if primary.eq_ignore_ascii_case("zh") => Language::Chinese,
        _ => return None,
    };
    let quality =
        parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    match quality.map(str::parse::<f32>) {
        None => Some((language, 1.0)),
        Some(Ok(quality)) if (0.0..=1.0).contains(&quality) => Some((language, quality)),
        Some(Ok(_) | Err(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browser_gets_its_preferred_language() {
        let cases = [
            ("", Language::English),
            ("en-US,en;q=0.9", Language::English),
            ("zh-CN,zh;q=0.9,en;q=0.8", Language::Chinese),
            ("zh", Language::Chinese),
            ("ZH-Hant-TW", Language::Chinese),
            ("en;q=0.5, zh;q=0.8", Language::Chinese),
            ("en;q=0.8, zh;q=0.5", Language::English),
            ("de-DE,de;q=0.9,zh;q=0.2", Language::Chinese),
            ("de", Language::English),
            ("*", Language::English),
            ("fr, *;q=0.1, zh;q=0.05", Language::English),
            ("zh;q=0", Language::English),
            ("en;q=0, zh;q=0.001", Language::Chinese),
            ("zh;q=2", Language::English),
            ("zh;q=NaN", Language::English),
            ("zh;q=x, en;q=0.1", Language::English),
            ("zhx, xzh", Language::English),
            ("en, zh", Language::English),
            ("zh, en", Language::Chinese),
        ];
        for (text, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_LANGUAGE, text.parse().unwrap());
            assert_eq!(Language::of(&headers), expected, "{text}");
        }
        assert_eq!(Language::of(&HeaderMap::new()), Language::English);
        let mut several = HeaderMap::new();
        several.append(ACCEPT_LANGUAGE, "de".parse().unwrap());
        several.append(ACCEPT_LANGUAGE, "zh;q=0.7".parse().unwrap());
        assert_eq!(Language::of(&several), Language::Chinese);
    }
}
