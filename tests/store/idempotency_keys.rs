//! Tests how long an idempotency key lasts.

use std::time::Duration;

use holdpoint::store::CommitError;
use holdpoint::task::change::{AskerPresence, Change, IdempotencyRow};
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{CloseReason, Fact};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use holdpoint::task::user::{UserId, UserIds};
use holdpoint::task::verdict::Terms;
use macro_rules_attribute::apply;

use super::store_fixture::{StoreFixture, both, change, fresh, new_task, request_spec, status};

const DAY: Duration = Duration::from_hours(24);

fn row(key: &str, task_id: TaskId, request_id: Option<RequestId>) -> IdempotencyRow {
    IdempotencyRow {
        tenant: "acme".to_owned(),
        user_id: "alice".to_owned(),
        person: UserId::from("alice").folded(),
        path: "POST /v1/tasks".to_owned(),
        key: key.to_owned(),
        body_digest: "00".to_owned(),
        task_id,
        request_id,
    }
}

/// Returns the id of a new task, and the change that creates the task under this key.
fn create(key: &str, request_id: Option<RequestId>) -> (TaskId, Change) {
    let id = TaskId(fresh());
    let mut create = change(id, vec![new_task(id, "acme", "alice")]);
    create.idempotency = Some(row(key, id, request_id));
    (id, create)
}

/// Like `create`, but for the user in this spelling. `ids` says how user ids are compared.
fn create_as(user: &str, ids: UserIds, key: &str) -> (TaskId, Change) {
    let id = TaskId(fresh());
    let mut create = change(id, vec![new_task(id, "acme", user)]);
    let person = ids.id(user).folded();
    create.idempotency = Some(IdempotencyRow {
        user_id: user.to_owned(),
        person,
        ..row(key, id, None)
    });
    (id, create)
}

/// Commits the change that creates a task. Returns the task's id.
async fn created(fixture: &StoreFixture, (id, create): (TaskId, Change)) -> TaskId {
    fixture.store.commit(create).await.unwrap();
    id
}

async fn stored(fixture: &StoreFixture, user: &str, key: &str) -> Option<IdempotencyRow> {
    fixture
        .store
        .idempotency("acme", &user.into(), "POST /v1/tasks", key)
        .await
        .unwrap()
}

/// Returns the task that `key` names for the user whose id is spelled `user`.
async fn known(fixture: &StoreFixture, user: &str, key: &str) -> Option<TaskId> {
    stored(fixture, user, key).await.map(|row| row.task_id)
}

/// Commits the changes at once. Asserts that exactly one succeeds and the others are refused.
/// Returns the task of the successful change.
async fn only_winner(fixture: &StoreFixture, attempts: Vec<(TaskId, Change)>) -> TaskId {
    let ids: Vec<_> = attempts.iter().map(|(id, _)| *id).collect();
    let commits = attempts
        .into_iter()
        .map(|(_, change)| fixture.store.commit(change));
    let results = futures_util::future::join_all(commits).await;
    let refused = results
        .iter()
        .filter(|result| **result == Err(CommitError::Refused));
    assert_eq!(refused.count(), results.len() - 1, "{results:?}");
    ids[results.iter().position(Result::is_ok).unwrap()]
}

#[apply(both)]
async fn key_lasts_a_day_and_then_counts_as_never_used(fixture: StoreFixture) {
    let first = created(&fixture, create("k", None)).await;
    fixture.forward(DAY.checked_sub(Duration::from_secs(30)).unwrap());
    assert_eq!(known(&fixture, "alice", "k").await, Some(first));
    assert_eq!(
        fixture.store.commit(create("k", None).1).await,
        Err(CommitError::Refused)
    );
    fixture.forward(Duration::from_secs(30));
    assert_eq!(known(&fixture, "alice", "k").await, None);
    // Several commits use the expired key at once: exactly one succeeds.
    let attempts: Vec<_> = (0..8).map(|_| create("k", None)).collect();
    let winner = only_winner(&fixture, attempts).await;
    assert_eq!(
        stored(&fixture, "alice", "k").await,
        Some(row("k", winner, None))
    );
    assert_eq!(
        fixture.count("agent_task").await,
        2,
        "nothing is left of the others"
    );
}

