//! Tests who answers a question of a tool's server, and until when, if the call runs without an
//! approval of its own.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::people::Caller;
use holdpoint::task::decision::Action;
use holdpoint::task::grant::GrantScope;
use holdpoint::task::id::TaskId;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::verdict::{Approvers, OnExpiry, Terms};
use holdpoint::tool::ToolAnswer;
use serde_json::json;

use super::super::engine_harness::{EngineHarness, alice, decides, fills, person, whole};
use super::super::grants::{hours, judgements, remembered};
use super::{LARGE, SMALL, Server, answer, asks, harness, the_request};

/// The approvers and the deadline of a rule.
const OPS_WITHIN_AN_HOUR: &str = "approvers: { groups: [ops] }, expires_in: 1h";

/// Creates a harness in which a rule with these `tools` and `terms` allows the call `SMALL`.
async fn allowing(
    tools: &str,
    terms: &str,
    answers: Vec<ToolAnswer>,
) -> (EngineHarness, Arc<Server>) {
    let (mut harness, server) = harness(SMALL, answers).await;
    let allows = r#"when: "args.amount <= 20.0", decide: allow"#;
    let rule = format!("name: small, tools: {tools}, {allows}, {terms}");
    harness.replace(&format!("name: small, tools: [refund], {allows}"), &rule);
    (harness, server)
}

fn without_the_rules_of_refund(yaml: &str) -> String {
    let kept = yaml
        .lines()
        .filter(|line| !line.contains("tools: [refund]"));
    kept.collect::<Vec<_>>().join("\n")
}

/// Returns a member of the group ops.
fn bob_of_ops() -> Caller {
    Caller {
        groups: vec!["ops".to_owned()],
        ..person("bob")
    }
}

/// Returns the terms of a question that the owner answers within 24 hours.
fn terms_of_owner(key: &str) -> Terms {
    Terms {
        message: Some(format!("files asks: Which {key}? Say it.")),
        ..Terms::default()
    }
}

/// Returns the terms of a question with [`OPS_WITHIN_AN_HOUR`].
fn terms_of_ops(key: &str) -> Terms {
    Terms {
        approvers: Approvers {
            owner: false,
            groups: vec!["ops".to_owned()],
            ..Approvers::default()
        },
        expires_in: Some(hours(1)),
        ..terms_of_owner(key)
    }
}

