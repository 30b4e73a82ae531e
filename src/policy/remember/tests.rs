//! Tests of the offers of standing decisions.

use std::time::Duration;

use serde_json::{Value, json};

use super::RuleRemember;
use crate::policy::fixture::{judge, judge_along, known, rule, tools};
use crate::policy::{Decide, Policy, Rule, RuleApprovers};
use crate::task::grant::{GrantScope, Offer};
use crate::task::tool_spec::{Effect, ToolSpec};
use crate::world::Mistakes;

fn same() -> RuleRemember {
    RuleRemember {
        same: true,
        when: None,
        scopes: vec![GrantScope::Task],
        most: Duration::from_hours(4),
        uses: None,
    }
}

fn when(condition: &str) -> RuleRemember {
    RuleRemember {
        same: false,
        when: Some(condition.to_owned()),
        uses: Some(3),
        ..same()
    }
}

fn remembering(name: &str, tools: &[&str], condition: &str, remember: RuleRemember) -> Rule {
    Rule {
        remember: Some(remember),
        ..rule(name, tools, condition, Decide::Hold)
    }
}

/// Returns the tools of the fixture, with `refund` as an idempotent tool.
fn repeatable() -> Vec<ToolSpec> {
    let mut tools = tools();
    for tool in &mut tools {
        if tool.name == "refund" {
            tool.effect = Effect::Idempotent;
        }
    }
    tools
}

fn built(rules: &[Rule], tools: &[ToolSpec]) -> (Policy, Mistakes) {
    let mut mistakes = Mistakes::default();
    let policy = Policy::new(rules, tools, &mut mistakes);
    (policy, mistakes)
}

fn places(rule: Rule, tools: &[ToolSpec]) -> Vec<String> {
    let found = built(&[rule], tools).1.found;
    let places = found.iter().map(|mistake| mistake.place.join("."));
    places.collect()
}

fn args(amount: f64) -> Value {
    json!({"amount": amount, "order": 17})
}

fn offer(policy: &Policy, amount: f64) -> Option<Offer> {
    judge(policy, "refund", &args(amount)).offer.map(|it| *it)
}

fn of_same(policy: &Policy, args: &Value) -> Option<Offer> {
    let tool = repeatable().into_iter().find(|tool| tool.name == "refund");
    of_tool(policy, &tool.unwrap(), args)
}

fn of_tool(policy: &Policy, tool: &ToolSpec, args: &Value) -> Option<Offer> {
    offer_at(policy, tool, args, false)
}

fn offer_at(policy: &Policy, tool: &ToolSpec, args: &Value, at_gate: bool) -> Option<Offer> {
    let path = ["billing".to_owned()];
    let judged = policy.judge(&crate::policy::JudgementInput {
        tool,
        args,
        agent_path: &path,
        user: &"alice".into(),
        tenant: "acme",
        groups: &[],
        task_id: "0190-task",
        metadata: &json!({}),
        session: "s-1",
        at_gate,
        is_listed: true,
    });
    judged.offer.map(|it| *it)
}

#[test]
fn task_is_no_scope_of_an_offer_at_a_gate() {
    let both = vec![GrantScope::Task, GrantScope::Owner];
    for (scopes, at_gate) in [
        (both, Some(vec![GrantScope::Owner])),
        (vec![GrantScope::Task], None),
    ] {
        let remember = RuleRemember {
            scopes: scopes.clone(),
            ..when("true")
        };
        let rule = remembering("r", &["refund"], "", remember);
        let (policy, _) = built(&[rule], &tools());
        let offered = |gate| offer_at(&policy, &known("refund"), &args(50.0), gate);
        assert_eq!(offered(false).map(|offer| offer.scopes), Some(scopes));
        assert_eq!(offered(true).map(|offer| offer.scopes), at_gate);
    }
}

