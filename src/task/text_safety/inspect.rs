//! Inspects every string of a JSON text (member names included) without building the JSON value.
//! Invariant: every copy of a duplicate member is inspected, and the findings take bounded memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use unicode_bidi::{BidiClass, bidi_class};
use unicode_normalization::char::is_combining_mark;
use unicode_script::{Script, ScriptExtension, UnicodeScript as _};
use unicode_security::confusable_detection::skeleton;

use super::{HIDDEN_CHARACTERS, LONG_BLANKS, LOOK_ALIKE, MIXED_SCRIPTS, OVERLAY, RIGHT_TO_LEFT};
use super::{is_hidden, without_emoji};
use crate::task::request::Warning;
use crate::task::text::cut;

/// Maximum number of places that get a warning of one code. For all further places together, a
/// warning about the arguments as a whole says that there are more.
const MAX_PLACES_PER_CODE: usize = 7;
/// Maximum size of a pointer in bytes. A longer pointer is cut so that it leads to an enclosing
/// value.
const MAX_POINTER_BYTES: usize = 1024;
const MAX_DETAIL_BYTES: usize = 200;
/// Maximum number of blanks or line ends in a row without a warning.
const MAX_BLANKS: usize = 8;
/// Maximum number of distinct characters or scripts that a warning names.
const MAX_NAMED: usize = 6;
/// The sets of scripts that may be mixed in one word.
const COMPATIBLE_SCRIPTS: [&[Script]; 3] = [
    &[Script::Han, Script::Hiragana, Script::Katakana],
    &[Script::Han, Script::Hangul],
    &[Script::Han, Script::Bopomofo],
];

#[derive(Default)]
pub struct Findings {
    found: Vec<Warning>,
    seen: BTreeSet<(&'static str, String)>,
    more: BTreeSet<&'static str>,
}

impl Findings {
    /// Adds a warning with this code, unless the code already has a warning at `pointer`. Leaves
    /// the warning out if the code already has warnings at `MAX_PLACES_PER_CODE` places. An empty
    /// `pointer` stands for the arguments as a whole: it does not count as a place, and the maximum
    /// does not apply to its warning.
    pub fn add(&mut self, code: &'static str, pointer: &str, detail: impl FnOnce() -> String) {
        if self.seen.contains(&(code, pointer.to_owned())) {
            return;
        }
        if !pointer.is_empty() && self.is_full(code) {
            self.more.insert(code);
            return;
        }
        self.seen.insert((code, pointer.to_owned()));
        let detail = cut(&detail(), MAX_DETAIL_BYTES).to_owned();
        self.found.push(Warning {
            code: code.to_owned(),
            pointer: pointer.to_owned(),
            detail,
        });
    }

    fn is_full(&self, code: &str) -> bool {
        self.found
            .iter()
            .filter(|warning| warning.code == code && !warning.pointer.is_empty())
            .count()
            >= MAX_PLACES_PER_CODE
    }

    /// Returns all warnings, the most serious first. If [`Self::add`] left out warnings of a code,
    /// a warning of this code about the arguments as a whole says so.
    pub fn warnings(mut self) -> Vec<Warning> {
        const MORE: &str = "There are more such places.";
        for code in self.more {
            let whole = self
                .found
                .iter_mut()
                .find(|warning| warning.code == code && warning.pointer.is_empty());
            if let Some(whole) = whole {
                let kept = cut(&whole.detail, MAX_DETAIL_BYTES - MORE.len() - 1).to_owned();
                whole.detail = format!("{kept} {MORE}");
            } else {
                self.found.push(Warning {
                    code: code.to_owned(),
                    pointer: String::new(),
                    detail: MORE.to_owned(),
                });
            }
        }
        let order = [
            HIDDEN_CHARACTERS,
            RIGHT_TO_LEFT,
            OVERLAY,
            MIXED_SCRIPTS,
            LOOK_ALIKE,
            LONG_BLANKS,
        ];
        self.found.sort_by_key(|warning| {
            order
                .iter()
                .position(|code| *code == warning.code)
                .unwrap_or(order.len())
        });
        self.found
    }
}

/// Reads a JSON value and inspects each string in it. The pointer of a finding leads to the
/// inspected string or, if the string is a member's name, to that member.
pub struct StringInspector<'l> {
    pointer: String,
    /// For each segment of `pointer`, the byte offset where the segment ends.
    steps: Vec<usize>,
    findings: &'l mut Findings,
}

