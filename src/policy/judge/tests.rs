//! Tests of the verdicts of rules.

use serde_json::{Value, json};

use crate::policy::fixture::{judge, judge_along, rule, sound};
use crate::policy::{Decide, Policy, Rule};
use crate::task::verdict::{Terms, Verdict};

mod gates;

fn small(amount: f64) -> Value {
    json!({"amount": amount, "order": 17})
}

#[test]
fn calls_without_rules_are_held_except_sub_agents_and_external_tools() {
    let policy = Policy::default();
    for (tool, verdict) in [
        ("refund", Verdict::Hold),
        ("shell", Verdict::Hold),
        ("analyst", Verdict::Allow),
        ("ask_customer", Verdict::Allow),
        ("request_confirmation", Verdict::Human),
    ] {
        let judged = judge(&policy, tool, &json!({}));
        assert_eq!((judged.verdict, judged.rule), (verdict, None), "{tool}");
        assert_eq!(
            judged.terms.is_some(),
            matches!(verdict, Verdict::Hold | Verdict::Human),
            "{tool}"
        );
    }
    let held = judge(&policy, "refund", &small(1.0));
    assert_eq!(held.terms, Some(Terms::default()));
    assert_eq!(held.reason.as_deref(), Some("No rule matches."));
}

#[test]
fn first_matching_rule_decides() {
    let rules = [
        rule("small", &["refund"], "args.amount <= 20.0", Decide::Allow),
        Rule {
            reason: Some("Finance.".to_owned()),
            ..rule("large", &["refund"], "", Decide::Hold)
        },
        rule("late", &["*"], "", Decide::Allow),
        rule(
            "no-root",
            &["shell"],
            "args.command.contains('sudo')",
            Decide::Deny,
        ),
    ];
    let policy = sound(&rules);
    let allowed = judge(&policy, "refund", &small(20.0));
    assert_eq!(
        (allowed.verdict, allowed.rule.as_deref(), allowed.terms),
        (Verdict::Allow, Some("small"), None)
    );
    let held = judge(&policy, "refund", &small(20.01));
    assert_eq!(
        (held.verdict, held.rule.as_deref()),
        (Verdict::Hold, Some("large"))
    );
    assert_eq!(held.reason.as_deref(), Some("Finance."));
    assert_eq!(held.terms.expect("terms").approvers.groups, ["large"]);
    assert_eq!(
        judge(&policy, "shell", &json!({"command": "sudo"}))
            .rule
            .as_deref(),
        Some("late")
    );
}

/// Expressions with their expected values. A test evaluates all of them for one call.
const EXPRESSIONS: &[(&str, bool)] = &[
    ("args.amount == 5.0 && args.amount == 5", true),
    (
        "args.order == 7 && args.order < 7.5 && 6.99 < args.order",
        true,
    ),
    (
        "args.order % 2 == 1 && args.order / 2 == 3 && -args.order == -7",
        true,
    ),
    ("args.amount * 2.0 + 1.0 - 1.0 > 9.99", true),
    ("size(args.note) == 7 && args.note.size() == 7", true),
    (
        "args.note.startsWith('na') && args.note.endsWith('✓') && args.note.matches('^na.ve')",
        true,
    ),
    (
        "args.tags.all(t, t < 'c') && args.tags.exists(t, t == 'b')",
        true,
    ),
    (
        "args.tags.exists_one(t, t == 'b') && !args.tags.exists_one(t, t != 'z')",
        true,
    ),
    (
        "args.tags.map(t, t + '!') == ['a!', 'b!'] && args.tags.filter(t, t != 'a') == ['b']",
        true,
    ),
    ("args.tags.map(t, t == 'a', t + t) == ['aa']", true),
    ("args.tags.filter(t, t != 'a').exists(t, t == 'b')", true),
    (
        "args.rows.all(r, r.price <= 1.0) && args.rows[0].price == 1.0",
        true,
    ),
    ("'a' in args.tags && !('z' in args.tags)", true),
    (
        "has(args.note) && !has(args.money.cents) == false && 'note' in args",
        true,
    ),
    (
        "args.money.cents == 5 && args['money']['cents'] == 5 && args['dash-ed'] == 'd'",
        true,
    ),
    ("args.`dash-ed` == 'd'", true),
    ("args.loose.all(x, x > 0)", true),
    (
        "{'gold': 100.0, 'none': 0.0}[task.metadata.tier] >= args.amount",
        true,
    ),
    (
        "task.metadata.limit > 49.5 && task.metadata.nested.deep[1] == 2",
        true,
    ),
    (
        "has(task.metadata.gone) ? task.metadata.gone == 1 : true",
        true,
    ),
    (
        "user.id == 'alice' && user.tenant == 'acme' && 'night' in user.groups",
        true,
    ),
    (
        "user.id == 'ALICE' && 'Alice' == user.id && !(user.id != 'aLICE')",
        true,
    ),
    (
        "user.id in ['bob', 'Alice'] && ['bob', 'ALICE'].exists(u, u == user.id)",
        true,
    ),
    (
        "user.id.startsWith('AL') && user.id.endsWith('Ice') && user.id.contains('LI')",
        true,
    ),
    (
        "user.id in {'bob': 1, 'Alice': 2} && {'bob': 1, 'Alice': 2}[user.id] == 2",
        true,
    ),
    (
        "user.id in task.metadata.owners && task.metadata.owners[user.id] == 1",
        true,
    ),
    ("user.id in {'al': 1} || user.id in task.metadata", false),
    ("user.id.matches('^ALICE$')", true),
    (
        "user.id == 'al' || user.id.startsWith('lice') || user.id.matches('^ALI$')",
        false,
    ),
    ("user.tenant == 'ACME' || 'NIGHT' in user.groups", false),
    ("tool.name == 'refund' && tool.effect == 'once'", true),
    (
        "agent.name == 'billing' && agent.path == ['billing'] && agent.path.size() == 1",
        true,
    ),
    ("task.id == '0190-task' && session == 's-1'", true),
    ("args.urgent ? true : false", false),
    ("args.amount <= 20.0 || args.loose[9] == 1", true),
    ("args.amount > 20.0 && args.loose[9] == 1", false),
    (
        "int('7') == args.order && double(7) == 7.0 && string(7) == '7' && int(7.9) == 7",
        true,
    ),
    (
        "9007199254740993 > 9007199254740992.0 && -9223372036854775808 < -9.2e18",
        true,
    ),
    (
        "args.note.lowerAscii().contains('ve') && null != args.note",
        true,
    ),
];

