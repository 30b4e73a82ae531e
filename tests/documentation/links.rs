//! Checks that each link inside the repository leads to an existing file and, if the link has an
//! anchor, to a heading of that file.

use std::fs;
use std::path::Path;

use super::root;

/// The pages outside of `docs` whose links are checked.
const OTHER_PAGES: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "examples/refunds/README.md",
    "packaging/README.md",
];

#[test]
fn links_of_the_documentation_resolve() {
    let mut pages: Vec<_> = OTHER_PAGES.map(|page| root().join(page)).to_vec();
    for folder in ["docs", "docs/decisions", "docs/problems"] {
        let entries = fs::read_dir(root().join(folder)).expect("a folder");
        let files = entries.map(|entry| entry.expect("an entry").path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    let mut broken = Vec::new();
    for page in pages {
        let text = prose(&fs::read_to_string(&page).expect("a page"));
        for target in targets(&text) {
            if let Some(reason) = problem_of(&page, target) {
                broken.push(format!("{}: {target}: {reason}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Returns the page without its fenced blocks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the targets of links and pictures, except web addresses.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let end_at = |end| move |rest: &'_ str| rest.find(end);
    let links = text
        .split("](")
        .skip(1)
        .filter_map(move |rest| rest.get(..end_at(')')(rest)?));
    let pictures = text
        .split("src=\"")
        .skip(1)
        .filter_map(move |rest| rest.get(..end_at('"')(rest)?));
    links
        .chain(pictures)
        .filter(|target| !target.contains("://") && !target.contains([' ', '\n']))
}

/// Returns the reason why a link of a page leads nowhere, or `None` if its target exists.
fn problem_of(page: &Path, target: &str) -> Option<&'static str> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() {
        page.to_owned()
    } else {
        page.parent()?.join(path)
    };
    if !file.exists() {
        return Some("there is no such file");
    }
    if anchor.is_empty() {
        return None;
    }
    let text = prose(&fs::read_to_string(&file).ok()?);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let found = headings
        .map(|line| slug(line.trim_start_matches('#').trim()))
        .any(|heading| heading == anchor);
    (!found).then_some("the page has no such heading")
}

/// Returns the anchor that GitHub gives to a heading.
fn slug(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|character| character.is_alphanumeric() || " -_".contains(*character));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}
