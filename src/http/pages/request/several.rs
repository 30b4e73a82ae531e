//! Renders several calls as tables, one for each tool. A table has a row for each call and a column
//! for each argument. If the values of a column can be added ([`column_sum`]), their sum stands
//! below the column.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::View;
use super::arguments::{
    argument_members, command_lines, member_label, node_text, shell_command, target,
};
use super::call::{approvals, authorship, decision_of_call};
use super::ordered::{JsonNode, MAX_SHORT_BYTES};
use super::sum::sum;
use crate::http::pages::layout::visible;
use crate::http::pages::translations::fill;
use crate::http::wire::request::RequestedCall;

/// A call, and its index among all calls of the request.
type NumberedCall<'v> = (usize, &'v RequestedCall);

/// The members of one call's arguments, by name.
type ArgumentRow = BTreeMap<String, JsonNode>;

/// The maximum number of columns for arguments. Each name of an argument takes one column. If the
/// calls of a tool have more different names, the table has the summaries of the calls instead.
const MAX_ARGUMENT_COLUMNS: usize = 6;

pub(super) fn tables(view: &View<'_>, own: &[NumberedCall<'_>]) -> Markup {
    let texts = view.texts;
    let mut groups: Vec<(&str, Vec<NumberedCall<'_>>)> = Vec::new();
    for &(index, call) in own {
        let group = groups.iter_mut().find(|(tool, _)| *tool == call.name);
        match group {
            Some((_, calls)) => calls.push((index, call)),
            None => groups.push((call.name.as_str(), vec![(index, call)])),
        }
    }
    // The exact texts below the tables are unfolded if a call has a warning, or if a table has
    // summaries, because a table of summaries leaves out the arguments.
    let open = groups.iter().any(|(_, calls)| columns(calls).is_none())
        || own.iter().any(|(_, call)| !call.warnings.is_empty());
    html! {
        @for (tool, calls) in &groups {
            section.call {
                h2.quiet.exact { (fill(texts.calls_of, &[("tool", &visible(tool)), ("count", &calls.len())])) }
                @let authors: Vec<String> = calls.iter().map(|(_, call)| authorship(view, call)).collect();
                @if authors.iter().all(|text| Some(text) == authors.first()) { p.by { (authors.first().map_or("", String::as_str)) } }
                div.agent { (table(view, calls)) }
            }
        }
        details.raw.each open[open] {
            summary { (texts.exact_text_of_each) }
            @for (index, call) in own { (exact_call(view, *index, call)) }
        }
    }
}

fn exact_call(view: &View<'_>, index: usize, call: &RequestedCall) -> Markup {
    html! {
        section.call id=(format!("exact-{}", index + 1)) {
            h3 { (call_number(view, index)) " " span.exact { (visible(&call.summary)) } }
            p.by { (authorship(view, call)) }
            div.agent {
                p.exact { (visible(&call.target)) }
                @if call.arguments_text.is_empty() { p { (view.words.no_text) } }
                pre.exact dir="ltr" { (visible(&call.arguments_text)) }
            }
            (approvals(view, call))
            @if let Some(decision) = &call.decision { (decision_of_call(view, call, decision)) }
        }
    }
}

/// Returns the name of a call on the page, such as "Call 3". `index` counts from 0.
pub(super) fn call_number(view: &View<'_>, index: usize) -> String {
    fill(view.texts.call_number, &[("number", &(index + 1))])
}

/// Returns the names of the columns, in the agent's order, and a row for each call. `None` if the
/// arguments do not fit into columns: [`argument_members`] cannot read them; they are longer than
/// [`MAX_SHORT_BYTES`]; a value is a list or an object; or the number of columns is 0 or over
/// [`MAX_ARGUMENT_COLUMNS`].
fn columns(calls: &[NumberedCall<'_>]) -> Option<(Vec<String>, Vec<ArgumentRow>)> {
    let mut names: Vec<String> = Vec::new();
    let mut rows = Vec::new();
    for (_, call) in calls {
        if call.arguments_text.len() > MAX_SHORT_BYTES {
            return None;
        }
        let members = argument_members(call)?;
        for (name, value) in &members {
            if !value.is_plain() {
                return None;
            }
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        rows.push(members.into_iter().collect());
    }
    (names.len() <= MAX_ARGUMENT_COLUMNS && !names.is_empty()).then_some((names, rows))
}

/// Renders the calls of one tool as a table. If their arguments do not fit into columns, each row
/// has the summary of a call in place of the arguments.
fn table(view: &View<'_>, calls: &[NumberedCall<'_>]) -> Markup {
    let texts = view.texts;
    let columns = columns(calls);
    let has_summaries = columns.is_none();
    let (names, rows) =
        columns.unwrap_or_else(|| (Vec::new(), vec![ArgumentRow::new(); calls.len()]));
    let schema = calls
        .first()
        .map_or(&Value::Null, |(_, call)| &call.parameters);
    let sums: Vec<Option<String>> = names
        .iter()
        .map(|name| column_sum(name, schema, &rows))
        .collect();
    let has_targets = has_summaries || has_several_targets(calls);
    let tool = calls.first().map_or("", |(_, call)| &call.name);
    let first_target = calls.first().map(|(_, call)| target(view, call));
    let (target_label, shared_target) = first_target.unwrap_or_default();
    let label = if has_summaries {
        texts.call.to_owned()
    } else {
        visible(tool)
    };
    html! {
        div.scroll tabindex="0" role="group" aria-label=(label) {
            table.calls {
                thead {
                    tr {
                        th scope="col" { (texts.number) }
                        @if has_summaries { th scope="col" { (texts.call) } }
                        @for (name, sum) in names.iter().zip(&sums) { th.figure[sum.is_some()] scope="col" { (column_heading(schema, name)) } }
                        @if has_targets { th scope="col" { (target_label) } }
                        th scope="col" { (texts.state) }
                    }
                }
                tbody {
                    @for ((index, call), row) in calls.iter().zip(&rows) {
                        tr {
                            th scope="row" { (index + 1) }
                            @if has_summaries { td.exact { (visible(&call.summary)) } }
                            @for (name, sum) in names.iter().zip(&sums) { (cell(call, name, row.get(name), sum.is_some())) }
                            @if has_targets { td.exact { (target(view, call).1) } }
                            td { (call_state(view, call)) }
                        }
                    }
                }
                @if sums.iter().any(Option::is_some) {
                    tfoot {
                        tr {
                            th scope="row" { (texts.sum) }
                            @for sum in &sums { td.exact.figure { (sum.as_deref().unwrap_or_default()) } }
                            @if has_targets { td {} }
                            td {}
                        }
                    }
                }
            }
        }
        @if !has_targets { p.by { (target_label) (view.words.colon) span.exact { (shared_target) } } }
    }
}

fn has_several_targets(calls: &[NumberedCall<'_>]) -> bool {
    let mut targets = calls.iter().map(|(_, call)| &call.target);
    let first = targets.next();
    targets.any(|target| Some(target) != first)
}

fn column_heading(schema: &Value, name: &str) -> Markup {
    html! {
        @if let (Some(title), _) = member_label(schema, name) { (visible(title)) } @else { span.exact { (visible(name)) } }
    }
}

fn cell(call: &RequestedCall, name: &str, value: Option<&JsonNode>, is_number: bool) -> Markup {
    let command = value.and_then(|value| shell_command(call, name, value));
    html! {
        @if let Some(command) = command {
            td { (command_lines(command)) }
        } @else if let Some(value) = value {
            td.exact.figure[is_number] { (node_text(value)) }
        } @else {
            td { "–" }
        }
    }
}

fn call_state(view: &View<'_>, call: &RequestedCall) -> Markup {
    let required = view.required();
    html! {
        @match &call.decision {
            Some(decision) => (view.words.action(decision.action)),
            None if required > 1 => { (call.approvals.len()) " / " (required) },
            None => (view.texts.open),
        }
        @if !call.warnings.is_empty() { " " strong.warning { (view.words.warning) } }
    }
}

/// Returns the sum of a column. `None` if the column has a single row, a row without a number, or
/// numbers that [`sum`] cannot add. Also `None` if the column's name suggests identifiers
/// ([`is_identifier`]) and the schema does not give the type `number`. Identifiers are integers, so
/// a column of the type `number` has no identifiers.
fn column_sum(name: &str, schema: &Value, rows: &[ArgumentRow]) -> Option<String> {
    let is_integer = schema
        .get("properties")
        .and_then(|properties| properties.get(name))
        .and_then(|property| property.get("type"))
        .is_none_or(|kind| kind != "number");
    if rows.len() < 2 || (is_integer && is_identifier(name)) {
        return None;
    }
    let texts: Option<Vec<&str>> = rows
        .iter()
        .map(|row| match row.get(name)? {
            JsonNode::Literal(text) => Some(text.as_str()),
            JsonNode::Text(_) | JsonNode::List(_) | JsonNode::Object(_) => None,
        })
        .collect();
    sum(texts?.into_iter())
}

/// Returns whether a member's name suggests an identifier, such as an order number. A sum of
/// identifiers has no meaning.
fn is_identifier(name: &str) -> bool {
    const IDENTIFIER_WORDS: [&str; 12] = [
        "id", "no", "nr", "number", "order", "customer", "invoice", "ticket", "account", "code",
        "key", "year",
    ];
    let name = name.to_lowercase();
    let last = name.rsplit(['_', '-', '.', ' ']).next().unwrap_or(&name);
    IDENTIFIER_WORDS.contains(&last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn column_of_amounts_has_a_sum_and_column_of_identifiers_has_none() {
        let schema =
            json!({"properties": {"order": {"type": "integer"}, "amount": {"type": "number"}}});
        let row = |order: &str, amount: &str| {
            BTreeMap::from([
                ("order".to_owned(), JsonNode::Literal(order.into())),
                ("amount".to_owned(), JsonNode::Literal(amount.into())),
            ])
        };
        let rows = [row("17", "20.10"), row("18", "5")];
        assert_eq!(
            column_sum("amount", &schema, &rows).as_deref(),
            Some("25.10")
        );
        assert_eq!(column_sum("order", &schema, &rows), None);
        assert_eq!(column_sum("amount", &schema, &rows[..1]), None);
        assert_eq!(column_sum("other", &schema, &rows), None);
        assert!(
            is_identifier("order_id")
                && is_identifier("invoice-no")
                && !is_identifier("amount_cents")
        );
    }
}
