//! Tests of gate calls whose asker's replica has crashed: the next equal proposal continues the
//! call.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::gate::GateState;
use holdpoint::secret::Secret;
use holdpoint::store::{Settings, Store};
use holdpoint::task::id::TaskId;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::world::Clock as _;

use super::super::engine_harness::EngineHarness;
use super::super::random_gates::Replica;
use super::{agent, approve, ask, asking, driven, harness, proposal, refund, until_present};
use crate::store::store_fixture::{StoreFixture, both};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asker_of_a_sqlite_file_is_gone_after_a_crash() {
    let harness = harness(StoreFixture::sqlite().await).await;
    let engine = harness.engine(8);
    let task = ask(&engine, 1, Duration::ZERO).await.call.task_id;
    let waiting = asking(&engine, 1);
    until_present(&harness, task, |until| until > Time(0)).await;
    // A copy of the files has the state that a crash leaves.
    let url = harness.fixture.settings.url.reveal();
    let file = url.strip_prefix("sqlite://").unwrap();
    for suffix in ["", "-wal"] {
        let (from, to) = (format!("{file}{suffix}"), format!("{file}.crashed{suffix}"));
        std::fs::copy(from, to).unwrap();
    }
    let settings = Settings {
        url: Secret::new(format!("{url}.crashed")),
        ..Settings::default()
    };
    let store = Store::open(&settings, harness.fixture.clock.clone())
        .await
        .unwrap();
    let row = store.journal(task).await.unwrap().unwrap().row;
    assert_eq!(
        (row.status, row.asker_until),
        (TaskStatus::Paused, Some(Time(0)))
    );
    waiting.abort();
}

/// Approves a call and crashes the replica that runs it for an asker who waits for five minutes.
async fn crashed_on_the_way(harness: &EngineHarness) -> TaskId {
    let engine = harness.engine(8);
    let task = ask(&engine, 1, Duration::ZERO).await.call.task_id;
    approve(harness, &engine, task).await;
    harness.tool.close();
    let replica = Replica::start(&harness.parts(8));
    let crashing = Arc::clone(&replica.engine);
    replica.spawn(async move {
        let proposal = proposal("refund", &refund(1), Duration::from_mins(5));
        crashing.ask(&agent(), &proposal).await
    });
    harness.tool.reached(1).await;
    replica.crash();
    harness.tool.open();
    task
}

both! {
    async fn call_that_a_crashed_replica_ran_is_continued_by_the_next_equal_ask(fixture) {
        let harness = harness(fixture).await;
        let engine = harness.engine(8);
        let task = crashed_on_the_way(&harness).await;
        harness.later();
        let until = harness.journal(task).await.row.asker_until;
        assert!(until.is_some_and(|until| until > harness.fixture.clock.now()), "the stored presence lasts");
        driven(&engine).await;
        let again = ask(&engine, 1, Duration::ZERO).await.call;
        assert_eq!((again.task_id, again.state), (task, GateState::Doubtful));
        assert_eq!(harness.executions(task, "/refund"), 1);
    }

    async fn asker_after_a_crash_stays_present_when_another_replica_takes_the_call_over(fixture) {
        let harness = harness(fixture).await;
        let (here, there) = (harness.engine(8), harness.engine(8));
        let task = crashed_on_the_way(&harness).await;
        harness.fixture.forward(Duration::from_mins(6));
        let waiting = asking(&here, 1);
        let now = harness.fixture.clock.now();
        until_present(&harness, task, |until| until > now).await;
        driven(&there).await;
        let is_paused = async || harness.status(task).await == TaskStatus::Paused;
        crate::support::until("the task is paused", is_paused).await;
        until_present(&harness, task, |until| until > now).await;
        let equal = ask(&there, 1, Duration::ZERO).await.call;
        assert_ne!(equal.task_id, task);
        assert!(equal.reason.unwrap().contains("The same call is being run."));
        assert_eq!(harness.executions(task, "/refund"), 1);
        waiting.abort();
    }
}
