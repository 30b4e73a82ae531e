//! Tests a tool whose slots limit the number of its attempts in flight. While a call waits for a
//! slot, it has not started, and its time limit for sending has not begun.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::tool_spec::ToolSpec;
use holdpoint::tool::{Invocation, Tool, ToolAnswer};
use tokio::sync::Semaphore;

use super::engine_harness::{Calls, EngineHarness, alice, claimed, go, join, outcomes};
use crate::store::store_fixture::StoreFixture;
use crate::support::until;

const ONE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const TWO: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":5}"#),
    ("refund", r#"{"order":2,"amount":6}"#),
];

struct Limited(ToolSpec, Arc<Semaphore>);

#[async_trait]
impl Tool for Limited {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn connects_first(&self) -> bool {
        true
    }

    fn slots(&self) -> Option<Arc<Semaphore>> {
        Some(Arc::clone(&self.1))
    }

    async fn call(&self, call: &Invocation) -> ToolAnswer {
        assert_eq!(self.1.available_permits(), 0);
        call.permit.decided().await;
        assert!(call.permit.holds());
        ToolAnswer::Succeeded {
            content: "paid".to_owned(),
            http_status: None,
        }
    }
}

/// Gives the tool `refund` one slot. Returns the semaphore of the slot.
pub fn limit_refund(harness: &mut EngineHarness) -> Arc<Semaphore> {
    let slots = Arc::new(Semaphore::new(1));
    let shared = Arc::clone(&slots);
    harness.refund = Some(Arc::new(move |spec| {
        Arc::new(Limited(spec.clone(), Arc::clone(&shared)))
    }));
    slots
}

/// Creates a harness whose tool has one slot. Returns the harness and the semaphore of the slot.
async fn harness(calls: Calls) -> (EngineHarness, Arc<Semaphore>) {
    let mut harness = EngineHarness::new(StoreFixture::sqlite().await, calls).await;
    let slots = limit_refund(&mut harness);
    (harness, slots)
}

/// Returns the types of the judgements, starts and results in the task's journal, in order.
async fn progress(harness: &EngineHarness, task: TaskId) -> Vec<&'static str> {
    let journal = harness.journal(task).await;
    let word = |fact: &Fact| {
        let judged = matches!(fact, Fact::Judged { .. }).then_some("judged");
        let started = matches!(fact, Fact::ToolStarted { .. }).then_some("started");
        let result = matches!(fact, Fact::ToolResult(_)).then_some("result");
        judged.or(started).or(result)
    };
    let items = journal.items.iter();
    items.filter_map(|item| word(&item.fact)).collect()
}

async fn until_judged(harness: &EngineHarness, task: TaskId) {
    let is_judged = async || !progress(harness, task).await.is_empty();
    until("the call is judged", is_judged).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_without_a_slot_is_stored_and_not_started_until_there_is_one() {
    let (harness, slots) = harness(ONE).await;
    let taken = Arc::clone(&slots).acquire_owned().await.unwrap();
    let task = harness.queued().await;
    let drivers = claimed(&harness.engine(1)).await;
    until_judged(&harness, task).await;
    assert_eq!(progress(&harness, task).await, ["judged"]);
    drop(taken);
    join(drivers).await;
    let words = ["judged", "started", "result"];
    assert_eq!(progress(&harness, task).await, words);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(slots.available_permits(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn call_that_waits_for_a_slot_while_its_process_stops_is_left_to_another_process() {
    let (harness, slots) = harness(ONE).await;
    let taken = Arc::clone(&slots).acquire_owned().await.unwrap();
    let engine = harness.engine(1);
    let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
    until_judged(&harness, task).await;
    engine.shut_down(Duration::ZERO).await;
    drop(taken);
    // If the driver wrongly took the slot, the slot would become free only after the call had run,
    // and the assertion below would find its start.
    until("the slot is free", async || slots.available_permits() > 0).await;
    assert_eq!(progress(&harness, task).await, ["judged"]);
    harness.finish(task).await;
    let words = ["judged", "started", "result"];
    assert_eq!(progress(&harness, task).await, words);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_one_turn_that_exceed_the_slots_start_one_after_the_other() {
    let (harness, _) = harness(TWO).await;
    let task = harness.stopped().await;
    let words = ["judged", "judged", "started", "result", "started", "result"];
    assert_eq!(progress(&harness, task).await, words);
    let all = outcomes(&harness.journal(task).await);
    assert_eq!(all, [Outcome::Succeeded; 2]);
}
