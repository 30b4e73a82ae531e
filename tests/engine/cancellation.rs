//! Tests that no call of a task starts after a cancel of the task was answered. Hundreds of tasks
//! are canceled around the start of their call, and the results are checked against the tool's
//! ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use holdpoint::engine::{ConflictCode, Engine, EngineParts, Refusal};
use holdpoint::store::Store;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};
use macro_rules_attribute::apply;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::engine_harness::{EngineHarness, alice, go, outcomes};
use super::invariants::check_ended;
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];

/// Returns the number of rounds in each of the three variants: on `SQLite`, on Postgres, and with
/// the cancel on another replica. In all, a normal run has about 670 rounds, and a long run a
/// thousand.
fn rounds_of_variant() -> usize {
    repetitions(222, 334)
}

/// The clock of a machine that stalls. A call of `uptime` may block until the service has answered
/// the cancel commands of the current round, but for at most 5 ms.
struct StallingClock {
    answered: Arc<AtomicBool>,
    readings: AtomicU64,
}

#[async_trait::async_trait]
impl Clock for StallingClock {
    fn now(&self) -> Time {
        SystemClock.now()
    }

    fn uptime(&self) -> Duration {
        // About half of the readings block, and not the same readings in every round.
        if (self.readings.fetch_add(1, Ordering::Relaxed) * 7 / 3).is_multiple_of(2) {
            let end = Instant::now() + Duration::from_millis(5);
            while !self.answered.load(Ordering::SeqCst) && Instant::now() < end {
                std::thread::park_timeout(Duration::from_micros(300));
            }
        }
        SystemClock.uptime()
    }

    async fn sleep(&self, time: Duration) {
        SystemClock.sleep(time).await;
    }
}

/// Waits until the task's call has started; in a third of the rounds, does not wait. Then yields to
/// the scheduler 0 to 89 times.
async fn around_its_start(store: &Store, task: TaskId, round: usize) {
    let mut news = store.watch(task);
    let started = async {
        loop {
            let row = store.task(task).await.unwrap().unwrap();
            if row.status != TaskStatus::Running || row.last_seq >= 5 {
                return;
            }
            news.changed().await.unwrap();
        }
    };
    if round.is_multiple_of(3) {
        drop(started);
    } else {
        started.await;
    }
    for _ in 0..(round * 31) % 90 {
        tokio::task::yield_now().await;
    }
}

/// The maximum number of tasks that the engine runs at once. Each new task needs a free slot,
/// because a task without a slot is queued, and no worker runs that could claim it. At most 48
/// rounds with a task each begin at once, so the slots suffice even if the tasks of the previous 48
/// rounds still run.
const SLOTS: usize = 256;

async fn canceled_around_their_start(fixture: StoreFixture, elsewhere: bool) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    let answered = Arc::new(AtomicBool::new(false));
    let clock = Arc::new(StallingClock {
        answered: Arc::clone(&answered),
        readings: AtomicU64::new(0),
    });
    let driver = Engine::new(EngineParts {
        clock: clock.clone(),
        ..harness.parts(SLOTS)
    });
    let other = if elsewhere {
        let store = Store::open(&harness.fixture.settings, Arc::new(SystemClock))
            .await
            .unwrap();
        Engine::new(EngineParts {
            store,
            clock: Arc::new(SystemClock),
            ..harness.parts(SLOTS)
        })
    } else {
        Arc::clone(&driver)
    };
    let mut canceled: BTreeMap<String, Instant> = BTreeMap::new();
    let mut tasks = Vec::new();
    // A cancel on the driver's replica is answered quickly. A cancel on another replica may wait
    // until the driver can no longer send the call. So 48 such rounds run at once, to save time.
    let together = if elsewhere { 48 } else { 1 };
    let all: Vec<_> = (0..rounds_of_variant()).collect();
    for rounds in all.chunks(together) {
        answered.store(false, Ordering::SeqCst);
        let each = rounds.iter().map(async |round| {
            let task = driver.create(&alice(), go(), None).await.unwrap().task_id;
            around_its_start(&harness.fixture.store, task, *round).await;
            let said = other.cancel(&alice(), task, None).await;
            (task, said, Instant::now())
        });
        for (task, said, at) in join_all(each).await {
            tasks.push(task);
            match said {
                Ok(_) => drop(canceled.insert(task.to_string(), at)),
                Err(refusal) => {
                    let code = ConflictCode::TaskFinal;
                    assert_eq!(
                        refusal,
                        Refusal::Conflict {
                            code,
                            task_id: task,
                            status: TaskStatus::Completed
                        }
                    );
                }
            }
        }
        answered.store(true, Ordering::SeqCst);
    }
    driver.shut_down(Duration::from_mins(1)).await;
    none_called_after_its_cancel(&harness, &canceled);
    journals_match_the_ledger(&harness, tasks, &canceled).await;
}

