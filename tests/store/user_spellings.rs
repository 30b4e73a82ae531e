//! Tests that rows are found under every spelling of their user. Some rows were stored by an older
//! version.

use std::time::Duration;

use holdpoint::store::{CommitError, RequestFilter, Store, TaskFilter};
use holdpoint::task::change::{Change, IdempotencyRow};
use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::status::RequestStatus;
use holdpoint::task::user::{UserId, UserIds, Viewer};
use holdpoint::task::verdict::{Approvers, Terms};
use macro_rules_attribute::apply;

use super::store_fixture::{StoreFixture, acme_requests, both, change, fresh, new_task};

const PATH: &str = "POST /v1/tasks";

async fn tasks(store: &Store, users: Vec<UserId>) -> Vec<TaskId> {
    let filter = TaskFilter {
        tenant: "acme".to_owned(),
        users,
        limit: 50,
        ..TaskFilter::default()
    };
    let mut found: Vec<_> = store
        .tasks(&filter)
        .await
        .unwrap()
        .iter()
        .map(|row| row.task_id)
        .collect();
    found.sort();
    found
}

/// Returns the number of open requests that a user sees, and the number of requests in any status
/// that the user sees.
async fn requests(store: &Store, user: &UserId) -> (usize, usize) {
    let person = Viewer {
        user_id: user.clone(),
        ..Viewer::default()
    };
    let filter = |statuses| RequestFilter {
        person: Some(person.clone()),
        statuses,
        ..acme_requests(50)
    };
    let pending = store
        .requests(&filter(vec![RequestStatus::Pending]))
        .await
        .unwrap()
        .len();
    (
        pending,
        store.requests(&filter(Vec::new())).await.unwrap().len(),
    )
}

fn terms(users: &[&str]) -> Terms {
    let users = users.iter().map(ToString::to_string).collect();
    Terms {
        approvers: Approvers {
            owner: false,
            users,
            groups: vec!["Finance".to_owned()],
            required: 1,
            links: None,
        },
        ..Terms::default()
    }
}

fn keyed(user: &UserId, key: &str) -> (TaskId, Change) {
    let id = TaskId(fresh());
    let mut create = change(id, vec![new_task(id, "acme", user.as_str())]);
    create.idempotency = Some(IdempotencyRow {
        tenant: "acme".to_owned(),
        user_id: user.to_string(),
        person: user.folded(),
        path: PATH.to_owned(),
        key: key.to_owned(),
        body_digest: "00".to_owned(),
        task_id: id,
        request_id: None,
    });
    (id, create)
}

const UNDO_POSTGRES: &str = "drop function user_spelling_keep cascade; drop function user_spelling_changes cascade; drop table user_spelling";
const UNDO_SQLITE: &str =
    "drop trigger agent_task_spelling; drop trigger request_approver_spelling;
    drop trigger decision_spelling; drop trigger idempotency_spelling; drop table user_spelling";

/// Stores tasks and requests under several spellings of their users. Returns Zoë's tasks of the
/// tenant `acme`, sorted.
async fn stored(fixture: &StoreFixture) -> [TaskId; 2] {
    let mut ids = [
        fixture.task_of("acme", "Zoë").await,
        fixture.task_of("acme", "ZOË").await,
    ];
    ids.sort();
    fixture.task_of("globex", "Zoë").await;
    let asked = super::store_fixture::request_spec(
        holdpoint::task::request::RequestKind::Approval,
        terms(&["Bob"]),
        1,
    );
    fixture.pause(ids[0], &asked).await;
    let (other, question) = fixture.paused(terms(&["carol"])).await;
    fixture
        .decide(other, &question, "BOB", Action::Approve)
        .await;
    ids
}