#[apply(both)]
async fn spent_key_is_used_anew_in_another_spelling_of_its_user(fixture: StoreFixture) {
    // `alice` stores a row while ids are compared byte by byte. Later `Alice` stores a second
    // row.
    created(&fixture, create_as("alice", UserIds::Exact, "k")).await;
    fixture.forward(DAY);
    let first = created(&fixture, create_as("Alice", UserIds::Folded, "k")).await;
    assert_eq!(fixture.count("idempotency").await, 2);
    assert_eq!(
        fixture
            .store
            .commit(create_as("ALICE", UserIds::Folded, "k").1)
            .await,
        Err(CommitError::Refused)
    );
    assert_eq!(known(&fixture, "alice", "k").await, Some(first));
    fixture.forward(DAY);
    assert_eq!(known(&fixture, "alice", "k").await, None);
    // Several spellings use the expired key at once: exactly one commit succeeds.
    let attempts: Vec<_> = ["alice", "Alice", "ALICE", "alice", "aLICE", "Alice"]
        .map(|spelling| create_as(spelling, UserIds::Folded, "k"))
        .into();
    let winner = only_winner(&fixture, attempts).await;
    for spelling in ["alice", "Alice", "ALICE", "aLICE", "alICE"] {
        assert_eq!(
            known(&fixture, spelling, "k").await,
            Some(winner),
            "{spelling}"
        );
    }
    assert_eq!(
        fixture.count("agent_task").await,
        3,
        "nothing is left of the others"
    );
}

#[apply(both)]
async fn spent_keys_of_two_spellings_give_way_to_the_first_use_of_either(fixture: StoreFixture) {
    created(&fixture, create_as("alice", UserIds::Exact, "k")).await;
    fixture.forward(DAY);
    created(&fixture, create_as("Alice", UserIds::Folded, "k")).await;
    fixture.forward(DAY);
    assert_eq!(fixture.count("idempotency").await, 2);
    let id = created(&fixture, create_as("alice", UserIds::Folded, "k")).await;
    assert_eq!(known(&fixture, "ALICE", "k").await, Some(id));
    assert_eq!(fixture.count("idempotency").await, 1);
}

#[apply(both)]
async fn key_of_an_answer_is_kept_from_every_spelling_of_its_user(fixture: StoreFixture) {
    let (_, mut answer) = create_as("Alice", UserIds::Folded, "k");
    answer.idempotency.as_mut().unwrap().request_id = Some(RequestId(fresh()));
    fixture.store.commit(answer).await.unwrap();
    fixture.forward(DAY * 400);
    assert_eq!(
        fixture
            .store
            .commit(create_as("alice", UserIds::Folded, "k").1)
            .await,
        Err(CommitError::Refused)
    );
    // Alice's stored row with the key `k` blocks neither Bob's key `k` nor Alice's key `l`.
    for (user, key) in [("Bob", "k"), ("Alice", "l")] {
        created(&fixture, create_as(user, UserIds::Folded, key)).await;
    }
    fixture.forward(DAY);
    created(&fixture, create_as("alice", UserIds::Folded, "l")).await;
    assert_eq!(
        fixture
            .count("idempotency where user_id in ('Alice', 'Bob')")
            .await,
        2
    );
}

#[apply(both)]
async fn idempotency_key_of_a_decision_lasts_as_long_as_its_request(fixture: StoreFixture) {
    let request = RequestId(fresh());
    let id = created(&fixture, create("k", Some(request))).await;
    fixture.forward(DAY * 400);
    let found = fixture
        .store
        .idempotency("acme", &"alice".into(), "POST /v1/tasks", "k")
        .await
        .unwrap();
    assert_eq!(found, Some(row("k", id, Some(request))));
    assert_eq!(
        fixture.store.commit(create("k", None).1).await,
        Err(CommitError::Refused)
    );
    fixture.store.remove_spent_keys().await.unwrap();
    assert_eq!(fixture.count("idempotency").await, 1);
}

