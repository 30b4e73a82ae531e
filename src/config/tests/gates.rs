//! Tests of gates: files with and without agents, the definition of a gate, and the mistakes and
//! warnings about gates.

use std::time::Duration;

use super::*;
use crate::agent::Agent;
use crate::agent::gate::{OtherTools, Report};

/// A file with a gate, and without models and agents.
const GATE: &str = "tools: { pay: { external: {} }, look: { http: { url: 'http://h/' } } }
gates:
  billing: { description: Refunds., tools: [pay, look], use_within: 2h, report: optional }
";

fn gate(text: &str) -> Agent {
    let agents = read(text).unwrap().agents();
    let (agent, _) = agents.gates().next().unwrap();
    (**agent).clone()
}

/// Returns the lines of the warnings, without the warning that `notify.to` has no entry.
fn warnings(text: &str) -> Vec<String> {
    let (_, report) = with(text, &[], &Flags::default()).unwrap();
    let lines = report.warnings.iter();
    let lines = lines.filter(|line| line.path != "notify.to");
    let lines = lines.map(ToString::to_string);
    lines
        .map(|line| line.replace("/etc/holdpoint/holdpoint.yaml:", ""))
        .collect()
}

#[test]
fn file_with_gates_needs_neither_models_nor_agents() {
    let config = read(GATE).unwrap();
    assert_eq!(config.default_agent, "");
    let agents = config.agents();
    assert_eq!(agents.all().count(), 0, "a gate is no agent of the list");
    let (agent, gate) = agents.gates().next().unwrap();
    assert_eq!(
        (
            agent.name.as_str(),
            agent.description.as_str(),
            agent.model.as_str()
        ),
        ("billing", "Refunds.", "")
    );
    let offered: Vec<_> = agent.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(offered, ["pay", "look"]);
    assert_eq!(
        (gate.use_within, gate.report, gate.other_tools),
        (Duration::from_hours(2), Report::Optional, OtherTools::Deny)
    );
    for name in [None, Some("billing")] {
        assert!(agents.find(name, "default", &"local".into(), &[]).is_none());
    }
    assert_eq!(
        read("gates: {}\n").unwrap_err(),
        ["1:1: `models` is missing", "1:1: `agents` is missing"],
        "an empty section is no gate"
    );
}

#[test]
fn gate_is_read_back_unchanged_from_its_definition() {
    let config = read(GATE).unwrap();
    let agents = config.agents();
    let (current, _) = agents.gates().next().unwrap();
    let back = agents
        .pinned(current, &current.version, &current.definition)
        .unwrap();
    assert_eq!(back, **current);
    let later = gate(&GATE.replace("use_within: 2h, report: optional", "max_open: 5"));
    let pinned = agents
        .pinned(&later, &current.version, &current.definition)
        .unwrap();
    let pinned = pinned.gate.unwrap();
    assert_eq!(
        (pinned.use_within, pinned.report, pinned.max_open),
        (Duration::from_hours(2), Report::Optional, 5),
        "a call keeps its terms, and everything else is current"
    );
}

#[test]
fn version_of_a_gate_depends_on_the_terms_of_its_calls_only() {
    let version = |members: &str| {
        let text = format!(
            "tools: {{ pay: {{ external: {{}} }} }}\ngates: {{ g: {{ tools: [pay]{members} }} }}\n"
        );
        gate(&text).version
    };
    let first = version("");
    for same in [
        ", hold: 1s",
        ", max_open: 3",
        ", no_lasts: 0s",
        ", ext_authz: { pass_others: false }",
        ", open_to: { groups: [support] }",
        ", other_tools: judge",
        ", record: held",
        ", use_within: 1h, run_within: 10m, report: required",
    ] {
        assert_eq!(version(same), first, "{same}");
    }
    for other in [
        ", description: Pays.",
        ", use_within: 2h",
        ", run_within: 1m",
        ", report: optional",
    ] {
        assert_ne!(version(other), first, "{other}");
    }
}

#[test]
fn variable_overrides_a_setting_of_a_gate() {
    let variables = [
        ("HOLDPOINT_GATES__BILLING__MAX_OPEN", "7"),
        ("HOLDPOINT_GATES__BILLING__EXT_AUTHZ__USER_HEADER", "x-user"),
        ("HOLDPOINT_GATES__BILLING__NO_LASTS", "0s"),
        ("HOLDPOINT_SERVER__MAX_WAITING", "3"),
        (
            "HOLDPOINT_AUTH__API_KEYS",
            "[{user: edge, act_as: true, may: [gate], key: 0123456789abcdef}]",
        ),
    ];
    let (config, _) = with(GATE, &variables, &Flags::default()).unwrap();
    let gate = &config.gates["billing"];
    assert_eq!((gate.max_open, gate.no_lasts), (7, Duration::ZERO));
    let user_header = gate.ext_authz.as_ref().unwrap().user_header.as_deref();
    assert_eq!(
        (user_header, config.server.max_waiting),
        (Some("x-user"), 3)
    );
}

