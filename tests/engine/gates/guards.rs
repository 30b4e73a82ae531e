//! Tests gate calls in special situations: a result is on its way to an asker, an equal call runs
//! or is in doubt, or the rules have changed before a start.

mod late_reports;
mod permits;
mod report_keys;
mod rights;

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::Engine;
use holdpoint::engine::gate::{
    GateCall, GateDecision, GateRefusal, GateState, Identity, Proposal, ResultDelivery,
};
use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::decision::Action;
use holdpoint::task::item::Outcome;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;

use super::super::engine_harness::{EngineHarness, alice_decides, claimed, whole};
use super::super::random_gates::Replica;
use super::failures::in_doubt;
use super::{
    LONG, abort, agent, approve, approved, ask, asking, asking_by, asks, driven, harness, proposal,
    refund, small, until_present, until_proposed,
};
use crate::store::store_fixture::{StoreFixture, both};

/// Asks for a call that runs at once, and delivers its result.
async fn delivered(harness: &EngineHarness, engine: &Arc<Engine>, proposal: &Proposal) -> GateCall {
    let answer = engine.gates().ask(&agent(), proposal, None).await.unwrap();
    answer.delivery.unwrap().delivered();
    let task = answer.call.task_id;
    until_present(harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
    answer.call
}

#[apply(both)]
async fn undelivered_result_goes_to_one_of_twelve_equal_asks_on_two_replicas(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| yaml.replacen("  coding: {", "  coding: { max_open: 100,", 1));
    let engines = [harness.engine(8), harness.engine(8)];
    for order in 1..=3 {
        let task = approved(&harness, &engines[0], &refund(order, Duration::ZERO)).await;
        drop(ask(&engines[0], order, LONG).await);
        until_present(&harness, task, |until| until == Time(0)).await;
        let asks =
            (0..12).map(|place| asking_by(&engines[place % 2], refund(order, Duration::ZERO)));
        let mut answers = Vec::new();
        for ask in asks.collect::<Vec<_>>() {
            answers.push(ask.await.unwrap().unwrap());
        }
        let results = answers
            .iter()
            .filter(|answer| answer.call.task_id == task)
            .count();
        assert_eq!(
            (results, harness.executions(task, "/refund")),
            (1, 1),
            "order {order}"
        );
    }
}

#[apply(both)]
async fn result_that_is_being_handed_over_is_not_given_to_another_ask(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &refund(1, Duration::ZERO)).await;
    let on_its_way = ask(&engine, 1, LONG).await;
    assert_eq!(on_its_way.call.task_id, task);
    let other = ask(&engine, 1, Duration::ZERO).await.call;
    assert_ne!(other.task_id, task);
    assert_eq!(other.state, GateState::Pending);
    on_its_way.delivery.map(ResultDelivery::delivered).unwrap();
}

#[apply(both)]
async fn equal_ask_while_a_call_runs_is_held_at_either_replica(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let (here, there) = (harness.engine(8), harness.engine(8));
    harness.tool.close();
    let running = asking_by(&here, small(1, Duration::from_mins(5)));
    harness.tool.reached(1).await;
    for engine in [&here, &there] {
        let equal = asks(engine, &small(1, Duration::ZERO)).await;
        assert_eq!(equal.state, GateState::Pending);
        assert!(equal.reason.unwrap().contains("The same call"));
    }
    harness.tool.open();
    let call = running.await.unwrap().unwrap().call;
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    assert_eq!(harness.tool.count(), 1);
}

#[apply(both)]
async fn equal_ask_while_a_claimed_call_runs_on_another_replica_is_held(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let (here, there) = (harness.engine(8), harness.engine(8));
    let task = approved(&harness, &here, &refund(1, Duration::ZERO)).await;
    harness.tool.close();
    let running = asking(&here, 1);
    harness.tool.reached(1).await;
    let equal = ask(&there, 1, Duration::ZERO).await.call;
    assert_ne!(equal.task_id, task);
    assert!(
        equal.message().contains("The same call is being run."),
        "{}",
        equal.message()
    );
    assert!(
        equal
            .reason
            .unwrap()
            .contains("The same call is being run.")
    );
    harness.tool.open();
    assert_eq!(
        running.await.unwrap().unwrap().call.outcome,
        Some(Outcome::Succeeded)
    );
}

#[apply(both)]
async fn equal_ask_while_a_call_runs_is_held_although_an_equal_call_was_delivered(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    delivered(&harness, &engine, &small(1, LONG)).await;
    harness.tool.close();
    let running = asking_by(&engine, small(1, Duration::from_mins(5)));
    harness.tool.reached(2).await;
    let equal = asks(&engine, &small(1, Duration::ZERO)).await;
    assert_eq!(equal.state, GateState::Pending);
    assert!(
        equal
            .reason
            .unwrap()
            .contains("The same call is being run.")
    );
    harness.tool.open();
    let call = running.await.unwrap().unwrap().call;
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    assert_eq!(harness.tool.count(), 2);
}

#[apply(both)]
async fn tool_in_doubt_is_held_although_an_equal_call_was_delivered(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    delivered(&harness, &engine, &small(1, LONG)).await;
    harness.tool.answers(504, "late");
    let doubtful = in_doubt(&harness, &engine, small(2, Duration::from_secs(1))).await;
    assert_eq!(doubtful.state, GateState::OutcomeUnknown);
    let held = asks(&engine, &small(1, Duration::from_secs(1))).await;
    assert_eq!((held.state, harness.tool.count()), (GateState::Pending, 2));
    assert!(held.reason.unwrap().contains("its outcome is not known"));
}

