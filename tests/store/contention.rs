//! Tests writers that change the same rows at the same time, also beside claims, renewals and
//! releases. There is no deadlock, no gap in the event numbers and no partial change.

use holdpoint::store::{CommitError, Store};
use holdpoint::task::change::{Counters, Guard, TaskChange};
use holdpoint::task::id::TaskId;
use macro_rules_attribute::apply;

use super::store_fixture::{
    LEASE, StoreFixture, change, child_task, claim, fresh, said, store_tests,
};

/// Makes three tests of a function: those of `both`, and a test on Postgres with two writers. The
/// default number of writers depends on the machine.
macro_rules! every_number_of_writers {
    (async fn $name:ident($fixture:ident: StoreFixture $(,)?) $body:block) => {
        async fn $name($fixture: StoreFixture) $body

        store_tests! {
            $name:
            on_sqlite(StoreFixture::sqlite().await)
            on_postgres(StoreFixture::postgres().await)
            with_two_writers(StoreFixture::with_writers(2).await)
        }
    };
}

/// Submits one commit per round, based on freshly read versions. Each commit adds two items and a
/// model call to every child of one tree, and counts these model calls on the root. Returns the
/// number of commits that were written.
async fn write_on(
    store: Store,
    trees: Vec<(TaskId, Vec<TaskId>)>,
    rounds: usize,
    salt: usize,
) -> usize {
    let mut written = 0;
    for round in 0..rounds {
        let (root, children) = &trees[(salt * 7 + round * 3) % trees.len()];
        let mut tasks = Vec::new();
        for child in children {
            let row = store.task(*child).await.unwrap().unwrap();
            tasks.push(TaskChange {
                facts: vec![said("one"), said("two")],
                counters: Counters {
                    model_calls: 1,
                    ..Counters::default()
                },
                ..TaskChange::empty(*child, Guard::Version(row.version), row.last_seq)
            });
        }
        if salt.is_multiple_of(2) {
            tasks.reverse();
        }
        let counters = Counters {
            model_calls: i32::try_from(children.len()).unwrap(),
            ..Counters::default()
        };
        tasks.push(TaskChange {
            counters,
            ..TaskChange::empty(*root, Guard::Any, 0)
        });
        match store.commit(change(*root, tasks)).await {
            Ok(_) => written += 1,
            Err(error) => assert_eq!(error, CommitError::Stale),
        }
    }
    written
}

/// Claims up to four tasks, renews their leases and releases them, 20 times. Returns the number of
/// leases that were released.
async fn lease_on(store: Store, owner: &'static str) -> usize {
    let mut released = 0;
    for _ in 0..20 {
        let tasks = claim(&store, owner, 4).await;
        store.renew(owner, LEASE, &tasks).await.unwrap();
        released += store.release(owner, &tasks).await.unwrap().len();
    }
    released
}

#[apply(every_number_of_writers)]
async fn contended_batches_leave_no_gap_no_partial_change_and_no_deadlock(fixture: StoreFixture) {
    let mut trees = Vec::new();
    // A claim serves the users by turns, so it does not take their tasks in the order of their ids.
    for user in ["alice", "bob", "alice", "bob", "alice", "bob"] {
        let root = fixture.task_of("acme", user).await;
        let children: Vec<TaskId> = (0..3).map(|_| TaskId(fresh())).collect();
        for child in &children {
            fixture.commit(root, vec![child_task(*child, root)]).await;
        }
        trees.push((root, children));
    }
    // On Postgres the second replica also writes. It has a queue of commits of its own.
    let other = if fixture.is_postgres() {
        Store::open(&fixture.settings, fixture.clock.clone())
            .await
            .unwrap()
    } else {
        fixture.store.clone()
    };
    let mut writers = tokio::task::JoinSet::new();
    for salt in 0..16_usize {
        let store = if salt.is_multiple_of(2) {
            fixture.store.clone()
        } else {
            other.clone()
        };
        writers.spawn(write_on(store, trees.clone(), 20, salt));
    }
    let mut workers = tokio::task::JoinSet::new();
    workers.spawn(lease_on(fixture.store.clone(), "me"));
    workers.spawn(lease_on(other.clone(), "other"));
    let written: usize = writers.join_all().await.into_iter().sum();
    let released: usize = workers.join_all().await.into_iter().sum();
    assert!(
        written >= 6 && released >= 6,
        "{written} commits, {released} released leases"
    );

    for (root, children) in &trees {
        let gaps = fixture
                .number("select count(*) from (select root_task_id from agent_task_item group by root_task_id
                    having max(event_number) <> count(*) or min(event_number) <> 1) as gaps")
                .await;
        assert_eq!(gaps, 0, "the numbers of each tree's events are 1, 2, 3 …");
        let row = fixture.row(*root).await;
        let mut calls = 0;
        for child in children {
            let journal = fixture.store.journal(*child).await.unwrap().unwrap();
            let items = i64::try_from(journal.items.len()).unwrap();
            assert_eq!(items, 2 + 2 * journal.row.model_calls, "no partial change");
            assert_eq!(journal.row.last_seq, items);
            calls += journal.row.model_calls;
        }
        assert_eq!(
            row.model_calls, calls,
            "the root counted what its children did"
        );
    }
    if fixture.is_postgres() {
        // A Postgres backend reports its number of deadlocks when it ends.
        fixture.store.close().await;
        other.close().await;
        let counted =
            "select deadlocks + 0 from pg_stat_database where datname = current_database()";
        assert_eq!(
            fixture.number(counted).await,
            0,
            "no deadlock, not even one that was retried"
        );
    }
}

#[apply(every_number_of_writers)]
async fn independent_changes_of_many_trees_all_succeed_at_once(fixture: StoreFixture) {
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let store = fixture.store.clone();
        writers.spawn(async move {
            let id = TaskId(fresh());
            store
                .commit(change(
                    id,
                    vec![super::store_fixture::new_task(id, "acme", "alice")],
                ))
                .await
        });
    }
    assert!(writers.join_all().await.iter().all(Result::is_ok));
}

#[apply(every_number_of_writers)]
async fn changes_of_one_root_wait_for_each_other_and_keep_their_order(fixture: StoreFixture) {
    let id = fixture.task().await;
    let row = fixture.row(id).await;
    let mut commits = Vec::new();
    for number in 0..20 {
        let guard = Guard::Version(row.version + number);
        let next = TaskChange {
            facts: vec![said(&number.to_string())],
            ..TaskChange::empty(id, guard, row.last_seq + number)
        };
        commits.push(fixture.store.commit(change(id, vec![next])));
    }
    // The commits are submitted together, in order. Each is fenced by the version that the
    // previous one writes.
    let results = futures_util::future::join_all(commits).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}
