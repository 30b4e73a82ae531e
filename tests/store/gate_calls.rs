//! Tests what the store keeps of calls at a gate: how long the client that waits for a call (the
//! asker) counts as present, equal calls, and the number of pending calls.

use std::time::Duration;

use holdpoint::store::{CommitError, EqualCall, FoundCalls, Store};
use holdpoint::task::change::{
    ASKER_UNTIL_DELIVERED, AskerPresence, Counters, Guard, IdempotencyRow, KeyedCall, LeaseChange,
    TaskChange,
};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::task::user::{UserId, UserIds};
use holdpoint::task::verdict::Terms;
use macro_rules_attribute::apply;
use sqlx::{Executor as _, Row as _};

use super::gate_quarantine::ELSEWHERE;
use super::store_fixture::{
    StoreFixture, both, change, child_task, fresh, new_task, request_spec, said, status,
};
use crate::support::until;

const MINUTE: Duration = Duration::from_mins(1);

#[derive(Clone, Copy)]
pub struct Call {
    pub tenant: &'static str,
    pub gate: &'static str,
    pub user: &'static str,
    pub session: &'static str,
    pub tool: &'static str,
    pub key: &'static str,
}

pub const CALL: Call = Call {
    tenant: "acme",
    gate: "cli",
    user: "alice",
    session: "gate",
    tool: "refund",
    key: "b:1",
};

pub fn new_call(call: &Call, id: TaskId) -> TaskChange {
    let mut new = new_task(id, call.tenant, call.user);
    if let Guard::New(row) = &mut new.guard {
        call.gate.clone_into(&mut row.agent);
        call.session.clone_into(&mut row.session_id);
        row.agent_path = vec![call.gate.to_owned()];
    }
    new.call = Some(KeyedCall {
        tool: call.tool.to_owned(),
        key: call.key.to_owned(),
    });
    new.asker = Some(AskerPresence::PresentFor(MINUTE));
    new
}

pub async fn propose(fixture: &StoreFixture, call: Call) -> TaskId {
    let id = TaskId(fresh());
    let new = new_call(&call, id);
    fixture.write(new).await.unwrap();
    id
}

async fn pending(fixture: &StoreFixture, call: Call, kind: RequestKind) -> TaskId {
    let id = propose(fixture, call).await;
    fixture
        .pause(id, &request_spec(kind, Terms::default(), 1))
        .await;
    id
}

async fn end(fixture: &StoreFixture, id: TaskId) {
    let mut end = fixture.next(id).await;
    end.facts = vec![status(TaskStatus::Completed)];
    end.counters.busy = -1;
    end.lease = LeaseChange::Park { wake_in: None };
    fixture.write(end).await.unwrap();
}

/// Returns a change that sets the presence of the asker, and changes nothing else.
async fn presence(fixture: &StoreFixture, id: TaskId, asker: AskerPresence) -> TaskChange {
    let mut change = fixture.next(id).await;
    change.asker = Some(asker);
    change
}

async fn asker_until(fixture: &StoreFixture, id: TaskId) -> Option<Time> {
    fixture.row(id).await.asker_until
}

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

fn key(task_id: TaskId) -> IdempotencyRow {
    IdempotencyRow {
        tenant: "acme".to_owned(),
        user_id: "alice".to_owned(),
        person: UserId::from("alice").folded(),
        path: "/v1/gate/calls".to_owned(),
        key: "k".to_owned(),
        body_digest: "00".to_owned(),
        task_id,
        request_id: None,
    }
}

/// Returns the calls that equal [`CALL`] apart from the key, which is `b:1` or `k:1`. The calls are
/// open or have ended since `since`.
async fn equal(fixture: &StoreFixture, since: Time) -> Vec<EqualCall> {
    found(fixture, since).await.calls
}

/// Returns all that the store finds for [`CALL`]. The calls are those of [`equal`].
pub async fn found(fixture: &StoreFixture, since: Time) -> FoundCalls {
    let keys = ["b:1".to_owned(), "k:1".to_owned()];
    fixture
        .store
        .equal_calls(
            "acme",
            "cli",
            &"alice".into(),
            "gate",
            "refund",
            &keys,
            since,
        )
        .await
        .unwrap()
}

