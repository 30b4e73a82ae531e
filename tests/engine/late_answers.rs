//! Tests answers that a tool sends after the timeout of the attempt.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::progress::Progress;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::tool_spec::ToolSpec;
use holdpoint::tool::{Invocation, Tool, ToolAnswer};
use serde_json::Value;
use tokio::sync::oneshot;

use super::engine_harness::{EngineHarness, alice_decides, drive, outcomes, whole};
use super::stored_prompts::thinks;
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::StoreFixture;

const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];

/// A tool that answers no attempt in time. The test sends the answers later.
struct LateTool(
    ToolSpec,
    Arc<Mutex<VecDeque<oneshot::Receiver<ToolAnswer>>>>,
);

#[async_trait]
impl Tool for LateTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        assert!(call.permit.holds());
        let answer = self.1.lock().unwrap().pop_front().expect("an attempt");
        call.late.put(Box::pin(async { answer.await.ok() }));
        ToolAnswer::Unknown {
            problem: "no answer in time".to_owned(),
        }
    }
}

/// Returns a harness, and the channels on which the test sends the late answers of `N` attempts.
async fn late_tool<const N: usize>() -> (EngineHarness, [oneshot::Sender<ToolAnswer>; N]) {
    let mut harness = EngineHarness::new(StoreFixture::sqlite().await, SMALL).await;
    let mut answers = VecDeque::new();
    let senders = std::array::from_fn(|_| {
        let (sender, answer) = oneshot::channel();
        answers.push_back(answer);
        sender
    });
    let shared = Arc::new(Mutex::new(answers));
    harness.refund = Some(Arc::new(move |spec| {
        Arc::new(LateTool(spec.clone(), Arc::clone(&shared)))
    }));
    (harness, senders)
}

/// Returns a harness, a task whose call has an unknown outcome, and the channels on which the test
/// sends the late answers of `N` attempts.
async fn unknown<const N: usize>() -> (EngineHarness, TaskId, [oneshot::Sender<ToolAnswer>; N]) {
    let (harness, senders) = late_tool().await;
    let task = harness.held().await;
    let asked = harness.open_specs(task).await.remove(0);
    assert_eq!(asked.kind, RequestKind::Reconcile);
    (harness, task, senders)
}

fn paid() -> ToolAnswer {
    ToolAnswer::Succeeded {
        content: "paid".to_owned(),
        http_status: None,
    }
}

async fn until(harness: &EngineHarness, task: TaskId, found: impl Fn(&Fact) -> bool) {
    let is_journaled = async || {
        let items = harness.journal(task).await.items;
        items.iter().any(|item| found(&item.fact))
    };
    crate::support::until("the answer is journaled", is_journaled).await;
}

/// Waits until the task has completed. Checks that the late answer has closed the reconcile request
/// and is the call's result.
async fn check_answered_late(harness: &EngineHarness, task: TaskId) {
    let ended = |fact: &Fact| {
        matches!(
            fact,
            Fact::TaskStatus {
                status: TaskStatus::Completed,
                ..
            }
        )
    };
    until(harness, task, ended).await;
    let journal = harness.journal(task).await;
    assert_eq!(outcomes(&journal), [Outcome::Succeeded]);
    let closed = |fact: &Fact| {
        matches!(
            fact,
            Fact::RequestClosed {
                reason: CloseReason::AnsweredLate,
                ..
            }
        )
    };
    assert!(journal.items.iter().any(|item| closed(&item.fact)));
}

#[tokio::test(flavor = "multi_thread")]
async fn late_answer_closes_the_open_reconcile_request_and_is_the_result() {
    let (harness, task, [late]) = unknown().await;
    late.send(paid()).unwrap();
    check_answered_late(&harness, task).await;
}

