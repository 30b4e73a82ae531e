//! Checks that `holdpoint check` accepts the configurations of the documentation. A whole
//! configuration is checked unchanged; a fragment is first merged into a whole configuration. Also
//! checks that the documentation's JSON, JavaScript and Python can be parsed.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use holdpoint::mcp::lock::{Lock, LockedServer, LockedTool};
use serde_json::{Value, json};

use super::{Block, blocks, pages, read, variables};

/// The configuration into which a fragment is merged. It defines the names that the pages use.
const BASE: &str = r#"
auth:
  api_keys:
    - { user: alice, tenant: acme, groups: [support], key: "alice-0123456789abcdef" }
    - { user: bob, tenant: acme, groups: [finance, ops], key: "bob-0123456789abcdef" }
models:
  main: { provider: openai, model: gpt-4.1, api_key: "model-0123456789abcdef" }
tools:
  orders:
    effect: read_only
    http: { method: GET, url: "http://127.0.0.1:9000/orders/{id}" }
    parameters: { type: object, properties: { id: { type: string } }, required: [id] }
  refund_payment:
    http: { method: POST, url: "http://127.0.0.1:9000/refunds" }
    parameters:
      type: object
      properties: { order: { type: integer }, amount: { type: number } }
      required: [order, amount]
agents:
  helper: { description: Answers., model: main, tools: [orders, refund_payment] }
default_agent: helper
"#;

/// The page that `scripts/configuration` generates.
const GENERATED: &str = "docs/configuration.md";

#[test]
fn configurations_of_the_documentation_pass_check() {
    let mut refused = Vec::new();
    // The examples of the generated page are parts of one configuration. Another test checks that
    // configuration.
    for page in pages().into_iter().filter(|page| page != GENERATED) {
        let folder = tempfile::tempdir().expect("a folder");
        let blocks: Vec<Block> = blocks(&page)
            .into_iter()
            .filter(|block| block.language == "yaml")
            .collect();
        // A configuration may name a file that a later block shows.
        for (name, block) in blocks
            .iter()
            .filter_map(|one| Some((one.file_name()?, one)))
        {
            fs::write(folder.path().join(name), &block.text).expect("a file");
        }
        let mut bases = vec![parse("the test's base", BASE)];
        for block in &blocks {
            for (at, document) in block.text.split("\n---\n").enumerate() {
                let value = parse(&block.place(), document);
                if !is_configuration(&value) {
                    continue;
                }
                let whole = value.get("models").is_some() && value.get("agents").is_some();
                let tried: Vec<Value> = if whole {
                    vec![value.clone()]
                } else {
                    bases
                        .iter()
                        .rev()
                        .map(|base| merged(base, &value))
                        .collect()
                };
                let answers: Vec<_> = tried
                    .iter()
                    .map(|configuration| check(folder.path(), configuration))
                    .collect();
                if answers.iter().all(Result::is_err) {
                    refused.push(format!("{} ({at}): {answers:#?}", block.place()));
                }
                if whole && block.file_name().is_none() {
                    bases.push(value);
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn blocks_of_the_models_page_pass_check_without_a_warning() {
    let models: Vec<Block> = blocks("docs/models.md")
        .into_iter()
        .filter(|block| block.language == "yaml")
        .collect();
    assert_eq!(models.len(), 8);
    let folder = tempfile::tempdir().expect("a folder");
    for block in models {
        let whole = merged(
            &parse("the test's base", BASE),
            &parse(&block.place(), &block.text),
        );
        let done = checked(folder.path(), &whole.to_string());
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(
            (done.status.code(), &*said),
            (Some(0), ""),
            "{}",
            block.place()
        );
    }
}

#[test]
fn examples_of_the_configuration_page_are_accepted_by_check() {
    let examples: Vec<Block> = blocks(GENERATED)
        .into_iter()
        .filter(|block| block.language == "yaml")
        .collect();
    assert!(examples.len() >= 10, "{}", examples.len());
    let folder = tempfile::tempdir().expect("a folder");
    let whole: String = examples.iter().map(|block| block.text.as_str()).collect();
    let done = checked(folder.path(), &whole);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{said}");
    // Each use of `user_header` causes this warning. The examples cause no other warning.
    let warnings: Vec<&str> = said.lines().collect();
    assert!(
        matches!(warnings[..], [one] if one.contains(" gates.edge.ext_authz.user_header: ")),
        "{said}"
    );
}

#[test]
fn assignments_of_the_configuration_page_give_an_address_that_check_accepts() {
    let page = read(GENERATED);
    let assignments: Vec<&str> = page
        .split('`')
        .filter(|code| code.starts_with("HOLDPOINT_SERVER__LISTEN="))
        .collect();
    assert_eq!(assignments.len(), 2, "{assignments:?}");
    let server = json!({"server": {"public_url": "https://hold.example.com"}});
    let whole = merged(&parse("the test's base", BASE), &server);
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("checked.yaml"), whole.to_string()).expect("a file");
    let program = env!("CARGO_BIN_EXE_holdpoint");
    for assignment in assignments {
        let script = format!("{assignment} '{program}' check --config checked.yaml");
        let done = Command::new("/bin/sh")
            .args(["-c", &script])
            .env_clear()
            .current_dir(folder.path())
            .output()
            .expect("a shell");
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(0), "{assignment}: {said}");
    }
}

#[test]
fn json_and_program_blocks_of_the_documentation_parse() {
    for block in pages().iter().flat_map(|page| blocks(page)) {
        let place = block.place();
        match block.language.as_str() {
            "json" => {
                let parsed = serde_json::from_str::<Value>(&block.text);
                assert!(parsed.is_ok(), "{place}: {parsed:?}");
            }
            "python" => {
                let parse = "import ast, sys; ast.parse(sys.stdin.read())";
                accepts(&place, "python3", &["-c", parse], &block.text);
            }
            "js" => {
                let module = ["--input-type=module", "--check", "-"];
                accepts(&place, "node", &module, &block.text);
            }
            _ => {}
        }
    }
}

/// Asserts that a program exits with 0 after it has read `text` from its standard input.
pub(super) fn accepts(place: &str, program: &str, arguments: &[&str], text: &str) {
    let mut process = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let mut input = process.stdin.take().expect("its input");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    let done = process.wait_with_output().expect("an end");
    let complaint = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{place}: {complaint}");
}

/// Returns whether a document is a configuration of the service. Manifests of Kubernetes, alerts
/// and scrape configurations of Prometheus, and scripts of the scripted model are not.
fn is_configuration(value: &Value) -> bool {
    let others = ["apiVersion", "groups", "scrape_configs"];
    value.is_object() && others.iter().all(|key| value.get(key).is_none())
}

pub(super) fn parse(place: &str, yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{place}: {error}"))
}

/// Returns `base` with `fragment` merged into it. Two maps are merged member by member; in every
/// other case the fragment's value replaces the value of `base`.
fn merged(base: &Value, fragment: &Value) -> Value {
    let (Value::Object(base), Value::Object(fragment)) = (base, fragment) else {
        return fragment.clone();
    };
    let mut whole = base.clone();
    for (name, value) in fragment {
        let value = whole
            .get(name)
            .map_or_else(|| value.clone(), |old| merged(old, value));
        whole.insert(name.clone(), value);
    }
    Value::Object(whole)
}

/// Runs `holdpoint check`. If the check fails, returns the text that the command prints as the
/// error.
fn check(folder: &Path, configuration: &Value) -> Result<(), String> {
    let done = checked(folder, &configuration.to_string());
    if done.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&done.stderr).into_owned())
    }
}

