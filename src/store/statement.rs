//! Makes the texts of the statements that a commit sends, each from a template. A template names
//! lists, tables and columns in braces. This module replaces the names by columns and numbered
//! parameters, so that no template has to number parameters.
//!
//! | in the template | in the text |
//! |---|---|
//! | `{now}` | an expression for the clock (Postgres), or the time's parameter (`SQLite`) |
//! | `{owner}` | the `asker_owner` of this process; null on `SQLite` |
//! | `{at}`, `{base}` and other words | the replacements in the argument `words` |
//! | `{agent_task.columns}` | the columns that an insert into the table names |
//! | `{agent_task.values}` | the values of these columns in the insert |
//! | `{agent_task.sets}` | the assignments of an update of the table |
//! | `{tasks n}` | all lines of a list (Postgres), or one line (`SQLite`), with the alias `n` |
//! | `{tasks+line_ranges n}` | two or more lists, joined by line number, as `n` (Postgres) |
//! | `{tasks+line_ranges of n}` | these lists' columns, each with the prefix `n.` (Postgres) |
//! | `{tasks.task_id}` | the parameter that holds one column as an array (Postgres) |
//! | `{items[g] i}` | one line of a list, the line `g` (from 1), with the alias `i` (Postgres) |

use super::lists::List;
use super::tables::{TABLES, Table};
use super::task_columns::TASK_CHANGES;

/// Reads the database's clock at each evaluation. The time at which the statement began would be
/// too early, because the statement may have waited for locks since then. `$1` is the offset that
/// tests add.
const CLOCK: &str = "((extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint)";

/// Makes a statement's text for Postgres from `template`. Parameter 1 of the statement is the
/// offset for `{now}`, and parameter 2 the number for `{owner}`. The other parameters are the
/// columns of `lists`, in order, each as an array. `words` has further names that the template may
/// have in braces, each with its replacement.
pub(super) fn postgres(template: &str, lists: &[&List], words: &[(&str, &str)]) -> String {
    fill(template, words, &|name| {
        if name == "now" {
            return Some(CLOCK.to_owned());
        }
        if name == "owner" {
            return Some("nullif($2::bigint, 0)".to_owned());
        }
        if let Some((list, alias)) = name.split_once("[g] ") {
            let columns = numbered(lists, list)?
                .map(|(number, column, kind)| format!("(${number}::{kind}[])[g] as {column}"));
            return Some(format!("(select {}) as {alias}", joined(columns)));
        }
        if let Some((list, wanted)) = name.split_once('.') {
            let mut columns = numbered(lists, list)?;
            let (number, _, kind) = columns.find(|(_, column, _)| *column == wanted)?;
            return Some(format!("${number}::{kind}[]"));
        }
        let (names, alias) = name.split_once(" of ").or(name.split_once(' '))?;
        let mut columns = Vec::new();
        for list in names.split('+') {
            columns.extend(numbered(lists, list)?);
        }
        let columns = columns.into_iter();
        if name.contains(" of ") {
            return Some(joined(
                columns.map(|(_, column, _)| format!("{alias}.{column}")),
            ));
        }
        let arrays = columns.clone();
        let arrays = joined(arrays.map(|(number, _, kind)| format!("${number}::{kind}[]")));
        let columns = joined(columns.map(|(_, column, _)| column.to_owned()));
        Some(format!("unnest({arrays}) as {alias} ({columns})"))
    })
}

/// Makes a statement's text for `SQLite` from `template`. The statement runs once for each line of
/// `list`. Its first parameters are the values of the line's columns. Its last parameter is the
/// time.
pub(super) fn sqlite(template: &str, list: &List, words: &[(&str, &str)]) -> String {
    fill(template, words, &|name| {
        if name == "now" {
            return Some(format!("?{}", list.columns.len() + 1));
        }
        if name == "owner" {
            return Some("null".to_owned());
        }
        let (_, alias) = name.split_once(' ')?;
        let columns = (1..)
            .zip(list.columns)
            .map(|(number, (column, _))| format!("?{number} as {column}"));
        Some(format!("(select {}) as {alias}", joined(columns)))
    })
}

/// Returns the columns of a list, each with the number of its parameter and its type.
fn numbered<'l>(
    lists: &'l [&'l List],
    name: &str,
) -> Option<impl Iterator<Item = (usize, &'static str, &'static str)> + 'l> {
    let position = lists.iter().position(|list| list.name == name)?;
    let before = lists.iter().take(position).map(|list| list.columns.len());
    let first = 3 + before.sum::<usize>();
    let columns = lists.get(position)?.columns;
    Some(
        (first..)
            .zip(columns)
            .map(|(number, (column, kind))| (number, *column, *kind)),
    )
}

/// Replaces each name in braces. A replacement may contain further names in braces. An unknown name
/// is kept, so that the database refuses the text.
fn fill(template: &str, words: &[(&str, &str)], named: &dyn Fn(&str) -> Option<String>) -> String {
    let mut text = String::with_capacity(2 * template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        text.push_str(before);
        let word = words.iter().find(|(word, _)| *word == name);
        match (word, table_part(name)) {
            (Some((_, meaning)), _) => text.push_str(&fill(meaning, words, named)),
            (None, Some(part)) => text.push_str(&fill(&part, words, named)),
            (None, None) => text.push_str(&named(name).unwrap_or_else(|| format!("{{{name}}}"))),
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

/// Returns the columns, values or assignments that a name such as `agent_task.columns` stands for;
/// `None` for any other name.
fn table_part(name: &str) -> Option<String> {
    let (table, part) = name.split_once('.')?;
    let Table { name, columns } = TABLES.iter().find(|known| known.name == table)?;
    match part {
        "columns" => Some(joined(
            columns.iter().map(|(column, _)| (*column).to_owned()),
        )),
        "values" => Some(joined(columns.iter().map(|(_, value)| (*value).to_owned()))),
        "sets" if *name == "agent_task" => Some(joined(
            TASK_CHANGES
                .iter()
                .map(|(column, value)| format!("{column} = {value}")),
        )),
        _ => None,
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}
