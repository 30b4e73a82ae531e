//! Tests of rules that require more people than may approve, in every tenant or in one of them.

use super::*;

#[test]
fn rule_that_no_approvers_can_satisfy_is_refused() {
    let web = AUTH.replace("eve,", "web, act_as: true,");
    let reader = AUTH.replace("bob, groups: [g],", "bob, groups: [g], may: [read],");
    let exact = AUTH.replace("auth: {", "auth: { user_ids: exact,");
    let two_tenants = AUTH.replace("eve,", "eve, tenant: other, groups: [g],");
    for (auth, approvers, required, satisfied) in [
        (AUTH, "", 1, true),
        (AUTH, "", 2, false),
        (AUTH, "users: [bob]", 1, true),
        (AUTH, "users: [bob]", 2, false),
        (AUTH, "users: [bob], owner: true", 2, true),
        (AUTH, "users: [bob, eve], groups: [g]", 2, true),
        (AUTH, "users: [bob, eve], groups: [g]", 3, false),
        (AUTH, "users: [bob, BOB, Eve], groups: [g]", 3, false),
        (AUTH, "users: [Bob, EVE]", 2, true),
        (&exact, "users: [Bob, eve]", 2, false),
        (&exact, "users: [bob, eve]", 2, true),
        (AUTH, "users: [zoe]", 1, false),
        (AUTH, "groups: [none]", 1, false),
        (AUTH, "groups: [g], owner: false", 1, true),
        (AUTH, "owner: false", 1, false),
        (&web, "users: [zoe]", 1, true),
        (&web, "users: [zoe]", 2, false),
        (&web, "users: [zoe, ZOE]", 2, false),
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
        assert_eq!(
            found.is_ok(),
            satisfied,
            "{auth} {approvers} {required}: {found:?}"
        );
    }
}

#[test]
fn rule_for_several_people_that_no_answer_can_end_is_refused_or_warned_about() {
    for (auth, required, allow, expected) in [
        (AUTH, 2, "respond", Err(())),
        (AUTH, 2, "edit, respond", Ok(1)),
        (AUTH, 2, "edit", Ok(1)),
        (AUTH, 2, "edit, approve", Ok(0)),
        (AUTH, 2, "respond, reject", Ok(0)),
        (AUTH, 1, "respond", Ok(0)),
        ("", 2, "respond", Ok(0)),
    ] {
        let text = format!(
            "{BASE}{TOOL}{auth}policy: [{{ name: x, tools: [t], decide: hold, approvers: {{ users: [bob, eve], required: {required} }}, allow: [{allow}] }}]\n"
        );
        let warned = |path: &str| path == "policy[0].allow";
        let found = with(&text, &[], &Flags::default()).map(|(_, report)| {
            report
                .warnings
                .iter()
                .filter(|line| warned(&line.path))
                .count()
        });
        assert_eq!(found.map_err(|_| ()), expected, "{required} {allow}");
    }
}

#[test]
fn rule_for_several_people_with_an_unreadable_answer_has_only_that_mistake() {
    for allow in ["respond, x", "edit, x"] {
        let text = format!(
            "{BASE}{TOOL}{AUTH}policy: [{{ name: x, tools: [t], decide: hold, approvers: {{ users: [bob, eve], required: 2 }}, allow: [{allow}] }}]\n"
        );
        let report = with(&text, &[], &Flags::default()).unwrap_err();
        let lines = report.mistakes.iter().chain(&report.warnings);
        let lines = lines.filter(|line| line.path.starts_with("policy"));
        let found: Vec<_> = lines
            .map(|line| (line.path.as_str(), line.detail.as_str()))
            .collect();
        let expected = "expected one of `approve`, `reject`, `edit`, `respond`";
        assert_eq!(found, [("policy[0].allow[1]", expected)], "{allow}");
    }
}

#[test]
fn tenant_that_cannot_satisfy_a_rule_for_all_tenants_is_warned_about() {
    let found = |file: &str, eve: &str, rules: &str| {
        let auth = AUTH.replace("eve,", &format!("eve, tenant: other{eve},"));
        let text = format!("{file}{TOOL}{auth}policy: [{rules}]\n");
        let (_, report) = with(&text, &[], &Flags::default()).unwrap();
        let lines = report.warnings.into_iter();
        let lines = lines.filter(|line| line.path.starts_with("policy"));
        lines.map(|line| line.detail).collect::<Vec<_>>()
    };
    let rule =
        |rest: &str| format!("{{ name: x, tools: [t], decide: hold, approvers: {{ {rest} }} }}");
    let bobs = rule("groups: [g]");
    let mine = bobs.replace("decide:", "when: \"user.tenant == 'default'\", decide:");
    let large = bobs.replace("decide:", "when: 'args.amount > 1', decide:");
    let other = "{ name: y, tools: [t], when: \"user.tenant == 'other'\", decide: deny }";
    let after = format!("{other}, {bobs}");
    let closed = BASE.replace("[t]", "[t], open_to: { tenants: [default] }");
    let warned = "the tenant `other` cannot satisfy this rule: it needs 1 different people, and 0 could answer";
    for (file, eve, rules, is_warned) in [
        (BASE, "", bobs.as_str(), true),
        (BASE, "", large.as_str(), true),
        (BASE, "", mine.as_str(), false),
        (BASE, "", after.as_str(), false),
        (closed.as_str(), "", bobs.as_str(), false),
        (BASE, ", may: [read]", bobs.as_str(), false),
        (BASE, ", groups: [g]", bobs.as_str(), false),
        (BASE, "", rule("groups: [g], owner: true").as_str(), false),
    ] {
        let expected: &[&str] = if is_warned { &[warned] } else { &[] };
        assert_eq!(found(file, eve, rules), expected, "{eve} {rules}");
    }
}
