//! Whole files: what loads, and what is said of what does not.

use super::*;

/// The file of the configuration page, whole.
const WHOLE: &str = r#"
server:
  listen: 127.0.0.1:8080
  public_url: http://127.0.0.1:8080      # what links begin with (default http://<listen>); may carry a path, which the proxy strips. Needed when not on loopback
  request_url: null                      # "https://app.acme.com/approvals/{request_id}": your own page instead of `url`
  cors_origins: []                       # frontends on other origins
  wait: 10s                              # how long a POST waits unless it says so (300s at most)
  max_running: 64                        # tasks that run at once in this process; more wait in the database, fairly by tenant
  max_streams: 1000                      # and max_streams_per_caller: 20, stream_life: 1h
database:
  url: sqlite://holdpoint.db             # the embedded default; postgres://user@host/db in production
  max_connections: 32                    # and acquire_timeout: 5s, statement_timeout: 10s
  migrate: true
auth:                                    # without it: loopback only, everybody is `local` (section 4)
  api_keys:                              # Authorization: Bearer <key>; at least 16 characters, each once; the same user twice has the same groups
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
    provider: openai                     # openai (Chat Completions, any base_url) | anthropic | scripted
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
    ("SEALING_KEY", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="),
    ("OPENAI_API_KEY", "sk-very-secret-value"),
    ("ORDERS_KEY", "orders-secret-value"),
    ("PATH", "/usr/bin"),
    ("SHORT", "sk-short"),
];

fn with(text: &str, more: &[(&str, &str)], flags: &Flags) -> Result<(Config, Report), Report> {
    let variables: Vec<_> = VARIABLES.iter().chain(more).copied().collect();
    let source = Source::File("/etc/holdpoint/holdpoint.yaml".into(), text.to_owned());
    load(source, &Environment::of(&variables, &[("/run/key", "key-from-a-file-012345\n")]), flags, |_, _| {})
}

fn read(text: &str) -> Result<Config, Vec<String>> {
    with(text, &[], &Flags::default()).map(|(config, _)| config).map_err(|report| lines(&report))
}

fn lines(report: &Report) -> Vec<String> {
    let short = |line: &Line| line.to_string().replace("/etc/holdpoint/holdpoint.yaml:", "");
    report.mistakes.iter().map(short).collect()
}

use report::Line;

#[test]
fn the_whole_file_of_the_contract_loads() {
    let config = read(WHOLE).unwrap();
    assert_eq!(config.default_agent, "billing");
    assert_eq!(config.server.public_url.as_deref(), Some("http://127.0.0.1:8080"));
    assert_eq!(config.tools["ShellCommand"].shell.as_ref().unwrap().working_dir, "/srv/ops");
    let rule = config.policy[2].terms();
    assert!(!rule.approvers.owner && rule.approvers.groups == ["finance"]);
    assert_eq!(rule, RuleSettings { approvers: config.policy[2].approvers.clone(), ..RuleSettings::default() }.terms());
    assert!(config.policy[0].approvers.owner());
    let shell = config.tools["ShellCommand"].shell.as_ref().unwrap();
    assert_eq!(shell.env.0["PATH"].as_ref().unwrap().reveal(), "/usr/bin");
    assert_eq!(shell.max_output, 65_536);
    assert_eq!(config.database.url.reveal(), "sqlite:///etc/holdpoint/holdpoint.db");
    assert_eq!(config.agents["billing"].limits, parts::LimitsSettings::default());
    assert_eq!(
        config.server,
        ServerSettings { public_url: config.server.public_url.clone(), ..ServerSettings::default() }
    );
}

