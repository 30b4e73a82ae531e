//! A call's arguments as a table in the agent's order, labeled by the tool's schema, and the exact
//! text below it. The request asks about the exact text, and the exact text runs; the table only
//! helps people to read it. Invariant: the exact text is always complete, and is unfolded if the
//! table alone could mislead.

use maud::{Markup, html};
use serde_json::Value;

use super::View;
use super::ordered::Node;
use super::question::prose;
use crate::http::pages::layout::visible;
use crate::http::pages::translations::fill;
use crate::http::wire::request::RequestedCall;

/// Returns the members of a call's arguments in the agent's order. `None` if the exact text of the
/// arguments is ambiguous, long, deeply nested or no object: only that text then shows them well.
#[must_use]
pub(super) fn members(call: &RequestedCall) -> Option<Vec<(String, Node)>> {
    call.arguments.as_ref()?;
    match Node::read(&call.arguments_text)? {
        Node::Object(members) => Some(members),
        Node::Text(_) | Node::Literal(_) | Node::List(_) => None,
    }
}

/// Returns the title and the description that the tool's schema gives a member.
#[must_use]
pub(super) fn label<'s>(schema: &'s Value, member: &str) -> (Option<&'s str>, Option<&'s str>) {
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

/// Whether the call runs a command of a shell.
#[must_use]
pub(super) fn is_shell(call: &RequestedCall) -> bool {
    call.target.starts_with("shell ")
}

/// The arguments of one call: the table with the call's target, and the exact text.
pub(super) fn table(view: &View<'_>, call: &RequestedCall) -> Markup {
    let members = members(call);
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
        (exact_text(view, call, members.is_none() || !call.warnings.is_empty()))
    }
}

fn row(call: &RequestedCall, name: &str, value: &Node) -> Markup {
    let (title, description) = label(&call.parameters, name);
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
                    Node::Text(command) if is_command => { pre.exact.shell dir="ltr" { (prose(command)) } }
                    value => (shown(value)),
                }
            }
        }
    }
}

/// Displays a value: a plain value as text, a list as a list, an object as pairs of name and value.
fn shown(value: &Node) -> Markup {
    html! {
        @match value {
            Node::Text(_) | Node::Literal(_) => { span.exact.value { (plain(value)) } }
            Node::List(values) if values.is_empty() => { span.exact.value { "[]" } }
            Node::List(values) => { ul { @for value in values { li { (shown(value)) } } } }
            Node::Object(members) if members.is_empty() => { span.exact.value { "{}" } }
            Node::Object(members) => {
                dl.nested {
                    @for (name, value) in members { dt.exact { (visible(name)) } dd { (shown(value)) } }
                }
            }
        }
    }
}

/// The text of a plain value. A string that could be mistaken for another value keeps its quotation
/// marks.
#[must_use]
pub(super) fn plain(value: &Node) -> String {
    match value {
        Node::Literal(text) => visible(text),
        Node::Text(text) if is_clear(text) => prose(text),
        Node::Text(text) => prose(&Value::from(text.as_str()).to_string()),
        Node::List(_) | Node::Object(_) => String::new(),
    }
}

/// Returns whether a string is clear without quotation marks: it is neither empty nor valid JSON,
/// and has no blanks at its ends and no two blanks in a row.
fn is_clear(text: &str) -> bool {
    text.trim() == text
        && !text.contains("  ")
        && serde_json::from_str::<Value>(text).is_err()
        && !text.is_empty()
}

/// The exact text of a call's arguments, complete. The class `exact` keeps right-to-left characters
/// from reordering the text.
pub(super) fn exact_text(view: &View<'_>, call: &RequestedCall, open: bool) -> Markup {
    let count = call.arguments_text.chars().count().to_string();
    html! {
        details.raw open[open] {
            summary { (fill(view.texts.exact_text, &[("count", &count)])) }
            @if call.arguments_text.is_empty() { p { (view.words.no_bytes) } }
            pre.exact dir="ltr" { (visible(&call.arguments_text)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_that_could_be_misread_has_its_quotation_marks() {
        let text = |text: &str| plain(&Node::Text(text.into()));
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
