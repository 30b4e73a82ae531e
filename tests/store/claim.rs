//! Tests leases, which determine the process that drives a task.

mod fairness;

use std::time::Duration;

use holdpoint::store::{ClaimedTask, CommitError, Drive, Store, UpgradeCursor};
use holdpoint::task::change::LeaseChange;
use holdpoint::task::id::TaskId;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;

use super::store_fixture::{LEASE, StoreFixture, both, claim, fresh, new_task, said};

async fn lease(fixture: &StoreFixture, id: TaskId, lease: LeaseChange) {
    let mut change = fixture.next(id).await;
    change.lease = lease;
    fixture.write(change).await.unwrap();
}

/// Returns a change that gives the lease to the process `owner`.
fn held_by(owner: &str) -> LeaseChange {
    LeaseChange::Take {
        owner: owner.to_owned(),
        time: LEASE,
    }
}

/// Returns the number of out-of-date rows of `claimable_task`: the row says that its task is due,
/// but the task has a lease. A claim reads such a row without taking the task.
async fn stale(fixture: &StoreFixture) -> i64 {
    if !fixture.is_postgres() {
        return 0;
    }
    let now = fixture.store.now().await.unwrap().0;
    fixture
        .number(&format!(
            "select count(*) from claimable_task c join agent_task t on t.task_id = c.task_id
              where t.phase = 'leased' and c.due_at <= {now}"
        ))
        .await
}

#[apply(both)]
async fn claim_takes_queued_tasks_and_fences_off_the_old_driver(fixture: StoreFixture) {
    let id = fixture.task().await;
    let mut old = fixture.next(id).await;
    old.facts = vec![said("from the old driver")];
    assert_eq!(claim(&fixture.store, "me", 10).await, [id]);
    let row = fixture.row(id).await;
    assert_eq!(
        (row.lease_owner.as_deref(), row.takeovers, row.version),
        (Some("me"), 0, 2)
    );
    assert!(row.lease_until.unwrap() > fixture.store.now().await.unwrap());
    assert_eq!(fixture.write(old).await, Err(CommitError::Stale));
    assert!(claim(&fixture.store, "other", 10).await.is_empty());
}

#[apply(both)]
async fn lease_that_runs_out_before_work_begins_is_taken_over_and_held_against_no_task(
    fixture: StoreFixture,
) {
    let id = fixture.task().await;
    for takeovers in 0..20 {
        assert_eq!(claim(&fixture.store, "me", 1).await, [id]);
        let row = fixture.row(id).await;
        assert_eq!((row.takeovers, row.fruitless), (takeovers, 0));
        fixture.forward(LEASE);
    }
}

#[apply(both)]
async fn second_lease_lost_after_work_began_puts_the_task_to_sleep_until_driven_alone(
    fixture: StoreFixture,
) {
    let id = fixture.task().await;
    let one = |drive, fruitless| {
        vec![ClaimedTask {
            task: id,
            drive,
            fruitless,
        }]
    };
    let claims = async |alone| fixture.store.claim("me", LEASE, 9, alone).await.unwrap();
    let fruitless = async || fixture.row(id).await.fruitless;
    assert_eq!(claims(true).await, one(Drive::Fresh, 0));
    for known in [0, 1] {
        assert!(fixture.store.set_begun("me", id, true).await.unwrap());
        assert_eq!(fruitless().await, known);
        fixture.forward(LEASE);
        if known == 0 {
            assert_eq!(claims(true).await, one(Drive::Takeover, 1));
        }
    }
    for (count, seconds) in (2..).zip([1, 2, 4, 8, 16, 32, 60, 60]) {
        let before = fixture.store.now().await.unwrap();
        assert_eq!(claims(true).await, one(Drive::Asleep, count));
        assert_eq!(fruitless().await, count);
        let slept = Duration::from_secs(seconds);
        let wakes = Time(fixture.number("select wake_at from agent_task").await);
        assert!(
            before + slept <= wakes && wakes <= fixture.store.now().await.unwrap() + slept,
            "{seconds} s"
        );
        fixture.forward(slept);
        assert!(
            claims(false).await.is_empty(),
            "no process has room for it alone"
        );
        assert_eq!(claims(true).await, one(Drive::Alone, count));
        assert!(fixture.store.set_begun("me", id, true).await.unwrap());
        fixture.forward(LEASE);
    }
    let mut next = fixture.next(id).await;
    next.facts = vec![said("progress")];
    next.lease = LeaseChange::Queue;
    fixture.write(next).await.unwrap();
    assert_eq!(fruitless().await, 0);
    assert_eq!(claims(false).await, one(Drive::Fresh, 0));
}

