//! Tests the database's identity. The service stores the identity at its first start, and compares
//! the stored identity with the server's identity on every new connection. The tests also cover the
//! behaviour of the service after a mismatch.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use holdpoint::secret::Secret;
use holdpoint::store::{CommitError, OpenError, Settings, Store};
use holdpoint::task::change::{AskerPresence, Change, Counters, TaskChange};
use holdpoint::task::decision::Action;
use holdpoint::task::id::{CallId, TaskId};
use holdpoint::task::item::Fact;
use holdpoint::task::time::Time;
use holdpoint::world::SystemClock;
use macro_rules_attribute::apply;
use tokio::time::timeout;

use super::store_fixture::{StoreFixture, both, change, child_task, finance, fresh, said};
use super::tree_reads::counted;
use crate::support::postgres::{Cluster, run};

/// Opens the same database as another process would.
async fn again(fixture: &StoreFixture, restored: bool) -> Store {
    let settings = Settings {
        restored,
        ..fixture.settings.clone()
    };
    Store::open(&settings, fixture.clock.clone()).await.unwrap()
}

#[apply(both)]
async fn reopened_database_is_not_uncertain(fixture: StoreFixture) {
    let (task, question) = fixture.paused(finance(1)).await;
    fixture.store.close().await;
    let store = again(&fixture, false).await;
    assert_eq!(
        store
            .journal(task)
            .await
            .unwrap()
            .unwrap()
            .history_uncertain_until,
        None
    );
    assert!(
        !store
            .request(question.request_id)
            .await
            .unwrap()
            .unwrap()
            .history_uncertain
    );
    assert_eq!(store.history_uncertain_until(), None);
}

#[apply(both)]
async fn restored_database_is_uncertain_up_to_now_but_not_for_later_items(fixture: StoreFixture) {
    let (task, question) = fixture.paused(finance(1)).await;
    fixture.store.close().await;
    let store = again(&fixture, true).await;
    let journal = store.journal(task).await.unwrap().unwrap();
    let history_uncertain_until = journal.history_uncertain_until.unwrap();
    assert!(
        journal
            .items
            .iter()
            .all(|item| item.at <= history_uncertain_until)
    );
    assert_eq!(
        store.history_uncertain_until(),
        Some(history_uncertain_until)
    );
    let row = store.request(question.request_id).await.unwrap().unwrap();
    assert!(row.history_uncertain);
    assert_eq!(store.pending(task, task).await.unwrap(), [row]);
    let fixture = StoreFixture { store, ..fixture };
    let (later, question) = fixture.paused(finance(1)).await;
    assert!(!fixture.request(question.request_id).await.history_uncertain);
    let journal = fixture.store.journal(later).await.unwrap().unwrap();
    assert!(
        journal
            .items
            .iter()
            .all(|item| item.at > history_uncertain_until),
        "a new history is complete"
    );
    fixture.store.close().await;
    assert_eq!(
        again(&fixture, false).await.history_uncertain_until(),
        Some(history_uncertain_until),
        "once set, it stays"
    );
}

#[apply(both)]
async fn restore_with_a_clock_that_is_behind_covers_every_item(fixture: StoreFixture) {
    let task = fixture.task().await;
    let ahead = fixture
        .number("select max(updated_at) + 3600000000 from agent_task")
        .await;
    fixture
        .execute(&format!(
            "update agent_task set updated_at = {ahead} returning updated_at"
        ))
        .await;
    fixture.store.close().await;
    let store = again(&fixture, true).await;
    assert_eq!(
        store
            .journal(task)
            .await
            .unwrap()
            .unwrap()
            .history_uncertain_until,
        Some(Time(ahead))
    );
}

const OTHER: &str = "update database_identity set identity = '17/00000009/1' where identity is not null returning id";

#[tokio::test]
async fn changed_server_is_recognized_at_the_start() {
    let fixture = StoreFixture::postgres().await;
    let task = fixture.task().await;
    fixture.store.close().await;
    assert_eq!(
        fixture.number(OTHER).await,
        1,
        "it was stored at the first start"
    );
    let store = again(&fixture, false).await;
    let journal = store.journal(task).await.unwrap().unwrap();
    assert!(
        journal
            .history_uncertain_until
            .is_some_and(|at| journal.items.iter().all(|item| item.at <= at))
    );
    store.close().await;
    assert_eq!(
        again(&fixture, false).await.history_uncertain_until(),
        journal.history_uncertain_until,
        "this server's identity is stored from now on"
    );
}

