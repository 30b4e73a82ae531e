//! Tests commits that change several tasks of one tree. Such a commit is written as a whole or not
//! at all. It also changes the counters of the tasks' ancestors.

use std::collections::BTreeSet;

use holdpoint::store::{CommitError, Store};
use holdpoint::task::change::{Counters, Guard, LeaseChange, TaskChange};
use holdpoint::task::credential::SealedCredential;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{Fact, Usage};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::store_fixture::{
    StoreFixture, both, change, child_task, finance, fresh, request_spec, said, status,
};
use super::tree_reads::{BUSY, DONE, counted, fenced, grown, order, read, starting};

fn sealed() -> SealedCredential {
    let (key_id, text) = ("k1".to_owned(), "sealed".to_owned());
    SealedCredential {
        name: "jira".to_owned(),
        request_id: RequestId(fresh()),
        key_id,
        text,
        expires_in: None,
    }
}

#[apply(both)]
async fn three_children_start_in_one_commit_and_events_follow_the_order_of_its_tasks(
    fixture: StoreFixture,
) {
    let grown = grown(&fixture).await;
    let leaf = grown.leaf(4);
    let before = read(&fixture, grown.root).await;
    // The order of the children differs from the order of their ids.
    let mut children: Vec<TaskId> = (0..3).map(|_| TaskId(fresh())).collect();
    children.reverse();
    let mut tasks = vec![starting(&fixture, leaf, &children).await];
    tasks.extend(children.iter().map(|child| child_task(*child, leaf)));
    let above = grown.above(leaf);
    for (number, above) in above.iter().enumerate() {
        let facts = if number == 1 {
            Vec::new()
        } else {
            vec![status(TaskStatus::Running)]
        };
        tasks.push(TaskChange {
            facts,
            counters: tasks[0].counters,
            ..fixture.next(*above).await
        });
    }
    let at = fixture.commit(grown.root, tasks).await.at;
    let after = read(&fixture, grown.root).await;
    let seq = |task: TaskId| {
        before
            .rows
            .iter()
            .find(|row| row.task_id == task)
            .unwrap()
            .last_seq
            + 1
    };
    let mut expected: Vec<_> = (0..3).map(|number| (leaf, seq(leaf) + number)).collect();
    expected.extend(children.iter().flat_map(|child| [(*child, 1), (*child, 2)]));
    expected.extend([above[0], above[2]].map(|above| (above, seq(above))));
    assert_eq!(order(&after, before.last_event), expected);
    assert!(
        after
            .items
            .iter()
            .filter(|item| item.event > before.last_event)
            .all(|item| item.item.at == at)
    );
    assert_eq!(after.rows.len(), 43);
    assert_eq!(after.last_event, before.last_event + 11);
    for task in above.iter().chain([&leaf]) {
        let then = before.rows.iter().find(|row| row.task_id == *task).unwrap();
        let now = after.rows.iter().find(|row| row.task_id == *task).unwrap();
        assert_eq!((now.busy, now.version), (then.busy + 3, then.version + 1));
    }
    for child in children {
        let row = fixture.row(child).await;
        assert_eq!(
            (row.root_task_id, row.parent.unwrap().0, row.version),
            (grown.root, leaf, 1)
        );
    }
}

#[apply(both)]
async fn ancestor_is_counted_and_fenced_only_where_the_change_says_so(fixture: StoreFixture) {
    let grown = grown(&fixture).await;
    let leaf = grown.leaf(26);
    let before = read(&fixture, grown.root).await;
    let usage = Usage {
        prompt_tokens: 5,
        completion_tokens: 2,
        total_tokens: 7,
    };
    let counters = Counters {
        busy: -1,
        open_requests: 2,
        usage,
        model_calls: 3,
    };
    for fence in [true, false] {
        let mut tasks = vec![TaskChange {
            facts: vec![said("x")],
            counters,
            ..fixture.next(leaf).await
        }];
        for above in grown.above(leaf) {
            let row = fixture.row(above).await;
            tasks.push(if fence {
                fenced(&row, counters)
            } else {
                counted(above, counters)
            });
        }
        // The leaf is the only task of its subtree, so its `busy` is 1. Only one of the two rounds
        // can subtract this 1.
        tasks[0].counters.busy = if fence { -1 } else { 0 };
        fixture.commit(grown.root, tasks).await;
    }
    let after = read(&fixture, grown.root).await;
    let above = grown.above(leaf);
    for (then, now) in before.rows.iter().zip(&after.rows) {
        if now.task_id == leaf {
            continue;
        }
        let mut expected = then.clone();
        if above.contains(&now.task_id) {
            expected.version += 1;
            expected.busy -= 2;
            expected.open_requests += 4;
            expected.usage = Usage {
                prompt_tokens: 10,
                completion_tokens: 4,
                total_tokens: 14,
            };
            expected.model_calls += 6;
        }
        if now.task_id == grown.root {
            expected.next_event += 2;
        }
        assert_eq!(*now, expected);
    }
}

