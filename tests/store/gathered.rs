//! Tests gathered deliveries. One claim takes the due deliveries of a person as one message. The
//! claim also sets `next_at`, the earliest time of the person's next message.

use std::time::Duration;

use holdpoint::store::{Attempt, ClaimedDelivery, DeliveryChannel, NextState, Store};
use macro_rules_attribute::apply;

use super::notices::{deliveries, notices, want};
use super::store_fixture::{StoreFixture, both, finance};

const LEASE: Duration = Duration::from_secs(25);
const SECOND: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_mins(5);

/// Opens a request, and makes a delivery of the request to each person.
async fn question(fixture: &StoreFixture, people: &[&str]) {
    fixture.paused(finance(1)).await;
    for notice in notices(fixture).await {
        let mut new = Vec::new();
        for person in people {
            let all = deliveries(fixture, &notice, "by-mail").await;
            let asked = all.into_iter().filter(|one| one.kind == "request.created");
            new.extend(asked.map(|mut one| {
                (one.person, one.channel) = ((*person).to_owned(), DeliveryChannel::Mail);
                one
            }));
        }
        fixture.store.replace_notices(&[notice], new).await.unwrap();
    }
}

async fn claim(fixture: &StoreFixture) -> Vec<Vec<ClaimedDelivery>> {
    claim_with_pause(fixture, INTERVAL).await
}

async fn claim_with_pause(fixture: &StoreFixture, pause: Duration) -> Vec<Vec<ClaimedDelivery>> {
    let claimed = fixture
        .store
        .claim_gathered("by-mail", 4, LEASE, pause)
        .await;
    claimed.unwrap()
}

/// Returns whether the claim of this delivery still holds, so that its message may be sent. The
/// person's next message waits for `pause`.
async fn allowed(fixture: &StoreFixture, claimed: &ClaimedDelivery, pause: Duration) -> bool {
    let store = &fixture.store;
    let allowed = store.allow_next_message("by-mail", claimed, pause).await;
    allowed.unwrap()
}

async fn sent(fixture: &StoreFixture, message: &[ClaimedDelivery]) -> usize {
    let attempt = Attempt {
        next: NextState::Sent,
        http_status: None,
        problem: "",
        retry_after: None,
        took: SECOND,
        reference: None,
    };
    let ids = message.iter().map(|one| one.id).collect();
    let until = message[0].lease_until;
    let recorded = fixture.store.record_attempt(ids, until, &attempt).await;
    recorded.unwrap().len()
}

#[apply(both)]
async fn due_deliveries_of_a_person_are_one_message_and_the_next_waits(fixture: StoreFixture) {
    want(&fixture, &["request.created"]);
    for _ in 0..3 {
        question(&fixture, &["alice", "bob"]).await;
    }
    let messages = claim(&fixture).await;
    let people: Vec<_> = messages
        .iter()
        .map(|one| (one[0].person.as_str(), one.len()))
        .collect();
    assert_eq!(people, [("alice", 3), ("bob", 3)]);
    assert!(allowed(&fixture, &messages[0][0], INTERVAL).await);
    assert_eq!(sent(&fixture, &messages[0]).await, 3);
    question(&fixture, &["alice"]).await;
    assert_eq!(
        claim(&fixture).await,
        Vec::<Vec<_>>::new(),
        "one is in flight, one has to wait"
    );
    fixture.forward(LEASE + SECOND);
    let again = claim(&fixture).await;
    assert_eq!(
        (again.len(), again[0][0].person.as_str(), again[0].len()),
        (1, "bob", 3),
        "its lease is over"
    );
    fixture.forward(INTERVAL);
    let found = claim(&fixture).await;
    let people: Vec<_> = found
        .iter()
        .map(|one| (one[0].person.as_str(), one.len()))
        .collect();
    assert_eq!(people, [("alice", 1), ("bob", 3)]);
}

#[apply(both)]
async fn sender_that_is_slower_than_its_lease_changes_nothing(fixture: StoreFixture) {
    want(&fixture, &["request.created"]);
    question(&fixture, &["bob"]).await;
    let first = claim(&fixture).await.remove(0);
    fixture.forward(LEASE + SECOND);
    let second = claim(&fixture).await.remove(0);
    assert!(!allowed(&fixture, &first[0], INTERVAL).await);
    assert_eq!(sent(&fixture, &first).await, 0);
    assert!(allowed(&fixture, &second[0], INTERVAL).await);
    assert_eq!(sent(&fixture, &second).await, 1);
}

