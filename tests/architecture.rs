//! The house rules that a compiler does not check: which room may import which, how long a file may
//! be, which names are too vague.
//!
//! The table of imports is the one in `ARCHITECTURE.md`, read from there: the page cannot say one
//! thing and the check another. Paths are found by reading tokens, not lines, so a `crate::room` in
//! the middle of an expression, in a group or behind `super::super` counts as an import too;
//! comments and strings do not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use self::imports::{Place, reached_rooms, tokens};

mod imports;

const LONGEST_FILE: usize = 500;
const LONGEST_CORE_FILE: usize = 200;
const CORE_FILES: [&str; 3] = [
    "src/task/step.rs",
    "src/engine/driver/mod.rs",
    "src/http/mod.rs",
];
const VAGUE_FILES: [&str; 6] = ["utils", "util", "common", "types", "helpers", "misc"];
const VAGUE_ENDINGS: [&str; 4] = ["Manager", "Service", "Handler", "Helper"];
const LEFT_OPEN: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

/// The rooms that a room may import; an absent room may import nothing.
type Table = BTreeMap<String, BTreeSet<String>>;

struct Source {
    /// From the package's root, with `/`.
    path: String,
    text: String,
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let table = table();
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
    let table = table();
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

#[test]
fn files_and_types_have_no_vague_names() {
    let mut wrong = Vec::new();
    for source in all_sources() {
        let place = Place::of_file(&source.path);
        if let Some(vague) = place
            .module
            .iter()
            .find(|name| VAGUE_FILES.contains(&name.as_str()))
        {
            wrong.push(format!("{}: a module called {vague}", source.path));
        }
        wrong.extend(
            vague_types(&source.text)
                .into_iter()
                .map(|name| format!("{}: {name}", source.path)),
        );
    }
    assert!(
        wrong.is_empty(),
        "names that say what a thing is would be better:\n{}",
        wrong.join("\n")
    );
    assert_eq!(
        vague_types("pub struct TaskManager; enum Handler {} trait Served {}"),
        ["TaskManager", "Handler"]
    );
}

#[test]
fn no_name_is_a_retired_word_of_the_glossary() {
    let retired = retired_words();
    assert!(
        retired.len() > 10,
        "only {} words are retired",
        retired.len()
    );
    let mut wrong = Vec::new();
    for Source { path, text } in all_sources() {
        let modules = Place::of_file(&path)
            .module
            .into_iter()
            .filter(|name| retired.contains(name));
        wrong.extend(modules.map(|name| format!("{path}: a module called {name}")));
        wrong.extend(
            declared_names(&text, &retired)
                .into_iter()
                .map(|name| format!("{path}: {name}")),
        );
    }
    assert!(
        wrong.is_empty(),
        "docs/glossary.md, \"Retired\", names them:\n{}",
        wrong.join("\n")
    );
    let words: BTreeSet<String> = ["Live", "eyes"].map(str::to_owned).into();
    assert_eq!(
        declared_names("struct Live; mod eyes; fn live() { let eyes = 1; }", &words),
        ["Live", "eyes"]
    );
}

/// The names in backticks of the glossary's last section.
fn retired_words() -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("docs/glossary.md")).expect("docs/glossary.md");
    let (_, section) = page
        .split_once("## Retired")
        .expect("the section \"Retired\"");
    let words = section.split('`').skip(1).step_by(2);
    words
        .filter(|word| !word.contains('/'))
        .map(str::to_owned)
        .collect()
}

/// The types, functions and modules of a text that have one of these names.
fn declared_names(text: &str, names: &BTreeSet<String>) -> Vec<String> {
    let tokens = tokens(text);
    let declares = |word: &str| ["struct", "enum", "trait", "type", "fn", "mod"].contains(&word);
    let pairs = tokens.iter().zip(tokens.iter().skip(1));
    pairs
        .filter(|(keyword, name)| declares(&keyword.text) && names.contains(&name.text))
        .map(|(_, name)| name.text.clone())
        .collect()
}

