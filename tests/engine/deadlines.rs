//! Tests the deadlines of approvals and reconcile requests under each setting of `on_expiry`:
//! decisions that are made right at the deadline, and the state of the task after the sweep. Also
//! tests a task that failed because process after process took it over and made no progress.

use std::time::Duration;

use holdpoint::engine::Refusal;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;
use serde_json::Value;

use super::changed_tools::serve_refund;
use super::engine_harness::{
    EngineHarness, alice, alice_decides, alice_is_refused, alice_writes, drive, go, message,
    outcomes, person, rejects, tool_results, whole,
};
use super::two_replicas::{Pair, closed, finance, place};
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const BOTH: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":120}"#),
    ("forbidden", "{}"),
];
/// A call that a rule allows, and a call that is held. The first call starts once the second call
/// is settled.
const SMALL_BESIDE_LARGE: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":5}"#),
    ("refund", r#"{"order":2,"amount":120}"#),
];

async fn only_result(harness: &EngineHarness, task: TaskId) -> (Outcome, String) {
    let journal = harness.journal(task).await;
    let results: Vec<_> = tool_results(&journal.items).collect();
    let [result] = &results[..] else {
        panic!("{:#?}", journal.items)
    };
    (result.outcome, result.content.clone())
}

/// Creates a task with an open request of this kind. The request is about a held refund or, for
/// `Reconcile`, about a refund of unknown outcome.
async fn task_with_request(harness: &EngineHarness, kind: RequestKind) -> (TaskId, RequestId) {
    harness.tool.answers(502, "");
    let task = harness.held().await;
    if kind == RequestKind::Reconcile {
        harness.answer_all(&harness.engine(0), task).await;
        harness.run().await;
    }
    harness.tool.answers(200, "paid");
    let (request, known) = harness.only_open(task).await;
    assert_eq!(known, kind);
    (task, request)
}

/// Creates a task that started a refund and then failed, because process after process took the
/// task over and made no progress.
async fn taken_over_in_vain(fixture: StoreFixture) -> (EngineHarness, TaskId) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    let task = harness.lost_call().await;
    // Each round claims the task after the lease of its previous driver has expired. In the first
    // two rounds, that driver's process could drive other tasks beside it. In the next five rounds,
    // that driver drove the task alone.
    for fruitless in 1..=7 {
        harness.later();
        let mut engine = harness.engine(1);
        let mut drivers = engine.claim().await.unwrap();
        if drivers.is_empty() {
            // The claim returned no driver, because it put the task to sleep. After the sleep, the
            // next claim returns a driver that runs while its process drives no other task.
            harness.later();
            engine = harness.engine(1);
            drivers = engine.claim().await.unwrap();
        }
        assert_eq!(drivers.len(), 1);
        let row = harness.journal(task).await.row;
        assert_eq!(row.fruitless, fruitless);
        assert_eq!(row.status, TaskStatus::Running);
        for driver in drivers {
            if fruitless == 7 {
                driver.await;
            } else {
                assert!(
                    harness
                        .fixture
                        .store
                        .set_begun(row.lease_owner.as_ref().unwrap(), task, true)
                        .await
                        .unwrap()
                );
            }
        }
    }
    let journal = harness.journal(task).await;
    assert_eq!(
        journal.row.error.map(|error| error.code),
        Some(FailureCode::NoProgress)
    );
    let last: Vec<_> = journal
        .items
        .iter()
        .rev()
        .take(2)
        .map(|item| item.fact.type_name())
        .collect();
    assert_eq!(
        last,
        ["task_status", "tool_started"],
        "its started call stays without a result"
    );
    (harness, task)
}

