//! Tests the commands of the program: their output and exit codes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use super::holdpoint;
use super::served_binary::{Folder, SERVE, Served};

const SMALL: &str = "models: { m: { provider: openai, model: x, base_url: 'http://127.0.0.1:9/v1' } }\nagents: { a: { model: m } }\n";

#[test]
fn second_process_on_one_file_is_refused_at_once_and_the_first_goes_on() {
    let folder = Folder::new();
    let mut first = Served::start(folder.path(), SMALL, &[]);
    let second = holdpoint(folder.path(), &SERVE, &[]);
    assert_eq!(second.code, Some(1));
    assert!(second.err.contains("another process"), "{}", second.err);
    let health = holdpoint(folder.path(), &["health", "--listen", &first.address], &[]);
    assert_eq!(health.code, Some(0), "{}", health.err);
    assert!(first.terminate().success());
    assert_eq!(
        holdpoint(folder.path(), &["health", "--listen", &first.address], &[]).code,
        Some(1)
    );
}

#[test]
fn damaged_database_ends_the_process_at_once_with_a_message() {
    let folder = Folder::new();
    std::fs::write(folder.file("holdpoint.yaml"), SMALL).unwrap();
    std::fs::write(
        folder.file("holdpoint.db"),
        "this is no database, but somebody's letter\n".repeat(200),
    )
    .unwrap();
    for command in ["serve", "migrate"] {
        let mut arguments = SERVE;
        arguments[0] = command;
        let done = holdpoint(folder.path(), &arguments, &[]);
        assert_eq!(done.code, Some(1), "{}", done.err);
        assert!(!done.err.trim().is_empty());
    }
}

#[test]
fn serve_without_migrations_asks_for_migrate_and_then_serves() {
    let folder = Folder::new();
    let yaml = format!("{SMALL}database: {{ migrate: false }}\n");
    std::fs::write(folder.file("holdpoint.yaml"), &yaml).unwrap();
    let refused = holdpoint(folder.path(), &SERVE, &[]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("holdpoint migrate"), "{}", refused.err);
    for _ in 0..2 {
        let arguments = ["migrate", "--config", "holdpoint.yaml"];
        let migrated = holdpoint(folder.path(), &arguments, &[]);
        let expected = "The database has the tables of this version.\n";
        assert_eq!((migrated.code, migrated.out.as_str()), (Some(0), expected));
    }
    assert!(
        Served::start(folder.path(), &yaml, &[])
            .terminate()
            .success()
    );
}

#[test]
fn review_names_each_mcp_server_that_does_not_start() {
    let folder = Folder::new();
    let yaml = "mcp: { first: { command: [/nowhere/one] }, second: { command: [/nowhere/two] } }\n";
    std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
    let arguments = ["mcp", "lock", "--yes", "--config", "holdpoint.yaml"];
    let failed = holdpoint(folder.path(), &arguments, &[]);
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    for name in ["first", "second"] {
        let expected = format!("`{name}` could not be asked for its tools: ");
        assert!(failed.err.contains(&expected), "{}", failed.err);
    }
    assert!(!folder.file("holdpoint.mcp.json").exists());
}

#[test]
fn start_that_fails_gives_its_reason_as_the_last_line_of_the_log() {
    let folder = Folder::new();
    let yaml = format!("{SMALL}database: {{ migrate: false }}\n");
    std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
    let failed = holdpoint(folder.path(), &["serve", "--listen", "127.0.0.1:0"], &[]);
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    let last = failed.err.lines().last().unwrap();
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["level"], "ERROR", "{last}");
    let said = last["message"].as_str().unwrap();
    assert!(said.contains("holdpoint migrate"), "{said}");
}

#[test]
fn restored_database_is_served_and_logged_as_restored() {
    let folder = Folder::new();
    std::fs::write(folder.file("holdpoint.yaml"), SMALL).unwrap();
    let arguments = [&SERVE[..], &["--restored"]].concat();
    let mut served = Served::with(folder.path(), &arguments, &[]);
    assert!(served.terminate().success());
    assert!(
        served
            .log()
            .contains("the operator reported a restored database"),
        "{}",
        served.log()
    );
    assert!(
        holdpoint(folder.path(), &["serve", "--help"], &[])
            .out
            .contains("The database is a restored backup")
    );
}