fn ids(calls: &[EqualCall]) -> Vec<TaskId> {
    calls.iter().map(|call| call.task_id).collect()
}

#[apply(both)]
async fn new_call_stores_its_identity_and_how_long_its_asker_waits(fixture: StoreFixture) {
    let id = TaskId(fresh());
    let at = fixture.write(new_call(&CALL, id)).await.unwrap().at;
    assert_eq!(asker_until(&fixture, id).await, Some(at + MINUTE));
    assert_eq!(
        fixture
            .number(
                "select count(*) from agent_task where call_tool = 'refund' and call_key = 'b:1'"
            )
            .await,
        1
    );
    let other = fixture.task().await;
    assert_eq!(asker_until(&fixture, other).await, None);
    assert_eq!(
        fixture
            .number("select count(*) from agent_task where call_key is null and call_tool is null")
            .await,
        1
    );
    let mut nul = new_call(&CALL, TaskId(fresh()));
    nul.call = Some(KeyedCall {
        tool: "re\0fund".to_owned(),
        key: "b:1".to_owned(),
    });
    assert_eq!(fixture.write(nul).await, Err(CommitError::Refused));
}

#[apply(both)]
async fn identity_that_a_later_commit_stores_is_found_and_counts_the_pending_call(
    fixture: StoreFixture,
) {
    // With a child, the commit changes two tasks, so the store writes it with the general
    // statement instead of the statement for single tasks.
    for with_child in [false, true] {
        let tool = if with_child { "refund" } else { "void" };
        let id = TaskId(fresh());
        let identity = KeyedCall {
            tool: tool.to_owned(),
            key: "b:1".to_owned(),
        };
        fixture
            .write(TaskChange {
                call: None,
                asker: None,
                ..new_call(&CALL, id)
            })
            .await
            .unwrap();
        let mut next = presence(&fixture, id, AskerPresence::Absent).await;
        next.call = Some(identity);
        next.facts = vec![Fact::InterventionRequested(request_spec(
            RequestKind::Elicitation,
            Terms::default(),
            1,
        ))];
        next.counters = Counters {
            busy: i32::from(with_child),
            open_requests: 1,
            ..Counters::default()
        };
        let child = with_child.then(|| child_task(TaskId(fresh()), id));
        let tasks = [next].into_iter().chain(child).collect();
        fixture.store.commit(change(id, tasks)).await.unwrap();
        let keys = ["b:1".to_owned()];
        let alice = "alice".into();
        let found = fixture
            .store
            .equal_calls("acme", "cli", &alice, "gate", tool, &keys, Time(0));
        let found = found.await.unwrap().calls;
        assert_eq!(
            found
                .iter()
                .map(|call| (call.task_id, call.call_key.as_str()))
                .collect::<Vec<_>>(),
            [(id, "b:1")]
        );
        let mut later = fixture.next(id).await;
        later.facts = vec![said("more")];
        fixture.write(later).await.unwrap();
        assert_eq!(
            fixture
                .number("select count(*) from agent_task where call_key = 'b:1'")
                .await,
            1 + i64::from(with_child)
        );
    }
    assert_eq!(
        fixture
            .store
            .open_calls("acme", "cli", &"alice".into(), 9)
            .await
            .unwrap(),
        2
    );
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
        assert_eq!(
            (after.row.version, after.row.asker_until),
            (row.version + 1, Some(until))
        );
        assert_eq!(
            (after.row.updated_at, &after.items),
            (before.row.updated_at, &before.items)
        );
        assert_eq!(
            (
                after.row.parked,
                after.row.lease_until,
                after.row.next_event
            ),
            (row.parked, row.lease_until, row.next_event)
        );
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
    assert_eq!(
        (journal.row.updated_at, journal.row.asker_until),
        (at, Some(at + MINUTE))
    );
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

#[apply(both)]
async fn delivery_of_the_result_of_an_ended_call_is_noted_once(fixture: StoreFixture) {
    let id = propose(&fixture, CALL).await;
    end(&fixture, id).await;
    let noted = presence(&fixture, id, AskerPresence::Delivered).await;
    fixture.write(noted.clone()).await.unwrap();
    assert_eq!(fixture.write(noted).await, Err(CommitError::Stale));
    assert_eq!(asker_until(&fixture, id).await, Some(ASKER_UNTIL_DELIVERED));
    assert_eq!(
        equal(&fixture, Time(0)).await[0].asker_until,
        Some(ASKER_UNTIL_DELIVERED)
    );
}

#[apply(both)]
async fn equal_calls_are_those_of_one_tenant_gate_user_session_tool_and_key(fixture: StoreFixture) {
    let first = propose(&fixture, CALL).await;
    let named = propose(&fixture, Call { key: "k:1", ..CALL }).await;
    for other in [&ELSEWHERE[..], &[Call { key: "b:2", ..CALL }]].concat() {
        propose(&fixture, other).await;
    }
    fixture.task().await;
    let found = equal(&fixture, Time(0)).await;
    assert_eq!(ids(&found), [named, first], "the newest first");
    let row = fixture.row(first).await;
    let now = found[1].now;
    let expected = EqualCall {
        task_id: first,
        status: TaskStatus::Running,
        call_key: "b:1".to_owned(),
        asker_until: row.asker_until,
        updated_at: row.updated_at,
        outcome_unknown: false,
        is_decided: false,
        now,
    };
    assert_eq!(found[1], expected);
    assert!(now >= row.updated_at);
    let folded = UserIds::Folded.id("Alice");
    let theirs = fixture
        .store
        .equal_calls(
            "acme",
            "cli",
            &folded,
            "gate",
            "refund",
            &["b:1".to_owned()],
            Time(0),
        )
        .await;
    assert_eq!(
        ids(&theirs.unwrap().calls),
        [first],
        "one person, however the id is spelled"
    );
    let none = fixture
        .store
        .equal_calls(
            "acme",
            "cli",
            &"alice".into(),
            "gate",
            "refund",
            &[],
            Time(0),
        )
        .await;
    assert_eq!(none.unwrap().calls, []);
}

#[apply(both)]
async fn ended_call_counts_from_its_end_and_an_open_one_always(fixture: StoreFixture) {
    let open = propose(&fixture, CALL).await;
    let ended = propose(&fixture, CALL).await;
    fixture.forward(10 * MINUTE);
    end(&fixture, ended).await;
    fixture.forward(10 * MINUTE);
    fixture
        .write(presence(&fixture, ended, AskerPresence::Absent).await)
        .await
        .unwrap();
    let at = fixture.row(ended).await.updated_at;
    assert_eq!(ids(&equal(&fixture, at).await), [ended, open]);
    assert_eq!(ids(&equal(&fixture, Time(at.0 + 1)).await), [open]);
}

#[apply(both)]
async fn pending_call_of_the_same_tool_is_found_with_its_doubt(fixture: StoreFixture) {
    let doubtful = pending(
        &fixture,
        Call { key: "b:2", ..CALL },
        RequestKind::Reconcile,
    )
    .await;
    let asked = pending(&fixture, Call { key: "b:3", ..CALL }, RequestKind::Approval).await;
    let equal_doubtful = pending(&fixture, CALL, RequestKind::Reconcile).await;
    propose(&fixture, Call { key: "b:4", ..CALL }).await;
    for other in ELSEWHERE {
        pending(&fixture, other, RequestKind::Reconcile).await;
    }
    let found = equal(&fixture, Time(0)).await;
    let found: Vec<_> = found
        .iter()
        .map(|call| (call.task_id, call.outcome_unknown, call.status))
        .collect();
    let paused = TaskStatus::Paused;
    assert_eq!(
        found,
        [
            (equal_doubtful, true, paused),
            (asked, false, paused),
            (doubtful, true, paused)
        ]
    );
}

#[apply(both)]
async fn look_for_equal_calls_keeps_the_open_and_the_doubtful_ones_among_many(
    fixture: StoreFixture,
) {
    let open = propose(&fixture, CALL).await;
    let doubtful = pending(
        &fixture,
        Call { key: "b:2", ..CALL },
        RequestKind::Reconcile,
    )
    .await;
    for _ in 0..25 {
        let id = propose(&fixture, CALL).await;
        end(&fixture, id).await;
        pending(&fixture, Call { key: "b:3", ..CALL }, RequestKind::Approval).await;
    }
    let found = equal(&fixture, Time(0)).await;
    assert_eq!(
        found.iter().filter(|call| call.call_key == "b:1").count(),
        20
    );
    assert_eq!(found.len(), 40);
    assert!(ids(&found).contains(&open) && ids(&found).contains(&doubtful));
    assert!(
        found
            .windows(2)
            .all(|pair| pair[0].task_id > pair[1].task_id),
        "the newest first"
    );
}

#[apply(both)]
async fn pending_calls_are_counted_by_gate_and_user_up_to_a_maximum(fixture: StoreFixture) {
    let open = async |gate: &str, user: &UserId, most| {
        fixture
            .store
            .open_calls("acme", gate, user, most)
            .await
            .unwrap()
    };
    let alice = UserId::from("alice");
    assert_eq!(open("cli", &alice, 10).await, 0);
    let id = pending(&fixture, CALL, RequestKind::Approval).await;
    pending(
        &fixture,
        Call {
            session: "other",
            key: "k:7",
            ..CALL
        },
        RequestKind::Approval,
    )
    .await;
    pending(
        &fixture,
        Call {
            tool: "void",
            ..CALL
        },
        RequestKind::Reconcile,
    )
    .await;
    for other in [
        Call {
            tenant: "globex",
            ..CALL
        },
        Call { gate: "ci", ..CALL },
        Call {
            user: "bob",
            ..CALL
        },
    ] {
        pending(&fixture, other, RequestKind::Approval).await;
    }
    propose(&fixture, CALL).await;
    // The task of an agent does not count as a call at a gate, even when the agent's name is
    // given as the gate's name.
    let task = fixture.task().await;
    fixture
        .pause(
            task,
            &request_spec(RequestKind::Approval, Terms::default(), 1),
        )
        .await;
    assert_eq!(open("billing", &alice, 10).await, 0);
    assert_eq!(open("cli", &alice, 10).await, 3);
    assert_eq!(open("cli", &alice, 2).await, 2);
    assert_eq!(open("cli", &UserIds::Folded.id("ALICE"), 10).await, 3);
    assert_eq!(open("ci", &alice, 10).await, 1);
    let asked = fixture.store.pending(id, id).await.unwrap().remove(0).spec;
    let decided = fixture
        .deciding(
            id,
            &asked,
            "alice",
            holdpoint::task::decision::Action::Approve,
        )
        .await;
    fixture.write(decided).await.unwrap();
    assert_eq!(
        open("cli", &alice, 10).await,
        2,
        "a decided call is not pending"
    );
}

/// Tests spellings without a stored key (the folded form). `fold_spellings` stores the key some
/// time after the first row with the spelling.
mod unfolded_spellings {
    use super::*;

    #[apply(both)]
    async fn calls_of_one_person_are_found_and_those_of_others_are_not(fixture: StoreFixture) {
        let alice = pending(
            &fixture,
            Call {
                user: "ALICE",
                ..CALL
            },
            RequestKind::Approval,
        )
        .await;
        let plain = pending(&fixture, CALL, RequestKind::Approval).await;
        for _ in 0..25 {
            pending(
                &fixture,
                Call {
                    user: "BOB",
                    ..CALL
                },
                RequestKind::Approval,
            )
            .await;
            pending(
                &fixture,
                Call {
                    user: "BOB",
                    key: "k:7",
                    ..CALL
                },
                RequestKind::Approval,
            )
            .await;
        }
        for folded in [false, true] {
            let found = equal(&fixture, Time(0)).await;
            assert_eq!(ids(&found), [plain, alice], "keys are stored: {folded}");
            let open = async |user: UserId| {
                fixture
                    .store
                    .open_calls("acme", "cli", &user, 30)
                    .await
                    .unwrap()
            };
            assert_eq!(open("Alice".into()).await, 2);
            assert_eq!(open(UserIds::Exact.id("ALICE")).await, 1);
            assert_eq!(open("bob".into()).await, 30);
            fixture.store.fold_spellings().await.unwrap();
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
