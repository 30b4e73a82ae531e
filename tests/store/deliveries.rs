//! Tests deliveries. A process claims them by a lease and records their attempts under this lease.
//! Deliveries can also be made due early, dropped, removed, listed and sent again.

mod attempts;
mod lists;
mod message_events;
mod resends;

use std::time::Duration;

use holdpoint::store::{
    Attempt, ClaimedDelivery, DeliveryFilter, DeliveryRow, DeliveryState, NextState,
};
use macro_rules_attribute::apply;
use uuid::Uuid;

use super::notices::{deliveries, notices, want};
use super::store_fixture::{StoreFixture, both, finance};

const HOUR: Duration = Duration::from_hours(1);
/// The duration of the lease of each claim.
const LEASE: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);
const RESEND_PATH: &str = "POST /v1/deliveries/resend";

fn seconds_before(time: Duration, seconds: u64) -> Duration {
    Duration::from_secs(time.as_secs() - seconds)
}

/// Makes the two deliveries of a new question to `backend`: first `request.created`, then
/// `task.paused`.
async fn two(fixture: &StoreFixture) {
    want(fixture, &["request.created"]);
    fixture.paused(finance(1)).await;
    spread(fixture, "backend").await;
}

async fn spread(fixture: &StoreFixture, target: &str) {
    let all = notices(fixture).await;
    for notice in &all {
        let new = deliveries(fixture, notice, target).await;
        fixture
            .store
            .replace_notices(&[*notice], new)
            .await
            .unwrap();
    }
}

async fn claim(fixture: &StoreFixture, limit: i64) -> Vec<ClaimedDelivery> {
    fixture
        .store
        .claim_deliveries("backend", limit, LEASE, &[])
        .await
        .unwrap()
}

fn attempt(next: NextState) -> Attempt {
    Attempt {
        next,
        http_status: (next != NextState::Sent).then_some(500).or(Some(200)),
        problem: if next == NextState::Sent {
            ""
        } else {
            "no 2xx"
        },
        retry_after: None,
        took: Duration::from_millis(41),
        reference: None,
    }
}

async fn record(fixture: &StoreFixture, claimed: &ClaimedDelivery, next: NextState) -> bool {
    let recorded = fixture
        .store
        .record_attempt(vec![claimed.id], claimed.lease_until, &attempt(next))
        .await;
    recorded.unwrap() == [claimed.id]
}

/// Makes waiting deliveries of the entry due, except these. Returns the number of changed
/// deliveries.
async fn pull(fixture: &StoreFixture, target: &str, except: &[Uuid]) -> usize {
    let store = &fixture.store;
    let pulled = store.make_waiting_deliveries_due(target, except.to_vec());
    pulled.await.unwrap()
}

/// Records a failed first attempt at each of the two deliveries. Both deliveries are due again at
/// once.
async fn fail_once(fixture: &StoreFixture) {
    for one in claim(fixture, 4).await {
        assert!(record(fixture, &one, NextState::Again(Duration::ZERO)).await);
    }
}

async fn listed(fixture: &StoreFixture, filter: DeliveryFilter) -> Vec<DeliveryRow> {
    let filter = DeliveryFilter {
        tenant: "acme".to_owned(),
        limit: 50,
        ..filter
    };
    fixture.store.deliveries(&filter).await.unwrap().rows
}

#[apply(both)]
async fn delivery_is_claimed_by_one_process_until_its_lease_is_over(fixture: StoreFixture) {
    two(&fixture).await;
    let first = claim(&fixture, 1).await;
    let rest = claim(&fixture, 4).await;
    assert_eq!((first.len(), rest.len()), (1, 1));
    assert_eq!(first[0].kind.as_str(), "request.created");
    assert_eq!(rest[0].kind.as_str(), "task.paused");
    assert_eq!(claim(&fixture, 4).await, []);
    fixture.forward(LEASE + SECOND);
    let again = claim(&fixture, 1).await;
    assert_eq!((again[0].id, again[0].attempts), (first[0].id, 0));
    assert!(
        !record(&fixture, &first[0], NextState::Sent).await,
        "the first lease is over"
    );
    assert!(record(&fixture, &again[0], NextState::Sent).await);
    assert!(
        !record(&fixture, &again[0], NextState::Dead).await,
        "it is recorded once"
    );
}