#[test]
fn expressions_evaluate_as_in_cel() {
    let args = json!({"amount": 5, "order": 7.0, "note": "naïve ✓", "tags": ["a", "b"], "rows": [{"price": 1}],
            "money": {"cents": 5}, "free": {}, "loose": [1, 2.5], "dash-ed": "d", "urgent": false});
    for (when, truth) in EXPRESSIONS.iter().copied() {
        let policy = sound(&[
            rule("r", &["refund"], when, Decide::Deny),
            rule("a", &["refund"], "", Decide::Allow),
        ]);
        let judged = judge(&policy, "refund", &args);
        let wanted = if truth { ("r", None) } else { ("a", None) };
        assert_eq!(
            (
                judged.rule.as_deref().unwrap_or(""),
                judged.reason.as_deref()
            ),
            wanted,
            "{when}"
        );
    }
}

#[test]
fn faulty_allow_blocks_later_allows_and_the_next_hold_gives_the_terms() {
    let args = json!({"amount": 5, "order": 1});
    let erring = rule("erring", &["refund"], "args.note == 'x'", Decide::Allow);
    let allow = rule("allow", &["refund"], "", Decide::Allow);
    let hold = rule("hold", &["refund"], "", Decide::Hold);
    let elsewhere = rule("elsewhere", &["refund"], "args.amount > 20.0", Decide::Hold);
    let deny = rule("deny", &["refund"], "", Decide::Deny);
    for (rules, verdict, by) in [
        (vec![&erring], Verdict::Hold, None),
        (vec![&erring, &allow], Verdict::Hold, None),
        (
            vec![&erring, &allow, &elsewhere, &hold],
            Verdict::Hold,
            Some("hold"),
        ),
        (vec![&erring, &allow, &deny], Verdict::Deny, Some("deny")),
        (vec![&erring, &deny, &hold], Verdict::Deny, Some("deny")),
        (vec![&allow, &erring], Verdict::Allow, Some("allow")),
    ] {
        let rules: Vec<Rule> = rules.into_iter().cloned().collect();
        let judged = judge(&sound(&rules), "refund", &args);
        assert_eq!((judged.verdict, judged.rule.as_deref()), (verdict, by));
        if verdict == Verdict::Hold {
            let groups = judged.terms.expect("terms").approvers.groups;
            assert_eq!(
                groups,
                by.map(str::to_owned).into_iter().collect::<Vec<_>>()
            );
            assert!(
                judged
                    .reason
                    .expect("a reason")
                    .contains("Rule `erring` could not be evaluated: `note` is missing.")
            );
        }
    }
}

