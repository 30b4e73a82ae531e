//! Tests that the policy neither allows a call nor panics because of hostile arguments or a hostile
//! expression.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fixture::{judge, policy, rule, sound, tools};
use super::{Decide, Policy, Rule};
use crate::task::verdict::Verdict;
use crate::world::Mistakes;

fn arguments() -> Vec<Value> {
    vec![
        json!({}),
        json!(null),
        json!([]),
        json!("amount"),
        json!({"order": 1}),
        json!({"amount": null, "order": 1}),
        json!({"amount": "5", "order": 1}),
        json!({"amount": "5.0", "order": 1}),
        json!({"amount": "NaN", "order": 1}),
        json!({"amount": "", "order": 1}),
        json!({"amount": true, "order": 1}),
        json!({"amount": [5], "order": 1}),
        json!({"amount": [], "order": 1}),
        json!({"amount": {"$numberDouble": "5"}, "order": 1}),
        json!({"Amount": 5, "order": 1}),
        json!({"AMOUNT": 5.0, "order": 1}),
        json!({"amount ": 5.0, "order": 1}),
        json!({"аmount": 5.0, "order": 1}),
        json!({"amount": 20.000_000_000_000_004, "order": 1}),
        json!({"amount": 1e300, "order": 1}),
        json!({"amount": u64::MAX, "order": 1}),
        json!({"amount": 5, "order": "1"}),
        json!({"amount": 5, "order": 1.5}),
        json!({"amount": 5, "order": u64::MAX}),
        json!({"amount": 5, "order": 1e300}),
        json!({"amount": 5, "order": 1, "note": 7}),
        json!({"amount": 5, "order": 1, "tags": "x"}),
        json!({"amount": 5, "order": 1, "tags": [1]}),
        json!({"amount": 5, "order": 1, "rows": [{"price": "1"}]}),
        json!({"amount": 5, "order": 1, "money": {"cents": "1"}}),
        json!({"amount": 5, "order": 1, "urgent": "false"}),
    ]
}

const SMALL: [&str; 12] = [
    "args.amount <= 20.0",
    "args.amount <= 20",
    "!(args.amount > 20.0)",
    "args.amount <= 20.0 || args.amount <= 20.0",
    "args.amount <= 20.0 && true",
    "true && args.amount <= 20.0",
    "false || args.amount <= 20.0",
    "args.amount > 20.0 ? false : true",
    "[args.amount].all(x, x <= 20.0)",
    "[args.amount].exists(x, x <= 20.0)",
    "args['amount'] <= 20.0",
    "int(args.amount) <= 20 && args.amount <= 20.0",
];

#[test]
fn hostile_arguments_are_never_allowed() {
    for when in SMALL {
        let allow = rule("small", &["refund"], when, Decide::Allow);
        let hold = rule("finance", &["refund"], "args.amount > 20.0", Decide::Hold);
        let deny = rule(
            "never",
            &["refund"],
            "args.amount > 1000000.0",
            Decide::Deny,
        );
        let sets = [
            (vec![allow.clone()], None),
            (vec![allow.clone(), hold.clone()], Some("finance")),
            (vec![hold.clone(), allow.clone()], Some("finance")),
            (
                vec![allow.clone(), deny.clone(), hold.clone()],
                Some("finance"),
            ),
            (
                vec![
                    allow,
                    rule(
                        "tiny",
                        &["refund"],
                        "args.order == 1 && args.amount < 1.0",
                        Decide::Allow,
                    ),
                    hold,
                ],
                Some("finance"),
            ),
        ];
        for (rules, held_by) in sets {
            let policy = sound(&rules);
            assert_eq!(
                judge(&policy, "refund", &json!({"amount": 5, "order": 1})).verdict,
                Verdict::Allow
            );
            for args in arguments() {
                let judged = judge(&policy, "refund", &args);
                assert_ne!(judged.verdict, Verdict::Allow, "{when} {args}");
                if judged.verdict == Verdict::Hold {
                    assert_eq!(
                        judged.rule.as_deref(),
                        held_by,
                        "{when} {args}: no weaker approvers"
                    );
                }
            }
        }
    }
}