/// Each pair has a text and all messages about the file [`BASE`] + text + [`TOOL`].
const BAD: &[(&str, &[&str])] = &[
    (
        "gates: { t: { tools: [t] }, a: { tools: [t] }, request_credentials: { tools: [t] } }\n",
        &[
            "3:10: gates.t: `t` is a tool, too: gates, agents and tools share one name space",
            "3:29: gates.a: `a` is an agent, too: gates, agents and tools share one name space",
            "3:48: gates.request_credentials: `request_credentials` is a tool that asks a person, too: gates, agents and tools share one name space",
        ],
    ),
    (
        "gates: { g: { tools: [gone, a, request_human_guidance, t, t, 'fs_*'] }, 'g h': { tools: [t] } }\n",
        &[
            "3:23: gates.g.tools[0]: no tool is called `gone`",
            "3:29: gates.g.tools[1]: `a` is an agent: a gate offers no agents",
            "3:32: gates.g.tools[2]: `request_human_guidance` asks a person: a gate offers no such tool",
            "3:59: gates.g.tools[4]: `t` is listed twice",
            "3:62: gates.g.tools[5]: `fs_*` matches no tool of an MCP server",
            "3:73: gates.g h: `g h` cannot be the name of a gate: a name is 1 to 64 of `A-Z a-z 0-9 _ -`",
        ],
    ),
    (
        "gates: { g: { tools: [t], hold: 6m, use_within: 0s, run_within: 25h, no_lasts: 2d, max_open: 0 } }\n",
        &[
            "3:27: gates.g.hold: expected 5m at most",
            "3:37: gates.g.use_within: expected more than 0, 24h at most",
            "3:53: gates.g.run_within: expected more than 0, 24h at most",
            "3:70: gates.g.no_lasts: expected 24h at most",
            "3:84: gates.g.max_open: expected 1 to 1000",
        ],
    ),
    (
        "gates: { g: { tool: [t], other_tools: allow, report: never, hold: 5, ext_authz: { header: x } } }\n",
        &[
            "3:15: gates.g.tool: unknown key `tool`; known are `description`, `tools`, `open_to`, `other_tools`, `hold`, `use_within`, `run_within`, `no_lasts`, `report`, `record`, `max_open`, `ext_authz`",
            "3:26: gates.g.other_tools: expected one of `deny`, `judge`",
            "3:46: gates.g.report: expected one of `required`, `optional`",
            "3:61: gates.g.hold: expected a duration such as `500ms`, `30s`, `10m`, `24h` or `7d`, found a number",
            "3:83: gates.g.ext_authz.header: unknown key `header`; known are `user_header`, `groups_header`, `session_header`, `pass_others`",
        ],
    ),
    (
        "gates: { g: { tools: [t] } }\ndefault_agent: g\n",
        &["4:1: default_agent: `g` is a gate: the default agent has a model"],
    ),
    (
        "gates: { g: { tools: [t], report: optional, ext_authz: { groups_header: '', session_header: 'x session' } } }\n",
        &[
            "3:58: gates.g.ext_authz.groups_header: expected the name of a header",
            "3:77: gates.g.ext_authz.session_header: expected the name of a header",
        ],
    ),
    (
        "gates: { g: { tools: [t], report: optional, ext_authz: { user_header: 'x user' } } }\n",
        &[
            "3:58: gates.g.ext_authz.user_header: expected the name of a header",
            "3:58: gates.g.ext_authz.user_header: only a key with `act_as` speaks for the user of this header: no such key may `gate` and may not `decide`",
        ],
    ),
    (
        "gates: { g: { tools: [t], report: optional, ext_authz: { user_header: x-u, groups_header: X-U } } }\n",
        &[
            "3:58: gates.g.ext_authz.user_header: only a key with `act_as` speaks for the user of this header: no such key may `gate` and may not `decide`",
            "3:76: gates.g.ext_authz.groups_header: this is the `user_header`, too: the groups need a header of their own",
        ],
    ),
    (
        "gates: { g: }\nserver: { max_waiting: 0 }\n",
        &[
            "3:10: gates.g: expected a map, found nothing",
            "4:11: server.max_waiting: expected 1 or more",
        ],
    ),
    (
        "gates: { g: { tools: [t], report: optional, ext_authz: { user_header: x-user } } }\n",
        &[
            "3:58: gates.g.ext_authz.user_header: only a key with `act_as` speaks for the user of this header: no such key may `gate` and may not `decide`",
        ],
    ),
];

