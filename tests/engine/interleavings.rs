//! Tests a commit that another process makes while a driver is suspended at any of its await
//! points. Nothing is lost, and no `once` call is repeated. Also tests panics, processes that die,
//! lost answers of the database to a commit, and configurations that change during a call.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;
use std::time::Duration;

use holdpoint::engine::{Engine, EngineParts, Refusal};
use holdpoint::store::CommitError;
use holdpoint::task::change::{Guard, Journal, TaskChange};
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::item::{Fact, Item, Outcome, ToolResult};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};
use macro_rules_attribute::apply;

use super::engine_harness::{
    EngineHarness, alice, alice_writes, drive, go, message, outcomes, spawn,
};
use super::invariants::{check, check_ended};
use super::stored_prompts::answers;
use super::two_replicas::place;
use super::worker_steps::WorkerSteps as _;
use crate::store::connection_loss::lossy;
use crate::store::store_fixture::{StoreFixture, both, change, fresh};

const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const MIXED: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":5}"#),
    ("lookup", r#"{"order":1}"#),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Cancel,
    /// Another replica takes the task over and drives it as far as possible.
    Takeover,
    /// An item that does not concern the driver is appended.
    Append,
}

impl Meanwhile {
    async fn happens(self, harness: &EngineHarness, task: TaskId) {
        match self {
            Self::Cancel => match harness.engine(0).cancel(&alice(), task, None).await {
                Ok(_) | Err(Refusal::Conflict { .. }) => {}
                Err(refusal) => panic!("{refusal}"),
            },
            Self::Takeover => {
                harness.later();
                harness.run().await;
            }
            Self::Append => appended(harness, task).await,
        }
    }
}

/// Appends a late result to the task's journal. The result belongs to a call that is not in the
/// journal.
pub(super) async fn appended(harness: &EngineHarness, task: TaskId) {
    loop {
        let row = harness.journal(task).await.row;
        let (tool_call_id, name) = (CallId(fresh()), "lookup".to_owned());
        let late = ToolResult {
            tool_call_id,
            name,
            outcome: Outcome::Succeeded,
            content: String::new(),
            http_status: None,
            suspect: false,
            reported: false,
        };
        let written = TaskChange {
            facts: vec![Fact::LateResult(late)],
            ..TaskChange::empty(task, Guard::Version(row.version), row.last_seq)
        };
        match harness
            .fixture
            .store
            .commit(change(task, vec![written]))
            .await
        {
            Ok(_) => return,
            Err(error) => assert_eq!(error, CommitError::Stale),
        }
    }
}

/// Creates a task and suspends its driver after `polls` polls. Then the event `meanwhile` happens,
/// the driver is resumed, and the task is driven to its end. Returns the task, and whether the
/// driver ended before it could be suspended.
async fn drive_and_suspend(
    harness: &EngineHarness,
    meanwhile: Meanwhile,
    polls: usize,
) -> (TaskId, bool) {
    let task = harness.queued().await;
    let engine = harness.engine(1);
    let mut left = polls;
    let mut over = true;
    for driver in engine.claim().await.unwrap() {
        let mut driver = pin!(driver);
        let stands = poll_fn(|context| {
            if left == 0 {
                return Poll::Ready(true);
            }
            left -= 1;
            driver.as_mut().poll(context).map(|()| false)
        });
        if stands.await {
            over = false;
            meanwhile.happens(harness, task).await;
            driver.await;
        }
    }
    harness.finish(task).await;
    (task, over)
}

fn starts(journal: &Journal, name: &str) -> usize {
    let of = |fact: &Fact| matches!(fact, Fact::ToolStarted { name: known, .. } if known == name);
    journal.items.iter().filter(|item| of(&item.fact)).count()
}

