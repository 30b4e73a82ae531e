//! Tests sealed credentials. The commit of a person's answer writes the credentials of this answer.
//! The end of a task removes the task's credentials. The database never has them in readable form.

use std::time::Duration;

use holdpoint::secret::Secret;
use holdpoint::secret::seal::{SealError, Sealed, Sealer};
use holdpoint::store::CommitError;
use holdpoint::task::change::{Committed, Counters, Guard, LeaseChange, TaskChange};
use holdpoint::task::credential::{CredentialRow, SealedCredential, credential_associated_data};
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use super::store_fixture::{StoreFixture, both, change, child_task, fresh, new_task, said, status};

const PLAIN: &[u8] = b"{\"token\":\"hunter2-hunter2-hunter2\"}";

fn sealer() -> Sealer {
    Sealer::new(vec![("k1".to_owned(), Secret::new([7; 32]))]).unwrap()
}

/// Returns a sealed credential of a task, in the form in which the commit of an answer contains it.
fn given(task: TaskId, name: &str, plain: &[u8]) -> SealedCredential {
    let request_id = RequestId(fresh());
    let Sealed { key_id, text } = sealer()
        .seal(
            &credential_associated_data("acme", &task, &request_id, name),
            plain,
        )
        .unwrap();
    SealedCredential {
        name: name.to_owned(),
        request_id,
        key_id,
        text,
        expires_in: None,
    }
}

fn opened(row: &CredentialRow) -> Result<Vec<u8>, SealError> {
    let sealed = Sealed {
        key_id: row.key_id.clone(),
        text: row.text.clone(),
    };
    let bound = credential_associated_data("acme", &row.task_id, &row.request_id, &row.name);
    sealer()
        .open(&bound, &sealed)
        .map(|plain| plain.reveal().clone())
}

/// Returns the next change of a task, with one item and these credentials.
async fn giving(
    fixture: &StoreFixture,
    task: TaskId,
    credentials: Vec<SealedCredential>,
) -> TaskChange {
    TaskChange {
        facts: vec![said("here")],
        credentials,
        ..fixture.next(task).await
    }
}

/// Commits an item of the task with these credentials.
async fn give(
    fixture: &StoreFixture,
    task: TaskId,
    credentials: Vec<SealedCredential>,
) -> Committed {
    let change = giving(fixture, task, credentials).await;
    fixture.write(change).await.unwrap()
}

async fn ending(fixture: &StoreFixture, task: TaskId, end: TaskStatus) -> TaskChange {
    let counters = Counters {
        busy: -1,
        ..Counters::default()
    };
    TaskChange {
        facts: vec![status(end)],
        counters,
        lease: LeaseChange::Park { wake_in: None },
        ..fixture.next(task).await
    }
}

async fn names(fixture: &StoreFixture, tasks: &[TaskId]) -> Vec<String> {
    fixture
        .store
        .credentials(tasks)
        .await
        .unwrap()
        .into_iter()
        .map(|row| row.name)
        .collect()
}

const COUNT: &str = "select count(*) from credential";

#[apply(both)]
async fn credential_is_written_with_its_change_and_opens_only_for_its_task(fixture: StoreFixture) {
    let (task, other) = (fixture.task().await, fixture.task().await);
    let credential = given(task, "jira", PLAIN);
    let at = give(&fixture, task, vec![credential.clone()]).await.at;
    let rows = fixture.store.credentials(&[task]).await.unwrap();
    let expected = CredentialRow {
        task_id: task,
        name: "jira".to_owned(),
        request_id: credential.request_id,
        key_id: "k1".to_owned(),
        text: credential.text.clone(),
        created_at: at,
        expires_at: None,
    };
    assert_eq!(rows, [expected]);
    assert_eq!(opened(&rows[0]).unwrap(), PLAIN);
    assert!(
        fixture
            .store
            .credentials(&[other])
            .await
            .unwrap()
            .is_empty()
    );
    assert!(fixture.store.credentials(&[]).await.unwrap().is_empty());
    let kept = "select count(*) from credential where tenant = 'acme' and root_task_id = task_id";
    assert_eq!(fixture.number(kept).await, 1);
}