#[apply(both)]
async fn question_that_comes_during_a_send_waits_for_the_pause_and_not_for_the_lease(
    fixture: StoreFixture,
) {
    want(&fixture, &["request.created"]);
    let pause = 3 * SECOND;
    question(&fixture, &["bob"]).await;
    let first = claim_with_pause(&fixture, pause).await.remove(0);
    for _ in 0..2 {
        question(&fixture, &["bob"]).await;
        assert_eq!(
            claim_with_pause(&fixture, pause).await.len(),
            0,
            "the first is in flight"
        );
        fixture.forward(pause);
    }
    assert!(allowed(&fixture, &first[0], pause).await);
    assert_eq!(sent(&fixture, &first).await, 1);
    assert_eq!(
        claim_with_pause(&fixture, pause).await.len(),
        0,
        "the pause begins"
    );
    fixture.forward(pause);
    let next = claim_with_pause(&fixture, pause).await;
    assert_eq!((next.len(), next[0].len()), (1, 2));
}

#[apply(both)]
async fn message_does_not_wait_for_the_longer_pause_of_an_earlier_configuration(
    fixture: StoreFixture,
) {
    want(&fixture, &["request.created"]);
    question(&fixture, &["bob"]).await;
    let first = claim(&fixture).await.remove(0);
    assert!(allowed(&fixture, &first[0], Duration::from_hours(24)).await);
    assert_eq!(sent(&fixture, &first).await, 1);
    question(&fixture, &["bob"]).await;
    let second = claim(&fixture).await.remove(0);
    assert_eq!(second.len(), 1);
    assert!(allowed(&fixture, &second[0], INTERVAL).await);
    assert_eq!(sent(&fixture, &second).await, 1);
    question(&fixture, &["bob"]).await;
    assert_eq!(claim(&fixture).await.len(), 0, "the new pause begins");
}

#[apply(both)]
async fn person_gets_every_due_delivery_however_many_wait_for_other_people(fixture: StoreFixture) {
    want(&fixture, &["request.created"]);
    let names: Vec<String> = (10..40).map(|number| format!("user-{number}")).collect();
    let people: Vec<&str> = names.iter().map(String::as_str).collect();
    for _ in 0..35 {
        question(&fixture, &people).await;
    }
    let mut seen = Vec::new();
    for _ in 0..8 {
        for message in claim(&fixture).await {
            assert_eq!(message.len(), 35, "{}", message[0].person);
            assert_eq!(sent(&fixture, &message).await, 35);
            seen.push(message[0].person.clone());
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, names);
}

#[apply(both)]
async fn question_that_waits_to_be_gathered_is_no_backlog_before_its_time(fixture: StoreFixture) {
    want(&fixture, &["request.created"]);
    question(&fixture, &["bob"]).await;
    let message = claim(&fixture).await.remove(0);
    assert!(allowed(&fixture, &message[0], INTERVAL).await);
    assert_eq!(sent(&fixture, &message).await, 1);
    question(&fixture, &["bob"]).await;
    assert_eq!(claim(&fixture).await.len(), 0, "it has to wait");
    let backlogs = async || {
        fixture
            .store
            .delivery_backlogs(&["by-mail".to_owned()], &[])
            .await
            .unwrap()
    };
    assert_eq!(backlogs().await, []);
    fixture.forward(INTERVAL + SECOND);
    let [backlog] = &backlogs().await[..] else {
        panic!("one entry")
    };
    assert!(
        backlog.waiting == 1 && backlog.oldest < INTERVAL,
        "{backlog:?}"
    );
}

#[apply(both)]
async fn time_of_a_message_is_forgotten_an_hour_after_it(fixture: StoreFixture) {
    want(&fixture, &["request.created"]);
    question(&fixture, &["bob"]).await;
    let message = claim(&fixture).await.remove(0);
    assert!(allowed(&fixture, &message[0], INTERVAL).await);
    fixture.store.remove_spent_gathered().await.unwrap();
    question(&fixture, &["bob"]).await;
    assert_eq!(
        claim(&fixture).await.len(),
        0,
        "it is kept as long as it counts"
    );
    fixture.forward(INTERVAL + Duration::from_mins(61));
    fixture.store.remove_spent_gathered().await.unwrap();
    assert_eq!(claim(&fixture).await.len(), 1);
}

/// Runs on `SQLite` alone. There, opening the file expires all claims, because the process that
/// held them has ended. On Postgres, another process may still hold a claim, so opening a store
/// expires none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_of_an_ended_process_is_over_once_its_file_is_opened_again() {
    let fixture = StoreFixture::sqlite().await;
    want(&fixture, &["request.created"]);
    question(&fixture, &["alice", "bob"]).await;
    let messages = claim(&fixture).await;
    let bobs = &messages[1];
    let closed = fixture
        .store
        .allow_next_message("by-mail", &bobs[0], INTERVAL);
    assert!(closed.await.unwrap());
    assert_eq!(sent(&fixture, bobs).await, 1);
    question(&fixture, &["bob"]).await;
    fixture.store.close().await;
    let opened = Store::open(&fixture.settings, fixture.clock.clone()).await;
    let fixture = StoreFixture {
        store: opened.unwrap(),
        ..fixture
    };
    let again = claim(&fixture).await;
    let people: Vec<_> = again.iter().map(|one| one[0].person.as_str()).collect();
    assert_eq!(people, ["alice"], "bob has had a message in this interval");
}
