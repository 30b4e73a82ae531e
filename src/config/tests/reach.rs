//! Tests of the lines in which `check` lists the recipients of each rule's questions, and of the
//! warnings about rules whose questions reach no person.

use super::super::tests_bad::{BASE, TOOL};
use super::*;

const POLICY: &str = "policy:
  - { name: r, tools: [t], decide: hold, approvers: { groups: [g] } }
  - { name: s, tools: [s], decide: hold, approvers: { users: [eve] }, expires_in: 1h }
  - { name: free, tools: ['*'], decide: allow }
";
const SERVER: &str = "mail: { url: 'smtp://smtp.acme.com', from: h@acme.com }, ";
const BOB: &str = "{ user: bob, email: b@acme.com }";
const EVE: &str = "{ user: eve, email: e@acme.com }";
/// A person who has no key.
const ZOE: &str = "{ user: zoe, groups: [g], email: z@acme.com }";
const TO_ALL: &str = "{ name: by-mail, mail: { to: approvers } }";
const HOOK: &str = "{ name: backend, webhook: { url: 'https://h/', secrets: ['${HOOK}'] }EVENTS }";
const NOBODY: &str = "approvers: no message is sent about this rule's questions";
const UNANSWERED: &str =
    "no tenant can satisfy this rule: it needs 1 different people, and 0 could answer";

const UNMAILED: &str = "approvers: no approver has a mail address in `auth.people`, so no mail is sent about this rule's questions";

/// Loads a file with these people and these members of `notify`. Returns the lines of `check` about
/// the rules, and the warnings without their positions.
fn found(people: &str, notify: &str) -> (Vec<String>, Vec<String>) {
    let auth = format!(
        "auth: {{ api_keys: [ {{ user: bob, groups: [g], key: '0123456789abcdef' }}, {{ user: eve, key: '0123456789abcdeF' }} ], people: [ {people} ] }}\n"
    );
    let text = format!("{BASE}{TOOL}{auth}{POLICY}notify: {{ {notify} }}\n");
    let secret = ("HOOK", "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=");
    let (config, report) = with(&text, &[secret], &Flags::default()).unwrap();
    let warnings = report.warnings.iter();
    let warnings = warnings.map(|line| format!("{}: {}", line.path, line.detail));
    let about = |line: &String| line.starts_with("notify") || line.starts_with("policy");
    (config.recipient_lines(), warnings.filter(about).collect())
}

/// Returns the expected lines of `check`, with these recipients of the rules `r` and `s`.
fn reach(r: &str, s: &str) -> Vec<String> {
    let line = |(rule, who)| format!("A question of the rule `{rule}` reaches {who}.");
    [("r", r), ("s", s)].map(line).to_vec()
}