/// Adds a trigger that delays each update of the stored identity by 4 s. [`impatient`] waits only
/// 2 s for a connection.
const SLOW: &str = "create function slow() returns trigger language plpgsql as
        $$ begin perform pg_sleep(4); return new; end $$;
    create trigger slow before update on database_identity for each row execute function slow()";

fn impatient(fixture: &StoreFixture) -> Settings {
    Settings {
        acquire_timeout: Duration::from_secs(2),
        ..fixture.settings.clone()
    }
}

#[tokio::test]
async fn changed_server_that_is_recorded_slowly_delays_the_start() {
    let fixture = StoreFixture::postgres().await;
    fixture.task().await;
    fixture.store.close().await;
    assert_eq!(fixture.number(OTHER).await, 1);
    run(fixture.settings.url.reveal(), SLOW.to_owned()).await;
    let store = Store::open(&impatient(&fixture), fixture.clock.clone()).await;
    assert!(store.unwrap().history_uncertain_until().is_some());
}

#[tokio::test]
async fn changed_server_that_is_recorded_slowly_is_used_after_that() {
    let fixture = StoreFixture::postgres().await;
    let task = fixture.task().await;
    fixture.store.close().await;
    let store = Store::open(&impatient(&fixture), fixture.clock.clone()).await;
    let store = store.unwrap();
    assert_eq!(fixture.number(OTHER).await, 1);
    run(fixture.settings.url.reveal(), SLOW.to_owned()).await;
    assert!(fixture.number(ENDED).await > 0);
    let read = async {
        loop {
            if let Ok(journal) = store.journal(task).await {
                break journal.unwrap();
            }
        }
    };
    let journal = timeout(Duration::from_mins(1), read).await;
    let journal = journal.expect("the dropped attempts go on");
    assert!(journal.history_uncertain_until.is_some());
    store.close().await;
}

const ENDED: &str = "select count(pg_terminate_backend(pid)) from pg_stat_activity
    where datname = current_database() and application_name = 'holdpoint'";

#[tokio::test]
async fn changed_server_is_recognized_on_the_next_connection() {
    let fixture = StoreFixture::postgres().await;
    let task = fixture.task().await;
    assert_eq!(fixture.number(OTHER).await, 1);
    assert!(fixture.number(ENDED).await > 0);
    let journal = loop {
        // The first reads fail, because their connections are gone.
        if let Ok(journal) = fixture.store.journal(task).await {
            break journal.unwrap();
        }
    };
    assert!(journal.history_uncertain_until.is_some());
    assert_eq!(
        fixture.store.history_uncertain_until(),
        journal.history_uncertain_until
    );
}

#[tokio::test]
async fn changed_server_found_by_many_at_once_gets_one_moment() {
    let fixture = StoreFixture::postgres().await;
    let task = fixture.task().await;
    fixture.store.close().await;
    assert_eq!(fixture.number(OTHER).await, 1);
    let stores = futures_util::future::join_all((0..8).map(|_| again(&fixture, false))).await;
    let mut moments = Vec::new();
    for store in stores {
        moments.push(
            store
                .journal(task)
                .await
                .unwrap()
                .unwrap()
                .history_uncertain_until
                .unwrap(),
        );
    }
    moments.dedup();
    assert_eq!(moments.len(), 1);
}

/// Returns a change that gives the asker of a gate call a permit.
async fn permit(fixture: &StoreFixture, task: TaskId) -> TaskChange {
    let started = Fact::ToolStarted {
        tool_call_id: CallId(fresh()),
        name: "Bash".to_owned(),
        digest: "sha256:1".to_owned(),
        attempt: 1,
        timeout_ms: 1,
        replica: "asker".to_owned(),
        grant: None,
    };
    TaskChange {
        facts: vec![started],
        asker: Some(AskerPresence::Delivered),
        ..fixture.next(task).await
    }
}

async fn more(fixture: &StoreFixture, task: TaskId) -> TaskChange {
    TaskChange {
        facts: vec![said("more")],
        ..fixture.next(task).await
    }
}

