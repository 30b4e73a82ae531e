//! Tests of MCP servers: their reviewed tools as tools of the configuration, and the mistakes in
//! their settings and in the lock file.

use serde_json::json;

use super::*;
use crate::mcp::lock::{Lock, LockedTool};
use crate::policy::Policy;
use crate::task::tool_spec::{Effect, ToolKind};

mod approvers;

const FILE: &str = r#"
models: { m: { provider: openai, model: x } }
mcp:
  files:
    command: [server, --root, /srv]
    env: [PATH]
    tools: ["read_*", write_file]
    prefix: fs_
    effects: { "*_file": idempotent, read_file: read_only }
  tickets: { url: "https://mcp.acme.com/mcp?key=1", headers: { Authorization: "Bearer ${TOKEN}" }, trust_annotations: true }
tools:
  close_ticket: { mcp: { server: tickets, tool: ticket.close }, summary: "Close {id}" }
agents: { helper: { model: m, tools: ["fs_*", close_ticket] } }
"#;

fn tool(name: &str, members: &Value) -> Value {
    let mut tool = json!({
        "name": name, "description": format!("Does {name}, for ${{HOME}}."),
        "inputSchema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
            "properties": {"id": {"type": "string", "description": "${TOKEN}"}},
        },
    });
    let all = members.as_object().cloned().unwrap_or_default();
    tool.as_object_mut().unwrap().extend(all);
    tool
}

fn lock() -> Value {
    let locked = |tools: &[Value]| {
        let tools = tools.iter().map(|tool| {
            let name = tool["name"].as_str().unwrap().to_owned();
            (
                name,
                serde_json::to_value(LockedTool::new(tool.clone())).unwrap(),
            )
        });
        let tools: serde_json::Map<_, _> = tools.collect();
        json!({"server": {"name": "s"}, "protocol": "2025-11-25", "locked_at": "2026-11-22T09:00:00Z", "tools": tools})
    };
    json!({"version": 1, "servers": {
        "files": locked(&[
            tool("read_file", &json!({})),
            tool("read_all", &json!({"annotations": {"readOnlyHint": true, "idempotentHint": true}})),
            tool("write_file", &json!({})), tool("drop", &json!({})),
        ]),
        "tickets": locked(&[
            tool("ticket.close", &json!({"annotations": {"readOnlyHint": false, "idempotentHint": true}})),
            tool("list", &json!({"annotations": {"readOnlyHint": true}})),
        ]),
    }})
}

fn load_with(file: &str, lock: Option<&str>) -> Result<Config, String> {
    let files: Vec<_> = lock
        .map(|text| ("/etc/holdpoint.mcp.json", text))
        .into_iter()
        .collect();
    let variables = [("TOKEN", "tok-0123456789"), ("PATH", "/bin")];
    let environment = Environment::new(&variables, &files);
    let source = Source::File("/etc/holdpoint.yaml".into(), file.to_owned());
    load(source, &environment, &Flags::default(), |_, _| {})
        .map(|(config, _)| config)
        .map_err(|report| report.to_string())
}

fn read(file: &str) -> Result<Config, String> {
    load_with(file, Some(&lock().to_string()))
}

fn mistakes(file: &str, lock: &Value) -> Vec<String> {
    let report = load_with(file, Some(&lock.to_string())).expect_err("mistakes");
    let lines = report.lines().filter(|line| !line.starts_with("warning"));
    let lines = lines.map(|line| line.splitn(4, ':').nth(3).unwrap_or(line).trim().to_owned());
    lines.collect()
}

#[test]
fn reviewed_tool_is_a_tool_of_the_configuration_with_the_servers_schema() {
    let config = read(FILE).unwrap();
    let names: Vec<_> = config.tools.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "close_ticket",
            "fs_read_all",
            "fs_read_file",
            "fs_write_file",
            "tickets_list",
            "tickets_ticket_close"
        ]
    );
    let mut mistakes = Mistakes::default();
    let catalog = Catalog::build(
        config.tools.clone(),
        &Net::new().unwrap(),
        &Arc::default(),
        &mut mistakes,
    );
    assert_eq!(mistakes.found, []);
    let effects: Vec<_> = catalog
        .specs()
        .map(|spec| (spec.name.as_str(), spec.effect))
        .collect();
    assert_eq!(
        effects,
        [
            ("close_ticket", Effect::Idempotent),
            ("fs_read_all", Effect::Once),
            ("fs_read_file", Effect::ReadOnly),
            ("fs_write_file", Effect::Idempotent),
            ("tickets_list", Effect::ReadOnly),
            ("tickets_ticket_close", Effect::Idempotent),
        ]
    );
    let spec = &catalog.get("close_ticket").unwrap().spec;
    assert_eq!(spec.kind, ToolKind::Mcp);
    assert_eq!(
        spec.target,
        "ticket.close of the MCP server tickets at https://mcp.acme.com/mcp"
    );
    assert_eq!(spec.summary.as_deref(), Some("Close {id}"));
    assert_eq!(spec.description, "Does ticket.close, for ${HOME}.");
    assert_eq!(
        spec.parameters["properties"]["id"]["description"],
        "${TOKEN}"
    );
    assert_eq!(spec.parameters.get("$schema"), None);
    let mut found = Mistakes::default();
    let rules = read(&format!(
        "{FILE}policy: [ {{ name: r, tools: [\"fs_*\"], when: \"args.id == 'a'\", decide: hold }} ]\n"
    ));
    let specs: Vec<_> = catalog.specs().cloned().collect();
    let _ = Policy::new(&rules.unwrap().rules(), &specs, &mut found);
    assert_eq!(found.found, []);
}