#[test]
fn every_file_opens_with_its_doc_comment_and_is_not_too_long() {
    let mut wrong = Vec::new();
    for Source { path, text } in all_sources() {
        if !text.starts_with("//!") {
            wrong.push(format!("{path}: does not open with //!"));
        }
        let longest = if CORE_FILES.contains(&path.as_str()) {
            LONGEST_CORE_FILE
        } else {
            LONGEST_FILE
        };
        let lines = text.lines().count();
        if lines > longest {
            wrong.push(format!("{path}: {lines} lines, {longest} at most"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_is_reached_by_a_mod() {
    let sources = all_sources();
    let lost = unreached(&sources);
    assert!(
        lost.is_empty(),
        "no `mod` names these files, so nothing compiles them:\n{}",
        lost.join("\n")
    );
    let renamed = concat!("#[", "path");
    let renamed: Vec<_> = sources
        .iter()
        .filter(|source| source.text.contains(renamed))
        .map(|one| &one.path)
        .collect();
    assert!(
        renamed.is_empty(),
        "a module is the file of its name: {renamed:?}"
    );
}

#[test]
fn file_that_no_mod_names_is_found() {
    let source = |path: &str, text: &str| Source {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let sources = [
        source(
            "src/lib.rs",
            "pub mod a;\nmod inline { fn f() {} }\n// mod lost;",
        ),
        source("src/a/mod.rs", "mod b;"),
        source("src/a/b.rs", "#[cfg(test)]\nmod tests;"),
        source("src/a/b/tests.rs", "\"mod lost;\""),
        source("src/lost.rs", "mod below;"),
        source("src/lost/below.rs", ""),
        source("src/inline.rs", ""),
        source("tests/main.rs", "mod a;"),
        source("tests/a.rs", ""),
        source("tests/b.rs", ""),
    ];
    assert_eq!(
        unreached(&sources),
        ["src/lost.rs", "src/inline.rs", "tests/b.rs"]
    );
}

/// The files that no parent file declares.
fn unreached(sources: &[Source]) -> Vec<&str> {
    let crate_of = |path: &str| path.split('/').next().unwrap_or_default().to_owned();
    let mut declared: BTreeSet<(String, Vec<String>)> = BTreeSet::new();
    for Source { path, text } in sources {
        let module = Place::of_file(path).module;
        for words in tokens(text).windows(3) {
            if let [keyword, name, end] = words
                && (keyword.text.as_str(), end.text.as_str()) == ("mod", ";")
            {
                let below = module.iter().chain([&name.text]).cloned().collect();
                declared.insert((crate_of(path), below));
            }
        }
    }
    let roots = ["src/lib.rs", "src/main.rs", "tests/main.rs"];
    let paths = sources
        .iter()
        .map(|source| source.path.as_str())
        .filter(|path| !roots.contains(path));
    paths
        .filter(|path| !declared.contains(&(crate_of(path), Place::of_file(path).module)))
        .collect()
}

#[test]
fn code_has_no_markers_of_unfinished_work() {
    let mut wrong = Vec::new();
    for Source { path, text } in all_sources() {
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric());
            if words.any(|word| LEFT_OPEN.contains(&word)) {
                wrong.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The imports of `text`, the file at `path`, that the table forbids, one line each.
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

fn vague_types(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    tokens
        .iter()
        .zip(tokens.iter().skip(1))
        .filter(|(keyword, _)| {
            ["struct", "enum", "trait", "type", "union"].contains(&keyword.text.as_str())
        })
        // An associated type of a trait is named by the trait.
        .filter(|(keyword, name)| {
            keyword.text != "type" || !VAGUE_ENDINGS.contains(&name.text.as_str())
        })
        // The contract calls the target of a login a service.
        .filter(|(_, name)| name.text != "Service")
        .filter(|(_, name)| {
            VAGUE_ENDINGS
                .iter()
                .any(|ending| name.text.ends_with(ending))
        })
        .map(|(_, name)| name.text.clone())
        .collect()
}

fn table() -> Table {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let (_, section) = page
        .split_once("## Who may import whom")
        .expect("the section \"Who may import whom\"");
    read_table(section)
}

/// Reads the first fenced block: `a, b → c d` lines, `nothing` for an empty right side,
/// `everything` for all rooms.
fn read_table(section: &str) -> Table {
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

fn all_sources() -> Vec<Source> {
    sources("src").into_iter().chain(sources("tests")).collect()
}

fn sources(folder: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    collect(&root().join(folder), &mut paths);
    paths.sort();
    let sources: Vec<Source> = paths
        .into_iter()
        .map(|path| Source {
            path: path
                .strip_prefix(root())
                .expect("inside the package")
                .to_string_lossy()
                .replace('\\', "/"),
            text: fs::read_to_string(&path).expect("a readable source"),
        })
        .collect();
    assert!(!sources.is_empty(), "no sources in {folder}");
    sources
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "node_modules") {
            collect(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push(path);
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn guarantees_name_only_tests_that_exist() {
    let page = fs::read_to_string(root().join("docs/guarantees.md")).expect("docs/guarantees.md");
    let code: String = all_sources()
        .into_iter()
        .map(|source| source.text)
        .collect();
    let names: BTreeSet<_> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|path| path.rsplit("::").next())
        .filter(|name| name.matches('_').count() > 3 && !name.contains('…'))
        .collect();
    assert!(names.len() > 40, "only {} are named", names.len());
    let gone: Vec<_> = names
        .into_iter()
        .filter(|name| !code.contains(&format!("fn {name}(")))
        .collect();
    assert!(gone.is_empty(), "no such tests: {gone:#?}");
}

/// Allowed raw comparisons of ids: they are no users' ids, they are compared as users' ids, or they
/// are byte-exact on purpose.
const COMPARED: [&str; 7] = [
    "Phase::Asked(by) | Phase::OutcomeUnknown(by) if by == request",
    "approvers.owner == Some(false)",
    "*owner == engine.replica",
    "*user != caller.user_id",
    "record.user_id == user.as_str()",
    "vote.by == LOCAL",
    "k.user_id = $2 and k.path = $3",
];

/// Lines outside of tests where a user's id is compared other than by `task/user.rs`.
fn raw_comparisons(text: &str) -> Vec<String> {
    let name = r"(user_id|by|editor|owner|user)\b";
    let raw = format!(
        r"\b{name}\s*(==|!=)|(==|!=)\s*[&*]*(\w+\.)*{name}[^(]|\b(user_id|name|spelling) = \$"
    );
    let raw = regex::Regex::new(&raw).expect("a pattern");
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("//") && raw.is_match(&format!("{line} ")));
    lines
        .filter(|line| !COMPARED.iter().any(|known| line.contains(known)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn user_ids_are_never_compared_byte_by_byte() {
    let mut wrong = Vec::new();
    for Source { path, text } in sources("src") {
        let of_tests = path
            .rsplit('/')
            .next()
            .is_some_and(|file| file.starts_with("tests"))
            || path.contains("/tests/");
        if !of_tests && path != "src/store/users.rs" {
            wrong.extend(
                raw_comparisons(&text)
                    .into_iter()
                    .map(|line| format!("{path}: {line}")),
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "user ids are compared by task/user.rs (`UserId::is`, `UserIds::same`):\n{}",
        wrong.join("\n")
    );
    for line in [
        "if vote.by == user {",
        "a != row.user_id",
        "row.owner == caller.user_id",
        "where user_id = $2",
    ] {
        assert_eq!(raw_comparisons(line), [line]);
    }
    for line in [
        "let user = a == b;",
        "caller.user_id.is(&vote.by)",
        "// a.by == b",
        "user.key() == other.key()",
    ] {
        assert!(raw_comparisons(line).is_empty(), "{line}");
    }
}