#[test]
fn unconditional_allow_does_not_pass_arguments_of_the_wrong_type() {
    let policy = sound(&[rule("all", &["*"], "", Decide::Allow)]);
    assert_eq!(
        judge(&policy, "refund", &json!({"amount": 5, "order": 1})).verdict,
        Verdict::Allow
    );
    assert_eq!(
        judge(&policy, "refund", &json!({"amount": "5", "order": 1})).verdict,
        Verdict::Hold
    );
    assert_eq!(judge(&policy, "refund", &json!([])).verdict, Verdict::Hold);
}

#[test]
fn fault_in_an_operand_holds_the_call_whatever_the_other_operand_is() {
    let args = json!({"amount": 5, "order": 1, "tags": ["a", "b"], "loose": ["x", 1]});
    for when in [
        "args.note == 'x' || args.amount <= 20.0",
        "args.note == 'x' || true",
        "!(args.note == 'x' && false)",
        "(args.note == 'x' ? false : false) || true",
        "args.loose.exists(x, x == 1)",
        "args.loose.exists(x, x == 1 || true) || true",
        "'y' in args.loose || true",
        "args.loose != ['x', 'y'] || true",
        "args.order / 0 == 1 || true",
        "args.order + 9223372036854775807 > 0 || true",
        "args.amount / 0.0 > 1.0 || true",
        "args.tags[7] == 'x' || true",
        "args.tags[-1] == 'x' || true",
        "task.metadata.gone == 'x' || true",
        "task.metadata.tier > 5 || true",
        "task.metadata.tier != 5",
        "task.metadata.limit == '50' || true",
        "(\"500\" > 100 && args.order == 1) || true",
        "args.amount",
        "args.amount + 1.0",
        "args.order * args.amount > 1.0 || true",
        "{'a': 1}['b'] == 1 || true",
        "int('x') == 1 || true",
        "-(-9223372036854775807 - 1) > 0 || true",
        "null",
    ] {
        let allow = sound(&[
            rule("a", &["refund"], when, Decide::Allow),
            rule("h", &["refund"], "", Decide::Hold),
        ]);
        let judged = judge(&allow, "refund", &args);
        assert_eq!(
            (judged.verdict, judged.rule.as_deref()),
            (Verdict::Hold, Some("h")),
            "{when}"
        );
        assert!(
            judged
                .reason
                .is_some_and(|reason| reason.contains("`a` could not be evaluated")),
            "{when}"
        );
        for (decide, verdict) in [(Decide::Hold, Verdict::Hold), (Decide::Deny, Verdict::Deny)] {
            let policy = sound(&[
                rule("r", &["refund"], when, decide),
                rule("a", &["refund"], "", Decide::Allow),
            ]);
            assert_eq!(
                judge(&policy, "refund", &args).verdict,
                verdict,
                "{when}: a fault counts as a match"
            );
        }
    }
}

#[test]
fn hostile_expressions_are_refused_at_load_and_never_allow() {
    let cases = [
        format!("{}1 > 0", "1+".repeat(240)),
        format!(
            "{}args.order == 1{}",
            "!(false || ".repeat(70),
            ")".repeat(70)
        ),
        format!("{}true{}", "(false || ".repeat(80), ")".repeat(80)),
        format!("args.tags{} == 'x'", "[0]".repeat(300)),
        format!("args.order{} == 1", ".a".repeat(400)),
        format!("{}true", "true?true:".repeat(100)),
        format!("{}1{}.size() > 0", "[".repeat(400), "]".repeat(400)),
        format!("[{}1].size() > 0", "1,".repeat(450)),
        "[1,2].map(x, [1,2].map(y, [1,2].map(z, z))).size() > 0".to_owned(),
        "args.tags.all(x, args.tags.exists(y, y == x))".to_owned(),
        format!("args.note == '{}'", "x".repeat(1024)),
        format!("args.note.matches('{}')", "(a{900}){900}"),
        format!("{}1{} > 0", "-(1 - ".repeat(90), ")".repeat(90)),
        "args[args.note] == 'x'".to_owned(),
        "args.amount <= 20.0 ||".to_owned(),
        "'unterminated".to_owned(),
        "\u{202e}args.amount <= 20.0".to_owned(),
        "args.note == 'é' ⇒ true".to_owned(),
        String::new(),
    ];
    for when in cases {
        let allow = rule("bad", &["refund"], "x", Decide::Allow);
        let (policy, mistakes) = policy(&[Rule {
            when: Some(when.clone()),
            ..allow
        }]);
        assert_eq!(mistakes.found.len(), 1, "{when}: {:?}", mistakes.found);
        assert_eq!(mistakes.found[0].place, ["policy", "0", "when"], "{when}");
        assert_eq!(
            judge(&policy, "refund", &json!({"amount": 5, "order": 1})).verdict,
            Verdict::Hold,
            "{when}"
        );
    }
}