#[test]
fn the_whole_file_fits_its_schema() {
    let validator = jsonschema::validator_for(&schema::schema()).unwrap();
    let json = tree::parse(WHOLE, None, &mut Mistakes::default()).unwrap().to_json();
    let errors: Vec<_> = validator.iter_errors(&json).map(|error| error.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn the_smallest_file_and_the_demonstration_load() {
    let config = read(SMALLEST).unwrap();
    assert_eq!((config.default_agent.as_str(), config.auth.is_none()), ("helper", true));
    assert_eq!(config.models["main"].base_url.as_deref(), Some("https://api.openai.com/v1"));
    let (demo, report) = load(Source::Demo, &Environment::default(), &Flags::default(), |_, _| {}).unwrap();
    assert!(demo.demo && report == Report::default());
    assert_eq!((demo.default_agent.as_str(), demo.database.url.reveal().as_str()), ("demo", "sqlite://holdpoint.db"));
    let contract = "
models: { main: { provider: openai, model: gpt-4.1-mini, api_key: \"${OPENAI_API_KEY}\" } }
tools:  { orders: { effect: read_only, http: { method: GET, url: \"http://127.0.0.1:9000/orders/{id}\" }, parameters: { type: object, properties: { id: { type: string } }, required: [id] } } }
agents: { helper: { model: main, tools: [orders] } }";
    read(contract).unwrap();
}

/// Two lines that are right, for files that are about something else. (The first line of a case is line 3.)
const BASE: &str = "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m, tools: [t] } }\n";
const TOOL: &str = "tools: { t: { http: { url: 'http://h/' } }, s: { shell: {} } }\n";
const AUTH: &str = "auth: { api_keys: [ { user: bob, groups: [g], key: '0123456789abcdef' }, { user: eve, key: '0123456789abcdeF' } ] }\n";

/// What follows [`BASE`], and all that is said of it.
const BAD: &[(&str, &[&str])] = &[
    // unknown keys, at every level
    (
        "serverr: {}\n",
        &[
            "3:1: serverr: unknown key `serverr`; known are `server`, `database`, `auth`, `secrets`, `credentials`, `models`, `tools`, `agents`, `default_agent`, `policy`",
        ],
    ),
    (
        "database: { urls: 1 }\n",
        &[
            "3:13: database.urls: unknown key `urls`; known are `url`, `max_connections`, `acquire_timeout`, `statement_timeout`, `migrate`",
        ],
    ),
    (
        "policy: [{ name: x, tools: [t], decide: hold, approvers: { group: [g] } }]\n",
        &["3:60: policy[0].approvers.group: unknown key `group`; known are `owner`, `users`, `groups`, `required`"],
    ),
    // wrong types
    (
        "server: { max_running: many, cors_origins: x, wait: 10 }\n",
        &[
            "3:11: server.max_running: expected a whole number, 0 or more, found text",
            "3:30: server.cors_origins: expected a list, found text",
            "3:47: server.wait: expected a duration such as `500ms`, `30s`, `10m`, `24h` or `7d`, found a number",
        ],
    ),
    ("server: []\n", &["3:1: server: expected a map, found a list"]),
    ("database: { migrate: yes }\n", &["3:13: database.migrate: expected true or false, found text"]),
    ("policy: {}\n", &["3:1: policy: expected a list, found a map"]),
    (
        "policy: [5, { name: x, tools: [t], decide: perhaps }]\n",
        &[
            "3:10: policy[0]: expected a map, found a number",
            "3:36: policy[1].decide: expected one of `allow`, `hold`, `deny`",
        ],
    ),
    ("auth:\n", &["3:1: auth: expected a map, found nothing"]),
    // repeated keys
    ("server: { wait: 1s, wait: 2s }\n", &["3:21: server.wait: the key `wait` is here for the second time"]),
    ("database: {}\ndatabase: {}\n", &["4:1: database: the key `database` is here for the second time"]),
    // durations and sizes
    (
        "server: { wait: 5 minutes }\n",
        &["3:11: server.wait: expected a duration such as `500ms`, `30s`, `10m`, `24h` or `7d`"],
    ),
    ("server: { wait: 301s }\n", &["3:11: server.wait: a POST waits `300s` at most"]),
    (
        "policy: [{ name: x, tools: [t], decide: hold, expires_in: soon }]\n",
        &["3:47: policy[0].expires_in: expected a duration such as `30s`, `24h` or `7d`, or `never`"],
    ),
    // the service
    (
        "server: { listen: nowhere }\n",
        &["3:11: server.listen: expected an address and a port such as `127.0.0.1:8080`"],
    ),
    (
        "server: { listen: '0.0.0.0:80' }\n",
        &[
            "3:11: server.listen: without `auth` the service listens on loopback only: name the people under `auth`, or listen on `127.0.0.1`",
            "3:11: server.listen: `server.public_url` is needed when `listen` is not on loopback: links begin with it",
        ],
    ),
    (
        "server: { public_url: 'ftp://x', request_url: 'https://x/', cors_origins: ['*', 'https://a.b/', 'null', 'https://ok.com'] }\n",
        &[
            "3:11: server.public_url: expected an address such as `https://host/path`, without user, query or fragment",
            "3:34: server.request_url: expected an address with `{request_id}` in it, such as `https://host/approvals/{request_id}`",
            "3:76: server.cors_origins[0]: expected an origin such as `https://app.acme.com`: scheme, host and port, nothing after it",
            "3:81: server.cors_origins[1]: expected an origin such as `https://app.acme.com`: scheme, host and port, nothing after it",
            "3:97: server.cors_origins[2]: expected an origin such as `https://app.acme.com`: scheme, host and port, nothing after it",
        ],
    ),
    (
        "server: { max_running: 0, max_streams: -1 }\n",
        &[
            "3:11: server.max_running: expected 1 or more",
            "3:27: server.max_streams: expected a whole number, 0 or more",
        ],
    ),
    (
        "database: { url: 'mysql://x' }\n",
        &["3:13: database.url: expected `sqlite://<file>` or `postgres://user@host/db`"],
    ),
    // people
    (
        "auth: { api_keys: [] }\n",
        &["3:1: auth: `api_keys` names nobody, so nobody could come in; without accounts there is no `auth`"],
    ),
    (
        "auth: { api_keys: [ { user: bob, key: short-key }, { user: eve }, { key: '0123456789abcdef' } ] }\n",
        &[
            "3:34: auth.api_keys[0].key: a key has at least 16 characters",
            "3:52: auth.api_keys[1]: `key` or `key_sha256` is missing",
            "3:67: auth.api_keys[2]: `user` is missing",
        ],
    ),
    (
        "auth: { api_keys: [ { user: a b, key: '0123456789abcdef' }, { user: eve, key: '0123456789abcdef', groups: ['x,y'], may: [write] } ] }\n",
        &[
            "3:23: auth.api_keys[0].user: a user is 1 to 128 visible characters without blanks",
            "3:61: auth.api_keys[1]: this key is here for the second time; each has its own",
            "3:108: auth.api_keys[1].groups[0]: a group is 1 to 128 visible characters without commas",
            "3:122: auth.api_keys[1].may[0]: expected one of `create`, `read`, `decide`",
        ],
    ),
    (
        "auth: { api_keys: [ { user: bob, key_sha256: abc }, { user: bob, groups: [g], key: '0123456789abcdef', key_sha256: abc } ] }\n",
        &[
            "3:34: auth.api_keys[0].key_sha256: expected a SHA-256: 64 hex digits",
            "3:53: auth.api_keys[1]: `key` or `key_sha256` is said, not both",
            "3:66: auth.api_keys[1].groups: the user `bob` is here with other groups; the same user has the same groups",
        ],
    ),
    (
        "secrets: { keys: [ { id: a, key: 'c2hvcnQ=' }, { id: a, key: 'MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=' }, {} ] }\n",
        &[
            "3:29: secrets.keys[0].key: expected 32 bytes in base64 (`openssl rand -base64 32`)",
            "3:50: secrets.keys[1].id: the id `a` is here for the second time",
            "3:112: secrets.keys[2]: `id` is missing",
            "3:112: secrets.keys[2]: `key` is missing",
        ],
    ),
    (
        "credentials: { 'a b': { fields: { x: { kind: y } } }, c: {} }\n",
        &[
            "3:16: credentials.a b: `a b` cannot be the name of a credential: a name is 1 to 64 of `A-Z a-z 0-9 _ -`",
            "3:40: credentials.a b.fields.x.kind: unknown key `kind`; known are `format`, `description`",
            "3:55: credentials.c: `fields` is missing",
        ],
    ),
    // rules
    (
        "policy: [{ name: x, tools: [gone, 'g*', t, '[a'], decide: hold }, { name: x, tools: [t], decide: hold }]\n",
        &[
            "3:29: policy[0].tools[0]: `gone` names no tool",
            "3:35: policy[0].tools[1]: `g*` names no tool",
            "3:44: policy[0].tools[3]: `[a` is neither a name nor a glob",
            "3:69: policy[1].name: a rule before this one is called `x` too",
        ],
    ),
    (
        "policy: [{}]\n",
        &[
            "3:10: policy[0]: `name` is missing",
            "3:10: policy[0]: `tools` is missing",
            "3:10: policy[0]: `decide` is missing",
        ],
    ),
    (
        "policy: [{ name: x, tools: ['*'], decide: allow }]\n",
        &["3:35: policy[0].decide: without `auth` no rule may allow a shell tool, and this one allows `s`"],
    ),
    (
        "policy: [{ name: x, tools: ['request_*'], decide: hold }, { name: y, tools: [request_confirmation, a], decide: hold }]\n",
        &["3:29: policy[0].tools[0]: `request_*` names no tool", "3:100: policy[1].tools[1]: `a` names no tool"],
    ),
    (
        "policy: [{ name: x, tools: [t], decide: hold, approvers: { required: 0 }, allow: [approve, retry], on_expiry: wait, on_reject: stop, expires_in: 0s }, { name: y, tools: [t], decide: deny, allow: [] }]\n",
        &[
            "3:60: policy[0].approvers.required: expected 1 or more",
            "3:92: policy[0].allow[1]: `retry` is no answer to an approval: known are `approve`, `reject`, `edit`, `respond`",
            "3:100: policy[0].on_expiry: expected one of `continue`, `cancel`",
            "3:117: policy[0].on_reject: expected one of `continue`, `cancel`, `cancel_root`",
            "3:134: policy[0].expires_in: expected more than nothing; without a deadline it is `never`",
            "3:189: policy[1].allow: an approval that allows no answer could not be answered",
        ],
    ),
    // the default agent
    ("default_agent: b\n", &["3:1: default_agent: no agent is called `b`"]),
    ("default_agent: [a]\n", &["3:1: default_agent: expected text, found a list"]),
    // interpolation
    (
        "server: { public_url: '${GONE}', cors_origins: ['${file:/gone}', '${'] }\n",
        &[
            "3:11: server.public_url: the variable `GONE` is not set",
            "3:49: server.cors_origins[0]: the file `/gone` cannot be read: entity not found",
            "3:66: server.cors_origins[1]: a `${` has no `}`; a literal one is written `$${`",
        ],
    ),
    (
        "server: { max_running: '${SHORT}' }\n",
        &["3:11: server.max_running: expected a whole number, 0 or more, found text"],
    ),
    // no YAML
    ("server: { listen: [\n", &["3:19: this is no YAML: a value, a quote or an indentation is wrong here"]),
    ("---\nserver: {}\n---\n{}\n", &["3:1: a second document begins here; one is read"]),
];

#[test]
fn every_mistake_is_found_at_its_place() {
    for (text, expected) in BAD {
        let found = read(&format!("{BASE}{text}{TOOL}")).err().unwrap_or_default();
        assert_eq!(found, *expected, "{text}");
    }
}

/// Whole files about models, tools and agents, and all that is said of them.
const BAD_PARTS: &[(&str, &[&str])] = &[
    ("", &["1:1: `models` is missing", "1:1: `agents` is missing"]),
    ("[]", &["1:1: expected a map, found a list"]),
    ("models: {}\nagents: {}\n", &["1:1: models: `models` is empty", "2:1: agents: `agents` is empty"]),
    (
        "models: 5\nagents: { a: { model: m } }\n",
        &["1:1: models: expected a map, found a number", "2:16: agents.a.model: no model is called `m`"],
    ),
    (
        "models: { m: { provider: openai, modle: x } }\nagents: { a: { model: m } }\n",
        &[
            "1:11: models.m: `model` is missing: the model's name at its provider",
            "1:34: models.m.modle: unknown key `modle`; known are `provider`, `base_url`, `model`, `api_key`, `timeout`, `retries`, `headers`, `query`, `body`, `script`",
        ],
    ),
    (
        "models: { m: { provider: google }, n: { model: x }, o: { provider: scripted }, p: { provider: openai, model: x, script: f, timeout: 0s } }\nagents: { a: { model: m } }\n",
        &[
            "1:16: models.m.provider: expected one of `openai`, `anthropic`, `scripted`",
            "1:36: models.n: `provider` is missing",
            "1:53: models.o: `script` is missing: a scripted model has a file, or `builtin:refunds`",
            "1:113: models.p.script: `script` is of a `scripted` model only",
            "1:124: models.p.timeout: expected more than nothing",
        ],
    ),
    (
        "models: { m: { provider: openai, model: x, base_url: nowhere, headers: { 'a b': '1', C: 1 }, body: { stream: true, messages: [], n: 1 } } }\nagents: { a: { model: m } }\n",
        &[
            "1:44: models.m.base_url: expected an address such as `https://api.openai.com/v1`",
            "1:74: models.m.headers.a b: `a b` cannot be the name of a header",
            "1:86: models.m.headers.C: expected text, found a number",
            "1:102: models.m.body.stream: a model's `body` may not name `stream`: the service writes it",
            "1:116: models.m.body.messages: a model's `body` may not name `messages`: the service writes it",
        ],
    ),
    (
        "models: { m: { provider: scripted, script: builtin:other } }\nagents: { 'a.b': { model: m } }\n",
        &[
            "1:36: models.m.script: there is one built-in script, `builtin:refunds`",
            "2:11: agents.a.b: `a.b` cannot be the name of an agent: a name is 1 to 64 of `A-Z a-z 0-9 _ -`",
        ],
    ),
    (
        "models: { m: { provider: openai, model: x } }\nagents: { a: { model: n }, b: {}, c: 7 }\n",
        &[
            "1:1: `default_agent` is missing: it is needed when there are several agents",
            "2:16: agents.a.model: no model is called `n`",
            "2:28: agents.b: `model` is missing",
            "2:35: agents.c: expected a map, found a number",
        ],
    ),
    (
        "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m, tools: [gone, t, t, request_credentials], sub_agents: [b, t, { agent: a, sesion: true }, {}], human: [guidance, guidance, coffee] }, t: { model: m } }\ntools: { t: { http: { url: 'http://h/' } } }\ndefault_agent: a\n",
        &[
            "2:34: agents.a.tools[0]: no tool is called `gone`",
            "2:43: agents.a.tools[2]: `t` is here for the second time",
            "2:46: agents.a.tools[3]: no tool is called `request_credentials`",
            "2:46: agents.a.tools[3]: the name `request_credentials` is kept for `human`",
            "2:81: agents.a.sub_agents[0]: no agent is called `b`",
            "2:84: agents.a.sub_agents[1]: `t` is in `tools` too: an agent's tools, sub-agents and `human` share one name space",
            "2:99: agents.a.sub_agents[2].sesion: unknown key `sesion`; known are `agent`, `session`",
            "2:115: agents.a.sub_agents[3]: `agent` is missing",
            "2:138: agents.a.human[1]: `request_human_guidance` is here for the second time",
            "2:148: agents.a.human[2]: expected one of `guidance`, `credentials`, `confirmation`",
        ],
    ),
    (
        "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m, human: [credentials], limits: { max_calls: 0, max_duration: 0s, max_cost: 1 } } }\n",
        &[
            "2:26: agents.a.human: `credentials` is offered, but nothing is named under `credentials` that it could ask for",
            "2:26: agents.a.human: `credentials` needs a key under `secrets.keys`, which seals what is given",
            "2:58: agents.a.limits.max_calls: expected 1 or more",
            "2:72: agents.a.limits.max_duration: expected more than nothing",
            "2:90: agents.a.limits.max_cost: unknown key `max_cost`; known are `max_model_calls`, `max_duration`, `max_depth`, `max_rejections`, `max_children`, `max_tasks`, `max_calls`",
        ],
    ),
    (
        "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m } }\ntools:\n  t: {}\n  u: { http: { url: 'http://h/' }, shell: {} }\n  v: { http: { method: FETCH, timeout: 11m } }\n  w: { effect: twice, http: }\n  x: { shell: { timeout: 11m, max_output: 1GB }, parameters: {} }\n  'y y': { external: {} }\n",
        &[
            "4:3: tools.t: one of `http`, `shell` and `external` is missing: who performs it",
            "5:3: tools.u: one of `http`, `shell` and `external` is said, not several",
            "6:8: tools.v.http: `url` is missing",
            "6:16: tools.v.http.method: expected one of `GET`, `POST`, `PUT`, `PATCH`, `DELETE`",
            "6:31: tools.v.http.timeout: a tool's timeout is `10m` at most",
            "7:8: tools.w.effect: expected one of `read_only`, `idempotent`, `once`",
            "7:23: tools.w.http: expected a map, found nothing",
            "8:17: tools.x.shell.timeout: a tool's timeout is `10m` at most",
            "8:31: tools.x.shell.max_output: expected a size such as `64KiB` or `1MiB`",
            "8:50: tools.x.parameters: a shell tool's argument is `command`; it has no `parameters`",
            "9:3: tools.y y: `y y` cannot be the name of a tool: a name is 1 to 64 of `A-Z a-z 0-9 _ -`",
        ],
    ),
    (
        "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m } }\ntools:\n  t:\n    parameters: { properties: { amount: {}, Amount: {}, in: { type: object, properties: { a: {}, A: {} } } } }\n    http: { url: 'builtin:other', headers: { Authorization: 'Bearer {{credential:jira.token}}', X: '{{credential:crm.key}}', Y: '{{credential:crm' } }\ncredentials: { crm: { fields: { token: {} } } }\n",
        &[
            "5:33: tools.t.parameters.properties.amount: the parameters `Amount` and `amount` differ only in case",
            "5:91: tools.t.parameters.properties.in.properties.a: the parameters `A` and `a` differ only in case",
            "6:13: tools.t.http.url: the built-in tools are `builtin:refunds/…`",
            "6:46: tools.t.http.headers.Authorization: no credential is called `jira`",
            "6:97: tools.t.http.headers.X: the credential `crm` has no field `key`",
            "6:126: tools.t.http.headers.Y: a `{{credential:` has no `}}`",
        ],
    ),
];

#[test]
fn every_mistake_in_models_tools_and_agents_is_found_at_its_place() {
    for (text, expected) in BAD_PARTS {
        let found = read(text).err().unwrap_or_default();
        assert_eq!(found, *expected, "{text}");
    }
}

#[test]
fn a_rule_that_nobody_could_satisfy_is_refused() {
    let web = AUTH.replace("eve,", "web, act_as: true,");
    let reader = AUTH.replace("bob, groups: [g],", "bob, groups: [g], may: [read],");
    let two_tenants = AUTH.replace("eve,", "eve, tenant: other, groups: [g],");
    for (auth, approvers, required, satisfied) in [
        (AUTH, "", 1, true),
        (AUTH, "", 2, false),
        (AUTH, "users: [bob]", 1, true),
        (AUTH, "users: [bob]", 2, false),
        (AUTH, "users: [bob], owner: true", 2, true),
        (AUTH, "users: [bob, eve], groups: [g]", 2, true),
        (AUTH, "users: [bob, eve], groups: [g]", 3, false),
        (AUTH, "users: [zoe]", 1, false),
        (AUTH, "groups: [none]", 1, false),
        (AUTH, "groups: [g], owner: false", 1, true),
        (AUTH, "owner: false", 1, false),
        (&web, "users: [zoe]", 1, true),
        (&web, "users: [zoe]", 2, false),
        (&web, "groups: [none]", 9, true),
        (&web, "", 2, false),
        (&reader, "users: [bob]", 1, false),
        (&two_tenants, "groups: [g]", 1, true),
        (&two_tenants, "groups: [g]", 2, false),
        ("", "groups: [none]", 3, true),
    ] {
        let comma = if approvers.is_empty() { "" } else { "," };
        let text = format!(
            "{BASE}{TOOL}{auth}policy: [{{ name: x, tools: [t], decide: hold, approvers: {{ {approvers}{comma} required: {required} }} }}]\n"
        );
        let found = read(&text).map(|_| ());
        assert_eq!(found.is_ok(), satisfied, "{auth} {approvers} {required}: {found:?}");
    }
}

#[test]
fn no_message_ever_shows_a_value() {
    let hidden = "sk-hidden-0123456789";
    let text = WHOLE
        .replace("listen: 127.0.0.1:8080", "listen: \"${HIDDEN}\"")
        .replace("timeout: 60s", "timeout: \"${HIDDEN}\"")
        .replace("retries: 4", "retries: \"${HIDDEN}\"")
        .replace("effect: read_only", "effect: \"${HIDDEN}\"")
        .replace("model: main\n", "model: \"${HIDDEN}\"\n")
        .replace("{ X-Key: \"${ORDERS_KEY}\" }", "{ X-Key: \"${HIDDEN}\\n\" }")
        .replace("url: sqlite://holdpoint.db", "url: \"${HIDDEN}\"")
        .replace("{ id: k1, key: \"${SEALING_KEY}\" }", "{ id: k1, key: \"${HIDDEN}\" }")
        .replace(
            "user: bob,   tenant: acme, groups: [finance], key: \"${BOB_KEY}\"",
            "user: bob, groups: \"${HIDDEN}\", key: \"${HIDDEN} \"",
        )
        .replace("tools: [lookup_order], decide: allow", "tools: [\"${HIDDEN}\"], decide: \"${HIDDEN}\"");
    let variables = [
        ("HIDDEN", hidden),
        ("HOLDPOINT_AUTH__API_KEYS__OPS__KEY", "sk-hidden-over 12345678"),
        ("HOLDPOINT_MODELS__MAIN__API_KEY", "[sk-hidden-over"),
    ];
    let report = with(&text, &variables, &Flags::default()).unwrap_err();
    assert!(report.mistakes.len() >= 11, "{report}");
    assert!(!report.to_string().contains("sk-hidden"), "{report}");
    assert!(!format!("{report:?}").contains("sk-hidden"));
}

#[test]
fn secrets_are_found_wherever_they_stand_and_not_in_names_and_texts() {
    let text = WHOLE
        .replace("description: Pay an order back.", "description: \"Shown ${SHOWN}\"")
        .replace("http://payments.internal/refunds", "http://${SHOWN}/refunds")
        .replace("key: \"${BOB_KEY}\"", "key: literal-key-0123456789")
        .replace("body: { temperature: 0 }", "body: { user: \"${file:/run/key}\" }");
    let variables =
        [("SHOWN", "shown-value-1234"), ("HOLDPOINT_TOOLS__REFUND_PAYMENT__HTTP__HEADERS", "{ X: header-secret-1 }")];
    let (config, _) = with(&text, &variables, &Flags::default()).unwrap();
    let names: Vec<_> = config.secret_values.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "ALICE_KEY",
            "WEB_KEY",
            "OPS_KEY",
            "SEALING_KEY",
            "OPENAI_API_KEY",
            "key",
            "ORDERS_KEY",
            "auth.api_keys.1.key",
            "HOLDPOINT_TOOLS__REFUND_PAYMENT__HTTP__HEADERS",
        ]
    );
    let cleaned = config
        .redactor()
        .clean("shown-value-1234 orders-secret-value header-secret-1 key-from-a-file-012345")
        .into_owned();
    assert_eq!(
        cleaned,
        "shown-value-1234 [secret ORDERS_KEY] [secret HOLDPOINT_TOOLS__REFUND_PAYMENT__HTTP__HEADERS] [secret key]"
    );
    let unexpanded = config.unexpanded.to_string();
    for (name, value) in VARIABLES.iter().chain(&variables).filter(|(name, _)| !["PATH", "SHOWN"].contains(name)) {
        assert!(!unexpanded.contains(value), "{name}");
    }
    assert!(!unexpanded.contains("header-secret"));
    assert_eq!(config.unexpanded(&["tools", "lookup_order", "http", "headers", "X-Key"]), "${ORDERS_KEY}");
    assert!(!format!("{config:?}").contains("secret-value"));
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file() {
    let variables = [("HOLDPOINT_SERVER__LISTEN", "127.0.0.1:1"), ("HOLDPOINT_DATABASE__URL", "sqlite://there.db")];
    let (config, _) = with(WHOLE, &variables, &Flags::default()).unwrap();
    assert_eq!(config.server.listen, "127.0.0.1:1");
    assert_eq!(config.database.url.reveal(), "sqlite://there.db", "relative to where the variable was set");
    let flags = Flags { listen: Some("127.0.0.1:2".into()), database_url: Some("postgres://h/d".into()) };
    let (config, _) = with(WHOLE, &variables, &flags).unwrap();
    assert_eq!(
        (config.server.listen.as_str(), config.database.url.reveal().as_str()),
        ("127.0.0.1:2", "postgres://h/d")
    );
    let flags = Flags { listen: Some("nowhere".into()), database_url: None };
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
fn what_the_rooms_find_is_reported_beside_the_rest_but_not_twice() {
    let text = format!("{BASE}{TOOL}policy: [{{ name: x, tools: [gone], decide: hold, when: '1' }}]\n");
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
        "f.yaml:4:29: policy[0].tools[0]: `gone` names no tool\nf.yaml:4:50: policy[0].when: not a condition\nwarning: f.yaml:2:11: agents.a: a warning\n"
    );
}

#[test]
fn a_tool_of_every_kind_has_its_parameters() {
    let config = read(WHOLE).unwrap();
    assert_eq!(config.tools["ShellCommand"].filled_parameters()["required"], serde_json::json!(["command"]));
    assert_eq!(config.tools["ask_customer_system"].filled_parameters(), serde_json::json!({"type": "object"}));
    let agents = config.agents();
    assert_eq!(agents.default_name(), "billing");
    assert!(agents.find(None, "acme", "alice", &[]).is_none());
    let found = agents.find(None, "acme", "alice", &["support".to_owned()]).unwrap();
    assert!(found.version.starts_with("sha256:"));
    let other = read(&WHOLE.replace("You handle refunds.", "You handle returns.")).unwrap().agents();
    assert_ne!(other.get("billing").unwrap().version, found.version);
    assert_eq!(other.get("analyst").unwrap().version, agents.get("analyst").unwrap().version);
}
