//! Checks the source files: each opens with a doc comment, is declared by a `mod`, and has no
//! marker of unfinished work.

use std::collections::BTreeSet;

use super::tokens::{Place, tokens};
use super::{Source, all_sources};

const LEFT_OPEN: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

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

/// Returns the paths of the files that no parent file declares.
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

#[test]
fn every_file_opens_with_its_doc_comment() {
    let sources = all_sources();
    let wrong: Vec<_> = sources
        .iter()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| &source.path)
        .collect();
    assert!(wrong.is_empty(), "no doc comment at the top: {wrong:#?}");
}