#[apply(both)]
async fn equal_call_is_held_after_one_that_failed_in_doubt_until_a_person_decides_one(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    harness.tool.answers(500, "broken");
    let failed = delivered(&harness, &engine, &small(1, LONG)).await;
    assert_eq!(failed.outcome, Some(Outcome::Failed));
    harness.tool.answers(200, "{}");
    let held = asks(&engine, &small(1, Duration::ZERO)).await;
    assert_eq!((held.state, harness.tool.count()), (GateState::Pending, 1));
    assert!(
        held.reason
            .unwrap()
            .contains("failed with status 500 after it was sent")
    );
    approve(&harness, &engine, held.task_id).await;
    for runs in [2, 3] {
        let call = delivered(&harness, &engine, &small(1, LONG)).await;
        assert_eq!(call.outcome, Some(Outcome::Succeeded));
        assert_eq!(harness.tool.count(), runs);
    }
}

#[apply(both)]
async fn asker_whose_wait_is_over_is_gone_at_once(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = ask(&engine, 1, Duration::from_millis(20))
        .await
        .call
        .task_id;
    assert_eq!(harness.journal(task).await.row.asker_until, Some(Time(0)));
    ask(&engine, 1, Duration::from_millis(20)).await;
    assert_eq!(harness.journal(task).await.row.asker_until, Some(Time(0)));
    approve(&harness, &engine, task).await;
    claimed(&engine).await;
    assert_eq!(harness.executions(task, "/refund"), 0);
}

#[apply(both)]
async fn repeatable_call_that_a_new_rule_holds_waits_for_its_asker(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| {
        yaml.replacen("tools: [refund, lookup", "tools: [refund, tag, lookup", 1)
    });
    let process = Replica::start(&harness.parts(8));
    harness.tool.close();
    let engine = Arc::clone(&process.engine);
    let tag = || proposal("tag", r#"{"text":"a"}"#, LONG);
    let asking = process.spawn(async move { engine.gates().ask(&agent(), &tag(), None).await });
    harness.tool.reached(1).await;
    process.crash();
    assert!(asking.await.is_err());
    harness.tool.open();
    harness.configure(|yaml| {
        yaml.replacen(
            "name: reads, tools: [lookup, tag], decide: allow",
            "name: reads, tools: [lookup, tag], decide: hold, approvers: { owner: true }",
            1,
        )
    });
    let stricter = harness.engine(8);
    harness.fixture.forward(Duration::from_mins(10));
    driven(&stricter).await;
    let task = until_proposed(&harness).await;
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    approve(&harness, &stricter, task).await;
    driven(&stricter).await;
    assert_eq!(harness.status(task).await, TaskStatus::Running);
    assert_eq!(harness.executions(task, "/tag"), 1);
    let known = Proposal {
        identity: Identity::Call(task),
        ..tag()
    };
    let call = asks(&stricter, &known).await;
    assert_eq!(call.outcome, Some(Outcome::Succeeded));
    assert_eq!(harness.executions(task, "/tag"), 2);
}

#[apply(both)]
async fn call_with_a_secret_in_its_arguments_is_invalid_at_a_gate(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let secret = proposal("Bash", r#"{"command":"echo tool-secret-0123456789"}"#, LONG);
    let call = asks(&engine, &secret).await;
    assert_eq!(call.decision, GateDecision::Deny);
    assert_eq!(call.outcome, Some(Outcome::Invalid));
}

#[apply(both)]
async fn approval_after_a_rejection_of_an_equal_call_lets_the_approved_call_run(
    fixture: StoreFixture,
) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    for (order, approved_last) in [(1, true), (2, false)] {
        let rejected = ask(&engine, order, Duration::ZERO).await.call.task_id;
        let waiting = asking(&engine, order);
        until_present(&harness, rejected, |until| until > Time(0)).await;
        let approved = ask(&engine, order, Duration::ZERO).await.call.task_id;
        assert_ne!(approved, rejected);
        abort(waiting).await;
        let no = async || {
            let (request, _) = harness.only_open(rejected).await;
            alice_decides(&engine, request, whole(Action::Reject, None)).await;
        };
        if approved_last {
            no().await;
        }
        harness.fixture.forward(Duration::from_secs(1));
        approve(&harness, &engine, approved).await;
        harness.fixture.forward(Duration::from_secs(1));
        if !approved_last {
            no().await;
        }
        let call = ask(&engine, order, LONG).await.call;
        let ran = (
            call.task_id == approved,
            call.outcome,
            harness.executions(approved, "/refund"),
        );
        let expected = if approved_last {
            (true, Some(Outcome::Succeeded), 1)
        } else {
            (false, Some(Outcome::Rejected), 0)
        };
        assert_eq!(ran, expected, "order {order}");
    }
}

#[apply(both)]
async fn calls_that_are_proposed_at_once_do_not_exceed_max_open(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| yaml.replacen("  coding: {", "  coding: { max_open: 3,", 1));
    let engine = harness.engine(8);
    let asks: Vec<_> = (1..=24)
        .map(|order| asking_by(&engine, refund(order, Duration::ZERO)))
        .collect();
    let (mut pending, mut refused) = (0, 0);
    for ask in asks {
        match ask.await.unwrap() {
            Ok(answer) => {
                assert_eq!(answer.call.state, GateState::Pending);
                pending += 1;
            }
            Err(GateRefusal::TooManyOpen) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((pending, refused), (3, 21));
}
