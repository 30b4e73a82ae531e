//! Tests deliveries. A process claims them by a lease and records their attempts under this lease.
//! Deliveries can also be made due early, dropped, removed, listed and sent again.

use std::time::Duration;

use holdpoint::store::{
    Attempt, ClaimedDelivery, DeliveryFilter, DeliveryRow, DeliveryState, NewDelivery, NextState,
    ResendFilter, ResendKey, ResendTarget,
};
use holdpoint::task::user::UserIds;
use macro_rules_attribute::apply;

use super::notices::{deliveries, notices, want};
use super::store_fixture::{StoreFixture, both, finance, fresh};

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

/// Adds a trigger that ends a delivery as soon as it is made due, as a fast sender does. The
/// trigger counts in `last_milliseconds`, and ends each delivery three times at most.
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
async fn delivery_is_claimed_by_one_process_until_its_lease_is_over(fixture: StoreFixture) {
    two(&fixture).await;
    let first = claim(&fixture, 1).await;
    let rest = claim(&fixture, 4).await;
    assert_eq!((first.len(), rest.len()), (1, 1));
    assert_eq!(
        (first[0].kind.as_str(), rest[0].kind.as_str()),
        ("request.created", "task.paused")
    );
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
        !record(&fixture, &again[0], NextState::Sent).await,
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
    let store = &fixture.store;
    assert_eq!(
        store
            .make_waiting_deliveries_due("other", Vec::new())
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        store
            .make_waiting_deliveries_due("backend", vec![second.id])
            .await
            .unwrap(),
        1
    );
    let pulled = &claim(&fixture, 4).await[0];
    assert_eq!((pulled.id, pulled.came_early), (first.id, true));
    // The next attempt follows the schedule. `came_early` is still true, because the delivery
    // has had an early attempt.
    assert!(record(&fixture, pulled, NextState::Again(Duration::ZERO)).await);
    let later = &claim(&fixture, 4).await[0];
    assert_eq!((later.id, later.came_early), (first.id, true));
    assert_eq!(
        store
            .make_waiting_deliveries_due("backend", Vec::new())
            .await
            .unwrap(),
        1
    );
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
    assert_eq!(
        fixture
            .store
            .make_waiting_deliveries_due("backend", Vec::new())
            .await
            .unwrap(),
        0
    );
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
        store
            .make_waiting_deliveries_due("backend", Vec::new())
            .await
            .unwrap(),
        1,
        "the second has an hour to go"
    );
    assert_eq!(
        store
            .make_waiting_deliveries_due("backend", Vec::new())
            .await
            .unwrap(),
        0
    );
    fixture.forward(seconds_before(HOUR, 30));
    assert_eq!(claim(&fixture, 4).await, []);
    fixture.forward(60 * SECOND);
    assert_eq!(claim(&fixture, 4).await.len(), 2);
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
    for one in [ended, waiting] {
        assert!(fixture.store.resend("acme", one.id).await.unwrap());
    }
    let mut early = Vec::new();
    for one in claim(&fixture, 4).await {
        early.push((one.id == waiting.id, one.came_early));
    }
    early.sort_unstable();
    assert_eq!(early, [(false, false), (true, true)]);
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
        assert_eq!(
            (last.http_status, last.problem.as_deref()),
            (None, Some(problem))
        );
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

#[apply(both)]
async fn sent_delivery_is_listed_for_three_days_and_a_dead_one_for_thirty(fixture: StoreFixture) {
    two(&fixture).await;
    let [first, second] = &claim(&fixture, 4).await[..] else {
        panic!("two are due")
    };
    record(&fixture, first, NextState::Sent).await;
    record(&fixture, second, NextState::Dead).await;
    let ids = async || {
        assert!(!fixture.store.remove_spent_deliveries().await.unwrap());
        listed(&fixture, DeliveryFilter::default())
            .await
            .iter()
            .map(|row| row.id)
            .collect::<Vec<_>>()
    };
    fixture.forward(seconds_before(72 * HOUR, 30));
    assert_eq!(ids().await.len(), 2);
    fixture.forward(60 * SECOND);
    assert_eq!(ids().await, [second.id]);
    fixture.forward(seconds_before(27 * 24 * HOUR, 60));
    assert_eq!(ids().await, [second.id]);
    fixture.forward(60 * SECOND);
    assert!(ids().await.is_empty());
}

#[apply(both)]
async fn resent_delivery_is_due_with_all_its_attempts(fixture: StoreFixture) {
    two(&fixture).await;
    let [first, second] = &claim(&fixture, 4).await[..] else {
        panic!("two are due")
    };
    record(&fixture, first, NextState::Sent).await;
    let store = &fixture.store;
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
        assert_eq!(
            (resend(user).await, stored(user).await),
            (None, Some(("00".to_owned(), 2)))
        );
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