#[test]
fn text_of_a_server_is_never_expanded_with_the_operators_variables() {
    let config = read(FILE).unwrap();
    let agents = config.agents();
    let agent = agents.get("helper").unwrap();
    let offers: Vec<_> = agent
        .tools
        .iter()
        .map(|offer| offer.name.as_str())
        .collect();
    assert_eq!(
        offers,
        [
            "fs_read_all",
            "close_ticket",
            "fs_read_file",
            "fs_write_file"
        ]
    );
    let pinned = agents
        .pinned(agent, &agent.version, &agent.definition)
        .unwrap();
    for agent in [agent, &pinned] {
        for offer in &agent.tools {
            assert!(
                offer.description.ends_with("for ${HOME}."),
                "{}",
                offer.description
            );
            assert_eq!(
                offer.parameters["properties"]["id"]["description"],
                "${TOKEN}"
            );
        }
    }
    assert!(!agent.definition.contains("tok-0123456789"));
}

#[test]
fn definition_changes_with_the_review_and_with_what_a_call_could_do() {
    let digest = |file: &str, lock: &Value| {
        let config = load_with(file, Some(&lock.to_string())).unwrap();
        let mut mistakes = Mistakes::default();
        let catalog = Catalog::build(
            config.tools,
            &Net::new().unwrap(),
            &Arc::default(),
            &mut mistakes,
        );
        let of = |name: &str| catalog.get(name).unwrap().spec.definition.clone();
        (of("tickets_list"), of("fs_read_all"))
    };
    let (list, read) = digest(FILE, &lock());
    let elsewhere = FILE.replace("acme.com/mcp", "acme.com/other");
    assert_ne!(digest(&elsewhere, &lock()).0, list);
    assert_eq!(digest(&elsewhere, &lock()).1, read);
    let other_header = FILE.replace("Bearer ${TOKEN}", "Basic ${TOKEN}");
    assert_ne!(digest(&other_header, &lock()).0, list);
    assert_ne!(
        digest(&FILE.replace("--root, /srv", "--root, /"), &lock()).1,
        read
    );
    let mut reviewed = lock();
    let titled = LockedTool::new(tool(
        "list",
        &json!({"annotations": {"readOnlyHint": true}, "title": "T"}),
    ));
    reviewed["servers"]["tickets"]["tools"]["list"] = serde_json::to_value(titled).unwrap();
    assert_ne!(digest(FILE, &reviewed).0, list);
    assert_eq!(
        digest(
            &FILE.replace("trust_annotations", "on_change: hold, trust_annotations"),
            &lock()
        )
        .0,
        list
    );
}

#[test]
fn definitions_are_the_same_whatever_the_client_secret_of_a_server() {
    let definitions = |secret: &str| {
        let oauth =
            format!("oauth: {{ token_url: 'https://h/', client_id: a, client_secret: {secret} }}");
        let file = FILE.replace("headers: { Authorization: \"Bearer ${TOKEN}\" }", &oauth);
        assert_ne!(file, FILE);
        let config = read(&file).unwrap();
        let catalog = Catalog::build(
            config.tools.clone(),
            &Net::new().unwrap(),
            &Arc::default(),
            &mut Mistakes::default(),
        );
        let agents = config.agents();
        (
            catalog.get("close_ticket").unwrap().spec.definition.clone(),
            agents.get("helper").unwrap().version.clone(),
            config.unexpanded.to_string(),
        )
    };
    let first = definitions("secret-0123456789");
    assert!(!first.2.contains("secret-0123456789"), "{}", first.2);
    assert_eq!(definitions("secret-9876543210"), first);
}