#[apply(both)]
async fn lease_of_a_commit_counts_as_begun_and_that_of_a_claim_only_for_its_owner(
    fixture: StoreFixture,
) {
    let id = fixture.task().await;
    lease(&fixture, id, held_by("api")).await;
    fixture.forward(LEASE);
    assert_eq!(claim(&fixture.store, "me", 1).await, [id]);
    assert_eq!(fixture.row(id).await.fruitless, 1);
    assert!(!fixture.store.set_begun("api", id, true).await.unwrap());
    fixture.forward(LEASE);
    assert_eq!(claim(&fixture.store, "me", 1).await, [id]);
    assert_eq!(fixture.row(id).await.fruitless, 1, "no work had begun");
    let born = TaskId(fresh());
    let mut new = new_task(born, "acme", "alice");
    new.lease = held_by("api");
    fixture.write(new).await.unwrap();
    fixture.forward(LEASE);
    claim(&fixture.store, "me", 2).await;
    assert_eq!(fixture.row(born).await.fruitless, 1);
}

#[apply(both)]
async fn claim_takes_one_task_that_is_to_be_driven_alone_and_takes_it_first(fixture: StoreFixture) {
    let ordinary = [
        fixture.task_of("acme", "alice").await,
        fixture.task_of("beta", "bob").await,
    ];
    for (tenant, user) in [("acme", "alice"), ("acme", "carol"), ("beta", "bob")] {
        let id = fixture.literal(fixture.task_of(tenant, user).await.0);
        fixture.suspect(&format!("task_id = {id}")).await;
    }
    for (limit, others) in [(1, 0), (9, 2), (9, 0)] {
        let mut claimed = fixture.store.claim("me", LEASE, limit, true).await.unwrap();
        claimed.sort_by_key(|claimed| (claimed.drive != Drive::Alone, claimed.task));
        assert_eq!(claimed.remove(0).drive, Drive::Alone);
        let fresh: Vec<_> = claimed
            .iter()
            .map(|claimed| (claimed.task, claimed.drive))
            .collect();
        assert_eq!(
            fresh,
            ordinary.map(|id| (id, Drive::Fresh))[..others],
            "with at most {limit}"
        );
    }
    assert_eq!(fixture.store.claim("me", LEASE, 9, true).await.unwrap(), []);
}

