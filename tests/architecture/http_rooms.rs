//! Checks the imports between the rooms of `http` against the table of these rooms in
//! `ARCHITECTURE.md`.
//!
//! `mod.rs`, `settings.rs` and `state.rs` belong to no room, and may import every room. Every room
//! may import `settings` and `state`. Tests are not checked, because the tests of all rooms use the
//! same samples.

use std::collections::BTreeSet;

use super::import_table::{Table, read_table, table_below};
use super::sources;
use super::tokens::{Place, reached_rooms};

const HEADING: &str = "### The rooms of `http`";
/// The modules directly in `src/http` that are no rooms.
const JOINTS: [&str; 3] = ["settings", "state", "tests"];

#[test]
fn rooms_of_http_import_only_what_their_table_allows() {
    let table = table_below(HEADING);
    let wrong: Vec<String> = sources("src/http")
        .iter()
        .flat_map(|source| forbidden_imports(&table, &source.path, &source.text))
        .collect();
    assert!(
        wrong.is_empty(),
        "ARCHITECTURE.md, \"The rooms of `http`\", does not allow:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn table_of_the_rooms_of_http_names_every_room_and_has_no_circle() {
    let mut table = table_below(HEADING);
    let rooms: BTreeSet<String> = sources("src/http")
        .iter()
        .filter_map(|source| place(&source.path).module.first().cloned())
        .filter(|room| !JOINTS.contains(&room.as_str()))
        .collect();
    assert_eq!(
        rooms,
        table.keys().cloned().collect(),
        "left: the rooms of src/http; right: their table in ARCHITECTURE.md"
    );
    while !table.is_empty() {
        let left: BTreeSet<String> = table.keys().cloned().collect();
        table.retain(|_, may| !may.is_disjoint(&left));
        assert!(table.len() < left.len(), "a circle: {table:?}");
    }
}

#[test]
fn forbidden_import_between_rooms_of_http_is_found() {
    let table = read_table("```\nserver → nothing\nwire → server\n```");
    for (path, text, found) in [
        ("src/http/server/guard.rs", "use crate::http::wire::A;", 1),
        ("src/http/server/guard.rs", "use super::super::wire::A;", 1),
        ("src/http/server/mod.rs", "fn f() { super::wire::g() }", 1),
        (
            "src/http/server/guard.rs",
            "use crate::http::{wire, Http};",
            1,
        ),
        ("src/http/server/guard.rs", "use crate::http;", 1),
        ("src/http/server/guard.rs", "use crate::http::Http;", 0),
        ("src/http/server/tests.rs", "use crate::http::wire::A;", 0),
        ("src/http/wire/task.rs", "use crate::http::server::A;", 0),
        ("src/http/state.rs", "use super::wire::A;", 0),
        ("src/http/mod.rs", "use self::wire::A;", 0),
        (
            "src/http/server/guard.rs",
            "use super::body;\n#[cfg(test)]\nmod tests {\n    use crate::http::wire::A;\n}",
            0,
        ),
    ] {
        let lines = forbidden_imports(&table, path, text);
        assert_eq!(lines.len(), found, "{path}: {text}: {lines:?}");
    }
}

/// Returns the imports in `text` (the file at `path`) that the table forbids, one line for each.
fn forbidden_imports(table: &Table, path: &str, text: &str) -> Vec<String> {
    let place = place(path);
    let is_test = place.module.iter().any(|name| name.starts_with("tests"));
    let room = place.module.first().map_or("", String::as_str);
    let Some(may) = table.get(room).filter(|_| !is_test) else {
        return Vec::new();
    };
    let product = text.split("#[cfg(test)]\nmod tests {").next();
    let product = product
        .unwrap_or_default()
        .replace("crate::http::", "crate::");
    reached_rooms(&place, &product)
        .into_iter()
        .filter(|(_, other)| {
            let is_whole = other == "*" || other == "http";
            is_whole || (other != room && table.contains_key(other) && !may.contains(other))
        })
        .map(|(line, other)| format!("{path}:{line}: {room} imports {other}"))
        .collect()
}

/// Returns the module that a file of `src/http` defines, as if `src/http` were the root of the
/// crate. So each room of `http` counts as a top-level module.
fn place(path: &str) -> Place {
    Place::of_file(&path.replacen("src/http/", "src/", 1))
}
