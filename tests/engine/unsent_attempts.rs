//! Tests attempts that were provably not sent. If an earlier attempt at the call may have taken
//! effect, the outcome of the call stays unknown: the call does not end as one that was not sent.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Item, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::tool_spec::ToolSpec;
use holdpoint::tool::{Credentials, Invocation, StartReason, Tool, ToolAnswer};
use macro_rules_attribute::apply;
use tokio::sync::{Notify, oneshot};

use super::call_decisions::shown;
use super::engine_harness::{
    Calls, EngineHarness, alice, alice_decides, alice_writes, claimed, join, message, outcomes,
    superseding, tool_results, whole,
};
use crate::store::store_fixture::{StoreFixture, both};

const SMALL: Calls = &[("refund", r#"{"order":1,"amount":5}"#)];

/// The server of the tool `refund`.
#[derive(Default)]
struct Server {
    /// The answers to the next attempts. Without an answer, an attempt succeeds.
    answers: Mutex<VecDeque<ToolAnswer>>,
    /// If set, the next attempt notifies `connecting`. It then waits until the test sends on this
    /// channel.
    held: Mutex<Option<oneshot::Receiver<()>>>,
    connecting: Notify,
    /// Whether the server leaves requests for its tools unanswered.
    is_down: AtomicBool,
    /// The number of attempts that were sent.
    sent: AtomicUsize,
}

struct ServedTool(ToolSpec, Arc<Server>);

#[async_trait]
impl Tool for ServedTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn is_stale(&self, _: Option<StartReason>) -> bool {
        true
    }

    async fn prepare(
        &self,
        _: Option<StartReason>,
        _: TaskId,
        _: &Credentials,
    ) -> Result<(), String> {
        if self.1.is_down.load(Ordering::SeqCst) {
            return Err("no connection".to_owned());
        }
        Ok(())
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        let next = self.1.answers.lock().unwrap().pop_front();
        let held = self.1.held.lock().unwrap().take();
        if let Some(held) = held {
            self.1.connecting.notify_one();
            held.await.unwrap();
        }
        let answer = next.unwrap_or_else(paid);
        if matches!(answer, ToolAnswer::NotSent { .. }) {
            return answer;
        }
        if !call.permit.holds() {
            return not_sent();
        }
        self.1.sent.fetch_add(1, Ordering::SeqCst);
        answer
    }
}

impl Server {
    /// Holds the next attempt until the test sends on the returned channel.
    fn hold_next(&self) -> oneshot::Sender<()> {
        let (goes_on, held) = oneshot::channel();
        *self.held.lock().unwrap() = Some(held);
        goes_on
    }

    fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }
}

fn paid() -> ToolAnswer {
    ToolAnswer::Succeeded {
        content: "paid".to_owned(),
        http_status: None,
    }
}

fn lost() -> ToolAnswer {
    ToolAnswer::Unknown {
        problem: "no answer in time".to_owned(),
    }
}

fn not_sent() -> ToolAnswer {
    ToolAnswer::NotSent {
        content: "The tool failed before anything was sent.".to_owned(),
    }
}

/// Returns a harness whose model makes one small refund, and the tool's server with its answers to
/// the first attempts.
async fn harness(fixture: StoreFixture, answers: Vec<ToolAnswer>) -> (EngineHarness, Arc<Server>) {
    let mut harness = EngineHarness::new(fixture, SMALL).await;
    let server = Arc::new(Server::default());
    *server.answers.lock().unwrap() = answers.into();
    let shared = Arc::clone(&server);
    harness.refund = Some(Arc::new(move |spec| {
        Arc::new(ServedTool(spec.clone(), Arc::clone(&shared)))
    }));
    (harness, server)
}

fn set_idempotent(harness: &mut EngineHarness) {
    harness.replace("refund:\n", "refund:\n    effect: idempotent\n");
}

/// Decides that the call of unknown outcome runs again. The task is then queued.
async fn retry(harness: &EngineHarness, task: TaskId) {
    let request = harness.only_request(task, RequestKind::Reconcile).await;
    alice_decides(&harness.engine(0), request, whole(Action::Retry, None)).await;
}

/// Asserts that the only open request asks about the outcome of the attempt `attempt`, and says
/// that an earlier attempt may have taken effect.
async fn check_asks_again(harness: &EngineHarness, task: TaskId, attempt: u32) {
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    harness.only_request(task, RequestKind::Reconcile).await;
    let request = harness.open_specs(task).await.remove(0);
    let details = request.details.unwrap();
    assert_eq!(details["attempt"], attempt);
    let problem = details["problem"].as_str().unwrap();
    assert!(problem.contains("failed before"), "{problem}");
    assert!(
        problem.ends_with(" An earlier attempt at this call may have taken effect."),
        "{problem}"
    );
}

fn starts(items: &[Item]) -> usize {
    let is_start = |item: &&Item| matches!(item.fact, Fact::ToolStarted { .. });
    items.iter().filter(is_start).count()
}

#[apply(both)]
async fn repeatable_call_whose_second_attempt_is_not_sent_has_a_third_attempt(
    fixture: StoreFixture,
) {
    let unanswered = "There was no answer in 3 attempts. The call may have taken effect.";
    for (third, sent, outcome, content) in [
        (paid(), 2, Outcome::Succeeded, "paid"),
        (not_sent(), 1, Outcome::Failed, unanswered),
    ] {
        let answers = vec![lost(), not_sent(), third];
        let (mut harness, server) = harness(StoreFixture::like(&fixture).await, answers).await;
        set_idempotent(&mut harness);
        let task = harness.stopped().await;
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        let items = harness.journal(task).await.items;
        let results = tool_results(&items).map(|result| (result.outcome, result.content.as_str()));
        assert_eq!(
            results.collect::<Vec<_>>(),
            [(outcome, content)],
            "{items:#?}"
        );
        assert_eq!((starts(&items), server.sent()), (3, sent));
    }
}

