//! Tests mistakes in the settings of a model provider or of a kind of tool, which the code of that
//! provider or kind finds. Each mistake is reported at its place in the file, together with all
//! other mistakes.

use holdpoint::app;
use holdpoint::config::environment::Environment;
use holdpoint::config::layers::Flags;
use holdpoint::config::{self, Source};

fn report(models: &str, tools: &str) -> String {
    let text = format!(
        "models: {{ m: {{ {models} }} }}\nagents: {{ a: {{ model: m }} }}\ntools:\n{tools}"
    );
    let source = Source::File("file".into(), text);
    let environment = Environment::new(&[], &[]);
    let loaded = config::load(source, &environment, &Flags::default(), app::check);
    loaded.expect_err("it has mistakes").to_string()
}

fn contains(report: &str, lines: &[&str]) {
    for line in lines {
        assert!(report.contains(line), "{line} in\n{report}");
    }
}

#[test]
fn member_or_header_of_a_model_that_the_service_sets_is_a_mistake() {
    let tool = "  t: { http: { url: 'http://h/' } }\n";
    let openai = "provider: openai, model: x, timeout: 0s, headers: { 'a b': '1' }, body: { stream: true, messages: [], system: [] }";
    let found = report(openai, tool);
    contains(
        &found,
        &[
            "1:44: models.m.timeout: expected more than 0",
            "1:68: models.m.headers.a b: `a b` cannot be the name of a header",
            "1:90: models.m.body.stream: a model's `body` may not name `stream`: the service writes it",
            "1:104: models.m.body.messages: a model's `body` may not name `messages`: the service writes it",
        ],
    );
    assert!(!found.contains("body.system"), "{found}");
    let scripted = "provider: scripted, script: 'builtin:refunds', timeout: 0s, headers: { 'a b': '1' }, body: { stream: true }";
    contains(
        &report(scripted, tool),
        &[
            "1:63: models.m.timeout: expected more than 0",
            "1:87: models.m.headers.a b: `a b` cannot be the name of a header",
            "1:109: models.m.body.stream: a model's `body` may not name `stream`: the service writes it",
        ],
    );
    let anthropic = "provider: anthropic, model: x, body: { system: [], stream: true }";
    contains(
        &report(anthropic, tool),
        &[
            "1:55: models.m.body.system: a model's `body` may not name `system`: the service writes it",
            "1:67: models.m.body.stream: a model's `body` may not name `stream`: the service writes it",
        ],
    );
    let responses = "provider: openai_responses, model: x, body: { store: true, messages: [] }";
    let found = report(responses, tool);
    contains(
        &found,
        &[
            "1:62: models.m.body.store: a model's `body` may not name `store`: the service writes it",
        ],
    );
    assert!(!found.contains("body.messages"), "{found}");
}

#[test]
fn model_with_an_unknown_provider_is_said_to_lack_no_other_key() {
    let tool = "  t: { http: { url: 'http://h/' } }\n";
    let found = report("provider: scriptd, script: 'builtin:refunds'", tool);
    let lines: Vec<_> = found.lines().collect();
    let known = "`openai`, `openai_responses`, `anthropic`, `scripted`";
    let expected = format!("file:1:16: models.m.provider: expected one of {known}");
    assert_eq!(lines, [expected]);
}

#[test]
fn header_that_is_there_twice_in_different_case_is_a_mistake() {
    let found = report(
        "provider: openai, model: x, headers: { X-A: '1', x-a: '2' }",
        "  t: { http: { url: 'http://h/', headers: { X-A: '1', X-a: '2' } } }\n",
    );
    contains(
        &found,
        &[
            "1:65: models.m.headers.x-a: `x-a` is there twice",
            "4:55: tools.t.http.headers.X-a: `X-a` is there twice",
        ],
    );
}