async fn is_found(store: &Store, ids: [TaskId; 2]) {
    for spelling in ["zoë", "ZOË", "Zoë", "zOE\u{308}"] {
        assert_eq!(tasks(store, vec![spelling.into()]).await, ids, "{spelling}");
    }
    for spelling in ["bob", "Bob", "BOB"] {
        assert_eq!(
            requests(store, &spelling.into()).await,
            (1, 2),
            "{spelling}"
        );
        let person = Viewer {
            user_id: spelling.into(),
            ..Viewer::default()
        };
        assert!(
            store.is_involved("acme", ids[0], &person).await.unwrap()
                && !store.is_involved("acme", ids[1], &person).await.unwrap()
        );
    }
    assert_eq!(
        requests(store, &"finance".into()).await,
        (0, 0),
        "a group's name is no user's"
    );
    assert_eq!(
        (
            tasks(store, vec!["zoe".into()]).await,
            requests(store, &"bobby".into()).await
        ),
        (vec![], (0, 0))
    );
    let exact = |spelling: &str| UserIds::Exact.id(spelling);
    assert_eq!(tasks(store, vec![exact("zoë")]).await, []);
    assert_eq!(tasks(store, vec![exact("ZOË"), exact("Zoë")]).await, ids);
    assert_eq!(requests(store, &exact("bob")).await, (0, 0));
    assert_eq!(requests(store, &exact("Bob")).await, (1, 1));
}

#[apply(both)]
async fn every_spelling_finds_rows_stored_under_another(fixture: StoreFixture) {
    let ids = stored(&fixture).await;
    is_found(&fixture.store, ids).await;
    assert_eq!(fixture.count("user_spelling where folded is null").await, 5);
    assert!(!fixture.store.fold_spellings().await.unwrap());
    assert_eq!(fixture.count("user_spelling where folded is null").await, 0);
    is_found(&fixture.store, ids).await;
}

#[apply(both)]
async fn rows_stored_before_the_migration_are_found_under_every_spelling(fixture: StoreFixture) {
    let postgres = fixture.is_postgres();
    fixture
        .database()
        .execute(if postgres { UNDO_POSTGRES } else { UNDO_SQLITE })
        .await;
    let ids = stored(&fixture).await;
    fixture
        .database()
        .execute("drop index idempotency_person; alter table idempotency drop column person")
        .await;
    fixture
        .database()
        .execute(if postgres {
            concat!(
                include_str!("../../migrations/postgres/0008_user_spelling.sql"),
                include_str!("../../migrations/postgres/0009_stored_spellings.sql")
            )
        } else {
            concat!(
                include_str!("../../migrations/sqlite/0008_user_spelling.sql"),
                include_str!("../../migrations/sqlite/0009_stored_spellings.sql")
            )
        })
        .await;
    assert_eq!(fixture.count("user_spelling").await, 5);
    is_found(&fixture.store, ids).await;
    fixture.store.fold_spellings().await.unwrap();
    is_found(&fixture.store, ids).await;
}

#[apply(both)]
async fn idempotency_key_is_spent_for_every_spelling_of_its_user(fixture: StoreFixture) {
    let known = async |user: &UserId| {
        fixture
            .store
            .idempotency("acme", user, PATH, "k")
            .await
            .unwrap()
            .map(|row| row.task_id)
    };
    let (first, create) = keyed(&"Max".into(), "k");
    fixture.store.commit(create).await.unwrap();
    for spelling in ["max", "Max", "MAX"] {
        assert_eq!(known(&spelling.into()).await, Some(first), "{spelling}");
        assert_eq!(
            fixture.store.commit(keyed(&spelling.into(), "k").1).await,
            Err(CommitError::Refused),
            "{spelling}"
        );
    }
    assert_eq!(known(&UserIds::Exact.id("max")).await, None);
    let (exact, create) = keyed(&UserIds::Exact.id("max"), "k");
    fixture.store.commit(create).await.unwrap();
    // The second row was stored while ids were compared byte by byte (`UserIds::Exact`), so
    // each of the two spellings finds its own row.
    assert_eq!(
        (known(&"max".into()).await, known(&"Max".into()).await),
        (Some(exact), Some(first))
    );
    fixture.forward(Duration::from_hours(24));
    assert_eq!(known(&"MAX".into()).await, None);
    fixture.store.remove_spent_keys().await.unwrap();
    fixture
        .store
        .commit(keyed(&"MAX".into(), "k").1)
        .await
        .unwrap();
}

#[apply(both)]
async fn expired_key_is_used_anew_by_its_spelling(fixture: StoreFixture) {
    fixture
        .store
        .commit(keyed(&"Max".into(), "k").1)
        .await
        .unwrap();
    fixture.forward(Duration::from_hours(24));
    let (id, create) = keyed(&"Max".into(), "k");
    fixture.store.commit(create).await.unwrap();
    assert_eq!(
        fixture
            .store
            .idempotency("acme", &"max".into(), PATH, "k")
            .await
            .unwrap()
            .unwrap()
            .task_id,
        id
    );
}
