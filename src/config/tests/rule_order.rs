//! Tests of the warnings about rules that never decide a call.

use super::*;

const FILE: &str = "models: { m: { provider: openai, model: x } }
agents: { a: { model: m, tools: [t, u, files_read], human: [confirmation] } }
tools: { t: { external: {} }, u: { external: {} }, files_read: { external: {} } }
";
const SOME: &str = "tools: [t], when: \"user.id == 'ann'\", decide: allow";

/// Loads [`FILE`] with these gates and these rules, whose names are `r0`, `r1`, and so on. Returns
/// a line for each rule that never decides a call: the path of its `tools`, and the names of the
/// earlier rules that decide the calls instead.
fn idle_rules(gates: &str, rules: &[&str]) -> Vec<String> {
    let rules = rules.iter().enumerate();
    let rules = rules.map(|(index, rule)| format!("  - {{ name: r{index}, {rule} }}\n"));
    let rules = rules.collect::<Vec<_>>().concat();
    let text = format!("{FILE}{gates}policy:\n{rules}");
    let (_, report) = with(&text, &[], &Flags::default()).unwrap();
    let idle = report.warnings.iter().filter_map(|line| {
        let told = "this rule never decides a call: all its tools are matched earlier, without a `when`, by ";
        let names = line.detail.strip_prefix(told)?;
        Some(format!("{}: {names}", line.path))
    });
    idle.collect()
}

#[test]
fn rule_whose_tools_earlier_rules_match_without_a_condition_is_warned_about() {
    let allow_t = "tools: [t], decide: allow";
    let (hold_t, deny_t) = ("tools: [t], decide: hold", "tools: [t], decide: deny");
    let all = "tools: ['*'], decide: allow";
    let files = "tools: ['files_*'], decide: deny";
    let asks = "tools: [request_confirmation], decide: hold";
    for (rules, expected) in [
        (&[all, deny_t][..], "policy[1].tools: `r0`"),
        (&[all, files], "policy[1].tools: `r0`"),
        (&[allow_t, deny_t], "policy[1].tools: `r0`"),
        (&[allow_t, SOME], "policy[1].tools: `r0`"),
        (&[SOME, allow_t, allow_t], "policy[2].tools: `r1`"),
        (&[SOME, hold_t, deny_t], "policy[2].tools: `r1`"),
        (&[files, files], "policy[1].tools: `r0`"),
        (
            &[files, "tools: [files_read], decide: hold"],
            "policy[1].tools: `r0`",
        ),
        (&[asks, asks], "policy[1].tools: `r0`"),
        (
            &[
                hold_t,
                "tools: [u], decide: deny",
                "tools: [u, t], decide: allow",
            ],
            "policy[2].tools: `r0`, `r1`",
        ),
    ] {
        assert_eq!(idle_rules("", rules), [expected], "{rules:?}");
    }
}

#[test]
fn rule_that_may_decide_a_call_is_not_warned_about() {
    let allow_t = "tools: [t], decide: allow";
    let (hold_t, rest) = ("tools: [t], decide: hold", "tools: ['*'], decide: hold");
    let all = "tools: ['*'], decide: allow";
    for rules in [
        &[SOME, hold_t][..],
        &[allow_t, "tools: [t, u], decide: deny"],
        &["tools: [t, u, files_read], decide: allow", rest],
        &["tools: ['{t,u,files_read}'], decide: allow", rest],
        // No `allow` rule applies to a tool that asks a person.
        &[all, "tools: [request_confirmation], decide: hold"],
        // If the `when` of the first rule cannot be evaluated, the `allow` of the second rule has
        // no effect. So the third rule decides the call.
        &[SOME, allow_t, hold_t],
    ] {
        assert_eq!(idle_rules("", rules), Vec::<String>::new(), "{rules:?}");
    }
}

#[test]
fn rule_for_a_tool_that_a_gate_does_not_list_is_warned_about_only_after_a_glob() {
    let gates = "gates: { g: { tools: [u], other_tools: judge } }\n";
    let deny_t = "tools: [t], decide: deny";
    for (first, second, is_idle) in [
        ("tools: [t], decide: allow", deny_t, false),
        ("tools: ['*'], decide: allow", deny_t, true),
        ("tools: [t], decide: hold", deny_t, true),
        (
            "tools: [u], decide: allow",
            "tools: [u], decide: deny",
            true,
        ),
    ] {
        let found = idle_rules(gates, &[first, second]);
        assert_eq!(found.len(), usize::from(is_idle), "{first}: {found:?}");
    }
}

#[test]
fn earlier_rule_without_a_name_is_reported_for_its_name_alone() {
    let text = format!(
        "{FILE}policy:\n  - {{ tools: [t], decide: allow }}\n  - {{ name: second, tools: [t], decide: deny }}\n"
    );
    let report = with(&text, &[], &Flags::default()).unwrap_err();
    assert_eq!(report.mistakes.len(), 1, "{report}");
    assert!(
        report
            .warnings
            .iter()
            .all(|line| !line.detail.contains("``")),
        "{report}"
    );
}
