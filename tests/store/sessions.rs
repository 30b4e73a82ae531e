//! How long a browser's session lasts.

use std::time::Duration;

use super::house::both;

const LIFE: Duration = Duration::from_hours(12);

both! {
    async fn session_lasts_its_time_and_then_counts_as_none(house) {
        house.store.begin_session("one", "of-one", LIFE).await.unwrap();
        house.store.begin_session("two", "of-two", LIFE).await.unwrap();
        house.forward(LIFE.checked_sub(Duration::from_secs(30)).unwrap());
        assert_eq!(house.store.session("one").await.unwrap().as_deref(), Some("of-one"));
        assert_eq!(house.store.session("two").await.unwrap().as_deref(), Some("of-two"));
        assert_eq!(house.store.session("three").await.unwrap(), None);
        house.forward(Duration::from_secs(30));
        assert_eq!(house.store.session("one").await.unwrap(), None);
    }

    async fn ended_session_is_gone_and_its_neighbour_is_not(house) {
        for name in ["one", "two"] {
            house.store.begin_session(name, "binding", LIFE).await.unwrap();
        }
        house.store.end_session("one").await.unwrap();
        house.store.end_session("one").await.unwrap();
        assert_eq!(house.store.session("one").await.unwrap(), None);
        assert!(house.store.session("two").await.unwrap().is_some());
        assert!(house.store.begin_session("two", "other", LIFE).await.is_err(), "a token begins one session");
        assert_eq!(house.store.session("two").await.unwrap().as_deref(), Some("binding"));
    }

    async fn only_expired_sessions_are_removed(house) {
        for name in ["one", "two"] {
            house.store.begin_session(name, "binding", LIFE).await.unwrap();
        }
        house.forward(LIFE);
        house.store.begin_session("young", "binding", LIFE).await.unwrap();
        assert!(!house.store.remove_spent_sessions().await.unwrap(), "there are no more");
        assert_eq!(house.number("select count(*) from browser_session").await, 1);
        assert!(house.store.session("young").await.unwrap().is_some());
    }

    async fn removal_of_expired_sessions_is_bounded_per_round(house) {
        let session = |number: usize| {
            let store = house.store.clone();
            async move { store.begin_session(&number.to_string(), "binding", LIFE).await.unwrap() }
        };
        futures_util::future::join_all((0..1001).map(session)).await;
        house.forward(LIFE);
        assert!(house.store.remove_spent_sessions().await.unwrap(), "there may be more");
        assert_eq!(house.number("select count(*) from browser_session").await, 1);
        assert!(!house.store.remove_spent_sessions().await.unwrap());
        assert_eq!(house.number("select count(*) from browser_session").await, 0);
    }
}
