//! Checks the imports between rooms (top-level modules) against the table in `ARCHITECTURE.md`.
//!
//! The table is read from that page, so the page and the check cannot differ. The check reads
//! tokens and not lines. So a `crate::module` in the middle of an expression, in a group or behind
//! `super::super` counts as an import, too. Comments and strings do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::tokens::{Place, reached_rooms};
use super::{root, sources};

const HEADING: &str = "## Who may import whom";

/// The rooms (top-level modules) that each room may import. A room without an entry may import
/// nothing.
pub type Table = BTreeMap<String, BTreeSet<String>>;

#[test]
fn modules_import_only_what_the_table_allows() {
    let table = table_below(HEADING);
    let wrong: Vec<String> = sources("src")
        .iter()
        .flat_map(|source| forbidden_imports(&table, &source.path, &source.text))
        .collect();
    assert!(
        wrong.is_empty(),
        "ARCHITECTURE.md, \"Who may import whom\", does not allow:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_module_is_in_the_table_and_the_table_names_no_other() {
    let there: BTreeSet<String> = sources("src")
        .iter()
        .filter_map(|source| Place::of_file(&source.path).module.first().cloned())
        .chain(["main".to_owned()])
        .collect();
    let table = table_below(HEADING);
    let said: BTreeSet<String> = table.keys().cloned().collect();
    assert_eq!(
        there, said,
        "left: the modules of src; right: the table in ARCHITECTURE.md"
    );
    for (room, may) in &table {
        for other in may {
            assert!(
                said.contains(other),
                "{room} may import {other}, which is no room"
            );
        }
    }
}

#[test]
fn forbidden_import_is_found_however_it_is_written() {
    let table = read_table(
        "```\ntask    → nothing\nworld   → task\nengine  → task world\nhttp    → engine\n```",
    );
    let hides: [(&str, &str, &str); 13] = [
        ("src/http/mod.rs", "use crate::task::id::TaskId;", "task"),
        (
            "src/http/mod.rs",
            "use crate::{engine::Engine, world::Clock};",
            "world",
        ),
        (
            "src/http/mod.rs",
            "use crate::{\n    engine::{Engine, Key},\n    task::{id::{TaskId, RequestId}, status},\n};",
            "task",
        ),
        (
            "src/http/tasks/create.rs",
            "use super::super::super::task::id::TaskId;",
            "task",
        ),
        (
            "src/http/tasks/create.rs",
            "use super::super::{super::world, json};",
            "world",
        ),
        (
            "src/http/mod.rs",
            "fn f() { let _ = crate::world::SystemClock; }",
            "world",
        ),
        (
            "src/http/mod.rs",
            "fn f(a: u8) -> bool { a < crate :: task :: LIMIT }",
            "task",
        ),
        (
            "src/http/mod.rs",
            "mod tests { use super::super::world::Clock; }",
            "world",
        ),
        (
            "src/http/mod.rs",
            "use crate::engine as task; pub use ::holdpoint::world;",
            "world",
        ),
        ("src/http/mod.rs", "use crate::*;", "*"),
        ("src/http/mod.rs", "use crate::{self as everything};", "*"),
        (
            "src/task/mod.rs",
            "const T: char = '\"'; use crate::http::json; const U: char = '\"';",
            "http",
        ),
        (
            "src/main.rs",
            "fn main() { holdpoint::engine::run() }",
            "engine",
        ),
    ];
    for (path, text, room) in hides {
        let found = forbidden_imports(&table, path, text);
        assert_eq!(found.len(), 1, "{path}: {text}: {found:?}");
        assert!(
            found
                .iter()
                .all(|line| line.contains(&format!("imports {room}"))),
            "{path}: {text}: {found:?}"
        );
    }
}

#[test]
fn allowed_import_or_text_like_one_is_not_reported() {
    let table = read_table(
        "```\ntask    → nothing\nworld   → task\nengine  → task world\nhttp    → engine\n```",
    );
    let fine: [(&str, &str); 9] = [
        (
            "src/engine/drive.rs",
            "use crate::task::id::TaskId;\nuse crate::{engine::Key, world::Clock};",
        ),
        (
            "src/engine/drive.rs",
            "use super::decide; pub(crate) fn f() {} pub(super) fn g() {}",
        ),
        (
            "src/engine/drive.rs",
            "mod tests { use super::*; use super::super::decide; }",
        ),
        (
            "src/task/mod.rs",
            "//! See [`crate::http`].\n/* crate::http /* crate::engine */ crate::world */",
        ),
        (
            "src/task/mod.rs",
            "const A: &str = \"crate::http::json\"; const B: &str = r#\"a \" crate::engine\"#;",
        ),
        (
            "src/task/mod.rs",
            "fn f<'crate_>(x: &'crate_ str) -> &'crate_ str { x }",
        ),
        (
            "src/task/mod.rs",
            "mod inner { mod deep { use super::super::id; } } use self::inner::deep;",
        ),
        (
            "src/task/mod.rs",
            "pub(in crate::task) fn f() { other::task::http() }",
        ),
        (
            "src/http/tasks/create.rs",
            "use super::super::json; use crate::http::{json::{self, Body}, problem as p};",
        ),
    ];
    for (path, text) in fine {
        let found = forbidden_imports(&table, path, text);
        assert!(found.is_empty(), "{path}: {text}: {found:?}");
    }
}

/// Returns the imports in `text` (the file at `path`) that the table forbids, one line for each.
fn forbidden_imports(table: &Table, path: &str, text: &str) -> Vec<String> {
    let place = Place::of_file(path);
    let home = if path == "src/main.rs" {
        "main"
    } else {
        place.module.first().map_or("lib", String::as_str)
    };
    let none = BTreeSet::new();
    let may = table.get(home).unwrap_or(&none);
    reached_rooms(&place, text)
        .into_iter()
        .filter(|(_, room)| room != home && !may.contains(room))
        .map(|(line, room)| format!("{path}:{line}: {home} imports {room}"))
        .collect()
}

/// Reads the table in the first fenced block of `ARCHITECTURE.md` below a heading.
pub fn table_below(heading: &str) -> Table {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let (_, section) = page.split_once(heading).expect(heading);
    read_table(section)
}

/// Reads the first fenced block of `section`. Its lines have the form `a, b → c d`: the rooms `a`
/// and `b` may import `c` and `d`. The right side may also be `nothing` or `everything` (all
/// rooms).
pub fn read_table(section: &str) -> Table {
    let block = section.split("```").nth(1).expect("a fenced block");
    let mut table = Table::new();
    for line in block.lines().filter(|line| line.contains('→')) {
        let (rooms, may) = line.split_once('→').expect("an arrow");
        for room in rooms.split(',') {
            let may = may
                .split_whitespace()
                .filter(|word| *word != "nothing")
                .map(str::to_owned)
                .collect();
            assert!(
                table.insert(room.trim().to_owned(), may).is_none(),
                "{room} twice"
            );
        }
    }
    let all: BTreeSet<String> = table.keys().cloned().collect();
    for may in table.values_mut().filter(|may| may.contains("everything")) {
        may.clone_from(&all);
    }
    table
}
