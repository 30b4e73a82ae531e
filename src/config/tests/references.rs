//! Tests of references between the sections of a file, and of references to variables. Also tests
//! texts that look like a reference to a credential, and texts that YAML reads as a number, a tag
//! or an empty value.

use super::*;

const FILE: &str = r#"
models: { m: { provider: openai, model: x } }
agents: { a: { model: m, tools: [t, s] } }
secrets: { keys: [ { id: k1, key: "${SEALING_KEY}" } ] }
credentials: { jira: { fields: { token: {} } } }
tools:
  t:
    http:
      url: "http://h/{{credential:jira.token}}"
      headers:
        A: "{{ credential:jira.token }}"
        B: "x {{env:x}}"
        C: "{{credential:jira.token}} {{.y}}"
        D: "{{credential:jira.token}}"
        E: '{"a": {"b": 1}} {{ open'
  s: { shell: { env: { F: "{{env:x}}", G: "{x}", H: "{{credential:jira.token}}" } } }
"#;

#[test]
fn text_in_braces_that_is_no_reference_is_warned_about_where_credentials_are_filled_in() {
    let (_, report) = with(FILE, &[], &Flags::default()).unwrap();
    let warned = report.warnings.iter();
    let warned = warned.filter(|line| line.detail.contains("{{"));
    let found: Vec<_> = warned
        .map(|line| (line.path.as_str(), line.detail.as_str()))
        .collect();
    let detail =
        "a `{{…}}` other than `{{credential:NAME.FIELD}}` is not replaced: it is sent as written";
    let places = [
        "tools.t.http.headers.A",
        "tools.t.http.headers.B",
        "tools.s.shell.env.F",
    ];
    assert_eq!(found, places.map(|place| (place, detail)));
}

#[test]
fn tool_whose_name_looks_like_a_number_is_found_by_the_spelling_of_the_file() {
    let text = "models: { m: { provider: openai, model: x } }
agents: { a: { model: m, tools: ['007', '1e3'] } }
tools: { 007: { http: { url: 'http://h/' } }, 1e3: { http: { url: 'http://h/' } } }
policy: [{ name: r, tools: ['007'], decide: hold }]
";
    let config = read(text).unwrap();
    let tools: Vec<_> = config.tools.keys().collect();
    assert_eq!(tools, ["007", "1e3"]);
    let unquoted = read(&text.replace("'007', '1e3'", "007")).unwrap_err();
    assert_eq!(
        unquoted,
        ["2:34: agents.a.tools[0]: expected text, found a number"]
    );
}

#[test]
fn condition_that_yaml_takes_for_a_tag_is_refused_and_never_left_out() {
    for when in ["!has(args.note)", "! args.paid", "!args.paid == true"] {
        let text = format!(
            "models: {{ m: {{ provider: openai, model: x }} }}
agents: {{ a: {{ model: m, tools: [t] }} }}
tools: {{ t: {{ external: {{}} }} }}
policy:
  - name: r
    tools: [t]
    when: {when}
    decide: allow
"
        );
        let report = with(&text, &[], &Flags::default()).unwrap_err();
        let found: Vec<_> = report
            .mistakes
            .iter()
            .map(|line| (line.path.as_str(), line.detail.as_str()))
            .collect();
        let detail =
            "a word that begins with `!` is a tag and no part of a value: put quotes around it";
        assert_eq!(found, [("policy[0].when", detail)], "{when}");
        assert_eq!(report.mistakes[0].entry.as_deref(), Some("rule `r`"));
        let line = &report.mistakes[0].position;
        assert!(line.contains("holdpoint.yaml:7:"), "{line}");
    }
}

#[test]
fn limit_without_a_value_is_refused_and_never_left_out() {
    let file = "models: { m: { provider: openai, model: x } }
agents: { a: { model: m, tools: [t], open_to: } }
gates: { g: { tools: [t], open_to: ~ } }
tools: { t: { external: {} } }
credentials: { c: { fields: { f: {} }, expires_in: ~ } }
notify: { links: { not_before: } }
mcp: { s: { url: 'http://h/', tools: null } }
auth: { api_keys: [ { user: u, key: 0123456789abcdef, may: } ] }
policy: [ { name: r, tools: [t], when: , decide: hold, approvers: { owner: } } ]
";
    let report = with(file, &[], &Flags::default()).unwrap_err();
    let found = report.mistakes.iter();
    let found = found.filter(|line| line.detail.ends_with("leave the key out"));
    let found: Vec<_> = found.map(|line| line.path.as_str()).collect();
    let places = [
        "agents.a.open_to",
        "auth.api_keys[0].may",
        "credentials.c.expires_in",
        "gates.g.open_to",
        "mcp.s.tools",
        "notify.links.not_before",
        "policy[0].approvers.owner",
        "policy[0].when",
    ];
    let mut sorted = found.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, places);
    let detail = "`when` has no value: give one, or leave the key out";
    assert!(report.mistakes.iter().any(|line| line.detail == detail));
}

#[test]
fn log_filter_without_a_value_counts_as_unset() {
    for (value, expected) in [("", None), (" ", None), ("off", Some("off"))] {
        let (config, _) = with(WHOLE, &[("RUST_LOG", value)], &Flags::default()).unwrap();
        assert_eq!(config.log.as_deref(), expected, "{value:?}");
    }
}

#[test]
fn unknown_key_that_begins_with_an_at_sign_is_reported_at_its_place() {
    let found = read(&format!("{BASE}'@server': {{}}\n{TOOL}")).unwrap_err();
    assert_eq!(found.len(), 1, "{found:?}");
    let expected = "3:1: @server: unknown key `@server`; known are `server`, ";
    assert!(found[0].starts_with(expected), "{found:?}");
}

#[test]
fn file_whose_variables_are_not_set_has_a_mistake_for_each_of_them_and_no_other() {
    let source = Source::File("h.yaml".into(), WHOLE.to_owned());
    let environment = Environment::new(&[], &[]);
    let report = load(source, &environment, &Flags::default(), |_, _| {}).unwrap_err();
    let found: Vec<_> = report
        .mistakes
        .iter()
        .map(|line| (line.path.as_str(), line.detail.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (
                "auth.api_keys[0].key",
                "the variable `ALICE_KEY` is not set"
            ),
            ("auth.api_keys[1].key", "the variable `BOB_KEY` is not set"),
            ("auth.api_keys[2].key", "the variable `WEB_KEY` is not set"),
            ("auth.api_keys[3].key", "the variable `OPS_KEY` is not set"),
            (
                "secrets.keys[0].key",
                "the variable `SEALING_KEY` is not set"
            ),
            (
                "models.main.api_key",
                "the variable `OPENAI_API_KEY` is not set"
            ),
            (
                "tools.lookup_order.http.headers.X-Key",
                "the variable `ORDERS_KEY` is not set"
            ),
        ]
    );
}