impl<'l> StringInspector<'l> {
    pub fn new(findings: &'l mut Findings) -> Self {
        Self {
            pointer: String::new(),
            steps: Vec::new(),
            findings,
        }
    }

    fn enter(&mut self, step: &str) {
        self.pointer.push('/');
        for c in step.chars() {
            match c {
                '~' => self.pointer.push_str("~0"),
                '/' => self.pointer.push_str("~1"),
                c => self.pointer.push(c),
            }
        }
        self.steps.push(self.pointer.len());
    }

    fn leave(&mut self) {
        self.steps.pop();
        self.pointer
            .truncate(self.steps.last().copied().unwrap_or(0));
    }

    fn inspect(&mut self, text: &str, prefix: &str) {
        let end = self
            .steps
            .iter()
            .rev()
            .find(|end| **end <= MAX_POINTER_BYTES)
            .copied()
            .unwrap_or(0);
        inspect_text(
            text,
            self.pointer.get(..end).unwrap_or(""),
            prefix,
            self.findings,
        );
    }
}

impl<'de> DeserializeSeed<'de> for &mut StringInspector<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut StringInspector<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.inspect(text, "");
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut index = 0_usize;
        loop {
            self.enter(&index.to_string());
            let more = elements.next_element_seed(&mut *self)?;
            self.leave();
            if more.is_none() {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            self.enter(&name);
            self.inspect(&name, "In the member's name: ");
            members.next_value_seed(&mut *self)?;
            self.leave();
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Inspects the text found at `pointer`. Each warning's detail begins with `prefix`.
pub(super) fn inspect_text(text: &str, pointer: &str, prefix: &str, findings: &mut Findings) {
    find_hidden(&without_emoji(text), pointer, prefix, findings);
    find_blanks(text, pointer, prefix, findings);
    if !text.is_ascii() {
        find_right_to_left(text, pointer, prefix, findings);
        find_overlays(&without_emoji(text), pointer, prefix, findings);
        find_mixed_scripts(text, pointer, prefix, findings);
        find_look_alikes(text, pointer, prefix, findings);
    }
}

/// Inspects the blanks of a JSON text that are outside of the JSON strings.
pub(super) fn inspect_between_strings(json: &str, findings: &mut Findings) {
    let (mut inside, mut escaped, mut run) = (false, false, 0_usize);
    for byte in json.bytes() {
        if inside {
            inside = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            run += 1;
            if run > MAX_BLANKS {
                return findings.add(LONG_BLANKS, "", || {
                    format!("More than {MAX_BLANKS} blanks or line ends in a row stand between the arguments.")
                });
            }
            continue;
        } else {
            inside = byte == b'"';
        }
        run = 0;
    }
}

/// Finds invisible characters other than tabs and line ends. A `\r` without a following `\n` is no
/// line end.
fn find_hidden(text: &str, pointer: &str, prefix: &str, findings: &mut Findings) {
    let mut listed: Vec<char> = Vec::new();
    let mut more = false;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let usual = matches!(c, '\n' | '\t') || (c == '\r' && rest.peek() == Some(&'\n'));
        if usual || !is_hidden(c) || listed.contains(&c) {
            continue;
        }
        if listed.len() == MAX_NAMED {
            more = true;
            break;
        }
        listed.push(c);
    }
    if listed.is_empty() {
        return;
    }
    findings.add(HIDDEN_CHARACTERS, pointer, || {
        let codes: Vec<String> = listed.iter().map(|c| code_point(*c)).collect();
        let others = if more { " and others" } else { "" };
        format!(
            "{prefix}Characters that cannot be seen, or that change the order of others: {}{others}.",
            codes.join(", ")
        )
    });
}

/// Finds runs of blanks and line ends. An invisible character does not end a run.
fn find_blanks(text: &str, pointer: &str, prefix: &str, findings: &mut Findings) {
    let mut run = 0_usize;
    for c in text.chars() {
        if c.is_whitespace() || is_blank_mark(c) {
            run += 1;
        } else if !is_hidden(c) {
            run = 0;
        }
        if run > MAX_BLANKS {
            return findings.add(LONG_BLANKS, pointer, || {
                format!(
                    "{prefix}More than {MAX_BLANKS} blanks or line ends in a row: the text after them is easily overlooked."
                )
            });
        }
    }
}

/// Whether a character is rendered as blank space although Unicode does not class it as a space.
fn is_blank_mark(c: char) -> bool {
    matches!(
        c,
        '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}'
    )
}

/// Finds letters and digits of right-to-left scripts. Digits and signs next to such characters are
/// rendered in another order than stored.
fn find_right_to_left(text: &str, pointer: &str, prefix: &str, findings: &mut Findings) {
    let is_right_to_left = |c: &char| {
        matches!(bidi_class(*c), BidiClass::R | BidiClass::AL | BidiClass::AN) && !is_hidden(*c)
    };
    if let Some(c) = text.chars().find(is_right_to_left) {
        findings.add(RIGHT_TO_LEFT, pointer, || {
            format!(
                "{prefix}Text that is written from right to left, {} for one: the characters beside it may be shown in another \
                 order than they are stored in.",
                code_point(c)
            )
        });
    }
}

/// Reports the first combining mark that is drawn over, around, above or below the character before
/// it: an overlay (U+0335–U+0338) or a combining mark for symbols (U+20D0–U+20FF).
fn find_overlays(text: &str, pointer: &str, prefix: &str, findings: &mut Findings) {
    if let Some(c) = text
        .chars()
        .find(|c| matches!(c, '\u{335}'..='\u{338}' | '\u{20d0}'..='\u{20ff}'))
    {
        findings.add(OVERLAY, pointer, || {
            format!("{prefix}Marks that are drawn over other characters and change how they look: {} for one.", code_point(c))
        });
    }
}

/// Finds words of a script other than Latin in which every letter looks like a Latin letter. If the
/// text itself is written in the word's script (Russian in Cyrillic letters, for example), such a
/// word is ordinary and causes no warning.
fn find_look_alikes(text: &str, pointer: &str, prefix: &str, findings: &mut Findings) {
    let (mut latin, mut genuine) = (0_usize, BTreeMap::<&str, usize>::new());
    let mut alike: Vec<(Script, char, String)> = Vec::new();
    let is_in_word =
        |c: char| c.is_alphabetic() || is_combining_mark(c) || (is_hidden(c) && !c.is_whitespace());
    for word in text.split(|c| !is_in_word(c)) {
        let letters = || word.chars().filter(|c| c.is_alphabetic());
        let Some(first) = letters().find(|c| script_of(*c) != Script::Common) else {
            continue;
        };
        let script = script_of(first);
        // A single Greek letter counts as a symbol, not as a word.
        if script == Script::Latin || (script == Script::Greek && letters().nth(1).is_none()) {
            latin += letters().filter(|_| script == Script::Latin).count();
            continue;
        }
        let own = letters()
            .filter(|c| script_of(*c) == script && latin_look_alike(*c).is_none())
            .count();
        *genuine.entry(script.full_name()).or_default() += own;
        let is_new = own == 0
            && alike.len() < MAX_NAMED
            && !alike.iter().any(|(other, ..)| *other == script);
        if is_new && letters().all(|c| script_of(c) == script) {
            alike.push((
                script,
                first,
                letters().filter_map(latin_look_alike).collect(),
            ));
        }
    }
    let own = |script: &Script| genuine.get(script.full_name()).copied().unwrap_or(0);
    if let Some((script, first, read)) = alike.into_iter().find(|(script, ..)| own(script) <= latin)
    {
        findings.add(LOOK_ALIKE, pointer, || {
            let name = if script == Script::Unknown { "a mathematical alphabet" } else { script.full_name() };
            let (read, code) = (cut(&read, 40), code_point(first));
            format!("{prefix}A word looks like \"{read}\", but its letters are of {name}: {code} is its first.")
        });
    }
}

/// Returns the script of a letter; [`Script::Unknown`] for the mathematical alphabets, which
/// Unicode assigns to no single script.
fn script_of(letter: char) -> Script {
    if matches!(letter, '\u{1d400}'..='\u{1d7ff}') {
        Script::Unknown
    } else {
        letter.script()
    }
}

/// Returns the Latin letters that a letter of another script looks like, if any. `None` for
/// right-to-left scripts, which have their own warning.
fn latin_look_alike(letter: char) -> Option<String> {
    if letter.is_ascii() || bidi_class(letter) != BidiClass::L {
        return None;
    }
    let looks: String = skeleton(letter.encode_utf8(&mut [0; 4])).collect();
    looks
        .chars()
        .all(|c| c.is_ascii_alphabetic())
        .then_some(looks)
}

/// Finds words with letters of several scripts. An invisible character does not end a word.
fn find_mixed_scripts(text: &str, pointer: &str, prefix: &str, findings: &mut Findings) {
    let mut word = Word::default();
    for c in text.chars() {
        if is_combining_mark(c) || (is_hidden(c) && !c.is_whitespace()) {
            continue;
        }
        if !c.is_alphabetic() {
            word = Word::default();
            continue;
        }
        word.add_letter(c);
        if word.is_mixed() {
            return findings.add(MIXED_SCRIPTS, pointer, || {
                let names: Vec<&str> = word
                    .scripts
                    .iter()
                    .map(|script| script.full_name())
                    .collect();
                let (names, code) = (names.join(" and "), code_point(c));
                format!(
                    "{prefix}A word has letters of {names}, which may look alike: {code} is {}.",
                    c.script().full_name()
                )
            });
        }
    }
}

/// The scripts of the letters of a word, as far as the word has been read.
struct Word {
    /// The scripts in which every letter of the word is used. A letter may belong to many scripts.
    common: ScriptExtension,
    /// For each set of [`COMPATIBLE_SCRIPTS`], whether the whole word can be written with the
    /// scripts of the set.
    together: [bool; COMPATIBLE_SCRIPTS.len()],
    /// The distinct scripts of the word's letters, at most [`MAX_NAMED`].
    scripts: Vec<Script>,
}

impl Default for Word {
    fn default() -> Self {
        Self {
            common: Script::Common.into(),
            together: [true; COMPATIBLE_SCRIPTS.len()],
            scripts: Vec::new(),
        }
    }
}

impl Word {
    fn add_letter(&mut self, letter: char) {
        let used_in = letter.script_extension();
        if used_in.is_common() || used_in.is_inherited() {
            return;
        }
        self.common.intersect_with(used_in);
        for (fits, scripts) in self.together.iter_mut().zip(COMPATIBLE_SCRIPTS) {
            *fits &= scripts
                .iter()
                .any(|script| used_in.contains_script(*script));
        }
        if self.scripts.len() < MAX_NAMED && !self.scripts.contains(&letter.script()) {
            self.scripts.push(letter.script());
        }
    }

    fn is_mixed(&self) -> bool {
        self.common.is_empty() && !self.together.contains(&true)
    }
}

fn code_point(c: char) -> String {
    format!("U+{:04X}", u32::from(c))
}