#[test]
fn timeout_address_or_header_that_a_tool_cannot_have_is_a_mistake() {
    let found = report(
        "provider: openai, model: x",
        "  t: { http: { url: 'builtin:other', timeout: 11m, headers: { 'a b': x } } }\n  u: { http: { url: 'http://h/', timeout: 0s } }\n  v: { shell: { timeout: 11m, max_output: 0KiB } }\n",
    );
    contains(
        &found,
        &[
            "4:16: tools.t.http.url: `url` is not a built-in endpoint; there are builtin:refunds/lookup_order and builtin:refunds/refund_payment",
            "4:38: tools.t.http.timeout: `timeout` must be more than 0 and at most 10m",
            "4:63: tools.t.http.headers.a b: `a b` is not a name of a header",
            "5:34: tools.u.http.timeout: `timeout` must be more than 0 and at most 10m",
            "6:17: tools.v.shell.timeout: `timeout` must be more than 0 and at most 10m",
            "6:31: tools.v.shell.max_output: `max_output` must be more than 0 and at most 1MiB",
        ],
    );
}

#[test]
fn schema_with_several_mistakes_reports_each_at_its_place() {
    let found = report(
        "provider: openai, model: x",
        "  t:\n    http: { url: 'http://h/', method: POST }\n    parameters:\n      properties:\n        a: { minimum: '1' }\n        b: { pattern: '(?=x)' }\n        c: { $ref: '#/none' }\n        d: { type: text }\n        e: {}\n        E: {}\n      anyOf: [ { properties: { f: {}, F: {} } } ]\n",
    );
    let wrong: Vec<&str> = found
        .lines()
        .filter(|line| line.contains("parameters"))
        .collect();
    assert_eq!(
        wrong,
        [
            "file:6:5: tools.t.parameters.type: the schema of `t` must say `type: object`",
            "file:8:14: tools.t.parameters.properties.a.minimum: the schema of `t` at /properties/a/minimum: must be of type number",
            "file:9:14: tools.t.parameters.properties.b.pattern: the schema of `t` at /properties/b/pattern: the pattern is not one the linear engine can run",
            "file:10:14: tools.t.parameters.properties.c.$ref: the schema of `t` has a `$ref` to `#/none`, where there is no schema",
            "file:11:14: tools.t.parameters.properties.d.type: the schema of `t` at /properties/d/type: fits none of the declared forms",
            "file:12:9: tools.t.parameters.properties.e: the parameters `E` and `e` differ only in case",
            "file:14:32: tools.t.parameters.anyOf[0].properties.f: the parameters `F` and `f` differ only in case",
        ],
        "{found}"
    );
}

#[test]
fn name_that_no_variable_of_a_command_can_have_is_a_mistake() {
    let found = report(
        "provider: openai, model: x",
        "  u: { shell: { env: { '{{credential:crm.token}}': b, 'A=b': c, D: 5 } } }\n  v: { shell: { env: [PATH, 'A=hunter2', '', '='] } }\n",
    );
    contains(
        &found,
        &[
            "4:24: tools.u.shell.env.{{credential:crm.token}}: `{{credential:crm.token}}` is a credential as the name of a variable, not as its value: `{ NAME: \"{{credential:…}}\" }`",
            "tools.u.shell.env.A=: `A=` cannot be the name of a variable: a name is not empty and has no `=`",
            "4:65: tools.u.shell.env.D: expected text, found a number",
            "5:17: tools.v.shell.env: `env` has ``, which cannot be the name of a variable: a name is not empty and has no `=`",
            "5:17: tools.v.shell.env: `env` has `=`, which cannot be the name of a variable: a name is not empty and has no `=`",
            "5:17: tools.v.shell.env: `env` has `A=`, which cannot be the name of a variable: a name is not empty and has no `=`",
        ],
    );
    assert!(!found.contains("hunter2"), "{found}");
}

#[test]
fn condition_that_is_too_long_is_a_mistake() {
    let long = format!("'{}' == user.id", "x".repeat(1024));
    let tools = format!(
        "  t: {{ http: {{ url: 'http://h/' }} }}\npolicy:\n- {{ name: r, tools: [t], decide: hold, when: \"{long}\" }}\n- {{ name: s, tools: [t], decide: hold, remember: {{ when: \"{long}\", for: [task], most: 1h, uses: 1 }} }}\n"
    );
    contains(
        &report("provider: openai, model: x", &tools),
        &[
            "6:40: policy[0].when: rule `r`: the expression is longer than 1024 bytes",
            "7:52: policy[1].remember.when: rule `s`: the expression is longer than 1024 bytes",
        ],
    );
}
