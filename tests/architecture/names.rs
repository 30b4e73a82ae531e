//! Checks names: no file and no type has a vague name, and no name is a retired word of
//! `docs/glossary.md`.

use std::collections::BTreeSet;
use std::fs;

use super::tokens::{Place, tokens};
use super::{Source, all_sources, root};

const VAGUE_FILES: [&str; 6] = ["utils", "util", "common", "types", "helpers", "misc"];

const VAGUE_ENDINGS: [&str; 4] = ["Manager", "Service", "Handler", "Helper"];

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
    let words: BTreeSet<String> = ["Live", "eyes"].map(str::to_owned).into();
    assert_eq!(
        declared_names("struct Live; mod eyes; fn live() { let eyes = 1; }", &words),
        ["Live", "eyes"]
    );
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

/// Returns the names of the types, functions and modules declared in `text` that are among `names`.
fn declared_names(text: &str, names: &BTreeSet<String>) -> Vec<String> {
    let tokens = tokens(text);
    let declares = |word: &str| ["struct", "enum", "trait", "type", "fn", "mod"].contains(&word);
    let pairs = tokens.iter().zip(tokens.iter().skip(1));
    pairs
        .filter(|(keyword, name)| declares(&keyword.text) && names.contains(&name.text))
        .map(|(_, name)| name.text.clone())
        .collect()
}
