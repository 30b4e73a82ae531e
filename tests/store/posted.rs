//! Tests posted messages: which message was posted about a request, and which requests a message
//! lists.

use std::time::Duration;

use holdpoint::store::{
    Attempt, ClaimedDelivery, DeliveryChannel, ListedRequests, MessageState, NextState,
};
use holdpoint::task::decision::Action;
use holdpoint::task::id::RequestId;
use macro_rules_attribute::apply;

use super::notices::{deliveries, notices, want};
use super::store_fixture::{StoreFixture, both, finance};

const LEASE: Duration = Duration::from_secs(20);
const TS: &str = "1503435956.000247";

/// Opens a request. Makes a delivery of the request to each of the entries `room` and `other`.
async fn question(fixture: &StoreFixture) -> RequestId {
    want(fixture, &["request.created", "request.decided"]);
    let (_, asked) = fixture.paused(finance(1)).await;
    spread(fixture, &["room", "other"]).await;
    asked.request_id
}

/// Replaces each stored notice of a commit by deliveries of the commit's `request.…` events to each
/// of these targets.
async fn spread(fixture: &StoreFixture, targets: &[&str]) {
    for notice in notices(fixture).await {
        let mut new = Vec::new();
        for target in targets {
            let mut all = deliveries(fixture, &notice, target).await;
            all.retain(|one| one.kind.starts_with("request."));
            for one in &mut all {
                one.channel = DeliveryChannel::Slack;
            }
            new.append(&mut all);
        }
        fixture.store.replace_notices(&[notice], new).await.unwrap();
    }
}

async fn claim(fixture: &StoreFixture, target: &str) -> Vec<ClaimedDelivery> {
    let claimed = fixture.store.claim_deliveries(target, 9, LEASE, &[]).await;
    claimed.unwrap()
}

/// Records that these deliveries were sent as one message. `reference` is the id of the message at
/// the receiver.
async fn record(fixture: &StoreFixture, claimed: &[ClaimedDelivery], reference: Option<&str>) {
    let attempt = Attempt {
        next: NextState::Sent,
        http_status: Some(200),
        problem: "",
        retry_after: None,
        took: Duration::from_millis(41),
        reference: reference.map(str::to_owned),
    };
    let ids: Vec<_> = claimed.iter().map(|one| one.id).collect();
    let until = claimed[0].lease_until;
    let recorded = fixture.store.record_attempt(ids, until, &attempt).await;
    assert_eq!(recorded.unwrap().len(), claimed.len());
}

async fn posted(fixture: &StoreFixture, target: &str, request: RequestId) -> MessageState {
    fixture.store.message_state(target, request).await.unwrap()
}

async fn listed(fixture: &StoreFixture, target: &str, limit: i64) -> ListedRequests {
    fixture
        .store
        .listed_requests(target, TS, limit)
        .await
        .unwrap()
}

#[apply(both)]
async fn message_is_being_sent_under_its_lease_and_known_once_it_is_recorded(
    fixture: StoreFixture,
) {
    let asked = question(&fixture).await;
    assert_eq!(
        posted(&fixture, "room", asked).await,
        MessageState::NotSent,
        "it waits"
    );
    claim(&fixture, "room").await;
    assert_eq!(posted(&fixture, "room", asked).await, MessageState::Sending);
    assert_eq!(
        posted(&fixture, "other", asked).await,
        MessageState::NotSent,
        "another entry's"
    );
    fixture.forward(LEASE);
    assert_eq!(
        posted(&fixture, "room", asked).await,
        MessageState::NotSent,
        "its lease is over"
    );
    let claimed = claim(&fixture, "room").await;
    record(&fixture, &claimed, Some(TS)).await;
    assert_eq!(
        posted(&fixture, "room", asked).await,
        MessageState::SentAs(TS.to_owned())
    );
    for (target, request) in [
        ("other", asked),
        ("none", asked),
        ("room", question(&fixture).await),
    ] {
        assert_eq!(
            posted(&fixture, target, request).await,
            MessageState::NotSent
        );
    }
}

#[apply(both)]
async fn message_that_is_being_sent_again_is_known_once_that_is_recorded(fixture: StoreFixture) {
    let asked = question(&fixture).await;
    let claimed = claim(&fixture, "room").await;
    record(&fixture, &claimed, Some(TS)).await;
    assert!(fixture.store.resend("acme", claimed[0].id).await.unwrap());
    assert_eq!(
        posted(&fixture, "room", asked).await,
        MessageState::SentAs(TS.to_owned()),
        "it waits"
    );
    let again = claim(&fixture, "room").await;
    assert_eq!(posted(&fixture, "room", asked).await, MessageState::Sending);
    let later = "1503435957.000300";
    record(&fixture, &again, Some(later)).await;
    assert_eq!(
        posted(&fixture, "room", asked).await,
        MessageState::SentAs(later.to_owned())
    );
}

#[apply(both)]
async fn message_without_an_id_cannot_be_changed(fixture: StoreFixture) {
    let asked = question(&fixture).await;
    let claimed = claim(&fixture, "room").await;
    record(&fixture, &claimed, None).await;
    assert_eq!(posted(&fixture, "room", asked).await, MessageState::NotSent);
}

#[apply(both)]
async fn message_that_told_of_the_beginning_is_found_and_no_change_of_it(fixture: StoreFixture) {
    want(&fixture, &["request.created", "request.decided"]);
    let (task, asked) = fixture.paused(finance(1)).await;
    fixture.decide(task, &asked, "carol", Action::Approve).await;
    spread(&fixture, &["room"]).await;
    let claimed = claim(&fixture, "room").await;
    let change: Vec<_> = claimed
        .iter()
        .filter(|one| one.kind == "request.decided")
        .cloned()
        .collect();
    assert_eq!((claimed.len(), change.len()), (2, 1));
    record(&fixture, &change, Some(TS)).await;
    assert_eq!(
        posted(&fixture, "room", asked.request_id).await,
        MessageState::Sending,
        "the beginning is not recorded"
    );
}

#[apply(both)]
async fn oldest_requests_of_a_message_are_listed_with_the_number_of_all(fixture: StoreFixture) {
    let mut asked = Vec::new();
    for _ in 0..3 {
        asked.push(question(&fixture).await);
    }
    let claimed = claim(&fixture, "room").await;
    record(&fixture, &claimed, Some(TS)).await;
    question(&fixture).await;
    let all = ListedRequests {
        requests: asked.clone(),
        total: 3,
        kind: "request.created".to_owned(),
    };
    assert_eq!(listed(&fixture, "room", 20).await, all);
    let two = ListedRequests {
        requests: asked[..2].to_vec(),
        ..all
    };
    assert_eq!(listed(&fixture, "room", 2).await, two);
    assert_eq!(
        listed(&fixture, "other", 20).await,
        ListedRequests::default(),
        "another entry's"
    );
    let claimed = claim(&fixture, "other").await;
    record(&fixture, &claimed, Some(TS)).await;
    assert_eq!(
        listed(&fixture, "room", 20).await.total,
        3,
        "the same id of another receiver"
    );
}
