//! Lists the shell blocks that `commands.rs` does not run (`sh no-run`), each with the file that
//! tests the same commands or files. The test fails if the list lacks such a block, or if a listed
//! block no longer exists.

use super::{Block, blocks, pages, root};

/// For each block: its page, the beginning of its text, and the file that covers the block.
const COVERED: [(&str, &str, &str); 15] = [
    // `tests/mcp/readme.py` runs the text of this block.
    (
        "README.md",
        "holdpoint mcp lock --yes",
        "tests/mcp/readme.py",
    ),
    // The token of the room, the host of the database and the receiver in these blocks do not
    // exist. The listed files run the same commands against servers on loopback.
    (
        "docs/chat.md",
        "holdpoint notify finance-room",
        "tests/operator/notify_rooms.rs",
    ),
    (
        "docs/mail.md",
        "holdpoint check --config",
        "tests/clients/python/mail.py",
    ),
    (
        "docs/webhooks.md",
        "echo \"whsec_$(openssl",
        "tests/operator/notify_command.rs",
    ),
    (
        "docs/webhooks.md",
        "curl -s \"$HOLDPOINT/v1/deliveries",
        "tests/api/deliveries.rs",
    ),
    (
        "docs/mcp.md",
        "holdpoint mcp lock",
        "tests/operator/mcp_review.rs",
    ),
    (
        "docs/deployment.md",
        "holdpoint serve --config",
        "tests/chaos/restored.rs",
    ),
    (
        "docs/deployment.md",
        "HOLDPOINT_DATABASE__URL=",
        "tests/operator/commands.rs",
    ),
    // `tests/packaging.rs` does not run these commands, which need Docker or systemd. It reads the
    // files that the commands use.
    (
        "docs/deployment.md",
        "sudo install holdpoint",
        "tests/packaging.rs",
    ),
    (
        "docs/deployment.md",
        "printf 'DEMO_KEY=",
        "tests/packaging.rs",
    ),
    // `tests/chaos/restored.rs` tests a restored backup of Postgres. The programs `pg_dump` and
    // `sqlite3` are not tested, because they belong to the databases.
    (
        "docs/operations.md",
        "pg_dump --format custom",
        "tests/chaos/restored.rs",
    ),
    // `scripts/gate_examples` runs these examples with scripted models in place of the models that
    // the examples name.
    ("docs/gate.md", "export AGENT_KEY=", "scripts/gate_examples"),
    (
        "docs/gate.md",
        "cp examples/gate/hold.py examples/gate/langchain_agent.py",
        "scripts/gate_examples",
    ),
    (
        "docs/gate.md",
        "cp examples/gate/hold.py examples/gate/openai_agent.py",
        "scripts/gate_examples",
    ),
    (
        "docs/gate.md",
        "cp examples/gate/hold.ts",
        "scripts/gate_examples",
    ),
];

#[test]
fn every_block_that_does_not_run_here_is_covered_elsewhere() {
    let left_out: Vec<Block> = pages()
        .iter()
        .flat_map(|page| blocks(page))
        .filter(Block::is_no_run)
        .collect();
    let covers = |(page, begins, _): &(&str, &str, &str), block: &Block| {
        block.page == *page && block.text.starts_with(begins)
    };
    for block in &left_out {
        assert!(
            COVERED.iter().any(|entry| covers(entry, block)),
            "{}: the list in tests/documentation/elsewhere.rs does not say where it is tested",
            block.place()
        );
    }
    for entry in &COVERED {
        let (page, begins, file) = entry;
        assert!(
            left_out.iter().any(|block| covers(entry, block)),
            "{page} has no such block any more: {begins}"
        );
        assert!(root().join(file).is_file(), "{file}");
    }
}
