//! Tests that a tree of tasks is read as a whole and as of one moment.

mod damage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use holdpoint::store::{CommitError, Store, TaskFilter, TreeSnapshot};
use holdpoint::task::change::{Counters, Guard, LeaseChange, TaskChange, TaskRow};
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::item::{Fact, Usage};
use holdpoint::task::request::{RequestKind, RequestSpec};
use macro_rules_attribute::apply;

use super::store_fixture::{
    StoreFixture, both, change, child_task, finance, fresh, new_task, request_spec, said,
};

pub const BUSY: Counters = Counters {
    busy: 1,
    open_requests: 0,
    usage: Usage {
        prompt_tokens: 0,
        completion_tokens: 0,
        total_tokens: 0,
    },
    model_calls: 0,
};
pub const DONE: Counters = Counters { busy: -1, ..BUSY };
pub const CALLED: Counters = Counters {
    busy: 0,
    model_calls: 1,
    ..BUSY
};

/// A tree of four levels: a root, and three children of each task above the last level.
#[derive(Clone)]
pub struct StoredTree {
    pub root: TaskId,
    pub levels: Vec<Vec<TaskId>>,
    parents: BTreeMap<TaskId, TaskId>,
}

impl StoredTree {
    pub fn all(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.levels.iter().flatten().copied()
    }

    /// Returns the ancestors of a task, its parent first.
    pub fn above(&self, task: TaskId) -> Vec<TaskId> {
        std::iter::successors(self.parents.get(&task).copied(), |above| {
            self.parents.get(above).copied()
        })
        .collect()
    }

    /// Returns a task and its descendants, level by level.
    pub fn below(&self, task: TaskId) -> Vec<TaskId> {
        self.all()
            .filter(|other| *other == task || self.above(*other).contains(&task))
            .collect()
    }

    pub fn leaf(&self, number: usize) -> TaskId {
        self.levels[3][number]
    }
}

/// Grows a tree. Each commit adds the three children of one task.
pub async fn grown(fixture: &StoreFixture) -> StoredTree {
    let root = fixture.task().await;
    let mut tree = StoredTree {
        root,
        levels: vec![vec![root]],
        parents: BTreeMap::new(),
    };
    for level in 0..3 {
        let mut next = Vec::new();
        for parent in tree.levels[level].clone() {
            let children: Vec<TaskId> = (0..3).map(|_| TaskId(fresh())).collect();
            tree.parents
                .extend(children.iter().map(|child| (*child, parent)));
            let mut tasks = vec![starting(fixture, parent, &children).await];
            tasks.extend(children.iter().map(|child| child_task(*child, parent)));
            for above in tree.above(parent) {
                tasks.push(TaskChange {
                    counters: tasks[0].counters,
                    ..fixture.next(above).await
                });
            }
            fixture.commit(root, tasks).await;
            next.extend(children);
        }
        tree.levels.push(next);
    }
    tree
}

/// Returns the parent's change in the commit that starts these children.
pub async fn starting(fixture: &StoreFixture, parent: TaskId, children: &[TaskId]) -> TaskChange {
    let started = |child: &TaskId| Fact::SubAgentStarted {
        tool_call_id: CallId(fresh()),
        child_task_id: *child,
        agent: "analyst".to_owned(),
    };
    let busy = i32::try_from(children.len()).unwrap();
    TaskChange {
        facts: children.iter().map(started).collect(),
        counters: Counters { busy, ..BUSY },
        ..fixture.next(parent).await
    }
}

/// Returns a change of nothing but the counters of a task. The commit fails if the version of the
/// stored row is no longer the version of `row`.
pub fn fenced(row: &TaskRow, counters: Counters) -> TaskChange {
    TaskChange {
        guard: Guard::Version(row.version),
        last_seq: row.last_seq,
        ..counted(row.task_id, counters)
    }
}

/// Returns a change that sets only the counters of a task, whatever version the task has.
pub fn counted(task_id: TaskId, counters: Counters) -> TaskChange {
    TaskChange {
        counters,
        ..TaskChange::empty(task_id, Guard::Any, 0)
    }
}

pub async fn read(fixture: &StoreFixture, root: TaskId) -> TreeSnapshot {
    fixture.store.tree(root, 0).await.unwrap().unwrap()
}

/// Returns each item whose event comes after `after`, in the order of the snapshot. An item is
/// given as its task and its number in the task's journal.
pub fn order(tree: &TreeSnapshot, after: i64) -> Vec<(TaskId, i64)> {
    tree.items
        .iter()
        .filter(|item| item.event > after)
        .map(|item| (item.task_id, item.item.seq))
        .collect()
}

