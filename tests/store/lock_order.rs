//! Tests statements that write several rows while another transaction holds a lock on one of them.
//! The statements lock the rows in the order of their ids. They read counters after they have the
//! locks, and judge times by the database's clock. The tests run on Postgres, because `SQLite` has
//! one writer at a time.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdpoint::store::Store;
use holdpoint::task::change::Counters;
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{CloseReason, Fact};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use holdpoint::task::verdict::Terms;
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};
use uuid::Uuid;

use super::busy_writer::commit_while_busy;
use super::store_fixture::{
    LEASE, ManualClock, Rows, StoreFixture, TASKS, change, child_task, claim, finance, fresh,
    request_spec, said, status,
};
use super::tree_reads::counted;

const REQUESTS: Rows = ("intervention_request", "request_id");

/// A connection that looks at the locks of the other connections.
struct Observer(PgConnection);

impl Observer {
    async fn of(fixture: &StoreFixture) -> Self {
        Self(fixture.connection().await)
    }

    /// Returns the statements that wait for a lock, each as its process and the time of its start.
    async fn waiting(&mut self) -> Vec<String> {
        let waiting = "select concat(pid, ' ', query_start) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' order by pid";
        let rows = self.0.fetch_all(waiting).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn number(&mut self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        self.0.fetch_one(sql).await.unwrap().get(0)
    }
}

/// Asserts that `write` locks rows in order: while it waits for the middle row, it holds all rows
/// before that row and no row after it.
async fn locks_in_order(
    fixture: &StoreFixture,
    rows: Rows,
    ids: &[Uuid],
    write: impl Future<Output = ()>,
) {
    let (table, key) = rows;
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    let middle = sorted.len() / 2;
    let mut observer = Observer::of(fixture).await;
    let mut other = fixture.holding(rows, sorted[middle]).await;
    let looks = async {
        let free = format!(
            "select count(*) from (select {key} from {table} for update skip locked) as free"
        );
        let after = sorted[middle + 1..]
            .iter()
            .map(|id| format!("'{id}'"))
            .collect::<Vec<_>>()
            .join(", ");
        let named = format!(
            "select count(*) from (select {key} from {table} where {key} in ({after}) for update skip locked) as free"
        );
        // A statement that waits too long for a lock fails, and the store sends it again. Between
        // the two attempts, it holds no lock. So the two counts are valid only if the same attempt
        // waits before the counts are read and still waits afterwards.
        let counts = loop {
            let before = observer.waiting().await;
            if before.is_empty() {
                continue;
            }
            let counts = (observer.number(&free).await, observer.number(&named).await);
            if observer.waiting().await == before {
                break counts;
            }
        };
        other.execute("rollback").await.unwrap();
        counts
    };
    let ((), (all, after)) = tokio::join!(write, looks);
    let expected = i64::try_from(sorted.len() - middle - 1).unwrap();
    assert_eq!(
        (all, after),
        (expected, expected),
        "the rows before are held, the rows after are not"
    );
}

/// Creates children of a task, in the order of their ids.
async fn children_of(fixture: &StoreFixture, root: TaskId, count: usize) -> Vec<TaskId> {
    let children: Vec<TaskId> = (0..count).map(|_| TaskId(fresh())).collect();
    for child in &children {
        let created = change(root, vec![child_task(*child, root)]);
        fixture.store.commit(created).await.unwrap();
    }
    children
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_locks_its_tasks_in_the_order_of_their_ids() {
    let fixture = StoreFixture::postgres().await;
    let root = fixture.task().await;
    let mut children = children_of(&fixture, root, 8).await;
    children.reverse();
    let counters = Counters {
        model_calls: 1,
        ..Counters::default()
    };
    let tasks: Vec<_> = children
        .iter()
        .chain([&root])
        .map(|task| counted(*task, counters))
        .collect();
    let ids: Vec<_> = tasks.iter().map(|task| task.task_id.0).collect();
    let write = async { assert!(fixture.store.commit(change(root, tasks)).await.is_ok()) };
    locks_in_order(&fixture, TASKS, &ids, write).await;
    assert_eq!(
        fixture
            .number("select sum(model_calls)::bigint from agent_task")
            .await,
        9
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_locks_its_requests_in_the_order_of_their_ids() {
    let fixture = StoreFixture::postgres().await;
    let root = fixture.task().await;
    let mut children = children_of(&fixture, root, 9).await;
    let (mut requests, mut closing) = (Vec::new(), Vec::new());
    for child in &children {
        let asked = request_spec(RequestKind::Approval, finance(1), 1);
        let mut asks = fixture.next(*child).await;
        asks.facts = vec![Fact::InterventionRequested(asked.clone())];
        asks.counters.open_requests = 1;
        fixture.commit(root, vec![asks]).await;
        requests.push(asked.request_id);
    }
    children.reverse();
    requests.reverse();
    for (child, request_id) in children.iter().zip(&requests) {
        let mut closes = fixture.next(*child).await;
        let (request_id, status) = (*request_id, RequestStatus::Withdrawn);
        closes.facts = vec![Fact::RequestClosed {
            request_id,
            status,
            reason: CloseReason::Canceled,
        }];
        closes.counters.open_requests = -1;
        closing.push(closes);
    }
    let ids: Vec<_> = requests.iter().map(|request| request.0).collect();
    let write = async { assert!(fixture.store.commit(change(root, closing)).await.is_ok()) };
    locks_in_order(&fixture, REQUESTS, &ids, write).await;
    assert_eq!(
        fixture
            .count("intervention_request where status = 'withdrawn'")
            .await,
        9
    );
}

/// One statement writes the batch. When it updates a task's row, it locks the row and reads the
/// clock. This clock reading is the time of the task's change. So the times of the changes show the
/// order of the locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_of_changes_of_single_tasks_locks_the_tasks_in_the_order_of_their_ids() {
    let fixture = StoreFixture::with_writers(1).await;
    let mut changes = Vec::new();
    for _ in 0..9 {
        let task = fixture.task().await;
        let mut next = fixture.next(task).await;
        next.facts = vec![said("more")];
        changes.push(change(task, vec![next]));
    }
    changes.sort_unstable_by_key(|change| Reverse(change.root));
    let (size, written) = commit_while_busy(&fixture.store, changes).await;
    assert_eq!(size, 9);
    let times: Vec<_> = written
        .into_iter()
        .rev()
        .map(|written| written.unwrap().at)
        .collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_and_released_in_the_order_of_their_ids() {
    let fixture = StoreFixture::postgres().await;
    for _ in 0..9 {
        fixture.task().await;
    }
    let mut tasks = claim(&fixture.store, "me", 9).await;
    tasks.sort_unstable();
    tasks.reverse();
    let ids: Vec<_> = tasks.iter().map(|task| task.0).collect();
    let renews = async {
        assert_eq!(
            fixture
                .store
                .renew("me", LEASE, &tasks)
                .await
                .unwrap()
                .len(),
            9
        );
    };
    locks_in_order(&fixture, TASKS, &ids, renews).await;
    let releases =
        async { assert_eq!(fixture.store.release("me", &tasks).await.unwrap().len(), 9) };
    locks_in_order(&fixture, TASKS, &ids, releases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_changes_of_two_children_are_both_counted_on_their_root() {
    let fixture = StoreFixture::postgres().await;
    let replica = Store::open(&fixture.settings, fixture.clock.clone())
        .await
        .unwrap();
    let root = fixture.task().await;
    let (one, other) = (TaskId(fresh()), TaskId(fresh()));
    for child in [one, other] {
        let counters = Counters {
            busy: 1,
            ..Counters::default()
        };
        fixture
            .commit(root, vec![child_task(child, root), counted(root, counters)])
            .await;
    }
    let mut holder = fixture.holding(TASKS, root.0).await;
    let mut changes = Vec::new();
    for child in [one, other] {
        let mut pauses = fixture.next(child).await;
        let asked = request_spec(RequestKind::Approval, Terms::default(), 1);
        pauses.facts = vec![
            Fact::InterventionRequested(asked),
            status(TaskStatus::Paused),
        ];
        pauses.counters = Counters {
            busy: -1,
            open_requests: 1,
            model_calls: 1,
            ..Counters::default()
        };
        let counters = pauses.counters;
        changes.push(change(root, vec![pauses, counted(root, counters)]));
    }
    let second = changes.pop().unwrap();
    let lets_go = async {
        fixture.until_locked_out(2).await;
        holder.execute("rollback").await.unwrap();
    };
    let (here, there, ()) = tokio::join!(
        fixture.store.commit(changes.remove(0)),
        replica.commit(second),
        lets_go
    );
    assert!(here.is_ok() && there.is_ok(), "{here:?} {there:?}");
    let row = fixture.row(root).await;
    assert_eq!((row.busy, row.open_requests, row.model_calls), (1, 2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_with_a_fast_clock_ends_no_lease_no_deadline_and_no_key() {
    let fixture = StoreFixture::postgres().await;
    let ahead = i64::try_from(Duration::from_hours(24 * 365 * 100).as_micros()).unwrap();
    let clock = Arc::new(ManualClock::at(1_700_000_000_000_000 + ahead));
    let replica = Store::open(&fixture.settings, clock).await.unwrap();
    let leased = fixture.task().await;
    assert_eq!(claim(&fixture.store, "me", 1).await, [leased]);
    let (_, asked) = fixture.paused(finance(1)).await;
    assert!(claim(&replica, "other", 9).await.is_empty());
    assert_eq!(
        replica.renew("me", LEASE, &[leased]).await.unwrap(),
        [leased]
    );
    assert!(replica.overdue(0, 9).await.unwrap().is_empty());
    assert!(
        !replica
            .request(asked.request_id)
            .await
            .unwrap()
            .unwrap()
            .expired
    );
    assert!(!replica.remove_spent_keys().await.unwrap());
    // The end of the renewed lease is set by the database's clock, not by the replica's clock.
    fixture.forward(LEASE + Duration::from_secs(1));
    assert_eq!(claim(&fixture.store, "other", 9).await, [leased]);
}

/// The test commits three changes, because the store writes changes in three ways: by an update
/// that locks the rows itself, by the general statement, and by an update of rows that an earlier
/// part of the same statement has locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_that_waits_for_another_write_of_its_task_has_a_time_after_that_write() {
    let fixture = StoreFixture::postgres().await;
    let mut changes = Vec::new();
    for with_child in [false, true] {
        let id = fixture.task().await;
        let mut next = fixture.next(id).await;
        next.facts = vec![said("more")];
        let child = with_child.then(|| child_task(TaskId(fresh()), id));
        changes.push((id, [next].into_iter().chain(child).collect()));
    }
    let (paused, asked) = fixture.paused(finance(1)).await;
    let decide = fixture.deciding(paused, &asked, "bob", Action::Approve);
    changes.push((paused, vec![decide.await]));
    for (id, tasks) in changes {
        let mut other = fixture.holding(TASKS, id.0).await;
        let renews =
            format!("update agent_task set lease_until = lease_until where task_id = '{id}'");
        other.execute(AssertSqlSafe(renews)).await.unwrap();
        let lets_go = async {
            fixture.until_locked_out(1).await;
            let before = fixture.store.now().await.unwrap();
            other.execute("commit").await.unwrap();
            before
        };
        let (written, before) = tokio::join!(fixture.store.commit(change(id, tasks)), lets_go);
        let at = written.unwrap().at;
        assert!(at > before, "{at:?} {before:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_waits_for_no_row_locked_by_another_writer() {
    let fixture = StoreFixture::postgres().await;
    let (held, free) = (fixture.task().await, fixture.task().await);
    let mut other = fixture.holding(TASKS, held.0).await;
    assert_eq!(
        claim(&fixture.store, "me", 9).await,
        [free],
        "the other task is being driven"
    );
    other.execute("rollback").await.unwrap();
    assert_eq!(claim(&fixture.store, "me", 9).await, [held]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_task_holds_up_only_its_own_root() {
    let fixture = StoreFixture::postgres().await;
    let (held, free) = (fixture.task().await, fixture.task().await);
    // The change of the task `held` waits for its lock, up to two seconds. If the commits of the
    // task `free` take less time than this limit, they did not wait for the lock.
    let limit = Duration::from_millis(1900);
    let mut fastest = Duration::MAX;
    // A busy machine may delay the commits of a round, so one fast round is enough. If commits
    // waited for the lock, they would be slow in every round.
    for _ in 0..5 {
        let mut other = fixture.holding(TASKS, held.0).await;
        let mut next = fixture.next(held).await;
        next.facts = vec![said("one")];
        let stuck = async { fixture.store.commit(change(held, vec![next])).await.is_ok() };
        let others = async {
            fixture.until_locked_out(1).await;
            let began = Instant::now();
            for text in ["one", "two", "three"] {
                let mut next = fixture.next(free).await;
                next.facts = vec![said(text)];
                let written = fixture.store.commit(change(free, vec![next])).await;
                assert!(written.is_ok(), "{written:?}");
            }
            let time = began.elapsed();
            other.execute("rollback").await.unwrap();
            time
        };
        let (written, time) = tokio::join!(stuck, others);
        // A change that has waited too long for the lock gives up, so its round does not count.
        if !written {
            continue;
        }
        fastest = fastest.min(time);
        if fastest < limit {
            break;
        }
    }
    assert!(fastest < limit, "{fastest:?}");
}
