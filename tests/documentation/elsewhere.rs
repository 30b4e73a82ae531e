//! Lists the commands of the shell blocks that are marked `sh no-run`. `commands.rs` does not run
//! these blocks. Another test runs the commands in `ELSEWHERE`, a test of this file runs those in
//! `HERE`, and no test runs those in `NEVER`.
//!
//! A test fails if a command is not in exactly one list, or if a page no longer has a listed
//! command. A test also fails if a file in `ELSEWHERE` does not run the program of its command.

use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use super::commands::commands;
use super::{Block, blocks, pages, read, root};

/// Commands that another test runs: the page, the beginning of the command, and the file that runs
/// the same command with other arguments. For a `curl` command, a file in Rust sends the HTTP
/// request itself.
const ELSEWHERE: [(&str, &str, &str); 22] = [
    // `tests/mcp/readme.py` runs the text of this block.
    ("README.md", "holdpoint mcp lock", "tests/mcp/readme.py"),
    ("README.md", "holdpoint serve", "tests/mcp/readme.py"),
    ("README.md", "curl -s", "tests/mcp/readme.py"),
    // The room, the hosts and the receivers in these commands do not exist. The listed files use
    // servers on loopback.
    (
        "docs/chat.md",
        "holdpoint notify",
        "tests/operator/notify_rooms.rs",
    ),
    (
        "docs/mail.md",
        "holdpoint check",
        "tests/operator/notify_command.rs",
    ),
    (
        "docs/mail.md",
        "holdpoint notify",
        "tests/clients/python/mail.py",
    ),
    (
        "docs/webhooks.md",
        "holdpoint notify",
        "tests/operator/notify_command.rs",
    ),
    (
        "docs/webhooks.md",
        "curl -s \"$HOLDPOINT/v1/deliveries?",
        "tests/api/deliveries.rs",
    ),
    (
        "docs/webhooks.md",
        "curl -s \"$HOLDPOINT/v1/deliveries/resend",
        "tests/api/deliveries.rs",
    ),
    (
        "docs/mcp.md",
        "holdpoint mcp lock",
        "tests/operator/mcp_review.rs",
    ),
    ("docs/mcp.md", "holdpoint serve", "tests/mcp/readme.py"),
    (
        "docs/deployment.md",
        "holdpoint serve",
        "tests/chaos/restored.rs",
    ),
    (
        "docs/deployment.md",
        "HOLDPOINT_DATABASE__URL=",
        "tests/operator/commands.rs",
    ),
    // `tests/operator/backups.rs` runs the text of these blocks.
    (
        "docs/operations.md",
        "pg_dump ",
        "tests/operator/backups.rs",
    ),
    (
        "docs/operations.md",
        "sqlite3 ",
        "tests/operator/backups.rs",
    ),
    (
        "docs/operations.md",
        "pg_restore ",
        "tests/operator/backups.rs",
    ),
    ("docs/operations.md", "mkdir ", "tests/operator/backups.rs"),
    // `scripts/gate_examples` runs these examples with scripted models in place of the models that
    // the examples name.
    ("docs/gate.md", "holdpoint serve", "scripts/gate_examples"),
    ("docs/gate.md", "pip install", "tests/support/packages.sh"),
    ("docs/gate.md", "npm install", "tests/support/packages.sh"),
    (
        "docs/gate.md",
        "python -c 'from langchain_agent",
        "scripts/gate_examples",
    ),
    (
        "docs/gate.md",
        "python -c 'from agents",
        "scripts/gate_examples",
    ),
];

/// Commands that a test of this file runs, each block in a folder of its own: the page, and the
/// beginning of the command.
const HERE: [(&str, &str); 8] = [
    ("docs/webhooks.md", "echo \"whsec_"),
    ("docs/deployment.md", "printf 'DEMO_KEY="),
    ("docs/deployment.md", ". ./.env"),
    ("docs/gate.md", "export AGENT_KEY="),
    ("docs/gate.md", "echo \"agent: "),
    ("docs/gate.md", "cp examples/gate/"),
    ("docs/gate.md", "export HOLDPOINT_KEY="),
    ("docs/gate.md", "echo 'import { ask }"),
];

/// Commands that no test runs: the page, the beginning of the command, and the reason.
const NEVER: [(&str, &str, &str); 7] = [
    (
        "docs/deployment.md",
        "sudo install",
        "It writes to the system's folders as root. `tests/packaging.rs` reads the files.",
    ),
    (
        "docs/deployment.md",
        "echo OPENAI_API_KEY=",
        "It writes to the system's folders as root.",
    ),
    (
        "docs/deployment.md",
        "sudo systemctl",
        "It needs root and a running systemd. `tests/packaging.rs` reads the unit.",
    ),
    (
        "docs/deployment.md",
        "docker compose",
        "It needs Docker and images from a registry. `tests/packaging.rs` reads the files.",
    ),
    (
        "docs/deployment.md",
        "curl -s localhost:8080",
        "It asks the service that Docker Compose starts.",
    ),
    (
        "docs/gate.md",
        "npm pkg set",
        "`scripts/gate_examples` writes the same member to `package.json` by itself.",
    ),
    (
        "docs/gate.md",
        "npx tsx",
        "The tests do not install tsx. `scripts/gate_examples` compiles the same files with tsc.",
    ),
];