#[test]
fn mistakes_of_remember_are_found_at_their_places() {
    let own = |remember| remembering("r", &["refund"], "", remember);
    let sound = [own(same()), own(when("args.amount <= 50.0"))];
    for rule in sound {
        assert_eq!(places(rule, &repeatable()), Vec::<String>::new());
    }
    let required = Rule {
        approvers: RuleApprovers {
            groups: vec!["finance".to_owned()],
            required: 2,
            ..RuleApprovers::default()
        },
        ..own(same())
    };
    let allow = Rule {
        decide: Decide::Allow,
        ..own(same())
    };
    let neither = RuleRemember {
        same: false,
        ..same()
    };
    let both = RuleRemember {
        same: true,
        ..when("true")
    };
    for (rule, place) in [
        (required, "policy.0.remember"),
        (allow, "policy.0.remember"),
        (own(neither), "policy.0.remember"),
        (own(both), "policy.0.remember"),
        (
            own(RuleRemember {
                scopes: vec![],
                ..same()
            }),
            "policy.0.remember.for",
        ),
        (
            own(RuleRemember {
                most: Duration::ZERO,
                ..same()
            }),
            "policy.0.remember.most",
        ),
        (
            own(RuleRemember {
                uses: Some(0),
                ..same()
            }),
            "policy.0.remember.uses",
        ),
        (own(when("args.amuont <= 50.0")), "policy.0.remember.when"),
        (own(when("args.amount <=")), "policy.0.remember.when"),
        (
            remembering("r", &["analyst"], "", same()),
            "policy.0.remember",
        ),
        (
            remembering("r", &["ask_customer"], "", same()),
            "policy.0.remember",
        ),
    ] {
        assert_eq!(places(rule, &repeatable()), [place]);
    }
}

#[test]
fn once_tool_is_not_remembered_by_its_arguments_and_has_its_uses_written() {
    let rule = remembering("r", &["refund"], "", same());
    let found = places(rule.clone(), &tools());
    assert_eq!(found, ["policy.0.remember.same", "policy.0.remember.uses"]);
    // The rule with the mistakes stays in the policy, but offers no standing decision.
    let (policy, _) = built(&[rule], &tools());
    assert_eq!(offer(&policy, 120.0), None);
    let unlimited = RuleRemember {
        uses: None,
        ..when("true")
    };
    let rule = remembering("r", &["refund"], "", unlimited);
    assert_eq!(places(rule, &tools()), ["policy.0.remember.uses"]);
}

#[test]
fn offer_covers_the_same_arguments_or_the_calls_of_the_condition() {
    let (policy, _) = built(&[remembering("r", &["refund"], "", same())], &repeatable());
    let one = of_same(&policy, &json!({"amount": 1, "order": 17})).unwrap();
    let equal = of_same(&policy, &json!({"order": 17.0, "amount": 1.0})).unwrap();
    let other = of_same(&policy, &json!({"amount": 2, "order": 17})).unwrap();
    assert_eq!(one, equal);
    assert_ne!(one.basis, other.basis);
    assert_eq!(
        (one.uses, one.when, one.most),
        (20, None, Duration::from_hours(4))
    );
    let rules = [remembering(
        "r",
        &["refund"],
        "",
        when("args.amount <= 50.0"),
    )];
    let (policy, _) = built(&rules, &tools());
    let (ten, fifty) = (offer(&policy, 10.0).unwrap(), offer(&policy, 50.0).unwrap());
    assert_eq!(ten, fifty);
    assert_eq!(ten.uses, 3);
    assert_eq!(offer(&policy, 50.01), None, "beyond the condition");
}

#[test]
fn offer_for_a_command_covers_no_command_that_begins_with_it_and_no_other_tool() {
    let shells = ["sh", "sh_as_root"].map(|name| ToolSpec {
        name: name.to_owned(),
        effect: Effect::Idempotent,
        ..known("shell")
    });
    let (policy, mistakes) = built(&[remembering("r", &["sh*"], "", same())], &shells);
    assert!(mistakes.is_empty(), "{:?}", mistakes.found);
    let basis = |tool: &ToolSpec, command: &str| {
        let offer = of_tool(&policy, tool, &json!({"command": command}));
        offer.unwrap().basis
    };
    let [shell, other] = &shells;
    let approved = basis(shell, "ls");
    assert_eq!(basis(shell, "ls"), approved);
    let chained = "ls && ".repeat(51) + "rm -rf /";
    for longer in ["lsof", "ls -la", "ls; rm -rf /", chained.as_str()] {
        assert_ne!(basis(shell, longer), approved, "{longer}");
    }
    assert_ne!(basis(other, "ls"), approved);
}