/// The MCP servers in the documentation, each with the names of the tools that it lists.
const SERVED: [(&str, &[&str]); 4] = [
    (
        "files",
        &["read_text_file", "read_media_file", "write_file"],
    ),
    ("tickets", &["ticket.get", "ticket.label", "ticket.close"]),
    ("every", &["get-sum"]),
    ("orders", &["order.get"]),
];

/// Returns the text of a lock file with the tools of [`SERVED`].
fn lock_file() -> String {
    let mut lock = Lock::default();
    for (server, tools) in SERVED {
        let tools = tools.iter().map(|name| {
            let definition = json!({
                "name": name, "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}},
            });
            ((*name).to_owned(), LockedTool::new(definition))
        });
        let locked = LockedServer {
            server: json!({"name": server}),
            protocol: "2025-11-25".to_owned(),
            locked_at: "2026-11-22T09:00:00Z".to_owned(),
            tools: tools.collect(),
        };
        lock.servers.insert(server.to_owned(), locked);
    }
    lock.text()
}

/// Runs `holdpoint check` on this configuration and sets every variable that the configuration
/// names.
fn checked(folder: &Path, configuration: &str) -> Output {
    fs::write(folder.join("holdpoint.mcp.json"), lock_file()).expect("a file");
    fs::write(folder.join("checked.yaml"), configuration).expect("a file");
    Command::new(env!("CARGO_BIN_EXE_holdpoint"))
        .args(["check", "--config", "checked.yaml"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/")
        .envs(variables(configuration))
        .current_dir(folder)
        .output()
        .expect("the program runs")
}
