//! Tests that a mistake does not hide other mistakes, and that the report has no further lines
//! about the consequences of a mistake.

use super::*;

#[test]
fn mistake_in_a_scope_of_remember_does_not_hide_that_it_covers_no_calls() {
    let rule = |name: &str, remember: &str| {
        format!("{{ name: {name}, tools: [t], decide: hold, remember: {{ {remember} }} }}")
    };
    let (one, two) = (
        rule("x", "for: [x], most: 1h"),
        rule("y", "same: 1, for: [task], most: 1h"),
    );
    let found = read(&format!("{BASE}{TOOL}policy:\n- {one}\n- {two}\n"));
    assert_eq!(
        found.err().unwrap_or_default(),
        [
            "5:40: policy[0].remember: rule `x`: exactly one of `same: true` and `when`",
            "5:58: policy[0].remember.for[0]: rule `x`: expected one of `task`, `owner`",
            "6:52: policy[1].remember.same: rule `y`: expected true or false, found a number",
        ]
    );
}

#[test]
fn mistakes_about_remember_as_a_whole_are_reported_beside_each_other_and_those_below() {
    let rule = "{ name: x, tools: [t], decide: hold, approvers: { required: 2 }, remember: { for: [x], most: 1h } }";
    let found = read(&format!("{BASE}{TOOL}policy:\n- {rule}\n"));
    let found = found.err().unwrap_or_default();
    for expected in [
        "policy[0].remember: rule `x`: an approval of several people cannot be remembered: `required` is 1",
        "policy[0].remember: rule `x`: exactly one of `same: true` and `when`",
        "policy[0].remember.for[0]: rule `x`: expected one of `task`, `owner`",
    ] {
        let mut lines = found.iter();
        assert!(lines.any(|line| line.ends_with(expected)), "{found:#?}");
    }
}

#[test]
fn open_to_that_cannot_be_read_is_not_said_to_admit_no_caller() {
    let text = format!(
        "models: {{ m: {{ provider: openai, model: x }} }}
agents: {{ a: {{ model: m, open_to: {{ group: [g] }} }} }}
gates: {{ d: {{ tools: [t], open_to: {{ users: g }} }} }}
{TOOL}{AUTH}"
    );
    let report = with(&text, &[], &Flags::default()).unwrap_err();
    let mistakes: Vec<_> = report.mistakes.iter().map(|line| &line.path).collect();
    assert_eq!(
        mistakes,
        ["agents.a.open_to.group", "gates.d.open_to.users"]
    );
    let warned = report.warnings.iter().map(|line| line.path.as_str());
    let warned: Vec<_> = warned.filter(|path| !path.starts_with("tools")).collect();
    assert_eq!(warned, Vec::<&str>::new());
}

#[test]
fn mistake_behind_an_element_that_cannot_be_read_is_reported_at_its_own_place() {
    let text = "models: { m: { provider: openai, model: x } }
agents:
  a:
    model: m
    tools:
      - 7
      - gone
      - t
      - t
tools: { t: { external: {} } }
server: { cors_origins: ['${GONE}', nowhere] }
policy: [5, { name: r, tools: [8, none], decide: hold }]
";
    assert_eq!(
        read(text).err().unwrap_or_default(),
        [
            "6:9: agents.a.tools[0]: expected text, found a number",
            "7:9: agents.a.tools[1]: no tool is called `gone`",
            "9:9: agents.a.tools[3]: `t` is listed twice",
            "11:26: server.cors_origins[0]: the variable `GONE` is not set",
            "11:37: server.cors_origins[1]: expected an origin such as `https://app.acme.com`: scheme, host and port, nothing after it",
            "12:10: policy[0]: expected a map, found a number",
            "12:32: policy[1].tools[0]: rule `r`: expected text, found a number",
            "12:35: policy[1].tools[1]: rule `r`: `none` names no tool",
        ]
    );
}

#[test]
fn value_that_cannot_be_read_is_not_said_to_be_missing() {
    let lock = "1:1: mcp_lock: the lock file `/etc/holdpoint/holdpoint.mcp.json` cannot be read: No such file or directory (os error 2); write it with `holdpoint mcp lock`";
    for (lines, place, others) in [
        (
            "mcp: { s: { url: '${GONE}' } }",
            "3:13: mcp.s.url",
            &[lock][..],
        ),
        (
            "mcp: { s: { command: ['${GONE}'] } }",
            "3:23: mcp.s.command[0]",
            &[lock],
        ),
        (
            "mcp: { s: { url: 'http://h/' } }\nmcp_lock: '${GONE}'",
            "4:1: mcp_lock",
            &[],
        ),
        (
            "server: { listen: '0.0.0.0:80', public_url: '${GONE}' }",
            "3:33: server.public_url",
            &[],
        ),
    ] {
        let found = read(&format!("{BASE}{lines}\n{TOOL}{AUTH}")).err();
        let unset = format!("{place}: the variable `GONE` is not set");
        let expected = [others, &[unset.as_str()]].concat();
        assert_eq!(found.unwrap_or_default(), expected, "{lines}");
    }
}

#[test]
fn account_that_cannot_be_read_is_no_reason_to_miss_an_approver() {
    let person = "people: [ { user: bob, email: b@acme.com } ], api_keys:";
    let auth = AUTH.replace("api_keys:", person);
    let rest = "policy: [{ name: x, tools: [t], decide: hold, approvers: { groups: [g] } }]
notify: { mail: { url: 'smtp://h', from: h@acme.com }, to: [ { name: a, mail: { to: { groups: [g] } }, tenants: [default], groups: [g] } ] }
";
    assert!(read(&format!("{BASE}{TOOL}{auth}{rest}")).is_ok());
    for (from, to, expected) in [
        (
            "'0123456789abcdef'",
            "'${GONE}'",
            "auth.api_keys[0].key: the variable `GONE` is not set",
        ),
        (
            "tenant: default",
            "tenant: [default]",
            "auth.api_keys[0].tenant: expected text, found a list",
        ),
        (
            "groups: [g]",
            "groups: ['${GONE}']",
            "auth.api_keys[0].groups[0]: the variable `GONE` is not set",
        ),
    ] {
        let auth = auth.replace("user: bob, groups", "user: bob, tenant: default, groups");
        let text = format!("{BASE}{TOOL}{}{rest}", auth.replace(from, to));
        let report = with(&text, &[], &Flags::default()).unwrap_err();
        let lines = report.mistakes.iter().chain(&report.warnings);
        let lines = lines.map(|line| format!("{}: {}", line.path, line.detail));
        let lines: Vec<_> = lines.filter(|line| !line.starts_with("tools")).collect();
        assert_eq!(lines, [expected], "{to}");
    }
}

#[test]
fn key_that_cannot_be_read_hides_no_mistake_about_approvers_and_names() {
    let auth = AUTH.replace("'0123456789abcdef'", "'${GONE}'");
    let text = format!(
        "{BASE}{TOOL}{auth}policy: [{{ name: x, tools: [t], decide: hold, approvers: {{ groups: [h] }} }}]
notify: {{ to: [ {{ name: a, teams: {{ url: 'https://h/x' }}, groups: [h] }} ] }}\n"
    );
    let report = with(&text, &[], &Flags::default()).unwrap_err();
    let paths: Vec<_> = report.mistakes.iter().map(|line| &line.path).collect();
    assert_eq!(
        paths,
        [
            "auth.api_keys[0].key",
            "policy[0].approvers",
            "notify.to[0].groups[0]"
        ]
    );
}