#[apply(both)]
async fn stale_change_writes_no_credential_and_removes_none(fixture: StoreFixture) {
    let task = fixture.task().await;
    let stale = giving(&fixture, task, vec![given(task, "jira", PLAIN)]).await;
    let stale_end = ending(&fixture, task, TaskStatus::Completed).await;
    give(&fixture, task, vec![given(task, "mail", PLAIN)]).await;
    assert_eq!(fixture.write(stale).await, Err(CommitError::Stale));
    assert_eq!(fixture.write(stale_end).await, Err(CommitError::Stale));
    assert_eq!(names(&fixture, &[task]).await, ["mail"]);
    // If one change of a commit is stale, no change of the commit writes a credential.
    let (root, child) = (task, TaskId(fresh()));
    fixture.commit(root, vec![child_task(child, root)]).await;
    let mut behind = fixture.next(root).await;
    behind.guard = Guard::Version(1);
    behind.facts = vec![said("late")];
    let both = change(
        root,
        vec![
            giving(&fixture, child, vec![given(child, "jira", PLAIN)]).await,
            behind,
        ],
    );
    assert_eq!(fixture.store.commit(both).await, Err(CommitError::Stale));
    assert_eq!(fixture.number(COUNT).await, 1);
    let mut ancestor = giving(&fixture, root, vec![given(root, "jira", PLAIN)]).await;
    (ancestor.guard, ancestor.facts) = (Guard::Any, Vec::new());
    assert_eq!(
        fixture.write(ancestor).await,
        Err(CommitError::Refused),
        "only a change with a version guard may give a credential"
    );
}

#[apply(both)]
async fn latest_credential_replaces_the_one_before(fixture: StoreFixture) {
    let task = fixture.task().await;
    let first = SealedCredential {
        expires_in: Some(Duration::from_hours(1)),
        ..given(task, "jira", b"first")
    };
    give(&fixture, task, vec![first, given(task, "mail", PLAIN)]).await;
    let latest = given(task, "jira", b"latest");
    let two = vec![given(task, "jira", b"second"), latest.clone()];
    give(&fixture, task, two).await;
    let rows = fixture.store.credentials(&[task]).await.unwrap();
    assert_eq!(
        rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(),
        ["jira", "mail"]
    );
    assert_eq!(opened(&rows[0]).unwrap(), b"latest");
    assert_eq!(rows[0].request_id, latest.request_id);
    assert_eq!(rows[0].expires_at, None);
}

#[apply(both)]
async fn credentials_of_a_task_and_its_ancestors_are_read_at_once(fixture: StoreFixture) {
    let (root, child, other) = (fixture.task().await, TaskId(fresh()), fixture.task().await);
    fixture.commit(root, vec![child_task(child, root)]).await;
    for task in [root, child, other] {
        let next = giving(&fixture, task, vec![given(task, "jira", PLAIN)]).await;
        fixture
            .commit(if task == child { root } else { task }, vec![next])
            .await;
    }
    let found = fixture.store.credentials(&[child, root]).await.unwrap();
    let tasks: Vec<_> = found.iter().map(|row| row.task_id).collect();
    assert_eq!(tasks.len(), 2);
    assert!(tasks.contains(&root) && tasks.contains(&child));
    assert!(found.iter().all(|row| opened(row).is_ok()));
    assert_eq!(
        fixture
            .count("credential where root_task_id = task_id")
            .await,
        2
    );
}