fn none_called_after_its_cancel(harness: &EngineHarness, canceled: &BTreeMap<String, Instant>) {
    let late = harness.tool.ledger().into_iter().filter(|call| {
        canceled
            .get(call.header("holdpoint-task-id"))
            .is_some_and(|answered| call.at > *answered)
    });
    let late = late.count();
    assert_eq!(
        late,
        0,
        "of {} that were canceled {late} were called after cancel had answered",
        canceled.len()
    );
    assert!(
        canceled.len() > rounds_of_variant() / 4,
        "only {} were canceled in time",
        canceled.len()
    );
}

async fn journals_match_the_ledger(
    harness: &EngineHarness,
    tasks: Vec<TaskId>,
    canceled: &BTreeMap<String, Instant>,
) {
    let ran: BTreeSet<String> = harness
        .tool
        .ledger()
        .iter()
        .map(|call| call.header("holdpoint-task-id").to_owned())
        .collect();
    let mut started = 0;
    for task in tasks {
        let journal = harness.journal(task).await;
        check_ended(&journal.items);
        let id = task.to_string();
        let status = if canceled.contains_key(&id) {
            TaskStatus::Canceled
        } else {
            TaskStatus::Completed
        };
        assert_eq!(
            (journal.row.status, journal.row.busy),
            (status, 0),
            "{:#?}",
            journal.items
        );
        let starts = journal
            .items
            .iter()
            .filter(|item| matches!(item.fact, Fact::ToolStarted { .. }))
            .count();
        started += usize::from(status == TaskStatus::Canceled && starts == 1);
        if outcomes(&journal) == [Outcome::Canceled] {
            assert!(starts == 0 && !ran.contains(&id));
        }
    }
    assert!(started > 0, "some had started");
}

/// Returns a listener whose queue is full, and the connections that fill the queue. A further
/// `connect` hangs until the listener accepts a connection.
async fn full_backlog() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(peer) =
        tokio::time::timeout(Duration::from_secs(1), TcpStream::connect(address)).await
    {
        queue.push(peer.unwrap());
    }
    (listener, queue)
}

#[apply(both)]
async fn answered_cancel_lets_no_call_start_in_this_process(fixture: StoreFixture) {
    canceled_around_their_start(fixture, false).await;
}

#[apply(both)]
async fn call_still_connecting_when_cancel_answers_is_not_sent(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, SMALL).await;
    let (listener, queue) = full_backlog().await;
    let url = format!("http://{}", listener.local_addr().unwrap());
    harness.replace("{tool}", &url);
    let engine = Engine::new(EngineParts {
        clock: Arc::new(SystemClock),
        ..harness.parts(4)
    });
    let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
    around_its_start(&harness.fixture.store, task, 1).await;
    engine.cancel(&alice(), task, None).await.unwrap();
    for _ in &queue {
        listener.accept().await.unwrap();
    }
    let (mut connection, _) = listener.accept().await.unwrap();
    let mut sent = Vec::new();
    connection.read_to_end(&mut sent).await.unwrap();
    assert_eq!(String::from_utf8(sent).unwrap(), "");
    engine.shut_down(Duration::from_mins(1)).await;
    let journal = harness.journal(task).await;
    assert_eq!(outcomes(&journal), [Outcome::Unknown]);
    let Fact::LateResult(late) = &journal.items.last().unwrap().fact else {
        panic!("{journal:#?}")
    };
    assert_eq!(late.outcome, Outcome::Failed);
    assert!(
        late.content.contains("before anything was sent"),
        "{}",
        late.content
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn answered_cancel_on_another_replica_lets_no_call_start() {
    canceled_around_their_start(StoreFixture::postgres().await, true).await;
}
