//! Tests of the verdicts on calls that are proposed at a gate.

use serde_json::json;

use crate::policy::fixture::{judge_at_gate, judge_unlisted, known, rule, sound, tool, tools};
use crate::policy::{Decide, Policy, Rule};
use crate::task::tool_spec::{ToolKind, ToolSpec};
use crate::task::verdict::{Terms, Verdict};
use crate::world::Mistakes;

#[test]
fn call_at_a_gate_that_no_rule_matches_is_held_whatever_the_kind_of_its_tool() {
    let external = known("ask_customer");
    for tool in ["refund", "shell", "analyst", "ask_customer"] {
        let judged = judge_at_gate(&Policy::default(), &known(tool), &json!({}));
        assert_eq!(
            (judged.verdict, judged.rule, judged.terms),
            (Verdict::Hold, None, Some(Terms::default())),
            "{tool}"
        );
        assert_eq!(judged.reason.as_deref(), Some("No rule matches."), "{tool}");
    }
    for (decide, verdict) in [
        (Decide::Allow, Verdict::Allow),
        (Decide::Hold, Verdict::Hold),
        (Decide::Deny, Verdict::Deny),
    ] {
        let policy = sound(&[rule(
            "r",
            &["ask_customer"],
            "agent.name == 'billing'",
            decide,
        )]);
        let judged = judge_at_gate(&policy, &external, &json!({}));
        assert_eq!(
            (judged.verdict, judged.rule.as_deref()),
            (verdict, Some("r")),
            "a rule decides at a gate as elsewhere"
        );
    }
}

/// Returns a tool that the gate does not list, but whose calls the gate judges.
fn other_tool(name: &str) -> ToolSpec {
    tool(name, ToolKind::External, json!({"type": "object"}))
}

#[test]
fn allow_matches_a_tool_that_the_gate_does_not_list_by_a_glob_only() {
    let beside = |rules: &[Rule]| {
        let mut mistakes = Mistakes::default();
        let policy = Policy::new(rules, &tools(), &mut mistakes);
        assert!(mistakes.is_empty(), "{:?}", mistakes.found);
        policy
    };
    let exact = beside(&[
        rule("exact", &["Bash", "server.tool/x:1"], "", Decide::Allow),
        rule("glob", &["files/*", "Ba??"], "", Decide::Deny),
    ]);
    for (name, verdict, found) in [
        ("Bash", Verdict::Deny, Some("glob")),
        ("files/read.all", Verdict::Deny, Some("glob")),
        ("server.tool/x:1", Verdict::Hold, None),
        ("Read", Verdict::Hold, None),
    ] {
        let judged = judge_unlisted(&exact, &other_tool(name), &json!({}));
        assert_eq!(
            (judged.verdict, judged.rule.as_deref()),
            (verdict, found),
            "{name}"
        );
    }
    // A `hold` or `deny` rule that lists an exact name also matches a tool that the gate does not
    // list. If the rule did not match, a person could approve a call that the rule denies.
    for (decide, verdict) in [(Decide::Deny, Verdict::Deny), (Decide::Hold, Verdict::Hold)] {
        let strict = beside(&[rule("exact", &["server.tool/x:1"], "", decide)]);
        let judged = judge_unlisted(&strict, &other_tool("server.tool/x:1"), &json!({}));
        assert_eq!(
            (judged.verdict, judged.rule.as_deref()),
            (verdict, Some("exact"))
        );
    }
    let configured = ["refund", "ask_customer"];
    let same_name = beside(&[rule("exact", &configured, "", Decide::Allow)]);
    for name in configured {
        let judged = judge_unlisted(&same_name, &other_tool(name), &json!({}));
        assert_eq!(
            (judged.verdict, judged.rule),
            (Verdict::Hold, None),
            "a configured tool has this name: {name}"
        );
    }
    let args = json!({"command": "ls"});
    for when in ["args.command == 'ls'", "!has(args.command) || true"] {
        let policy = beside(&[
            rule("reads", &["Bas*"], when, Decide::Allow),
            rule("late", &["*"], "", Decide::Allow),
        ]);
        let judged = judge_unlisted(&policy, &other_tool("Bash"), &args);
        assert_eq!(
            (judged.verdict, judged.rule),
            (Verdict::Hold, None),
            "a condition on the arguments cannot be evaluated: {when}"
        );
    }
    let policy = beside(&[rule(
        "by-agent",
        &["Bas*"],
        "agent.name == 'billing' && tool.name == 'Bash'",
        Decide::Allow,
    )]);
    let judged = judge_unlisted(&policy, &other_tool("Bash"), &args);
    assert_eq!(judged.verdict, Verdict::Allow);
}
