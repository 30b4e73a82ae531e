//! Renders a call's arguments as a table, with their exact text below. A person decides about the
//! exact text, which is also the text that runs; the table is a reading aid. The rows are in the
//! agent's order, and have labels from the tool's schema.
//!
//! Invariant: the exact text is complete. The page unfolds the exact text if the table cannot show
//! the arguments, or if the call has a warning. The warning `LARGE` alone leaves the exact text
//! folded, because a table of long arguments also has every value.

use maud::{Markup, html};
use serde_json::Value;

use super::View;
use super::ordered::JsonNode;
use crate::http::pages::layout::{visible, visible_lines};
use crate::http::pages::translations::fill;
use crate::http::wire::request::RequestedCall;
use crate::task::text_safety::LARGE;

/// The target of a call that runs outside the service.
const EXTERNAL: &str = "external";

/// Returns the members of a call's arguments in the agent's order. `None` if the text of the
/// arguments is ambiguous, long, deeply nested, or not a JSON object; the page then shows the exact
/// text alone.
#[must_use]
pub(super) fn argument_members(call: &RequestedCall) -> Option<Vec<(String, JsonNode)>> {
    call.arguments.as_ref()?;
    match JsonNode::parse(&call.arguments_text)? {
        JsonNode::Object(members) => Some(members),
        JsonNode::Text(_) | JsonNode::Literal(_) | JsonNode::List(_) => None,
    }
}

/// Returns the title and the description that the tool's schema gives a member.
#[must_use]
pub(super) fn member_label<'s>(
    schema: &'s Value,
    member: &str,
) -> (Option<&'s str>, Option<&'s str>) {
    let property = member_schema(schema, member);
    let text = |name| {
        let text = property.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty())
    };
    (text("title"), text("description"))
}

#[must_use]
pub(super) fn is_shell(call: &RequestedCall) -> bool {
    call.target.starts_with("shell ")
}

/// Returns the command of a shell call, if `name` is the member that holds the command. `None` for
/// an empty command, which is shown as any other empty text.
#[must_use]
pub(super) fn shell_command<'n>(
    call: &RequestedCall,
    name: &str,
    value: &'n JsonNode,
) -> Option<&'n str> {
    match value {
        JsonNode::Text(command) if is_shell(call) && name == "command" && !command.is_empty() => {
            Some(command)
        }
        JsonNode::Text(_) | JsonNode::Literal(_) | JsonNode::List(_) | JsonNode::Object(_) => None,
    }
}

/// Renders a command as in a terminal. Each line of the command has an element of its own, so that
/// the style tells a line of the command from a line that is only broken to fit the page.
pub(super) fn command_lines(command: &str) -> Markup {
    html! {
        pre.exact.shell dir="ltr" {
            @for line in command.split_inclusive('\n') {
                span.exact { (visible_lines(line.strip_suffix('\n').unwrap_or(line))) }
            }
        }
    }
}

/// Returns the label and the text of the place where a call runs: an address, or the folder of a
/// command.
#[must_use]
pub(super) fn target(view: &View<'_>, call: &RequestedCall) -> (&'static str, String) {
    match call.target.strip_prefix("shell ") {
        Some(folder) => (view.texts.runs_in, visible(folder)),
        None if call.target == EXTERNAL => (view.texts.goes_to, view.texts.goes_outside.to_owned()),
        None if call.target.is_empty() => (view.texts.goes_to, view.texts.goes_nowhere.to_owned()),
        None => (view.texts.goes_to, visible(&call.target)),
    }
}

pub(super) fn table(view: &View<'_>, call: &RequestedCall) -> Markup {
    let members = argument_members(call);
    let (label, place) = target(view, call);
    html! {
        table.arguments {
            tbody {
                @if members.as_ref().is_some_and(Vec::is_empty) {
                    tr { td colspan="2" { (view.texts.no_arguments) } }
                }
                @for (name, value) in members.iter().flatten() { (row(call, name, value)) }
                tr.target { th scope="row" { (label) } td.exact { (place) } }
            }
        }
        (exact_text(view, call, members.is_none() || call.warnings.iter().any(|warning| warning.code != LARGE)))
    }
}

