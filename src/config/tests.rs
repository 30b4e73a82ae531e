//! Tests that load whole configuration files: valid files, files with overrides, and files with
//! mistakes.

use std::sync::Arc;

use super::tests_bad::{BASE, TOOL};
use super::*;
use crate::agent::Agents;
use crate::net::Net;
use crate::task::verdict::Terms;
use crate::tool::catalog::Catalog;
use crate::world::repetitions;

mod gates;
mod mcp;
mod mcp_commands;
mod reach;
mod references;
mod rule_order;
mod secrets;

/// A valid file with every section and nearly every key.
const WHOLE: &str = r#"
server:
  listen: 127.0.0.1:8080
  public_url: http://127.0.0.1:8080      # what links begin with (default http://<listen>); may carry a path, which the proxy strips. Needed when not on loopback
  request_url: null                      # "https://app.acme.com/approvals/{request_id}": your own page instead of `url`
  cors_origins: []                       # frontends on other origins
  wait: 10s                              # how long a POST waits unless it says so (300s at most)
  max_running: 64                        # tasks that run at once in this process; more wait in the database, fairly by tenant
  max_streams: 1000                      # and max_streams_per_caller: 20, stream_life: 1h
  max_waiting: 1000                      # gate asks that wait at once in this process
database:
  url: sqlite://holdpoint.db             # the embedded default; postgres://user@host/db in production
  max_connections: 32                    # and acquire_timeout: 5s, statement_timeout: 10s
  migrate: true
auth:                                    # without it: loopback only, everybody is `local` (section 4)
  user_ids: folded                       # folded: ids equal in NFC and folded case are one person | exact
  api_keys:                              # Authorization: Bearer <key>; at least 16 characters, 8 of them different, each once; the same user twice has the same groups
    - { user: alice, tenant: acme, groups: [support], key: "${ALICE_KEY}" }        # or key_sha256: "<hex>"; tenant: default
    - { user: bob,   tenant: acme, groups: [finance], key: "${BOB_KEY}" }
    - { user: web,   tenant: acme, key: "${WEB_KEY}", act_as: true }               # a backend or an SSO proxy that speaks for people
    - { user: ops,   tenant: acme, key: "${OPS_KEY}", admin: true, may: [read] }   # may: create, read, decide (default: all)
secrets:                                 # seals credentials at rest; the first key writes, all of them read
  keys: [ { id: k1, key: "${SEALING_KEY}" } ]     # 32 bytes, base64