#[test]
fn changed_rule_or_tool_offers_another_basis() {
    let base = remembering("r", &["refund"], "", when("args.amount <= 50.0"));
    let (policy, _) = built(std::slice::from_ref(&base), &tools());
    let basis = offer(&policy, 10.0).unwrap().basis;
    assert!(policy.offers(&basis));
    let same_args = of_same(
        &built(&[remembering("r", &["refund"], "", same())], &repeatable()).0,
        &args(1.0),
    );
    let changed = [
        Rule {
            name: "s".to_owned(),
            ..base.clone()
        },
        Rule {
            when: Some("args.amount > 1.0".to_owned()),
            ..base.clone()
        },
        Rule {
            reason: Some("Other.".to_owned()),
            ..base.clone()
        },
        Rule {
            approvers: RuleApprovers::default(),
            ..base.clone()
        },
        remembering("r", &["refund"], "", when("args.amount <= 50.5")),
        remembering(
            "r",
            &["refund"],
            "",
            RuleRemember {
                uses: Some(4),
                ..when("args.amount <= 50.0")
            },
        ),
        remembering(
            "r",
            &["refund"],
            "",
            RuleRemember {
                most: Duration::from_hours(1),
                ..when("args.amount <= 50.0")
            },
        ),
        Rule {
            remember: None,
            ..base.clone()
        },
    ];
    for rule in changed {
        let (now, _) = built(&[rule], &tools());
        assert_ne!(
            offer(&now, 10.0).map(|offer| offer.basis),
            Some(basis.clone())
        );
        assert!(!now.offers(&basis));
    }
    let mut other_tools = tools();
    for tool in &mut other_tools {
        "sha256:other".clone_into(&mut tool.definition);
    }
    let (now, _) = built(&[base], &other_tools);
    assert!(!now.offers(&basis), "the tool's definition is part of it");
    assert!(!now.offers(&same_args.unwrap().basis));
}

#[test]
fn nothing_is_offered_unless_every_hold_of_the_path_is_that_rule() {
    let remember = || when("args.amount <= 50.0");
    let own = remembering("own", &["refund"], "", remember());
    let other = rule("other", &["refund"], "agent.name == 'root'", Decide::Hold);
    let deny = rule("deny", &["refund"], "agent.name == 'root'", Decide::Deny);
    let faulty = rule("faulty", &["refund"], "args.note == 'x'", Decide::Allow);
    let along = |rules: &[Rule]| {
        let (policy, _) = built(rules, &tools());
        judge_along(&policy, &["root", "billing"], "refund", &args(10.0)).offer
    };
    assert!(along(std::slice::from_ref(&own)).is_some());
    assert_eq!(
        along(&[other.clone(), own.clone()]),
        None,
        "another rule holds it for the root"
    );
    assert_eq!(along(&[deny, own.clone()]), None);
    assert_eq!(
        along(&[faulty, own.clone()]),
        None,
        "a rule before it cannot be evaluated"
    );
    let by_root = remembering("own", &["refund"], "", when("agent.name == 'billing'"));
    assert_eq!(
        along(&[by_root]),
        None,
        "the condition does not hold for the root"
    );
    let allowed = rule(
        "allowed",
        &["refund"],
        "agent.name == 'billing'",
        Decide::Allow,
    );
    assert!(
        along(&[allowed, own]).is_some(),
        "the root's hold is that rule"
    );
    let below = rule(
        "below",
        &["refund"],
        "agent.name == 'billing'",
        Decide::Hold,
    );
    let own = remembering("own", &["refund"], "", remember());
    assert_eq!(along(&[below, own]), None, "another rule holds it below");
    let only_root = remembering("own", &["refund"], "agent.name == 'root'", remember());
    assert_eq!(along(&[only_root]), None, "no rule matches below");
    let all = remembering("all", &["refund", "analyst"], "", when("true"));
    let (policy, _) = built(&[all], &tools());
    let of = |tool: &str, args: Value| judge(&policy, tool, &args).offer;
    assert!(of("refund", args(10.0)).is_some());
    assert_eq!(
        of("analyst", json!({"task": "look"})),
        None,
        "another task performs it"
    );
}
