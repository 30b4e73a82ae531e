//! Tests that the store makes deliveries due again when they are resent.

use std::time::Duration;

use holdpoint::store::{
    Attempt, DeliveryFilter, DeliveryState, NewDelivery, NextState, ResendFilter, ResendKey,
    ResendTarget,
};
use holdpoint::task::user::UserIds;
use macro_rules_attribute::apply;
use sqlx::Executor as _;

use super::super::notices::{deliveries, notices, want};
use super::super::store_fixture::{StoreFixture, both, finance, fresh};
use super::{HOUR, RESEND_PATH, attempt, claim, listed, record, spread, two};

/// Selects every dead delivery to `backend`.
fn all_dead() -> ResendFilter {
    ResendFilter {
        tenant: "acme".to_owned(),
        target: "backend".to_owned(),
        state: DeliveryState::Dead,
        since: None,
    }
}

/// Returns the idempotency key of a POST that makes many deliveries due.
fn resend_key(user: &str, key: &str) -> ResendKey {
    ResendKey {
        tenant: "acme".to_owned(),
        user: UserIds::Folded.id(user),
        path: RESEND_PATH.to_owned(),
        key: key.to_owned(),
        body_digest: "00".to_owned(),
    }
}

/// Adds a trigger that simulates a fast sender: the trigger sets a delivery to `dead` as soon as an
/// update makes the delivery due. It does so at most three times for each delivery, and keeps the
/// count in the column `last_milliseconds`.
async fn end_at_once(fixture: &StoreFixture) {
    let sql = if fixture.is_postgres() {
        "create function end_at_once() returns trigger language plpgsql as $$
         begin
            new.state := 'dead';
            new.last_milliseconds := new.last_milliseconds + 1;
            return new;
         end $$;
         create trigger end_at_once before update on delivery for each row
            when (new.state = 'due' and new.last_milliseconds < 3) execute function end_at_once()"
    } else {
        "create trigger end_at_once after update on delivery
            when new.state = 'due' and new.last_milliseconds < 3
         begin
            update delivery set state = 'dead', last_milliseconds = last_milliseconds + 1
             where delivery_id = new.delivery_id;
         end"
    };
    fixture.database().execute(sql).await;
}

#[apply(both)]
async fn resend_ends_the_wait_that_a_receiver_asked_for(fixture: StoreFixture) {
    two(&fixture).await;
    let claimed = claim(&fixture, 4).await;
    let asked = Attempt {
        retry_after: Some(HOUR),
        ..attempt(NextState::Again(HOUR))
    };
    let ids = claimed.iter().map(|one| one.id).collect();
    assert_eq!(
        fixture
            .store
            .record_attempt(ids, claimed[0].lease_until, &asked)
            .await
            .unwrap()
            .len(),
        2
    );
    assert!(fixture.store.resend("acme", claimed[0].id).await.unwrap());
    let again = claim(&fixture, 4).await;
    assert_eq!((again.len(), again[0].id), (1, claimed[0].id));
}

#[apply(both)]
async fn resend_of_an_ended_delivery_forgets_that_it_was_attempted_early_and_of_a_waiting_one_does_not(
    fixture: StoreFixture,
) {
    for has_key in [false, true] {
        two(&fixture).await;
        for one in claim(&fixture, 4).await {
            assert!(record(&fixture, &one, NextState::Postponed(Duration::ZERO)).await);
        }
        let [ended, waiting] = &claim(&fixture, 4).await[..] else {
            panic!("two are due")
        };
        assert!(ended.came_early && waiting.came_early);
        record(&fixture, ended, NextState::Dead).await;
        record(&fixture, waiting, NextState::Again(HOUR)).await;
        for (one, key) in [(ended, "ended"), (waiting, "waiting")] {
            if has_key {
                let (target, key) = (ResendTarget::One(one.id), resend_key("ops", key));
                let resent = fixture.store.resend_with_key(&target, &key).await;
                assert_eq!(resent.unwrap(), Some(1));
            } else {
                assert!(fixture.store.resend("acme", one.id).await.unwrap());
            }
        }
        let mut early = Vec::new();
        for one in claim(&fixture, 4).await {
            early.push((one.id == waiting.id, one.came_early));
            record(&fixture, &one, NextState::Sent).await;
        }
        early.sort_unstable();
        assert_eq!(
            early,
            [(false, false), (true, true)],
            "with a key: {has_key}"
        );
    }
}