credentials:                             # what request_credentials may ask for: `service` is one of these names
  jira: { description: Login of the caller's Jira., fields: { email: { format: email }, token: {} }, expires_in: 8h }
models:
  main:
    provider: openai                     # openai (Chat Completions, any base_url) | openai_responses | anthropic | scripted
    base_url: https://api.openai.com/v1
    model: gpt-4.1
    api_key: "${OPENAI_API_KEY}"         # optional: a local model needs none
    timeout: 60s
    retries: 4                           # on 429, 5xx, connection errors
    headers: {}                          # and query: {}: added to each request
    body: { temperature: 0 }             # merged into each request; may not name messages, tools, model, stream
  demo: { provider: scripted, script: builtin:refunds }      # or a file
tools:
  lookup_order:
    description: Look an order up by its number.
    effect: read_only                    # read_only | idempotent | once (default)
    parameters: { type: object, properties: { order: { type: integer } }, required: [order] }
    http: { method: POST, url: "http://orders.internal/lookup", headers: { X-Key: "${ORDERS_KEY}" }, timeout: 10s }    # timeout: 30s unless given, 10m at most
  refund_payment:
    description: Pay an order back.
    summary: "Refund {amount} for order {order}"             # shown to approvers; arguments go in as text, cut at 80 characters
    parameters: { type: object, properties: { order: { type: integer }, amount: { type: number, exclusiveMinimum: 0 } }, required: [order, amount] }
    http: { method: POST, url: "http://payments.internal/refunds" }
  ShellCommand:
    description: Run a command on the operations host.
    shell: { working_dir: /srv/ops, timeout: 30s, env: [PATH], max_output: 64KiB }   # argument: {"command": "…"}
  comment_ticket:
    description: Comment on a Jira ticket.
    parameters: { type: object, properties: { id: { type: string }, text: { type: string } }, required: [id, text] }
    http: { method: POST, url: "https://jira.acme.com/issues/{id}/comments", headers: { Authorization: "Bearer {{credential:jira.token}}" } }
  ask_customer_system:
    description: The caller runs this one and posts its result.
    parameters: { type: object }
    external: { result: { type: object } }         # pauses with kind external_result; JSON Schema of the result, default: anything
agents:
  billing:
    description: Handles refunds.
    model: main
    instructions: |
      You handle refunds. Ask for guidance when the customer's wish is unclear.
    tools: [lookup_order, refund_payment, ShellCommand, comment_ticket]
    human: [guidance, credentials, confirmation]   # offers the model request_human_guidance, request_credentials, request_confirmation
    sub_agents: [analyst]                          # offers a tool `analyst` with {"task": "…"}; { agent: analyst, session: true } keeps its conversation over the calls of one root task
    open_to: { groups: [support] }                 # tenants, users, groups; default: everybody; for others it is unknown (422)
    limits: { max_model_calls: 25, max_duration: 1h, max_depth: 5, max_rejections: 3, max_children: 8, max_tasks: 50, max_calls: 16 }
  analyst: { description: Answers questions from the data., model: main, tools: [lookup_order] }
default_agent: billing                   # needed when there are several
policy:                                  # first rule that matches decides; what no rule matches is held
  - { name: reads,        tools: [lookup_order], decide: allow }
  - { name: small-refund, tools: [refund_payment], when: "args.amount <= 20.0", decide: allow }
  - name: large-refund
    tools: [refund_payment]
    decide: hold                         # allow | hold | deny
    reason: Refunds above 20 need finance.
    message: null                        # instead of "Human intervention required."
    approvers: { groups: [finance], users: [], required: 1 }   # owner: true only where neither users nor groups are named, or where it is said
    expires_in: 24h                      # default 24h; never
    on_expiry: continue                  # continue (default: the model is told it expired) | cancel
    on_reject: cancel                    # cancel (default) | continue | cancel_root
    allow: [approve, reject, edit, respond]     # of an approval; default: all
  - { name: no-root, tools: [ShellCommand], when: "args.command.contains('sudo')", decide: deny, reason: No root. }
"#;

const VARIABLES: [(&str, &str); 9] = [
    ("ALICE_KEY", "alice-key-0123456789"),
    ("BOB_KEY", "bob-key-0123456789abc"),
    ("WEB_KEY", "web-key-0123456789abc"),
    ("OPS_KEY", "ops-key-0123456789abc"),
    (
        "SEALING_KEY",
        "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
    ),
    ("OPENAI_API_KEY", "sk-very-secret-value"),
    ("ORDERS_KEY", "orders-secret-value"),
    ("PATH", "/usr/bin"),
    ("SHORT", "sk-short"),
];

pub(super) fn with(
    text: &str,
    more: &[(&str, &str)],
    flags: &Flags,
) -> Result<(Config, ConfigReport), ConfigReport> {
    let variables: Vec<_> = VARIABLES.iter().chain(more).copied().collect();
    let source = Source::File("/etc/holdpoint/holdpoint.yaml".into(), text.to_owned());
    load(
        source,
        &Environment::new(&variables, &[("/run/key", "key-from-a-file-012345\n")]),
        flags,
        |_, _| {},
    )
}

pub(super) fn read(text: &str) -> Result<Config, Vec<String>> {
    with(text, &[], &Flags::default())
        .map(|(config, _)| config)
        .map_err(|report| lines(&report))
}

fn lines(report: &ConfigReport) -> Vec<String> {
    let short = |line: &ReportLine| {
        line.to_string()
            .replace("/etc/holdpoint/holdpoint.yaml:", "")
    };
    report.mistakes.iter().map(short).collect()
}

use report::ReportLine;

#[test]
fn complete_file_of_the_contract_loads() {
    let config = read(WHOLE).unwrap();
    assert_eq!(config.default_agent, "billing");
    assert_eq!(
        config.server.public_url.as_deref(),
        Some("http://127.0.0.1:8080")
    );
    assert_eq!(
        config.tools["ShellCommand"]
            .shell
            .as_ref()
            .unwrap()
            .working_dir,
        "/srv/ops"
    );
    let rules = config.rules();
    let catalog = Catalog::build(
        config.tools.clone(),
        &Net::new().unwrap(),
        &Arc::default(),
        &mut Mistakes::default(),
    );
    let catalog = config.with_human_tools(catalog);
    assert!(catalog.agent("analyst").is_some() && catalog.agent("billing").is_none());
    let (plain, finance) = (rules[0].terms(), rules[2].terms());
    assert!(!finance.approvers.owner && finance.approvers.groups == ["finance"]);
    assert_eq!(
        Terms {
            approvers: plain.approvers.clone(),
            ..finance
        },
        plain,
        "what it writes are the defaults"
    );
    assert_eq!(plain, Terms::default());
    let shell = config.tools["ShellCommand"].shell.as_ref().unwrap();
    assert_eq!(shell.env.0["PATH"].as_ref().unwrap().reveal(), "/usr/bin");
    assert_eq!(shell.max_output, 65_536);
    assert_eq!(
        config.database.url.reveal(),
        "sqlite:///etc/holdpoint/holdpoint.db"
    );
    assert_eq!(
        config.agents["billing"].limits,
        crate::task::limits::Limits::default()
    );
    assert_eq!(
        config.server,
        ServerSettings {
            public_url: config.server.public_url.clone(),
            ..ServerSettings::default()
        }
    );
}

#[test]
fn certificates_of_a_postgres_url_are_relative_to_the_file() {
    let url = "url: sqlite://holdpoint.db";
    assert!(WHOLE.contains(url));
    let resolved = |query: &str| {
        let text = WHOLE.replace(url, &format!("url: \"postgres://h:p%2Fw@db/h{query}\""));
        read(&text).unwrap().database.url.reveal().clone()
    };
    assert_eq!(
        resolved("?sslmode=verify-full&sslrootcert=ca.pem&sslkey=/run/key.pem"),
        "postgres://h:p%2Fw@db/h?sslmode=verify-full&sslrootcert=%2Fetc%2Fholdpoint%2Fca.pem\
         &sslkey=%2Frun%2Fkey.pem"
    );
    let inline = "?ssl-root-cert=-----BEGIN+CERTIFICATE-----";
    for unchanged in ["", "?sslmode=disable&options=-c%20x%3D1", inline] {
        assert!(resolved(unchanged).ends_with(unchanged), "{unchanged}");
    }
}

#[test]
fn public_url_loses_the_slash_at_its_end() {
    let url = "public_url: http://127.0.0.1:8080";
    assert!(WHOLE.contains(url));
    let config = read(&WHOLE.replace(url, "public_url: https://hold.example/base/")).unwrap();
    assert_eq!(
        config.server.public_url.as_deref(),
        Some("https://hold.example/base")
    );
}

/// Returns the ways in which a file does not fit the schema.
fn schema_errors(text: &str) -> Vec<String> {
    let validator = jsonschema::validator_for(&schema::schema()).unwrap();
    let json = tree::parse(text, None, &mut Mistakes::default())
        .unwrap()
        .to_json();
    let errors = validator.iter_errors(&json);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

#[test]
fn complete_file_fits_its_schema() {
    assert_eq!(schema_errors(WHOLE), Vec::<String>::new());
}

#[test]
fn smallest_file_and_demonstration_load() {
    let config = read(SMALLEST).unwrap();
    assert_eq!(
        (config.default_agent.as_str(), config.auth.is_none()),
        ("helper", true)
    );
    assert_eq!(config.models["main"].base_url, None);
    let (demo, report) = load(
        Source::Demo,
        &Environment::default(),
        &Flags::default(),
        |_, _| {},
    )
    .unwrap();
    assert!(demo.demo && report == ConfigReport::default());
    assert_eq!(
        (
            demo.default_agent.as_str(),
            demo.database.url.reveal().as_str()
        ),
        ("demo", "sqlite://holdpoint.db")
    );
    let contract = "
models: { main: { provider: openai, model: gpt-4.1-mini, api_key: \"${OPENAI_API_KEY}\" } }
tools:  { orders: { effect: read_only, http: { method: GET, url: \"http://127.0.0.1:9000/orders/{id}\" }, parameters: { type: object, properties: { id: { type: string } }, required: [id] } } }
agents: { helper: { model: main, tools: [orders] } }";
    read(contract).unwrap();
}

#[test]
fn flag_overrides_the_environment_which_overrides_the_file() {
    let variables = [
        ("HOLDPOINT_SERVER__LISTEN", "127.0.0.1:1"),
        ("HOLDPOINT_DATABASE__URL", "sqlite://there.db"),
    ];
    let (config, _) = with(WHOLE, &variables, &Flags::default()).unwrap();
    assert_eq!(config.server.listen, "127.0.0.1:1");
    assert_eq!(
        config.database.url.reveal(),
        "sqlite://there.db",
        "relative to where the variable was set"
    );
    let flags = Flags {
        listen: Some("127.0.0.1:2".into()),
        database_url: Some("postgres://h/d".into()),
    };
    let (config, _) = with(WHOLE, &variables, &flags).unwrap();
    assert_eq!(
        (
            config.server.listen.as_str(),
            config.database.url.reveal().as_str()
        ),
        ("127.0.0.1:2", "postgres://h/d")
    );
    let flags = Flags {
        listen: Some("nowhere".into()),
        database_url: None,
    };
    let report = with(WHOLE, &[("HOLDPOINT_SERVER__WAIT", "soon")], &flags).unwrap_err();
    assert_eq!(
        lines(&report),
        [
            "HOLDPOINT_SERVER__WAIT: server.wait: expected a duration such as `500ms`, `30s`, `10m`, `24h` or `7d`",
            "--listen: server.listen: expected an address and a port such as `127.0.0.1:8080`",
        ]
    );
}

#[test]
fn every_agent_is_read_back_unchanged_from_its_definition() {
    let (config, _) = with(WHOLE, &[], &Flags::default()).unwrap();
    let agents = config.agents();
    for agent in agents.all() {
        let back = agents
            .pinned(agent, &agent.version, &agent.definition)
            .unwrap();
        assert_eq!(back, **agent);
        for secret in &config.secret_values {
            assert!(
                !agent.definition.contains(secret.1.reveal()),
                "{}",
                secret.0
            );
        }
    }
    let text = "models: { m: { provider: openai, model: x, api_key: '${KEY}' } }
agents: { a: { model: m, instructions: 'Say ${WORD}.' } }";
    let agents =
        |variables: &[(&str, &str)]| with(text, variables, &Flags::default()).unwrap().0.agents();
    let first = agents(&[("KEY", "a-key-0123456789"), ("WORD", "one")]);
    let agent = first.get("a").unwrap();
    let (version, definition) = (&agent.version, &agent.definition);
    assert!(definition.contains("Say ${WORD}."));
    let second = agents(&[("KEY", "a-key-0123456789"), ("WORD", "two")]);
    assert_eq!(
        second.get("a").unwrap().version,
        *version,
        "it is over what is written"
    );
    assert_eq!(
        second
            .pinned(agent, version, definition)
            .unwrap()
            .instructions,
        "Say two."
    );
    let third = agents(&[("KEY", "the-word-0123456"), ("WORD", "the-word-0123456")]);
    let error = third.pinned(agent, version, definition).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`WORD` is a secret of this configuration"
    );
}

#[test]
fn stored_definition_takes_short_and_empty_values_and_those_that_the_file_shows_too() {
    let text = "models: { m: { provider: openai, model: x, api_key: '${KEY}' } }
agents: { a: { model: m, tools: [t], instructions: 'Say ${WORD}.${A:-}' } }
tools: { t: { http: { url: 'http://h/', headers: { X: '${WORD}', Y: '${B:-}' } } } }";
    let load = |text: &str, word: &str| {
        let variables = [("KEY", "a-key-0123456789"), ("WORD", word)];
        with(text, &variables, &Flags::default())
            .unwrap()
            .0
            .agents()
    };
    let first = load(text, "before");
    let agent = first.get("a").unwrap();
    let pinned = |agents: &Agents| agents.pinned(agent, &agent.version, &agent.definition);
    for word in ["one", "eu-central-1"] {
        let now = load(text, word);
        assert_eq!(pinned(&now).unwrap().instructions, format!("Say {word}."));
    }
    let silent = text.replace("Say ${WORD}.${A:-}", "Nothing.");
    assert_eq!(
        pinned(&load(&silent, "one")).unwrap().instructions,
        "Say one."
    );
    assert_eq!(
        pinned(&load(&silent, "eu-central-1"))
            .unwrap_err()
            .to_string(),
        "`WORD` is a secret of this configuration"
    );
}

#[test]
fn schema_accepts_the_complete_file() {
    assert_eq!(schema_errors(WHOLE), Vec::<String>::new());
}

#[test]
fn mistakes_of_other_modules_are_reported_with_the_rest_but_not_twice() {
    let text = format!(
        "{BASE}{TOOL}policy: [{{ name: x, tools: [gone], decide: hold, when: '1' }}]\ndatabase: {{ url: 'postgres://h@localhost/h' }}\n"
    );
    let source = Source::File("f.yaml".into(), text);
    let rooms = |config: &Config, mistakes: &mut Mistakes| {
        assert_eq!(config.policy[0].when.as_deref(), Some("1"));
        mistakes.add(&["policy", "0", "tools"], "this follows from the other one");
        mistakes.add(&["policy", "0", "when"], "not a condition");
        mistakes.warn(&["agents", "a"], "a warning");
    };
    let report = load(source, &Environment::default(), &Flags::default(), rooms).unwrap_err();
    assert_eq!(
        report.to_string(),
        "f.yaml:4:29: policy[0].tools[0]: rule `x`: `gone` names no tool\nf.yaml:4:50: policy[0].when: rule `x`: not a condition\nwarning: f.yaml:2:11: agents.a: a warning\n"
    );
}

#[test]
fn file_damaged_anywhere_is_read_to_its_end() {
    let (lines, step): (Vec<&str>, _) = (WHOLE.lines().collect(), repetitions(2, 1));
    for at in 0..lines.len() {
        let (key, _) = lines[at].split_once(':').unwrap_or((lines[at], ""));
        let damages = [
            String::new(),
            format!("{key}: 7"),
            format!("{key}: [x]"),
            format!("{key}: {{ x: y }}"),
            format!("{key}:"),
        ];
        for damage in damages.iter().skip(at % step).step_by(step) {
            let whole = [&lines[..at], &[damage.as_str()][..], &lines[at + 1..]].concat();
            let _ = read(&whole.join("\n"));
        }
    }
    for (end, _) in WHOLE.char_indices().step_by(repetitions(111, 37)) {
        let _ = read(&WHOLE[..end]);
    }
}

#[test]
fn relative_paths_are_relative_to_the_file() {
    let text = WHOLE
        .replace("working_dir: /srv/ops", "working_dir: ops")
        .replace("env: [PATH]", "env: [PATH, GONE]");
    let text = text.replace("script: builtin:refunds", "script: rules.yaml");
    let (config, report) = with(&text, &[], &Flags::default()).unwrap();
    assert_eq!(
        config.tools["ShellCommand"]
            .shell
            .as_ref()
            .unwrap()
            .working_dir,
        "/etc/holdpoint/ops"
    );
    assert_eq!(
        config.models["demo"].script.as_deref(),
        Some("/etc/holdpoint/rules.yaml")
    );
    assert_eq!(
        config.tools["ShellCommand"].shell.as_ref().unwrap().env.0["GONE"],
        None
    );
    let warned = report
        .warnings
        .iter()
        .filter(|line| line.detail.contains("is not set, so it is not passed on"));
    assert_eq!(warned.count(), 1, "{report}");
}

#[test]
fn version_of_an_agent_depends_only_on_its_own_definition() {
    let config = read(WHOLE).unwrap();
    let agents = config.agents();
    assert_eq!(agents.default_name(), "billing");
    assert!(agents.find(None, "acme", &"alice".into(), &[]).is_none());
    let found = agents
        .find(None, "acme", &"alice".into(), &["support".to_owned()])
        .unwrap();
    assert!(found.version.starts_with("sha256:"));
    let other = read(&WHOLE.replace("You handle refunds.", "You handle returns."))
        .unwrap()
        .agents();
    assert_ne!(other.get("billing").unwrap().version, found.version);
    assert_eq!(
        other.get("analyst").unwrap().version,
        agents.get("analyst").unwrap().version
    );
}