#[test]
fn evaluation_is_bounded_and_exceeding_it_never_allows() {
    let tags: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
    let args = json!({"amount": 5, "order": 1, "tags": tags, "note": "a".repeat(200_000)});
    for when in [
        "args.tags.all(x, x in args.tags)",
        "args.tags.all(x, args.note.contains(x) || true)",
    ] {
        let policy = sound(&[rule("a", &["refund"], when, Decide::Allow)]);
        let judged = judge(&policy, "refund", &args);
        assert_eq!(judged.verdict, Verdict::Hold, "{when}");
        assert!(
            judged
                .reason
                .is_some_and(|reason| reason.contains("too large"))
        );
    }
    let policy = sound(&[rule(
        "a",
        &["refund"],
        "args.tags.all(x, x != 'no')",
        Decide::Allow,
    )]);
    assert_eq!(judge(&policy, "refund", &args).verdict, Verdict::Allow);
    assert!(policy.is_heavy(200_000) && !policy.is_heavy(600));
    assert!(!Policy::default().is_heavy(200_000));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(member(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn member() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "amount", "order", "note", "tags", "rows", "price", "money", "cents", "loose"
        ])
        .prop_map(str::to_owned),
        ".{0,4}",
    ]
}

fn expression() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "args.amount",
        "args.order",
        "args.note",
        "args.tags",
        "args.rows",
        "args.money.cents",
        "args.loose",
        "has(args.note)",
        "20.0",
        "1",
        "'x'",
        "true",
        "null",
        "[1, 2]",
        "user.groups",
        "task.metadata",
        "task.metadata.limit",
        "agent.path",
        "size(args.tags)",
        "args.tags[0]",
        "{'a': 1}",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(3, 16, 2, |inner| {
        let operator = prop::sample::select(vec![
            "<=", ">", "==", "!=", "&&", "||", "+", "-", "*", "/", "%", "in",
        ]);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(a, o, b)| format!("({a} {o} {b})")),
            inner.clone().prop_map(|a| format!("!{a}")),
            inner.clone().prop_map(|a| format!("-{a}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}.all(x, x == {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}.map(x, {b})")),
            (inner.clone(), inner.clone(), inner)
                .prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn judging_never_panics_and_never_allows_after_a_fault(whens in prop::collection::vec(expression(), 1..3), args in any_json()) {
        let faulty = rule("faulty", &["*"], "args.amount / 0.0 > 1.0 || true", Decide::Allow);
        let after: Vec<Rule> = whens.iter().map(|when| rule("r", &["refund"], when, Decide::Allow)).collect();
        let rules = [std::slice::from_ref(&faulty), &after].concat();
        let with_fault = Policy::new(&rules, &tools(), &mut Mistakes::default());
        let without = Policy::new(&after, &tools(), &mut Mistakes::default());
        for tool in ["refund", "shell", "analyst", "ask_customer"] {
            prop_assert_ne!(judge(&with_fault, tool, &args).verdict, Verdict::Allow);
            let _ = judge(&without, tool, &args);
        }
    }

    #[test]
    fn condition_of_any_text_is_read_or_refused(when in ".{0,300}") {
        let (policy, _) = policy(&[Rule { when: Some(when), ..rule("r", &["refund"], "", Decide::Deny) }]);
        let _ = judge(&policy, "refund", &json!({"amount": 5, "order": 1}));
    }
}
