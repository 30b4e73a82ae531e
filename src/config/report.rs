//! The report about a configuration: its mistakes and warnings, one line each, with their places.
//! Invariant: every known secret is redacted from each line, whichever module wrote the line.

use std::fmt;

use super::interpolate::InsertedValue;
use super::tree::{Kind, Node, Origin};
use super::unexpanded::walk;
use crate::secret::{Redactor, Secret};
use crate::world::{Mistake, Mistakes};

/// The mistakes and warnings about a configuration, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigReport {
    /// The lines about mistakes. With a mistake, the service does not start.
    pub mistakes: Vec<ReportLine>,
    pub warnings: Vec<ReportLine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportLine {
    /// The position in the file (`holdpoint.yaml:12:5`), or the name of the variable or flag.
    pub position: String,
    /// The path of keys, such as `agents.billing.model` or `policy[3].when`.
    pub path: String,
    /// The rule or the user that the path belongs to, such as "rule `pay`". `None` if there is
    /// none, if the name could not be read, or if the detail has the name.
    pub entry: Option<String>,
    pub detail: String,
}

impl fmt::Display for ReportLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.position)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        if let Some(entry) = &self.entry {
            write!(f, "{entry}: ")?;
        }
        f.write_str(&self.detail)
    }
}

impl fmt::Display for ConfigReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.mistakes {
            writeln!(f, "{line}")?;
        }
        for line in &self.warnings {
            writeln!(f, "warning: {line}")?;
        }
        Ok(())
    }
}

impl ConfigReport {
    /// Finds the position of each mistake in the tree. Sorts the mistakes in the order of the file,
    /// with the mistakes in variables and flags at the end. Redacts `secrets` in every line. Also
    /// hides, in a line about a place, each value that a `${…}` or an environment variable has put
    /// at this place or beside it in the same entry (see [`without_value`]).
    #[must_use]
    pub(crate) fn new(
        file: &str,
        root: &Node,
        mistakes: &Mistakes,
        secrets: &Redactor,
        inserted: &[InsertedValue],
    ) -> Self {
        let values: Vec<InsertedValue> = overriding_values(root)
            .into_iter()
            .chain(inserted.iter().cloned())
            .collect();
        let redacted = |place: &[String], text: String| {
            let own = values
                .iter()
                .filter(|one| may_be_quoted_at(place, &one.place));
            let hidden = own.fold(text, |text, one| without_value(&text, one));
            secrets.redact(&hidden).into_owned()
        };
        let mut report = Self::default();
        for (from, to) in [
            (&mistakes.found, &mut report.mistakes),
            (&mistakes.warnings, &mut report.warnings),
        ] {
            let mut placed: Vec<_> = from
                .iter()
                .map(|mistake| {
                    let (explicit, keys) = split_position(root, mistake);
                    let (order, position, path) = place(file, root, explicit, keys);
                    let line = ReportLine {
                        position,
                        path,
                        entry: named_entry(root, keys, &mistake.detail)
                            .map(|entry| redacted(keys, entry)),
                        detail: redacted(&mistake.place, mistake.detail.clone()),
                    };
                    (order, line)
                })
                .collect();
            placed.sort_by_key(|(order, _)| *order);
            *to = placed.into_iter().map(|(_, line)| line).collect();
            to.dedup();
        }
        report
    }
}

/// Adds the mistakes and warnings that other modules found (`module_mistakes`). Drops each that
/// follows from a known mistake, that is, from a mistake that `mistakes` already has. There are
/// four cases:
/// - A mistake is known at the same place or below it.
/// - The place, or a place above it, could not be read. So the module checked a default.
/// - The tree has no value at the place, and a mistake is known above the place. So the module
///   checked a default.
/// - The tree has no value at the place, and the place is in a model with an unreadable `provider`.
///   The provider decides which other keys the model needs.
pub(crate) fn merge(root: &Node, mistakes: &mut Mistakes, module_mistakes: Mistakes) {
    let known: Vec<Vec<String>> = mistakes
        .found
        .iter()
        .map(|mistake| mistake.place.clone())
        .collect();
    let is_known = |mistake: &Mistake| known.iter().any(|place| place.starts_with(&mistake.place));
    let concerns_default = |mistake: &Mistake| {
        let above = |known: &Vec<String>| mistake.place.starts_with(known) && !known.is_empty();
        let place = &mistake.place;
        let follows = || known.iter().any(above) || has_unreadable_provider(root, place);
        root.is_broken_on_path(place) || (root.at(place).is_none() && follows())
    };
    let is_new = |mistake: &Mistake| !is_known(mistake) && !concerns_default(mistake);
    mistakes
        .found
        .extend(module_mistakes.found.into_iter().filter(&is_new));
    mistakes
        .warnings
        .extend(module_mistakes.warnings.into_iter().filter(&is_new));
}

/// Whether a place is in a model whose `provider` could not be read.
fn has_unreadable_provider(root: &Node, place: &[String]) -> bool {
    let [section, model, ..] = place else {
        return false;
    };
    section == "models"
        && root
            .at(&["models", model, "provider"])
            .is_some_and(|provider| provider.broken)
}

