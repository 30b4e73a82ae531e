//! Tests who may propose and report calls, and that others are refused.

use std::time::Duration;

use holdpoint::engine::Refusal;
use holdpoint::engine::gate::{GateRefusal, OutcomeReport, ReportedOutcome};
use holdpoint::people::Caller;
use macro_rules_attribute::apply;

use super::super::failures::report_of;
use super::super::{LONG, agent, asks, bash, harness};
use crate::engine::engine_harness::alice;
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::allocator::limit_further_bytes;

#[apply(both)]
async fn caller_who_may_decide_neither_asks_nor_reports(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let asked = engine.gates().ask(&alice(), &bash(LONG), None).await;
    assert!(matches!(
        asked,
        Err(GateRefusal::Command(Refusal::Forbidden(_)))
    ));
    let report = OutcomeReport {
        call: Err("k".to_owned()),
        attempt: None,
        outcome: ReportedOutcome::Succeeded,
        content: String::new(),
    };
    let reported = engine.gates().report(&alice(), &report, None).await;
    assert!(matches!(
        reported,
        Err(GateRefusal::Command(Refusal::Forbidden(_)))
    ));
}

#[apply(both)]
async fn report_about_another_users_call_is_refused_without_a_search_of_its_content(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = asks(&engine, &bash(Duration::ZERO)).await.task_id;
    let report = OutcomeReport {
        content: "x".repeat(32 * 1024 * 1024),
        ..report_of(task, ReportedOutcome::Succeeded)
    };
    let other = Caller {
        user_id: "bob".into(),
        ..agent()
    };
    // The service must refuse this report before it searches the content for secrets. The
    // search would copy the content, and the limit leaves no room for a copy.
    limit_further_bytes(16 * 1024 * 1024);
    let reported = engine.gates().report(&other, &report, None).await;
    limit_further_bytes(usize::MAX);
    assert!(matches!(
        reported,
        Err(GateRefusal::Command(Refusal::Forbidden(_)))
    ));
}

#[apply(both)]
async fn gate_that_is_not_open_to_a_user_is_unknown_to_it(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| {
        yaml.replacen("  coding: {", "  coding: { open_to: { users: [carol] },", 1)
    });
    let refused = harness
        .engine(8)
        .gates()
        .ask(&agent(), &bash(LONG), None)
        .await;
    assert!(matches!(
        refused,
        Err(GateRefusal::Command(Refusal::Invalid(_)))
    ));
}