#[test]
fn mistake_about_a_gate_is_reported_at_its_place() {
    for (text, expected) in BAD {
        let found = read(&format!("{BASE}{text}{TOOL}")).unwrap_err();
        assert_eq!(found, *expected, "{text}");
    }
    let text = "models: { m: { provider: openai, model: x } }
agents: { a: { model: m, sub_agents: [g] } }
tools: { t: { external: {} } }
gates: { g: { tools: [t] } }\n";
    assert_eq!(
        read(text).unwrap_err(),
        ["2:39: agents.a.sub_agents[0]: `g` is a gate: only callers of the API use it"]
    );
}

#[test]
fn rule_that_names_no_tool_is_a_warning_where_a_gate_judges_other_tools() {
    let text = |other: &str| {
        format!(
            "{GATE}policy: [ {{ name: r, tools: [pay, Bash, 'files/*'], when: \"agent.name == 'billing'\", decide: hold }} ]\n"
        )
        .replace("use_within: 2h", other)
    };
    assert_eq!(
        read(&text("other_tools: deny")).unwrap_err(),
        [
            "4:35: policy[0].tools[1]: rule `r`: `Bash` names no tool",
            "4:41: policy[0].tools[2]: rule `r`: `files/*` names no tool",
        ]
    );
    assert_eq!(
        warnings(&text("other_tools: judge")),
        [
            "4:35: policy[0].tools[1]: rule `r`: `Bash` names no tool of this file, only others that are proposed at gates",
            "4:41: policy[0].tools[2]: rule `r`: `files/*` names no tool of this file, only others that are proposed at gates",
        ]
    );
    // An `allow` rule matches a tool that the gate does not list only by a glob. So the exact name
    // `Bash` allows no call.
    let allow = text("other_tools: judge").replace("decide: hold", "decide: allow");
    let found = warnings(&allow);
    let warned = "4:35: policy[0].tools[1]: rule `r`: `Bash` names no tool, and allows no call: an `allow` matches the other tools that are proposed at gates only by a glob";
    assert!(found.iter().any(|line| line == warned), "{found:?}");
}

#[test]
fn gate_that_no_key_can_use_is_warned_about() {
    let found = |keys: &str, open_to: &str| {
        let text = GATE.replace("description", &format!("{open_to}description"));
        let rest = "policy: [ { name: rest, tools: ['*'], decide: hold, approvers: { groups: [support] } } ]";
        warnings(&format!("{text}{rest}\nauth: {{ api_keys: [ {keys} ] }}\n"))
    };
    let key = |user: &str, rest: &str| {
        format!("{{ user: {user}, key: '{user}-key-0123456789', groups: [support]{rest} }}")
    };
    let warned = "3:3: gates.billing: nobody can use it: the gate takes a key that may `gate` and may not `decide`, for a user to whom the gate is open";
    let bob = key("bob", "");
    let (create, gate) = (key("web", ", may: [create]"), key("ai", ", may: [gate]"));
    let edge = key("edge", ", act_as: true, may: [gate]");
    let both = key("both", ", may: [gate, decide]");
    let closed = "open_to: { groups: [finance] }, ";
    for (keys, open_to, usable) in [
        (&[&bob][..], "", false),
        (&[&both], "", false),
        (&[&bob, &gate], "", true),
        (&[&bob, &create], "", true),
        (&[&bob, &gate], closed, false),
        (&[&bob, &gate], "open_to: { groups: [support] }, ", true),
        (&[&bob, &edge], closed, true),
        (&[&bob, &edge], "open_to: { tenants: [acme] }, ", false),
        (&[&bob, &edge], "open_to: { tenants: [default] }, ", true),
    ] {
        let keys: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
        let keys = keys.join(", ");
        let expected: &[&str] = if usable { &[] } else { &[warned] };
        let found: Vec<_> = found(&keys, open_to)
            .into_iter()
            .filter(|line| !line.contains("stands in the file"))
            .collect();
        assert_eq!(found, expected, "{open_to}{keys}");
    }
    assert_eq!(
        warnings(GATE),
        Vec::<String>::new(),
        "there are no accounts"
    );
    let closed = GATE.replace("description", "open_to: {}, description");
    assert_eq!(
        warnings(&closed),
        ["3:14: gates.billing.open_to: no caller may use the gate `billing`"]
    );
}