#[test]
fn only_people_who_may_decide_are_named_with_their_entry() {
    let mails = format!("{SERVER}to: [ {TO_ALL} ]");
    let all = format!("{BOB}, {EVE}");
    assert_eq!(
        found(&all, &mails),
        (reach("bob (by-mail)", "eve (by-mail)"), vec![])
    );
    let (lines, warnings) = found(BOB, &mails);
    assert_eq!(lines, reach("bob (by-mail)", "nobody"));
    assert_eq!(warnings, [format!("policy[1].{NOBODY}")]);
    let both = format!(
        "{SERVER}to: [ {TO_ALL}, {{ name: late, mail: {{ to: {{ groups: [g] }} }}, when: {{ after: 2h }}, groups: [g] }} ]"
    );
    let (lines, warnings) = found(&all, &both);
    assert_eq!(lines, reach("bob (by-mail), bob (late)", "eve (by-mail)"));
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn rule_whose_approvers_have_no_address_is_named_beside_a_webhook_that_takes_its_questions() {
    let hook = HOOK.replace("EVENTS", "");
    let both = format!("{SERVER}to: [ {TO_ALL}, {hook} ]");
    let (lines, warnings) = found(BOB, &both);
    assert_eq!(lines, reach("bob (by-mail), backend", "backend"));
    assert_eq!(warnings, [format!("policy[1].{UNMAILED}")]);
    let all = format!("{BOB}, {EVE}");
    assert_eq!(found(&all, &both).1, Vec::<String>::new());
    let one_group = format!(
        "{SERVER}to: [ {{ name: by-mail, mail: {{ to: approvers }}, groups: [g] }}, {hook} ]"
    );
    assert_eq!(found(BOB, &one_group).1, Vec::<String>::new());
}

#[test]
fn person_without_a_key_is_reached_where_links_decide() {
    let mails = format!("{SERVER}to: [ {TO_ALL} ]");
    let (lines, warnings) = found(ZOE, &mails);
    assert_eq!(lines, reach("nobody", "nobody"));
    assert_eq!(
        warnings,
        [
            format!("policy[0].{NOBODY}"),
            format!("policy[1].{NOBODY}"),
            "notify.to[0].mail.to: no approver of a question that this entry reports has a mail address in `auth.people`"
                .to_owned(),
        ]
    );
    let key = "secrets: { keys: [ { id: a, key: '${SEALING_KEY}' } ] }";
    let sealed = format!("links: {{ may: decide }}, {mails} }}\n{key}\n#");
    let (lines, _) = found(ZOE, &sealed);
    assert_eq!(lines, reach("zoe (by-mail)", "nobody"));
}

/// Reads a file in which the rule `r` holds calls of these tools for the group `g`. `terms` are
/// further terms of the rule. zoe is in `g`, has no key, and answers by links. eve has a key, and
/// is in these groups.
fn held_for_zoe(tools: &str, groups: &str, terms: &str) -> Result<Config, Vec<String>> {
    read(&format!(
        "models: {{ m: {{ provider: openai, model: x }} }}
agents: {{ a: {{ model: m, tools: [t], human: [guidance, credentials] }} }}
credentials: {{ crm: {{ fields: {{ token: {{}} }} }} }}
secrets: {{ keys: [ {{ id: a, key: '${{SEALING_KEY}}' }} ] }}
auth: {{ api_keys: [ {{ user: eve, groups: [{groups}], key: '0123456789abcdeF' }} ], people: [ {ZOE}, {EVE} ] }}
policy: [ {{ name: r, tools: [{tools}], decide: hold, approvers: {{ groups: [g] }}{terms} }} ]
notify: {{ links: {{ may: decide }}, {SERVER}to: [ {TO_ALL} ] }}
tools: {{ t: {{ http: {{ url: 'http://h/', headers: {{ X: '{{{{credential:crm.token}}}}' }} }} }} }}"
    ))
}

#[test]
fn question_of_a_kind_that_takes_no_link_reaches_no_person_without_a_key() {
    let reaches = |who: &str| [format!("A question of the rule `r` reaches {who}.")];
    for tools in ["t", "request_human_guidance"] {
        let lines = held_for_zoe(tools, "", "").unwrap().recipient_lines();
        assert_eq!(lines, reaches("zoe (by-mail)"), "{tools}");
    }
    for tools in ["request_credentials", "t, request_credentials"] {
        let mistakes = held_for_zoe(tools, "", "").err().unwrap_or_default();
        assert!(
            mistakes.len() == 1 && mistakes[0].ends_with(UNANSWERED),
            "{tools}: {mistakes:?}"
        );
    }
    let lines = held_for_zoe("request_credentials", "g", "")
        .unwrap()
        .recipient_lines();
    assert_eq!(lines, reaches("eve (by-mail)"));
}

#[test]
fn rule_that_allows_no_answer_of_links_needs_approvers_with_a_key_and_reaches_only_them() {
    let mistakes = |tools: &str, terms: &str| held_for_zoe(tools, "", terms).err();
    for (tools, allow) in [
        ("t", "edit"),
        ("t", "edit, respond"),
        ("t, request_human_guidance", "edit"),
    ] {
        let found = mistakes(tools, &format!(", allow: [{allow}]")).unwrap_or_default();
        assert!(
            found.len() == 1 && found[0].ends_with(UNANSWERED),
            "{tools}, {allow}: {found:?}"
        );
    }
    // An element of `allow` that cannot be read may be an action that links take.
    let unreadable = mistakes("t", ", allow: [edit, aprove]").unwrap_or_default();
    assert!(
        unreadable.len() == 1 && !unreadable[0].ends_with(UNANSWERED),
        "{unreadable:?}"
    );
    let reaches = |who: &str| [format!("A question of the rule `r` reaches {who}.")];
    for (tools, groups, allow, who) in [
        ("t", "", "edit, reject", "zoe (by-mail)"),
        ("t", "", "approve", "zoe (by-mail)"),
        ("request_human_guidance", "", "edit", "zoe (by-mail)"),
        ("t", "g", "edit", "eve (by-mail)"),
    ] {
        let config = held_for_zoe(tools, groups, &format!(", allow: [{allow}]")).unwrap();
        assert_eq!(config.recipient_lines(), reaches(who), "{tools}, {allow}");
    }
}

#[test]
fn rule_whose_approvers_need_a_link_that_no_entry_mails_is_warned_about() {
    let found = |groups: &str, approvers: &str, to: &str| {
        let text = format!(
            "{BASE}{TOOL}secrets: {{ keys: [ {{ id: a, key: '${{SEALING_KEY}}' }} ] }}
auth: {{ api_keys: [ {{ user: eve, groups: [{groups}], key: '0123456789abcdeF' }} ], people: [ {ZOE}, {EVE} ] }}
policy: [ {{ name: r, tools: [t], decide: hold, approvers: {{ groups: [g]{approvers} }} }} ]
notify: {{ links: {{ may: decide }}, {SERVER}to: [ {to} ] }}\n"
        );
        let secret = ("HOOK", "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=");
        let (_, report) = with(&text, &[secret], &Flags::default()).unwrap();
        let lines = report.warnings.iter();
        let lines = lines.map(|line| format!("{}: {}", line.path, line.detail));
        lines
            .filter(|line| line.starts_with("policy"))
            .collect::<Vec<_>>()
    };
    let warned = "policy[0].approvers: too few people could answer: approvers without a key decide by the link of a mail, \
                  and no entry of `notify.to` mails it to them";
    let hook = HOOK.replace("EVENTS", "");
    let both = format!("{hook}, {TO_ALL}");
    let eve_alone = "{ name: by-mail, mail: { to: { users: [eve] } } }";
    let two = ", required: 2, links: true";
    for (groups, approvers, to, is_warned) in [
        ("", "", "", true),
        ("", "", hook.as_str(), true),
        ("", "", both.as_str(), false),
        ("", ", owner: true", "", false),
        ("g", "", "", false),
        ("g", two, eve_alone, true),
        ("g", two, TO_ALL, false),
    ] {
        let expected: &[&str] = if is_warned { &[warned] } else { &[] };
        assert_eq!(
            found(groups, approvers, to),
            expected,
            "{groups} {approvers} {to}"
        );
    }
}

#[test]
fn named_people_who_may_not_decide_some_questions_are_warned_about() {
    let named = format!("{SERVER}to: [ {{ name: by-mail, mail: {{ to: {{ users: [bob] }} }} }} ]");
    let (lines, warnings) = found(&format!("{BOB}, {EVE}"), &named);
    assert_eq!(lines, reach("bob (by-mail)", "nobody"));
    let some = "notify.to[0].mail.to.users[0]: no person here may decide the questions of some rules, and no mail about those is sent here";
    assert_eq!(warnings, [format!("policy[1].{NOBODY}"), some.to_owned()]);
}

#[test]
fn receivers_other_than_people_are_named_if_they_get_questions() {
    let hook = HOOK.replace("EVENTS", "");
    assert_eq!(
        found("", &format!("to: [ {hook} ]")),
        (reach("backend", "backend"), vec![])
    );
    let ends = HOOK.replace("EVENTS", ", events: [task.completed]");
    assert_eq!(
        found("", &format!("to: [ {ends} ]")),
        (
            reach("nobody", "nobody"),
            [0, 1].map(|rule| format!("policy[{rule}].{NOBODY}")).into()
        )
    );
    let some = HOOK.replace("EVENTS", ", groups: [g]");
    let mixed = format!("{SERVER}to: [ {some}, {TO_ALL} ]");
    let (lines, warnings) = found(EVE, &mixed);
    assert_eq!(lines, reach("backend", "eve (by-mail)"));
    assert_eq!(warnings, [format!("policy[0].{UNMAILED}")]);
}

#[test]
fn file_without_receivers_says_that_no_person_is_told_of_questions() {
    let warned = "notify.to: no entry: nobody is told of the rules' questions, which wait for those who open the inbox or \
                  ask the API";
    for entries in ["to: []", ""] {
        let expected = (reach("nobody", "nobody"), vec![warned.to_owned()]);
        assert_eq!(found(BOB, entries), expected, "{entries}");
    }
    let about = |text: &str| {
        let (config, report) = with(text, &[], &Flags::default()).unwrap();
        let mut paths = report.warnings.iter().map(|line| line.path.as_str());
        (
            config.recipient_lines(),
            paths.any(|path| path == "notify.to"),
        )
    };
    let local = "policy: [ { name: r, tools: [t], decide: hold } ]\n";
    let lines = vec!["A question of the rule `r` reaches nobody.".to_owned()];
    assert_eq!(about(&format!("{BASE}{TOOL}{local}")), (lines, false));
    let free = "policy: [ { name: free, tools: [t], decide: allow } ]
auth: { api_keys: [ { user: bob, key: '0123456789abcdef' } ] }\n";
    assert_eq!(about(&format!("{BASE}{TOOL}{free}")), (vec![], false));
}

#[test]
fn entry_with_users_is_named_for_the_questions_that_their_keys_may_decide() {
    for (user, r, s, unreached) in [
        ("bob", "backend", "nobody", 1),
        ("eve", "nobody", "backend", 0),
    ] {
        let hook = HOOK.replace("EVENTS", &format!(", users: [{user}]"));
        let warned = format!("policy[{unreached}].{NOBODY}");
        assert_eq!(
            found("", &format!("to: [ {hook} ]")),
            (reach(r, s), vec![warned]),
            "{user}"
        );
    }
}

#[test]
fn reminder_after_the_end_of_a_rules_questions_reaches_no_person() {
    let late = |after: &str| {
        format!("{SERVER}to: [ {{ name: late, mail: {{}}, when: {{ after: {after} }} }} ]")
    };
    let all = format!("{BOB}, {EVE}");
    let both = reach("bob (late)", "eve (late)");
    assert_eq!(found(&all, &late("54m")), (both, vec![]));
    for after in ["1h", "2h"] {
        let (lines, warnings) = found(&all, &late(after));
        assert_eq!(lines, reach("bob (late)", "nobody"));
        assert_eq!(warnings, [format!("policy[1].{NOBODY}")]);
    }
    let hook = HOOK.replace("EVENTS", ", when: { after: 2h }");
    assert_eq!(
        found("", &format!("to: [ {hook} ]")),
        (
            reach("backend", "nobody"),
            vec![format!("policy[1].{NOBODY}")]
        )
    );
}

#[test]
fn gather_that_is_as_long_as_a_question_stays_open_is_warned_about() {
    let warned = |more: &str| {
        let entry = TO_ALL.replace(" } }", &format!(" }}, {more} }}"));
        let people = format!("{BOB}, {EVE}");
        found(&people, &format!("{SERVER}to: [ {entry} ]")).1
    };
    let over = |rule: &str, gather: &str| {
        [format!(
            "notify.to[0].gather: a question of the rule `{rule}` may be over before its message is sent, which is up to \
             {gather} after an earlier message: shorten `gather`"
        )]
    };
    let none = Vec::<String>::new();
    assert_eq!(warned("gather: 59m"), none);
    assert_eq!(warned("gather: 1h"), over("s", "1h"));
    // The agent cannot propose a call that the rule `s` matches.
    let unsent = [format!("policy[1].{NOBODY}")];
    assert_eq!(warned("gather: 1h, agents: [a]"), unsent);
    assert_eq!(warned("when: { after: 55m }"), over("s", "5m"));
    assert_eq!(warned("when: { before_expiry: 2m }"), none);
    assert_eq!(
        warned("when: { before_expiry: 2m }, gather: 2m"),
        over("r", "2m")
    );
}

#[test]
fn entry_with_agents_is_named_for_the_rules_whose_tools_they_may_call() {
    let reached = |tools: &str| {
        let config = read(&format!(
            "models: {{ m: {{ provider: openai, model: x }} }}
agents:
  boss: {{ model: m, human: [guidance], sub_agents: [clerk] }}
  clerk: {{ model: m, tools: [t] }}
  other: {{ model: m, tools: [s], sub_agents: [boss], human: [confirmation] }}
gates:
  some: {{ description: Some., tools: [t] }}
  any: {{ description: Any., tools: [], other_tools: judge }}
default_agent: boss
{TOOL}auth: {{ api_keys: [ {{ user: bob, key: '0123456789abcdef' }} ], people: [ {BOB} ] }}
policy: [ {{ name: r, tools: [{tools}], decide: hold }} ]
notify: {{ {SERVER}to: [
  {{ name: boss, slack: {{ url: 'https://h/x' }}, agents: [boss] }},
  {{ name: some, slack: {{ url: 'https://h/x' }}, agents: [some] }},
  {{ name: any, slack: {{ url: 'https://h/x' }}, agents: [any] }},
  {{ name: late, mail: {{}}, agents: [some, other] }} ] }}\n"
        ));
        let lines = config.unwrap().recipient_lines().concat();
        let known = [
            "boss for calls of boss",
            "some for calls of some",
            "any for calls of any",
        ];
        let late = "bob (late for calls of some or other)";
        let named = [&known[..], &[late]].concat().into_iter();
        named.map(|name| lines.contains(name)).collect::<Vec<_>>()
    };
    for (tools, named) in [
        ("t", [true, true, true, true]),
        ("s", [false, false, true, true]),
        ("clerk", [true, false, true, true]),
        ("boss", [false, false, true, true]),
        ("'*'", [true, true, true, true]),
        ("request_human_guidance", [true, false, true, true]),
        ("request_confirmation", [false, false, true, true]),
    ] {
        assert_eq!(reached(tools), named, "{tools}");
    }
}

#[test]
fn password_of_the_mail_server_that_stands_in_the_file_is_warned_about() {
    let server = |password: &str| {
        format!("mail: {{ url: 'smtps://h', from: h@acme.com, user: u, password: '{password}' }}, ")
    };
    let all = format!("{BOB}, {EVE}");
    let (_, warnings) = found(&all, &format!("{}to: [ {TO_ALL} ]", server("canary-0123")));
    let stands =
        "notify.mail.password: this secret stands in the file: write `${NAME}` or `${file:/path}`";
    assert_eq!(warnings, [stands]);
    let (_, warnings) = found(&all, &format!("{}to: [ {TO_ALL} ]", server("${SHORT}")));
    assert_eq!(warnings, Vec::<String>::new());
}