#[apply(both)]
async fn lease_is_renewed_only_by_its_owner(fixture: StoreFixture) {
    let id = fixture.task().await;
    claim(&fixture.store, "me", 1).await;
    fixture.forward(LEASE / 2);
    assert!(
        fixture
            .store
            .renew("other", LEASE, &[id])
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(fixture.store.renew("me", LEASE, &[id]).await.unwrap(), [id]);
    fixture.forward(LEASE * 3 / 4);
    assert!(
        claim(&fixture.store, "other", 1).await.is_empty(),
        "it was renewed"
    );
    fixture.forward(LEASE);
    assert_eq!(claim(&fixture.store, "other", 1).await, [id]);
    assert!(
        fixture
            .store
            .renew("me", LEASE, &[id])
            .await
            .unwrap()
            .is_empty(),
        "another owner holds it"
    );
}

#[apply(both)]
async fn lease_renewed_after_the_clock_was_set_back_is_taken_over_at_its_end(
    fixture: StoreFixture,
) {
    let id = fixture.task().await;
    assert_eq!(claim(&fixture.store, "me", 1).await, [id]);
    // The stored times are an hour ahead, as if the clock had been set back since the claim.
    let stored = [("agent_task", "lease_until"), ("claimable_task", "due_at")];
    let tables = if fixture.is_postgres() { 2 } else { 1 };
    for (table, column) in &stored[..tables] {
        let sql = format!("update {table} set {column} = {column} + 3600000000 returning {column}");
        fixture.execute(&sql).await;
    }
    assert_eq!(fixture.store.renew("me", LEASE, &[id]).await.unwrap(), [id]);
    assert!(claim(&fixture.store, "other", 1).await.is_empty());
    fixture.forward(LEASE);
    assert_eq!(claim(&fixture.store, "other", 1).await, [id]);
}

#[apply(both)]
async fn parked_task_sleeps_until_its_time_or_until_it_is_queued(fixture: StoreFixture) {
    let id = fixture.task().await;
    lease(&fixture, id, LeaseChange::Park { wake_in: None }).await;
    fixture.forward(Duration::from_hours(1000));
    assert!(claim(&fixture.store, "me", 1).await.is_empty());
    lease(
        &fixture,
        id,
        LeaseChange::Park {
            wake_in: Some(Duration::from_mins(5)),
        },
    )
    .await;
    assert!(claim(&fixture.store, "me", 1).await.is_empty());
    fixture.forward(Duration::from_mins(5));
    assert_eq!(claim(&fixture.store, "me", 1).await, [id]);
    lease(&fixture, id, LeaseChange::Park { wake_in: None }).await;
    lease(&fixture, id, LeaseChange::Queue).await;
    assert_eq!(claim(&fixture.store, "me", 1).await, [id]);
}

#[apply(both)]
async fn commit_can_take_the_lease(fixture: StoreFixture) {
    let id = fixture.task().await;
    lease(&fixture, id, held_by("me")).await;
    let row = fixture.row(id).await;
    assert_eq!(row.lease_owner.as_deref(), Some("me"));
    assert!(claim(&fixture.store, "other", 1).await.is_empty());
    lease(&fixture, id, LeaseChange::Keep).await;
    assert_eq!(fixture.row(id).await.lease_owner.as_deref(), Some("me"));
}

#[apply(both)]
async fn commit_under_a_lease_writes_its_due_time_only_in_the_second_half_of_the_lease(
    fixture: StoreFixture,
) {
    let id = fixture.task().await;
    let commit = async || {
        let mut change = fixture.next(id).await;
        change.facts = vec![said("under the lease")];
        change.lease = held_by("me");
        fixture.write(change).await.unwrap();
    };
    let due = async || {
        let sql = "select due_at from claimable_task";
        if fixture.is_postgres() {
            fixture.number(sql).await
        } else {
            0
        }
    };
    commit().await;
    for is_written in [false, true, false] {
        fixture.forward(LEASE / 3);
        let before = due().await;
        commit().await;
        assert_eq!(due().await != before, is_written && fixture.is_postgres());
    }
    fixture.forward(LEASE * 3 / 4);
    assert!(
        claim(&fixture.store, "other", 1).await.is_empty(),
        "it is due before its lease ends"
    );
    fixture.forward(LEASE / 2);
    assert_eq!(claim(&fixture.store, "other", 1).await, [id]);
}

#[apply(both)]
async fn task_that_is_no_longer_to_be_driven_alone_is_claimed_beside_others(fixture: StoreFixture) {
    let id = fixture.task().await;
    fixture.suspect("true").await;
    assert_eq!(claim(&fixture.store, "me", 1).await, [id]);
    lease(&fixture, id, LeaseChange::Keep).await;
    let mut next = fixture.next(id).await;
    next.facts = vec![said("progress")];
    fixture.write(next).await.unwrap();
    fixture.forward(LEASE);
    let claimed = fixture.store.claim("other", LEASE, 1, false).await.unwrap();
    assert_eq!(claimed.len(), 1, "{claimed:?}");
    assert_ne!(claimed[0].drive, Drive::Alone);
}

#[apply(both)]
async fn released_task_is_claimed_at_once(fixture: StoreFixture) {
    let id = fixture.task().await;
    assert_eq!(claim(&fixture.store, "me", 1).await, [id]);
    if fixture.is_postgres() {
        fixture
            .execute("delete from claimable_task returning due_at")
            .await;
    }
    assert_eq!(fixture.store.release("me", &[id]).await.unwrap(), [id]);
    assert_eq!(claim(&fixture.store, "other", 1).await, [id]);
}

#[apply(both)]
async fn simultaneous_claimers_share_the_tasks_and_none_is_taken_twice(fixture: StoreFixture) {
    for _ in 0..24 {
        fixture.task().await;
    }
    let mut claimers = tokio::task::JoinSet::new();
    for number in 0..8 {
        let store = fixture.store.clone();
        claimers.spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..24 {
                mine.extend(claim(&store, &format!("claimer{number}"), 2).await);
            }
            mine
        });
    }
    let mut taken: Vec<TaskId> = claimers.join_all().await.into_iter().flatten().collect();
    let all = taken.len();
    taken.sort();
    taken.dedup();
    assert_eq!((all, taken.len()), (24, 24));
}

