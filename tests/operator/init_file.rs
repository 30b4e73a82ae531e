//! Tests the file that `holdpoint init` writes, with the commands that `holdpoint init` prints.

use std::process::Command;

use serde_json::{Value, json};

use super::holdpoint;
use super::served_binary::{Folder, Served, fakes};
use crate::support::fake_chat_completions::{calls, text_answer};

#[tokio::test(flavor = "multi_thread")]
async fn file_written_by_init_works_as_init_says() {
    let (model, tool, folder) = fakes().await;
    let written = holdpoint(folder.path(), &["init"], &[]);
    assert_eq!((written.code, written.err.as_str()), (Some(0), ""));
    let steps: Vec<_> = written.out.lines().map(str::trim).collect();
    for step in [
        "export OPENAI_API_KEY=…",
        "holdpoint check --config holdpoint.yaml",
        "holdpoint serve --config holdpoint.yaml",
    ] {
        assert!(steps.contains(&step), "{}", written.out);
    }

    let without = holdpoint(folder.path(), &["check", "--config", "holdpoint.yaml"], &[]);
    assert_eq!(without.code, Some(2));
    assert!(
        without
            .err
            .contains("models.main.api_key: the variable `OPENAI_API_KEY` is not set"),
        "{}",
        without.err
    );
    let key = ("OPENAI_API_KEY", "sk-of-the-operator-0123");
    let check = holdpoint(
        folder.path(),
        &["check", "--config", "holdpoint.yaml"],
        &[key],
    );
    assert_eq!(
        (check.code, check.err.as_str()),
        (Some(0), ""),
        "{}",
        check.out
    );

    // The file stays as it was written. Environment variables replace its two endpoints and the
    // listen address.
    let url = format!("{}/orders/{{id}}", tool.url);
    let variables = [
        key,
        ("HOLDPOINT_MODELS__MAIN__BASE_URL", model.base_url.as_str()),
        ("HOLDPOINT_TOOLS__ORDERS__HTTP__URL", url.as_str()),
        ("HOLDPOINT_SERVER__LISTEN", "127.0.0.1:0"),
    ];
    let mut served = Served::with(
        folder.path(),
        &["serve", "--config", "holdpoint.yaml"],
        &variables,
    );
    model
        .then(calls(&[("orders", r#"{"id": "a/b 17"}"#)]))
        .then(text_answer("It is on its way."));
    tool.answers(200, "shipped");
    let paused = served.task("Where is my order?").await;
    assert_eq!(paused["status"], "Paused", "no rule matches: {paused}");
    assert!(tool.ledger().is_empty());
    let completed = served.approve(&paused).await;
    assert_eq!(
        (&completed["status"], &completed["output"]),
        (&json!("Completed"), &json!("It is on its way."))
    );
    let ran = tool.ledger();
    assert_eq!(
        (ran.len(), ran[0].method.as_str(), ran[0].uri.as_str()),
        (1, "GET", "/orders/a%2Fb%2017")
    );
    assert_eq!(model.sent()[1]["messages"][3]["content"], "shipped");
    assert!(served.terminate().success());
    assert!(
        folder.file("holdpoint.db").exists(),
        "the database stands beside the file"
    );
}

#[test]
fn init_that_cannot_write_the_whole_file_leaves_no_file() {
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_holdpoint");
    // No file may grow. Without the `trap`, a signal would end the program.
    let script = format!("trap '' XFSZ; ulimit -f 0; exec '{program}' init new.yaml");
    let mut shell = Command::new("/bin/sh");
    let shell = shell.args(["-c", &script]).current_dir(folder.path());
    let failed = shell.output().unwrap();
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.starts_with("new.yaml: "), "{said}");
    assert!(!folder.file("new.yaml").exists());
}

#[test]
fn printed_schema_accepts_the_init_file_and_finds_a_misspelt_key() {
    let folder = Folder::new();
    assert_eq!(
        holdpoint(folder.path(), &["init", "x.yaml"], &[]).code,
        Some(0)
    );
    let schema = holdpoint(folder.path(), &["schema"], &[]);
    let schema: Value = serde_json::from_str(&schema.out).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut file: Value = serde_json::from_value(read(
        &std::fs::read_to_string(folder.file("x.yaml")).unwrap(),
    ))
    .unwrap();
    assert!(validator.is_valid(&file));
    file["agents"]["helper"]["modle"] = json!("main");
    assert!(!validator.is_valid(&file));
}

fn read(text: &str) -> Value {
    let mut mistakes = ::holdpoint::world::Mistakes::default();
    let node = ::holdpoint::config::tree::parse(text, None, &mut mistakes).unwrap();
    assert!(mistakes.is_empty());
    node.to_json()
}
