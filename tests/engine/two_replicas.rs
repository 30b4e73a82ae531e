//! Two replicas of one service. On `SQLite` only one process may serve a file, so both replicas are
//! the same engine there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::{Engine, EngineParts};
use holdpoint::people::Caller;
use holdpoint::store::Store;
use holdpoint::task::change::Journal;
use holdpoint::task::decision::Action;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{CloseReason, Fact};
use holdpoint::task::status::TaskStatus;

use super::engine_harness::{EngineHarness, alice, go, person};
use super::invariants::check_ended;

/// A number of slots so large that no task is queued for a worker.
const ROOM: usize = 256;

/// Two replicas that drive the tasks they accept.
pub struct Pair {
    pub harness: EngineHarness,
    pub here: Arc<Engine>,
    pub there: Arc<Engine>,
    pub other: Store,
}

impl Pair {
    pub async fn of(harness: EngineHarness) -> Self {
        let here = harness.engine(ROOM);
        if !harness.fixture.is_postgres() {
            let other = harness.fixture.store.clone();
            return Self {
                there: Arc::clone(&here),
                other,
                here,
                harness,
            };
        }
        let other = Store::open(&harness.fixture.settings, harness.fixture.clock.clone())
            .await
            .unwrap();
        let there = Engine::new(EngineParts {
            store: other.clone(),
            ..harness.parts(ROOM)
        });
        Self {
            harness,
            here,
            there,
            other,
        }
    }

    /// Returns the two engines, swapped in every other round.
    pub fn turned(&self, round: usize) -> (&Arc<Engine>, &Arc<Engine>) {
        if round.is_multiple_of(2) {
            (&self.here, &self.there)
        } else {
            (&self.there, &self.here)
        }
    }

    pub fn forward(&self, by: Duration) {
        self.harness.fixture.forward(by);
        if self.harness.fixture.is_postgres() {
            self.other.set_clock_forward(by);
        }
    }

    /// Creates a task through the replica `self.here`, and waits until the task is paused for
    /// approval requests.
    /// Returns the task and these requests.
    pub async fn held(&self) -> (TaskId, Vec<RequestId>) {
        let task = self
            .here
            .create(&alice(), go(), None)
            .await
            .unwrap()
            .task_id;
        let journal = self.settled(task).await;
        assert_eq!(
            journal.row.status,
            TaskStatus::Paused,
            "{:#?}",
            journal.items
        );
        (
            task,
            self.harness
                .open(task)
                .await
                .into_iter()
                .map(|(request, _)| request)
                .collect(),
        )
    }

    /// Waits until the task has stopped running, and returns its journal. Either replica may have
    /// driven the task.
    pub async fn settled(&self, task: TaskId) -> Journal {
        let (mut here, mut there) = (
            self.harness.fixture.store.watch(task),
            self.other.watch(task),
        );
        let settles = async {
            loop {
                let row = self.harness.row(task).await;
                if row.status != TaskStatus::Running {
                    return;
                }
                tokio::select! {
                    told = here.changed() => told.unwrap(),
                    told = there.changed() => told.unwrap(),
                }
            }
        };
        let in_time = tokio::time::timeout(Duration::from_mins(10), settles)
            .await
            .is_ok();
        let journal = self.harness.journal(task).await;
        assert!(in_time, "the task does not settle: {journal:#?}");
        journal
    }

    /// Checks the invariants of an ended task. Returns the task's journal.
    pub async fn checked_journal(&self, task: TaskId) -> Journal {
        let journal = self.settled(task).await;
        assert!(journal.row.status.is_terminal(), "{:#?}", journal.items);
        assert_eq!(
            (journal.row.busy, journal.row.open_requests),
            (0, 0),
            "{:#?}",
            journal.items
        );
        check_ended(&journal.items);
        journal
    }

    pub fn executions(&self) -> BTreeMap<String, usize> {
        let mut counted = BTreeMap::new();
        for call in self.harness.tool.ledger() {
            *counted
                .entry(call.header("holdpoint-task-id").to_owned())
                .or_default() += 1;
        }
        counted
    }

    /// Checks that the second replica reads exactly one decision of the request: this action by
    /// this person.
    pub async fn decided_by(&self, request: RequestId, name: &str, action: Action) {
        let row = self.other.request(request).await.unwrap().unwrap();
        let [(_, known)] = &row.answers[..] else {
            panic!("one decision is stored: {:?}", row.answers)
        };
        assert_eq!((known.by.as_str(), known.action), (name, action));
    }
}

pub fn finance(name: &str) -> Caller {
    Caller {
        groups: vec!["finance".to_owned()],
        ..person(name)
    }
}

/// Returns the reason why a request was closed without a decision. Returns `None` if the request
/// was decided or is open.
pub fn closed(journal: &Journal, request: RequestId) -> Option<CloseReason> {
    journal.items.iter().find_map(|item| {
        let Fact::RequestClosed {
            request_id, reason, ..
        } = &item.fact
        else {
            return None;
        };
        (*request_id == request).then_some(*reason)
    })
}

pub fn place(journal: &Journal, which: impl Fn(&Fact) -> bool) -> Option<usize> {
    journal.items.iter().position(|item| which(&item.fact))
}