/// Answers the only open question as `caller`. Returns whether the engine accepts the answer.
async fn is_answered_by(harness: &EngineHarness, caller: &Caller, task: TaskId) -> bool {
    let request = the_request(harness, task).await.request_id;
    let folder = fills(&json!({"folder": "a"}));
    let engine = harness.engine(0);
    let said = engine.decide(caller, request, folder, None).await;
    said.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn question_during_an_allowed_call_is_for_the_approvers_of_a_rule_that_names_its_tool() {
    let asking = vec![asks(&["folder"])];
    let (harness, server) = allowing("[refund]", OPS_WITHIN_AN_HOUR, asking).await;
    let task = harness.held().await;
    let asked = the_request(&harness, task).await;
    assert_eq!(asked.kind, RequestKind::Elicitation);
    assert_eq!(asked.terms, terms_of_ops("folder"));
    assert!(!is_answered_by(&harness, &alice(), task).await);
    assert!(is_answered_by(&harness, &bob_of_ops(), task).await);
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(server.resumed().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_during_a_call_that_a_glob_allows_are_its_owners_until_the_rules_deadline() {
    let asking = vec![asks(&["folder", "name"])];
    let terms = format!("{OPS_WITHIN_AN_HOUR}, on_expiry: cancel");
    let (harness, server) = allowing("[\"ref*\"]", &terms, asking).await;
    let task = harness.held().await;
    let expected = |key| Terms {
        expires_in: Some(hours(1)),
        on_expiry: OnExpiry::Cancel,
        ..terms_of_owner(key)
    };
    assert_eq!(the_request(&harness, task).await.terms, expected("folder"));
    assert!(!is_answered_by(&harness, &bob_of_ops(), task).await);
    answer(&harness, task, fills(&json!({"folder": "a"}))).await;
    assert_eq!(the_request(&harness, task).await.terms, expected("name"));
    harness.fixture.forward(Duration::from_mins(61));
    assert_eq!(harness.engine(0).worker().expire().await.unwrap(), 1);
    harness.finish(task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Canceled);
    assert_eq!(server.resumed().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn question_during_a_call_that_a_standing_decision_allows_has_the_terms_of_its_rule() {
    let paid = ToolAnswer::Succeeded {
        content: "paid".to_owned(),
        http_status: None,
    };
    let (mut harness, server) = harness(LARGE, vec![paid, asks(&["folder"])]).await;
    harness.script_turns(&[LARGE, LARGE]);
    let offer = r#"{ when: "args.amount <= 900.0", for: [task], most: 4h, uses: 3 }"#;
    let terms = format!("{OPS_WITHIN_AN_HOUR}, remember: {offer}");
    harness.replace("approvers: { owner: true }", &terms);
    let task = harness.held().await;
    let approval = the_request(&harness, task).await.request_id;
    let yes = remembered(GrantScope::Task, hours(1));
    decides(&harness.engine(0), &bob_of_ops(), approval, yes).await;
    harness.run().await;
    let asked = the_request(&harness, task).await;
    assert_eq!(asked.kind, RequestKind::Elicitation);
    assert_eq!(asked.terms, terms_of_ops("folder"));
    let judged = judgements(&harness, task).await;
    let is_granted: Vec<_> = judged.iter().map(|it| it.grant_id.is_some()).collect();
    assert_eq!(is_granted, [false, true]);
    assert!(!is_answered_by(&harness, &alice(), task).await);
    assert!(is_answered_by(&harness, &bob_of_ops(), task).await);
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(server.resumed().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn question_during_a_call_of_no_rule_or_of_a_rule_without_terms_is_its_owners_for_a_day() {
    for has_rule in [true, false] {
        let (mut harness, server) = harness(SMALL, vec![asks(&["folder"])]).await;
        // The other rules have terms, which do not count for this call.
        let reads = "name: reads, tools: [lookup, tag], decide: allow";
        harness.replace(reads, &format!("{reads}, {OPS_WITHIN_AN_HOUR}"));
        harness.replace("approvers: { owner: true }", OPS_WITHIN_AN_HOUR);
        if !has_rule {
            harness.configure(without_the_rules_of_refund);
        }
        let task = harness.held().await;
        if !has_rule {
            answer(&harness, task, whole(Action::Approve, None)).await;
        }
        let asked = the_request(&harness, task).await;
        assert_eq!(asked.kind, RequestKind::Elicitation);
        assert_eq!(asked.terms, terms_of_owner("folder"), "{has_rule}");
        assert!(!is_answered_by(&harness, &bob_of_ops(), task).await);
        assert!(is_answered_by(&harness, &alice(), task).await);
        harness.run().await;
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        assert_eq!(server.resumed().len(), 2);
    }
}

/// Gives the rule `from` another name. Then ops answers the first question. Asserts that ops gets
/// the next question and answers it.
async fn ops_is_asked_after_renaming(
    harness: &mut EngineHarness,
    task: TaskId,
    (from, to): (&str, &str),
) {
    harness.replace(&format!("name: {from},"), &format!("name: {to},"));
    assert!(is_answered_by(harness, &bob_of_ops(), task).await);
    harness.run().await;
    let asked = the_request(harness, task).await;
    assert_eq!(asked.kind, RequestKind::Elicitation);
    assert_eq!(asked.terms, terms_of_ops("name"));
    let name = fills(&json!({"name": "b"}));
    decides(&harness.engine(0), &bob_of_ops(), asked.request_id, name).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn next_question_during_an_allowed_call_is_for_the_approvers_of_its_renamed_rule() {
    let asking = vec![asks(&["folder", "name"])];
    let (mut harness, server) = allowing("[refund]", OPS_WITHIN_AN_HOUR, asking).await;
    let task = harness.held().await;
    ops_is_asked_after_renaming(&mut harness, task, ("small", "modest")).await;
    assert_eq!(server.resumed().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn next_question_during_an_approved_call_is_for_the_approvers_of_its_renamed_rule() {
    let (mut harness, server) = harness(LARGE, vec![asks(&["folder", "name"])]).await;
    harness.replace("approvers: { owner: true }", OPS_WITHIN_AN_HOUR);
    let task = harness.held().await;
    let approval = the_request(&harness, task).await.request_id;
    let yes = whole(Action::Approve, None);
    decides(&harness.engine(0), &bob_of_ops(), approval, yes).await;
    harness.run().await;
    ops_is_asked_after_renaming(&mut harness, task, ("large", "big")).await;
    assert_eq!(server.resumed().len(), 2);
}
