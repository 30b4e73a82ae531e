//! Tests calls at a gate whose standing decision ends after the judgement, and before the commit of
//! their start. Tests calls whose standing decisions cannot be read.

use std::time::Duration;

use holdpoint::engine::Refusal;
use holdpoint::engine::gate::{GateRefusal, GateState};
use holdpoint::task::grant::GrantScope;
use holdpoint::task::request::RequestKind;
use holdpoint::task::verdict::Verdict;
use macro_rules_attribute::apply;
use tokio::time::timeout;

use super::super::engine_harness::{decides, person};
use super::super::grants::{hours, judgements, remembered};
use super::quarantine::OFFER_OF_BOB;
use super::{
    LONG, agent, asks, execute_before_next_commit, harness, refund, until_at_rest, until_open,
};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn call_whose_standing_decision_is_used_up_before_the_commit_is_held(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    harness.replace("approvers: { owner: true }", OFFER_OF_BOB);
    let engine = harness.engine(8);
    let first = asks(&engine, &refund(1, Duration::ZERO)).await.task_id;
    let (request, _) = harness.only_open(first).await;
    let standing_decision = remembered(GrantScope::Owner, hours(1));
    decides(&engine, &person("bob"), request, standing_decision).await;
    until_at_rest(&harness, first).await;
    // Calls on other replicas may use up a standing decision at any time.
    execute_before_next_commit(&harness, "update standing_grant set used = uses");
    let call = asks(&engine, &refund(2, Duration::ZERO)).await;
    assert_eq!(call.state, GateState::Pending);
    until_open(&harness, call.task_id, RequestKind::Approval).await;
    let judged = judgements(&harness, call.task_id).await;
    let verdicts: Vec<_> = judged.iter().map(|judgement| judgement.verdict).collect();
    assert_eq!(verdicts, [Verdict::Hold]);
    assert!(harness.tool.ledger().is_empty());
}

#[apply(both)]
async fn ask_whose_standing_decisions_cannot_be_read_is_refused_as_unavailable(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    harness.replace("approvers: { owner: true }", OFFER_OF_BOB);
    let (engine, database) = (harness.engine(8), harness.fixture.database());
    // The renamed table makes every read of standing decisions fail, as in an outage.
    let hide = "alter table standing_grant rename to hidden_grant";
    database.execute(hide).await;
    let (gates, caller, proposal) = (engine.gates(), agent(), refund(1, Duration::ZERO));
    let asked = timeout(LONG, gates.ask(&caller, &proposal, None)).await;
    assert!(matches!(
        asked,
        Ok(Err(GateRefusal::Command(Refusal::Unavailable)))
    ));
    let show = "alter table hidden_grant rename to standing_grant";
    database.execute(show).await;
    assert_eq!(asks(&engine, &proposal).await.state, GateState::Pending);
}
