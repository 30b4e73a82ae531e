//! Expands `${NAME}`, `${NAME:-default}`, `${file:/path}` and `$${` (a literal `${`) in the strings
//! of the parsed tree. Invariants: each inserted value is recorded with its place, so that it can
//! be redacted. No message quotes a value.

use std::path::Path;

use super::environment::Environment;
use super::tree::{Kind, Node};
use crate::secret::Secret;
use crate::world::Mistakes;

/// A value that was inserted for a `${…}`.
#[derive(Clone, Debug)]
pub(crate) struct InsertedValue {
    /// The name of the variable or file.
    pub name: String,
    /// The path of the string into which the value was inserted.
    pub place: Vec<String>,
    pub value: Secret<String>,
}

/// The state while every `${…}` below a node is expanded.
pub(crate) struct Interpolation<'a> {
    pub environment: &'a Environment,
    /// The base of relative paths in `${file:…}`.
    pub directory: &'a Path,
    pub inserted: Vec<InsertedValue>,
    pub mistakes: &'a mut Mistakes,
}

/// Returns the expanded text and the values that were inserted into it.
///
/// # Errors
/// Fails if a `${…}` is malformed, or if its variable or file is missing, empty or not UTF-8. The
/// error describes the mistake or names the variable or file, but never contains a value.
pub(crate) fn expand_text(
    text: &str,
    environment: &Environment,
    directory: &Path,
) -> Result<(String, Vec<InsertedValue>), String> {
    let mut mistakes = Mistakes::default();
    let mut run = Interpolation {
        environment,
        directory,
        inserted: Vec::new(),
        mistakes: &mut mistakes,
    };
    let (expanded, inserted) = (run.expand_text(text, &[]), run.inserted);
    expanded
        .map(|expanded| (expanded, inserted))
        .ok_or_else(|| {
            let details: Vec<_> = mistakes
                .found
                .into_iter()
                .map(|mistake| mistake.detail)
                .collect();
            details.join("; ")
        })
}

impl Interpolation<'_> {
    /// Expands a node in place. Sets `broken` for each string that contains a mistake.
    pub(crate) fn expand_node(&mut self, node: &mut Node, place: &mut Vec<String>) {
        match &mut node.kind {
            Kind::Null | Kind::Bool(_) | Kind::Number(_) => {}
            Kind::Text(text) => match self.expand_text(text, place) {
                Some(new) => *text = new,
                None => node.broken = true,
            },
            Kind::List(_) | Kind::Map(_) => {
                for (step, child) in node.children_mut() {
                    place.push(step);
                    self.expand_node(child, place);
                    place.pop();
                }
            }
        }
    }

    fn expand_text(&mut self, text: &str, place: &[String]) -> Option<String> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut is_complete = true;
        while let Some((before, after)) = rest.split_once("${") {
            if let Some(before) = before.strip_suffix('$') {
                out.push_str(before);
                out.push_str("${");
                rest = after;
                continue;
            }
            out.push_str(before);
            let Some((reference, tail)) = split_reference(after) else {
                self.report(place, "a `${` has no `}`; a literal one is written `$${`");
                return None;
            };
            match self.expand_variable(reference, place) {
                Some(value) => out.push_str(&value),
                None => is_complete = false,
            }
            rest = tail;
        }
        out.push_str(rest);
        is_complete.then_some(out)
    }

    fn report(&mut self, place: &[String], detail: &str) {
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        self.mistakes.add(&place, detail);
    }

    fn expand_variable(&mut self, reference: &str, place: &[String]) -> Option<String> {
        // The inner `${…}` would stay unexpanded in the default or in the path.
        if reference.contains("${") {
            self.report(place, "a `${…}` may not contain another `${…}`");
            return None;
        }
        if let Some(path) = reference.strip_prefix("file:") {
            return self.file(path, place);
        }
        let (name, default) = reference
            .split_once(":-")
            .map_or((reference, None), |(name, default)| (name, Some(default)));
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            self.report(
                place,
                "a `${…}` is `${NAME}`, `${NAME:-default}` or `${file:/path}`; a literal `${` is written `$${`",
            );
            return None;
        }
        if self.environment.is_undecodable(name) {
            let detail = format!("the value of the variable `{name}` is not UTF-8");
            self.report(place, &detail);
            return None;
        }
        let value = self
            .environment
            .variable(name)
            .filter(|value| !value.is_empty())
            .or(default)
            .map(str::to_owned);
        let Some(value) = value else {
            let reason = if self.environment.variable(name).is_some() {
                "is empty"
            } else {
                "is not set"
            };
            self.report(place, &format!("the variable `{name}` {reason}"));
            return None;
        };
        self.record(name, place, &value);
        Some(value)
    }

    fn file(&mut self, path: &str, place: &[String]) -> Option<String> {
        if path.is_empty() {
            self.report(place, "a `${file:…}` names no file");
            return None;
        }
        let text = match self.environment.file(&self.directory.join(path)) {
            Ok(text) => text,
            Err(error) => {
                self.report(place, &format!("the file `{path}` cannot be read: {error}"));
                return None;
            }
        };
        let value = text.strip_suffix('\n').map_or(text.as_str(), |line| {
            line.strip_suffix('\r').unwrap_or(line)
        });
        if value.is_empty() {
            self.report(place, &format!("the file `{path}` is empty"));
            return None;
        }
        self.record(path.rsplit('/').next().unwrap_or(path), place, value);
        Some(value.to_owned())
    }

    fn record(&mut self, name: &str, place: &[String], value: &str) {
        self.inserted.push(InsertedValue {
            name: name.to_owned(),
            place: place.to_vec(),
            value: Secret::new(value.to_owned()),
        });
    }
}