#[test]
fn configuration_without_its_review_does_not_load() {
    let error = load_with(FILE, None).unwrap_err();
    assert!(
        error.contains("write it with `holdpoint mcp lock`"),
        "{error}"
    );
    assert!(!error.contains("no tool is called `fs_*`"), "{error}");
    let mut changed = lock();
    changed["servers"]["files"]["tools"]["drop"]["definition"]["description"] = json!("Harmless.");
    let found = mistakes(FILE, &changed);
    assert!(
        found[0].contains(
            "a tool `drop` of the server `files` that has a digest that is not its definition's"
        ),
        "{found:?}"
    );
    let empty = mistakes(FILE, &json!({"version": 1, "servers": {}}));
    assert!(
        empty[0].contains("the lock file has no server `files`"),
        "{empty:?}"
    );
    let mut gone = lock();
    gone["servers"]["files"]["tools"]
        .as_object_mut()
        .unwrap()
        .remove("write_file");
    gone["servers"].as_object_mut().unwrap().remove("tickets");
    assert_eq!(
        mistakes(FILE, &gone),
        [
            "mcp.files.tools: the lock file has no tool of `files` that `write_file` names: review its tools with `holdpoint mcp lock`",
            "mcp.tickets: the lock file has no server `tickets`: review its tools with `holdpoint mcp lock`",
            "tools.close_ticket.mcp.tool: the lock file has no tool `ticket.close` of `tickets`: review its tools with `holdpoint mcp lock`",
        ]
    );
}

#[test]
fn mistake_in_a_server_or_a_name_is_reported_with_its_place() {
    for (from, to, expected) in [
        (
            "command: [server, --root, /srv]",
            "command: [server]\n    url: 'https://h/'",
            "mcp.files.command: `command` and `url` exclude each other",
        ),
        (
            "    env: [PATH]\n",
            "    headers: { X: y }\n",
            "mcp.files.headers: `headers` belongs to a `url`, not to a `command`",
        ),
        (
            "https://mcp.acme.com/mcp?key=1",
            "ftp://h/",
            "mcp.tickets.url: `url` must be an address such as `https://mcp.acme.com/mcp`",
        ),
        (
            "trust_annotations: true",
            "oauth: { token_url: 'https://h/', client_id: a, client_secret: b }",
            "mcp.tickets.oauth: `oauth` and a header `Authorization` exclude each other",
        ),
        (
            "trust_annotations: true",
            "timeout: 11m",
            "mcp.tickets.timeout: `timeout` must be more than 0 and at most 10m",
        ),
        (
            "server: tickets",
            "server: gone",
            "tools.close_ticket.mcp.server: no MCP server is called `gone`",
        ),
        (
            "\"fs_*\", close",
            "\"gs_*\", close",
            "agents.helper.tools[0]: `gs_*` matches no tool of an MCP server",
        ),
        (
            "summary:",
            "parameters: { type: object }, summary:",
            "tools.close_ticket.parameters: the lock file has the parameters of a tool of an MCP server",
        ),
        (
            "Bearer ${TOKEN}",
            "Bearer {{credential:a.b}}",
            "mcp.tickets.headers.Authorization: no credential is called `a`",
        ),
    ] {
        let file = FILE.replace(from, to);
        assert_ne!(file, FILE, "{from}");
        assert_eq!(mistakes(&file, &lock()), [expected]);
    }
    let same = FILE
        .replace("prefix: fs_", "prefix: Tickets_")
        .replace("tools: [\"read_*\", write_file]", "tools: [drop]");
    let mut twins = lock();
    let list = LockedTool::new(tool("list", &json!({})));
    twins["servers"]["files"]["tools"] = json!({"list": serde_json::to_value(list).unwrap()});
    let same = same.replace("tools: [drop]", "tools: [list]").replace(
        "    effects: { \"*_file\": idempotent, read_file: read_only }\n",
        "",
    );
    let found = mistakes(&same, &twins);
    assert!(found.iter().any(|line| line == "mcp.tickets: the tool `list` and the tool `list` of `mcp.files` would both be called `tickets_list` here: set another `prefix`"), "{found:?}");
}