#[apply(both)]
async fn failed_delivery_is_due_again_after_its_wait_and_no_earlier(fixture: StoreFixture) {
    two(&fixture).await;
    let [first, second] = &claim(&fixture, 4).await[..] else {
        panic!("two are due")
    };
    assert!(record(&fixture, first, NextState::Again(HOUR)).await);
    assert!(record(&fixture, second, NextState::Dead).await);
    fixture.forward(seconds_before(HOUR, 30));
    assert_eq!(
        fixture
            .store
            .entries_with_due(&["backend".to_owned()])
            .await
            .unwrap(),
        Vec::<String>::new()
    );
    assert_eq!(claim(&fixture, 4).await, []);
    fixture.forward(31 * SECOND);
    let due = fixture
        .store
        .entries_with_due(&["other".to_owned(), "backend".to_owned()])
        .await
        .unwrap();
    assert_eq!(due, ["backend"]);
    let again = claim(&fixture, 4).await;
    assert_eq!(
        (
            again.len(),
            again[0].id,
            again[0].attempts,
            again[0].came_early
        ),
        (1, first.id, 1, false)
    );
    let rows = listed(&fixture, DeliveryFilter::default()).await;
    let dead = rows.iter().find(|row| row.id == second.id).unwrap();
    assert_eq!((dead.state, dead.attempts), (DeliveryState::Dead, 1));
    let last = dead.last.as_ref().unwrap();
    assert_eq!(
        (last.http_status, last.problem.as_deref(), last.milliseconds),
        (Some(500), Some("no 2xx"), 41)
    );
    assert_eq!(dead.ended_at, Some(last.at));
}

#[apply(both)]
async fn pull_makes_failed_deliveries_of_the_entry_due_and_no_others(fixture: StoreFixture) {
    two(&fixture).await;
    fail_once(&fixture).await;
    let [first, second] = &claim(&fixture, 4).await[..] else {
        panic!("two are due")
    };
    for one in [first, second] {
        record(&fixture, one, NextState::Again(HOUR)).await;
    }
    assert_eq!(pull(&fixture, "other", &[]).await, 0);
    assert_eq!(pull(&fixture, "backend", &[second.id]).await, 1);
    let pulled = &claim(&fixture, 4).await[0];
    assert_eq!((pulled.id, pulled.came_early), (first.id, true));
    // The next attempt follows the schedule. `came_early` is still true, because the delivery
    // has had an early attempt.
    assert!(record(&fixture, pulled, NextState::Again(Duration::ZERO)).await);
    let later = &claim(&fixture, 4).await[0];
    assert_eq!((later.id, later.came_early), (first.id, true));
    assert_eq!(pull(&fixture, "backend", &[]).await, 1);
    assert_eq!(claim(&fixture, 4).await[0].id, second.id);
}

#[apply(both)]
async fn postponed_delivery_counts_as_attempted_early(fixture: StoreFixture) {
    two(&fixture).await;
    let [first, second] = &claim(&fixture, 4).await[..] else {
        panic!("two are due")
    };
    assert!(record(&fixture, first, NextState::Postponed(Duration::ZERO)).await);
    assert!(record(&fixture, second, NextState::Again(Duration::ZERO)).await);
    let mut early = Vec::new();
    for one in claim(&fixture, 4).await {
        early.push((one.id == first.id, one.came_early));
    }
    early.sort_unstable();
    assert_eq!(early, [(false, false), (true, true)]);
}

#[apply(both)]
async fn pull_leaves_a_delivery_that_has_failed_once_to_its_first_wait(fixture: StoreFixture) {
    two(&fixture).await;
    let [first, second] = &claim(&fixture, 4).await[..] else {
        panic!("two are due")
    };
    for one in [first, second] {
        record(&fixture, one, NextState::Again(HOUR)).await;
    }
    assert_eq!(pull(&fixture, "backend", &[]).await, 0);
    assert_eq!(claim(&fixture, 4).await, []);
    fixture.forward(HOUR + SECOND);
    assert_eq!(claim(&fixture, 4).await.len(), 2);
}

