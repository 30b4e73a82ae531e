//! Tests the order in which claims take the tasks of tenants and users.

use holdpoint::task::change::LeaseChange;
use macro_rules_attribute::apply;

use super::super::store_fixture::{LEASE, StoreFixture, both, claim};
use super::{held_by, lease, stale};

#[apply(both)]
async fn claims_are_fair_by_tenant(fixture: StoreFixture) {
    for _ in 0..6 {
        fixture.task_of("loud", "alice").await;
    }
    let quiet = fixture.task_of("quiet", "bob").await;
    assert!(claim(&fixture.store, "me", 2).await.contains(&quiet));
}

#[apply(both)]
async fn claims_are_fair_by_user_inside_a_tenant(fixture: StoreFixture) {
    for _ in 0..6 {
        fixture.task_of("acme", "alice").await;
    }
    let quiet = fixture.task_of("acme", "bob").await;
    assert!(claim(&fixture.store, "me", 2).await.contains(&quiet));
}

#[apply(both)]
async fn claims_of_one_task_each_go_round_the_tenants_and_the_users_of_each(fixture: StoreFixture) {
    for (tenant, users) in [
        ("acme", ["alice", "bob"]),
        ("beta", ["carol", "dora"]),
        ("core", ["eve", "fay"]),
    ] {
        for user in users {
            fixture.task_of(tenant, user).await;
            fixture.task_of(tenant, user).await;
        }
    }
    let mut served = Vec::new();
    while let [id] = claim(&fixture.store, "me", 1).await[..] {
        let row = fixture.row(id).await;
        served.push(row.user_id);
    }
    let round = ["alice", "carol", "eve", "bob", "dora", "fay"];
    assert_eq!(served, [round, round].concat());
}

#[apply(both)]
async fn claim_of_several_tasks_takes_as_many_of_each_tenant_and_the_oldest_of_each_user(
    fixture: StoreFixture,
) {
    let mut oldest = Vec::new();
    for (tenant, user) in [("acme", "alice"), ("acme", "bob"), ("beta", "carol")] {
        oldest.push(fixture.task_of(tenant, user).await);
        for _ in 0..9 {
            fixture.task_of(tenant, user).await;
        }
    }
    let mut claimed = claim(&fixture.store, "me", 4).await;
    claimed.sort();
    assert!(oldest.iter().all(|id| claimed.contains(id)), "{claimed:?}");
    let mut tenants = Vec::new();
    for id in claimed {
        tenants.push(fixture.row(id).await.tenant);
    }
    assert_eq!(tenants, ["acme", "acme", "beta", "beta"]);
}

#[apply(both)]
async fn woken_task_and_task_with_a_lost_lease_take_their_turns_among_queued_ones(
    fixture: StoreFixture,
) {
    let (woken, lost) = (
        fixture.task_of("acme", "alice").await,
        fixture.task_of("beta", "bob").await,
    );
    lease(
        &fixture,
        woken,
        LeaseChange::Park {
            wake_in: Some(LEASE),
        },
    )
    .await;
    lease(&fixture, lost, held_by("gone")).await;
    let queued = [
        fixture.task_of("acme", "alice").await,
        fixture.task_of("beta", "bob").await,
    ];
    fixture.forward(LEASE);
    let mut first = claim(&fixture.store, "me", 2).await;
    first.sort();
    assert_eq!(first, [woken, lost]);
    let mut second = claim(&fixture.store, "me", 2).await;
    second.sort();
    assert_eq!(second, queued);
}

#[apply(both)]
async fn renewed_lease_does_not_keep_a_claim_from_the_next_task(fixture: StoreFixture) {
    let running = fixture.task().await;
    assert_eq!(claim(&fixture.store, "me", 1).await, [running]);
    fixture.forward(LEASE * 3 / 4);
    assert_eq!(
        fixture.store.renew("me", LEASE, &[running]).await.unwrap(),
        [running]
    );
    let queued = fixture.task().await;
    fixture.forward(LEASE / 2);
    assert_eq!(claim(&fixture.store, "other", 1).await, [queued]);
    fixture.forward(LEASE);
    let mut over = claim(&fixture.store, "other", 9).await;
    over.sort();
    assert_eq!(over, [running, queued], "both leases are over");
}

#[apply(both)]
async fn many_renewed_leases_do_not_keep_a_claim_from_the_next_task(fixture: StoreFixture) {
    let mut running = Vec::new();
    for _ in 0..20 {
        running.push(fixture.task_of("acme", "alice").await);
    }
    assert_eq!(claim(&fixture.store, "me", 20).await.len(), 20);
    for _ in 0..4 {
        fixture.forward(LEASE / 3);
        assert_eq!(
            fixture
                .store
                .renew("me", LEASE, &running)
                .await
                .unwrap()
                .len(),
            20
        );
    }
    let queued = fixture.task_of("beta", "bob").await;
    let claimed = fixture.store.claim("me", LEASE, 1, true).await.unwrap();
    assert_eq!(
        claimed
            .iter()
            .map(|claimed| claimed.task)
            .collect::<Vec<_>>(),
        [queued]
    );
    assert_eq!(stale(&fixture).await, 0);
}
