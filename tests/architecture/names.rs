//! Checks names: no file and no type has a vague name, no declared name is a retired word of
//! `docs/glossary.md`, and no two rooms declare visible types of the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::tokens::{Place, Token, tokens};
use super::{Source, all_sources, root, sources};

const VAGUE_FILES: [&str; 6] = ["utils", "util", "common", "types", "helpers", "misc"];

const VAGUE_ENDINGS: [&str; 4] = ["Manager", "Service", "Handler", "Helper"];

/// The names that visible types of several rooms may have. Code names the `Settings` of a room
/// together with the room, as in `store::Settings`.
const SHARED_NAMES: [&str; 1] = ["Settings"];

/// The retired words that fields may have, because a field of a record has its column's name.
const COLUMNS: [&str; 1] = ["doubted_at"];

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

fn vague_types(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    tokens
        .iter()
        .zip(tokens.iter().skip(1))
        .filter(|(keyword, _)| {
            ["struct", "enum", "trait", "type", "union"].contains(&keyword.text.as_str())
        })
        // An associated type has its name from the trait, so the name may be vague.
        .filter(|(keyword, name)| {
            keyword.text != "type" || !VAGUE_ENDINGS.contains(&name.text.as_str())
        })
        // `Service` in `tool/human.rs` is allowed, because it is named after an argument of
        // `request_credentials`.
        .filter(|(_, name)| name.text != "Service")
        .filter(|(_, name)| {
            VAGUE_ENDINGS
                .iter()
                .any(|ending| name.text.ends_with(ending))
        })
        .map(|(_, name)| name.text.clone())
        .collect()
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
}

#[test]
fn retired_word_is_found_as_the_name_of_every_kind_of_item_and_of_a_member() {
    let words = ["Live", "eyes", "doubted_at"];
    let words: BTreeSet<String> = words.map(str::to_owned).into();
    let found = |text: &str| declared_names(text, &words);
    for text in [
        "pub(crate) struct Live<'a>(&'a str);",
        "enum Live { Other }",
        "union Live { other: u8 }",
        "trait Live {}",
        "impl Other { type Live = u8; }",
        "pub const Live: u8 = 1;",
        "static Live: u8 = 1;",
        "enum Other { #[default] None, Live }",
        "enum Other { Live(u8) }",
        "enum Other { #[serde(rename = \"live\")] Live { at: u8 }, None }",
        "enum Other { First = 1, Live = 2 }",
    ] {
        assert_eq!(found(text), ["Live"], "{text}");
    }
    for text in [
        "mod eyes;",
        "impl Other { const fn eyes(&self) {} }",
        "struct Other<T> where T: Fn(u8) { pub eyes: T }",
        "union Other { eyes: u8 }",
        "enum Other { None, Some { #[serde(default)] eyes: [u8; 4] } }",
        "record! { struct Other { doubted_at: u8, pub(super) eyes: u8 => flatten } }",
    ] {
        assert_eq!(found(text), ["eyes"], "{text}");
    }
    assert_eq!(found("fn doubted_at() {}"), ["doubted_at"]);
    for text in [
        "fn live(eyes: u8) { let eyes = Other { eyes: eyes::<Live> }; Other::Live }",
        "struct Other([u8; 4]); fn other() { let eyes: u8 = 1; }",
        "enum Other { Some(Live), None { at: Live } }",
        "struct Other { at: Live, after: eyes::At }",
    ] {
        assert!(found(text).is_empty(), "{text}");
    }
}

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

/// Returns the names that `text` declares and that are among `names`: those of types, traits,
/// functions, constants, statics and modules, and of the fields and variants of types.
fn declared_names(text: &str, names: &BTreeSet<String>) -> Vec<String> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    for (at, keyword) in tokens.iter().enumerate() {
        let members = match keyword.text.as_str() {
            "struct" | "enum" | "union" => members(&tokens[at..]),
            "trait" | "type" | "fn" | "mod" | "const" | "static" => Vec::new(),
            _ => continue,
        };
        let members = members.into_iter().filter(|name| !COLUMNS.contains(name));
        let name = tokens.get(at + 1).map(|token| token.text.as_str());
        found.extend(name.into_iter().chain(members).map(str::to_owned));
    }
    found.retain(|name| names.contains(name));
    found
}

