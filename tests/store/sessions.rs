//! Tests how long a browser's session lasts.

use std::time::Duration;

use macro_rules_attribute::apply;

use super::store_fixture::{StoreFixture, both};

const LIFE: Duration = Duration::from_hours(12);

#[apply(both)]
async fn session_lasts_its_time_and_then_counts_as_none(fixture: StoreFixture) {
    fixture
        .store
        .begin_session("one", "of-one", LIFE)
        .await
        .unwrap();
    fixture
        .store
        .begin_session("two", "of-two", LIFE)
        .await
        .unwrap();
    fixture.forward(LIFE.checked_sub(Duration::from_secs(30)).unwrap());
    assert_eq!(
        fixture.store.session("one").await.unwrap().as_deref(),
        Some("of-one")
    );
    assert_eq!(
        fixture.store.session("two").await.unwrap().as_deref(),
        Some("of-two")
    );
    assert_eq!(fixture.store.session("three").await.unwrap(), None);
    fixture.forward(Duration::from_secs(30));
    assert_eq!(fixture.store.session("one").await.unwrap(), None);
}

#[apply(both)]
async fn ended_session_is_gone_and_another_session_is_not(fixture: StoreFixture) {
    for name in ["one", "two"] {
        fixture
            .store
            .begin_session(name, "binding", LIFE)
            .await
            .unwrap();
    }
    fixture.store.end_session("one").await.unwrap();
    fixture.store.end_session("one").await.unwrap();
    assert_eq!(fixture.store.session("one").await.unwrap(), None);
    assert!(fixture.store.session("two").await.unwrap().is_some());
    assert!(
        fixture
            .store
            .begin_session("two", "other", LIFE)
            .await
            .is_err(),
        "a token begins one session"
    );
    assert_eq!(
        fixture.store.session("two").await.unwrap().as_deref(),
        Some("binding")
    );
}

#[apply(both)]
async fn only_expired_sessions_are_removed(fixture: StoreFixture) {
    for name in ["one", "two"] {
        fixture
            .store
            .begin_session(name, "binding", LIFE)
            .await
            .unwrap();
    }
    fixture.forward(LIFE);
    fixture
        .store
        .begin_session("young", "binding", LIFE)
        .await
        .unwrap();
    assert!(
        !fixture.store.remove_spent_sessions().await.unwrap(),
        "there are no more"
    );
    assert_eq!(fixture.count("browser_session").await, 1);
    assert!(fixture.store.session("young").await.unwrap().is_some());
}

#[apply(both)]
async fn removal_of_expired_sessions_is_bounded_per_round(fixture: StoreFixture) {
    let session = |number: usize| {
        let store = fixture.store.clone();
        async move {
            store
                .begin_session(&number.to_string(), "binding", LIFE)
                .await
                .unwrap();
        }
    };
    futures_util::future::join_all((0..1001).map(session)).await;
    fixture.forward(LIFE);
    assert!(
        fixture.store.remove_spent_sessions().await.unwrap(),
        "there may be more"
    );
    assert_eq!(fixture.count("browser_session").await, 1);
    assert!(!fixture.store.remove_spent_sessions().await.unwrap());
    assert_eq!(fixture.count("browser_session").await, 0);
}