async fn interrupted_everywhere(fixture: StoreFixture, meanwhile: Meanwhile) {
    let harness = EngineHarness::new(fixture, MIXED).await;
    let (mut polls, mut whole) = (0, 0);
    while whole < 2 {
        let asked = harness.prompt_count();
        let (task, over) = drive_and_suspend(&harness, meanwhile, polls).await;
        polls += 1;
        whole += usize::from(over);
        let journal = harness.journal(task).await;
        let said = || format!("{meanwhile:?} after {polls} polls: {:#?}", journal.items);
        check_ended(&journal.items);
        assert_eq!(
            (journal.row.busy, journal.row.open_requests),
            (0, 0),
            "{}",
            said()
        );
        // The driver discards an answer of the model if the task was canceled or taken over while
        // the driver was suspended.
        let (asked, stored) = (harness.prompt_count() - asked, answers(&journal.items));
        let thrown_away = usize::from(!over && meanwhile != Meanwhile::Append);
        assert!(
            stored <= asked && asked <= stored + thrown_away,
            "asked {asked} times: {}",
            said()
        );
        let (paid, read) = (
            harness.executions(task, "/refund"),
            harness.executions(task, "/lookup"),
        );
        // The journal and the ledger agree: each execution has a committed start.
        assert!(
            paid <= 1
                && read <= 3
                && paid <= starts(&journal, "refund")
                && read <= starts(&journal, "lookup"),
            "{}",
            said()
        );
        match meanwhile {
            Meanwhile::Append => {
                assert_eq!(outcomes(&journal), [Outcome::Succeeded; 2], "{}", said());
                assert_eq!(
                    (journal.row.status, paid, read),
                    (TaskStatus::Completed, 1, 1),
                    "{}",
                    said()
                );
                let late = journal
                    .items
                    .iter()
                    .filter(|item| matches!(item.fact, Fact::LateResult(_)))
                    .count();
                assert_eq!(late, usize::from(!over), "{}", said());
            }
            Meanwhile::Takeover => {
                assert_eq!(journal.row.status, TaskStatus::Completed, "{}", said());
            }
            Meanwhile::Cancel => {
                assert!(
                    [TaskStatus::Canceled, TaskStatus::Completed].contains(&journal.row.status),
                    "{}",
                    said()
                );
                let known = place(&journal, |fact| {
                    matches!(fact, Fact::ToolResult(result) | Fact::LateResult(result)
                        if result.name == "refund" && result.outcome == Outcome::Succeeded)
                });
                assert_eq!(
                    known.is_some(),
                    paid == 1,
                    "the result is stored, in time or late: {}",
                    said()
                );
            }
        }
    }
    assert!(polls > 5, "only {polls} await points");
}

/// A clock that panics once, when its uptime is read. The field counts the remaining readings
/// before the panic.
struct PanickingClock(AtomicI64);

#[async_trait::async_trait]
impl Clock for PanickingClock {
    fn now(&self) -> Time {
        SystemClock.now()
    }

    fn uptime(&self) -> Duration {
        assert!(
            self.0.fetch_sub(1, Ordering::SeqCst) != 0,
            "something broke"
        );
        Duration::ZERO
    }

    async fn sleep(&self, _: Duration) {}
}

#[apply(both)]
async fn driver_interrupted_by_a_cancel_at_any_line_loses_and_repeats_nothing(
    fixture: StoreFixture,
) {
    interrupted_everywhere(fixture, Meanwhile::Cancel).await;
}

#[apply(both)]
async fn driver_interrupted_by_a_takeover_at_any_line_loses_and_repeats_nothing(
    fixture: StoreFixture,
) {
    interrupted_everywhere(fixture, Meanwhile::Takeover).await;
}

#[apply(both)]
async fn driver_interrupted_by_an_unrelated_append_at_any_line_loses_and_repeats_nothing(
    fixture: StoreFixture,
) {
    interrupted_everywhere(fixture, Meanwhile::Append).await;
}

#[apply(both)]
async fn panic_anywhere_around_a_call_loses_neither_the_task_nor_the_call(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, MIXED).await;
    let (mut broken, mut at) = (0, 0);
    loop {
        let task = harness.queued().await;
        let clock = Arc::new(PanickingClock(AtomicI64::new(-1)));
        let engine = Engine::new(EngineParts {
            clock: clock.clone(),
            ..harness.parts(1)
        });
        let drivers = engine.claim().await.unwrap();
        clock.0.store(at, Ordering::SeqCst);
        let mut panicked = false;
        for driver in drivers {
            panicked |= spawn(driver).await.is_err();
        }
        drop(engine);
        harness.finish(task).await;
        let journal = harness.journal(task).await;
        check_ended(&journal.items);
        assert_eq!(journal.row.status, TaskStatus::Completed);
        assert!(
            harness.executions(task, "/refund") <= 1 && harness.executions(task, "/lookup") <= 3
        );
        if !panicked {
            break;
        }
        (broken, at) = (broken + 1, at + 1);
    }
    assert!(broken > 6, "only {broken} places");
}

#[apply(both)]
async fn late_result_of_a_canceled_turn_does_not_disturb_the_next_turn(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.configure(|yaml| {
        let yaml = yaml.replace(
            "  forbidden: {",
            "  note: { http: { method: POST, url: \"{tool}/note\" } }\n  forbidden: {",
        );
        let yaml = yaml.replace("tag, refund, forbidden]", "tag, refund, forbidden, note]");
        yaml.replace(
            "  - { name: small,",
            "  - { name: notes, tools: [note], decide: allow }\n  - { name: small,",
        )
    });
    harness.script_turns(&[SMALL, &[("note", "{}")]]);
    let engine = harness.engine(8);
    for round in 0..40 {
        harness.tool.close();
        let called = harness.tool.ledger().len();
        let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
        harness.tool.reached(called + 1).await;
        engine.cancel(&alice(), task, None).await.unwrap();
        alice_writes(&engine, task, message("and on")).await;
        for _ in 0..round * 3 {
            tokio::task::yield_now().await;
        }
        harness.tool.open();
        let is_late = |item: &Item| matches!(item.fact, Fact::LateResult(_));
        let mut polls = 0;
        let journal = loop {
            let journal = harness.journal(task).await;
            if journal.row.status != TaskStatus::Running && journal.items.iter().any(is_late) {
                break journal;
            }
            polls += 1;
            assert!(polls < 5000, "{round} {journal:#?}");
            engine.round().await.unwrap();
            // The late result comes over HTTP, which may take longer than thousands of polls.
            if polls > 1000 {
                crate::support::pause().await;
            } else {
                tokio::task::yield_now().await;
            }
        };
        let late = journal.items.iter().filter(|item| is_late(item)).count();
        assert_eq!(
            outcomes(&journal),
            [Outcome::Unknown, Outcome::Succeeded],
            "{round} {:#?}",
            journal.items
        );
        assert_eq!(
            (journal.row.status, late),
            (TaskStatus::Completed, 1),
            "{round} {:#?}",
            journal.items
        );
        assert_eq!(harness.executions(task, "/note"), 1);
    }
}