/// Asserts that the snapshot is consistent and holds exactly the items of the events after `after`.
/// Each commit to the tree must have added two items to one task, and counted one model call on
/// this task and on each of its ancestors.
pub fn agrees(grown: &StoredTree, tree: &TreeSnapshot, after: i64) {
    let events: Vec<i64> = tree.items.iter().map(|item| item.event).collect();
    assert_eq!(
        events,
        (after + 1..=tree.last_event).collect::<Vec<_>>(),
        "no event is missing and none is extra"
    );
    assert_eq!(
        tree.rows.iter().map(|row| row.last_seq).sum::<i64>(),
        tree.last_event
    );
    if after > 0 {
        return;
    }
    let of = |task: TaskId| {
        tree.items
            .iter()
            .filter(move |item| item.task_id == task)
            .map(|item| &item.item)
    };
    for row in &tree.rows {
        let seqs: Vec<i64> = of(row.task_id).map(|item| item.seq).collect();
        assert_eq!(seqs, (1..=row.last_seq).collect::<Vec<_>>());
        let below = grown.below(row.task_id).into_iter().flat_map(of);
        let called = below.filter(|item| item.fact == said("one")).count();
        assert_eq!(
            row.model_calls,
            i64::try_from(called).unwrap(),
            "the row counts what its items say"
        );
    }
}

/// Commits to one task after another until `commits` commits are stored. Each commit writes two
/// items into the task, and counts a model call on the task and on its ancestors.
pub async fn write_on(store: Store, grown: StoredTree, salt: usize, commits: usize) {
    let all: Vec<TaskId> = grown.all().collect();
    let (mut written, mut tried) = (0, salt * 11);
    while written < commits {
        tried += 7;
        let task = all[tried % all.len()];
        let row = store.task(task).await.unwrap().unwrap();
        let mut tasks = vec![TaskChange {
            facts: vec![said("one"), said("two")],
            ..fenced(&row, CALLED)
        }];
        for above in grown.above(task) {
            let row = store.task(above).await.unwrap().unwrap();
            tasks.push(if tried.is_multiple_of(2) {
                fenced(&row, CALLED)
            } else {
                counted(above, CALLED)
            });
        }
        match store.commit(change(grown.root, tasks)).await {
            Ok(_) => written += 1,
            Err(error) => assert_eq!(error, CommitError::Stale),
        }
    }
}

#[apply(both)]
async fn tree_is_read_whole_with_its_items_in_event_order(fixture: StoreFixture) {
    let (grown, other) = (grown(&fixture).await, grown(&fixture).await);
    let tree = read(&fixture, grown.root).await;
    let ids: Vec<TaskId> = tree.rows.iter().map(|row| row.task_id).collect();
    assert_eq!(
        ids,
        grown
            .all()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    );
    assert_eq!(ids.len(), 40);
    agrees(&grown, &tree, 0);
    for row in &tree.rows {
        let journal = fixture.store.journal(row.task_id).await.unwrap().unwrap();
        assert_eq!(journal.row, *row);
        let items = tree
            .items
            .iter()
            .filter(|item| item.task_id == row.task_id)
            .map(|item| item.item.clone());
        assert_eq!(items.collect::<Vec<_>>(), journal.items);
        assert_eq!(
            row.next_event,
            if row.task_id == grown.root {
                tree.last_event
            } else {
                0
            }
        );
        assert_eq!(
            usize::try_from(row.busy).unwrap(),
            grown.below(row.task_id).len()
        );
    }
    assert!(tree.items.iter().all(|item| item.item.at <= tree.now));
    assert_eq!(tree.history_uncertain_until, None);
    for after in [1, 70, tree.last_event, tree.last_event + 5] {
        let rest = fixture
            .store
            .tree(grown.root, after)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((&rest.rows, rest.last_event), (&tree.rows, tree.last_event));
        assert_eq!(
            rest.items,
            tree.items
                .iter()
                .filter(|item| item.event > after)
                .cloned()
                .collect::<Vec<_>>()
        );
    }
    for none in [grown.leaf(0), grown.levels[1][0], TaskId(fresh())] {
        assert!(
            fixture.store.tree(none, 0).await.unwrap().is_none(),
            "only roots have a tree"
        );
    }
    let filter = |roots| TaskFilter {
        tenant: "acme".to_owned(),
        limit: 99,
        roots,
        ..TaskFilter::default()
    };
    let of_both = fixture
        .store
        .tasks(&filter(vec![grown.root, other.root]))
        .await
        .unwrap()
        .rows;
    assert_eq!(of_both.len(), 80);
    let mut of_one = fixture
        .store
        .tasks(&filter(vec![grown.root]))
        .await
        .unwrap()
        .rows;
    of_one.reverse();
    assert_eq!(of_one, tree.rows);
}

#[apply(both)]
async fn task_is_parked_only_without_queueing_lease_or_wake_time(fixture: StoreFixture) {
    let root = fixture.task().await;
    let time = Duration::from_mins(1);
    let mut expected = BTreeMap::from([(root, false)]);
    for (lease, parked) in [
        (LeaseChange::Queue, false),
        (
            LeaseChange::Take {
                owner: "me".to_owned(),
                time,
            },
            false,
        ),
        (
            LeaseChange::Park {
                wake_in: Some(time),
            },
            false,
        ),
        (LeaseChange::Park { wake_in: None }, true),
    ] {
        let child = TaskId(fresh());
        let begins = TaskChange {
            lease: lease.clone(),
            ..child_task(child, root)
        };
        fixture.commit(root, vec![begins]).await;
        assert_eq!(fixture.row(child).await.parked, parked, "{lease:?}");
        let becomes = TaskChange {
            lease,
            ..fixture.next(child).await
        };
        fixture.commit(root, vec![becomes]).await;
        expected.insert(child, parked);
    }
    let tree = read(&fixture, root).await;
    assert_eq!(
        tree.rows
            .iter()
            .map(|row| (row.task_id, row.parked))
            .collect::<BTreeMap<_, _>>(),
        expected
    );
}