#[test]
fn rule_that_no_people_can_satisfy_at_a_gate_is_warned_about() {
    let found = |approvers: &str, keys: &str| {
        let keys = "{ user: ai, key: \"${OPS_KEY}\", may: [gate] }, ".to_owned() + keys;
        warnings(&format!(
            "{GATE}policy: [ {{ name: r, tools: ['*'], decide: hold{approvers} }} ]\nauth: {{ api_keys: [ {keys} ] }}\n"
        ))
    };
    let bob = "{ user: bob, groups: [g], key: \"${BOB_KEY}\" }";
    let own = "{ user: ai, key: \"${ALICE_KEY}\", may: [decide] }";
    let edge = "{ user: edge, key: \"${WEB_KEY}\", act_as: true, may: [gate] }";
    for (approvers, keys, count) in [
        ("", bob, Some(0)),
        ("", own, None),
        ("", edge, None),
        (", approvers: { groups: [g] }", bob, None),
        (", approvers: { users: [ai, bob] }", own, Some(0)),
        (
            ", approvers: { users: [bob], owner: true, required: 2 }",
            bob,
            Some(1),
        ),
    ] {
        let warned = count.map(|count| {
            let needed = count + 1;
            format!("no people can satisfy this rule for a call at the gate `billing`: it needs {needed}, and {count} could answer")
        });
        let found = found(approvers, keys);
        assert_eq!(found.len(), usize::from(warned.is_some()), "{found:?}");
        let mut both = found.iter().zip(&warned);
        assert!(
            both.all(|(found, warned)| found.ends_with(warned.as_str())),
            "{found:?}"
        );
    }
}

