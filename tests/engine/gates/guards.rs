//! Tests gate calls in special situations: a result is on its way to an asker, a permit has
//! expired, a report comes after a person's decision, or the rules have changed before a start.

use std::time::Duration;

use holdpoint::engine::Refusal;
use holdpoint::engine::gate::{
    Delivery, GateDecision, GateRefusal, GateState, Identity, OutcomeReport, Proposal,
    ReportedOutcome,
};
use holdpoint::task::change::ASKER_UNTIL_DELIVERED;
use holdpoint::task::decision::Action;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use serde_json::Value;

use super::super::engine_harness::{alice, claimed, outcomes, whole};
use super::super::random_gates::Replica;
use super::failures::{LONG, asking_by, bash, by_key, in_doubt};
use super::{agent, approve, ask, asking, every_call, harness, proposal, refund, until_present};
use crate::store::store_fixture::both;

const SMALL: &str = r#"{"order":1,"amount":5}"#;

both! {
    async fn undelivered_result_goes_to_one_of_twelve_equal_asks_on_two_replicas(fixture) {
        let mut harness = harness(fixture).await;
        harness.configure(|yaml| yaml.replacen("  door: {", "  door: { max_open: 100,", 1));
        let engines = [harness.engine(8), harness.engine(8)];
        for order in 1..=3 {
            let task = ask(&engines[0], order, Duration::ZERO).await.call.task_id;
            approve(&harness, &engines[0], task).await;
            drop(ask(&engines[0], order, LONG).await);
            until_present(&harness, task, |until| until == Time(0)).await;
            let asks = (0..12).map(|place| asking_by(&engines[place % 2], proposal("refund", &refund(order), Duration::ZERO)));
            let mut answers = Vec::new();
            for ask in asks.collect::<Vec<_>>() {
                answers.push(ask.await.unwrap().unwrap());
            }
            let results = answers.iter().filter(|answer| answer.call.task_id == task).count();
            assert_eq!((results, harness.executions(task, "/refund")), (1, 1), "order {order}");
        }
    }

    async fn result_that_is_being_handed_over_is_not_given_to_another_ask(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        let task = ask(&engine, 1, Duration::ZERO).await.call.task_id;
        approve(&harness, &engine, task).await;
        let on_its_way = ask(&engine, 1, LONG).await;
        assert_eq!(on_its_way.call.task_id, task);
        let other = ask(&engine, 1, Duration::ZERO).await.call;
        assert_ne!(other.task_id, task);
        assert_eq!(other.state, GateState::Pending);
        on_its_way.delivery.map(Delivery::delivered).unwrap();
    }

    async fn equal_ask_while_a_call_runs_is_held_at_either_replica(fixture) {
        let harness = harness(fixture).await;
        let (here, there) = (harness.engine(8), harness.engine(8));
        harness.tool.close();
        let running = asking_by(&here, proposal("refund", SMALL, Duration::from_mins(5)));
        harness.tool.reached(1).await;
        for engine in [&here, &there] {
            let equal = engine.ask(&agent(), &proposal("refund", SMALL, Duration::ZERO)).await.unwrap().call;
            assert_eq!(equal.state, GateState::Pending);
            assert!(equal.reason.unwrap().contains("The same call"));
        }
        harness.tool.open();
        let call = running.await.unwrap().unwrap().call;
        assert_eq!((call.outcome, harness.tool.count()), (Some(Outcome::Succeeded), 1));
    }

    async fn equal_ask_while_a_claimed_call_runs_on_another_replica_is_held(fixture) {
        let harness = harness(fixture).await;
        let (here, there) = (harness.engine(8), harness.engine(8));
        let task = ask(&here, 1, Duration::ZERO).await.call.task_id;
        approve(&harness, &here, task).await;
        harness.tool.close();
        let running = asking_by(&here, proposal("refund", &refund(1), Duration::from_mins(5)));
        harness.tool.reached(1).await;
        let equal = ask(&there, 1, Duration::ZERO).await.call;
        assert_ne!(equal.task_id, task);
        assert!(equal.message().contains("The same call is being run."), "{}", equal.message());
        assert!(equal.reason.unwrap().contains("The same call is being run."));
        harness.tool.open();
        assert_eq!(running.await.unwrap().unwrap().call.outcome, Some(Outcome::Succeeded));
    }

    async fn equal_ask_while_a_call_runs_is_held_although_an_equal_call_was_delivered(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        let small = |wait| proposal("refund", SMALL, wait);
        let first = engine.ask(&agent(), &small(LONG)).await.unwrap();
        let task = first.call.task_id;
        first.delivery.unwrap().delivered();
        until_present(&harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
        harness.tool.close();
        let running = asking_by(&engine, small(Duration::from_mins(5)));
        harness.tool.reached(2).await;
        let equal = engine.ask(&agent(), &small(Duration::ZERO)).await.unwrap().call;
        assert_eq!(equal.state, GateState::Pending);
        assert!(equal.reason.unwrap().contains("The same call is being run."));
        harness.tool.open();
        let call = running.await.unwrap().unwrap().call;
        assert_eq!((call.outcome, harness.tool.count()), (Some(Outcome::Succeeded), 2));
    }

    async fn tool_in_doubt_is_held_although_an_equal_call_was_delivered(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        let small = |wait| proposal("refund", SMALL, wait);
        let first = engine.ask(&agent(), &small(LONG)).await.unwrap();
        let task = first.call.task_id;
        first.delivery.unwrap().delivered();
        until_present(&harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
        harness.tool.answers(504, "late");
        let other = proposal("refund", r#"{"order":2,"amount":5}"#, Duration::from_secs(1));
        let doubtful = in_doubt(&harness, &engine, other).await;
        assert_eq!(doubtful.state, GateState::Doubtful);
        let held = engine.ask(&agent(), &small(Duration::from_secs(1))).await.unwrap().call;
        assert_eq!((held.state, harness.tool.count()), (GateState::Pending, 2));
        assert!(held.reason.unwrap().contains("may have run"));
    }

    async fn equal_call_is_held_after_one_that_failed_in_doubt_until_a_person_decides_one(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        let small = |wait| proposal("refund", SMALL, wait);
        let answered = async || {
            let answer = engine.ask(&agent(), &small(LONG)).await.unwrap();
            answer.delivery.unwrap().delivered();
            until_present(&harness, answer.call.task_id, |until| until == ASKER_UNTIL_DELIVERED).await;
            answer.call
        };
        harness.tool.answers(500, "broken");
        assert_eq!(answered().await.outcome, Some(Outcome::Failed));
        harness.tool.answers(200, "{}");
        let held = engine.ask(&agent(), &small(Duration::ZERO)).await.unwrap().call;
        assert_eq!((held.state, harness.tool.count()), (GateState::Pending, 1));
        assert!(held.reason.unwrap().contains("may have run before"));
        approve(&harness, &engine, held.task_id).await;
        for runs in [2, 3] {
            assert_eq!(answered().await.outcome, Some(Outcome::Succeeded));
            assert_eq!(harness.tool.count(), runs);
        }
    }

    async fn caller_who_may_decide_neither_asks_nor_reports(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        let asked = engine.ask(&alice(), &bash(LONG)).await;
        assert!(matches!(asked, Err(GateRefusal::Command(Refusal::Forbidden(_)))));
        let report = OutcomeReport {
            call: Err("k".to_owned()),
            attempt: None,
            outcome: ReportedOutcome::Succeeded,
            content: String::new(),
        };
        let reported = engine.report(&alice(), &report, None).await;
        assert!(matches!(reported, Err(GateRefusal::Command(Refusal::Forbidden(_)))));
    }

    async fn asker_whose_wait_is_over_is_gone_at_once(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        let task = ask(&engine, 1, Duration::from_millis(20)).await.call.task_id;
        assert_eq!(harness.journal(task).await.row.asker_until, Some(Time(0)));
        ask(&engine, 1, Duration::from_millis(20)).await;
        assert_eq!(harness.journal(task).await.row.asker_until, Some(Time(0)));
        approve(&harness, &engine, task).await;
        claimed(&engine).await;
        assert_eq!(harness.executions(task, "/refund"), 0);
    }

    async fn permit_that_is_over_is_not_answered_again(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        let one = by_key("k", Some("r1"), bash(LONG));
        let task = engine.ask(&agent(), &by_key("k", Some("r1"), bash(Duration::ZERO))).await.unwrap().call.task_id;
        approve(&harness, &engine, task).await;
        for _ in 0..2 {
            let permit = engine.ask(&agent(), &one).await.unwrap().call.permit;
            assert_eq!(permit.map(|permit| permit.attempt), Some(1));
        }
        harness.fixture.forward(Duration::from_mins(11));
        let over = in_doubt(&harness, &engine, by_key("k", Some("r1"), bash(Duration::from_secs(1)))).await;
        assert_eq!((over.state, over.decision, over.permit), (GateState::Doubtful, GateDecision::Pending, None));
    }

    async fn equal_ask_gets_the_next_attempt_of_a_repeatable_call_whose_permit_is_over(fixture) {
        let mut harness = harness(fixture).await;
        harness.configure(|yaml| yaml.replacen("Bash: { external", "Bash: { effect: read_only, external", 1));
        let engine = harness.engine(8);
        let task = engine.ask(&agent(), &bash(Duration::ZERO)).await.unwrap().call.task_id;
        approve(&harness, &engine, task).await;
        let first = engine.ask(&agent(), &bash(LONG)).await.unwrap().call;
        assert_eq!((first.task_id, first.permit.map(|permit| permit.attempt)), (task, Some(1)));
        let beside = engine.ask(&agent(), &bash(Duration::ZERO)).await.unwrap().call;
        assert_ne!(beside.task_id, task);
        assert!(beside.reason.unwrap().contains("The same call is being run."));
        harness.fixture.forward(Duration::from_mins(11));
        let second = engine.ask(&agent(), &bash(LONG)).await.unwrap().call;
        assert_eq!((second.task_id, second.permit.map(|permit| permit.attempt)), (task, Some(2)));
    }

    async fn report_after_a_persons_answer_is_kept_as_a_late_result(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        for (said, outcome) in [
            (whole(Action::Respond, Some(Value::from("it ran"))), Outcome::Responded),
            (whole(Action::Reject, None), Outcome::Failed),
        ] {
            let task = engine.ask(&agent(), &bash(Duration::ZERO)).await.unwrap().call.task_id;
            approve(&harness, &engine, task).await;
            assert!(engine.ask(&agent(), &bash(LONG)).await.unwrap().call.permit.is_some());
            harness.fixture.forward(Duration::from_mins(11));
            for driver in claimed(&engine).await {
                driver.await.unwrap();
            }
            let [(request, RequestKind::Reconcile)] = harness.open(task).await[..] else {
                panic!("one reconcile request")
            };
            engine.decide(&alice(), request, said, None).await.unwrap();
            let has_ended = async || harness.status(task).await.is_terminal();
            crate::support::until("the call has ended", has_ended).await;
            let report = |outcome| OutcomeReport {
                call: Ok(task),
                attempt: None,
                outcome,
                content: "made with tool-secret-0123456789".to_owned(),
            };
            for _ in 0..2 {
                let reported = engine.report(&agent(), &report(ReportedOutcome::Succeeded), None).await;
                assert_eq!(reported.unwrap().0.outcome, Some(outcome));
            }
            let other = engine.report(&agent(), &report(ReportedOutcome::Failed), None).await;
            assert!(matches!(other, Err(GateRefusal::Settled(call)) if call.task_id == task));
            let journal = harness.journal(task).await;
            let late: Vec<_> = journal.items.iter().filter_map(|item| {
                let Fact::LateResult(result) = &item.fact else { return None };
                Some(result.content.as_str())
            }).collect();
            assert_eq!((late, outcomes(&journal)), (vec!["made with [secret TOOL_SECRET]"], vec![outcome]));
            // Asks for the settled call and marks its result as delivered. Otherwise the equal
            // proposal of the next round would get this result instead of a new call.
            let key = Proposal { identity: Identity::Call(task), ..bash(LONG) };
            engine.ask(&agent(), &key).await.unwrap().delivery.into_iter().for_each(Delivery::delivered);
            until_present(&harness, task, |until| until == ASKER_UNTIL_DELIVERED).await;
        }
    }

    async fn approved_call_that_its_caller_runs_gets_no_permit_under_a_rule_that_denies_it(fixture) {
        let mut harness = harness(fixture).await;
        let engine = harness.engine(8);
        let task = engine.ask(&agent(), &bash(Duration::ZERO)).await.unwrap().call.task_id;
        approve(&harness, &engine, task).await;
        harness.configure(|yaml| yaml.replacen("Not this one. }", "Not this one. }\n  - { name: shell, tools: [Bash], decide: deny }", 1));
        let known = Proposal { identity: Identity::Call(task), ..bash(LONG) };
        let call = harness.engine(8).ask(&agent(), &known).await.unwrap().call;
        assert_eq!((call.decision, call.outcome, call.permit), (GateDecision::Deny, Some(Outcome::Denied), None));
    }

    async fn repeatable_call_that_a_new_rule_holds_waits_for_its_asker(fixture) {
        let mut harness = harness(fixture).await;
        harness.configure(|yaml| yaml.replacen("tools: [refund, lookup", "tools: [refund, tag, lookup", 1));
        let process = Replica::start(&harness.parts(8));
        harness.tool.close();
        let engine = std::sync::Arc::clone(&process.engine);
        let tag = || proposal("tag", r#"{"text":"a"}"#, LONG);
        let asking = process.spawn(async move { engine.ask(&agent(), &tag()).await });
        harness.tool.reached(1).await;
        process.crash();
        assert!(asking.await.is_err());
        harness.tool.open();
        harness.configure(|yaml| yaml.replacen("name: reads, tools: [lookup, tag], decide: allow", "name: reads, tools: [lookup, tag], decide: hold, approvers: { owner: true }", 1));
        let stricter = harness.engine(8);
        harness.fixture.forward(Duration::from_mins(10));
        for driver in claimed(&stricter).await {
            driver.await.unwrap();
        }
        let rows = harness.fixture.store.tasks(&every_call()).await.unwrap().rows;
        let [task] = rows.iter().map(|row| row.task_id).collect::<Vec<_>>()[..] else {
            panic!("one call")
        };
        assert_eq!(harness.status(task).await, TaskStatus::Paused);
        approve(&harness, &stricter, task).await;
        for driver in claimed(&stricter).await {
            driver.await.unwrap();
        }
        assert_eq!((harness.status(task).await, harness.executions(task, "/tag")), (TaskStatus::Running, 1));
        let known = Proposal { identity: Identity::Call(task), ..tag() };
        let call = stricter.ask(&agent(), &known).await.unwrap().call;
        assert_eq!((call.outcome, harness.executions(task, "/tag")), (Some(Outcome::Succeeded), 2));
    }

    async fn call_with_a_secret_in_its_arguments_is_invalid_at_a_gate(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        let secret = proposal("Bash", r#"{"command":"echo tool-secret-0123456789"}"#, LONG);
        let call = engine.ask(&agent(), &secret).await.unwrap().call;
        assert_eq!((call.decision, call.outcome), (GateDecision::Deny, Some(Outcome::Invalid)));
    }

    async fn gate_that_is_not_open_to_a_user_is_unknown_to_it(fixture) {
        let mut harness = harness(fixture).await;
        harness.configure(|yaml| yaml.replacen("  door: {", "  door: { open_to: { users: [carol] },", 1));
        let refused = harness.engine(8).ask(&agent(), &bash(LONG)).await;
        assert!(matches!(refused, Err(GateRefusal::Command(Refusal::Invalid(_)))));
    }

    async fn approval_after_a_rejection_of_an_equal_call_lets_the_approved_call_run(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        for (order, approved_last) in [(1, true), (2, false)] {
            let rejected = ask(&engine, order, Duration::ZERO).await.call.task_id;
            let waiting = asking(&engine, order);
            until_present(&harness, rejected, |until| until > Time(0)).await;
            let approved = ask(&engine, order, Duration::ZERO).await.call.task_id;
            assert_ne!(approved, rejected);
            waiting.abort();
            let _ = waiting.await;
            let no = async || {
                let [(request, _)] = harness.open(rejected).await[..] else {
                    panic!("one request")
                };
                engine.decide(&alice(), request, whole(Action::Reject, None), None).await.unwrap();
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
            let ran = (call.task_id == approved, call.outcome, harness.executions(approved, "/refund"));
            let expected = if approved_last {
                (true, Some(Outcome::Succeeded), 1)
            } else {
                (false, Some(Outcome::Rejected), 0)
            };
            assert_eq!(ran, expected, "order {order}");
        }
    }

    async fn calls_that_are_proposed_at_once_do_not_exceed_max_open(fixture) {
        let mut harness = harness(fixture).await;
        harness.configure(|yaml| yaml.replacen("  door: {", "  door: { max_open: 3,", 1));
        let engine = harness.engine(8);
        let asks: Vec<_> = (1..=24)
            .map(|order| asking_by(&engine, proposal("refund", &refund(order), Duration::ZERO)))
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

    async fn permit_of_a_released_call_ends_with_the_report(fixture) {
        let mut harness = harness(fixture).await;
        harness.configure(|yaml| yaml.replacen("  door: {", "  door: { report: optional,", 1));
        let engine = harness.engine(8);
        let one = by_key("k", Some("r1"), bash(LONG));
        let task = engine.ask(&agent(), &by_key("k", Some("r1"), bash(Duration::ZERO))).await.unwrap().call.task_id;
        approve(&harness, &engine, task).await;
        for _ in 0..2 {
            let released = engine.ask(&agent(), &one).await.unwrap().call;
            assert_eq!((released.outcome, released.permit.map(|permit| permit.attempt)), (Some(Outcome::Released), Some(1)));
        }
        let report = OutcomeReport {
            call: Ok(task),
            attempt: None,
            outcome: ReportedOutcome::Succeeded,
            content: "made".to_owned(),
        };
        engine.report(&agent(), &report, None).await.unwrap();
        let over = engine.ask(&agent(), &one).await.unwrap().call;
        assert_eq!((over.decision, over.outcome, over.permit), (GateDecision::Allow, Some(Outcome::Released), None));
    }
}
