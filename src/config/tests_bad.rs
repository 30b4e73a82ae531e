//! Tables of faulty files. Each file is listed with all messages about it.

use super::layers::Flags;
use super::tests::{read, with};
use crate::agent::HumanKind;

mod addresses;
mod approvers;
mod hidden;
mod people;
mod receivers;
mod rooms;

/// Two valid lines that a file begins with, so that the text of a case starts at line 3.
pub(super) const BASE: &str =
    "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m, tools: [t] } }\n";
pub(super) const TOOL: &str = "tools: { t: { http: { url: 'http://h/' } }, s: { shell: {} } }\n";
const AUTH: &str = "auth: { api_keys: [ { user: bob, groups: [g], key: '0123456789abcdef' }, { user: eve, key: '0123456789abcdeF' } ] }\n";

/// Each pair has a text and all messages about the file [`BASE`] + text + [`TOOL`].
const BAD: &[(&str, &[&str])] = &[
    // unknown keys, at every level
    (
        "serverr: {}\n",
        &[
            "3:1: serverr: unknown key `serverr`; known are `server`, `database`, `auth`, `secrets`, `credentials`, `models`, `mcp`, `mcp_lock`, `tools`, `agents`, `gates`, `default_agent`, `policy`, `notify`",
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
        &[
            "3:60: policy[0].approvers.group: rule `x`: unknown key `group`; known are `owner`, `users`, `groups`, `required`, `links`",
        ],
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
    (
        "server: []\n",
        &["3:1: server: expected a map, found a list"],
    ),
    (
        "database: { migrate: yes }\n",
        &["3:13: database.migrate: expected true or false, found text"],
    ),
    (
        "policy: {}\n",
        &["3:1: policy: expected a list, found a map"],
    ),
    (
        "policy: [5, { name: x, tools: [t], decide: perhaps }]\n",
        &[
            "3:10: policy[0]: expected a map, found a number",
            "3:36: policy[1].decide: rule `x`: expected one of `allow`, `hold`, `deny`",
        ],
    ),
    ("auth:\n", &["3:1: auth: expected a map, found nothing"]),
    // repeated keys
    (
        "server: { wait: 1s, wait: 2s }\n",
        &["3:21: server.wait: the key `wait` occurs twice"],
    ),
    (
        "database: {}\ndatabase: {}\n",
        &["4:1: database: the key `database` occurs twice"],
    ),
    // durations and sizes
    (
        "server: { wait: 5 minutes }\n",
        &["3:11: server.wait: expected a duration such as `500ms`, `30s`, `10m`, `24h` or `7d`"],
    ),
    (
        "server: { wait: 301s }\n",
        &["3:11: server.wait: a POST waits `300s` at most"],
    ),
    (
        "policy: [{ name: x, tools: [t], decide: hold, expires_in: soon }]\n",
        &[
            "3:47: policy[0].expires_in: rule `x`: expected a duration such as `30s`, `24h` or `7d`, or `never`",
        ],
    ),
    (
        "server: { wait: 36601d }\npolicy: [{ name: x, tools: [t], decide: hold, expires_in: 106751d }]\n",
        &[
            "3:11: server.wait: expected `36600d` at most",
            "4:47: policy[0].expires_in: rule `x`: expected `36600d` at most",
        ],
    ),
    // `server` and `database`
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
        "server: { cors_origins: ['https://A.b:443', 'http://a.b:443'] }\n",
        &[
            "3:26: server.cors_origins[0]: this is the default port of the scheme, which browsers leave out of an origin: leave it out",
        ],
    ),
    (
        "server: { metrics_listen: nowhere, max_connections: 0 }\n",
        &[
            "3:11: server.metrics_listen: expected an address and a port such as `127.0.0.1:9090`",
            "3:36: server.max_connections: expected 1 or more",
        ],
    ),
    (
        "server: { metrics_listen: '0.0.0.0:9090' }\n",
        &[
            "3:11: server.metrics_listen: without `auth` the service listens on loopback only, for its metrics too",
        ],
    ),
    (
        "server: { listen: '127.0.0.1:9090', metrics_listen: 'localhost:9090' }\n",
        &[
            "3:37: server.metrics_listen: this is `server.listen`: give the metrics an address of their own",
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
        &[
            "3:1: auth: `api_keys` is empty, so every request would be refused: name a key, or leave `auth` out",
        ],
    ),
    (
        "auth: { api_keys: [ { user: bob, key: short-key }, { user: eve }, { key: '0123456789abcdef' }, { user: max, key: 'aabbccddeeffggab' } ] }\n",
        &[
            "3:34: auth.api_keys[0].key: user `bob`: a key has at least 16 characters",
            "3:52: auth.api_keys[1]: user `eve`: `key` or `key_sha256` is missing",
            "3:67: auth.api_keys[2]: `user` is missing",
            "3:109: auth.api_keys[3].key: user `max`: a key has at least 8 different characters",
        ],
    ),
    (
        "auth: { user_ids: fold, api_keys: [ { user: bob, key: '0123456789abcdef' }, { user: BOB, groups: [g], key: '0123456789abcdeF' } ] }\n",
        &[
            "3:9: auth.user_ids: expected one of `folded`, `exact`",
            "3:90: auth.api_keys[1].groups: the user `BOB` has other groups in another key: all keys of a user name the same groups",
        ],
    ),
    (
        "auth: { api_keys: [ { user: a b, key: '0123456789abcdef' }, { user: eve, key: '0123456789abcdef', groups: ['x,y'], may: [write] } ] }\n",
        &[
            "3:23: auth.api_keys[0].user: user `a b`: a user is 1 to 128 visible characters without blanks",
            "3:61: auth.api_keys[1]: user `eve`: this key is used twice: each user has a key of their own",
            "3:108: auth.api_keys[1].groups[0]: user `eve`: a group is 1 to 128 visible characters without commas",
            "3:122: auth.api_keys[1].may[0]: user `eve`: expected one of `create`, `read`, `decide`, `gate`",
        ],
    ),
    (
        "auth: { api_keys: [ { user: bob, key_sha256: abc }, { user: bob, groups: [g], key: '0123456789abcdef', key_sha256: abc } ] }\n",
        &[
            "3:34: auth.api_keys[0].key_sha256: user `bob`: expected a SHA-256: 64 hex digits",
            "3:53: auth.api_keys[1]: user `bob`: only one of `key` and `key_sha256` may be set",
            "3:66: auth.api_keys[1].groups: the user `bob` has other groups in another key: all keys of a user name the same groups",
        ],
    ),
    (
        "secrets: { keys: [ { id: 'a:b', key: 'MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEy' } ] }\n",
        &[
            "3:22: secrets.keys[0].id: `a:b` cannot be the name of a key: a name is 1 to 64 of `A-Z a-z 0-9 _ -`",
            "3:33: secrets.keys[0].key: expected 32 bytes in base64 (`openssl rand -base64 32`)",
        ],
    ),
    (
        "secrets: { keys: [ { id: a, key: 'c2hvcnQ=' }, { id: a, key: 'MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=' }, {} ] }\n",
        &[
            "3:29: secrets.keys[0].key: expected 32 bytes in base64 (`openssl rand -base64 32`)",
            "3:50: secrets.keys[1].id: the id `a` occurs twice",
            "3:112: secrets.keys[2]: `id` is missing",
            "3:112: secrets.keys[2]: `key` is missing",
        ],
    ),
    (
        "credentials: { 'a b': { fields: { x: { kind: y } } }, c: {} }\n",
        &[
            "3:1: credentials: credentials need a key under `secrets.keys`, which seals them",
            "3:16: credentials.a b: `a b` cannot be the name of a credential: a name is 1 to 64 of `A-Z a-z 0-9 _ -`",
            "3:40: credentials.a b.fields.x.kind: unknown key `kind`; known are `format`, `description`, `secret`",
            "3:55: credentials.c: `fields` is missing",
        ],
    ),
    (
        "credentials: { c: { fields: { token: {}, Token: {}, tokens: {} } } }\n",
        &[
            "3:1: credentials: credentials need a key under `secrets.keys`, which seals them",
            "3:31: credentials.c.fields.token: the fields `Token` and `token` differ only in case",
        ],
    ),
    // rules
    (
        "policy: [{ name: x, tools: [gone, 'g*', t, '[a'], decide: hold }, { name: x, tools: [t], decide: hold }]\n",
        &[
            "3:29: policy[0].tools[0]: rule `x`: `gone` names no tool",
            "3:35: policy[0].tools[1]: rule `x`: `g*` names no tool",
            "3:44: policy[0].tools[3]: rule `x`: `[a` is neither a name nor a glob",
            "3:69: policy[1].name: an earlier rule is also called `x`",
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
        "policy: [{ name: x, tools: [t], decide: hold, remember: { same: true } }, { name: y, tools: [t], decide: hold, remember: { for: [], most: 0s } }]\n",
        &[
            "3:47: policy[0].remember: rule `x`: `for` is missing",
            "3:47: policy[0].remember: rule `x`: `most` is missing",
            "3:112: policy[1].remember: rule `y`: exactly one of `same: true` and `when`",
            "3:124: policy[1].remember.for: rule `y`: `for` is empty",
        ],
    ),
    (
        "policy: [{ name: x, tools: ['*'], decide: allow }]\n",
        &[
            "3:35: policy[0].decide: rule `x`: without `auth` no rule may allow a shell tool, and this one allows `s`",
        ],
    ),
    (
        "policy: [{ name: x, tools: ['request_*'], decide: hold }, { name: y, tools: [request_confirmation, a], decide: hold }]\n",
        &[
            "3:29: policy[0].tools[0]: rule `x`: `request_*` names no tool",
            "3:78: policy[1].tools[0]: rule `y`: no agent offers `request_confirmation`",
            "3:100: policy[1].tools[1]: rule `y`: `a` names no tool",
        ],
    ),
    (
        "policy: [{ name: x, tools: [t], decide: hold, approvers: { required: 0 }, allow: [approve, retry], on_expiry: wait, on_reject: stop, expires_in: 0s }, { name: y, tools: [t], decide: deny, allow: [] }]\n",
        &[
            "3:60: policy[0].approvers.required: rule `x`: expected 1 or more",
            "3:92: policy[0].allow[1]: rule `x`: expected one of `approve`, `reject`, `edit`, `respond`",
            "3:100: policy[0].on_expiry: rule `x`: expected one of `continue`, `cancel`",
            "3:117: policy[0].on_reject: rule `x`: expected one of `continue`, `cancel`, `cancel_root`",
            "3:134: policy[0].expires_in: rule `x`: expected more than 0, or `never` for no deadline",
            "3:189: policy[1].allow: rule `y`: an approval allows at least one answer",
        ],
    ),
    (
        "policy: [{ name: x, tools: [t], decide: hold, allow: [x] }]\n",
        &[
            "3:55: policy[0].allow[0]: rule `x`: expected one of `approve`, `reject`, `edit`, `respond`",
        ],
    ),
    // the default agent
    (
        "default_agent: b\n",
        &["3:1: default_agent: no agent is called `b`"],
    ),
    (
        "default_agent: [a]\n",
        &["3:1: default_agent: expected text, found a list"],
    ),
    // interpolation
    (
        "server: { public_url: '${GONE}', cors_origins: ['${file:/gone}', '${'] }\n",
        &[
            "3:11: server.public_url: the variable `GONE` is not set",
            "3:49: server.cors_origins[0]: the file `/gone` cannot be read: No such file or directory (os error 2)",
            "3:66: server.cors_origins[1]: a `${` has no `}`; a literal one is written `$${`",
        ],
    ),
    (
        "server: { max_running: '${SHORT}' }\n",
        &["3:11: server.max_running: expected a whole number, 0 or more, found text"],
    ),
    // not YAML
    (
        "server: { listen: [\n",
        &["3:19: this is not YAML: a value, a quote or an indentation is wrong here"],
    ),
    (
        "---\nserver: {}\n---\n{}\n",
        &["3:1: a second document begins here: the file holds one document"],
    ),
];

#[test]
fn every_mistake_is_found_at_its_place() {
    for (text, expected) in BAD {
        let found = read(&format!("{BASE}{text}{TOOL}"))
            .err()
            .unwrap_or_default();
        assert_eq!(found, *expected, "{text}");
    }
}

/// Each pair has a file and all messages about it. The mistakes are in models, tools or agents.
const BAD_PARTS: &[(&str, &[&str])] = &[
    (
        "",
        &["1:1: `models` is missing", "1:1: `agents` is missing"],
    ),
    ("[]", &["1:1: expected a map, found a list"]),
    (
        "models: {}\nagents: {}\n",
        &[
            "1:1: models: `models` is empty",
            "2:1: agents: `agents` is empty",
        ],
    ),
    (
        "models: 5\nagents: { a: { model: m } }\n",
        &[
            "1:1: models: expected a map, found a number",
            "2:16: agents.a.model: no model is called `m`",
        ],
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
            "1:16: models.m.provider: expected one of `openai`, `openai_responses`, `anthropic`, `scripted`",
            "1:36: models.n: `provider` is missing",
            "1:53: models.o: `script` is missing: a scripted model has a file, or `builtin:refunds`",
            "1:113: models.p.script: only a `scripted` model has a `script`",
        ],
    ),
    (
        "models: { m: { provider: openai, model: x, base_url: nowhere, headers: { 'a b': '1', C: 1 }, body: { stream: true, messages: [], n: 1 } } }\nagents: { a: { model: m } }\n",
        &[
            "1:44: models.m.base_url: expected an address such as `https://api.openai.com/v1`",
            "1:86: models.m.headers.C: expected text, found a number",
        ],
    ),
    (
        "models: { m: { provider: anthropic, model: x, body: { system: [], stream: true, max_tokens: 9 } }, n: { provider: anthropic } }\nagents: { a: { model: m } }\n",
        &["1:100: models.n: `model` is missing: the model's name at its provider"],
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
        "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m, tools: [gone, t, t, request_credentials], sub_agents: [b, t, { agent: a, sesion: true }, {}], human: [guidance, guidance] }, t: { model: m } }\ntools: { t: { http: { url: 'http://h/' } } }\ndefault_agent: a\n",
        &[
            "2:34: agents.a.tools[0]: no tool is called `gone`",
            "2:43: agents.a.tools[2]: `t` is listed twice",
            "2:46: agents.a.tools[3]: no tool is called `request_credentials`",
            "2:46: agents.a.tools[3]: the name `request_credentials` is kept for `human`",
            "2:81: agents.a.sub_agents[0]: no agent is called `b`",
            "2:84: agents.a.sub_agents[1]: `t` is in `tools` too: an agent's tools, sub-agents and `human` share one name space",
            "2:99: agents.a.sub_agents[2].sesion: unknown key `sesion`; known are `agent`, `session`",
            "2:115: agents.a.sub_agents[3]: `agent` is missing",
            "2:138: agents.a.human[1]: `request_human_guidance` is listed twice",
        ],
    ),
    (
        "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m, human: [credentials], limits: { max_calls: 0, max_duration: 0s, max_cost: 1 } } }\n",
        &[
            "2:58: agents.a.limits.max_calls: expected 1 or more",
            "2:72: agents.a.limits.max_duration: expected more than 0",
            "2:90: agents.a.limits.max_cost: unknown key `max_cost`; known are `max_model_calls`, `max_duration`, `max_depth`, `max_rejections`, `max_children`, `max_tasks`, `max_calls`",
        ],
    ),
    (
        "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m } }\ntools:\n  t: {}\n  u: { http: { url: 'http://h/' }, shell: {} }\n  v: { http: { method: FETCH, timeout: 11m } }\n  w: { effect: twice, http: }\n  x: { shell: { timeout: 11m, max_output: 1GB }, parameters: {} }\n  'y y': { external: {} }\n",
        &[
            "4:3: tools.t: one of `http`, `shell`, `mcp`, `external` is missing: it says how the tool is performed",
            "5:3: tools.u: only one of `http`, `shell`, `mcp`, `external` may be set",
            "6:8: tools.v.http: `url` is missing",
            "6:16: tools.v.http.method: expected one of `GET`, `POST`, `PUT`, `PATCH`, `DELETE`",
            "7:8: tools.w.effect: expected one of `read_only`, `idempotent`, `once`",
            "7:23: tools.w.http: expected a map, found nothing",
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
            "6:46: tools.t.http.headers.Authorization: no credential is called `jira`",
            "6:97: tools.t.http.headers.X: the credential `crm` has no field `key`",
            "6:126: tools.t.http.headers.Y: a `{{credential:` has no `}}`",
            "7:1: credentials: credentials need a key under `secrets.keys`, which seals them",
        ],
    ),
    (
        "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m } }\ntools:\n  t: { http: { url: 'http://h/{{credential:crm.key}}' } }\n  u: { shell: { env: { A: '{{credential:gone.token}}', '{{credential:crm.token}}': b, C: 'x{{credential:crm.a b}}' } } }\n  v: { shell: { env: ['{{credential:crm.token}}', 'A={{credential:crm.token}}'] } }\n  w: { shell: { env: { A: '{{credential:crm.token}}' } } }\ncredentials: { crm: { fields: { token: {} } } }\n",
        &[
            "4:16: tools.t.http.url: the credential `crm` has no field `key`",
            "5:24: tools.u.shell.env.A: no credential is called `gone`",
            "5:87: tools.u.shell.env.C: a credential is named `{{credential:NAME.FIELD}}`",
            "7:24: tools.w.shell.env.A: a tool that takes a credential needs a key under `secrets.keys`, which seals it",
            "8:1: credentials: credentials need a key under `secrets.keys`, which seals them",
        ],
    ),
];

#[test]
fn passed_on_variable_may_refer_only_to_a_declared_credential() {
    let text = "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m } }\ntools: { t: { shell: { env: [PASSED] } } }\ncredentials: { crm: { fields: { token: {} } } }\nsecrets: { keys: [ { id: a, key: 'MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=' } ] }\n";
    let passed = |value| with(text, &[("PASSED", value)], &Flags::default());
    assert!(passed("{{credential:crm.token}}").is_ok());
    for (value, said) in [
        (
            "{{credential:crm.key}}",
            "the credential `crm` has no field `key`",
        ),
        (
            "{{credential:s3 cr3t.s3}}",
            "a credential is named `{{credential:NAME.FIELD}}`",
        ),
        ("{{credential:s3cr3t", "a `{{credential:` has no `}}`"),
    ] {
        let report = passed(value).unwrap_err().to_string();
        assert!(
            report.contains(&format!("tools.t.shell.env: {said}")),
            "{report}"
        );
        assert!(!report.contains("s3"), "{report}");
    }
}

#[test]
fn unknown_kind_of_question_is_reported_with_the_known_kinds() {
    let text = "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m, human: [coffee] } }\n";
    let known = HumanKind::ALL.map(|kind| format!("`{}`", kind.as_str()));
    let expected = format!(
        "2:34: agents.a.human[0]: expected one of {}",
        known.join(", ")
    );
    assert_eq!(read(text).err().unwrap_or_default(), [expected]);
}

#[test]
fn every_mistake_in_models_tools_and_agents_is_found_at_its_place() {
    for (text, expected) in BAD_PARTS {
        let found = read(text).err().unwrap_or_default();
        assert_eq!(found, *expected, "{text}");
    }
}