#[apply(both)]
async fn ended_task_loses_its_credentials_in_the_same_commit(fixture: StoreFixture) {
    let bystander = fixture.task().await;
    give(&fixture, bystander, vec![given(bystander, "jira", PLAIN)]).await;
    for end in [
        TaskStatus::Completed,
        TaskStatus::Failed,
        TaskStatus::Canceled,
    ] {
        let task = fixture.task().await;
        let credentials = vec![given(task, "jira", PLAIN), given(task, "mail", PLAIN)];
        give(&fixture, task, credentials).await;
        assert_eq!(fixture.number(COUNT).await, 3);
        let mut last = ending(&fixture, task, end).await;
        // A credential given in the change that ends its task is not kept.
        last.credentials = vec![given(task, "mail", b"anew"), given(task, "crm", PLAIN)];
        fixture.write(last).await.unwrap();
        assert_eq!(fixture.number(COUNT).await, 1, "{end:?}");
    }
    assert_eq!(names(&fixture, &[bystander]).await, ["jira"]);
}

#[apply(both)]
async fn end_of_a_sub_agent_removes_its_own_credentials_and_end_of_the_root_both(
    fixture: StoreFixture,
) {
    let (root, child) = (fixture.task().await, TaskId(fresh()));
    fixture.commit(root, vec![child_task(child, root)]).await;
    for task in [root, child] {
        let next = giving(&fixture, task, vec![given(task, "jira", PLAIN)]).await;
        fixture.commit(root, vec![next]).await;
    }
    let sub = ending(&fixture, child, TaskStatus::Completed).await;
    fixture.commit(root, vec![sub]).await;
    assert_eq!(
        fixture
            .store
            .credentials(&[root, child])
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(names(&fixture, &[root]).await, ["jira"]);
    let again = TaskChange {
        facts: vec![status(TaskStatus::Running)],
        counters: Counters {
            busy: 1,
            ..Counters::default()
        },
        credentials: vec![given(child, "jira", PLAIN)],
        ..fixture.next(child).await
    };
    fixture.commit(root, vec![again]).await;
    let ends = vec![
        ending(&fixture, root, TaskStatus::Canceled).await,
        ending(&fixture, child, TaskStatus::Canceled).await,
    ];
    fixture.commit(root, ends).await;
    assert_eq!(fixture.number(COUNT).await, 0);
}

#[apply(both)]
async fn simultaneous_task_ends_remove_only_their_own_credentials(fixture: StoreFixture) {
    let mut tasks = Vec::new();
    for _ in 0..12 {
        let task = fixture.task().await;
        give(&fixture, task, vec![given(task, "jira", PLAIN)]).await;
        tasks.push(task);
    }
    let mut changes = Vec::new();
    for (place, task) in tasks.iter().enumerate() {
        changes.push(change(
            *task,
            vec![match place % 3 {
                0 => ending(&fixture, *task, TaskStatus::Completed).await,
                1 => giving(&fixture, *task, vec![given(*task, "mail", PLAIN)]).await,
                _ => TaskChange {
                    guard: Guard::Version(99),
                    ..ending(&fixture, *task, TaskStatus::Failed).await
                },
            }],
        ));
    }
    let written = futures_util::future::join_all(
        changes
            .into_iter()
            .map(|change| fixture.store.commit(change)),
    )
    .await;
    assert_eq!(written.iter().filter(|result| result.is_ok()).count(), 8);
    for (place, task) in tasks.iter().enumerate() {
        let expected: &[&str] = [&[], &["jira", "mail"][..], &["jira"]][place % 3];
        assert_eq!(names(&fixture, &[*task]).await, expected, "{place}");
    }
}

#[apply(both)]
async fn new_task_may_get_a_credential_in_its_first_commit(fixture: StoreFixture) {
    let task = TaskId(fresh());
    let new = TaskChange {
        credentials: vec![given(task, "jira", PLAIN)],
        ..new_task(task, "acme", "alice")
    };
    fixture.write(new).await.unwrap();
    assert_eq!(names(&fixture, &[task]).await, ["jira"]);
}

#[apply(both)]
async fn credential_expires_by_the_databases_clock_and_is_removed_later(fixture: StoreFixture) {
    let task = fixture.task().await;
    let hour = Duration::from_hours(1);
    let short = SealedCredential {
        expires_in: Some(hour),
        ..given(task, "jira", PLAIN)
    };
    let endless = SealedCredential {
        expires_in: Some(Duration::MAX),
        ..given(task, "crm", PLAIN)
    };
    let at = give(
        &fixture,
        task,
        vec![short, endless, given(task, "mail", PLAIN)],
    )
    .await
    .at;
    let rows = fixture.store.credentials(&[task]).await.unwrap();
    assert_eq!(rows[1].name, "jira");
    assert_eq!(rows[1].expires_at.unwrap().0 - at.0, 3_600_000_000);
    fixture.forward(hour.checked_sub(Duration::from_secs(20)).unwrap());
    assert!(!fixture.store.remove_expired_credentials().await.unwrap());
    assert_eq!(names(&fixture, &[task]).await, ["crm", "jira", "mail"]);
    fixture.forward(Duration::from_secs(20));
    assert_eq!(names(&fixture, &[task]).await, ["crm", "mail"]);
    assert_eq!(fixture.number(COUNT).await, 3);
    assert!(
        !fixture.store.remove_expired_credentials().await.unwrap(),
        "there are no more"
    );
    assert_eq!(fixture.number(COUNT).await, 2);
}

#[apply(both)]
async fn credential_rows_renamed_swapped_or_moved_do_not_open(fixture: StoreFixture) {
    let first =
        "(select o.task_id from credential o where o.name = 'jira' order by o.task_id limit 1)";
    for (damage, left) in [
            ("update credential set name = name || '2'".to_owned(), 0),
            ("update credential set request_id = task_id".to_owned(), 0),
            ("update credential set sealed = (select o.sealed from credential o where o.name = 'mail'
                and o.task_id = credential.task_id) where name = 'jira'".to_owned(), 2),
            (format!("update credential set sealed = (select o.sealed from credential o where o.name = 'jira'
                and o.task_id = {first}) where name = 'jira'"), 3),
        ] {
            fixture.execute("delete from credential").await;
            let (one, two) = (fixture.task().await, fixture.task().await);
            for task in [one, two] {
                let credentials = vec![given(task, "jira", PLAIN), given(task, "mail", PLAIN)];
                give(&fixture, task, credentials).await;
            }
            fixture.execute(&damage).await;
            let found: Vec<_> = fixture.store.credentials(&[one, two]).await.unwrap().iter().map(opened).collect();
            assert_eq!(found.len(), 4);
            assert_eq!(found.iter().filter(|opened| opened.is_ok()).count(), left, "{damage}");
            assert!(found.iter().all(|opened| matches!(opened, Ok(_) | Err(SealError::OpeningFailed))));
        }
}

#[apply(both)]
async fn database_never_holds_a_filled_in_value(fixture: StoreFixture) {
    let task = fixture.task().await;
    give(&fixture, task, vec![given(task, "jira", PLAIN)]).await;
    let whole = raw(&fixture).await;
    assert!(has(&whole, b"jira"), "text that is not secret is found");
    for encoded in ["hunter2", "aHVudGVy", "68756e74657232"] {
        assert!(!has(&whole, encoded.as_bytes()), "{encoded}");
    }
}

fn has(whole: &[u8], wanted: &[u8]) -> bool {
    whole.windows(wanted.len()).any(|window| window == wanted)
}

/// Returns everything in the database as bytes: the files of `SQLite`, or every row of Postgres.
async fn raw(fixture: &StoreFixture) -> Vec<u8> {
    if let Some(file) = fixture.settings.url.reveal().strip_prefix("sqlite://") {
        let read = |ending: &str| std::fs::read(format!("{file}{ending}")).unwrap_or_default();
        return [read(""), read("-wal"), read("-shm")].concat();
    }
    let mut connection = fixture.connection().await;
    let sql = "select coalesce(string_agg(query_to_xml('select * from ' || quote_ident(table_name), true, false, '')::text, ''), '')
        from information_schema.tables where table_schema = 'public' and table_type = 'BASE TABLE'";
    let row = connection
        .fetch_one(AssertSqlSafe(sql.to_owned()))
        .await
        .unwrap();
    row.get::<String, _>(0).into_bytes()
}
