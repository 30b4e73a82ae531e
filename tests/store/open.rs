//! Tests the opening of a store: which files, servers and schemas are refused.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use holdpoint::secret::Secret;
use holdpoint::store::{OpenError, Settings, Store};
use holdpoint::task::id::TaskId;
use holdpoint::world::SystemClock;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::store_fixture::{StoreFixture, change, fresh, new_task, said};
use crate::support::forwarder::Forwarder;
use crate::support::postgres::{Cluster, PrivateCluster, run};

async fn open(settings: &Settings) -> Result<Store, OpenError> {
    Store::open(settings, Arc::new(SystemClock)).await
}

fn file(folder: &tempfile::TempDir) -> Settings {
    Settings {
        url: Secret::new(format!("sqlite://{}", folder.path().join("x.db").display())),
        ..Settings::default()
    }
}

#[tokio::test]
async fn second_process_on_one_sqlite_file_is_refused_until_the_first_ends() {
    let folder = tempfile::tempdir().unwrap();
    let settings = file(&folder);
    let first = open(&settings).await.unwrap();
    let refused = open(&settings).await.unwrap_err();
    assert!(
        matches!(&refused, OpenError::Held(path) if path.ends_with("x.db")),
        "{refused}"
    );
    first.close().await;
    open(&settings).await.unwrap();
}

#[tokio::test]
async fn second_process_on_a_link_to_the_sqlite_file_is_refused() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = open(&file(&folder)).await.unwrap();
    let link = elsewhere.path().join("x.db");
    std::os::unix::fs::symlink(folder.path().join("x.db"), &link).unwrap();
    let refused = open(&file(&elsewhere)).await.unwrap_err();
    assert!(
        matches!(&refused, OpenError::Held(path) if *path == link.display().to_string()),
        "{refused}"
    );
    first.close().await;
    open(&file(&elsewhere)).await.unwrap();
    assert_eq!(
        std::fs::read_dir(elsewhere.path()).unwrap().count(),
        1,
        "the files of the database stand beside it"
    );
}

#[tokio::test]
async fn sqlite_files_are_readable_only_by_their_owner() {
    let folder = tempfile::tempdir().unwrap();
    let settings = file(&folder);
    std::fs::write(folder.path().join("x.db"), "").unwrap();
    std::fs::set_permissions(
        folder.path().join("x.db"),
        std::fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    let store = open(&settings).await.unwrap();
    store.store_agent_version("d", "{}").await.unwrap();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(
            entry.metadata().unwrap().permissions().mode() & 0o777,
            0o600,
            "{entry:?}"
        );
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["x.db", "x.db-shm", "x.db-wal", "x.db.lock"]);
}

#[tokio::test]
async fn file_that_is_no_database_is_refused_and_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let text = "this is a letter, not a database. ".repeat(100);
    std::fs::write(folder.path().join("x.db"), &text).unwrap();
    let refused = open(&file(&folder)).await.unwrap_err();
    assert!(
        matches!(&refused, OpenError::File { .. } | OpenError::Migration(_)),
        "{refused:?}"
    );
    assert_eq!(
        std::fs::read_to_string(folder.path().join("x.db")).unwrap(),
        text
    );
    let missing = Settings {
        url: Secret::new("sqlite:///nowhere/at/all.db".to_owned()),
        ..Settings::default()
    };
    assert!(matches!(
        open(&missing).await.unwrap_err(),
        OpenError::File { .. }
    ));
}

fn newest() -> i64 {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite");
    let number = |entry: std::io::Result<std::fs::DirEntry>| -> i64 {
        entry
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .split_once('_')
            .unwrap()
            .0
            .parse()
            .unwrap()
    };
    std::fs::read_dir(folder)
        .unwrap()
        .map(number)
        .max()
        .unwrap()
}

async fn schema_of_another_age(fixture: StoreFixture) {
    fixture.store.close().await;
    let settings = Settings {
        migrate: false,
        ..fixture.settings.clone()
    };
    open(&settings).await.unwrap().close().await;
    let newer =
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
        values (9999, 'from the future', true, '', 0)";
    fixture.execute(newer).await;
    for settings in [&settings, &fixture.settings] {
        let refused = open(settings).await.unwrap_err();
        assert!(
            matches!(&refused, OpenError::Newer { found: 9999, known } if *known == newest()),
            "{refused:?}"
        );
    }
    fixture.execute("delete from _sqlx_migrations").await;
    let refused = open(&settings).await.unwrap_err();
    assert!(
        matches!(refused, OpenError::Older { found: 0, known } if known == newest()),
        "{refused:?}"
    );
}