#[test]
fn call_is_judged_for_every_agent_of_its_path() {
    let root = ["supervisor", "billing", "analyst"];
    let for_agent = |name: &str, agent: &str, decide| {
        rule(
            name,
            &["refund"],
            &format!("agent.name == '{agent}'"),
            decide,
        )
    };
    let leaf_allows = for_agent("leaf", "analyst", Decide::Allow);
    for (rules, verdict, by) in [
        (vec![leaf_allows.clone()], Verdict::Allow, Some("leaf")),
        (
            vec![for_agent("top", "supervisor", Decide::Allow)],
            Verdict::Hold,
            None,
        ),
        (
            vec![
                leaf_allows.clone(),
                for_agent("mid", "billing", Decide::Hold),
            ],
            Verdict::Hold,
            Some("mid"),
        ),
        (
            vec![
                leaf_allows.clone(),
                for_agent("top", "supervisor", Decide::Deny),
            ],
            Verdict::Deny,
            Some("top"),
        ),
        (
            vec![
                for_agent("leaf-hold", "analyst", Decide::Hold),
                for_agent("mid", "billing", Decide::Hold),
                for_agent("top", "supervisor", Decide::Hold),
            ],
            Verdict::Hold,
            Some("top"),
        ),
        (
            vec![
                for_agent("top", "supervisor", Decide::Hold),
                for_agent("mid", "billing", Decide::Deny),
            ],
            Verdict::Deny,
            Some("mid"),
        ),
    ] {
        let judged = judge_along(&sound(&rules), &root, "refund", &small(5.0));
        assert_eq!((judged.verdict, judged.rule.as_deref()), (verdict, by));
    }
    let path = rule(
        "path",
        &["refund"],
        "agent.path == ['supervisor', 'billing']",
        Decide::Deny,
    );
    assert_eq!(
        judge_along(&sound(&[path]), &root, "refund", &small(5.0))
            .rule
            .as_deref(),
        Some("path")
    );
}

#[test]
fn ancestor_with_a_faulty_rule_holds_with_the_terms_of_a_matching_hold() {
    let rules = [
        rule(
            "top",
            &["refund"],
            "agent.name == 'supervisor' && args.note == 'x'",
            Decide::Allow,
        ),
        rule("leaf", &["refund"], "agent.name == 'analyst'", Decide::Hold),
    ];
    let judged = judge_along(
        &sound(&rules),
        &["supervisor", "analyst"],
        "refund",
        &small(5.0),
    );
    assert_eq!(
        (judged.verdict, judged.rule.as_deref()),
        (Verdict::Hold, Some("leaf"))
    );
    let reason = judged.reason.expect("a reason");
    assert!(
        reason.contains("Rule `top` could not be evaluated: `note` is missing."),
        "{reason}"
    );
    let rules = [
        rules[0].clone(),
        rule("all", &["refund"], "agent.name == 'analyst'", Decide::Allow),
    ];
    let judged = judge_along(
        &sound(&rules),
        &["supervisor", "analyst"],
        "refund",
        &small(5.0),
    );
    assert_eq!((judged.verdict, judged.rule), (Verdict::Hold, None));
}

#[test]
fn sub_agents_and_external_tools_follow_a_rule_where_one_matches() {
    let policy = sound(&[
        rule(
            "no",
            &["analyst"],
            "args.task.contains('delete')",
            Decide::Deny,
        ),
        rule("ask", &["ask_*"], "", Decide::Hold),
    ]);
    assert_eq!(
        judge(&policy, "analyst", &json!({"task": "delete"})).verdict,
        Verdict::Deny
    );
    assert_eq!(
        judge(&policy, "analyst", &json!({"task": "count"})).verdict,
        Verdict::Allow
    );
    assert_eq!(
        judge(&policy, "ask_customer", &json!({})).verdict,
        Verdict::Hold
    );
}

#[test]
fn human_tool_is_matched_only_by_its_exact_name_and_never_allowed() {
    let name = "request_confirmation";
    for (rules, verdict, by) in [
        (
            vec![rule("all", &["*"], "", Decide::Deny)],
            Verdict::Human,
            None,
        ),
        (
            vec![rule("all", &["*"], "", Decide::Allow)],
            Verdict::Human,
            None,
        ),
        (
            vec![rule("exact", &[name], "", Decide::Hold)],
            Verdict::Human,
            Some("exact"),
        ),
        (
            vec![rule("exact", &[name], "", Decide::Deny)],
            Verdict::Deny,
            Some("exact"),
        ),
        (
            vec![
                rule("allow", &[name], "", Decide::Allow),
                rule("exact", &[name], "", Decide::Hold),
            ],
            Verdict::Human,
            Some("exact"),
        ),
    ] {
        let judged = judge(&sound(&rules), name, &json!({}));
        assert_eq!((judged.verdict, judged.rule.as_deref()), (verdict, by));
        assert_eq!(judged.terms.is_some(), verdict == Verdict::Human);
    }
}

#[test]
fn reason_never_quotes_an_argument() {
    let policy = sound(&[rule("a", &["refund"], "args.amount <= 20.0", Decide::Allow)]);
    let judged = judge(
        &policy,
        "refund",
        &json!({"amount": "hunter2-secret", "order": 1}),
    );
    assert!(!judged.reason.expect("a reason").contains("hunter2"));
}

#[test]
fn unknown_agent_path_is_never_allowed() {
    let policy = sound(&[rule("a", &["*"], "", Decide::Allow)]);
    assert_eq!(
        judge_along(&policy, &[], "analyst", &json!({"task": "x"})).verdict,
        Verdict::Hold
    );
}
