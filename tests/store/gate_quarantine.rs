//! Tests which call the store finds as the call that has put a gate's tool into quarantine.

use std::time::Duration;

use holdpoint::task::change::TaskChange;
use holdpoint::task::id::TaskId;
use macro_rules_attribute::apply;

use super::gate_calls::{CALL, Call, found, new_call, propose};
use super::store_fixture::{StoreFixture, every_statement, fresh, said};

/// Calls which differ from `CALL` in a part of their place: the tenant, the gate, the user, the
/// session or the tool.
pub const ELSEWHERE: [Call; 5] = [
    Call {
        tenant: "globex",
        ..CALL
    },
    Call { gate: "ci", ..CALL },
    Call {
        user: "bob",
        ..CALL
    },
    Call {
        session: "other",
        ..CALL
    },
    Call {
        tool: "void",
        ..CALL
    },
];

/// Commits an item of the call's task with this change of the quarantine.
async fn write(fixture: &StoreFixture, id: TaskId, in_quarantine: Option<bool>) {
    let change = TaskChange {
        facts: vec![said("more")],
        in_quarantine,
        ..fixture.next(id).await
    };
    fixture.write(change).await.unwrap();
}

#[apply(every_statement)]
async fn newest_change_of_a_quarantine_in_a_session_counts_however_old_it_is(
    fixture: StoreFixture,
) {
    for other in ELSEWHERE {
        let id = propose(&fixture, other).await;
        write(&fixture, id, Some(true)).await;
    }
    let decided = propose(
        &fixture,
        Call {
            user: "ALICE",
            key: "b:2",
            ..CALL
        },
    )
    .await;
    let by = async || found(&fixture, Duration::ZERO).await.quarantined_by;
    assert_eq!(by().await, None);
    let failed = TaskId(fresh());
    let new = new_call(&Call { key: "b:3", ..CALL }, failed);
    fixture
        .write(TaskChange {
            in_quarantine: Some(true),
            ..new
        })
        .await
        .unwrap();
    assert_eq!(by().await, Some(failed));
    for (id, change, expected) in [
        (decided, Some(false), None),
        (failed, None, None),
        (failed, Some(true), Some(failed)),
        (decided, None, Some(failed)),
        (failed, Some(false), None),
        (decided, Some(true), Some(decided)),
    ] {
        write(&fixture, id, change).await;
        assert_eq!(by().await, expected, "{change:?}");
    }
}