#[test]
fn check_reports_every_mistake_with_its_place_and_no_value() {
    let folder = Folder::new();
    let yaml = "models: { m: { provider: openai, model: x, api_key: 'sk-in-the-file-0123456789', headers: { X-K: \"sk-in-a-header\\x01\" } } }
agents: { a: { model: gone, tools: [t, none] } }
tools: { t: { http: { method: FETCH, url: 'http://h/{id}', headers: { Idempotency-Key: k } } } }
auth: { api_keys: [ { user: u, key: '${SHORT}' }, { user: v, key: '${UNSET}' } ] }
policy: [ { name: r, tools: [t], when: \"args.x == '${SHORT}'\", decide: allow } ]
unknown: '${SHORT}'
";
    std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
    let done = holdpoint(
        folder.path(),
        &["check", "--config", "holdpoint.yaml"],
        &[
            ("SHORT", "too-short-key"),
            ("HOLDPOINT_SERVER__WAIT", "sk-in-a-variable"),
            ("HOLDPOINT_DATABASE__URL", "ftp://u:sk-password@h"),
        ],
    );
    assert_eq!((done.code, done.out.as_str()), (Some(2), ""));
    for said in [
        "holdpoint.yaml:1:",
        "models.m.headers.X-K: ",
        "holdpoint.yaml:2:16: agents.a.model: no model is called `gone`",
        "agents.a.tools[1]: no tool is called `none`",
        "tools.t.http.method: expected one of",
        "`{id}` is not declared",
        "`Idempotency-Key` is set by Holdpoint",
        "auth.api_keys[0].key: user `u`: a key has at least 16 characters",
        "the variable `UNSET` is not set",
        "policy[0].when: ",
        "holdpoint.yaml:6:1: unknown: unknown key `unknown`",
        "HOLDPOINT_SERVER__WAIT: server.wait: expected a duration",
        "HOLDPOINT_DATABASE__URL: database.url: expected",
    ] {
        assert!(done.err.contains(said), "{said}\n{}", done.err);
    }
    for value in ["sk-in", "too-short-key", "sk-password"] {
        assert!(!done.err.contains(value), "{value}\n{}", done.err);
    }
}

#[test]
fn variable_whose_value_is_not_utf_8_is_refused_where_the_configuration_needs_it() {
    let folder = Folder::new();
    let yaml = SMALL.replace("model: x", "model: '${NAME:-x}'");
    std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
    let refused = "the variable's value is not UTF-8";
    for (name, expected) in [
        (
            "NAME",
            "models.m.model: the value of the variable `NAME` is not UTF-8".to_owned(),
        ),
        (
            "HOLDPOINT_SERVER__LISTEN",
            format!("HOLDPOINT_SERVER__LISTEN: {refused}"),
        ),
        ("HOLDPOINT_CONFIG", format!("HOLDPOINT_CONFIG: {refused}")),
    ] {
        let done = Command::new(env!("CARGO_BIN_EXE_holdpoint"))
            .arg("check")
            .env_clear()
            .env(name, OsStr::from_bytes(b"caf\xe9"))
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains(&expected), "{name}: {said}");
    }
}

#[test]
fn passed_on_variable_that_is_not_utf_8_is_not_said_to_be_unset() {
    let folder = Folder::new();
    let tool = format!("{SMALL}tools: {{ s: {{ shell: {{ env: [NAME] }} }} }}\n");
    let server = format!("{SMALL}mcp: {{ s: {{ url: 'http://127.0.0.1:9/' }} }}\n");
    let lock = ["mcp", "lock", "--check", "--header", "Authorization=NAME"];
    for (yaml, arguments, code, expected) in [
        (
            tool,
            &["check"][..],
            0,
            "tools.s.shell.env: the variable `NAME` has a value that is not UTF-8, so it is not passed on",
        ),
        (server, &lock, 2, "NAME: the variable's value is not UTF-8"),
    ] {
        std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
        let done = Command::new(env!("CARGO_BIN_EXE_holdpoint"))
            .args(arguments)
            .env_clear()
            .env("NAME", OsStr::from_bytes(b"caf\xe9"))
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn value_in_the_place_of_a_headers_variable_is_not_quoted() {
    let folder = Folder::new();
    let yaml = format!("{SMALL}mcp: {{ s: {{ url: 'http://127.0.0.1:9/' }} }}\n");
    std::fs::write(folder.file("holdpoint.yaml"), yaml).unwrap();
    for header in [
        "Authorization=Bearer hunter2",
        "Authorization=hunter2",
        "hunter2=",
        "Authorization: Bearer hunter2=",
        "Authorization: Bearer hunter2",
    ] {
        let arguments = ["mcp", "lock", "--check", "--header", header];
        let done = holdpoint(folder.path(), &arguments, &[]);
        assert_eq!(done.code, Some(2), "{}", done.err);
        assert!(done.err.contains("--header"), "{}", done.err);
        assert!(!done.err.contains("hunter2"), "{}", done.err);
    }
}

#[test]
fn single_mistake_hides_no_other_mistake() {
    let text = "models: { m: { provider: openai, model: x } }
agents: { a: { model: m, tools: [t, u] }, b: { model: m } }
tools: { t: { http: { method: GET, url: 'http://h/{id}' } }, u: { http: { url: 'http://h/{' , timeout: x } } }
policy:
  - { tools: [t], when: 'args.amount >', decide: allow }
  - { name: r, tools: [u], decide: hold }
  - { name: s, tools: [t], when: 'args.amount > 1', decide: perhaps }
";
    let folder = Folder::new();
    std::fs::write(folder.file("holdpoint.yaml"), text).unwrap();
    let done = holdpoint(folder.path(), &["check", "--config", "holdpoint.yaml"], &[]);
    let said: Vec<_> = done
        .err
        .lines()
        .map(|line| line.trim_start_matches("holdpoint.yaml:"))
        .collect();
    assert_eq!(
        said,
        [
            "1:1: `default_agent` is missing: it is needed when there are several agents",
            "3:36: tools.t.http.url: `{id}` is not declared in the parameters of `t`",
            "3:75: tools.u.http.url: `url` has a `{` or `}` that is not part of a `{name}`",
            "3:95: tools.u.http.timeout: expected a duration such as `500ms`, `30s`, `10m`, `24h` or `7d`",
            "5:5: policy[0]: `name` is missing",
            "5:19: policy[0].when: rule ``: this is not a CEL expression (line 1, column 14)",
            "7:28: policy[2].when: rule `s`: for tool `t` it reads `args.amount`, which the tool does not declare",
            "7:53: policy[2].decide: rule `s`: expected one of `allow`, `hold`, `deny`",
        ]
    );
}

const TAKEN: &str =
    "Neither --config nor HOLDPOINT_CONFIG names a configuration: using ./holdpoint.yaml.";

#[tokio::test(flavor = "multi_thread")]
async fn config_file_in_the_working_directory_is_used_and_announced() {
    let folder = Folder::new();
    let demo = holdpoint(folder.path(), &["check"], &[]);
    assert_eq!(demo.code, Some(0), "{}", demo.err);
    assert!(
        demo.err
            .contains("there is no ./holdpoint.yaml: using the built-in demonstration"),
        "{}",
        demo.err
    );

    let target = folder.file("target.yaml");
    std::os::unix::fs::symlink(&target, folder.file("holdpoint.yaml")).unwrap();
    let dangling = holdpoint(folder.path(), &["check"], &[]);
    assert_eq!(dangling.code, Some(2), "{}", dangling.err);
    assert!(dangling.err.contains("cannot be read"), "{}", dangling.err);

    std::fs::write(&target, SMALL).unwrap();
    let check = holdpoint(folder.path(), &["check"], &[]);
    assert_eq!((check.code, check.err.trim()), (Some(0), TAKEN));
    assert_eq!(
        check.out,
        "The configuration is valid. Agents: 1, tools: 0, rules: 0.\n"
    );
    let mut served = Served::with(folder.path(), &["serve", "--listen", "127.0.0.1:0"], &[]);
    let agents: serde_json::Value = serde_json::from_str(&served.get("/v1/agents").await).unwrap();
    assert_eq!(agents["agents"][0]["name"], "a", "{agents}");
    assert!(served.terminate().success());
    assert!(served.log().contains(TAKEN), "{}", served.log());

    for variables in [&[][..], &[("HOLDPOINT_CONFIG", "holdpoint.yaml")]] {
        let arguments = if variables.is_empty() {
            &["check", "--config", "holdpoint.yaml"][..]
        } else {
            &["check"]
        };
        let named = holdpoint(folder.path(), arguments, variables);
        assert_eq!((named.code, named.err.as_str()), (Some(0), ""));
    }
    std::fs::write(folder.file("holdpoint.yaml"), "agents: {}\n").unwrap();
    for command in ["check", "serve", "migrate", "health"] {
        let broken = holdpoint(folder.path(), &[command], &[]);
        assert_eq!(broken.code, Some(2), "{command}: {}", broken.err);
        assert!(
            broken.err.contains(TAKEN) && broken.err.contains("holdpoint.yaml:1:1: "),
            "{command}: {}",
            broken.err
        );
    }
}

#[test]
fn warnings_are_lines_of_check_and_log_lines_of_serve() {
    let folder = Folder::new();
    std::fs::write(
        folder.file("holdpoint.yaml"),
        SMALL.replace("model: x", "model: x, api_key: $SECRET"),
    )
    .unwrap();
    let variables = [("HOLDPOINT_LISTEN", "0.0.0.0:80")];
    let check = holdpoint(
        folder.path(),
        &["check", "--config", "holdpoint.yaml"],
        &variables,
    );
    let said: Vec<_> = check.err.lines().collect();
    let [braces, ignored] = said.as_slice() else {
        panic!("two warnings: {}", check.err)
    };
    assert!(
        braces.starts_with("warning: holdpoint.yaml:1:44: models.m.api_key: "),
        "{braces}"
    );
    assert!(
        ignored.starts_with("warning: HOLDPOINT_LISTEN: this variable is ignored"),
        "{ignored}"
    );
    assert_eq!(check.code, Some(0));

    let mut served = Served::with(folder.path(), &SERVE, &variables);
    assert!(served.terminate().success());
    let lines: Vec<serde_json::Value> = served
        .log()
        .lines()
        .map(|line| serde_json::from_str(line).expect("one JSON line each"))
        .collect();
    let warned = lines
        .iter()
        .filter(|line| line["level"] == "WARN" && line["position"].is_string());
    let warned: Vec<_> = warned.map(|line| &line["position"]).collect();
    assert_eq!(warned, ["holdpoint.yaml:1:44", "HOLDPOINT_LISTEN"]);
    assert!(!served.log().contains("$SECRET") && !check.err.contains("$SECRET"));
}