/// Returns changes of four trees. The statement for changes of single tasks writes the first
/// without a lock before the update. Before the update of the second, it locks the task, and before
/// that of the third, also the request. The general statement writes the fourth, which requires a
/// version only of a sub-agent's task.
async fn changes(fixture: &StoreFixture) -> [Change; 4] {
    let of_one = |task: TaskChange| change(task.task_id, vec![task]);
    let (paused, question) = fixture.paused(finance(1)).await;
    let deciding = fixture.deciding(paused, &question, "carol", Action::Approve);
    let (root, child) = (fixture.task().await, TaskId(fresh()));
    fixture.commit(root, vec![child_task(child, root)]).await;
    let of_root = counted(
        root,
        Counters {
            model_calls: 1,
            ..Counters::default()
        },
    );
    [
        of_one(more(fixture, fixture.task().await).await),
        of_one(permit(fixture, fixture.task().await).await),
        of_one(deciding.await),
        change(root, vec![more(fixture, child).await, of_root]),
    ]
}

#[tokio::test]
async fn change_is_committed_in_a_database_that_was_never_restored() {
    for fixture in [
        StoreFixture::postgres().await,
        StoreFixture::with_general_statement().await,
    ] {
        assert_eq!(fixture.store.history_uncertain_until(), None);
        for change in changes(&fixture).await {
            assert!(fixture.store.commit(change).await.is_ok());
        }
    }
}

/// The commit may be the first statement on a promoted standby. The journal was read before, so its
/// last items may be lost, although the task has the version of the journal again.
#[tokio::test]
async fn change_by_a_journal_that_was_read_in_another_history_is_stale() {
    for fixture in [
        StoreFixture::postgres().await,
        StoreFixture::with_general_statement().await,
    ] {
        let changes = changes(&fixture).await;
        let promoted = "update database_identity
            set doubted_at = (select max(updated_at) from agent_task) returning doubted_at";
        let doubted_at = fixture.number(promoted).await;
        for Change { root, tasks, .. } in changes {
            let by_journal = |history_uncertain_until| {
                fixture.store.commit(Change {
                    history_uncertain_until,
                    ..change(root, tasks.clone())
                })
            };
            // The second of these journals was read on a server whose clock is ahead.
            for before in [None, Some(Time(doubted_at + 1))] {
                assert_eq!(by_journal(before).await, Err(CommitError::Stale));
            }
            let journal = fixture.store.journal(root).await.unwrap().unwrap();
            assert_eq!(journal.history_uncertain_until, Some(Time(doubted_at)));
            assert!(by_journal(journal.history_uncertain_until).await.is_ok());
        }
    }
}

#[tokio::test]
async fn second_promotion_to_a_server_whose_clock_is_behind_begins_another_history() {
    let fixture = StoreFixture::postgres().await;
    fixture.store.close().await;
    let ahead = "update database_identity set identity = '17/00000009/1',
        doubted_at = (extract(epoch from now()) * 1000000)::bigint + 3600000000 returning doubted_at";
    let first = fixture.number(ahead).await;
    for restored in [false, true] {
        let store = again(&fixture, restored).await;
        assert!(store.history_uncertain_until() > Some(Time(first)));
        store.close().await;
        let first_again = format!("update database_identity set doubted_at = {first} returning id");
        fixture.execute(&first_again).await;
    }
}

/// A hosted server may hide its identity. If a server begins or ceases to hide its identity, it
/// counts as a different server.
#[tokio::test]
async fn unprivileged_user_can_read_the_server_identity_and_a_silent_server_is_still_used() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let cluster = Cluster::start(&folder.path().join("pg"), "", std::process::id());
    let settings = Settings {
        url: Secret::new(cluster.unprivileged("fixture").await),
        ..Settings::default()
    };
    let url = cluster.url("fixture");
    let open = async || -> Result<Store, OpenError> {
        Store::open(&settings, Arc::new(SystemClock)).await
    };
    let store = open().await.unwrap();
    assert!(store.ready().await && store.history_uncertain_until().is_none());
    store.close().await;
    run(
        &url,
        "revoke execute on function pg_control_system() from public".to_owned(),
    )
    .await;
    let untold = open().await.unwrap().history_uncertain_until();
    assert!(untold.is_some(), "the server revealed its identity before");
    assert_eq!(open().await.unwrap().history_uncertain_until(), untold);
    run(
        &url,
        "grant execute on function pg_control_system() to public".to_owned(),
    )
    .await;
    assert!(open().await.unwrap().history_uncertain_until() > untold);
    // The server still runs in the folder, so the folder is not deleted here. The cluster's watcher
    // process ends the server and removes its data.
    let _ = folder.keep();
}
