//! Chooses the language of a page, English or Chinese, by `Accept-Language` (RFC 9110, 12.5.4). The
//! responses of the API are not translated.

use http::HeaderMap;
use http::header::ACCEPT_LANGUAGE;

use crate::http::server::accept::ranges;
pub(crate) use crate::people::language::{Language, texts};

impl Language {
    /// Returns the supported language with the highest quality in the headers. If several languages
    /// have this quality, returns the first of them. Returns English if the headers accept no
    /// supported language.
    #[must_use]
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let mut best: Option<(Self, f32)> = None;
        for (language, quality) in ranges(headers, ACCEPT_LANGUAGE).filter_map(parse_range) {
            if quality > 0.0 && best.is_none_or(|(_, highest)| quality > highest) {
                best = Some((language, quality));
            }
        }
        best.map_or(Self::English, |(language, _)| language)
    }
}

/// Parses a language range of the header into a language and a quality. The range `*` stands for
/// English. Returns `None` if the language is not supported or the quality is malformed.
fn parse_range((range, quality): (&str, Option<&str>)) -> Option<(Language, f32)> {
    let primary = range.split('-').next()?;
    let language = match primary {
        "*" => Language::English,
        _ if primary.eq_ignore_ascii_case("en") => Language::English,
        _ if primary.eq_ignore_ascii_case("zh") => Language::Chinese,
        _ => return None,
    };
    match quality.map(str::parse::<f32>) {
        None => Some((language, 1.0)),
        Some(Ok(quality)) if (0.0..=1.0).contains(&quality) => Some((language, quality)),
        Some(Ok(_) | Err(_)) => None,
    }
}

/// Builds an array of texts for a script, from the named fields of a struct of texts. Each element
/// is a pair: the name of a field, and the field's text as a JSON value.
macro_rules! named_texts {
    ($from:ident: $($name:ident)*) => {
        [$((stringify!($name).to_owned(), serde_json::Value::from($from.$name))),*]
    };
}
pub(crate) use named_texts;

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
            assert_eq!(Language::from_headers(&headers), expected, "{text}");
        }
        assert_eq!(Language::from_headers(&HeaderMap::new()), Language::English);
        let mut several = HeaderMap::new();
        several.append(ACCEPT_LANGUAGE, "de".parse().unwrap());
        several.append(ACCEPT_LANGUAGE, "zh;q=0.7".parse().unwrap());
        assert_eq!(Language::from_headers(&several), Language::Chinese);
    }
}
