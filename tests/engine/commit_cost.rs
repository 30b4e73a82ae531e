//! Tests the cost of a task's cycle on Postgres: the task is created, held, approved and completed.
//! The cost is counted in statements and transactions, not measured in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use holdpoint::engine::Engine;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::status::TaskStatus;

use super::engine_harness::{EngineHarness, alice, alice_decides, go, whole};
use crate::store::busy_writer::commit_while_busy;
use crate::store::store_fixture::{StoreFixture, change, fresh, new_task};
use crate::support::repetitions;

async fn until(harness: &EngineHarness, task: TaskId, status: TaskStatus) {
    let mut news = harness.fixture.store.watch(task);
    while harness.status(task).await != status {
        news.changed().await.unwrap();
    }
}

async fn cycle(harness: &EngineHarness, engine: &Arc<Engine>) {
    let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
    until(harness, task, TaskStatus::Paused).await;
    let (request, _) = harness.only_open(task).await;
    alice_decides(engine, request, whole(Action::Approve, None)).await;
    until(harness, task, TaskStatus::Completed).await;
}

/// The number of statements that the committer sent, and the number of different transactions that
/// wrote the rows of the journal.
struct Counted {
    statements: usize,
    transactions: i64,
}

async fn counted(clients: usize, cycles: usize) -> Counted {
    let fixture = StoreFixture::postgres().await;
    let statements = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&statements);
    fixture.store.observe_batches(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let harness = EngineHarness::new(fixture, &[("refund", r#"{"order":1,"amount":120}"#)]).await;
    // The slots suffice for all tasks. A queued task would wait for ever, because no worker runs
    // here.
    let engine = harness.engine(256);
    join_all((0..clients).map(|_| async {
        for _ in 0..cycles {
            cycle(&harness, &engine).await;
        }
    }))
    .await;
    assert_eq!(harness.tool.ledger().len(), clients * cycles);
    let transactions = harness
        .fixture
        .number("select count(distinct xmin::text) from agent_task_item")
        .await;
    Counted {
        statements: statements.load(Ordering::Relaxed),
        transactions,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycle_of_one_client_takes_at_most_five_commits() {
    let counted = counted(1, 10).await;
    assert!(
        counted.statements <= 50 && counted.transactions <= 50,
        "{} {}",
        counted.statements,
        counted.transactions
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_sixty_four_tasks_that_wait_for_the_writer_take_one_commit() {
    let fixture = StoreFixture::with_writers(1).await;
    let create = |_| {
        let task = TaskId(fresh());
        change(task, vec![new_task(task, "acme", "alice")])
    };
    let changes = (0..64).map(create).collect();
    let (size, written) = commit_while_busy(&fixture.store, changes).await;
    for result in written {
        result.unwrap();
    }
    assert_eq!(size, 64);
}

/// The bounds on statements and commits are far above the figures in `docs/performance.md`, because
/// fewer changes share a commit on a slow machine, and other tests use the machine meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycles_of_sixty_four_clients_share_their_commits() {
    let cycles = repetitions(2, 4);
    let counted = counted(64, cycles).await;
    let transactions = usize::try_from(counted.transactions).unwrap();
    assert!(
        counted.statements < 2 * 64 * cycles && transactions < 2 * 64 * cycles,
        "{} {}",
        counted.statements,
        counted.transactions
    );
}