#[apply(both)]
async fn pull_makes_no_delivery_due_before_the_wait_that_its_receiver_asked_for(
    fixture: StoreFixture,
) {
    two(&fixture).await;
    fail_once(&fixture).await;
    let [first, second] = &claim(&fixture, 4).await[..] else {
        panic!("two are due")
    };
    let store = &fixture.store;
    for (one, wait) in [(first, HOUR), (second, 2 * HOUR)] {
        let asked = Attempt {
            retry_after: Some(HOUR),
            ..attempt(NextState::Again(wait))
        };
        assert_eq!(
            store
                .record_attempt(vec![one.id], one.lease_until, &asked)
                .await
                .unwrap(),
            [one.id]
        );
    }
    assert_eq!(
        pull(&fixture, "backend", &[]).await,
        1,
        "the second has an hour to go"
    );
    assert_eq!(pull(&fixture, "backend", &[]).await, 0);
    fixture.forward(seconds_before(HOUR, 30));
    assert_eq!(claim(&fixture, 4).await, []);
    fixture.forward(60 * SECOND);
    assert_eq!(claim(&fixture, 4).await.len(), 2);
}

#[apply(both)]
async fn delivery_without_an_entry_is_dropped_after_a_day_and_not_before(fixture: StoreFixture) {
    two(&fixture).await;
    fail_once(&fixture).await;
    let store = &fixture.store;
    let known = ["backend".to_owned()];
    fixture.forward(seconds_before(24 * HOUR, 30));
    assert_eq!(
        store.drop_orphaned_deliveries(&[], &[]).await.unwrap(),
        Vec::<String>::new()
    );
    fixture.forward(60 * SECOND);
    assert_eq!(
        store.drop_orphaned_deliveries(&known, &[]).await.unwrap(),
        Vec::<String>::new()
    );
    assert_eq!(
        store.drop_orphaned_deliveries(&[], &[]).await.unwrap(),
        ["backend", "backend"]
    );
    assert_eq!(claim(&fixture, 4).await, []);
    let dropped = DeliveryFilter {
        states: vec![DeliveryState::Dropped],
        ..DeliveryFilter::default()
    };
    let rows = listed(&fixture, dropped).await;
    assert_eq!(rows.len(), 2);
    for row in rows {
        let last = row.last.unwrap();
        assert!(last.at.since(row.due_at) >= 24 * HOUR, "{last:?}");
        let problem = "no entry of the configuration has this name";
        assert_eq!(last.http_status, None);
        assert_eq!(last.problem.as_deref(), Some(problem));
    }
}

#[apply(both)]
async fn update_is_dropped_after_a_day_where_its_entry_cannot_update_messages(
    fixture: StoreFixture,
) {
    two(&fixture).await;
    let change = "update delivery set type = 'request.decided' where type = 'task.paused'";
    fixture.database().execute(change).await;
    let (store, backend) = (&fixture.store, ["backend".to_owned()]);
    fixture.forward(seconds_before(24 * HOUR, 30));
    assert_eq!(
        store
            .drop_orphaned_deliveries(&backend, &backend)
            .await
            .unwrap(),
        Vec::<String>::new()
    );
    fixture.forward(60 * SECOND);
    assert_eq!(
        store.drop_orphaned_deliveries(&backend, &[]).await.unwrap(),
        Vec::<String>::new()
    );
    assert_eq!(
        store
            .drop_orphaned_deliveries(&backend, &backend)
            .await
            .unwrap(),
        backend
    );
    let dropped = DeliveryFilter {
        states: vec![DeliveryState::Dropped],
        ..DeliveryFilter::default()
    };
    let [dropped] = &listed(&fixture, dropped).await[..] else {
        panic!("the update is dropped")
    };
    let problem = dropped.last.as_ref().unwrap().problem.as_deref();
    assert_eq!(
        problem,
        Some("the entry's settings no longer select this message")
    );
    let [left] = &claim(&fixture, 4).await[..] else {
        panic!("the question is still due")
    };
    assert_eq!(left.kind, "request.created");
}
