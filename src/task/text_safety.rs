//! What an approver's eyes must not miss: text with everything in it made visible, and warnings about arguments that
//! look like something else than they are. What must stay true: no character that is drawn as nothing stays hidden,
//! escaped in JSON or not; what is found is bounded, and finding it takes time in proportion to the text.

mod inspect;

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;
use serde::de::DeserializeSeed as _;

use super::request::Warning;
use inspect::{Looked, Walk};

/// A text with characters that cannot be seen, or that move others about.
pub const HIDDEN_CHARACTERS: &str = "hidden_characters";
/// A word with letters of several scripts.
pub const MIXED_SCRIPTS: &str = "mixed_scripts";
/// A word of another script that looks like a Latin one.
pub const LOOK_ALIKE: &str = "look_alike";
/// Letters or digits that reorder what stands beside them where text is drawn as usual.
pub const RIGHT_TO_LEFT: &str = "right_to_left";
/// Marks that are drawn over what stands before them.
pub const OVERLAY: &str = "overlay";
/// Blanks or line ends that push what follows out of sight.
pub const LONG_BLANKS: &str = "long_blanks";
/// More than anybody reads at a glance.
pub const LARGE: &str = "large";

/// How long arguments may be before that is worth a warning, in bytes.
const GLANCE: usize = 4 * 1024;

/// Characters that a reader would not see, or that would move others about: control and format characters, separators
/// and spaces that are not a space, private and unassigned ones, and those that are drawn as nothing.
static HIDDEN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Zl}\p{Zp}[\p{Zs}--\x20]\p{Default_Ignorable_Code_Point}\p{Variation_Selector}\u{2800}]",
    )
    .ok()
});

/// An emoji of several characters, which is drawn as one picture: what joins them hides nothing.
static EMOJI: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const ONE: &str = r"\p{Extended_Pictographic}[\u{1f3fb}-\u{1f3ff}]?[\u{fe0e}\u{fe0f}]?";
    Regex::new(&format!(r"{ONE}(?:\u{{200d}}{ONE})*|[0-9#*]\u{{fe0f}}\u{{20e3}}")).ok()
});

/// The text with a dot in place of each emoji.
fn without_emoji(text: &str) -> Cow<'_, str> {
    let may_have = text.contains(['\u{200d}', '\u{fe0e}', '\u{fe0f}']);
    EMOJI.as_ref().filter(|_| may_have).map_or(Cow::Borrowed(text), |emoji| emoji.replace_all(text, "·"))
}

/// Text as it is, but with every character that cannot be seen shown as `\u{…}`. A line break is shown and made.
#[must_use]
pub fn visible(text: &str) -> String {
    let shown = |c: char| {
        let code = format!("\\u{{{:x}}}", u32::from(c));
        if c == '\n' { format!("{code}\n") } else { code }
    };
    match HIDDEN.as_ref() {
        Some(hidden) => hidden
            .replace_all(text, |found: &regex::Captures| {
                found.get(0).map(|found| found.as_str().chars().map(shown).collect::<String>()).unwrap_or_default()
            })
            .into_owned(),
        None => text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c.to_string() } else { shown(c) }).collect(),
    }
}

/// Whether a character is one that [`visible`] shows as its code.
fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    HIDDEN.as_ref().is_none_or(|hidden| hidden.is_match(c.encode_utf8(&mut [0; 4])))
}

/// What somebody who has to approve these arguments should look at: one warning for each code and place, 50 at most,
/// a few for each code. Pointers lead into the arguments, to a member also where its name is meant; arguments that are
/// not JSON have one place only, the whole.
#[must_use]
pub fn warnings(arguments_text: &str) -> Vec<Warning> {
    let mut looked = Looked::default();
    let mut json = serde_json::Deserializer::from_str(arguments_text);
    let read = (&mut Walk::new(&mut looked)).deserialize(&mut json).and_then(|()| json.end());
    if read.is_ok() {
        inspect::between_strings(arguments_text, &mut looked);
    } else {
        looked = Looked::default();
        inspect::at_text(&unescaped(arguments_text), "", "", &mut looked);
    }
    if arguments_text.len() > GLANCE {
        let detail = format!("The arguments are long: {} bytes. Read them to the end.", arguments_text.len());
        looked.add(LARGE, "", || detail);
    }
    looked.warnings()
}

/// A text that is not JSON with the `\u` escapes of its strings read all the same.
fn unescaped(text: &str) -> String {
    let unit = |text: &str| {
        let digits = text.strip_prefix("\\u")?.get(..4).filter(|four| four.bytes().all(|b| b.is_ascii_hexdigit()))?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let Some(first) = unit(escape) else {
            // The character that is escaped goes with its `\`, so that `\\u` is no escape.
            let end = escape.char_indices().nth(2).map_or(escape.len(), |(end, _)| end);
            let (kept, tail) = escape.split_at(end);
            out.push_str(kept);
            rest = tail;
            continue;
        };
        let second = escape.get(6..).and_then(unit);
        let mut units = char::decode_utf16([Some(first), second].into_iter().flatten());
        let decoded = units.next().and_then(Result::ok);
        out.push(decoded.unwrap_or(char::REPLACEMENT_CHARACTER));
        let end = if decoded.is_some_and(|c| c.len_utf16() == 2) { 12 } else { 6 };
        rest = escape.get(end..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