/// Returns the names of the fields and variants of a type whose declaration begins with `tokens`.
fn members(tokens: &[Token]) -> Vec<&str> {
    let is_enum = tokens.first().is_some_and(|token| token.text == "enum");
    let words: Vec<&str> = tokens.iter().map(|token| token.text.as_str()).collect();
    // If the first of `{` and `;` is a semicolon, the type has no block.
    let body = words.iter().position(|word| ["{", ";"].contains(word));
    let Some(body) = body.filter(|at| words[*at] == "{") else {
        return Vec::new();
    };
    let (mut found, mut depth) = (Vec::new(), 0_usize);
    for around in words[body - 1..].windows(3) {
        let [before, word, after] = [around[0], around[1], around[2]];
        match word {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {
                // An attribute, which ends with `]`, may stand before a variant.
                let is_variant = is_enum && depth == 1 && ["{", ",", "]"].contains(&before);
                if is_variant || after == ":" {
                    found.push(word);
                }
            }
        }
        if depth == 0 {
            break;
        }
    }
    found
}

#[test]
fn visible_type_name_stands_in_one_room_only() {
    let wrong = names_in_two_rooms(&sources("src"));
    assert!(
        wrong.is_empty(),
        "types of one name in two rooms get different names:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn visible_type_name_in_two_rooms_is_found() {
    let source = |path: &str, text: &str| Source {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let sources = [
        source(
            "src/task/item.rs",
            "pub struct Item(pub u8); pub struct Settings; struct Own; // pub struct Page;",
        ),
        source(
            "src/store/mod.rs",
            "pub(in crate::store) enum Item {} pub struct Settings;",
        ),
        source(
            "src/store/page.rs",
            "pub(super) trait Page {} impl Own for u8 { type Row = u8; }",
        ),
        source(
            "src/store/own.rs",
            "pub struct Row; pub(super) trait Page {}",
        ),
        source("src/http/wire/page.rs", "pub(crate) type Page = u8;"),
        source("src/http/api/own.rs", "pub struct Own; pub struct Link;"),
        source("src/http/pages/link.rs", "pub(crate) union Link {}"),
        source("src/http/wire/tests.rs", "pub struct Row;"),
    ];
    assert_eq!(
        names_in_two_rooms(&sources),
        [
            "Item: store, task",
            "Link: http::api, http::pages",
            "Page: http::wire, store"
        ]
    );
}

/// Returns each name that visible types of several rooms have, with these rooms.
fn names_in_two_rooms(sources: &[Source]) -> Vec<String> {
    let mut rooms_by_name: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_of_tests()) {
        for name in visible_types(&source.text) {
            let rooms = rooms_by_name.entry(name).or_default();
            rooms.insert(room_of(&source.path));
        }
    }
    rooms_by_name
        .into_iter()
        .filter(|(name, rooms)| rooms.len() > 1 && !SHARED_NAMES.contains(&name.as_str()))
        .map(|(name, rooms)| {
            let rooms: Vec<String> = rooms.into_iter().collect();
            format!("{name}: {}", rooms.join(", "))
        })
        .collect()
}

/// Returns the room of a file: a top-level module of `src`, or a module of `src/http`.
fn room_of(path: &str) -> String {
    let mut module = Place::of_file(path).module;
    let is_http = module.first().is_some_and(|name| name == "http");
    module.truncate(if is_http { 2 } else { 1 });
    module.join("::")
}

/// Returns the names of the types that `text` declares with `pub` or `pub(…)`. Leaves out private
/// types. Also leaves out associated types, because a trait gives them their names.
fn visible_types(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        if word(at) != "pub" {
            continue;
        }
        let mut next = at + 1;
        if word(next) == "(" {
            while !matches!(word(next), ")" | "") {
                next += 1;
            }
            next += 1;
        }
        let name = word(next + 1);
        let is_type = ["struct", "enum", "trait", "type", "union"].contains(&word(next));
        if is_type && name.starts_with(char::is_alphabetic) {
            found.push(name.to_owned());
        }
    }
    found
}
