//! Tests how long a browser's session lasts.

use std::time::Duration;

use macro_rules_attribute::apply;

use super::store_fixture::{StoreFixture, both};

const LIFE: Duration = Duration::from_hours(12);

async fn begin(fixture: &StoreFixture, name: &str, binding: &str) {
    let begun = fixture.store.begin_session(name, binding, LIFE).await;
    begun.unwrap();
}

async fn binding(fixture: &StoreFixture, name: &str) -> Option<String> {
    fixture.store.session(name).await.unwrap()
}

#[apply(both)]
async fn session_lasts_its_time_and_then_counts_as_none(fixture: StoreFixture) {
    begin(&fixture, "one", "of-one").await;
    begin(&fixture, "two", "of-two").await;
    fixture.forward(LIFE.checked_sub(Duration::from_secs(30)).unwrap());
    assert_eq!(binding(&fixture, "one").await.as_deref(), Some("of-one"));
    assert_eq!(binding(&fixture, "two").await.as_deref(), Some("of-two"));
    assert_eq!(binding(&fixture, "three").await, None);
    fixture.forward(Duration::from_secs(30));
    assert_eq!(binding(&fixture, "one").await, None);
}

#[apply(both)]
async fn ended_session_is_gone_and_another_session_is_not(fixture: StoreFixture) {
    for name in ["one", "two"] {
        begin(&fixture, name, "binding").await;
    }
    fixture.store.end_session("one").await.unwrap();
    fixture.store.end_session("one").await.unwrap();
    assert_eq!(binding(&fixture, "one").await, None);
    assert!(binding(&fixture, "two").await.is_some());
    assert!(
        fixture
            .store
            .begin_session("two", "other", LIFE)
            .await
            .is_err(),
        "a token begins one session"
    );
    assert_eq!(binding(&fixture, "two").await.as_deref(), Some("binding"));
}

#[apply(both)]
async fn only_expired_sessions_are_removed(fixture: StoreFixture) {
    for name in ["one", "two"] {
        begin(&fixture, name, "binding").await;
    }
    fixture.forward(LIFE);
    begin(&fixture, "young", "binding").await;
    assert!(
        !fixture.store.remove_spent_sessions().await.unwrap(),
        "there are no more"
    );
    assert_eq!(fixture.count("browser_session").await, 1);
    assert!(binding(&fixture, "young").await.is_some());
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
