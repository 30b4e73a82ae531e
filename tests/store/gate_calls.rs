//! Tests what the store keeps of calls at a gate: how long the client that waits for a call (the
//! asker) counts as present, equal calls, and the number of pending calls.

mod askers;
mod equal_calls;

use std::time::Duration;

use holdpoint::store::{CommitError, EqualCall, FoundCalls};
use holdpoint::task::change::{
    ASKER_UNTIL_DELIVERED, AskerPresence, Counters, Guard, IdempotencyRow, KeyedCall, LeaseChange,
    TaskChange,
};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use holdpoint::task::user::UserId;
use holdpoint::task::verdict::Terms;
use macro_rules_attribute::apply;

use super::store_fixture::{
    StoreFixture, both, child_task, fresh, new_task, request_spec, said, status,
};

const MINUTE: Duration = Duration::from_mins(1);
const ANY_AGE: Duration = Duration::MAX;

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

/// Like [`found`], but returns only the calls.
async fn equal(fixture: &StoreFixture, max_age: Duration) -> Vec<EqualCall> {
    found(fixture, max_age).await.calls
}

/// Returns the earlier calls that the store finds for a new call like [`CALL`] with the keys `b:1`
/// and `k:1`. Calls that ended more than `max_age` ago are left out.
pub async fn found(fixture: &StoreFixture, max_age: Duration) -> FoundCalls {
    found_by_keys(fixture, CALL, &["b:1", "k:1"], max_age).await
}

/// Like [`found`], but for a new call like `call`, with `keys` instead of its key.
async fn found_by_keys(
    fixture: &StoreFixture,
    call: Call,
    keys: &[&str],
    max_age: Duration,
) -> FoundCalls {
    let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    let user = call.user.into();
    let read = fixture.store.equal_calls(
        call.tenant,
        call.gate,
        &user,
        call.session,
        call.tool,
        &keys,
        max_age,
    );
    read.await.unwrap()
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
            .count("agent_task where call_tool = 'refund' and call_key = 'b:1'")
            .await,
        1
    );
    let other = fixture.task().await;
    assert_eq!(asker_until(&fixture, other).await, None);
    assert_eq!(
        fixture
            .count("agent_task where call_key is null and call_tool is null")
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
async fn identity_that_a_later_commit_stores_is_found_and_kept_and_counts_the_pending_call(
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
        fixture.commit(id, tasks).await;
        let found = found_by_keys(&fixture, Call { tool, ..CALL }, &["b:1"], ANY_AGE).await;
        assert_eq!(
            found
                .calls
                .iter()
                .map(|call| (call.task_id, call.call_key.as_str()))
                .collect::<Vec<_>>(),
            [(id, "b:1")]
        );
        for other in [None, Some("k:2")] {
            let mut later = fixture.next(id).await;
            later.facts = vec![said("more")];
            later.call = other.map(|key| KeyedCall {
                tool: "other".to_owned(),
                key: key.to_owned(),
            });
            fixture.write(later).await.unwrap();
            let kept = format!("agent_task where call_tool = '{tool}' and call_key = 'b:1'");
            assert_eq!(fixture.count(&kept).await, 1, "{other:?}");
        }
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
async fn delivery_of_the_result_of_an_ended_call_is_noted_once(fixture: StoreFixture) {
    let id = propose(&fixture, CALL).await;
    end(&fixture, id).await;
    let noted = presence(&fixture, id, AskerPresence::Delivered).await;
    fixture.write(noted.clone()).await.unwrap();
    assert_eq!(fixture.write(noted).await, Err(CommitError::Stale));
    assert_eq!(asker_until(&fixture, id).await, Some(ASKER_UNTIL_DELIVERED));
    assert_eq!(
        equal(&fixture, ANY_AGE).await[0].asker_until,
        Some(ASKER_UNTIL_DELIVERED)
    );
}