#[tokio::test]
async fn task_that_an_older_replica_queued_is_claimed_after_an_upgrade() {
    let fixture = StoreFixture::postgres().await;
    let (left, parked) = (fixture.task().await, fixture.task().await);
    lease(&fixture, parked, LeaseChange::Park { wake_in: None }).await;
    fixture
        .execute("delete from claimable_task returning due_at")
        .await;
    assert!(claim(&fixture.store, "me", 9).await.is_empty());
    let mut cursor = UpgradeCursor::default();
    assert!(!fixture.store.upgrade(&mut cursor).await.unwrap());
    assert_eq!(claim(&fixture.store, "me", 9).await, [left]);
}

#[tokio::test]
async fn task_that_an_older_replica_queued_earlier_than_its_row_says_is_claimed_after_an_upgrade() {
    let fixture = StoreFixture::postgres().await;
    let id = fixture.task().await;
    let late = "update claimable_task set due_at = due_at + 3600000000000000 returning due_at";
    fixture.execute(late).await;
    assert!(claim(&fixture.store, "me", 9).await.is_empty());
    let over = "update _sqlx_migrations set installed_on = installed_on - interval '2 days' returning 1::bigint";
    let now = "update _sqlx_migrations set installed_on = now() returning 1::bigint";
    for (installed, expected) in [(over, vec![]), (now, vec![id])] {
        fixture.execute(installed).await;
        let mut cursor = UpgradeCursor::default();
        fixture.store.upgrade(&mut cursor).await.unwrap();
        assert_eq!(claim(&fixture.store, "me", 9).await, expected);
    }
}

#[tokio::test]
async fn row_of_claimable_task_that_is_out_of_date_claims_nothing_and_is_corrected() {
    let fixture = StoreFixture::postgres().await;
    let (parked, leased) = (fixture.task().await, fixture.task().await);
    lease(&fixture, parked, LeaseChange::Park { wake_in: None }).await;
    let taken = held_by("api");
    lease(&fixture, leased, taken).await;
    let wrong =
        "insert into claimable_task select task_id, tenant, user_id, 0, false from agent_task
        on conflict (task_id) do update set due_at = 0 returning due_at";
    assert_eq!(fixture.numbers(wrong).await.unwrap(), [0, 0]);
    assert!(claim(&fixture.store, "me", 9).await.is_empty());
    let until = fixture.row(leased).await;
    assert_eq!(
        fixture
            .numbers("select due_at from claimable_task")
            .await
            .unwrap(),
        [until.lease_until.unwrap().0]
    );
}

#[tokio::test]
async fn sqlite_leases_of_the_former_process_end_at_once_and_count_where_work_had_begun() {
    let fixture = StoreFixture::sqlite().await;
    let ids = [fixture.task().await, fixture.task().await];
    claim(&fixture.store, "former", 2).await;
    assert!(
        fixture
            .store
            .set_begun("former", ids[1], true)
            .await
            .unwrap()
    );
    fixture.store.close().await;
    let store = Store::open(&fixture.settings, fixture.clock.clone())
        .await
        .unwrap();
    let mut again = claim(&store, "me", 9).await;
    again.sort();
    assert_eq!(again, ids);
    for (id, fruitless) in ids.into_iter().zip([0, 1]) {
        let row = store.task(id).await.unwrap().unwrap();
        assert_eq!((row.takeovers, row.fruitless), (1, fruitless));
    }
}
