//! Renders several calls as tables, one for each tool. A table has a row for each call and columns
//! for the arguments. If the values of a column can be added ([`column_sum`]), their sum stands
//! below the column.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::View;
use super::arguments::{
    command_lines, member_label, member_schema, node_text, shell_command, target,
};
use super::call::{approvals, authorship, decision_of_call};
use super::ordered::{JsonNode, MAX_SHORT_BYTES, members};
use super::sum::sum;
use crate::http::pages::layout::{visible, visible_lines};
use crate::http::pages::translations::fill;
use crate::http::wire::request::RequestedCall;
use crate::task::text::cut;

/// A call, and its index among all calls of the request.
type NumberedCall<'v> = (usize, &'v RequestedCall);

/// The members of one call's arguments, by name.
type ArgumentRow = BTreeMap<String, CellValue>;

/// The maximum number of columns for arguments. A table has more columns only if it has more sums.
const MAX_ARGUMENT_COLUMNS: usize = 6;

/// The maximum length of the shown part of a list or an object, in bytes of its JSON.
const MAX_NESTED_BYTES: usize = 40;

enum CellValue {
    Plain(JsonNode),
    /// The JSON of a list or an object, shortened to [`MAX_NESTED_BYTES`].
    Nested(String),
}

struct Column {
    /// The place of the argument in the agent's order.
    place: usize,
    name: String,
    sum: Option<String>,
    /// Whether no row has a list or an object in this column.
    is_plain: bool,
}