/// Splits the text after a `${` at the `}` that ends the reference. Braces may stand in the
/// reference in pairs, such as those of an argument in the default of a tool's `url`. If the braces
/// are not in pairs, the first `}` ends the reference. Returns `None` if there is no `}`.
fn split_reference(text: &str) -> Option<(&str, &str)> {
    let mut open = 0_usize;
    for (at, brace) in text.match_indices(['{', '}']) {
        if brace == "{" {
            open += 1;
        } else if open > 0 {
            open -= 1;
        } else {
            return Some((text.get(..at)?, text.get(at + 1..)?));
        }
    }
    text.split_once('}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tree::Origin;

    fn fill(text: &str) -> (Option<String>, Vec<(String, String)>, Vec<String>) {
        let environment = Environment::new(
            &[("KEY", "sk-1"), ("EMPTY", ""), ("_A1", "x")],
            &[
                ("/run/k", "from file\n"),
                ("/run/two", "a\n\n"),
                ("/etc/h/near", "n"),
                ("/run/nothing", "\n"),
            ],
        );
        let mut mistakes = Mistakes::default();
        let mut node = Node::new(Origin::Flag("x"), Kind::Text(text.to_owned()));
        let mut run = Interpolation {
            environment: &environment,
            directory: Path::new("/etc/h"),
            inserted: Vec::new(),
            mistakes: &mut mistakes,
        };
        run.expand_node(&mut node, &mut Vec::new());
        let inserted = run
            .inserted
            .iter()
            .map(|one| (one.name.clone(), one.value.reveal().clone()))
            .collect();
        let details = mistakes
            .found
            .into_iter()
            .map(|mistake| mistake.detail)
            .collect();
        (
            (!node.broken).then(|| node.text().unwrap().to_owned()),
            inserted,
            details,
        )
    }

    #[test]
    fn variables_defaults_and_files_are_filled_in() {
        for (text, expected) in [
            ("Bearer ${KEY}", "Bearer sk-1"),
            ("${KEY}${_A1}", "sk-1x"),
            ("${NOT_SET:-some: thing}", "some: thing"),
            ("${EMPTY:-d}", "d"),
            ("${KEY:-d}", "sk-1"),
            ("${NOT_SET:-}", ""),
            ("${KEY:-http://h/{id}}/x", "sk-1/x"),
            ("${NOT_SET:-http://h/{id}}/x", "http://h/{id}/x"),
            ("${KEY:-a {{credential:b.c}}}", "sk-1"),
            ("${KEY:-{}", "sk-1"),
            ("${NOT_SET:-{} ${KEY}", "{ sk-1"),
            ("${file:/run/k}", "from file"),
            ("${file:/run/two}", "a\n"),
            ("${file:near}", "n"),
            ("$${KEY} $$ $KEY {KEY}", "${KEY} $$ $KEY {KEY}"),
            ("$${${KEY}}", "${sk-1}"),
        ] {
            assert_eq!(fill(text).0.as_deref(), Some(expected), "{text}");
        }
        assert_eq!(fill("${KEY}").1, [("KEY".to_owned(), "sk-1".to_owned())]);
        assert_eq!(
            fill("${file:/run/k}").1,
            [("k".to_owned(), "from file".to_owned())]
        );
    }

    #[test]
    fn reference_that_contains_another_is_refused_and_inserts_nothing() {
        for text in [
            "${KEY:-${_A1}}",
            "${NOT_SET:-${_A1}}",
            "${NOT_SET:-a ${KEY} b}",
            "${file:${KEY}/x}",
        ] {
            let detail = "a `${…}` may not contain another `${…}`".to_owned();
            assert_eq!(fill(text), (None, Vec::new(), vec![detail]), "{text}");
        }
    }

    #[test]
    fn missing_or_empty_values_are_reported_one_by_one() {
        for (text, details) in [
            ("${NOT_SET}", vec!["the variable `NOT_SET` is not set"]),
            (
                "${EMPTY} ${GONE}",
                vec![
                    "the variable `EMPTY` is empty",
                    "the variable `GONE` is not set",
                ],
            ),
            (
                "${file:/run/gone}",
                vec!["the file `/run/gone` cannot be read: No such file or directory (os error 2)"],
            ),
            (
                "${file:/run/nothing}",
                vec!["the file `/run/nothing` is empty"],
            ),
            (
                "${KEY",
                vec!["a `${` has no `}`; a literal one is written `$${`"],
            ),
        ] {
            let (value, _, found) = fill(text);
            assert_eq!(
                (value, found),
                (None, details.into_iter().map(str::to_owned).collect()),
                "{text}"
            );
        }
        for text in ["${}", "${1A}", "${A B}", "${A-b}"] {
            assert_eq!(fill(text).0, None, "{text}");
        }
    }
}
