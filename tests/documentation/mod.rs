//! Tests of the documentation: its commands run, its configurations load, and its links lead to
//! existing pages. Every fenced block must have a language that is tested, or that is listed as
//! untestable.

mod alerts;
mod commands;
mod configurations;
mod elsewhere;
mod links;

use std::fs;
use std::path::{Path, PathBuf};

struct Block {
    /// The path of the block's page in the repository.
    page: String,
    line: usize,
    /// The first word after the opening fence.
    language: String,
    /// The words after the language in the line of the opening fence.
    options: String,
    text: String,
}

impl Block {
    fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }

    fn is_shell(&self) -> bool {
        ["sh", "bash", "console"].contains(&self.language.as_str())
    }

    /// Returns whether the shell block needs more than this machine, for example a cluster, Docker
    /// or a remote database. `elsewhere.rs` lists the tests of such commands.
    fn is_no_run(&self) -> bool {
        self.options == "no-run"
    }

    /// Returns the name of the YAML file that the block's first line gives in a comment.
    fn file_name(&self) -> Option<&str> {
        let name = self.text.lines().next()?.strip_prefix("# ")?;
        (Path::new(name).extension() == Some("yaml".as_ref()) && !name.contains(' '))
            .then_some(name)
    }
}

/// Returns the pages whose blocks are tested: the README and `docs/*.md`.
/// (`operator/refunds_example.rs` runs the commands of `examples/refunds`.)
fn pages() -> Vec<String> {
    let mut pages: Vec<String> = fs::read_dir(root().join("docs"))
        .expect("the folder docs")
        .map(|entry| entry.expect("an entry").file_name())
        .filter_map(|name| name.into_string().ok())
        .filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"))
        .map(|name| format!("docs/{name}"))
        .collect();
    pages.push("README.md".to_owned());
    pages.sort();
    pages
}

/// Returns the fenced blocks of a page, in order, without their indentation.
fn blocks(page: &str) -> Vec<Block> {
    let text = read(page);
    let mut lines = text.lines().enumerate();
    let mut blocks = Vec::new();
    while let Some((at, opening)) = lines.next() {
        let Some(info) = opening.trim_start().strip_prefix("```") else {
            continue;
        };
        let indentation = opening.len() - opening.trim_start().len();
        let mut body = String::new();
        for (_, line) in lines.by_ref() {
            if line.trim() == "```" {
                break;
            }
            body.push_str(line.get(indentation..).unwrap_or_default());
            body.push('\n');
        }
        let (language, options) = info.split_once(' ').unwrap_or((info, ""));
        blocks.push(Block {
            page: page.to_owned(),
            line: at + 1,
            language: language.to_owned(),
            options: options.to_owned(),
            text: body,
        });
    }
    blocks
}

/// Returns the commands of the page's shell blocks that need more than this machine.
pub fn commands_left_out(page: &str) -> Vec<String> {
    let left_out = blocks(page).into_iter().filter(Block::is_no_run);
    left_out
        .flat_map(|block| commands::commands(&block.text))
        .collect()
}

/// Returns the variables that a text names as `${NAME}`, each with a value that `holdpoint check`
/// accepts.
fn variables(text: &str) -> Vec<(String, String)> {
    let names = text
        .split("${")
        .skip(1)
        .filter_map(|rest| rest.split('}').next())
        .filter(|name| !name.contains(':'));
    names
        .map(|name| {
            let value = match name {
                "SEALING_KEY" => "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=".to_owned(),
                "DATABASE_URL" => "postgres://holdpoint@localhost/holdpoint".to_owned(),
                name if name.starts_with("HOOK") => {
                    "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=".to_owned()
                }
                name if name.ends_with("_URL") || name.ends_with("_HOOK") => {
                    "http://127.0.0.1:9000".to_owned()
                }
                name => format!("{name}-0123456789abcdef"),
            };
            (name.to_owned(), value)
        })
        .collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_block_has_a_language_whose_blocks_are_tested_or_shown_only() {
    let tested = ["sh", "bash", "console", "yaml", "json", "js", "python"];
    // The blocks of these languages are not tested, because the programs that read them are not
    // installed here. `scripts/clients` compiles TypeScript clients, but not these blocks.
    let shown = ["ts", "nginx", "caddy", "sql", "text", "toml"];
    for block in pages().iter().flat_map(|page| blocks(page)) {
        let language = block.language.as_str();
        assert!(
            tested.contains(&language) || shown.contains(&language),
            "{}: a block of the language `{language}` is not tested",
            block.place()
        );
        assert!(
            block.options.is_empty() || (block.is_shell() && block.is_no_run()),
            "{}: `{}` is no mark; a block that cannot run here has `sh no-run`",
            block.place(),
            block.options
        );
    }
}