#[apply(both)]
async fn agent_removed_during_a_call_fails_the_task_until_it_is_back(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, SMALL).await;
    let whole_yaml = harness.yaml();
    let task = harness.lost_call().await;
    harness.replace("  billing:", "  other:");
    harness.later();
    harness.run().await;
    let journal = harness.journal(task).await;
    assert_eq!(
        journal.row.error.as_ref().map(|error| error.code),
        Some(FailureCode::Configuration)
    );
    assert_eq!(outcomes(&journal), [], "the outcome is unknown");
    harness.configure(|_| whole_yaml.clone());
    asked_about_first(&harness, task).await;
}

#[apply(both)]
async fn model_removed_during_a_call_still_asks_for_its_outcome(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    let task = harness.lost_call().await;
    let without = Engine::new(EngineParts {
        models: BTreeMap::new(),
        ..harness.parts(4)
    });
    harness.later();
    drive(&without).await;
    harness.only_request(task, RequestKind::Reconcile).await;
    harness.answer_all(&without, task).await;
    harness.until_stopped(task).await;
    let row = harness.journal(task).await.row;
    assert_eq!(
        row.error.map(|error| error.code),
        Some(FailureCode::Configuration)
    );
    harness.engine(0).retry(&alice(), task, None).await.unwrap();
    harness.finish(task).await;
    let journal = harness.journal(task).await;
    assert_eq!(journal.row.status, TaskStatus::Completed);
    assert_eq!(outcomes(&journal), [Outcome::Responded]);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

/// Retries a failed task and drives it on. Asserts that a reconcile request is opened about the
/// started refund, and that the refund is not repeated.
async fn asked_about_first(harness: &EngineHarness, task: TaskId) {
    harness.engine(0).retry(&alice(), task, None).await.unwrap();
    harness.later();
    harness.run().await;
    harness.only_request(task, RequestKind::Reconcile).await;
    harness.finish(task).await;
    let journal = harness.journal(task).await;
    assert_eq!(journal.row.status, TaskStatus::Completed);
    assert_eq!(outcomes(&journal), [Outcome::Responded]);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

/// For each kind of commit in `MARKS`, the proxy loses the database's answer once, or up to three
/// times. The commit takes effect nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_whose_answer_is_lost_is_not_repeated_while_a_task_is_driven() {
    const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
    const MARKS: &[&str] = &[
        "assistant_message",
        "intervention_requested",
        "\"decision\"",
        "tool_started",
        "tool_result",
        "Completed",
    ];
    let harness = EngineHarness::new(StoreFixture::postgres().await, LARGE).await;
    for mark in MARKS {
        let way = lossy(&harness.fixture, mark.as_bytes()).await;
        let store = way.store(harness.fixture.clock.clone()).await;
        let engine = Engine::new(EngineParts {
            store: store.clone(),
            ..harness.parts(16)
        });
        for lost in [1, 3] {
            way.swallow.store(lost, Ordering::SeqCst);
            let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
            for end in [TaskStatus::Paused, TaskStatus::Completed] {
                let mut news = store.watch(task);
                while harness.status(task).await == TaskStatus::Running {
                    tokio::time::timeout(Duration::from_mins(10), news.changed())
                        .await
                        .expect("it goes on")
                        .unwrap();
                }
                let journal = harness.journal(task).await;
                assert_eq!(
                    journal.row.status, end,
                    "{mark} {lost}: {:#?}",
                    journal.items
                );
                if end == TaskStatus::Paused {
                    harness.answer_all(&engine, task).await;
                }
            }
            assert!(
                way.swallow.swap(0, Ordering::SeqCst) < lost,
                "{mark} was lost"
            );
            let journal = harness.journal(task).await;
            check(&journal.items);
            assert_eq!(outcomes(&journal), [Outcome::Succeeded]);
            assert_eq!(harness.executions(task, "/refund"), 1);
            assert_eq!(starts(&journal, "refund"), 1);
            let asked = journal
                .items
                .iter()
                .filter(|item| matches!(item.fact, Fact::InterventionRequested(_)))
                .count();
            assert_eq!(asked, 1, "no reconcile request is opened");
        }
    }
}
