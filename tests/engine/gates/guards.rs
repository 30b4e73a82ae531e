//! Tests gate calls in special situations: a result is on its way to an asker, a permit has
//! expired, a report comes after a person's decision, or the rules have changed before a start.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::gate::{
    GateCall, GateDecision, GateRefusal, GateState, Identity, OutcomeReport, Proposal,
    ReportedOutcome, ResultDelivery,
};
use holdpoint::engine::{Engine, Refusal};
use holdpoint::people::Caller;
use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use serde_json::Value;

use super::super::engine_harness::{EngineHarness, alice, claimed, outcomes, whole};
use super::super::random_gates::Replica;
use super::failures::{by_key, in_doubt, report_of};
use super::{
    LONG, abort, agent, approve, approved, ask, asking, asking_by, asks, bash, driven, harness,
    proposal, refund, small, until_present, until_proposed,
};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::allocator::limit_further_bytes;
use crate::support::until;

/// Asks for a call that runs at once, and delivers its result.
async fn delivered(harness: &EngineHarness, engine: &Arc<Engine>, proposal: &Proposal) -> GateCall {
    let answer = engine.gates().ask(&agent(), proposal, None).await.unwrap();
    answer.delivery.unwrap().delivered();
    let task = answer.call.task_id;
    until_present(harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
    answer.call
}

/// Gives a permit for a call that may be repeated, and lets the permit end. Then changes the call's
/// tool, and asks for the next attempt, so that a person must approve the call again. Returns the
/// engine with the changed tool, and the call's task.
async fn held_again(harness: &mut EngineHarness) -> (Arc<Engine>, TaskId) {
    harness.configure(|yaml| {
        yaml.replacen("Bash: { external", "Bash: { effect: read_only, external", 1)
    });
    let engine = harness.engine(8);
    let task = approved(harness, &engine, &bash(Duration::ZERO)).await;
    assert!(asks(&engine, &bash(LONG)).await.permit.is_some());
    harness.configure(|yaml| {
        yaml.replacen(
            "command: { type: string }",
            "command: { type: string, maxLength: 99 }",
            1,
        )
    });
    let changed = harness.engine(8);
    harness.fixture.forward(Duration::from_mins(11));
    let held = asks(&changed, &bash(Duration::ZERO)).await;
    assert_eq!(
        (held.task_id, held.state, held.attempts),
        (task, GateState::Pending, 1)
    );
    (changed, task)
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
    assert_eq!(
        (call.outcome, harness.tool.count()),
        (Some(Outcome::Succeeded), 1)
    );
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
    assert_eq!(
        (call.outcome, harness.tool.count()),
        (Some(Outcome::Succeeded), 2)
    );
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
        assert_eq!(
            (call.outcome, harness.tool.count()),
            (Some(Outcome::Succeeded), runs)
        );
    }
}

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
async fn permit_that_is_over_is_not_answered_again(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let one = |wait| by_key("k", Some("r1"), bash(wait));
    approved(&harness, &engine, &one(Duration::ZERO)).await;
    for _ in 0..2 {
        let permit = asks(&engine, &one(LONG)).await.permit;
        assert_eq!(permit.map(|permit| permit.attempt), Some(1));
    }
    harness.fixture.forward(Duration::from_mins(11));
    let over = in_doubt(&harness, &engine, one(Duration::from_secs(1))).await;
    assert_eq!(
        (over.state, over.decision, over.permit),
        (GateState::OutcomeUnknown, GateDecision::Pending, None)
    );
}

