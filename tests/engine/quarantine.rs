//! Tests the quarantine of a tool. The quarantine begins when a `once` call of the tool ends with
//! an unknown outcome or a 5xx. From then on, no rule allows a call of the tool, until a person has
//! decided a call of the tool.

use std::time::Duration;

use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Item};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::call_decisions::{each, edit, question};
use super::edits::TWO;
use super::engine_harness::{
    Calls, EngineHarness, alice, alice_decides, alice_writes, go, message, person, rejects,
    superseding, turn, whole,
};
use crate::store::store_fixture::{StoreFixture, both};

/// A refund that a rule allows.
const SMALL: (&str, &str) = ("refund", r#"{"order":1,"amount":5}"#);
/// A refund that a rule holds.
const LARGE: (&str, &str) = ("refund", r#"{"order":1,"amount":120}"#);

/// Returns a harness with an agent that pays back a small sum in each of its first `turns` turns.
/// The tool answers with `status` until the test changes the tool's answer.
async fn harness(fixture: StoreFixture, turns: u32, status: u16) -> EngineHarness {
    let harness = EngineHarness::new(fixture, &[]).await;
    harness.script(move |asked| Ok(turn(if asked <= turns { &[SMALL] } else { &[] })));
    harness.tool.answers(status, "what happened");
    harness
}

async fn answered(harness: &EngineHarness, task: TaskId, action: Action) {
    let (request, kind) = harness.only_open(task).await;
    let result =
        (action == Action::Respond && kind == RequestKind::Reconcile).then(|| "it was paid".into());
    alice_decides(&harness.engine(0), request, whole(action, result)).await;
    harness.run().await;
}

async fn reason(harness: &EngineHarness, task: TaskId) -> String {
    let items = harness.journal(task).await.items;
    let reason = items.iter().rev().find_map(|item| {
        let Fact::InterventionRequested(asked) = &item.fact else {
            return None;
        };
        asked.own_calls().next()?.reason.clone()
    });
    reason.expect("a reason")
}

/// Checks that `paid` calls were executed and that the next call is held, although a rule allows
/// it.
async fn is_held(harness: &EngineHarness, task: TaskId, paid: usize) {
    assert_eq!(harness.only_open(task).await.1, RequestKind::Approval);
    assert_eq!(harness.executions(task, "/refund"), paid);
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
}

#[apply(both)]
async fn tool_that_failed_with_5xx_is_held_until_one_call_of_it_is_approved(fixture: StoreFixture) {
    let harness = harness(fixture, 3, 500).await;
    let task = harness.stopped().await;
    is_held(&harness, task, 1).await;
    let reason = reason(&harness, task).await;
    let items = harness.journal(task).await.items;
    let first = items.iter().find_map(|item| {
        let Fact::ToolStarted { tool_call_id, .. } = &item.fact else {
            return None;
        };
        Some(tool_call_id.to_string())
    });
    assert!(
        reason.contains(&first.unwrap()) && reason.contains("500"),
        "{reason}"
    );
    harness.tool.answers(200, "paid");
    answered(&harness, task, Action::Approve).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 3);
}

#[apply(both)]
async fn call_that_a_rule_holds_says_also_why_its_tool_is_in_quarantine(fixture: StoreFixture) {
    let harness = harness(fixture, 2, 500).await;
    harness.script_turns(&[&[SMALL], &[LARGE]]);
    let task = harness.stopped().await;
    is_held(&harness, task, 1).await;
    let reason = reason(&harness, task).await;
    let (rule, doubt) = reason
        .split_once(". An earlier call of this tool (")
        .unwrap();
    assert_eq!(rule, "Refunds above 20 need a look");
    assert!(doubt.contains("500"), "{reason}");
}

#[apply(both)]
async fn edit_that_approves_nothing_keeps_the_judgement_with_the_reason_of_the_quarantine(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture, 2, 500).await;
    harness.replace("{ owner: true }", TWO);
    harness.script_turns(&[&[SMALL], &[LARGE]]);
    let task = harness.stopped().await;
    is_held(&harness, task, 1).await;
    let (request, call) = question(&harness, task).await;
    let smaller = edit(r#"{"order":1,"amount":110}"#);
    harness
        .engine(0)
        .decide(&person("bob"), request, each([(call[0], smaller)]), None)
        .await
        .unwrap();
    harness.run().await;
    assert_ne!(
        harness.only_open(task).await.0,
        request,
        "others are asked about the edited call"
    );
    assert!(
        reason(&harness, task)
            .await
            .contains("An earlier call of this tool (")
    );
    let items = harness.journal(task).await.items;
    let decided = items
        .iter()
        .position(|item| matches!(item.fact, Fact::Decision { .. }))
        .unwrap();
    assert!(
        !items[decided..]
            .iter()
            .any(|item| matches!(item.fact, Fact::Judged { .. }))
    );
}

#[apply(both)]
async fn tool_that_failed_with_4xx_or_is_repeatable_is_not_quarantined(fixture: StoreFixture) {
    let harness = harness(fixture, 3, 422).await;
    let task = harness.stopped().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 3);
    harness.tool.answers(500, "");
    let tag: Calls = &[("tag", r#"{"text":"paid"}"#)];
    harness.script(move |asked| Ok(turn(if asked <= 2 { tag } else { &[] })));
    let task = harness.stopped().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/tag"), 2);
}

#[apply(both)]
async fn second_call_of_the_same_turn_is_held_after_a_5xx(fixture: StoreFixture) {
    let harness = harness(fixture, 1, 503).await;
    harness.script(|asked| Ok(turn(if asked == 1 { &[SMALL, SMALL] } else { &[] })));
    let task = harness.stopped().await;
    is_held(&harness, task, 1).await;
}

#[apply(both)]
async fn decision_about_an_unknown_call_lifts_the_quarantine(fixture: StoreFixture) {
    for action in [Action::Respond, Action::Reject] {
        let harness = &harness(StoreFixture::like(&fixture).await, 2, 502).await;
        let task = harness.stopped().await;
        assert_eq!(harness.only_open(task).await.1, RequestKind::Reconcile);
        harness.tool.answers(200, "paid");
        answered(harness, task, action).await;
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        assert_eq!(harness.executions(task, "/refund"), 2);
    }
}

#[apply(both)]
async fn expired_reconcile_request_does_not_lift_the_quarantine(fixture: StoreFixture) {
    let harness = harness(fixture, 2, 502).await;
    let task = harness.stopped().await;
    harness.tool.answers(200, "paid");
    harness.fixture.forward(Duration::from_hours(25));
    harness.engine(0).worker().expire().await.unwrap();
    harness.run().await;
    is_held(&harness, task, 1).await;
}

#[apply(both)]
async fn quarantine_outlives_a_cancel_and_a_message(fixture: StoreFixture) {
    let harness = harness(fixture, 2, 502).await;
    let task = harness.stopped().await;
    harness.tool.answers(200, "paid");
    let api = harness.engine(0);
    api.cancel(&alice(), task, None).await.unwrap();
    alice_writes(&api, task, message("and again")).await;
    harness.run().await;
    is_held(&harness, task, 1).await;
    alice_writes(&api, task, superseding("and again")).await;
    harness.script(|asked| Ok(turn(if asked <= 3 { &[SMALL] } else { &[] })));
    harness.run().await;
    is_held(&harness, task, 1).await;
    // A person's rejection ends the quarantine, as an approval does.
    let (request, _) = harness.only_open(task).await;
    alice_decides(
        &api,
        request,
        rejects(holdpoint::task::decision::Consequence::Continue),
    )
    .await;
    // The call that was just rejected stays rejected, so the model proposes a different call.
    let other: Calls = &[("refund", r#"{"order":1,"amount":6}"#)];
    harness.script(move |asked| Ok(turn(if asked <= 4 { other } else { &[] })));
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 2);
}

#[apply(both)]
async fn changed_effect_in_the_configuration_does_not_lift_the_quarantine(fixture: StoreFixture) {
    for effect in ["idempotent", "read_only"] {
        let mut harness = harness(StoreFixture::like(&fixture).await, 2, 500).await;
        harness.script(|asked| match asked {
            1 => Ok(turn(&[SMALL])),
            _ => Err(holdpoint::model::ModelError::new("no")),
        });
        let task = harness.stopped().await;
        let now = format!("refund:\n    effect: {effect}\n");
        harness.replace("refund:\n", &now);
        harness.script(|asked| Ok(turn(if asked <= 2 { &[SMALL] } else { &[] })));
        alice_writes(&harness.engine(0), task, message("and again")).await;
        harness.run().await;
        is_held(&harness, task, 1).await;
    }
}

#[apply(both)]
async fn late_5xx_after_a_cancel_does_not_lift_the_quarantine(fixture: StoreFixture) {
    let harness = harness(fixture, 2, 500).await;
    let engine = harness.engine(4);
    harness.tool.close();
    let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
    harness.tool.reached(1).await;
    engine.cancel(&alice(), task, None).await.unwrap();
    harness.tool.open();
    let is_late = |item: &Item| matches!(item.fact, Fact::LateResult(_));
    let is_kept = async || harness.journal(task).await.items.iter().any(is_late);
    crate::support::until("the late result is kept", is_kept).await;
    harness.tool.answers(200, "paid");
    alice_writes(&engine, task, message("and again")).await;
    harness.until_stopped(task).await;
    is_held(&harness, task, 1).await;
}

#[apply(both)]
async fn quarantine_outlives_a_retry_after_a_model_failure(fixture: StoreFixture) {
    let harness = harness(fixture, 1, 500).await;
    harness.script(|asked| match asked {
        1 => Ok(turn(&[SMALL])),
        _ => Err(holdpoint::model::ModelError::new("no")),
    });
    let task = harness.stopped().await;
    assert_eq!(harness.status(task).await, TaskStatus::Failed);
    harness.script(|asked| Ok(turn(if asked == 2 { &[SMALL] } else { &[] })));
    harness.engine(0).retry(&alice(), task, None).await.unwrap();
    harness.run().await;
    is_held(&harness, task, 1).await;
}

#[apply(both)]
async fn edit_that_other_people_must_approve_leaves_the_tool_in_quarantine(fixture: StoreFixture) {
    let mut harness = harness(fixture, 3, 500).await;
    harness.replace("{ owner: true }", "{ users: [bob] }");
    let task = harness.stopped().await;
    is_held(&harness, task, 1).await;
    let (request, call) = question(&harness, task).await;
    let large = edit(r#"{"order":1,"amount":120}"#);
    alice_decides(&harness.engine(0), request, each([(call[0], large)])).await;
    harness.run().await;
    assert_ne!(
        harness.only_open(task).await.0,
        request,
        "the rule of large refunds asks Bob"
    );
    alice_writes(&harness.engine(0), task, superseding("and again")).await;
    harness.run().await;
    is_held(&harness, task, 1).await;
}
