//! Checks that few files of `engine` call each other in a circle. `--nocapture` shows the circles.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::tokens;
use super::{Source, sources};

/// Returns the sets of files of `engine` that all reach each other by calls. A call counts if only
/// one file of the product declares the name: otherwise, the name does not tell the function.
fn circles(sources: &[Source]) -> BTreeSet<Vec<&str>> {
    let (mut declared, mut called) = (BTreeMap::<_, BTreeSet<&str>>::new(), Vec::new());
    for source in sources.iter().filter(|source| !source.is_of_tests()) {
        let path = source.path.as_str();
        let code = source.text.split("#[cfg(test)]\nmod tests {").next();
        for window in tokens(code.unwrap_or_default()).windows(3) {
            if let [before, name, after] = window {
                if before.text == "fn" {
                    declared.entry(name.text.clone()).or_default().insert(path);
                } else if after.text == "(" && path.starts_with("src/engine/") {
                    called.push((path, name.text.clone()));
                }
            }
        }
    }
    let mut reached = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (path, name) in called {
        let files = declared.get(&name).filter(|files| files.len() == 1);
        let files = files.into_iter().flatten();
        reached.entry(path).or_default().extend(files);
    }
    for file in reached.keys().copied().collect::<Vec<_>>() {
        let further = reached.get(file).cloned().unwrap_or_default();
        for files in reached.values_mut().filter(|files| files.contains(file)) {
            files.extend(&further);
        }
    }
    let circles = reached.iter().map(|(file, files)| {
        let back = |other: &&&str| reached.get(**other).is_some_and(|it| it.contains(file));
        files.iter().filter(back).copied().collect::<Vec<_>>()
    });
    circles.filter(|circle| circle.len() > 1).collect()
}

#[test]
fn at_most_four_files_of_the_engine_call_each_other_in_a_circle() {
    let product = sources("src");
    let found = circles(&product);
    println!("{found:#?}");
    assert!(found.iter().all(|circle| circle.len() <= 4), "{found:#?}");
    let texts =
        "fn a() { b() }|fn b() { c(e()) }|fn c() { a() }|fn d() { e() } fn e() {}|fn e() { d() }";
    let source = |(text, name): (&str, char)| Source {
        path: format!("src/engine/{name}"),
        text: text.to_owned(),
    };
    let files: Vec<_> = texts.split('|').zip('a'..).map(source).collect();
    let circle = ["src/engine/a", "src/engine/b", "src/engine/c"];
    assert_eq!(circles(&files), BTreeSet::from([circle.to_vec()]));
}
