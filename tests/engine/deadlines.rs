//! Deadlines of approvals and reconcile requests, with either `on_expiry`: decisions at the very
//! moment, the task after the sweep; and the end of a task whose takeovers made no progress.

use std::time::Duration;

use holdpoint::engine::{MessageInput, Refusal};
use holdpoint::task::decision::{Action, Then};
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use serde_json::Value;

use super::pair::{Pair, closed, finance, place};
use super::stage::{Stage, alice, go, outcomes, person, rejects, whole};
use crate::store::house::{House, both};

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const BOTH: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":120}"#),
    ("forbidden", "{}"),
];

/// The outcome and text of the task's only result.
async fn told(stage: &Stage, task: TaskId) -> (Outcome, String) {
    let journal = stage.journal(task).await;
    let results: Vec<_> = journal
        .items
        .iter()
        .filter_map(|item| {
            let Fact::ToolResult(result) = &item.fact else {
                return None;
            };
            Some((result.outcome, result.content.clone()))
        })
        .collect();
    let [result] = &results[..] else {
        panic!("{:#?}", journal.items)
    };
    result.clone()
}

/// A task with a held refund, or with a refund of unknown outcome.
async fn asked(stage: &Stage, kind: RequestKind) -> (TaskId, RequestId) {
    stage.tool.answers(502, "");
    let task = stage.held().await;
    if kind == RequestKind::Reconcile {
        stage.answer_all(&stage.engine(0), task).await;
        stage.run().await;
    }
    stage.tool.answers(200, "paid");
    let [(request, known)] = stage.open(task).await[..] else {
        panic!("one is open")
    };
    assert_eq!(known, kind);
    (task, request)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a driver of a process that ends with the test"
)]
fn spawn(driver: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
    tokio::spawn(driver)
}

/// A task that failed because no takeover got past the refund it had started.
async fn taken_over_in_vain(house: House) -> (Stage, TaskId) {
    let stage = Stage::set(house, SMALL).await;
    stage.tool.close();
    let task = stage
        .engine(0)
        .create(&alice(), go(), None)
        .await
        .unwrap()
        .task_id;
    let first: Vec<_> = stage
        .engine(1)
        .claim()
        .await
        .unwrap()
        .into_iter()
        .map(spawn)
        .collect();
    stage.tool.reached(1).await;
    for driver in first {
        driver.abort();
        assert!(driver.await.unwrap_err().is_cancelled());
    }
    stage.tool.open();
    // The first two drives run beside others, the next five alone.
    for fruitless in 1..=7 {
        stage.later();
        let mut engine = stage.engine(1);
        let mut drivers = engine.claim().await.unwrap();
        if drivers.is_empty() {
            // A lone drive sleeps first.
            stage.later();
            engine = stage.engine(1);
            drivers = engine.claim().await.unwrap();
        }
        assert_eq!(drivers.len(), 1);
        let row = stage.journal(task).await.row;
        assert_eq!(
            (row.fruitless, row.status),
            (fruitless, TaskStatus::Running)
        );
        for driver in drivers {
            if fruitless == 7 {
                driver.await;
            } else {
                assert!(
                    stage
                        .house
                        .store
                        .begin(row.lease_owner.as_ref().unwrap(), task, true)
                        .await
                        .unwrap()
                );
            }
        }
    }
    let journal = stage.journal(task).await;
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
    (stage, task)
}

/// The started refund is reconciled before the model is asked; then the task ends.
async fn asked_first(stage: &Stage, task: TaskId) {
    stage.script(|_| panic!("the model is asked too early"));
    stage.later();
    stage.run().await;
    let [(request, RequestKind::Reconcile)] = stage.open(task).await[..] else {
        panic!("it is asked about")
    };
    stage.script(|_| Ok(super::stage::turn(&[])));
    let paid = whole(Action::Respond, Some(Value::from("it was paid")));
    stage
        .engine(0)
        .decide(&alice(), request, paid, None)
        .await
        .unwrap();
    stage.finish(task).await;
    assert_eq!(
        told(stage, task).await,
        (Outcome::Responded, "it was paid".to_owned())
    );
    assert_eq!(
        (stage.status(task).await, stage.executions(task, "/refund")),
        (TaskStatus::Completed, 1)
    );
}