#[apply(both)]
async fn equal_ask_gets_the_next_attempt_of_a_repeatable_call_whose_permit_is_over(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| {
        yaml.replacen("Bash: { external", "Bash: { effect: read_only, external", 1)
    });
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    let first = asks(&engine, &bash(LONG)).await;
    assert_eq!(
        (first.task_id, first.permit.map(|permit| permit.attempt)),
        (task, Some(1))
    );
    let beside = asks(&engine, &bash(Duration::ZERO)).await;
    assert_ne!(beside.task_id, task);
    assert!(
        beside
            .reason
            .unwrap()
            .contains("The same call is being run.")
    );
    harness.fixture.forward(Duration::from_mins(11));
    let second = asks(&engine, &bash(LONG)).await;
    assert_eq!(
        (second.task_id, second.permit.map(|permit| permit.attempt)),
        (task, Some(2))
    );
    harness.fixture.forward(Duration::from_mins(11));
    let third = asks(&engine, &bash(LONG)).await;
    assert_eq!(
        (third.task_id, third.permit.map(|permit| permit.attempt)),
        (task, Some(3))
    );
    harness.fixture.forward(Duration::from_mins(11));
    let known = Proposal {
        identity: Identity::Call(task),
        ..bash(LONG)
    };
    let over = asks(&engine, &known).await;
    assert_eq!(
        (over.task_id, over.state, over.outcome),
        (task, GateState::Settled, Some(Outcome::Failed))
    );
    assert_eq!(over.permit, None);
}

