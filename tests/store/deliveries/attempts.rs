//! Tests attempts that end at the same time, and share statements when they are recorded.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use holdpoint::store::{Attempt, ClaimedDelivery, DeliveryFilter, DeliveryState, NextState};
use macro_rules_attribute::apply;
use uuid::Uuid;

use super::super::connection_loss::lossy;
use super::super::notices::want;
use super::super::store_fixture::{StoreFixture, both, finance};
use super::{HOUR, LEASE, SECOND, attempt, claim, listed, record, spread};
use crate::support::until;

/// Makes 16 due deliveries to `backend`, and claims them.
async fn claimed(fixture: &StoreFixture) -> Vec<ClaimedDelivery> {
    want(fixture, &["request.created"]);
    for _ in 0..8 {
        fixture.paused(finance(1)).await;
    }
    spread(fixture, "backend").await;
    let claimed = claim(fixture, 100).await;
    assert_eq!(claimed.len(), 16);
    claimed
}

#[apply(both)]
async fn attempts_that_end_at_once_share_commits_and_each_has_its_own_result(
    fixture: StoreFixture,
) {
    let claimed = claimed(&fixture).await;
    let expected = [
        (NextState::Sent, DeliveryState::Sent, 1, 200),
        (NextState::Again(HOUR), DeliveryState::Due, 1, 500),
        (NextState::Postponed(2 * HOUR), DeliveryState::Due, 1, 500),
        (NextState::Dead, DeliveryState::Dead, 1, 500),
        (NextState::Dropped, DeliveryState::Dropped, 0, 500),
    ];
    let ended = || claimed.iter().zip(expected.iter().cycle());
    let attempts = (1_u32..)
        .zip(ended())
        .map(|(number, (_, (next, ..)))| Attempt {
            retry_after: Some(number * SECOND),
            took: Duration::from_millis(number.into()),
            reference: Some(format!("message {number}")),
            ..attempt(*next)
        });
    let attempts: Vec<_> = attempts.collect();
    let records = claimed.iter().zip(&attempts).map(|(one, attempt)| {
        let store = &fixture.store;
        store.record_attempt(vec![one.id], one.lease_until, attempt)
    });
    for (one, recorded) in claimed.iter().zip(join_all(records).await) {
        assert_eq!(recorded.unwrap(), [one.id]);
    }
    let columns = (1_u32..).zip(ended()).map(|(number, (_, (next, ..)))| {
        let (early, wait) = match next {
            NextState::Again(_) => (0, number),
            NextState::Postponed(_) => (1, number),
            NextState::Sent | NextState::Dead | NextState::Dropped => (0, 0),
        };
        format!(
            "{number} ms, message {number}, {early}, {}",
            wait * 1_000_000
        )
    });
    let columns: Vec<_> = columns.collect();
    let recorded = "select last_milliseconds || ' ms, ' || reference || ', ' || came_early || ', '
        || coalesce(lease_until - last_at, 0) from delivery order by delivery_id";
    assert_eq!(fixture.database().texts(recorded).await, columns);
    let rows = listed(&fixture, DeliveryFilter::default()).await;
    for (one, (next, state, attempts, status)) in ended() {
        let row = rows.iter().find(|row| row.id == one.id).unwrap();
        let last = row.last.as_ref().unwrap();
        assert_eq!(
            (row.state, row.attempts, last.http_status),
            (*state, *attempts, Some(*status)),
            "{next:?}"
        );
        match next {
            NextState::Again(wait) | NextState::Postponed(wait) => {
                assert_eq!(row.due_at.since(last.at), *wait);
            }
            NextState::Sent | NextState::Dead | NextState::Dropped => {
                assert_eq!(row.ended_at, Some(last.at));
            }
        }
    }
    if fixture.is_postgres() {
        let commits = "select count(distinct xmin::text) from delivery";
        assert!(fixture.number(commits).await < 8);
    }
}

