//! Tests commits that change the asker of a call: the client that waits for its verdict.

use std::time::Duration;

use holdpoint::store::{CommitError, Store};
use holdpoint::task::change::{
    ASKER_UNTIL_DELIVERED, AskerPresence, Counters, Guard, IdempotencyRow,
};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::time::Time;
use holdpoint::task::verdict::Terms;
use macro_rules_attribute::apply;
use sqlx::{Executor as _, Row as _};

use super::super::store_fixture::{
    StoreFixture, both, change, child_task, fresh, request_spec, said,
};
use super::{CALL, MINUTE, asker_until, key, pending, presence, propose};
use crate::support::until;

#[tokio::test]
async fn presence_is_stored_with_its_process_while_the_asker_waits() {
    let fixture = StoreFixture::postgres().await;
    let has_lock = async || fixture.store.ends_presence();
    until("the process holds its lock", has_lock).await;
    let owners = "select count(*) from agent_task where asker_owner is not null";
    let id = propose(&fixture, CALL).await;
    let mut next = fixture.next(id).await;
    next.facts = vec![said("more")];
    fixture.write(next).await.unwrap();
    assert_eq!(fixture.number(owners).await, 1);
    for asker in [AskerPresence::Absent, AskerPresence::Delivered] {
        let gone = presence(&fixture, id, asker).await;
        fixture.write(gone).await.unwrap();
        assert_eq!(fixture.number(owners).await, 0, "{asker:?}");
        let waits = presence(&fixture, id, AskerPresence::PresentFor(MINUTE)).await;
        fixture.write(waits).await.unwrap();
        assert_eq!(fixture.number(owners).await, 1);
    }
}

#[tokio::test]
async fn presence_that_is_over_is_read_without_the_lock_of_its_process() {
    let fixture = StoreFixture::postgres().await;
    let has_lock = async || fixture.store.ends_presence();
    until("the process holds its lock", has_lock).await;
    let other = Store::open(&fixture.settings, fixture.clock.clone());
    let other = other.await.unwrap();
    let id = propose(&fixture, CALL).await;
    let over = presence(&fixture, id, AskerPresence::PresentFor(Duration::ZERO)).await;
    let at = fixture.write(over).await.unwrap().at;
    assert_eq!(asker_until(&fixture, id).await, Some(at));
    let row = other.task(id).await.unwrap().unwrap();
    assert_eq!(row.asker_until, Some(Time(0)));
}

#[apply(both)]
async fn change_of_the_asker_alone_increments_the_version_and_writes_nothing_else(
    fixture: StoreFixture,
) {
    let id = propose(&fixture, CALL).await;
    let before = fixture.store.journal(id).await.unwrap().unwrap();
    let mut news = fixture.store.watch(id);
    for asker in [
        AskerPresence::PresentFor(MINUTE),
        AskerPresence::Absent,
        AskerPresence::PresentFor(Duration::ZERO),
        AskerPresence::Delivered,
    ] {
        fixture.forward(Duration::from_secs(1));
        let row = fixture.row(id).await;
        let at = fixture
            .write(presence(&fixture, id, asker).await)
            .await
            .unwrap()
            .at;
        let after = fixture.store.journal(id).await.unwrap().unwrap();
        let until = match asker {
            AskerPresence::PresentFor(time) => at + time,
            AskerPresence::Absent => Time(0),
            AskerPresence::Delivered => ASKER_UNTIL_DELIVERED,
        };
        assert!(
            at >= row.updated_at + Duration::from_secs(1),
            "the time of the commit is not that of the last item"
        );
        assert_eq!(after.row.version, row.version + 1);
        assert_eq!(after.row.asker_until, Some(until));
        assert_eq!(after.row.updated_at, before.row.updated_at);
        assert_eq!(after.items, before.items);
        assert_eq!(after.row.parked, row.parked);
        assert_eq!(after.row.lease_until, row.lease_until);
        assert_eq!(after.row.next_event, row.next_event);
    }
    assert!(
        !news.has_changed().unwrap(),
        "a reader of the tree has nothing to read"
    );
    let mut next = fixture.next(id).await;
    next.facts = vec![said("more")];
    fixture.write(next).await.unwrap();
    assert!(news.has_changed().unwrap());
    news.mark_unchanged();
    assert_eq!(
        asker_until(&fixture, id).await,
        Some(ASKER_UNTIL_DELIVERED),
        "a change without an asker leaves it"
    );
}