#[apply(both)]
async fn resent_delivery_is_due_with_all_its_attempts(fixture: StoreFixture) {
    two(&fixture).await;
    let [first, second] = &claim(&fixture, 4).await[..] else {
        panic!("two are due")
    };
    let (store, mut claimed) = (&fixture.store, first.clone());
    for ended in [NextState::Sent, NextState::Dropped] {
        assert!(record(&fixture, &claimed, ended).await);
        assert!(
            !store.resend("other", first.id).await.unwrap()
                && !store.resend("acme", fresh()).await.unwrap()
        );
        assert!(store.resend("acme", first.id).await.unwrap());
        let again = claim(&fixture, 4).await;
        assert_eq!(
            (again.len(), again[0].id, again[0].attempts),
            (1, first.id, 0)
        );
        claimed = again[0].clone();
    }
    assert!(store.resend("acme", second.id).await.unwrap());
    assert!(
        record(&fixture, second, NextState::Sent).await,
        "a delivery that is being sent keeps its lease"
    );
}

#[apply(both)]
async fn resent_delivery_counts_as_created_now_unless_it_was_still_due(fixture: StoreFixture) {
    two(&fixture).await;
    let store = &fixture.store;
    let before = store.now().await.unwrap();
    let ids: Vec<_> = listed(&fixture, DeliveryFilter::default())
        .await
        .iter()
        .map(|row| row.id)
        .collect();
    let all_are = async |state: &str| {
        let sql =
            format!("update delivery set state = '{state}', created_at = 1, lease_until = null");
        fixture.database().execute(&sql).await;
    };
    let are_new = async || {
        claim(&fixture, 4)
            .await
            .iter()
            .map(|one| one.created_at >= before)
            .collect::<Vec<_>>()
    };
    for (state, is_new) in [("dead", true), ("due", false)] {
        all_are(state).await;
        for id in &ids {
            assert!(store.resend("acme", *id).await.unwrap());
        }
        assert_eq!(are_new().await, [is_new; 2], "{state}");
        all_are(state).await;
        for id in &ids {
            let key = resend_key("ops", &format!("{state} {id}"));
            assert_eq!(
                store
                    .resend_with_key(&ResendTarget::One(*id), &key)
                    .await
                    .unwrap(),
                Some(1)
            );
        }
        assert_eq!(are_new().await, [is_new; 2], "{state}, with a key");
    }
    all_are("dead").await;
    assert_eq!(store.resend_all(&all_dead()).await.unwrap(), 2);
    assert_eq!(are_new().await, [true; 2], "all");
    all_are("dead").await;
    let all = ResendTarget::All(all_dead());
    assert_eq!(
        store
            .resend_with_key(&all, &resend_key("ops", "all"))
            .await
            .unwrap(),
        Some(2)
    );
    assert_eq!(are_new().await, [true; 2], "all, with a key");
}

#[apply(both)]
async fn resend_of_many_takes_those_of_the_entry_the_state_and_the_time(fixture: StoreFixture) {
    two(&fixture).await;
    for one in claim(&fixture, 4).await {
        record(&fixture, &one, NextState::Dead).await;
    }
    let between = fixture.store.now().await.unwrap();
    fixture.forward(HOUR);
    fixture.paused(finance(1)).await;
    spread(&fixture, "backend").await;
    for one in claim(&fixture, 4).await {
        record(&fixture, &one, NextState::Dead).await;
    }
    let resend = async |target: &str, state, since| {
        let filter = ResendFilter {
            tenant: "acme".to_owned(),
            target: target.to_owned(),
            state,
            since,
        };
        fixture.store.resend_all(&filter).await.unwrap()
    };
    assert_eq!(resend("other", DeliveryState::Dead, None).await, 0);
    assert_eq!(resend("backend", DeliveryState::Sent, None).await, 0);
    assert_eq!(
        resend("backend", DeliveryState::Dead, Some(between)).await,
        2
    );
    assert_eq!(resend("backend", DeliveryState::Dead, None).await, 2);
    assert_eq!(claim(&fixture, 9).await.len(), 4);
}

