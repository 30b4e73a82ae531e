//! Makes text safe to review. The module shows every invisible character and warns about arguments
//! that could mislead an approver. Invariant: no invisible character stays hidden, even if JSON
//! escapes encode the character. The number of findings is bounded, and the time is linear in the
//! length of the text.

mod inspect;

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;
use serde::de::DeserializeSeed as _;

use super::request::Warning;
use super::text::{escape_length, utf16_unit};
use inspect::{Findings, StringInspector};

/// Warning code: characters that are invisible or change the order of other characters.
pub(crate) const HIDDEN_CHARACTERS: &str = "hidden_characters";
/// Warning code: a word with letters of several scripts.
pub(crate) const MIXED_SCRIPTS: &str = "mixed_scripts";
/// Warning code: a word in a script other than Latin that looks like a Latin word.
pub(crate) const LOOK_ALIKE: &str = "look_alike";
/// Warning code: right-to-left letters or digits, which change the order in which the characters
/// next to them are rendered.
pub(crate) const RIGHT_TO_LEFT: &str = "right_to_left";
/// Warning code: marks that are rendered over the characters before them.
pub(crate) const OVERLAY: &str = "overlay";
/// Warning code: so many blanks or line ends in a row that the text after them may be out of sight.
pub(crate) const LONG_BLANKS: &str = "long_blanks";
/// Warning code: arguments of more than `MAX_UNWARNED_BYTES` bytes, which people possibly do not
/// read to the end.
pub(crate) const LARGE: &str = "large";

const MAX_UNWARNED_BYTES: usize = 4 * 1024;

/// Characters that are invisible or change the order of other characters: control and format
/// characters, separators, spaces other than U+0020, private-use and unassigned characters, and
/// characters that are rendered as nothing.
static HIDDEN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Zl}\p{Zp}[\p{Zs}--\x20]\p{Default_Ignorable_Code_Point}\p{Variation_Selector}\u{2800}]",
    )
    .ok()
});

/// Matches one emoji, which may consist of several characters. The invisible joiners inside of an
/// emoji hide nothing.
static EMOJI: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const ONE_EMOJI: &str = r"\p{Extended_Pictographic}[\u{1f3fb}-\u{1f3ff}]?[\u{fe0e}\u{fe0f}]?";
    Regex::new(&format!(
        r"{ONE_EMOJI}(?:\u{{200d}}{ONE_EMOJI})*|[0-9#*]\u{{fe0f}}\u{{20e3}}"
    ))
    .ok()
});

/// Replaces each emoji by a dot, so that invisible characters inside of an emoji cause no warning.
/// A text without joiners and variation selectors is returned unchanged.
fn without_emoji(text: &str) -> Cow<'_, str> {
    let may_have = text.contains(['\u{200d}', '\u{fe0e}', '\u{fe0f}']);
    EMOJI
        .as_ref()
        .filter(|_| may_have)
        .map_or(Cow::Borrowed(text), |emoji| emoji.replace_all(text, "·"))
}

/// Returns the text with every invisible character shown as `\u{…}`. A line break is shown as
/// `\u{a}` and kept.
#[must_use]
pub(crate) fn visible(text: &str) -> String {
    let shown = |c: char| {
        let code = format!("\\u{{{:x}}}", u32::from(c));
        if c == '\n' { format!("{code}\n") } else { code }
    };
    match HIDDEN.as_ref() {
        Some(hidden) => hidden
            .replace_all(text, |found: &regex::Captures| {
                found
                    .get(0)
                    .map(|found| found.as_str().chars().map(shown).collect::<String>())
                    .unwrap_or_default()
            })
            .into_owned(),
        None => text
            .chars()
            .map(|c| {
                if c.is_ascii_graphic() || c == ' ' {
                    c.to_string()
                } else {
                    shown(c)
                }
            })
            .collect(),
    }
}

/// Whether [`visible`] shows the character as `\u{…}`.
fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    HIDDEN
        .as_ref()
        .is_none_or(|hidden| hidden.is_match(c.encode_utf8(&mut [0; 4])))
}

/// Returns warnings for the approver of these arguments. There is at most one warning for each code
/// and place, and at most 8 for each code. Each warning's pointer leads to a value of the
/// arguments. If the warning is about a member's name, the pointer leads to that member. Arguments
/// that are not JSON count as a single place.
#[must_use]
pub(crate) fn warnings(arguments_text: &str) -> Vec<Warning> {
    let mut findings = Findings::default();
    let mut json = serde_json::Deserializer::from_str(arguments_text);
    let read = (&mut StringInspector::new(&mut findings))
        .deserialize(&mut json)
        .and_then(|()| json.end());
    if read.is_ok() {
        inspect::inspect_between_strings(arguments_text, &mut findings);
    } else {
        findings = Findings::default();
        inspect::inspect_text(&unescaped(arguments_text), "", "", &mut findings);
    }
    if arguments_text.len() > MAX_UNWARNED_BYTES {
        let detail = format!(
            "The arguments are long: {} bytes. Read them to the end.",
            arguments_text.len()
        );
        findings.add(LARGE, "", || detail);
    }
    findings.warnings()
}

/// Decodes the `\u` escapes in a text that is not JSON.
fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let Some(first) = utf16_unit(escape) else {
            // Skips the escaped character together with its `\`, so that the `\u` in `\\u` is not
            // read as an escape.
            let (kept, tail) = escape.split_at(escape_length(escape));
            out.push_str(kept);
            rest = tail;
            continue;
        };
        let second = escape.get(6..).and_then(utf16_unit);
        let mut units = char::decode_utf16([Some(first), second].into_iter().flatten());
        let decoded = units.next().and_then(Result::ok);
        out.push(decoded.unwrap_or(char::REPLACEMENT_CHARACTER));
        let end = if decoded.is_some_and(|c| c.len_utf16() == 2) {
            12
        } else {
            6
        };
        rest = escape.get(end..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