#[apply(both)]
async fn second_of_two_askers_at_one_version_is_stale(fixture: StoreFixture) {
    let id = pending(&fixture, CALL, RequestKind::Approval).await;
    let mut first = change(
        id,
        vec![presence(&fixture, id, AskerPresence::PresentFor(MINUTE)).await],
    );
    first.idempotency = Some(key(id));
    let mut second = change(
        id,
        vec![presence(&fixture, id, AskerPresence::PresentFor(2 * MINUTE)).await],
    );
    second.idempotency = Some(IdempotencyRow {
        key: "l".to_owned(),
        ..key(id)
    });
    let mut decision = fixture.next(id).await;
    decision.facts = vec![said("decided")];
    let at = fixture.store.commit(first).await.unwrap().at;
    assert_eq!(fixture.store.commit(second).await, Err(CommitError::Stale));
    assert_eq!(fixture.write(decision).await, Err(CommitError::Stale));
    assert_eq!(asker_until(&fixture, id).await, Some(at + MINUTE));
    assert_eq!(
        fixture
            .numbers("select created_at from idempotency")
            .await
            .unwrap(),
        [at.0],
        "only the key of the first"
    );
    let found = fixture
        .store
        .idempotency("acme", &"alice".into(), "/v1/gate/calls", "k")
        .await
        .unwrap();
    assert_eq!(found, Some(key(id)));
    let mut again = change(
        id,
        vec![presence(&fixture, id, AskerPresence::Absent).await],
    );
    again.idempotency = Some(key(id));
    assert_eq!(
        fixture.store.commit(again).await,
        Err(CommitError::Refused),
        "the key is spent"
    );
    assert_eq!(asker_until(&fixture, id).await, Some(at + MINUTE));
}

#[apply(both)]
async fn items_and_the_asker_of_one_commit_have_one_time(fixture: StoreFixture) {
    let id = propose(&fixture, CALL).await;
    let mut next = presence(&fixture, id, AskerPresence::PresentFor(MINUTE)).await;
    next.facts = vec![said("started")];
    let at = fixture.write(next).await.unwrap().at;
    let journal = fixture.store.journal(id).await.unwrap().unwrap();
    assert_eq!(journal.row.updated_at, at);
    assert_eq!(journal.row.asker_until, Some(at + MINUTE));
    assert_eq!(journal.items.last().unwrap().at, at);
    // This commit changes two tasks, so the store writes it with the general statement instead
    // of the statement for single tasks.
    let mut parent = presence(&fixture, id, AskerPresence::PresentFor(MINUTE)).await;
    parent.facts = vec![Fact::InterventionRequested(request_spec(
        RequestKind::Approval,
        Terms::default(),
        1,
    ))];
    parent.counters = Counters {
        busy: 1,
        open_requests: 1,
        ..Counters::default()
    };
    let both = change(id, vec![parent, child_task(TaskId(fresh()), id)]);
    let at = fixture.store.commit(both).await.unwrap().at;
    let row = fixture.row(id).await;
    assert_eq!((row.updated_at, row.asker_until), (at, Some(at + MINUTE)));
    assert_eq!(
        fixture
            .store
            .open_calls("acme", "cli", &"alice".into(), 9)
            .await
            .unwrap(),
        1
    );
}

#[apply(both)]
async fn askers_of_a_batch_come_and_leave_beside_other_changes(fixture: StoreFixture) {
    let mut tasks = Vec::new();
    for _ in 0..30 {
        tasks.push(propose(&fixture, CALL).await);
    }
    let mut writes = tokio::task::JoinSet::new();
    for (number, id) in tasks.into_iter().enumerate() {
        let mut next = fixture.next(id).await;
        match number % 3 {
            0 => next.asker = Some(AskerPresence::PresentFor(MINUTE)),
            1 => next.facts = vec![said("more")],
            _ => (next.asker, next.guard) = (Some(AskerPresence::Absent), Guard::Version(7)),
        }
        let store = fixture.store.clone();
        writes.spawn(async move { (number, id, store.commit(change(id, vec![next])).await) });
    }
    while let Some(done) = writes.join_next().await {
        let (number, id, result) = done.unwrap();
        let row = fixture.row(id).await;
        match (number % 3, result) {
            (0, Ok(done)) => {
                assert_eq!((row.version, row.asker_until), (2, Some(done.at + MINUTE)));
            }
            (1, Ok(done)) => assert_eq!((row.version, row.updated_at), (2, done.at)),
            (2, Err(CommitError::Stale)) => assert_eq!(
                (row.version, row.asker_until),
                (1, Some(row.created_at + MINUTE))
            ),
            (_, result) => panic!("change {number}: {result:?}"),
        }
    }
}

/// Postgres counts HOT updates, which touch no index, separately. It publishes the counts when the
/// connections of the store have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_the_asker_touches_no_index() {
    let fixture = StoreFixture::postgres().await;
    let id = propose(&fixture, CALL).await;
    for number in 0..50 {
        let asker = if number % 2 == 0 {
            AskerPresence::PresentFor(MINUTE)
        } else {
            AskerPresence::Absent
        };
        fixture
            .write(presence(&fixture, id, asker).await)
            .await
            .unwrap();
    }
    fixture.store.close().await;
    let mut connection = fixture.connection().await;
    let (all, hot) = loop {
        let sql =
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'agent_task'";
        let row = connection.fetch_one(sql).await.unwrap();
        let (all, hot): (i64, i64) = (row.get(0), row.get(1));
        if all >= 50 {
            break (all, hot);
        }
    };
    assert!(hot * 100 >= all * 90, "{hot} of {all} updates are HOT");
    let indexed = fixture
        .number(
            "select count(*) from pg_indexes where tablename = 'agent_task'
                and (indexdef like '%asker_until%' or indexdef like '%status%' or indexdef like '%version)%')",
        )
        .await;
    assert_eq!(indexed, 0);
}