/// The commands that `commands.rs` does not run, each with its block.
fn left_out() -> Vec<(Block, Vec<String>)> {
    let blocks = pages().into_iter().flat_map(|page| blocks(&page));
    blocks
        .filter(Block::is_no_run)
        .map(|block| {
            let commands = commands(&block.text);
            (block, commands)
        })
        .collect()
}

/// Returns words that show that a file runs `command`: such a file contains at least one of them.
/// - For `holdpoint`, the word is the subcommand, because the tests start the program by its path.
/// - For `curl`, the words are `curl` and the path of the URL.
/// - For any other program, the word is the program's name.
fn evidence(command: &str) -> Vec<&str> {
    let mut words = command
        .split_whitespace()
        .skip_while(|word| word.contains('='));
    match words.next().unwrap_or_default() {
        "holdpoint" => words.find(|word| *word != "mcp").into_iter().collect(),
        "curl" => {
            let url = words.find_map(|word| word.find("/v1/").map(|at| &word[at..]));
            let path = url.and_then(|url| url.split(['?', '"']).next());
            path.into_iter().chain(["curl"]).collect()
        }
        program => vec![program],
    }
}

/// Returns whether `text` contains the word, with no letter, digit or `_` beside it.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |beside: char| beside.is_alphanumeric() || beside == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

#[test]
fn every_command_that_is_not_run_with_its_page_is_in_one_list() {
    let elsewhere = ELSEWHERE.iter().map(|(page, begins, _)| (*page, *begins));
    let never = NEVER.iter().map(|(page, begins, _)| (*page, *begins));
    let listed: Vec<_> = elsewhere.chain(HERE).chain(never).collect();
    let mut used = vec![false; listed.len()];
    for (block, commands) in left_out() {
        for command in commands {
            let is_listed =
                |(page, begins): (&str, &str)| block.page == page && command.starts_with(begins);
            let entries: Vec<usize> = (0..listed.len())
                .filter(|entry| is_listed(listed[*entry]))
                .collect();
            let [entry] = entries[..] else {
                panic!(
                    "{}: {} lists of tests/documentation/elsewhere.rs have `{command}`",
                    block.place(),
                    entries.len()
                );
            };
            used[entry] = true;
        }
    }
    for (entry, is_used) in listed.iter().zip(used) {
        assert!(is_used, "the page has no such command any more: {entry:?}");
    }
}

#[test]
fn file_that_runs_a_command_elsewhere_contains_its_program() {
    for (block, commands) in left_out() {
        for command in commands {
            let entry = ELSEWHERE
                .iter()
                .find(|(page, begins, _)| block.page == *page && command.starts_with(begins));
            let Some((_, _, file)) = entry else { continue };
            let (text, words) = (read(file), evidence(&command));
            assert!(
                words.iter().any(|word| has_word(&text, word)),
                "{}: {file} has none of {words:?}",
                block.place()
            );
        }
    }
    assert_eq!(evidence("A=b holdpoint migrate --config c"), ["migrate"]);
    assert_eq!(evidence("holdpoint mcp lock --yes"), ["lock"]);
    assert_eq!(evidence("curl -s \"$H/v1/me?a=b\""), ["/v1/me", "curl"]);
    assert!(has_word("[\"serve\"]", "serve") && !has_word("served server", "serve"));
}

#[test]
fn commands_that_need_no_service_run_as_the_page_has_them() {
    for (block, commands) in left_out() {
        let script: Vec<String> = commands
            .into_iter()
            .filter(|command| {
                HERE.iter()
                    .any(|(page, begins)| block.page == *page && command.starts_with(begins))
            })
            .collect();
        let folder = tempfile::tempdir().expect("a folder");
        symlink(root().join("examples"), folder.path().join("examples")).expect("a link");
        let done = Command::new("sh")
            .args(["-euc", &script.join("\n")])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()
            .expect("a shell");
        let complaint = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success() && complaint.is_empty(),
            "{}: {complaint}",
            block.place()
        );
    }
}

#[test]
fn reason_stands_beside_every_command_that_no_test_runs() {
    for (page, begins, reason) in NEVER {
        assert!(reason.ends_with('.'), "{page}: {begins}: {reason}");
    }
}