#[apply(both)]
async fn report_after_a_persons_answer_is_kept_as_a_late_result(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    for (said, outcome) in [
        (
            whole(Action::Respond, Some(Value::from("it ran"))),
            Outcome::Responded,
        ),
        (whole(Action::Reject, None), Outcome::Failed),
    ] {
        let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
        assert!(asks(&engine, &bash(LONG)).await.permit.is_some());
        harness.fixture.forward(Duration::from_mins(11));
        driven(&engine).await;
        let [(request, RequestKind::Reconcile)] = harness.open(task).await[..] else {
            panic!("one reconcile request")
        };
        engine.decide(&alice(), request, said, None).await.unwrap();
        let has_ended = async || harness.status(task).await.is_terminal();
        until("the call has ended", has_ended).await;
        let report = |outcome| OutcomeReport {
            call: Ok(task),
            attempt: None,
            outcome,
            content: "made with tool-secret-0123456789".to_owned(),
        };
        for _ in 0..2 {
            let reported = engine
                .gates()
                .report(&agent(), &report(ReportedOutcome::Succeeded), None)
                .await;
            assert_eq!(reported.unwrap().0.outcome, Some(outcome));
        }
        let other = engine
            .gates()
            .report(&agent(), &report(ReportedOutcome::Failed), None)
            .await;
        assert!(matches!(other, Err(GateRefusal::Settled(call)) if call.task_id == task));
        let journal = harness.journal(task).await;
        let late: Vec<_> = journal
            .items
            .iter()
            .filter_map(|item| {
                let Fact::LateResult(result) = &item.fact else {
                    return None;
                };
                Some(result.content.as_str())
            })
            .collect();
        assert_eq!(
            (late, outcomes(&journal)),
            (vec!["made with [secret TOOL_SECRET]"], vec![outcome])
        );
        // Asks for the settled call and marks its result as delivered. Otherwise the equal
        // proposal of the next round would get this result instead of a new call.
        let key = Proposal {
            identity: Identity::Call(task),
            ..bash(LONG)
        };
        engine
            .gates()
            .ask(&agent(), &key, None)
            .await
            .unwrap()
            .delivery
            .into_iter()
            .for_each(ResultDelivery::delivered);
        until_present(&harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
    }
}

#[apply(both)]
async fn late_report_leaves_a_call_that_is_held_again_to_the_next_ask(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    let (engine, task) = held_again(&mut harness).await;
    let report = report_of(task, ReportedOutcome::Succeeded);
    for _ in 0..2 {
        let (call, _) = engine
            .gates()
            .report(&agent(), &report, None)
            .await
            .unwrap();
        assert_eq!((call.state, call.outcome), (GateState::Pending, None));
    }
    let journal = harness.journal(task).await;
    let late = journal
        .items
        .iter()
        .filter(|item| matches!(item.fact, Fact::LateResult(_)));
    assert_eq!((late.count(), journal.row.asker_until), (1, Some(Time(0))));
    assert_eq!(asks(&engine, &bash(Duration::ZERO)).await.task_id, task);
    approve(&harness, &engine, task).await;
    let second = asks(&engine, &bash(LONG)).await;
    assert_eq!(
        (second.task_id, second.permit.map(|permit| permit.attempt)),
        (task, Some(2))
    );
}

#[apply(both)]
async fn report_settles_its_attempt_although_it_equals_a_late_report_about_an_earlier_attempt(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let (engine, task) = held_again(&mut harness).await;
    let report = report_of(task, ReportedOutcome::Succeeded);
    let (held, _) = engine
        .gates()
        .report(&agent(), &report, None)
        .await
        .unwrap();
    assert_eq!(held.state, GateState::Pending);
    approve(&harness, &engine, task).await;
    assert!(asks(&engine, &bash(LONG)).await.permit.is_some());
    let (settled, _) = engine
        .gates()
        .report(&agent(), &report, None)
        .await
        .unwrap();
    assert_eq!(
        (settled.state, settled.outcome),
        (GateState::Settled, Some(Outcome::Succeeded))
    );
    assert_eq!(
        harness.journal(task).await.row.asker_until,
        Some(ASKER_UNTIL_DELIVERED)
    );
}

#[apply(both)]
async fn approved_call_that_its_caller_runs_gets_no_permit_under_a_rule_that_denies_it(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    harness.configure(|yaml| {
        yaml.replacen(
            "Not this one. }",
            "Not this one. }\n  - { name: shell, tools: [Bash], decide: deny }",
            1,
        )
    });
    let known = Proposal {
        identity: Identity::Call(task),
        ..bash(LONG)
    };
    let call = asks(&harness.engine(8), &known).await;
    assert_eq!(
        (call.decision, call.outcome, call.permit),
        (GateDecision::Deny, Some(Outcome::Denied), None)
    );
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
    assert_eq!(
        (harness.status(task).await, harness.executions(task, "/tag")),
        (TaskStatus::Running, 1)
    );
    let known = Proposal {
        identity: Identity::Call(task),
        ..tag()
    };
    let call = asks(&stricter, &known).await;
    assert_eq!(
        (call.outcome, harness.executions(task, "/tag")),
        (Some(Outcome::Succeeded), 2)
    );
}

#[apply(both)]
async fn call_with_a_secret_in_its_arguments_is_invalid_at_a_gate(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let secret = proposal("Bash", r#"{"command":"echo tool-secret-0123456789"}"#, LONG);
    let call = asks(&engine, &secret).await;
    assert_eq!(
        (call.decision, call.outcome),
        (GateDecision::Deny, Some(Outcome::Invalid))
    );
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
            let [(request, _)] = harness.open(rejected).await[..] else {
                panic!("one request")
            };
            engine
                .decide(&alice(), request, whole(Action::Reject, None), None)
                .await
                .unwrap();
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

#[apply(both)]
async fn permit_of_a_released_call_ends_with_the_report(fixture: StoreFixture) {
    let mut harness = harness(fixture).await;
    harness.configure(|yaml| yaml.replacen("  coding: {", "  coding: { report: optional,", 1));
    let engine = harness.engine(8);
    let one = |wait| by_key("k", Some("r1"), bash(wait));
    let task = approved(&harness, &engine, &one(Duration::ZERO)).await;
    for _ in 0..2 {
        let released = asks(&engine, &one(LONG)).await;
        assert_eq!(
            (
                released.outcome,
                released.permit.map(|permit| permit.attempt)
            ),
            (Some(Outcome::Released), Some(1))
        );
    }
    let report = OutcomeReport {
        call: Ok(task),
        attempt: None,
        outcome: ReportedOutcome::Succeeded,
        content: "made".to_owned(),
    };
    engine
        .gates()
        .report(&agent(), &report, None)
        .await
        .unwrap();
    let over = asks(&engine, &one(LONG)).await;
    assert_eq!(
        (over.decision, over.outcome, over.permit),
        (GateDecision::Allow, Some(Outcome::Released), None)
    );
}