#[tokio::test]
async fn schema_of_another_version_is_refused_on_sqlite() {
    schema_of_another_age(StoreFixture::sqlite().await).await;
}

#[tokio::test]
async fn schema_of_another_version_is_refused_on_postgres() {
    schema_of_another_age(StoreFixture::postgres().await).await;
}

#[tokio::test]
async fn empty_database_is_refused_without_migrations_and_created_by_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        migrate: false,
        ..file(&folder)
    };
    assert!(matches!(
        open(&settings).await.unwrap_err(),
        OpenError::Older { found: 0, .. }
    ));
    Store::migrate(&settings, Arc::new(SystemClock))
        .await
        .unwrap();
    assert!(open(&settings).await.unwrap().ready().await);
}

#[tokio::test]
async fn migration_that_fails_on_sqlite_undoes_the_migrations_before_it() {
    let fixture = StoreFixture::sqlite().await;
    fixture.store.close().await;
    // Migration 25 can be applied again, because its index is dropped. Then migration 26 fails,
    // because the column that it adds still exists.
    for undo in [
        "drop index delivery_recipient",
        "delete from _sqlx_migrations where version >= 25",
    ] {
        fixture.execute(undo).await;
    }
    let refused = open(&fixture.settings).await.unwrap_err();
    assert!(matches!(refused, OpenError::Migration(_)), "{refused:?}");
    let index = "select count(*) from sqlite_schema where name = 'delivery_recipient'";
    let version = "select max(version) from _sqlx_migrations";
    let left = (fixture.number(index).await, fixture.number(version).await);
    assert_eq!(left, (0, 24));
}