#[apply(both)]
async fn attempt_that_cannot_be_recorded_makes_no_other_fail(fixture: StoreFixture) {
    let claimed = claimed(&fixture).await;
    let refused = claimed[5].id;
    let condition = format!("new.delivery_id = {}", fixture.literal(refused));
    let refuse = if fixture.is_postgres() {
        format!(
            "create function refuse() returns trigger language plpgsql as $$
             begin
                raise exception 'refused';
             end $$;
             create trigger refuse before update on delivery for each row
                when ({condition}) execute function refuse()"
        )
    } else {
        format!(
            "create trigger refuse before update on delivery when {condition}
             begin
                select raise(abort, 'refused');
             end"
        )
    };
    fixture.database().execute(&refuse).await;
    let sent = attempt(NextState::Sent);
    let records = claimed.iter().map(|one| {
        let store = &fixture.store;
        store.record_attempt(vec![one.id], one.lease_until, &sent)
    });
    for (one, recorded) in claimed.iter().zip(join_all(records).await) {
        let is_recorded = recorded.is_ok_and(|ids| ids == [one.id]);
        assert_eq!(is_recorded, one.id != refused);
    }
}

#[apply(both)]
async fn attempt_of_a_lost_lease_is_not_recorded_with_that_of_the_present_one(
    fixture: StoreFixture,
) {
    let lost = claimed(&fixture).await;
    fixture.forward(LEASE + SECOND);
    let present = claim(&fixture, 100).await;
    let records = lost.iter().zip(&present).flat_map(|(lost, present)| {
        let ended = [(lost, NextState::Dead), (present, NextState::Sent)];
        ended.map(|(one, next)| record(&fixture, one, next))
    });
    let recorded = join_all(records).await;
    assert_eq!(recorded, [false, true].repeat(16));
}

/// The answer to a statement is lost after its commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_that_are_recorded_by_a_statement_whose_answer_is_lost_count_as_recorded() {
    let fixture = StoreFixture::postgres().await;
    let claimed = claimed(&fixture).await;
    let dead = attempt(NextState::Dead);
    let way = lossy(&fixture, b"no 2xx").await;
    let store = way.store(fixture.clock.clone()).await;
    way.swallow.store(1, Ordering::SeqCst);
    let records = claimed
        .iter()
        .map(|one| store.record_attempt(vec![one.id], one.lease_until, &dead));
    for (one, recorded) in claimed.iter().zip(join_all(records).await) {
        assert_eq!(recorded.unwrap(), [one.id]);
    }
    assert_eq!(way.swallow.load(Ordering::SeqCst), 0, "an answer was lost");
}

/// Adds a trigger that keeps each statement waiting for a minute that records an attempt at this
/// delivery.
async fn record_slowly(fixture: &StoreFixture, delivery: Uuid) {
    let wait = format!(
        "create function wait() returns trigger language plpgsql as $$
         begin
            perform pg_sleep(60);
            return new;
         end $$;
         create trigger wait before update on delivery for each row
            when (new.delivery_id = {}) execute function wait()",
        fixture.literal(delivery)
    );
    fixture.database().execute(&wait).await;
}

async fn until_recorded_slowly(fixture: &StoreFixture) {
    let waiting = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event = 'PgSleep'";
    let waits = async || fixture.number(waiting).await > 0;
    until("the attempt is being recorded", waits).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempt_behind_a_slow_statement_is_recorded_by_a_statement_of_its_own() {
    let fixture = StoreFixture::postgres().await;
    let claimed = claimed(&fixture).await;
    record_slowly(&fixture, claimed[0].id).await;
    let sent = attempt(NextState::Sent);
    let store = &fixture.store;
    let slow = store.record_attempt(vec![claimed[0].id], claimed[0].lease_until, &sent);
    let behind = async {
        until_recorded_slowly(&fixture).await;
        let record = record(&fixture, &claimed[1], NextState::Sent);
        tokio::time::timeout(Duration::from_secs(30), record).await
    };
    let (_, recorded) = tokio::join!(slow, behind);
    assert!(recorded.expect("the attempt does not wait for the slow statement"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_closes_while_attempts_are_being_recorded() {
    let fixture = StoreFixture::postgres().await;
    let claimed = claimed(&fixture).await;
    record_slowly(&fixture, claimed[0].id).await;
    let sent = attempt(NextState::Sent);
    let store = &fixture.store;
    let record = store.record_attempt(vec![claimed[0].id], claimed[0].lease_until, &sent);
    let close = async {
        until_recorded_slowly(&fixture).await;
        store.close().await;
    };
    let closed = async { tokio::join!(record, close) };
    let closed = tokio::time::timeout(Duration::from_secs(30), Box::pin(closed)).await;
    let (recorded, ()) = closed.expect("the store closes");
    assert!(recorded.is_err());
}
