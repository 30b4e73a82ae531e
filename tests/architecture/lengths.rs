//! Checks limits of length, in lines: 500 for a file (200 for a core file), 60 for a function of
//! the product, and 100 for a function of the tests.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::tokens::{Place, tokens};
use super::{Source, all_sources};

const LONGEST_FILE: usize = 500;

const LONGEST_CORE_FILE: usize = 200;

const CORE_FILES: [&str; 3] = [
    "src/task/step.rs",
    "src/engine/driver/mod.rs",
    "src/http/mod.rs",
];
const LONGEST_FUNCTION: usize = 60;
const LONGEST_TEST_FUNCTION: usize = 100;

#[test]
fn readme_is_shorter_than_150_lines() {
    let readme = std::fs::read_to_string(super::root().join("README.md")).expect("README.md");
    let lines = readme.lines().count();
    assert!(lines < 150, "README.md has {lines} lines");
}

fn long_files(sources: &[Source]) -> Vec<String> {
    let longest = |path: &str| {
        if CORE_FILES.contains(&path) {
            LONGEST_CORE_FILE
        } else {
            LONGEST_FILE
        }
    };
    let long = sources
        .iter()
        .map(|source| {
            (
                &source.path,
                source.text.lines().count(),
                longest(&source.path),
            )
        })
        .filter(|(_, lines, most)| lines > most);
    long.map(|(path, lines, most)| format!("{path}: {lines} lines, {most} at most"))
        .collect()
}

/// A function as rustfmt lays it out, from its signature to its closing brace.
struct Function<'t> {
    name: &'t str,
    /// The index of the signature's line, from 0.
    at: usize,
    lines: usize,
}

static SIGNATURE: LazyLock<Regex> = LazyLock::new(|| {
    let signature =
        r#"^(\s*)(pub(\([^)]*\))? )?(default )?(const )?(async )?(unsafe )?(extern "C" )?fn (\w+)"#;
    Regex::new(signature).expect("a pattern")
});

fn functions(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<_> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(parts) = SIGNATURE.captures(line) else {
            continue;
        };
        let indent = parts.get(1).map_or("", |it| it.as_str());
        let name = parts.get(9).map_or("", |it| it.as_str());
        let mut has_body = false;
        let last = lines.iter().skip(at).position(|line| {
            has_body |= line.ends_with(['{', '}']);
            let closes = line
                .strip_prefix(indent)
                .is_some_and(|it| it.starts_with('}'));
            closes
                || (has_body && line.contains("fn ") && line.ends_with('}'))
                || (!has_body && line.ends_with(';'))
        });
        let lines = last.unwrap_or(lines.len() - at - 1) + 1;
        found.push(Function { name, at, lines });
    }
    found
}

/// Returns the modules of a file that are compiled for tests (`#[cfg(test)]`). For an inline
/// module, also returns the numbers of the module's first and last line.
fn test_modules(text: &str) -> Vec<(String, Option<(usize, usize)>)> {
    if !text.contains("#[cfg(test)]") {
        return Vec::new();
    }
    let tokens = tokens(text);
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
        if !attribute
            .into_iter()
            .zip(at..)
            .all(|(word, at)| text(at) == word)
        {
            continue;
        }
        let mut next = at + 7;
        while text(next) == "#" {
            while text(next) != "]" && next < tokens.len() {
                next += 1;
            }
            next += 1;
        }
        while matches!(text(next), "pub" | "(" | "crate" | "super" | ")") {
            next += 1;
        }
        if text(next) != "mod" {
            continue;
        }
        let (name, first) = (text(next + 1).to_owned(), tokens[next].line);
        if text(next + 2) == ";" {
            found.push((name, None));
            continue;
        }
        let mut depth = 0_usize;
        let end = tokens[next + 2..].iter().find(|token| {
            depth += usize::from(token.text == "{");
            depth -= usize::from(token.text == "}");
            depth == 0
        });
        found.push((name, end.map(|end| (first, end.line))));
    }
    found
}