#[apply(both)]
async fn single_stale_ancestor_refuses_the_whole_change(fixture: StoreFixture) {
    let grown = grown(&fixture).await;
    let leaf = grown.leaf(13);
    let before = read(&fixture, grown.root).await;
    let tables = [
        "intervention_request",
        "request_approver",
        "credential",
        "agent_task",
        "agent_task_item",
    ];
    let count = async || {
        let mut counts = Vec::new();
        for table in tables {
            counts.push(fixture.count(table).await);
        }
        counts
    };
    let counts = count().await;
    let counters = Counters {
        open_requests: 1,
        model_calls: 1,
        ..BUSY
    };
    let child = TaskId(fresh());
    let mut tasks = vec![TaskChange {
        counters,
        credentials: vec![sealed()],
        ..fixture.next(leaf).await
    }];
    tasks[0].facts = vec![Fact::InterventionRequested(request_spec(
        RequestKind::Approval,
        finance(1),
        1,
    ))];
    tasks.push(child_task(child, leaf));
    for above in grown.above(leaf) {
        tasks.push(TaskChange {
            counters,
            ..fixture.next(above).await
        });
    }
    for stale in 2..tasks.len() {
        for wrong in [
            TaskChange {
                guard: Guard::Version(99),
                ..tasks[stale].clone()
            },
            TaskChange {
                last_seq: 99,
                ..tasks[stale].clone()
            },
            TaskChange {
                task_id: TaskId(fresh()),
                ..counted(grown.root, counters)
            },
        ] {
            let mut tasks = tasks.clone();
            tasks[stale] = wrong;
            assert_eq!(
                fixture.store.commit(change(grown.root, tasks)).await,
                Err(CommitError::Stale)
            );
        }
    }
    let after = read(&fixture, grown.root).await;
    assert_eq!(
        (&after.rows, &after.items, count().await),
        (&before.rows, &before.items, counts)
    );
    assert!(
        fixture
            .store
            .pending(grown.root, grown.root)
            .await
            .unwrap()
            .is_empty()
    );
    fixture.commit(grown.root, tasks).await;
}

#[apply(both)]
async fn second_child_end_at_one_root_version_is_stale(fixture: StoreFixture) {
    let other = if fixture.is_postgres() {
        Store::open(&fixture.settings, fixture.clock.clone())
            .await
            .unwrap()
    } else {
        fixture.store.clone()
    };
    for _ in 0..20 {
        let root = fixture.task().await;
        let children = [TaskId(fresh()), TaskId(fresh())];
        let mut tasks = vec![starting(&fixture, root, &children).await];
        tasks.extend(children.map(|child| child_task(child, root)));
        fixture.commit(root, tasks).await;
        let before = fixture.row(root).await;
        let mut ends = Vec::new();
        for child in children {
            let facts = vec![status(TaskStatus::Completed)];
            let park = LeaseChange::Park { wake_in: None };
            let end = TaskChange {
                facts,
                counters: DONE,
                lease: park,
                ..fixture.next(child).await
            };
            ends.push(change(root, vec![end, fenced(&before, DONE)]));
        }
        let (one, two) = (ends.remove(0), ends.remove(0));
        let (one, two) = tokio::join!(fixture.store.commit(one), other.commit(two));
        let (taken, refused) = if one.is_ok() {
            (children[0], two)
        } else {
            (children[1], one.and(two))
        };
        assert_eq!(refused, Err(CommitError::Stale));
        let tree = read(&fixture, root).await;
        for row in &tree.rows {
            let expected = if row.task_id == root {
                (before.busy - 1, before.version + 1)
            } else if row.task_id == taken {
                (0, 2)
            } else {
                (1, 1)
            };
            assert_eq!((row.busy, row.version), expected);
        }
        assert_eq!(order(&tree, before.next_event), [(taken, 3)]);
    }
    other.close().await;
}

#[apply(both)]
async fn subtree_ends_in_one_commit_with_its_credentials(fixture: StoreFixture) {
    let grown = grown(&fixture).await;
    let all: Vec<TaskId> = grown.all().collect();
    let mut gives = Vec::new();
    for task in &all {
        gives.push(TaskChange {
            credentials: vec![sealed()],
            ..fixture.next(*task).await
        });
    }
    fixture.commit(grown.root, gives).await;
    let before = read(&fixture, grown.root).await;
    assert_eq!(fixture.store.credentials(&all).await.unwrap().len(), 40);
    // The deepest task comes first.
    let mut ending = grown.below(grown.levels[1][1]);
    ending.reverse();
    let mut tasks = Vec::new();
    for task in &ending {
        let row = fixture.row(*task).await;
        let counters = Counters {
            busy: -row.busy,
            ..BUSY
        };
        tasks.push(TaskChange {
            facts: vec![status(TaskStatus::Canceled)],
            ..fenced(&row, counters)
        });
    }
    tasks.push(TaskChange {
        counters: Counters { busy: -13, ..BUSY },
        ..fixture.next(grown.root).await
    });
    fixture.commit(grown.root, tasks).await;
    let after = read(&fixture, grown.root).await;
    let seq = |task: &TaskId| {
        before
            .rows
            .iter()
            .find(|row| row.task_id == *task)
            .unwrap()
            .last_seq
            + 1
    };
    let expected: Vec<_> = ending.iter().map(|task| (*task, seq(task))).collect();
    assert_eq!(ending.len(), 13);
    assert_eq!(order(&after, before.last_event), expected);
    for row in &after.rows {
        let ended = ending.contains(&row.task_id);
        assert_eq!(row.status == TaskStatus::Canceled, ended);
        assert_eq!(row.busy == 0, ended);
    }
    let left: BTreeSet<TaskId> = fixture
        .store
        .credentials(&all)
        .await
        .unwrap()
        .into_iter()
        .map(|kept| kept.task_id)
        .collect();
    assert_eq!(
        left,
        all.iter()
            .copied()
            .filter(|task| !ending.contains(task))
            .collect()
    );
}

#[apply(both)]
async fn call_starts_one_task_even_where_nothing_else_fences_it(fixture: StoreFixture) {
    let root = fixture.task().await;
    let one = child_task(TaskId(fresh()), root);
    let two = TaskChange {
        task_id: TaskId(fresh()),
        ..one.clone()
    };
    let started = |child| change(root, vec![child, counted(root, BUSY)]);
    fixture.store.commit(started(one)).await.unwrap();
    assert!(fixture.store.commit(started(two)).await.is_err());
    assert_eq!(read(&fixture, root).await.rows.len(), 2);
}
