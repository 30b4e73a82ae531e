//! `docs/guarantees.md` names only tests that exist.

use std::collections::BTreeSet;
use std::fs;

use super::{all_sources, root};

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
