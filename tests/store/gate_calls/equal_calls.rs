//! Tests which calls the store finds as equal to an ask, and which pending calls it counts.

use holdpoint::store::EqualCall;
use holdpoint::task::change::{AskerPresence, TaskChange};
use holdpoint::task::id::TaskId;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::user::{UserId, UserIds};
use holdpoint::task::verdict::Terms;
use macro_rules_attribute::apply;

use super::super::gate_quarantine::ELSEWHERE;
use super::super::store_fixture::{StoreFixture, both, fresh, request_spec};
use super::{
    ANY_AGE, CALL, Call, MINUTE, end, equal, found_by_keys, ids, new_call, pending, presence,
    propose,
};

#[apply(both)]
async fn equal_calls_are_those_of_one_tenant_gate_user_session_tool_and_key(fixture: StoreFixture) {
    let first = propose(&fixture, CALL).await;
    let named = propose(&fixture, Call { key: "k:1", ..CALL }).await;
    for other in [&ELSEWHERE[..], &[Call { key: "b:2", ..CALL }]].concat() {
        propose(&fixture, other).await;
    }
    fixture.task().await;
    let found = equal(&fixture, ANY_AGE).await;
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
    let spelled = Call {
        user: "Alice",
        ..CALL
    };
    let theirs = found_by_keys(&fixture, spelled, &["b:1"], ANY_AGE).await;
    assert_eq!(
        ids(&theirs.calls),
        [first],
        "one person, however the id is spelled"
    );
    let none = found_by_keys(&fixture, CALL, &[], ANY_AGE).await;
    assert_eq!(none.calls, []);
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
    // The call ended 10 minutes ago, and its presence has changed since.
    assert_eq!(ids(&equal(&fixture, 15 * MINUTE).await), [ended, open]);
    assert_eq!(ids(&equal(&fixture, 10 * MINUTE).await), [open]);
}

#[apply(both)]
async fn call_of_the_same_tool_is_found_if_its_outcome_is_unknown(fixture: StoreFixture) {
    let doubtful = pending(
        &fixture,
        Call { key: "b:2", ..CALL },
        RequestKind::Reconcile,
    )
    .await;
    pending(&fixture, Call { key: "b:3", ..CALL }, RequestKind::Approval).await;
    let equal_doubtful = pending(&fixture, CALL, RequestKind::Reconcile).await;
    propose(&fixture, Call { key: "b:4", ..CALL }).await;
    for other in ELSEWHERE {
        pending(&fixture, other, RequestKind::Reconcile).await;
    }
    let found = equal(&fixture, ANY_AGE).await;
    let found: Vec<_> = found
        .iter()
        .map(|call| (call.task_id, call.outcome_unknown, call.status))
        .collect();
    let paused = TaskStatus::Paused;
    assert_eq!(
        found,
        [(equal_doubtful, true, paused), (doubtful, true, paused)]
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
    let found = equal(&fixture, ANY_AGE).await;
    assert_eq!(
        found.iter().filter(|call| call.call_key == "b:1").count(),
        20
    );
    assert_eq!(found.len(), 21);
    assert!(ids(&found).contains(&open) && ids(&found).contains(&doubtful));
    assert!(
        found
            .windows(2)
            .all(|pair| pair[0].task_id > pair[1].task_id),
        "the newest first"
    );
}

#[apply(both)]
async fn keyed_calls_are_those_of_one_tenant_gate_user_session_and_tool(fixture: StoreFixture) {
    let has = async |user: UserId| {
        let store = &fixture.store;
        let read = store.has_keyed_calls("acme", "cli", &user, "gate", "refund");
        read.await.unwrap()
    };
    for other in ELSEWHERE {
        propose(&fixture, other).await;
    }
    let unkeyed = TaskChange {
        call: None,
        asker: None,
        ..new_call(&CALL, TaskId(fresh()))
    };
    fixture.write(unkeyed).await.unwrap();
    assert!(!has("alice".into()).await);
    let named = Call {
        user: "ALICE",
        key: "k:1",
        ..CALL
    };
    let id = propose(&fixture, named).await;
    end(&fixture, id).await;
    assert!(has("alice".into()).await);
    assert!(!has(UserIds::Exact.id("alice")).await);
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
    fixture
        .decide(
            id,
            &asked,
            "alice",
            holdpoint::task::decision::Action::Approve,
        )
        .await;
    assert_eq!(
        open("cli", &alice, 10).await,
        2,
        "a decided call is not pending"
    );
}

/// Tests calls whose user has a spelling without a stored key. The key is the folded form of the
/// spelling. `Store::fold_spellings` stores it some time after the first call of the user.
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
            let found = equal(&fixture, ANY_AGE).await;
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