both! {
    async fn answer_at_the_deadline_is_taken_or_told_that_it_came_too_late(house) {
        let mut stage = Stage::set(house, LARGE).await;
        stage.configure(|yaml| yaml.replace("{ owner: true }", "{ groups: [finance] }"));
        let pair = Pair::of(stage).await;
        let (mut seen, mut before) = ([0; 2], 4096_u64);
        for round in 0..100 {
            let (task, requests) = pair.held().await;
            let request = requests[0];
            let row = pair.other.request(request).await.unwrap().unwrap();
            let left = row.expires_at.unwrap().since(pair.other.now().await.unwrap());
            pair.forward(left.saturating_sub(Duration::from_micros(before)));
            let (here, there) = pair.turned(round);
            let (bob, carol) = (finance("bob"), finance("carol"));
            let sweep = async {
                while pair.other.request(request).await.unwrap().unwrap().status == RequestStatus::Pending {
                    there.expire().await.unwrap();
                }
            };
            let (one, other, ()) = tokio::join!(
                here.decide(&bob, request, whole(Action::Approve, None), None),
                there.decide(&carol, request, rejects(Then::Continue), None),
                sweep,
            );
            let journal = pair.lawful(task).await;
            assert_eq!(journal.row.status, TaskStatus::Completed);
            let ran = pair.stage.executions(task, "/refund");
            let (outcome, text) = told(&pair.stage, task).await;
            let refusals: Vec<_> = [one.as_ref().err(), other.as_ref().err()].into_iter().flatten().cloned().collect();
            if refusals.len() == 2 {
                assert_eq!(refusals, vec![Refusal::Expired(request); 2]);
                assert_eq!((outcome, ran, closed(&journal, request)), (Outcome::Expired, 0, Some(CloseReason::Expired)));
                assert!(text.contains("No human has said no"), "{text}");
                (seen[0], before) = (seen[0] + 1, before * 2);
            } else {
                // One answer was in time; the other was too late or lost to it.
                let [refusal] = &refusals[..] else { panic!("both have won") };
                let late = matches!(refusal, Refusal::AlreadyDecided { .. });
                assert!(late || *refusal == Refusal::Expired(request), "{refusal}");
                let expected = if one.is_ok() { (Outcome::Succeeded, 1) } else { (Outcome::Rejected, 0) };
                assert_eq!(((outcome, ran), closed(&journal, request)), (expected, None));
                (seen[1], before) = (seen[1] + 1, (before / 2).max(1));
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "on both sides of the deadline: {seen:?}");
    }

    async fn expired_approval_is_told_to_the_model_differently_from_a_rejection(house) {
        let mut stage = Stage::set(house, LARGE).await;
        for cancels in [false, true] {
            if cancels {
                stage.configure(|yaml| yaml.replace("decide: hold,", "decide: hold, on_expiry: cancel,"));
            }
            let (task, request) = asked(&stage, RequestKind::Approval).await;
            let (refused, no) = asked(&stage, RequestKind::Approval).await;
            let door = stage.engine(4);
            door.decide(&alice(), no, rejects(Then::Continue), None).await.unwrap();
            stage.house.forward(Duration::from_hours(25));
            let late = door.decide(&alice(), request, whole(Action::Approve, None), None).await;
            assert_eq!(late.err(), Some(Refusal::Expired(request)), "not swept");
            assert_eq!(stage.status(task).await, TaskStatus::Paused, "and it changed nothing");
            assert_eq!(door.expire().await.unwrap(), 1);
            assert_eq!(door.expire().await.unwrap(), 0);
            let late = door.decide(&alice(), request, rejects(Then::Cancel), None).await;
            assert_eq!(late.err(), Some(Refusal::Expired(request)), "swept");
            stage.finish(task).await;
            stage.finish(refused).await;
            let (outcome, text) = told(&stage, task).await;
            let (rejected, otherwise) = told(&stage, refused).await;
            let (end, expected) = if cancels { (TaskStatus::Canceled, Outcome::Canceled) } else { (TaskStatus::Completed, Outcome::Expired) };
            assert_eq!((stage.status(task).await, outcome, rejected), (end, expected, Outcome::Rejected));
            assert_ne!(text, otherwise);
        }
        assert!(stage.tool.ledger().is_empty());
    }

    async fn expired_reconcile_request_leaves_the_outcome_unknown(house) {
        let mut stage = Stage::set(house, LARGE).await;
        for cancels in [false, true] {
            if cancels {
                stage.configure(|yaml| yaml.replace("decide: hold,", "decide: hold, on_expiry: cancel,"));
            }
            let (task, request) = asked(&stage, RequestKind::Reconcile).await;
            stage.house.forward(Duration::from_hours(25));
            let door = stage.engine(4);
            let late = door.decide(&alice(), request, whole(Action::Retry, None), None).await;
            assert_eq!(late.err(), Some(Refusal::Expired(request)), "not swept");
            assert_eq!(door.expire().await.unwrap(), 1);
            let late = door.decide(&alice(), request, whole(Action::Retry, None), None).await;
            assert_eq!(late.err(), Some(Refusal::Expired(request)), "swept");
            stage.finish(task).await;
            let (outcome, text) = told(&stage, task).await;
            assert_eq!(outcome, Outcome::Unknown);
            assert!(text.contains("the request expired without an answer"), "{text}");
            let end = if cancels { TaskStatus::Canceled } else { TaskStatus::Completed };
            assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (end, 1));
        }
    }

    async fn rejected_reconcile_request_makes_the_call_failed(house) {
        let stage = Stage::set(house, LARGE).await;
        for then in [Then::Continue, Then::Cancel] {
            let (task, request) = asked(&stage, RequestKind::Reconcile).await;
            stage.engine(4).decide(&alice(), request, rejects(then), None).await.unwrap();
            stage.finish(task).await;
            assert_eq!(told(&stage, task).await.0, Outcome::Failed, "{then:?}");
            let end = if then == Then::Continue { TaskStatus::Completed } else { TaskStatus::Canceled };
            assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (end, 1));
        }
    }

    async fn two_deadlines_of_one_turn_pass_one_after_the_other(house) {
        let mut stage = Stage::set(house, BOTH).await;
        let rule = "decide: hold, approvers: { users: [bob] }, expires_in: 1h";
        stage.configure(|yaml| yaml.replace("decide: deny, reason: Not this one.", rule));
        let task = stage.held().await;
        let [(first, _), (second, _)] = stage.open(task).await[..] else { panic!("two are open") };
        let door = stage.engine(4);
        stage.house.forward(Duration::from_mins(61));
        let late = door.decide(&person("bob"), second, whole(Action::Approve, None), None).await;
        assert_eq!(late.err(), Some(Refusal::Expired(second)));
        assert_eq!(door.expire().await.unwrap(), 1);
        assert_eq!((stage.status(task).await, stage.open(task).await), (TaskStatus::Paused, vec![(first, RequestKind::Approval)]));
        stage.house.forward(Duration::from_hours(24));
        assert_eq!(door.expire().await.unwrap(), 1);
        stage.finish(task).await;
        let journal = stage.journal(task).await;
        assert_eq!((journal.row.status, outcomes(&journal)), (TaskStatus::Completed, vec![Outcome::Expired; 2]));
        assert!(stage.tool.ledger().is_empty());
        let went_on = place(&journal, |fact| matches!(fact, Fact::RequestClosed { request_id, .. } if *request_id == first));
        assert_eq!(journal.items[went_on.unwrap() + 1].fact.type_name(), "task_status", "it goes on with the last of them only");
    }

    async fn retry_after_five_takeovers_without_progress_asks_about_the_started_calls(house) {
        let (stage, task) = taken_over_in_vain(house).await;
        stage.engine(0).retry(&alice(), task, None).await.unwrap();
        asked_first(&stage, task).await;
    }

    async fn message_after_five_takeovers_without_progress_asks_about_the_started_calls(house) {
        let (stage, task) = taken_over_in_vain(house).await;
        let message = MessageInput { items: go().items, user_context: None, supersede: false };
        stage.engine(0).message(&alice(), task, message, None).await.unwrap();
        asked_first(&stage, task).await;
    }
}
