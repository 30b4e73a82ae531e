//! Checks that every test named in `docs/guarantees.md` exists under the path given there.

use std::collections::{BTreeSet, HashSet};
use std::fs;

use super::{Source, all_sources, root};

#[test]
fn guarantees_name_only_tests_that_exist() {
    let places = places();
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
        .filter(|path| !places.iter().any(|place| place.has(path)))
        .collect();
    assert!(gone.is_empty(), "no such tests: {gone:#?}");
}

#[test]
fn guarantees_name_only_modules_that_exist() {
    let places = places();
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
            !places
                .iter()
                .any(|place| place.has(path) || place.is_below(&modules))
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

/// The names of a file's functions, and the names of the modules that may contain them.
struct Place {
    functions: HashSet<String>,
    modules: HashSet<String>,
}

fn places() -> Vec<Place> {
    all_sources().iter().map(Place::of).collect()
}

impl Place {
    fn of(source: &Source) -> Self {
        let file = source.path.trim_end_matches(".rs");
        let modules = file.split('/').chain(after(&source.text, "mod ", " {"));
        Self {
            functions: after(&source.text, "fn ", "(").map(str::to_owned).collect(),
            modules: modules.map(str::to_owned).collect(),
        }
    }

    /// Returns whether this file has the test at `path`. The path need not name all modules above
    /// the test.
    fn has(&self, path: &str) -> bool {
        let mut modules: Vec<_> = path.split("::").collect();
        let name = modules.pop().unwrap_or_default();
        self.functions.contains(name) && self.is_below(&modules)
    }

    fn is_below(&self, modules: &[&str]) -> bool {
        modules.iter().all(|module| self.modules.contains(*module))
    }
}

/// Returns the names in `text` that stand between `keyword` and `end`.
fn after<'a>(text: &'a str, keyword: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(keyword).skip(1).filter_map(move |rest| {
        let name = rest
            .split(|c: char| c != '_' && !c.is_alphanumeric())
            .next()?;
        rest[name.len()..].starts_with(end).then_some(name)
    })
}

#[test]
fn test_under_another_module_is_not_found() {
    let place = Place::of(&Source {
        path: "tests/engine/queue.rs".to_owned(),
        text: "mod inner {\nasync fn tasks_wait_for_a_slot(".to_owned(),
    });
    assert!(place.has("engine::queue::tasks_wait_for_a_slot"));
    assert!(place.has("engine::queue::inner::tasks_wait_for_a_slot"));
    assert!(place.has("tasks_wait_for_a_slot"));
    assert!(!place.has("engine::queues::tasks_wait_for_a_slot"));
    assert!(!place.has("engine::queue::tasks_wait"));
}
