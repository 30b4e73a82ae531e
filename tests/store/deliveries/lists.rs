//! Tests the list of deliveries, and the backlog that the metrics show.

use holdpoint::store::{DeliveryFilter, DeliveryState, NextState};
use macro_rules_attribute::apply;

use super::super::notices::want;
use super::super::store_fixture::{StoreFixture, both, finance};
use super::{HOUR, SECOND, claim, listed, record, seconds_before, spread, two};

#[apply(both)]
async fn sent_or_dropped_delivery_is_listed_for_three_days_and_a_dead_one_for_thirty(
    fixture: StoreFixture,
) {
    two(&fixture).await;
    let [first, second] = &claim(&fixture, 4).await[..] else {
        panic!("two are due")
    };
    record(&fixture, first, NextState::Sent).await;
    record(&fixture, second, NextState::Dead).await;
    two(&fixture).await;
    for one in claim(&fixture, 4).await {
        record(&fixture, &one, NextState::Dropped).await;
    }
    let ids = async || {
        assert!(!fixture.store.remove_spent_deliveries().await.unwrap());
        listed(&fixture, DeliveryFilter::default())
            .await
            .iter()
            .map(|row| row.id)
            .collect::<Vec<_>>()
    };
    fixture.forward(seconds_before(72 * HOUR, 30));
    assert_eq!(ids().await.len(), 4);
    fixture.forward(60 * SECOND);
    assert_eq!(ids().await, [second.id]);
    fixture.forward(seconds_before(27 * 24 * HOUR, 60));
    assert_eq!(ids().await, [second.id]);
    fixture.forward(60 * SECOND);
    assert!(ids().await.is_empty());
}

#[apply(both)]
async fn list_is_newest_first_in_pages_and_by_every_filter(fixture: StoreFixture) {
    want(&fixture, &["request.created"]);
    let (task, asked) = fixture.paused(finance(1)).await;
    spread(&fixture, "backend").await;
    fixture.paused(finance(1)).await;
    spread(&fixture, "other").await;
    let all = listed(&fixture, DeliveryFilter::default()).await;
    assert_eq!(all.len(), 4);
    assert!(all.windows(2).all(|two| two[0].id > two[1].id));
    let page = DeliveryFilter {
        tenant: "acme".to_owned(),
        limit: 3,
        ..DeliveryFilter::default()
    };
    let first = fixture.store.deliveries(&page).await.unwrap();
    let next = first.next(|row| row.id);
    assert_eq!((first.rows.as_slice(), next), (&all[..3], Some(all[2].id)));
    let second = fixture
        .store
        .deliveries(&DeliveryFilter {
            before: next,
            ..page
        })
        .await
        .unwrap();
    assert_eq!((second.rows.as_slice(), second.more), (&all[3..], false));
    let count = async |filter: DeliveryFilter| listed(&fixture, filter).await.len();
    assert_eq!(
        count(DeliveryFilter {
            targets: vec!["other".to_owned()],
            ..DeliveryFilter::default()
        })
        .await,
        2
    );
    assert_eq!(
        count(DeliveryFilter {
            requests: vec![asked.request_id],
            ..DeliveryFilter::default()
        })
        .await,
        1
    );
    assert_eq!(
        count(DeliveryFilter {
            roots: vec![task],
            ..DeliveryFilter::default()
        })
        .await,
        2
    );
    assert_eq!(
        count(DeliveryFilter {
            states: vec![DeliveryState::Sent],
            ..DeliveryFilter::default()
        })
        .await,
        0
    );
    let foreign = DeliveryFilter {
        tenant: "other".to_owned(),
        limit: 50,
        ..DeliveryFilter::default()
    };
    assert_eq!(fixture.store.deliveries(&foreign).await.unwrap().rows, []);
}

#[apply(both)]
async fn backlog_counts_what_waits_and_the_age_of_the_oldest(fixture: StoreFixture) {
    two(&fixture).await;
    fixture.forward(HOUR);
    let backend = ["backend".to_owned()];
    let [backlog] = &fixture
        .store
        .delivery_backlogs(&backend, &[])
        .await
        .unwrap()[..]
    else {
        panic!("one entry")
    };
    assert_eq!((backlog.name.as_str(), backlog.waiting), ("backend", 2));
    assert!(
        backlog.oldest >= HOUR && backlog.oldest < 2 * HOUR,
        "{:?}",
        backlog.oldest
    );
    for one in claim(&fixture, 4).await {
        record(&fixture, &one, NextState::Again(2 * HOUR)).await;
    }
    let [failed] = &fixture
        .store
        .delivery_backlogs(&backend, &[])
        .await
        .unwrap()[..]
    else {
        panic!("one entry")
    };
    assert!(failed.waiting == 2 && failed.oldest >= HOUR, "{failed:?}");
}

#[apply(both)]
async fn delivery_that_the_configuration_cannot_send_is_no_backlog(fixture: StoreFixture) {
    two(&fixture).await;
    let change = "update delivery set type = 'request.decided' where type = 'task.paused'";
    fixture.database().execute(change).await;
    let backend = ["backend".to_owned()];
    let waiting = async |targets: &[String], without_updates: &[String]| {
        let backlogs = fixture
            .store
            .delivery_backlogs(targets, without_updates)
            .await
            .unwrap();
        backlogs.iter().map(|backlog| backlog.waiting).sum::<i64>()
    };
    assert_eq!(waiting(&backend, &[]).await, 2);
    assert_eq!(
        waiting(&backend, &backend).await,
        1,
        "the entry does not send the update"
    );
    assert_eq!(waiting(&[], &[]).await, 0, "there is no such entry");
}