#[apply(both)]
async fn once_call_whose_retry_is_not_sent_is_asked_about_again_and_an_equal_call_is_held(
    fixture: StoreFixture,
) {
    let (harness, server) = harness(fixture, vec![lost(), not_sent()]).await;
    harness.script_turns(&[SMALL, SMALL]);
    let task = harness.held().await;
    retry(&harness, task).await;
    harness.run().await;
    check_asks_again(&harness, task, 2).await;
    assert_eq!(harness.prompt_count(), 1, "the model was not asked");
    // The message leaves the outcome of the first call unknown. The model then makes an equal call,
    // which a rule would allow.
    alice_writes(&harness.engine(0), task, superseding("and again")).await;
    harness.run().await;
    harness.only_request(task, RequestKind::Approval).await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Unknown]);
    assert_eq!((harness.prompt_count(), server.sent()), (2, 1));
}

#[apply(both)]
async fn once_call_whose_tool_cannot_be_compared_before_its_retry_is_asked_about_again(
    fixture: StoreFixture,
) {
    let (harness, server) = harness(fixture, vec![lost()]).await;
    let task = harness.held().await;
    server.set_down(true);
    for _ in 0..2 {
        retry(&harness, task).await;
        harness.run().await;
        check_asks_again(&harness, task, 1).await;
        assert_eq!(starts(&harness.journal(task).await.items), 1);
    }
    server.set_down(false);
    retry(&harness, task).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
    assert_eq!(server.sent(), 2);
}

#[apply(both)]
async fn repeatable_call_whose_tool_cannot_be_compared_after_a_lost_attempt_may_have_taken_effect(
    fixture: StoreFixture,
) {
    let (mut harness, server) = harness(fixture, vec![lost()]).await;
    set_idempotent(&mut harness);
    let task = harness.queued().await;
    let goes_on = server.hold_next();
    let drivers = claimed(&harness.engine(1)).await;
    server.connecting.notified().await;
    server.set_down(true);
    goes_on.send(()).unwrap();
    join(drivers).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    let items = harness.journal(task).await.items;
    let result = tool_results(&items).next().unwrap();
    assert_eq!((result.outcome, starts(&items)), (Outcome::Failed, 1));
    for part in ["could not be asked for its tools", "may have taken effect"] {
        assert!(result.content.contains(part), "{}", result.content);
    }
}

#[apply(both)]
async fn cancel_while_a_later_attempt_connects_leaves_the_outcome_unknown(fixture: StoreFixture) {
    let (harness, server) = harness(fixture, vec![lost()]).await;
    let task = harness.held().await;
    retry(&harness, task).await;
    let goes_on = server.hold_next();
    let engine = harness.engine(1);
    let drivers = claimed(&engine).await;
    server.connecting.notified().await;
    engine.cancel(&alice(), task, None).await.unwrap();
    goes_on.send(()).unwrap();
    join(drivers).await;
    let journal = harness.journal(task).await;
    assert_eq!(outcomes(&journal), [Outcome::Unknown]);
    let is_late = |item: &Item| matches!(item.fact, Fact::LateResult(_));
    assert!(!journal.items.iter().any(is_late), "{:#?}", journal.items);
    assert_eq!((starts(&journal.items), server.sent()), (2, 1));
    alice_writes(&harness.engine(0), task, message("go on")).await;
    harness.run().await;
    let results = shown(&harness);
    assert!(results[0].contains("may have taken effect"), "{results:?}");
}

#[apply(both)]
async fn unsent_attempt_settles_nothing_once_another_process_has_made_a_later_attempt(
    fixture: StoreFixture,
) {
    let (harness, server) = harness(fixture, vec![not_sent(), lost()]).await;
    let task = harness.queued().await;
    let goes_on = server.hold_next();
    let first = claimed(&harness.engine(1)).await;
    server.connecting.notified().await;
    harness.later();
    harness.run().await;
    retry(&harness, task).await;
    harness.run().await;
    let request = harness.only_request(task, RequestKind::Reconcile).await;
    goes_on.send(()).unwrap();
    join(first).await;
    assert_eq!(harness.only_open(task).await.0, request);
    assert_eq!(outcomes(&harness.journal(task).await), []);
    assert_eq!(server.sent(), 1);
}

#[apply(both)]
async fn call_whose_only_attempt_is_not_sent_has_failed_although_another_commit_came_first(
    fixture: StoreFixture,
) {
    for is_taken_over in [false, true] {
        let like = StoreFixture::like(&fixture).await;
        let (harness, server) = harness(like, vec![not_sent()]).await;
        let task = harness.queued().await;
        let goes_on = server.hold_next();
        let drivers = claimed(&harness.engine(1)).await;
        server.connecting.notified().await;
        if is_taken_over {
            harness.later();
            harness.run().await;
            harness.only_request(task, RequestKind::Reconcile).await;
        } else {
            let commit = "update agent_task set version = version + 1";
            harness.fixture.database().execute(commit).await;
        }
        goes_on.send(()).unwrap();
        join(drivers).await;
        harness.run().await;
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Failed]);
        assert!(harness.open(task).await.is_empty());
        assert_eq!(server.sent(), 0);
    }
}
