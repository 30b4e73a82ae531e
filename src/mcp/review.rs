//! Reviews a server's tools before their definitions are written to the lock file. Invisible
//! characters in the server's texts are made visible.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::client::ToolListing;
use super::lock::{LockedServer, LockedTool, tool_name, unusable_reason};
use crate::secret::Redactor;
use crate::task::text::{cut, pointer, visit_values};
use crate::task::text_safety::{self, LARGE, visible};
use crate::task::time::Time;
use crate::tool::human::names_secret;

/// The number of bytes above which a definition gets a warning about its length.
const LONG_DEFINITION_BYTES: usize = 4 * 1024;

/// Matches a tag such as `<important>` or `<system>`, also with attributes. A model may take the
/// text after such a tag for an instruction.
static INSTRUCTION_TAG: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(?i)<\s*/?\s*(important|system|instructions?|secret|admin)\b[^<>]*>").ok()
});

/// The result of comparing a server's tools with the lock file.
#[derive(Clone, Debug)]
pub struct Review {
    /// The report for the reviewer.
    pub text: String,
    /// Whether the tools or the revision differ from the lock file, or the lock file does not have
    /// the server.
    pub differs: bool,
    /// The server's new entry for the lock file; the old entry if nothing differs.
    pub locked: LockedServer,
}

/// Compares the tools that a server lists, and the revision that it speaks, with `old`, the
/// server's entry in the lock file. The review warns if a text mentions a tool of another server;
/// `others` maps the names of such tools to their servers. If a definition contains a secret known
/// to `redactor`, the new entry ([`Review::locked`]) leaves out the tool, because the lock file is
/// under version control.
pub(crate) fn review(
    name: &str,
    old: Option<&LockedServer>,
    listing: ToolListing,
    others: &BTreeMap<String, String>,
    redactor: &Redactor,
    now: Time,
) -> Review {
    let (tools, skipped) = split_usable(listing.tools, redactor);
    let none = BTreeMap::new();
    let known = old.map_or(&none, |old| &old.tools);
    let mut lines = differences(known, &tools, others);
    let revision = listing.revision.as_str();
    let earlier = old.map(|old| old.protocol.as_str());
    let earlier = earlier.filter(|earlier| *earlier != revision);
    let differs = earlier.is_some() || !lines.0.is_empty();
    for (tool, why) in &skipped {
        lines.add("skipped", tool, std::slice::from_ref(why));
    }
    let server = ["name", "version"]
        .map(|member| display_member(&listing.server, member))
        .join(" ");
    let earlier = earlier.map_or_else(String::new, |earlier| {
        format!(" (in the lock file {})", visible(earlier))
    });
    let state = if differs { "" } else { ", as in the lock file" };
    let count = tools.len();
    let text = format!(
        "{name}: {server}, revision {revision}{earlier}, {count} tools{state}\n{}",
        lines.0
    );
    let locked = match old {
        Some(old) if !differs => old.clone(),
        Some(_) | None => LockedServer {
            server: if redactor.finds_secret_in(&listing.server.to_string()) {
                Value::Null
            } else {
                listing.server
            },
            protocol: revision.to_owned(),
            locked_at: now.to_string(),
            tools,
        },
    };
    Review {
        text,
        differs: differs || old.is_none(),
        locked,
    }
}

fn differences(
    known: &BTreeMap<String, LockedTool>,
    tools: &BTreeMap<String, LockedTool>,
    others: &BTreeMap<String, String>,
) -> Lines {
    let mut lines = Lines::default();
    for (tool, locked) in tools {
        match known.get(tool) {
            None => lines.add("new", tool, &members(&locked.definition, '+')),
            Some(before) if before.digest != locked.digest => {
                lines.add(
                    "changed",
                    tool,
                    &changes(&before.definition, &locked.definition),
                );
            }
            Some(_) => continue,
        }
        let similar = tools.keys().filter(|other| is_similar(tool, other));
        let similar =
            similar.map(|other| format!("The name differs from `{other}` only in case or look."));
        for warning in warnings(locked, others).into_iter().chain(similar) {
            lines.add("warning", tool, &[warning]);
        }
    }
    for tool in known.keys().filter(|tool| !tools.contains_key(*tool)) {
        lines.add("gone", tool, &[]);
    }
    lines
}

/// Returns the report on a server that is in the lock file but no longer in the configuration.
#[must_use]
pub fn removal_report(name: &str) -> String {
    format!("{name}: not in the configuration any more; it leaves the lock file\n")
}

/// Whether two different tool names look alike, such as `al_10` and `aI-lO`.
fn is_similar(one: &str, other: &str) -> bool {
    let look = |letter: u8| match letter.to_ascii_lowercase() {
        b'i' | b'l' | b'1' => b'l',
        b'o' | b'0' => b'o',
        b'_' | b'-' | b'.' => b'_',
        other => other,
    };
    one != other && one.bytes().map(look).eq(other.bytes().map(look))
}

