//! Tests how a decision about one call affects the rest of the turn while other calls are in
//! flight. Also tests the text of the result of a call that may have run.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::{Engine, Refusal};
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;
use serde_json::Value;

use super::call_decisions::{each, edit, last_open_request, shown};
use super::engine_harness::{
    Calls, EngineHarness, alice, alice_decides, alice_is_refused, go, outcomes, rejects,
    tool_results, whole,
};
use super::invariants::check_ended;
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, both};

const LOOKUP: (&str, &str) = ("lookup", r#"{"order":1}"#);
const SMALL: (&str, &str) = ("refund", r#"{"order":1,"amount":5}"#);
const OUTSIDE: (&str, &str) = ("outside", "{}");
/// Three calls that a client answers, and one repeatable call that the service sends.
const BESIDE_A_READ: &[(&str, &str)] = &[OUTSIDE, OUTSIDE, OUTSIDE, LOOKUP];
/// Three calls that a client answers, and one `once` call that the service sends.
const BESIDE_A_REFUND: &[(&str, &str)] = &[OUTSIDE, OUTSIDE, OUTSIDE, SMALL];
/// A call that a client answers, and one `idempotent` call that the service sends.
const BESIDE_A_TAG: &[(&str, &str)] = &[OUTSIDE, ("tag", r#"{"text":"x"}"#)];

async fn with_outside(fixture: StoreFixture, calls: Calls) -> EngineHarness {
    let mut harness = EngineHarness::new(fixture, calls).await;
    harness.configure(|yaml| {
        let yaml = yaml.replace(
            "  forbidden: {",
            "  outside: { parameters: { type: object }, external: {} }\n  forbidden: {",
        );
        let yaml = yaml.replace(
            "tag, refund, forbidden]",
            "tag, refund, forbidden, outside]",
        );
        // A call stays in flight while the tests run many rounds, which may take seconds.
        yaml.replace("timeout: 5s", "timeout: 60s")
    });
    harness
}

fn posted(text: &str) -> holdpoint::engine::DecisionInput {
    whole(Action::Respond, Some(Value::from(text)))
}

/// Runs rounds of these engines' workers until the task is no longer running. Panics if the task
/// runs on for too long.
async fn settled(harness: &EngineHarness, engines: &[&Arc<Engine>], task: TaskId) {
    for _ in 0..5000 {
        if harness.status(task).await != TaskStatus::Running {
            return;
        }
        for engine in engines {
            engine.round().await.unwrap();
        }
        crate::support::pause().await;
    }
    panic!(
        "the task does not stop running: {:#?}",
        harness.journal(task).await.items
    );
}

fn count(harness: &[holdpoint::task::item::Item], which: impl Fn(&Fact) -> bool) -> usize {
    harness.iter().filter(|item| which(&item.fact)).count()
}

/// Creates a task with several requests and one call that the service sends. Answers all requests
/// while this call is in flight, through the process that drives the task. Does the same with a
/// second task, whose answers go through another process.
async fn answered_while_one_is_out(fixture: StoreFixture, calls: Calls, path: &str) {
    let harness = with_outside(fixture, calls).await;
    let here = harness.engine(8);
    // With an embedded database there is only one process, the one that drives the task.
    let places: &[bool] = if harness.fixture.store.is_sole() {
        &[false]
    } else {
        &[false, true]
    };
    for &elsewhere in places {
        let decider = if elsewhere {
            harness.engine(8)
        } else {
            here.clone()
        };
        harness.tool.close();
        let reached = harness.tool.ledger().len() + 1;
        let task = here.create(&alice(), go(), None).await.unwrap().task_id;
        harness.tool.reached(reached).await;
        let open = harness.open(task).await;
        assert_eq!(open.len(), 3);
        for (request, kind) in open {
            assert_eq!(kind, RequestKind::ExternalResult);
            alice_decides(&decider, request, posted("it is there")).await;
            for _ in 0..50 {
                decider.round().await.unwrap();
                tokio::task::yield_now().await;
            }
            let row = harness.journal(task).await.row;
            assert_eq!(
                (row.status, row.busy),
                (TaskStatus::Running, 1),
                "one of its calls is out"
            );
        }
        harness.tool.open();
        settled(&harness, &[&here, &decider], task).await;
        let journal = harness.journal(task).await;
        let said = || format!("{elsewhere} {:#?}", journal.items);
        check_ended(&journal.items);
        assert_eq!(journal.row.status, TaskStatus::Completed);
        assert_eq!(journal.row.busy, 0);
        assert_eq!(journal.row.open_requests, 0);
        let mut found = outcomes(&journal);
        found.sort_by_key(|outcome| *outcome == Outcome::Succeeded);
        let expected = [
            Outcome::Responded,
            Outcome::Responded,
            Outcome::Responded,
            Outcome::Succeeded,
        ];
        assert_eq!(found, expected, "{}", said());
        assert_eq!(harness.executions(task, path), 1, "{}", said());
        assert_eq!(
            count(&journal.items, |fact| matches!(fact, Fact::LateResult(_))),
            0,
            "{}",
            said()
        );
        assert_eq!(
            count(&journal.items, |fact| matches!(
                fact,
                Fact::AssistantMessage(_)
            )),
            2,
            "{}",
            said()
        );
    }
}

/// Creates a task with a `read_only` call. The start of the call is stored, and the process that
/// ran the call has ended. Then changes the policy so that such calls are held for approval.
/// Returns the harness, the task and the open approval request.
async fn held_after_its_start(fixture: StoreFixture) -> (EngineHarness, TaskId, RequestId) {
    let mut harness = EngineHarness::new(fixture, &[LOOKUP]).await;
    let task = harness.lost_call().await;
    harness.replace(
        "tools: [lookup, tag], decide: allow",
        "tools: [lookup, tag], decide: hold",
    );
    harness.later();
    harness.run().await;
    let asked = last_open_request(&harness, task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    assert_eq!(asked.kind, RequestKind::Approval);
    (harness, task, asked.request_id)
}

/// Drives the task to its end. Asserts that the model is told that the started call may have taken
/// effect.
async fn is_not_denied(harness: &EngineHarness, task: TaskId, outcome: Outcome) {
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(outcomes(&harness.journal(task).await), [outcome]);
    let told = &shown(harness)[0];
    assert!(!told.contains("not run"), "the outcome is unknown: {told}");
    assert!(told.contains("may have taken effect"), "{told}");
}

#[apply(both)]
async fn answers_do_not_repeat_a_call_in_flight(fixture: StoreFixture) {
    answered_while_one_is_out(fixture, BESIDE_A_READ, "/lookup").await;
}

#[apply(both)]
async fn answers_do_not_disturb_a_non_repeatable_call_in_flight(fixture: StoreFixture) {
    answered_while_one_is_out(fixture, BESIDE_A_REFUND, "/refund").await;
}

/// The answer is stored by the process that drives the task, and for a second task by another
/// process.
#[apply(both)]
async fn last_attempt_in_flight_gives_the_result_of_its_call_after_an_answer_to_another_request(
    fixture: StoreFixture,
) {
    let harness = with_outside(fixture, BESIDE_A_TAG).await;
    let here = harness.engine(8);
    let mut deciders = vec![Arc::clone(&here)];
    if !harness.fixture.store.is_sole() {
        deciders.push(harness.engine(8));
    }
    for decider in deciders {
        harness.tool.close();
        harness.tool.answers(200, "tagged");
        harness.tool.answers_next(&[504, 504]);
        let third = harness.tool.ledger().len() + 3;
        let task = here.create(&alice(), go(), None).await.unwrap().task_id;
        harness.tool.reached(third).await;
        let kind = RequestKind::ExternalResult;
        let request = harness.only_request(task, kind).await;
        alice_decides(&decider, request, posted("it is there")).await;
        harness.tool.open();
        settled(&harness, &[&here, &decider], task).await;
        let journal = harness.journal(task).await;
        check_ended(&journal.items);
        assert_eq!(journal.row.status, TaskStatus::Completed);
        let results = tool_results(&journal.items).filter(|result| result.name == "tag");
        let answers: Vec<_> = results
            .map(|result| (result.outcome, result.content.as_str()))
            .collect();
        assert_eq!(
            answers,
            [(Outcome::Succeeded, "tagged")],
            "{:#?}",
            journal.items
        );
        let late = |fact: &Fact| matches!(fact, Fact::LateResult(_));
        assert_eq!(count(&journal.items, late), 0, "{:#?}", journal.items);
        let task = task.to_string();
        let ledger = harness.tool.ledger();
        let sent = ledger
            .iter()
            .filter(|call| call.uri == "/tag" && call.header("holdpoint-task-id") == task);
        let keys: Vec<_> = sent.map(|call| call.header("idempotency-key")).collect();
        assert!(
            keys.len() == 3 && keys.iter().all(|key| *key == keys[0]),
            "{keys:?}"
        );
    }
}

#[apply(both)]
async fn decision_that_ends_the_task_does_not_wait_for_a_call_in_flight(fixture: StoreFixture) {
    let harness = with_outside(fixture, BESIDE_A_READ).await;
    let here = harness.engine(8);
    harness.tool.close();
    let task = here.create(&alice(), go(), None).await.unwrap().task_id;
    harness.tool.reached(1).await;
    let (request, _) = harness.open(task).await[0];
    alice_decides(&here, request, rejects(Consequence::Cancel)).await;
    let journal = harness.journal(task).await;
    assert_eq!(journal.row.status, TaskStatus::Canceled);
    assert_eq!(journal.row.busy, 0);
    assert_eq!(journal.row.open_requests, 0);
    harness.tool.open();
}

#[apply(both)]
async fn rejected_call_that_had_started_is_not_reported_as_not_run(fixture: StoreFixture) {
    let (harness, task, request) = held_after_its_start(fixture).await;
    alice_decides(&harness.engine(0), request, rejects(Consequence::Continue)).await;
    is_not_denied(&harness, task, Outcome::Rejected).await;
}

#[apply(both)]
async fn arguments_of_a_call_that_was_sent_cannot_be_edited(fixture: StoreFixture) {
    let (harness, task, request) = held_after_its_start(fixture).await;
    let call = last_open_request(&harness, task).await.pending_tool_calls[0].tool_call_id;
    let before = harness.journal(task).await.items.len();
    let other = each([(call, edit(r#"{"order":2}"#))]);
    let said = alice_is_refused(&harness.engine(0), request, other).await;
    let Refusal::Invalid(errors) = said else {
        panic!("{said:?}")
    };
    assert_eq!(errors[0].pointer, format!("/decisions/{call}/action"));
    assert_eq!(
        harness.journal(task).await.items.len(),
        before,
        "and nothing has changed"
    );
    alice_decides(&harness.engine(0), request, whole(Action::Approve, None)).await;
    harness.run().await;
    let sent: Vec<_> = harness
        .tool
        .ledger()
        .iter()
        .map(|call| (call.uri.clone(), call.body.clone()))
        .collect();
    assert!(sent.len() == 2 && sent[0] == sent[1], "{sent:?}");
}

#[apply(both)]
async fn expired_call_that_had_started_is_not_reported_as_not_run(fixture: StoreFixture) {
    let (harness, task, _) = held_after_its_start(fixture).await;
    harness.fixture.forward(Duration::from_hours(25));
    harness.engine(0).worker().expire().await.unwrap();
    is_not_denied(&harness, task, Outcome::Expired).await;
}
