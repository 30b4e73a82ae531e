//! `docs/guarantees.md` names only tests that exist, each at its place.

use std::collections::BTreeSet;
use std::fs;

use super::{Source, all_sources, root};

#[test]
fn guarantees_name_only_tests_that_exist() {
    let sources = all_sources();
    let paths: BTreeSet<_> = code_spans()
        .into_iter()
        .filter(|path| {
            let name = path.rsplit("::").next().unwrap_or_default();
            name.matches('_').count() > 3 && !name.contains('…')
        })
        .collect();
    assert!(paths.len() > 40, "only {} are named", paths.len());
    let gone: Vec<_> = paths
        .into_iter()
        .filter(|path| !sources.iter().any(|source| is_in(source, path)))
        .collect();
    assert!(gone.is_empty(), "no such tests: {gone:#?}");
}

#[test]
fn guarantees_name_only_modules_that_exist() {
    let sources = all_sources();
    let gone: Vec<_> = code_spans()
        .into_iter()
        .filter(|path| {
            path.contains("::")
                && path
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || "_:".contains(c))
        })
        .filter(|path| {
            let modules: Vec<_> = path.split("::").collect();
            !sources
                .iter()
                .any(|source| is_in(source, path) || is_below(source, &modules))
        })
        .collect();
    assert!(gone.is_empty(), "no such modules: {gone:#?}");
}

fn code_spans() -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/guarantees.md")).expect("docs/guarantees.md");
    page.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Whether a source contains the test at `path`, which may leave out modules.
fn is_in(source: &Source, path: &str) -> bool {
    let mut modules: Vec<_> = path.split("::").collect();
    let name = modules.pop().unwrap_or_default();
    source.text.contains(&format!("fn {name}(")) && is_below(source, &modules)
}

/// Whether each module is a part of the source's path, an inline module of the source, or a module
/// that a macro makes.
fn is_below(source: &Source, modules: &[&str]) -> bool {
    // The macros that run a test on both engines make these modules.
    let made = ["sqlite", "postgres", "on_sqlite", "on_postgres"];
    let file = source.path.trim_end_matches(".rs");
    modules.iter().all(|module| {
        file.split('/').any(|part| part == *module)
            || source.text.contains(&format!("mod {module} {{"))
            || made.contains(module)
    })
}

#[test]
fn test_under_another_module_is_not_found() {
    let source = Source {
        path: "tests/engine/queue.rs".to_owned(),
        text: "async fn tasks_wait_for_a_slot(".to_owned(),
    };
    assert!(is_in(
        &source,
        "engine::queue::sqlite::tasks_wait_for_a_slot"
    ));
    assert!(is_in(&source, "tasks_wait_for_a_slot"));
    assert!(!is_in(&source, "engine::queues::tasks_wait_for_a_slot"));
    assert!(!is_in(&source, "engine::queue::tasks_wait"));
}