/// Returns the usable tools by name, and the unusable tools as pairs of name and reason.
fn split_usable(
    listed: Vec<Value>,
    redactor: &Redactor,
) -> (BTreeMap<String, LockedTool>, Vec<(String, String)>) {
    let name = |definition: &Value| tool_name(definition).unwrap_or_default().to_owned();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for definition in &listed {
        *counts.entry(name(definition)).or_default() += 1;
    }
    let mut tools: BTreeMap<String, LockedTool> = BTreeMap::new();
    let mut skipped = Vec::new();
    for definition in listed {
        let name = name(&definition);
        let is_single = counts.get(&name) == Some(&1);
        if let Some(why) = unusable_reason(&definition) {
            skipped.push((name, why));
        } else if redactor.finds_secret_in(&definition.to_string()) {
            skipped.push((name, "repeats a secret of this configuration".to_owned()));
        } else if is_single {
            tools.insert(name, LockedTool::new(definition));
        } else {
            skipped.push((name, "has a name that another tool has, too".to_owned()));
        }
    }
    (tools, skipped)
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, word: &str, tool: &str, details: &[String]) {
        let tool = visible(cut(tool, 128));
        let _ = writeln!(self.0, "  {word:<8} {tool}");
        for line in details.iter().flat_map(|detail| detail.lines()) {
            let _ = writeln!(self.0, "    {line}");
        }
    }
}

/// Returns a member of `serverInfo` for display; `(unnamed)` if the member is not a text.
fn display_member(server: &Value, member: &str) -> String {
    let text = server.get(member).and_then(Value::as_str);
    visible(cut(text.unwrap_or("(unnamed)"), 128)).replace('\n', "")
}

/// Renders each member of a definition except `name`, in its whole length, because models get the
/// whole, too. Each line begins with `sign`.
fn members(definition: &Value, sign: char) -> Vec<String> {
    let all = definition.as_object().into_iter().flatten();
    let all = all.filter(|(name, _)| name.as_str() != "name");
    all.map(|(name, value)| member(name, value, sign)).collect()
}

fn member(name: &str, value: &Value, sign: char) -> String {
    let text = match value {
        Value::String(text) => visible(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(_) | Value::Object(_) => {
            let pretty = serde_json::to_string_pretty(value).unwrap_or_default();
            // `visible` would also mark the line breaks of the pretty-printed text. So each line is
            // passed to `visible` separately.
            let lines: Vec<String> = pretty.lines().map(visible).collect();
            lines.join("\n")
        }
    };
    let name = visible(cut(name, 128));
    let whole = format!("{name}: {text}");
    let lines: Vec<String> = whole.lines().map(|line| format!("{sign} {line}")).collect();
    lines.join("\n")
}

/// Renders the members in which two definitions differ: the old value, then the new value.
fn changes(old: &Value, new: &Value) -> Vec<String> {
    let none = serde_json::Map::new();
    let (old, new) = (
        old.as_object().unwrap_or(&none),
        new.as_object().unwrap_or(&none),
    );
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let mut lines = Vec::new();
    for name in names {
        let (before, after) = (old.get(name), new.get(name));
        if before == after {
            continue;
        }
        lines.extend(before.map(|value| member(name, value, '-')));
        lines.extend(after.map(|value| member(name, value, '+')));
    }
    lines
}

fn warnings(tool: &LockedTool, others: &BTreeMap<String, String>) -> Vec<String> {
    let text = tool.definition.to_string();
    let mut warnings: Vec<String> = text_safety::warnings(&text)
        .into_iter()
        .filter(|warning| warning.code != LARGE)
        .map(|warning| {
            format!(
                "{} at `{}`",
                visible(&warning.detail),
                visible(&warning.pointer)
            )
        })
        .collect();
    if text.len() > LONG_DEFINITION_BYTES {
        warnings.push(format!(
            "The definition is long: {} bytes. Read it to the end.",
            text.len()
        ));
    }
    if INSTRUCTION_TAG
        .as_ref()
        .is_some_and(|words| words.is_match(&text))
    {
        warnings.push("A text poses as an instruction of higher rank.".to_owned());
    }
    let words = words_in(&tool.definition);
    for (other, server) in others
        .iter()
        .filter(|(other, _)| words.contains(other.as_str()))
    {
        warnings.push(format!(
            "A text mentions `{other}`, a tool of the server `{server}`."
        ));
    }
    for place in secret_defaults(&tool.parameters()) {
        warnings.push(format!(
            "A default looks like a secret: `{}`.",
            visible(&place)
        ));
    }
    warnings
}

/// Returns each word that may name a tool: from all texts in a definition, and from the names of
/// its members.
fn words_in(definition: &Value) -> BTreeSet<&str> {
    let mut words = BTreeSet::new();
    visit_values(definition, "", &mut |_, value| match value {
        Value::String(text) => words.extend(words_of(text)),
        Value::Object(members) => words.extend(members.keys().flat_map(|name| words_of(name))),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {}
    });
    words
}

/// Returns each word of a text in two forms: as written, and without dots and dashes at its ends.
/// A dot or dash at the end of a word may belong to the sentence. Leaves out forms of up to three
/// bytes.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
    let forms = words.flat_map(|word| [word, word.trim_matches(['.', '-'])]);
    forms.filter(|form| form.len() > 3)
}

/// Finds the parameters, at any depth of `schema`, that have a default value and whose names
/// suggest a secret. Returns a JSON Pointer to each of these default values.
fn secret_defaults(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    visit_values(schema, "", &mut |at, part| {
        let properties = part.get("properties").and_then(Value::as_object);
        let secret = properties.into_iter().flatten().filter(|(name, property)| {
            let default = property.get("default").and_then(Value::as_str);
            names_secret(name) && default.is_some_and(|text| !text.is_empty())
        });
        let place = pointer(at, "properties");
        found.extend(secret.map(|(name, _)| pointer(&pointer(&place, name), "default")));
    });
    found
}

#[cfg(test)]
mod tests;