fn row(call: &RequestedCall, name: &str, value: &JsonNode) -> Markup {
    let (title, description) = member_label(&call.parameters, name);
    html! {
        tr {
            th scope="row" {
                (labeled_name(title, name))
                @if let Some(description) = description { span.hint { (visible(description)) } }
            }
            td {
                @match shell_command(call, name, value) {
                    Some(command) => (command_lines(command)),
                    None => (value_markup(value, member_schema(&call.parameters, name))),
                }
            }
        }
    }
}

/// Renders the title of a member, followed by the member's name if the name differs from the title.
/// For a member without a title, renders only the name.
fn labeled_name(title: Option<&str>, name: &str) -> Markup {
    html! {
        @match title {
            Some(title) => {
                (visible(title))
                @if !title.eq_ignore_ascii_case(name) { " " span.exact.name { (visible(name)) } }
            }
            None => { span.exact { (visible(name)) } }
        }
    }
}

pub(super) fn member_schema<'s>(schema: &'s Value, member: &str) -> &'s Value {
    schema["properties"].get(member).unwrap_or(&Value::Null)
}

/// Renders a value. The labels of nested members come from `schema`, the schema of the value.
fn value_markup(value: &JsonNode, schema: &Value) -> Markup {
    html! {
        @match value {
            JsonNode::Text(_) | JsonNode::Literal(_) => { span.exact.value { (node_text(value)) } }
            JsonNode::List(values) if values.is_empty() => { span.exact.value { "[]" } }
            JsonNode::List(values) => { ul {
                    @for value in values { li { (value_markup(value, &schema["items"])) } }
                } }
            JsonNode::Object(members) if members.is_empty() => { span.exact.value { "{}" } }
            JsonNode::Object(members) => {
                dl.nested {
                    @for (name, value) in members {
                        dt { (labeled_name(member_label(schema, name).0, name)) }
                        dd { (value_markup(value, member_schema(schema, name))) }
                    }
                }
            }
        }
    }
}

/// Returns the text of a plain value; empty for a list or an object. A string that could be
/// mistaken for another value keeps its quotation marks.
#[must_use]
pub(super) fn node_text(value: &JsonNode) -> String {
    match value {
        JsonNode::Literal(text) => visible(text),
        JsonNode::Text(text) if is_unambiguous(text) => visible_lines(text),
        JsonNode::Text(text) => visible_lines(&Value::from(text.as_str()).to_string()),
        JsonNode::List(_) | JsonNode::Object(_) => String::new(),
    }
}

/// Returns whether a string can be read without quotation marks: it is not empty, not valid JSON,
/// and has no blanks at its ends and no two blanks in a row.
fn is_unambiguous(text: &str) -> bool {
    text.trim() == text
        && !text.contains("  ")
        && serde_json::from_str::<Value>(text).is_err()
        && !text.is_empty()
}

/// Renders the exact text of a call's arguments. The class `exact` keeps right-to-left characters
/// from reordering the text.
pub(super) fn exact_text(view: &View<'_>, call: &RequestedCall, open: bool) -> Markup {
    let count = call.arguments_text.chars().count();
    html! {
        details.raw open[open] {
            summary { (fill(view.texts.exact_text, &[("count", &count)])) }
            @if call.arguments_text.is_empty() { p { (view.words.no_text) } }
            pre.exact dir="ltr" { (visible(&call.arguments_text)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_that_could_be_misread_has_its_quotation_marks() {
        let text = |text: &str| node_text(&JsonNode::Text(text.into()));
        for (written, expected) in [
            ("bob", "bob"),
            ("two words", "two words"),
            ("17", "\"17\""),
            ("true", "\"true\""),
            ("null", "\"null\""),
            ("", "\"\""),
            (" bob", "\" bob\""),
            ("a  b", "\"a  b\""),
            ("\"a\"", "\"\\\"a\\\"\""),
            ("a\u{202e}b", "a\\u{202e}b"),
        ] {
            assert_eq!(text(written), expected, "{written}");
        }
    }
}
