//! Renders a call's arguments as a table, with their exact text below. A person decides about the
//! exact text, which is also the text that runs; the table is a reading aid. The rows are in the
//! agent's order, and have labels from the tool's schema.
//!
//! Invariant: the exact text is complete. The exact text is unfolded if the table could mislead. The
//! length of the arguments alone does not unfold it, because the table also has every value.

use maud::{Markup, html};
use serde_json::Value;

use super::View;
use super::ordered::JsonNode;
use crate::http::pages::layout::{visible, visible_lines};
use crate::http::pages::translations::fill;
use crate::http::wire::request::RequestedCall;
use crate::task::text_safety::LARGE;

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
    let property = schema
        .get("properties")
        .and_then(|properties| properties.get(member));
    let text = |name| {
        property
            .and_then(|property| property.get(name))
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    };
    (text("title"), text("description"))
}

#[must_use]
pub(super) fn is_shell(call: &RequestedCall) -> bool {
    call.target.starts_with("shell ")
}

pub(super) fn table(view: &View<'_>, call: &RequestedCall) -> Markup {
    let members = argument_members(call);
    html! {
        table.arguments {
            tbody {
                @if members.as_ref().is_some_and(Vec::is_empty) {
                    tr { td colspan="2" { (view.texts.no_arguments) } }
                }
                @for (name, value) in members.iter().flatten() { (row(call, name, value)) }
                tr.target { th scope="row" { (view.texts.goes_to) } td.exact { (visible(&call.target)) } }
            }
        }
        (exact_text(view, call, members.is_none() || call.warnings.iter().any(|warning| warning.code != LARGE)))
    }
}

fn row(call: &RequestedCall, name: &str, value: &JsonNode) -> Markup {
    let (title, description) = member_label(&call.parameters, name);
    let is_command = is_shell(call) && name == "command";
    html! {
        tr {
            th scope="row" {
                @match title {
                    Some(title) => {
                        (visible(title))
                        @if !title.eq_ignore_ascii_case(name) { " " span.exact.name { (visible(name)) } }
                    }
                    None => { span.exact { (visible(name)) } }
                }
                @if let Some(description) = description { span.hint { (visible(description)) } }
            }
            td {
                @match value {
                    JsonNode::Text(command) if is_command => { pre.exact.shell dir="ltr" { (visible_lines(command)) } }
                    value => (value_markup(value)),
                }
            }
        }
    }
}

fn value_markup(value: &JsonNode) -> Markup {
    html! {
        @match value {
            JsonNode::Text(_) | JsonNode::Literal(_) => { span.exact.value { (node_text(value)) } }
            JsonNode::List(values) if values.is_empty() => { span.exact.value { "[]" } }
            JsonNode::List(values) => { ul { @for value in values { li { (value_markup(value)) } } } }
            JsonNode::Object(members) if members.is_empty() => { span.exact.value { "{}" } }
            JsonNode::Object(members) => {
                dl.nested {
                    @for (name, value) in members { dt.exact { (visible(name)) } dd { (value_markup(value)) } }
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