/// The arguments of the calls of one tool, as a table.
struct ArgumentTable {
    columns: Vec<Column>,
    rows: Vec<ArgumentRow>,
    /// Whether the table has every argument, and no list or object.
    is_complete: bool,
}

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
    let tables: Vec<_> = groups
        .iter()
        .map(|(_, calls)| ArgumentTable::new(calls))
        .collect();
    let complete = tables.iter().flatten().filter(|table| table.is_complete);
    // The exact texts below the tables are unfolded if a call has a warning, or if a table leaves
    // out a part of the arguments.
    let open =
        complete.count() < tables.len() || own.iter().any(|(_, call)| !call.warnings.is_empty());
    html! {
        @for ((tool, calls), arguments) in groups.iter().zip(&tables) {
            section.call {
                h2.quiet.exact { (fill(texts.calls_of, &[("tool", &visible(tool)), ("count", &calls.len())])) }
                @let authors: Vec<String> = calls.iter().map(|(_, call)| authorship(view, call)).collect();
                @if authors.iter().all(|text| Some(text) == authors.first()) { p.by { (authors.first().map_or("", String::as_str)) } }
                div.agent { (table(view, calls, arguments.as_ref())) }
                @if arguments.as_ref().is_some_and(|table| !table.is_complete) { p.hint { (texts.table_is_partial) } }
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

impl ArgumentTable {
    /// Returns the table of the calls' arguments. `None` if no call has an argument, or if the
    /// arguments of a call are ambiguous, are not an object, or are longer than
    /// [`MAX_SHORT_BYTES`].
    fn new(calls: &[NumberedCall<'_>]) -> Option<Self> {
        let mut names: Vec<String> = Vec::new();
        let mut rows = Vec::new();
        for (_, call) in calls {
            let arguments = argument_values(call)?;
            for (name, _) in &arguments {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
            rows.push(arguments.into_iter().collect::<ArgumentRow>());
        }
        let schema = schema(calls);
        let is_nested = |name: &str| {
            let mut values = rows.iter().filter_map(|row| row.get(name));
            values.any(|value| matches!(value, CellValue::Nested(_)))
        };
        let columns = names.into_iter().enumerate().map(|(place, name)| Column {
            place,
            sum: column_sum(&name, schema, &rows),
            is_plain: !is_nested(&name),
            name,
        });
        let (columns, is_complete) = chosen(columns.collect());
        (!columns.is_empty()).then_some(Self {
            columns,
            rows,
            is_complete,
        })
    }
}

/// Returns the columns that the table shows, in the agent's order, and whether they have every
/// argument and no list or object. The table shows every column with a sum. If these are fewer than
/// [`MAX_ARGUMENT_COLUMNS`], other columns fill the table up to this number: first the columns of
/// plain values, then the columns with a list or an object.
fn chosen(mut columns: Vec<Column>) -> (Vec<Column>, bool) {
    let sums = columns.iter().filter(|column| column.sum.is_some()).count();
    let count = sums.max(MAX_ARGUMENT_COLUMNS);
    let is_complete = columns.len() <= count && columns.iter().all(|column| column.is_plain);
    columns.sort_by_key(|column| (column.sum.is_none(), !column.is_plain));
    columns.truncate(count);
    columns.sort_by_key(|column| column.place);
    (columns, is_complete)
}

/// Returns the values of a call's arguments in the agent's order. `None` if the arguments are
/// ambiguous, are not an object, or are longer than [`MAX_SHORT_BYTES`].
fn argument_values(call: &RequestedCall) -> Option<Vec<(String, CellValue)>> {
    let text = call.arguments_text.as_str();
    if call.arguments.is_none() || text.len() > MAX_SHORT_BYTES {
        return None;
    }
    let text = if text.trim().is_empty() { "{}" } else { text };
    let values = members(text)?.into_iter().map(|(name, value)| {
        let value = match JsonNode::parse(value.get()).filter(JsonNode::is_plain) {
            Some(plain) => CellValue::Plain(plain),
            None => CellValue::Nested(shortened(value.get())),
        };
        (name, value)
    });
    Some(values.collect())
}

fn shortened(json: &str) -> String {
    let shown = cut(json, MAX_NESTED_BYTES);
    let rest = if shown.len() < json.len() { "…" } else { "" };
    format!("{shown}{rest}")
}

/// Returns the schema of the arguments of calls of one tool.
fn schema<'v>(calls: &[NumberedCall<'v>]) -> &'v Value {
    calls
        .first()
        .map_or(&Value::Null, |(_, call)| &call.parameters)
}

/// Renders the calls of one tool as a table. Without `arguments`, each row has the summary of a
/// call in place of the arguments.
fn table(view: &View<'_>, calls: &[NumberedCall<'_>], arguments: Option<&ArgumentTable>) -> Markup {
    let texts = view.texts;
    let has_summaries = arguments.is_none();
    let columns = arguments.map(|table| table.columns.as_slice());
    let columns = columns.unwrap_or_default();
    let rows = arguments.map(|table| table.rows.as_slice());
    let rows = rows.unwrap_or_default();
    let schema = schema(calls);
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
                        @for column in columns { th.figure[column.sum.is_some()] scope="col" { (column_heading(schema, &column.name)) } }
                        @if has_targets { th scope="col" { (target_label) } }
                        th scope="col" { (texts.state) }
                    }
                }
                tbody {
                    @for (at, (index, call)) in calls.iter().enumerate() {
                        tr {
                            th scope="row" { (index + 1) }
                            @if has_summaries { td.exact { (visible(&call.summary)) } }
                            @for column in columns { (cell(call, column, rows.get(at))) }
                            @if has_targets { td.exact { (target(view, call).1) } }
                            td { (call_state(view, call)) }
                        }
                    }
                }
                @if columns.iter().any(|column| column.sum.is_some()) {
                    tfoot {
                        tr {
                            th scope="row" { (texts.sum) }
                            @for column in columns { td.exact.figure { (column.sum.as_deref().unwrap_or_default()) } }
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

fn cell(call: &RequestedCall, column: &Column, row: Option<&ArgumentRow>) -> Markup {
    html! {
        @match row.and_then(|row| row.get(&column.name)) {
            Some(CellValue::Plain(value)) => {
                @match shell_command(call, &column.name, value) {
                    Some(command) => { td { (command_lines(command)) } }
                    None => { td.exact.figure[column.sum.is_some()] { (node_text(value)) } }
                }
            }
            Some(CellValue::Nested(json)) => { td.exact { (visible_lines(json)) } }
            None => { td { "–" } }
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
/// ([`is_identifier`]), unless the schema gives the column the type `number`: this is a type of
/// amounts, whereas identifiers have the type `integer`.
fn column_sum(name: &str, schema: &Value, rows: &[ArgumentRow]) -> Option<String> {
    let is_integer = member_schema(schema, name)["type"] != "number";
    if rows.len() < 2 || (is_integer && is_identifier(name)) {
        return None;
    }
    let texts: Option<Vec<&str>> = rows
        .iter()
        .map(|row| match row.get(name)? {
            CellValue::Plain(JsonNode::Literal(text)) => Some(text.as_str()),
            CellValue::Plain(_) | CellValue::Nested(_) => None,
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
    use super::super::tests::page;
    use super::*;
    use crate::http::openapi::sample;
    use serde_json::json;

    #[test]
    fn column_of_amounts_has_a_sum_and_column_of_identifiers_has_none() {
        let schema =
            json!({"properties": {"order": {"type": "integer"}, "amount": {"type": "number"}}});
        let literal = |text: &str| CellValue::Plain(JsonNode::Literal(text.into()));
        let row = |order: &str, amount: &str| {
            BTreeMap::from([
                ("order".to_owned(), literal(order)),
                ("amount".to_owned(), literal(amount)),
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

    #[test]
    fn table_of_calls_has_each_sum_whatever_else_the_arguments_have() {
        let partial = "This table leaves out parts of the arguments.";
        let lines = format!("[{{\"sku\":\"{}\"}}]", "s".repeat(60));
        let shown = |arguments: &str| {
            let mut row = sample::several(2);
            for call in &mut row.spec.pending_tool_calls {
                arguments.clone_into(&mut call.arguments_text);
            }
            page(&row, &sample::approver())
        };
        let nested = shown(&format!(
            "{{\"lines\":{lines},\"to\":[[[[1]]]],\"fee\":2.50}}"
        ));
        let cut = format!("[{{&quot;sku&quot;:&quot;{}…", "s".repeat(31));
        let row = format!(
            "<td class=\"exact\">{cut}</td><td class=\"exact\">[[[[1]]]]</td>\
             <td class=\"exact figure\">2.50</td>"
        );
        assert!(
            nested.contains(&row) && nested.contains("\"exact figure\">5.00</td>"),
            "{nested}"
        );
        assert!(nested.contains(partial), "{nested}");
        let plain = r#""a":"x","b":"x","c":"x","d":"x","e":"x""#;
        let wide = shown(&format!(
            "{{\"lines\":{lines},{plain},\"fee\":2.50,\"tip\":1}}"
        ));
        for (name, is_column) in [
            ("lines", false),
            ("a", true),
            ("d", true),
            ("e", false),
            ("fee", true),
            ("tip", true),
        ] {
            let heading = format!("<span class=\"exact\">{name}</span></th>");
            assert_eq!(wide.contains(&heading), is_column, "{name}: {wide}");
        }
        let sums = "\"exact figure\">5.00</td><td class=\"exact figure\">2</td>";
        assert!(wide.contains(sums) && wide.contains(partial), "{wide}");
        let seven = r#""a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7"#;
        let summed = shown(&format!("{{{seven},\"to\":\"x\"}}"));
        for sum in ["2", "4", "6", "8", "10", "12", "14"] {
            let cell = format!("\"exact figure\">{sum}</td>");
            assert!(summed.contains(&cell), "{sum}: {summed}");
        }
        assert!(summed.contains(partial), "{summed}");
        assert!(!shown(r#"{"fee":1}"#).contains(partial));
    }
}