#[test]
fn person_whose_link_takes_no_allowed_answer_is_no_possible_approver_at_a_gate() {
    // ai owns the calls at the gate, so only zoe, who has no key, may decide them.
    for (allow, is_warned) in [("approve, edit", false), ("edit", true)] {
        let found = warnings(&format!(
            "{GATE}policy: [ {{ name: r, tools: ['*'], decide: hold, approvers: {{ users: [ai, zoe] }}, allow: [{allow}] }} ]
secrets: {{ keys: [ {{ id: a, key: '${{SEALING_KEY}}' }} ] }}
auth: {{ api_keys: [ {{ user: ai, key: \"${{OPS_KEY}}\", may: [gate] }}, {{ user: ai, key: \"${{ALICE_KEY}}\", may: [decide] }} ], people: [ {{ user: zoe, email: z@acme.com }} ] }}
notify: {{ links: {{ may: decide }}, mail: {{ url: 'smtp://smtp.acme.com', from: h@acme.com }}, to: [ {{ name: by-mail, mail: {{ to: approvers }} }} ] }}\n"
        ));
        let warned = "no people can satisfy this rule for a call at the gate `billing`: it needs 1, and 0 could answer";
        let is_found = found.iter().any(|line| line.ends_with(warned));
        assert_eq!(is_found, is_warned, "{allow}: {found:?}");
    }
}

#[test]
fn question_that_an_owner_at_a_gate_cannot_answer_is_warned_about() {
    let found = |other: &str, rules: &str, keys: &str| {
        let gate = GATE
            .replace("look: {", "look: { effect: read_only,")
            .replace("use_within: 2h", other);
        warnings(&format!(
            "{gate}policy: [ {rules} ]
auth: {{ api_keys: [ {{ user: ai, key: \"${{OPS_KEY}}\", may: [gate] }}, {{ user: bob, key: \"${{BOB_KEY}}\" }}{keys} ] }}\n"
        ))
    };
    let hold = "decide: hold, approvers: { users: [bob] } }";
    let rest = format!("{{ name: rest, tools: ['*'], {hold}");
    let both = format!("{{ name: both, tools: [pay, look], {hold}");
    let pays = format!("{{ name: pays, tools: [pay], {hold}");
    let allow = "{ name: some, tools: [pay], when: \"user.id == 'ai'\", decide: allow }";
    let allow_and_rest = format!("{allow}, {rest}");
    let looks = format!("{{ name: looks, tools: [look], decide: allow }}, {rest}");
    let (deny, judge) = ("other_tools: deny", "other_tools: judge");
    let own = ", { user: ai, key: \"${ALICE_KEY}\", may: [decide] }";
    let edge = ", { user: edge, key: \"${WEB_KEY}\", act_as: true, may: [gate] }";
    for (other, rules, keys, unmatched, allowed) in [
        (deny, "", "", true, false),
        (deny, &*pays, "", true, false),
        (deny, &*both, "", false, false),
        (judge, &*both, "", true, false),
        (judge, &*rest, "", false, false),
        (deny, allow, "", true, true),
        (deny, &*allow_and_rest, "", false, true),
        (deny, &*looks, "", false, false),
        (deny, allow, own, false, false),
        (deny, allow, edge, false, false),
    ] {
        let found = found(other, rules, keys);
        let about = |text: &str| found.iter().any(|line| line.contains(text));
        assert_eq!(
            (
                about("3:3: gates.billing: a call that no rule matches may wait"),
                about("3:3: gates.billing: a question about a call that a rule allows")
            ),
            (unmatched, allowed),
            "{other} {rules}{keys}: {found:?}"
        );
        let count = usize::from(unmatched) + usize::from(allowed);
        assert_eq!(found.len(), count, "{found:?}");
    }
}

#[test]
fn settings_that_do_not_suit_a_gateway_are_warned_about() {
    let rule = "policy: [ { name: r, tools: [pay], decide: hold }, { name: s, tools: [look], decide: hold, allow: [approve, reject] } ]\n";
    let with_gateway = GATE.replace("use_within: 2h", "ext_authz: {}");
    assert_eq!(
        warnings(&format!("{with_gateway}{rule}")),
        [
            "4:11: policy[0].allow: rule `r`: `edit` is left out at the gate `billing`: Envoy cannot change a call"
        ]
    );
    let required = with_gateway.replace("optional", "required");
    assert_eq!(
        warnings(&format!("{required}{rule}")),
        [
            "3:57: gates.billing.ext_authz: Envoy reports no outcome, so each call of a `once` tool that it lets through becomes a question: say `report: optional`"
        ]
    );
    assert_eq!(warnings(&format!("{GATE}{rule}")), Vec::<String>::new());
    let glob = with_gateway.replace("tools: [pay, look]", "tools: [look], other_tools: judge");
    let found = warnings(&format!(
        "{glob}policy: [ {{ name: r, tools: ['*'], decide: hold }} ]\n"
    ));
    assert_eq!(found.len(), 1, "a glob meets other tools: {found:?}");
}

#[test]
fn header_that_names_the_user_is_warned_about_because_the_gateway_must_set_it() {
    let found = |settings: &str| {
        let gate = GATE.replace("use_within: 2h", &format!("ext_authz: {settings}"));
        let keys = "{ user: bob, key: \"${BOB_KEY}\" }, { user: edge, key: \"${WEB_KEY}\", act_as: true, may: [gate] }";
        warnings(&format!("{gate}auth: {{ api_keys: [ {keys} ] }}\n"))
    };
    assert_eq!(
        found("{ user_header: x-user, groups_header: x-groups }"),
        [
            "3:70: gates.billing.ext_authz.user_header: the gateway must overwrite this header in each request, or strip it: a value that a client has set would be believed"
        ]
    );
    assert_eq!(found("{}"), Vec::<String>::new(), "the key's own user");
}

#[test]
fn tool_of_a_gate_that_takes_a_credential_is_warned_about() {
    let text = "secrets: { keys: [ { id: k1, key: \"${SEALING_KEY}\" } ] }
credentials: { jira: { fields: { token: {} } } }
tools: { comment: { http: { url: 'http://h/', headers: { Authorization: 'Bearer {{credential:jira.token}}' } } } }
gates: { g: { tools: [comment] }, empty: {} }\n";
    assert_eq!(
        warnings(text),
        [
            "4:23: gates.g.tools[0]: `comment` takes a credential: a person is asked for it anew with each call, because a gate keeps none",
            "4:35: gates.empty: no call fits this gate: `tools` is empty, and `other_tools` is `deny`",
        ]
    );
}

#[test]
fn entry_of_notify_may_name_a_gate() {
    let text = |agent: &str| {
        format!(
            "{GATE}notify: {{ to: [ {{ name: n, webhook: {{ url: 'http://h/', secrets: ['whsec_0123456789abcdef0123456789abcdef'] }}, agents: [{agent}] }} ] }}\n"
        )
    };
    read(&text("billing")).unwrap();
    assert!(read(&text("gone")).unwrap_err()[0].contains("unknown agent `gone`"));
}