#[apply(both)]
async fn resend_of_many_makes_each_delivery_due_once_although_it_ends_at_once(
    fixture: StoreFixture,
) {
    want(&fixture, &["request.created"]);
    fixture.paused(finance(1)).await;
    let [notice] = notices(&fixture).await[..] else {
        panic!("one commit is wanted")
    };
    let events = deliveries(&fixture, &notice, "backend").await;
    let to = |person: i32| {
        events.iter().map(move |one| NewDelivery {
            id: fresh(),
            person: person.to_string(),
            ..one.clone()
        })
    };
    let new: Vec<_> = (0..750).flat_map(to).collect();
    fixture.store.replace_notices(&[notice], new).await.unwrap();
    let dead = "update delivery set state = 'dead', ended_at = due_at, last_milliseconds = 0";
    fixture.database().execute(dead).await;
    end_at_once(&fixture).await;
    assert_eq!(fixture.store.resend_all(&all_dead()).await.unwrap(), 1500);
    let once = "select count(*) from delivery where last_milliseconds = 1";
    assert_eq!(fixture.number(once).await, 1500);
}

#[apply(both)]
async fn resend_with_a_key_is_done_once_in_a_day_for_every_spelling_of_its_user(
    fixture: StoreFixture,
) {
    let key = |user: &str| resend_key(user, "k");
    let dead = ResendTarget::All(all_dead());
    let resend = async |user: &str| {
        fixture
            .store
            .resend_with_key(&dead, &key(user))
            .await
            .unwrap()
    };
    let stored = async |user: &str| {
        let stored = fixture
            .store
            .stored_resend("acme", &UserIds::Folded.id(user), RESEND_PATH, "k")
            .await
            .unwrap();
        stored.map(|stored| (stored.body_digest, stored.count))
    };
    let all_die = async || {
        for one in claim(&fixture, 4).await {
            record(&fixture, &one, NextState::Dead).await;
        }
    };
    two(&fixture).await;
    all_die().await;
    let unknown = fixture
        .store
        .resend_with_key(&ResendTarget::One(fresh()), &key("ops"))
        .await
        .unwrap();
    assert_eq!(
        (unknown, stored("ops").await),
        (Some(0), None),
        "a refused POST stores no key"
    );
    assert_eq!(resend("ops").await, Some(2));
    all_die().await;
    for user in ["ops", "Ops"] {
        assert_eq!(resend(user).await, None);
        assert_eq!(stored(user).await, Some(("00".to_owned(), 2)));
    }
    assert_eq!(
        claim(&fixture, 4).await,
        [],
        "a refused key makes nothing due"
    );
    fixture.forward(24 * HOUR);
    assert_eq!(stored("ops").await, None);
    assert_eq!(resend("Ops").await, Some(2));
    assert_eq!(resend("ops").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_resends_of_many_with_one_key_wait_for_locked_deliveries_and_store_their_count()
 {
    let fixture = StoreFixture::postgres().await;
    two(&fixture).await;
    let claimed = claim(&fixture, 4).await;
    for one in &claimed {
        record(&fixture, one, NextState::Dead).await;
    }
    let first = claimed.iter().map(|one| one.id).min().unwrap();
    let mut other = fixture.holding(("delivery", "delivery_id"), first).await;
    let (dead, key) = (ResendTarget::All(all_dead()), resend_key("ops", "k"));
    let lets_go = async {
        fixture.until_locked_out(2).await;
        other.execute("rollback").await.unwrap();
    };
    let (here, there, ()) = tokio::join!(
        fixture.store.resend_with_key(&dead, &key),
        fixture.store.resend_with_key(&dead, &key),
        lets_go
    );
    let mut counts = [here.unwrap(), there.unwrap()];
    counts.sort_unstable();
    assert_eq!(counts, [None, Some(2)]);
    let stored = fixture
        .store
        .stored_resend("acme", &key.user, RESEND_PATH, "k")
        .await
        .unwrap();
    assert_eq!(stored.map(|stored| stored.count), Some(2));
    assert_eq!(claim(&fixture, 4).await.len(), 2);
}