/// A failover may lose the start of a call while the process that sent the call still waits for the
/// answer. Here, a copy of the judgement replaces each start in the journal.
async fn lose_starts(harness: &EngineHarness, task: TaskId) {
    let lose = "update agent_task_item set (type, role, body) =
            (select type, role, body from agent_task_item where type = 'judged' limit 1)
        where type = 'tool_started'";
    harness.fixture.database().execute(lose).await;
    let progress = Progress::from_items(&harness.journal(task).await.items);
    assert_eq!((progress.calls[0].attempts, progress.open.len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn late_answer_to_an_attempt_whose_start_was_lost_closes_the_reconcile_request() {
    let (harness, task, [late]) = unknown().await;
    lose_starts(&harness, task).await;
    late.send(paid()).unwrap();
    check_answered_late(&harness, task).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_answer_after_a_person_settled_the_call_is_a_late_result() {
    let (harness, task, [late]) = unknown().await;
    let request = harness.open_specs(task).await.remove(0).request_id;
    let settled = whole(Action::Respond, Some(Value::from("it was paid")));
    let api = harness.engine(0);
    alice_decides(&api, request, settled).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    late.send(paid()).unwrap();
    until(&harness, task, |fact| matches!(fact, Fact::LateResult(_))).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Responded]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

/// The late answer arrives while the task's driver waits for the model, after `max_duration` has
/// passed.
#[tokio::test(flavor = "multi_thread")]
async fn late_answer_during_a_model_call_ends_no_task_at_its_max_duration() {
    let (mut harness, [late]) = late_tool().await;
    let limits = "model: main, limits: { max_duration: 5s },";
    harness.replace("model: main,", limits);
    let (task, engine) = (harness.queued().await, harness.engine(1));
    drive(&engine).await;
    let request = harness.only_request(task, RequestKind::Reconcile).await;
    let settled = whole(Action::Respond, Some(Value::from("it was paid")));
    alice_decides(&harness.engine(0), request, settled).await;
    let mut driver = engine.claim().await.unwrap().pop().unwrap();
    thinks(&harness, &mut driver).await;
    harness.fixture.forward(Duration::from_secs(8));
    late.send(paid()).unwrap();
    until(&harness, task, |fact| matches!(fact, Fact::LateResult(_))).await;
    assert_eq!(harness.status(task).await, TaskStatus::Running);
    driver.await;
    let row = harness.journal(task).await.row;
    let ended = (row.status, row.error, harness.prompt_count());
    assert_eq!(ended, (TaskStatus::Completed, None, 2));
}

/// Lets a person repeat the call, whose outcome is then unknown again.
async fn repeat(harness: &EngineHarness, task: TaskId) {
    let request = harness.open_specs(task).await.remove(0).request_id;
    let retry = whole(Action::Retry, None);
    let api = harness.engine(0);
    alice_decides(&api, request, retry).await;
    harness.run().await;
}

/// Lets a person repeat the call. Checks that the late answer to its earlier attempt is not the
/// result of the later attempt.
async fn check_repetition(
    harness: &EngineHarness,
    task: TaskId,
    [first, second]: [oneshot::Sender<ToolAnswer>; 2],
) {
    repeat(harness, task).await;
    first
        .send(ToolAnswer::Failed {
            content: "no".to_owned(),
            http_status: None,
        })
        .unwrap();
    until(harness, task, |fact| matches!(fact, Fact::LateResult(_))).await;
    assert_eq!(outcomes(&harness.journal(task).await), []);
    assert_eq!(
        harness.open_specs(task).await[0].kind,
        RequestKind::Reconcile
    );
    second.send(paid()).unwrap();
    until(harness, task, |fact| matches!(fact, Fact::ToolResult(_))).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_answer_to_an_earlier_attempt_is_not_the_result_of_a_repetition() {
    let (harness, task, attempts) = unknown().await;
    check_repetition(&harness, task, attempts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_answer_to_an_attempt_whose_start_was_lost_is_not_the_result_of_a_repetition() {
    let (harness, task, attempts) = unknown().await;
    lose_starts(&harness, task).await;
    harness.later();
    check_repetition(&harness, task, attempts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_answer_to_the_second_of_two_lost_starts_is_not_the_result_of_a_repetition() {
    let (harness, task, [_, second, third]) = unknown().await;
    repeat(&harness, task).await;
    lose_starts(&harness, task).await;
    harness.later();
    check_repetition(&harness, task, [second, third]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_answer_in_a_long_outage_is_stored_once_the_database_answers_again() {
    let (harness, task, [late]) = unknown().await;
    let (database, clock) = (harness.fixture.database(), &harness.fixture.clock);
    // The renamed table makes every read of the journal fail, as in an outage.
    let hide = "alter table agent_task_item rename to hidden_item";
    database.execute(hide).await;
    let before = clock.sleeps();
    late.send(paid()).unwrap();
    let has_tried = async || clock.sleeps() > before + 300;
    crate::support::until("the engine has tried again many times", has_tried).await;
    let show = "alter table hidden_item rename to agent_task_item";
    database.execute(show).await;
    until(&harness, task, |fact| matches!(fact, Fact::ToolResult(_))).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
}
