//! Leases: who drives what.

use std::time::Duration;

use holdpoint::store::{CommitError, Store};
use holdpoint::task::change::LeaseChange;
use holdpoint::task::id::TaskId;

use super::house::{House, both, said};

const LEASE: Duration = Duration::from_secs(30);

async fn lease(house: &House, id: TaskId, lease: LeaseChange) {
    let mut change = house.next(id).await;
    change.lease = lease;
    house.write(change).await.unwrap();
}

both! {
    async fn a_claim_takes_what_is_queued_and_fences_the_old_driver_off(house) {
        let id = house.task().await;
        let mut old = house.next(id).await;
        old.facts = vec![said("from the old driver")];
        assert_eq!(house.store.claim("me", LEASE, 10).await.unwrap(), [id]);
        let row = house.store.task(id).await.unwrap().unwrap();
        assert_eq!((row.lease_owner.as_deref(), row.takeovers, row.version), (Some("me"), 0, 2));
        assert!(row.lease_until.unwrap() > house.store.now().await.unwrap());
        assert_eq!(house.write(old).await, Err(CommitError::Stale));
        assert!(house.store.claim("other", LEASE, 10).await.unwrap().is_empty());
    }

    async fn a_lease_that_ran_out_is_taken_over_and_counted_until_there_is_an_item(house) {
        let id = house.task().await;
        for takeovers in 0..3 {
            assert_eq!(house.store.claim("me", LEASE, 1).await.unwrap(), [id]);
            assert_eq!(house.store.task(id).await.unwrap().unwrap().takeovers, takeovers);
            house.forward(LEASE);
        }
        let mut next = house.next(id).await;
        next.facts = vec![said("progress")];
        house.write(next).await.unwrap();
        assert_eq!(house.store.task(id).await.unwrap().unwrap().takeovers, 0);
    }

    async fn a_lease_is_renewed_only_by_its_owner(house) {
        let id = house.task().await;
        house.store.claim("me", LEASE, 1).await.unwrap();
        house.forward(LEASE / 2);
        assert!(house.store.renew("other", LEASE, &[id]).await.unwrap().is_empty());
        assert_eq!(house.store.renew("me", LEASE, &[id]).await.unwrap(), [id]);
        house.forward(LEASE * 3 / 4);
        assert!(house.store.claim("other", LEASE, 1).await.unwrap().is_empty(), "it was renewed");
        house.forward(LEASE);
        assert_eq!(house.store.claim("other", LEASE, 1).await.unwrap(), [id]);
        assert!(house.store.renew("me", LEASE, &[id]).await.unwrap().is_empty(), "it is somebody else's");
    }

    async fn a_parked_task_sleeps_until_its_time_or_until_somebody_queues_it(house) {
        let id = house.task().await;
        lease(&house, id, LeaseChange::Park { wake_in: None }).await;
        house.forward(Duration::from_hours(1000));
        assert!(house.store.claim("me", LEASE, 1).await.unwrap().is_empty());
        lease(&house, id, LeaseChange::Park { wake_in: Some(Duration::from_mins(5)) }).await;
        assert!(house.store.claim("me", LEASE, 1).await.unwrap().is_empty());
        house.forward(Duration::from_mins(5));
        assert_eq!(house.store.claim("me", LEASE, 1).await.unwrap(), [id]);
        lease(&house, id, LeaseChange::Park { wake_in: None }).await;
        lease(&house, id, LeaseChange::Queue).await;
        assert_eq!(house.store.claim("me", LEASE, 1).await.unwrap(), [id]);
    }

    async fn a_commit_can_take_the_lease(house) {
        let id = house.task().await;
        lease(&house, id, LeaseChange::Take { owner: "me".to_owned(), time: LEASE }).await;
        let row = house.store.task(id).await.unwrap().unwrap();
        assert_eq!(row.lease_owner.as_deref(), Some("me"));
        assert!(house.store.claim("other", LEASE, 1).await.unwrap().is_empty());
        lease(&house, id, LeaseChange::Keep).await;
        assert_eq!(house.store.task(id).await.unwrap().unwrap().lease_owner.as_deref(), Some("me"));
    }

    async fn claims_are_fair_by_tenant(house) {
        for _ in 0..6 {
            house.task_of("loud", "alice").await;
        }
        let quiet = house.task_of("quiet", "bob").await;
        assert!(house.store.claim("me", LEASE, 2).await.unwrap().contains(&quiet));
    }

    async fn simultaneous_claimers_share_the_tasks_and_none_is_taken_twice(house) {
        for _ in 0..24 {
            house.task().await;
        }
        let mut claimers = tokio::task::JoinSet::new();
        for number in 0..8 {
            let store = house.store.clone();
            claimers.spawn(async move {
                let mut mine = Vec::new();
                for _ in 0..24 {
                    mine.extend(store.claim(&format!("claimer{number}"), LEASE, 2).await.unwrap());
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
}

#[tokio::test]
async fn on_sqlite_the_leases_of_the_former_process_are_over_at_once_and_counted() {
    let house = House::sqlite().await;
    let id = house.task().await;
    house.store.claim("former", LEASE, 1).await.unwrap();
    house.store.close().await;
    let store = Store::open(&house.settings, house.clock.clone()).await.unwrap();
    assert_eq!(store.claim("me", LEASE, 1).await.unwrap(), [id]);
    assert_eq!(store.task(id).await.unwrap().unwrap().takeovers, 1);
}