/// Asserts that a person is asked about the started refund before the model is called again. Then
/// lets the task end.
async fn asked_first(harness: &EngineHarness, task: TaskId) {
    harness.script(|_| panic!("the model is asked too early"));
    harness.later();
    harness.run().await;
    let request = harness.only_request(task, RequestKind::Reconcile).await;
    harness.script(|_| Ok(super::engine_harness::turn(&[])));
    let paid = whole(Action::Respond, Some(Value::from("it was paid")));
    alice_decides(&harness.engine(0), request, paid).await;
    harness.finish(task).await;
    assert_eq!(
        only_result(harness, task).await,
        (Outcome::Responded, "it was paid".to_owned())
    );
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn answer_at_the_deadline_is_taken_or_told_that_it_came_too_late(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.replace("{ owner: true }", "{ groups: [finance] }");
    let pair = Pair::of(harness).await;
    let (mut seen, mut before) = ([0; 2], 4096_u64);
    for round in 0..repetitions(60, 100) {
        let (task, requests) = pair.held().await;
        let request = requests[0];
        let row = pair.other.request(request).await.unwrap().unwrap();
        let left = row
            .expires_at
            .unwrap()
            .since(pair.other.now().await.unwrap());
        pair.forward(left.saturating_sub(Duration::from_micros(before)));
        let (here, there) = pair.turned(round);
        let (bob, carol) = (finance("bob"), finance("carol"));
        let sweep = async {
            while pair.other.request(request).await.unwrap().unwrap().status
                == RequestStatus::Pending
            {
                there.worker().expire().await.unwrap();
            }
        };
        let (one, other, ()) = tokio::join!(
            here.decide(&bob, request, whole(Action::Approve, None), None),
            there.decide(&carol, request, rejects(Consequence::Continue), None),
            sweep,
        );
        let journal = pair.checked_journal(task).await;
        assert_eq!(journal.row.status, TaskStatus::Completed);
        let ran = pair.harness.executions(task, "/refund");
        let (outcome, text) = only_result(&pair.harness, task).await;
        let refusals: Vec<_> = [one.as_ref().err(), other.as_ref().err()]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        if refusals.len() == 2 {
            assert_eq!(refusals, vec![Refusal::Expired(request); 2]);
            assert_eq!(
                (outcome, ran, closed(&journal, request)),
                (Outcome::Expired, 0, Some(CloseReason::Expired))
            );
            assert!(text.contains("No human has said no"), "{text}");
            (seen[0], before) = (seen[0] + 1, before * 2);
        } else {
            // One of the two answers won. The other answer came after the winning answer or
            // after the deadline.
            let [refusal] = &refusals[..] else {
                panic!("both have won")
            };
            let late = matches!(refusal, Refusal::AlreadyDecided { .. });
            assert!(late || *refusal == Refusal::Expired(request), "{refusal}");
            let expected = if one.is_ok() {
                (Outcome::Succeeded, 1)
            } else {
                (Outcome::Rejected, 0)
            };
            assert_eq!((outcome, ran), expected);
            assert_eq!(closed(&journal, request), None);
            (seen[1], before) = (seen[1] + 1, (before / 2).max(1));
        }
    }
    assert!(
        seen[0] > 0 && seen[1] > 0,
        "on both sides of the deadline: {seen:?}"
    );
}

#[apply(both)]
async fn expired_approval_is_told_to_the_model_differently_from_a_rejection(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    for cancels in [false, true] {
        if cancels {
            harness.replace("decide: hold,", "decide: hold, on_expiry: cancel,");
        }
        let (task, request) = task_with_request(&harness, RequestKind::Approval).await;
        let (refused, no) = task_with_request(&harness, RequestKind::Approval).await;
        let api = harness.engine(4);
        alice_decides(&api, no, rejects(Consequence::Continue)).await;
        harness.fixture.forward(Duration::from_hours(25));
        let late = alice_is_refused(&api, request, whole(Action::Approve, None)).await;
        assert_eq!(late, Refusal::Expired(request), "not swept");
        assert_eq!(
            harness.status(task).await,
            TaskStatus::Paused,
            "and it changed nothing"
        );
        assert_eq!(api.worker().expire().await.unwrap(), 1);
        assert_eq!(api.worker().expire().await.unwrap(), 0);
        let late = alice_is_refused(&api, request, rejects(Consequence::Cancel)).await;
        assert_eq!(late, Refusal::Expired(request), "swept");
        harness.finish(task).await;
        harness.finish(refused).await;
        let (outcome, text) = only_result(&harness, task).await;
        let (rejected, otherwise) = only_result(&harness, refused).await;
        let (end, expected) = if cancels {
            (TaskStatus::Canceled, Outcome::Canceled)
        } else {
            (TaskStatus::Completed, Outcome::Expired)
        };
        assert_eq!(
            (harness.status(task).await, outcome, rejected),
            (end, expected, Outcome::Rejected)
        );
        assert_ne!(text, otherwise);
    }
    assert!(harness.tool.ledger().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_overdue_requests_are_closed_in_one_sweep_of_two_replicas() {
    // More requests than a replica closes at once, each of a task of its own.
    const REQUESTS: usize = 120;
    let harness = EngineHarness::new(StoreFixture::postgres().await, LARGE).await;
    let api = harness.engine(0);
    for _ in 0..REQUESTS {
        api.create(&alice(), go(), None).await.unwrap();
    }
    drive(&harness.engine(REQUESTS)).await;
    let pair = Pair::of(harness).await;
    pair.forward(Duration::from_hours(25));
    let (here, there) = tokio::join!(pair.here.worker().expire(), pair.there.worker().expire());
    // Both replicas read the same batch first, and each closes some of its requests.
    assert_eq!(here.unwrap() + there.unwrap(), REQUESTS);
}

#[apply(both)]
async fn end_of_a_request_is_stored_before_the_tool_of_another_call_is_compared(
    fixture: StoreFixture,
) {
    for (expires, outcome) in [(true, Outcome::Expired), (false, Outcome::Rejected)] {
        let mut harness =
            EngineHarness::new(StoreFixture::like(&fixture).await, SMALL_BESIDE_LARGE).await;
        let server = serve_refund(&mut harness);
        let task = harness.held().await;
        let (request, _) = harness.only_open(task).await;
        let goes_on = server.hold_next();
        let engine = harness.engine(1);
        let ends = async {
            if expires {
                harness.fixture.forward(Duration::from_hours(25));
                assert_eq!(engine.worker().expire().await.unwrap(), 1);
            } else {
                alice_decides(&engine, request, rejects(Consequence::Continue)).await;
            }
        };
        let compares = async {
            server.until_held().await;
            assert!(harness.open(task).await.is_empty(), "expires: {expires}");
            goes_on.send(()).unwrap();
        };
        tokio::join!(ends, compares);
        harness.until_stopped(task).await;
        let results = outcomes(&harness.journal(task).await);
        assert_eq!(results, [outcome, Outcome::Succeeded]);
        assert_eq!(server.calls(), 1);
    }
}

#[apply(both)]
async fn expired_reconcile_request_leaves_the_outcome_unknown(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    for cancels in [false, true] {
        if cancels {
            harness.replace("decide: hold,", "decide: hold, on_expiry: cancel,");
        }
        let (task, request) = task_with_request(&harness, RequestKind::Reconcile).await;
        harness.fixture.forward(Duration::from_hours(25));
        let api = harness.engine(4);
        let late = alice_is_refused(&api, request, whole(Action::Retry, None)).await;
        assert_eq!(late, Refusal::Expired(request), "not swept");
        assert_eq!(api.worker().expire().await.unwrap(), 1);
        let late = alice_is_refused(&api, request, whole(Action::Retry, None)).await;
        assert_eq!(late, Refusal::Expired(request), "swept");
        harness.finish(task).await;
        let (outcome, text) = only_result(&harness, task).await;
        assert_eq!(outcome, Outcome::Unknown);
        assert!(
            text.contains("the request expired without an answer"),
            "{text}"
        );
        let end = if cancels {
            TaskStatus::Canceled
        } else {
            TaskStatus::Completed
        };
        assert_eq!(harness.status(task).await, end);
        assert_eq!(harness.executions(task, "/refund"), 1);
    }
}

#[apply(both)]
async fn rejected_reconcile_request_makes_the_call_failed(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    for then in [Consequence::Continue, Consequence::Cancel] {
        let (task, request) = task_with_request(&harness, RequestKind::Reconcile).await;
        alice_decides(&harness.engine(4), request, rejects(then)).await;
        harness.finish(task).await;
        assert_eq!(
            only_result(&harness, task).await.0,
            Outcome::Failed,
            "{then:?}"
        );
        let end = if then == Consequence::Continue {
            TaskStatus::Completed
        } else {
            TaskStatus::Canceled
        };
        assert_eq!(harness.status(task).await, end);
        assert_eq!(harness.executions(task, "/refund"), 1);
    }
}

#[apply(both)]
async fn two_deadlines_of_one_turn_pass_one_after_the_other(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, BOTH).await;
    let rule = "decide: hold, approvers: { users: [bob] }, expires_in: 1h";
    harness.replace("decide: deny, reason: Not this one.", rule);
    let task = harness.held().await;
    let [(first, _), (second, _)] = harness.open(task).await[..] else {
        panic!("two are open")
    };
    let api = harness.engine(4);
    harness.fixture.forward(Duration::from_mins(61));
    let late = api
        .decide(&person("bob"), second, whole(Action::Approve, None), None)
        .await;
    assert_eq!(late.err(), Some(Refusal::Expired(second)));
    assert_eq!(api.worker().expire().await.unwrap(), 1);
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    assert_eq!(harness.open(task).await, [(first, RequestKind::Approval)]);
    harness.fixture.forward(Duration::from_hours(24));
    assert_eq!(api.worker().expire().await.unwrap(), 1);
    harness.finish(task).await;
    let journal = harness.journal(task).await;
    assert_eq!(journal.row.status, TaskStatus::Completed);
    assert_eq!(outcomes(&journal), [Outcome::Expired; 2]);
    assert!(harness.tool.ledger().is_empty());
    let went_on = place(
        &journal,
        |fact| matches!(fact, Fact::RequestClosed { request_id, .. } if *request_id == first),
    );
    assert_eq!(
        journal.items[went_on.unwrap() + 1].fact.type_name(),
        "task_status",
        "it goes on with the last of them only"
    );
}

#[apply(both)]
async fn retry_after_five_takeovers_without_progress_asks_about_the_started_calls(
    fixture: StoreFixture,
) {
    let (harness, task) = taken_over_in_vain(fixture).await;
    harness.engine(0).retry(&alice(), task, None).await.unwrap();
    asked_first(&harness, task).await;
}

#[apply(both)]
async fn message_after_five_takeovers_without_progress_asks_about_the_started_calls(
    fixture: StoreFixture,
) {
    let (harness, task) = taken_over_in_vain(fixture).await;
    alice_writes(&harness.engine(0), task, message("go")).await;
    asked_first(&harness, task).await;
}