#[tokio::test]
async fn several_replicas_may_migrate_one_postgres_at_once() {
    let fixture = StoreFixture::postgres().await;
    fixture.store.close().await;
    run(
        fixture.settings.url.reveal(),
        "drop schema public cascade; create schema public".to_owned(),
    )
    .await;
    let opened = futures_util::future::join_all((0..4).map(|_| open(&fixture.settings))).await;
    for store in opened {
        assert!(store.unwrap().ready().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_killed_in_the_middle_leaves_nothing_partial_and_the_next_start_ends_it() {
    let fixture = StoreFixture::postgres().await;
    fixture.store.close().await;
    let undo = "create unique index agent_task_item_event on agent_task_item (root_task_id, event_number);
        drop index agent_task_item_tree; drop table standing_grant; drop table delivery, notice, gathered; drop table inbox; drop table claimable_task; create index agent_task_claimable on agent_task (task_id); drop function user_spelling_keep cascade; drop function user_spelling_changes cascade;
        drop table user_spelling; alter table idempotency drop column person, drop column resent;
        alter table agent_task drop column begun, drop column fruitless, drop column call_tool, drop column call_key, drop column asker_until, drop column asker_owner,
            drop column in_quarantine, drop column quarantine_at;
        alter table intervention_request drop column gate, drop column gate_user, drop column one_answer, drop column closed_seq cascade;
        create index agent_task_item_request on agent_task_item (request_id) where request_id is not null; drop index agent_task_call; drop table credential; drop table browser_session; drop index idempotency_spent; delete from _sqlx_migrations where version >= 3";
    run(fixture.settings.url.reveal(), undo.to_owned()).await;
    // The migration will wait for the lock on the table `idempotency`.
    let mut holder = fixture.connection().await;
    let mut held = holder.begin().await.unwrap();
    held.execute("lock table idempotency in exclusive mode")
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let yaml = format!(
        "models: {{ m: {{ provider: scripted, script: 'builtin:refunds' }} }}\nagents: {{ a: {{ model: m }} }}
database: {{ url: \"{}\" }}\n",
        fixture.settings.url.reveal()
    );
    std::fs::write(folder.path().join("holdpoint.yaml"), yaml).unwrap();
    let mut commands: Vec<_> = (0..2)
        .map(|_| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_holdpoint"));
            command
                .args(["migrate", "--config", "holdpoint.yaml"])
                .current_dir(folder.path());
            command.stderr(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    let waits = "select count(*) from pg_locks l join pg_class c on c.oid = l.relation
        where c.relname = 'idempotency' and not l.granted";
    let does_wait = async || fixture.number(waits).await > 0;
    crate::support::until("a migration waits for the lock", does_wait).await;
    for command in &mut commands {
        assert!(
            command.try_wait().unwrap().is_none(),
            "neither ends before the other has migrated"
        );
        command.kill().unwrap();
        command.wait().unwrap();
    }
    held.rollback().await.unwrap();
    let opened = futures_util::future::join_all((0..2).map(|_| open(&fixture.settings))).await;
    for store in opened {
        assert!(store.unwrap().ready().await);
    }
    assert_eq!(
        fixture
            .count("_sqlx_migrations where version = 3 and success")
            .await,
        1
    );
    assert_eq!(
        fixture
            .count("pg_indexes where indexname = 'idempotency_spent'")
            .await,
        1
    );
}

#[tokio::test]
async fn connection_that_breaks_at_any_moment_of_a_start_is_an_outage() {
    let fixture = StoreFixture::postgres().await;
    fixture.store.close().await;
    let url = fixture.settings.url.reveal();
    let forwarder = Forwarder::to(url).await;
    let settings = Settings {
        url: Secret::new(forwarder.url().to_owned()),
        ..fixture.settings.clone()
    };
    let starts = async |step: usize| {
        for bytes in (1..).map(|count| count * step) {
            forwarder.cut_after(bytes);
            match open(&settings).await {
                Ok(store) => {
                    store.close().await;
                    return bytes / step;
                }
                Err(OpenError::Unavailable { .. }) => {}
                Err(error) => panic!("after {bytes} bytes: {error}"),
            }
        }
        unreachable!("the range has no end")
    };
    assert!(starts(61).await > 10, "with nothing to migrate");
    run(
        url,
        "drop schema public cascade; create schema public".to_owned(),
    )
    .await;
    assert!(starts(701).await > 3, "with everything to migrate");
}

/// Sets the schema back to that of migration 12.
const UNDONE_FROM_13: &str = "create unique index agent_task_item_event on agent_task_item (root_task_id, event_number);
        drop table standing_grant; drop table delivery, notice, gathered; alter table idempotency drop column resent;
        alter table agent_task drop column call_tool, drop column call_key, drop column asker_until, drop column asker_owner,
            drop column in_quarantine, drop column quarantine_at;
        alter table intervention_request drop column gate, drop column gate_user, drop column one_answer, drop column closed_seq cascade;
        create index agent_task_item_request on agent_task_item (request_id) where request_id is not null;
        alter table inbox drop column owner, drop column expires_at, drop column one_answer; delete from _sqlx_migrations where version >= 13;";

#[tokio::test]
async fn migration_that_meets_a_long_transaction_says_so_and_goes_on_at_the_next_start() {
    let fixture = StoreFixture::postgres().await;
    fixture.store.close().await;
    let url = fixture.settings.url.reveal();
    run(url, UNDONE_FROM_13.to_owned()).await;
    let mut reader = PgConnection::connect(url).await.unwrap();
    let mut held = reader.begin().await.unwrap();
    held.execute("select count(*) from inbox").await.unwrap();
    let refused = open(&fixture.settings).await.unwrap_err();
    assert!(matches!(refused, OpenError::TableInUse), "{refused:?}");
    held.rollback().await.unwrap();
    assert!(open(&fixture.settings).await.unwrap().ready().await);
}

/// The text of migration 27 sets no `lock_timeout`.
#[tokio::test]
async fn migration_without_a_lock_timeout_of_its_own_gives_up_on_a_table_in_use() {
    let fixture = StoreFixture::postgres().await;
    fixture.store.close().await;
    let url = fixture.settings.url.reveal();
    let undo = "alter table delivery drop column came_early; delete from _sqlx_migrations where version >= 27";
    run(url, undo.to_owned()).await;
    let mut reader = PgConnection::connect(url).await.unwrap();
    let mut held = reader.begin().await.unwrap();
    held.execute("select count(*) from delivery").await.unwrap();
    let opened = tokio::time::timeout(Duration::from_mins(1), open(&fixture.settings)).await;
    let refused = opened.expect("the migration gives up").unwrap_err();
    assert!(matches!(refused, OpenError::TableInUse), "{refused:?}");
}

#[tokio::test]
async fn migration_of_an_index_that_was_killed_is_repeated_at_the_next_start() {
    let fixture = StoreFixture::postgres().await;
    fixture.store.close().await;
    let url = fixture.settings.url.reveal();
    let built = "select count(*) from pg_index where indexrelid = to_regclass('agent_task_item_tree') and indisvalid";
    // The earlier process was killed at one of two moments: while it built the index, or after it
    // had built the index and before it recorded the migration.
    for invalid in [true, false] {
        run(url, UNDONE_FROM_13.to_owned()).await;
        if invalid {
            let mark = "update pg_index set indisvalid = false where indexrelid = 'agent_task_item_tree'::regclass";
            run(url, mark.to_owned()).await;
        }
        assert_eq!(fixture.number(built).await, i64::from(!invalid));
        open(&fixture.settings).await.unwrap().close().await;
        assert_eq!(fixture.number(built).await, 1);
    }
}

#[tokio::test]
async fn postgres_with_synchronous_commit_off_is_refused() {
    let fixture = StoreFixture::postgres().await;
    let name = fixture.settings.url.reveal().rsplit('/').next().unwrap();
    run(
        fixture.settings.url.reveal(),
        format!("alter database \"{name}\" set synchronous_commit = off"),
    )
    .await;
    let refused = open(&fixture.settings).await.unwrap_err();
    assert!(
        matches!(refused, OpenError::Unsafe("synchronous_commit")),
        "{refused:?}"
    );
    let settings = Settings {
        unsafe_ok: true,
        ..fixture.settings.clone()
    };
    assert!(open(&settings).await.unwrap().ready().await);
}

/// Opens a new database with this encoding. Returns its server, which stops when it is dropped, and
/// the result.
async fn open_with_encoding(encoding: &str) -> (PrivateCluster, Result<Store, OpenError>) {
    let cluster = PrivateCluster::start();
    let create = format!("create database encoded encoding '{encoding}' template template0");
    run(&cluster.url("postgres"), create).await;
    let settings = Settings {
        url: Secret::new(cluster.url("encoded")),
        ..Settings::default()
    };
    let opened = open(&settings).await;
    (cluster, opened)
}

#[tokio::test]
async fn database_whose_encoding_is_not_utf8_is_refused() {
    let (_cluster, opened) = open_with_encoding("LATIN1").await;
    let refused = opened.unwrap_err();
    assert!(matches!(refused, OpenError::Encoding), "{refused:?}");
}

/// `initdb` chooses `SQL_ASCII` where the locale is `C` or `POSIX`.
#[tokio::test]
async fn database_whose_encoding_is_sql_ascii_keeps_every_text() {
    let (_cluster, opened) = open_with_encoding("SQL_ASCII").await;
    let store = opened.unwrap();
    let id = TaskId(fresh());
    let text = "Übergröße, 退款, 🦀";
    let mut new = new_task(id, "acme", "alice");
    new.facts.push(said(text));
    store.commit(change(id, vec![new])).await.unwrap();
    let journal = store.journal(id).await.unwrap().unwrap();
    let last = journal.items.last().unwrap();
    assert_eq!(last.fact, said(text));
    store.close().await;
}

#[tokio::test]
async fn postgres_without_fsync_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let cluster = Cluster::start(
        &folder.path().join("pg"),
        "-c fsync=off",
        std::process::id(),
    );
    let settings = Settings {
        url: Secret::new(cluster.url("postgres")),
        ..Settings::default()
    };
    let refused = open(&settings).await.unwrap_err();
    assert!(matches!(refused, OpenError::Unsafe("fsync")), "{refused:?}");
    // The server still runs in the folder, so the folder is not deleted here. The cluster's watcher
    // process ends the server and removes its data.
    let _ = folder.keep();
}

#[tokio::test]
async fn unreachable_server_is_unavailable_but_a_wrong_url_is_an_error() {
    let settings = Settings {
        url: Secret::new("postgres://nobody@127.0.0.1:1/nothing".to_owned()),
        acquire_timeout: Duration::from_millis(300),
        ..Settings::default()
    };
    assert!(matches!(
        open(&settings).await.unwrap_err(),
        OpenError::Unavailable { .. }
    ));
    let wrong = Settings {
        url: Secret::new("mysql://x/y".to_owned()),
        ..Settings::default()
    };
    assert!(matches!(open(&wrong).await.unwrap_err(), OpenError::Url));
}