#[apply(both)]
async fn key_of_a_call_at_a_gate_lasts_until_a_day_after_its_task_has_ended(fixture: StoreFixture) {
    let key_of = async |path: &str, key: &str| {
        fixture
            .store
            .idempotency("acme", &"alice".into(), path, key)
            .await
            .unwrap()
            .map(|row| row.task_id)
    };
    let removed = async || {
        fixture.store.remove_spent_keys().await.unwrap();
        fixture.count("idempotency").await
    };
    let path = "/v1/gate/calls";
    let (id, mut call) = create("k", None);
    path.clone_into(&mut call.idempotency.as_mut().unwrap().path);
    fixture.store.commit(call).await.unwrap();
    created(&fixture, create(path, None)).await;
    fixture.forward(DAY * 3);
    assert_eq!(key_of(path, "k").await, Some(id), "running");
    assert_eq!(removed().await, 1, "the key of another path is removed");
    let asked = request_spec(RequestKind::Approval, Terms::default(), 1);
    fixture.pause(id, &asked).await;
    fixture.forward(DAY * 3);
    assert_eq!(key_of(path, "k").await, Some(id), "paused");
    assert_eq!(removed().await, 1);
    let mut end = fixture.next(id).await;
    let withdrawn = Fact::RequestClosed {
        request_id: asked.request_id,
        status: RequestStatus::Withdrawn,
        reason: CloseReason::Canceled,
    };
    end.facts = vec![withdrawn, status(TaskStatus::Canceled)];
    end.counters.open_requests = -1;
    fixture.write(end).await.unwrap();
    fixture.forward(DAY.checked_sub(Duration::from_secs(30)).unwrap());
    assert_eq!(
        key_of(path, "k").await,
        Some(id),
        "ended less than a day ago"
    );
    assert_eq!(removed().await, 1);
    // The call ended earlier. The later delivery of its result does not prolong the key.
    let mut delivered = fixture.next(id).await;
    delivered.asker = Some(AskerPresence::Delivered);
    fixture.write(delivered).await.unwrap();
    fixture.forward(Duration::from_secs(30));
    assert_eq!(key_of(path, "k").await, None);
    assert_eq!(removed().await, 0);
}

#[apply(both)]
async fn only_spent_keys_are_removed(fixture: StoreFixture) {
    for number in 0..3 {
        created(&fixture, create(&format!("old{number}"), None)).await;
    }
    fixture.forward(DAY);
    created(&fixture, create("young", None)).await;
    // An expired key begins a new lifetime when it is used again.
    created(&fixture, create("old1", None)).await;
    assert!(
        !fixture.store.remove_spent_keys().await.unwrap(),
        "there are no more"
    );
    assert_eq!(fixture.count("idempotency").await, 2);
    let old = fixture
        .store
        .idempotency("acme", &"alice".into(), "POST /v1/tasks", "old1")
        .await
        .unwrap();
    assert!(old.is_some());
}

/// `set_default` captures the log of the current thread alone, so the test uses a runtime with a
/// single thread.
#[tokio::test]
async fn used_key_is_no_warning_whichever_constraint_refuses_it() {
    for fixture in [StoreFixture::sqlite().await, StoreFixture::postgres().await] {
        let (_, mut answer) = create_as("Alice", UserIds::Folded, "k");
        answer.idempotency.as_mut().unwrap().request_id = Some(RequestId(fresh()));
        fixture.store.commit(answer).await.unwrap();
        let log = tempfile::NamedTempFile::new().unwrap();
        let printing = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_writer(log.reopen().unwrap());
        let _printing = tracing::subscriber::set_default(printing.finish());
        let logged = || std::fs::read_to_string(log.path()).unwrap();
        // The stored row has the first spelling. A unique index refuses the other.
        for user in ["Alice", "alice"] {
            let (_, anew) = create_as(user, UserIds::Folded, "k");
            let refused = fixture.store.commit(anew).await;
            assert_eq!(refused, Err(CommitError::Refused));
            assert_eq!(logged(), "", "{user}");
        }
        fixture.database().execute("drop table idempotency").await;
        fixture.store.commit(create("k", None).1).await.unwrap_err();
        let warning = "a change could not be written";
        assert!(logged().contains(warning), "{}", logged());
    }
}