/// Returns each text that an environment variable such as `HOLDPOINT_SERVER__LISTEN` sets, with the
/// place of the text and the name of the variable.
fn overriding_values(root: &Node) -> Vec<InsertedValue> {
    let mut values = Vec::new();
    walk(root, &mut Vec::new(), &mut |place, node| {
        if let (Kind::Text(text), Origin::Variable(name)) = (&node.kind, &node.origin) {
            values.push(InsertedValue {
                name: name.clone(),
                place: place.to_vec(),
                value: Secret::new(text.clone()),
            });
        }
    });
    values
}

/// Whether a line about `place` may quote the value at `inserted`. It may if both are the same
/// place. It also may if `inserted` is a key in an entry of a list or map, and `place` is in this
/// entry: the line may name its entry, such as the user of an API key.
fn may_be_quoted_at(place: &[String], inserted: &[String]) -> bool {
    let entry = inserted.split_last().map(|(_, entry)| entry);
    let is_in_entry = entry.is_some_and(|entry| entry.len() >= 2 && place.starts_with(entry));
    is_in_entry || place == inserted
}

/// Replaces an inserted value by the name of its variable or file in each quotation of a message
/// (the text between two backticks). Unlike the redactor of the whole report, this function also
/// replaces short values.
/// - The text outside of the quotations stays. It has the message's own words, and a replacement
///   there would reveal that the replaced word is the value.
/// - A value of one or two characters is replaced only if it is the whole quotation, because it may
///   otherwise be a part of a word.
/// - A longer value is replaced in the whole message if the quotations cannot be told from the
///   other text: the value has a backtick, or the message has an odd number of backticks.
fn without_value(text: &str, inserted: &InsertedValue) -> String {
    let value = inserted.value.reveal().as_str();
    let name = format!("[secret {}]", inserted.name);
    let has_odd_backtick = text.split('`').count().is_multiple_of(2);
    if value.len() >= 3 && (value.contains('`') || has_odd_backtick) {
        return text.replace(value, &name);
    }
    let parts = text.split('`').enumerate().map(|(index, part)| {
        let is_quotation = index % 2 == 1;
        if is_quotation && part == value {
            name.clone()
        } else if is_quotation && value.len() >= 3 {
            part.replace(value, &name)
        } else {
            part.to_owned()
        }
    });
    parts.collect::<Vec<_>>().join("`")
}

/// Returns the rule or the user that the place `keys` belongs to. See [`ReportLine::entry`].
fn named_entry(root: &Node, keys: &[String], detail: &str) -> Option<String> {
    let (noun, entry, key) = match keys {
        [section, _, ..] if section == "policy" => ("rule", keys.get(..2)?, "name"),
        [section, _, _, ..] if section == "auth" => ("user", keys.get(..3)?, "user"),
        _ => return None,
    };
    let name = root.at(entry)?.get(key).filter(|name| !name.broken)?;
    let name = name.text().filter(|name| !name.trim().is_empty())?;
    let is_left_out = name.contains(char::is_control) || detail.contains(&format!("`{name}`"));
    (!is_left_out).then(|| format!("{noun} `{name}`"))
}

/// Returns the explicit position of a mistake, without its `@`, and the mistake's path of keys.
fn split_position<'m>(root: &Node, mistake: &'m Mistake) -> (Option<&'m str>, &'m [String]) {
    match mistake.place.split_first() {
        // A first step such as `@3:5` is a position, and one such as `@HOLDPOINT_X` is a variable.
        // A key of the file may begin with `@`, too, and then it is an ordinary step.
        Some((first, rest)) if first.starts_with('@') && root.get(first).is_none() => {
            (first.strip_prefix('@'), rest)
        }
        _ => (None, mistake.place.as_slice()),
    }
}

/// Returns three values: the position of a mistake as numbers, by which the mistakes are sorted;
/// the position as text; and the mistake's path of keys. `explicit` and `path` are those of
/// [`split_position`].
fn place(
    file: &str,
    root: &Node,
    explicit: Option<&str>,
    path: &[String],
) -> ((usize, usize), String, String) {
    let (order, position) = match explicit.map(|mark| (mark, mark.split_once(':'))) {
        Some((_, Some((line, column)))) => {
            let order = (
                line.parse().unwrap_or(usize::MAX),
                column.parse().unwrap_or(0),
            );
            (order, format!("{file}:{line}:{column}"))
        }
        Some((name, None)) => ((usize::MAX, 0), name.to_owned()),
        None => match root.origin_of(path) {
            Origin::File { line, column } => ((*line, *column), format!("{file}:{line}:{column}")),
            Origin::Variable(name) => ((usize::MAX, 0), name.clone()),
            Origin::Flag(flag) => ((usize::MAX, 1), (*flag).to_owned()),
        },
    };
    (order, position, dotted(root, path))
}

/// Writes a path as `policy[3].when`, with brackets around the index of a list.
fn dotted(root: &Node, path: &[String]) -> String {
    let mut text = String::new();
    let mut at = Some(root);
    for step in path {
        if at.is_some_and(|node| matches!(node.kind, Kind::List(_))) {
            text.extend(["[", step, "]"]);
        } else {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(step);
        }
        at = at.and_then(|node| node.get(step));
    }
    text
}