#[test]
fn missing_key_of_a_server_or_its_tool_is_reported_and_nothing_that_follows() {
    let (headers, tool) = (
        "headers: { Authorization: \"Bearer ${TOKEN}\" }",
        "{ server: tickets, tool: ticket.close }",
    );
    for (from, to, expected) in [
        (
            headers,
            "oauth: {}",
            &[
                "mcp.tickets.oauth: `token_url` is missing",
                "mcp.tickets.oauth: `client_id` is missing",
                "mcp.tickets.oauth: `client_secret` is missing",
            ][..],
        ),
        (
            headers,
            "oauth: { token_url: '', client_id: 5, client_secret: x }",
            &[
                "mcp.tickets.oauth.token_url: `token_url` is empty",
                "mcp.tickets.oauth.client_id: expected text, found a number",
            ],
        ),
        (
            tool,
            "{}",
            &[
                "tools.close_ticket.mcp: `server` is missing",
                "tools.close_ticket.mcp: `tool` is missing",
            ],
        ),
        (
            tool,
            "{ server: 5, tool: [x] }",
            &[
                "tools.close_ticket.mcp.server: expected text, found a number",
                "tools.close_ticket.mcp.tool: expected text, found a list",
            ],
        ),
    ] {
        let file = FILE.replace(from, to);
        assert_ne!(file, FILE, "{from}");
        assert_eq!(mistakes(&file, &lock()), expected, "{to}");
    }
    let file = FILE.replace(headers, "oauth: {}");
    let source = Source::File("/etc/holdpoint.yaml".into(), file);
    let report = load_mcp(source, &Environment::default(), &Flags::default()).unwrap_err();
    assert!(
        report.to_string().contains("oauth: `token_url` is missing"),
        "{report}"
    );
}

#[test]
fn two_tools_of_a_server_whose_names_differ_only_in_case_are_not_both_offered() {
    let mut twins = lock();
    let twin = LockedTool::new(tool("List", &json!({})));
    twins["servers"]["tickets"]["tools"]["List"] = serde_json::to_value(twin).unwrap();
    assert_eq!(
        mistakes(FILE, &twins),
        [
            "mcp.tickets: the tool `list` and the tool `List` of `mcp.tickets` would both be called `tickets_list` here: list only one of them in the server's `tools`"
        ]
    );
    let one = FILE.replace(
        "trust_annotations",
        "tools: [list, ticket.close], trust_annotations",
    );
    assert!(load_with(&one, Some(&twins.to_string())).is_ok());
}

#[test]
fn review_reports_a_broken_override_of_a_server_and_of_no_other_section() {
    let reported = |variable: &str, value: &str| {
        let variables = [("TOKEN", "tok-0123456789"), (variable, value)];
        let environment = Environment::new(&variables, &[]);
        let source = Source::File("/etc/holdpoint.yaml".into(), FILE.to_owned());
        let report = load_mcp(source, &environment, &Flags::default()).err();
        let lines = report.into_iter().flat_map(|report| report.mistakes);
        lines.map(|line| line.to_string()).collect::<Vec<_>>()
    };
    let broken = [
        (
            "HOLDPOINT_MCP__TICKETS__URL",
            "[https://h/",
            "the variable's value is not YAML",
        ),
        (
            "holdpoint_mcp__tickets__url__x",
            "y",
            "there is nothing below which `x` could stand",
        ),
    ];
    for (variable, value, detail) in broken {
        assert_eq!(reported(variable, value), [format!("{variable}: {detail}")]);
    }
    for variable in ["HOLDPOINT_MODELS__M__MODEL", "HOLDPOINT_SERVER__LISTEN"] {
        assert_eq!(reported(variable, "[x"), Vec::<String>::new());
    }
}

#[test]
fn rule_may_not_allow_a_server_on_this_host_without_accounts() {
    let rule =
        |tool: &str| format!("{FILE}policy: [ {{ name: r, tools: [{tool}], decide: allow }} ]\n");
    assert_eq!(
        mistakes(&rule("fs_read_all"), &lock()),
        [
            "policy[0].decide: rule `r`: without `auth` no rule may allow a tool of an MCP server that runs on this host, and this one allows `fs_read_all`"
        ]
    );
    assert!(read(&rule("tickets_list")).is_ok());
}

#[test]
fn value_of_a_variable_in_the_settings_of_a_server_is_kept_secret() {
    let file = FILE.replace("--root", "\"--key=${TOKEN}\"");
    let config = read(&file).unwrap();
    assert_eq!(
        config.redactor().redact("a tok-0123456789 b"),
        "a [secret TOKEN] b"
    );
    assert!(!format!("{config:?}").contains("tok-0123456789"));
}

#[test]
fn lock_file_is_read_back_as_it_was_written() {
    let lock: Lock = Lock::read(&lock().to_string()).unwrap();
    assert_eq!(Lock::read(&lock.text()), Ok(lock.clone()));
    assert!(lock.text().ends_with("}\n"));
    assert!(Lock::read("{}").is_err());
    let newer = lock.text().replace("\"version\": 1", "\"version\": 2");
    assert_eq!(
        Lock::read(&newer).unwrap_err(),
        ["has the version 2; known is 1"]
    );
}