#[apply(both)]
async fn open_requests_of_every_subtree_are_found_in_the_order_they_were_asked(
    fixture: StoreFixture,
) {
    let (grown, other) = (grown(&fixture).await, grown(&fixture).await);
    let mut questions: Vec<(TaskId, RequestSpec)> = Vec::new();
    for tree in [&other, &grown] {
        questions = tree
            .all()
            .map(|task| (task, request_spec(RequestKind::Approval, finance(1), 1)))
            .collect();
        // This order differs from the order of the task ids and from the order of the request
        // ids.
        questions.sort_by_key(|(task, _)| task.0.as_u128().swap_bytes());
        let mut asks = Vec::new();
        for (task, asked) in &questions {
            let facts = vec![Fact::InterventionRequested(asked.clone())];
            let open_requests = i32::try_from(tree.below(*task).len()).unwrap();
            asks.push(TaskChange {
                facts,
                counters: Counters {
                    busy: 0,
                    open_requests,
                    ..BUSY
                },
                ..fixture.next(*task).await
            });
        }
        fixture.commit(tree.root, asks).await;
    }
    for task in grown.all() {
        let below = grown.below(task);
        let expected: Vec<_> = questions
            .iter()
            .filter(|(task, _)| below.contains(task))
            .map(|(task, asked)| (*task, asked.clone()))
            .collect();
        let found = fixture.store.pending(grown.root, task).await.unwrap();
        assert!(found.iter().all(|found| found.root_task_id == grown.root));
        assert_eq!(
            found
                .into_iter()
                .map(|found| (found.task_id, found.spec))
                .collect::<Vec<_>>(),
            expected
        );
        assert_eq!(
            usize::try_from(fixture.row(task).await.open_requests).unwrap(),
            expected.len()
        );
    }
    assert!(
        fixture
            .store
            .pending(other.root, grown.leaf(0))
            .await
            .unwrap()
            .is_empty(),
        "of another tree"
    );
}

#[apply(both)]
async fn rows_and_items_agree_while_four_write_to_the_tree(fixture: StoreFixture) {
    let grown = grown(&fixture).await;
    // On Postgres, a second store writes to the same database, as another replica would. Its
    // commits go through a queue of its own.
    let other = if fixture.is_postgres() {
        Store::open(&fixture.settings, fixture.clock.clone())
            .await
            .unwrap()
    } else {
        fixture.store.clone()
    };
    let over = Arc::new(AtomicBool::new(false));
    let reads = [0; 2].map(|_| Arc::new(AtomicUsize::new(0)));
    let mut readers = tokio::task::JoinSet::new();
    for (salt, reads) in reads.iter().enumerate() {
        let (store, grown) = (fixture.store.clone(), grown.clone());
        let (over, reads) = (Arc::clone(&over), Arc::clone(reads));
        readers.spawn(async move {
            let mut after = 0;
            while !over.load(Ordering::Relaxed) {
                let tree = store.tree(grown.root, after).await.unwrap().unwrap();
                agrees(&grown, &tree, after);
                reads.fetch_add(1, Ordering::Relaxed);
                // The first reader reads the whole tree each time; the other reader reads the
                // new items.
                after = if salt == 0 { 0 } else { tree.last_event };
            }
        });
    }
    let have_read = || reads.iter().all(|reads| reads.load(Ordering::Relaxed) > 10);
    // The writers go on until each reader has read often enough, at most for ten rounds.
    let mut rounds = 0;
    while rounds == 0 || (rounds < 10 && !have_read()) {
        let mut writers = tokio::task::JoinSet::new();
        for salt in 0..4_usize {
            let store = if salt.is_multiple_of(2) {
                fixture.store.clone()
            } else {
                other.clone()
            };
            writers.spawn(write_on(store, grown.clone(), salt, 80));
        }
        writers.join_all().await;
        rounds += 1;
    }
    over.store(true, Ordering::Relaxed);
    readers.join_all().await;
    assert!(have_read(), "{reads:?}");
    let tree = read(&fixture, grown.root).await;
    agrees(&grown, &tree, 0);
    assert_eq!(tree.rows[0].model_calls, rounds * 4 * 80);
    other.close().await;
}

#[apply(both)]
async fn new_root_has_a_tree_of_its_own(fixture: StoreFixture) {
    let id = TaskId(fresh());
    fixture.write(new_task(id, "acme", "alice")).await.unwrap();
    let tree = read(&fixture, id).await;
    assert_eq!(
        (tree.rows.len(), tree.last_event, order(&tree, 0)),
        (1, 2, vec![(id, 1), (id, 2)])
    );
}
