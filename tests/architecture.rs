//! Tests of rules for the code that the compiler does not check: imports, calls, names, files,
//! lengths, and the tests that `docs/guarantees.md` names.

mod call_circles;
mod files;
mod guarantees;
mod http_rooms;
mod import_table;
mod kinds;
mod lengths;
mod log_messages;
mod names;
mod permissions;
mod tokens;
mod user_ids;

use std::fs;
use std::path::{Path, PathBuf};

struct Source {
    /// The file's path, relative to the package's root, with `/` between folders.
    path: String,
    text: String,
}

impl Source {
    fn is_of_tests(&self) -> bool {
        let file = self.path.rsplit('/').next();
        file.is_some_and(|file| file.starts_with("tests")) || self.path.contains("/tests/")
    }
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