fn long_functions(sources: &[Source]) -> Vec<String> {
    let mut only_tests: BTreeSet<Vec<String>> = BTreeSet::new();
    let modules: Vec<_> = sources.iter().map(|it| test_modules(&it.text)).collect();
    for (source, modules) in sources.iter().zip(&modules) {
        let module = Place::of_file(&source.path).module;
        for (name, inline) in modules {
            if inline.is_none() && source.path.starts_with("src/") {
                only_tests.insert(module.iter().chain([name]).cloned().collect());
            }
        }
    }
    let mut long = Vec::new();
    for (Source { path, text }, modules) in sources.iter().zip(modules) {
        let module = Place::of_file(path).module;
        let of_tests = path.starts_with("tests/")
            || (1..=module.len()).any(|end| only_tests.contains(&module[..end]));
        let inline: Vec<_> = modules.into_iter().filter_map(|(_, lines)| lines).collect();
        for Function { name, at, lines } in functions(text) {
            let line = at + 1;
            let is_test = of_tests
                || inline
                    .iter()
                    .any(|(first, last)| (*first..=*last).contains(&line));
            let most = if is_test {
                LONGEST_TEST_FUNCTION
            } else {
                LONGEST_FUNCTION
            };
            if lines > most {
                long.push(format!("{path}: fn {name}: {lines} lines, {most} at most"));
            }
        }
    }
    long
}

#[test]
fn no_file_is_too_long() {
    let wrong = long_files(&all_sources());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_function_is_too_long() {
    let wrong = long_functions(&all_sources());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn source(path: &str, text: String) -> Source {
    Source {
        path: path.to_owned(),
        text,
    }
}

#[test]
fn file_over_the_limit_is_found() {
    let sources = [
        source("src/a.rs", "\n".repeat(500)),
        source("src/b.rs", "\n".repeat(501)),
        source("tests/c.rs", "\n".repeat(501)),
        source("src/task/step.rs", "\n".repeat(201)),
    ];
    assert_eq!(
        long_files(&sources),
        [
            "src/b.rs: 501 lines, 500 at most",
            "tests/c.rs: 501 lines, 500 at most",
            "src/task/step.rs: 201 lines, 200 at most"
        ]
    );
}

#[test]
fn function_over_the_limit_is_found_in_product_and_test_code() {
    let function = |indent: &str, name: &str, lines: usize| {
        let body = format!("{indent}    x();\n").repeat(lines - 2);
        format!("{indent}pub async fn {name}() {{\n{body}{indent}}}\n")
    };
    let inline = format!(
        "{}#[cfg(test)]\n#[expect(x)]\nmod tests {{\n{}{}}}\n{}",
        function("", "long", 61),
        function("    ", "tested", 61),
        function("    ", "untested", 101),
        function("", "after", 61)
    );
    let sources = [
        source(
            "src/a.rs",
            function("", "short", 60) + "trait T {\n    fn f();\n}\n",
        ),
        source("src/b.rs", inline),
        source("src/c.rs", "#[cfg(test)]\nmod d;\nmod e;\n".to_owned()),
        source(
            "src/c/d/f.rs",
            function("", "checked", 100) + &function("", "endless", 101),
        ),
        source("src/c/e.rs", function("    ", "inner", 61)),
        source(
            "tests/g.rs",
            function("", "checked", 100) + &function("    ", "macro", 101),
        ),
    ];
    assert_eq!(
        long_functions(&sources),
        [
            "src/b.rs: fn long: 61 lines, 60 at most",
            "src/b.rs: fn untested: 101 lines, 100 at most",
            "src/b.rs: fn after: 61 lines, 60 at most",
            "src/c/d/f.rs: fn endless: 101 lines, 100 at most",
            "src/c/e.rs: fn inner: 61 lines, 60 at most",
            "tests/g.rs: fn macro: 101 lines, 100 at most"
        ]
    );
}
