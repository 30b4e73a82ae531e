//! Tests a database whose connection is lost during a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdpoint::secret::Secret;
use holdpoint::store::{CommitError, OpenError, Settings, Store};
use holdpoint::task::change::{AskerPresence, Change, Committed, IdempotencyRow};
use holdpoint::task::id::TaskId;
use holdpoint::task::time::Time;
use holdpoint::world::{Clock, SystemClock};
use sqlx::Executor as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixStream};

use super::busy_writer::commit_while_busy;
use super::store_fixture::{StoreFixture, acme_requests, change, fresh, new_task, said};
use crate::support::forwarder::Forwarder;
use crate::support::postgres::run;

/// A proxy to the database server. For each of the next `swallow` commits that contain the mark,
/// the proxy drops the server's reply, sends its own reply, if it has any, and cuts the connection.
pub(crate) struct LossyProxy {
    url: String,
    pub(crate) swallow: Arc<AtomicUsize>,
    listener: tokio::task::JoinHandle<()>,
}

impl LossyProxy {
    /// Opens a store whose connections lead through the proxy.
    pub(crate) async fn store(&self, clock: Arc<dyn Clock>) -> Store {
        let settings = Settings {
            url: Secret::new(self.url.clone()),
            ..Settings::default()
        };
        Store::open(&settings, clock).await.unwrap()
    }
}

/// The text of an item. The proxy recognizes the commit of this item by the text.
const MARK: &[u8] = b"the text that marks the commit";

/// The reply of a Postgres server that ends by a panic because its disk is full.
const PANIC: &[u8] = b"E\0\0\0\x29SPANIC\0VPANIC\0C53100\0Mno space left\0\0";

/// The reply of a Postgres server that refuses a statement because its disk is full.
const FULL: &[u8] = b"E\0\0\0\x29SERROR\0VERROR\0C53100\0Mno space left\0\0";

/// Starts a proxy that may lose the replies to commits that contain `mark`.
pub(crate) async fn lossy(fixture: &StoreFixture, mark: &'static [u8]) -> LossyProxy {
    replacing(fixture, mark, b"").await
}

/// Like [`lossy`], but the proxy sends `reply` in place of each lost reply.
async fn replacing(
    fixture: &StoreFixture,
    mark: &'static [u8],
    reply: &'static [u8],
) -> LossyProxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (socket, name) = {
        let rest = fixture
            .settings
            .url
            .reveal()
            .strip_prefix("postgres://postgres@")
            .expect("the throwaway cluster");
        let (socket, name) = rest.rsplit_once('/').unwrap();
        (
            format!("{}/.s.PGSQL.5432", socket.replace("%2F", "/")),
            name.to_owned(),
        )
    };
    let swallow = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&swallow);
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    let listener = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (socket, counter) = (socket.clone(), Arc::clone(&counter));
            tokio::spawn(async move {
                let server = UnixStream::connect(socket).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let lost = Arc::new(AtomicUsize::new(0));
                let marked = Arc::clone(&lost);
                tokio::spawn(async move {
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(read @ 1..) = from_client.read(&mut bytes).await {
                        let commit = bytes[..read]
                            .windows(mark.len())
                            .any(|window| window == mark);
                        let some = |left: usize| left.checked_sub(1);
                        if commit
                            && counter
                                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, some)
                                .is_ok()
                        {
                            marked.store(1, Ordering::SeqCst);
                        }
                        if to_server.write_all(&bytes[..read]).await.is_err() {
                            return;
                        }
                    }
                });
                let mut bytes = vec![0; 1 << 16];
                while let Ok(read @ 1..) = from_server.read(&mut bytes).await {
                    // The server has committed; its reply is lost.
                    if lost.load(Ordering::SeqCst) == 1 {
                        let _ = to_client.write_all(reply).await;
                        return;
                    }
                    if to_client.write_all(&bytes[..read]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    LossyProxy {
        url: format!("postgres://postgres@127.0.0.1:{port}/{name}"),
        swallow,
        listener,
    }
}

/// Returns a change that creates a task, and that the proxy recognizes by its mark.
fn marked() -> Change {
    let id = TaskId(fresh());
    let mut new = new_task(id, "acme", "alice");
    new.facts.push(said(std::str::from_utf8(MARK).unwrap()));
    change(id, vec![new])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_whose_answer_was_lost_is_found_by_its_id_and_not_written_twice() {
    let fixture = StoreFixture::postgres().await;
    let way = lossy(&fixture, MARK).await;
    let store = way.store(Arc::new(SystemClock)).await;
    for lost in 1..4 {
        let written = marked();
        let id = written.root;
        way.swallow.store(lost, Ordering::SeqCst);
        let at = store.commit(written).await.unwrap().at;
        let journal = fixture.store.journal(id).await.unwrap().unwrap();
        assert_eq!((journal.items.len(), journal.row.version), (3, 1));
        assert_eq!(journal.items[0].at, at);

        let mut next = fixture.next(id).await;
        next.facts = vec![said(std::str::from_utf8(MARK).unwrap())];
        way.swallow.store(lost, Ordering::SeqCst);
        store.commit(change(id, vec![next.clone()])).await.unwrap();
        assert_eq!(
            store.commit(change(id, vec![next])).await,
            Err(CommitError::Stale)
        );
        assert_eq!(fixture.row(id).await.version, 2);
    }
}

/// The commit may be on disk when the server ends by a panic, so the code of the panic does not
/// tell whether the change was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_that_the_server_answers_by_a_panic_is_found_by_its_id() {
    let fixture = StoreFixture::postgres().await;
    let way = replacing(&fixture, MARK, PANIC).await;
    let store = way.store(Arc::new(SystemClock)).await;
    way.swallow.store(1, Ordering::SeqCst);
    let written = marked();
    let id = written.root;
    assert!(store.commit(written).await.is_ok());
    assert_eq!(way.swallow.load(Ordering::SeqCst), 0, "the answer was lost");
    assert_eq!(fixture.row(id).await.version, 1);
}

/// Commits a batch whose reply is replaced by `reply`. After that, the database is away. Returns the
/// results of the changes, and fails if they wait for each other's turns.
async fn results_of_a_batch_before_an_outage(
    reply: &'static [u8],
) -> Vec<Result<Committed, CommitError>> {
    let fixture = StoreFixture::postgres().await;
    let way = replacing(&fixture, MARK, reply).await;
    let settings = Settings {
        url: Secret::new(way.url.clone()),
        writers: 1,
        // The store adds two seconds for the network to this limit.
        statement_timeout: Duration::from_secs(3),
        ..Settings::default()
    };
    let store = Store::open(&settings, Arc::new(SystemClock)).await.unwrap();
    let id = TaskId(fresh());
    let opens_connection = change(id, vec![new_task(id, "acme", "alice")]);
    store.commit(opens_connection).await.unwrap();
    way.swallow.store(1, Ordering::SeqCst);
    // The writer keeps its connection, and later statements get none.
    way.listener.abort();
    assert!(way.listener.await.unwrap_err().is_cancelled());
    let changes = (0..64).map(|_| marked()).collect();
    // Sixteen turns of five seconds each would take longer.
    let limit = Duration::from_secs(40);
    let failed = tokio::time::timeout(limit, commit_while_busy(&store, changes)).await;
    let (size, results) = failed.expect("the changes do not wait for each other's turns");
    assert_eq!(size, 64);
    results
}

/// The changes of a lost batch are looked up a few at a time. While the database is away, the
/// lookups of one change take the whole limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_lost_batch_share_one_time_limit_while_the_database_is_away() {
    let results = results_of_a_batch_before_an_outage(b"").await;
    let mut results = results.into_iter();
    assert!(results.all(|result| result == Err(CommitError::Unknown)));
}

/// The changes of a refused batch are sent again a few at a time. While the database is away, each
/// waits for a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_refused_batch_share_one_time_limit_while_the_database_is_away() {
    let results = results_of_a_batch_before_an_outage(FULL).await;
    let mut results = results.into_iter();
    assert!(results.all(|result| result == Err(CommitError::Unavailable)));
}

/// When the reply to a commit is lost, the store looks for the commit's first item. A change of the
/// asker alone has no item, so the store sends this change again. The database refuses the repeated
/// change as stale, and the store reports an unknown outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_the_asker_alone_whose_answer_was_lost_is_written_once_and_unknown() {
    let fixture = StoreFixture::postgres().await;
    let way = lossy(&fixture, MARK).await;
    let store = way.store(Arc::new(SystemClock)).await;
    let id = fixture.task().await;
    let mut gone = fixture.next(id).await;
    gone.asker = Some(AskerPresence::Absent);
    let mut gone = change(id, vec![gone]);
    gone.idempotency = Some(IdempotencyRow {
        tenant: "acme".to_owned(),
        user_id: "alice".to_owned(),
        person: None,
        path: "/v1/gate/calls".to_owned(),
        key: std::str::from_utf8(MARK).unwrap().to_owned(),
        body_digest: "d".to_owned(),
        task_id: id,
        request_id: None,
    });
    way.swallow.store(1, Ordering::SeqCst);
    assert_eq!(store.commit(gone).await, Err(CommitError::Unknown));
    let row = fixture.row(id).await;
    assert_eq!((row.version, row.asker_until), (2, Some(Time(0))));
    assert_eq!(fixture.count("idempotency").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_backends_cost_no_commit() {
    let fixture = StoreFixture::postgres().await;
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let store = fixture.store.clone();
        writers.spawn(async move {
            for _ in 0..5 {
                let id = TaskId(fresh());
                store
                    .commit(change(id, vec![new_task(id, "acme", "alice")]))
                    .await
                    .unwrap();
            }
        });
    }
    for _ in 0..6 {
        // The condition on `query` spares backends that have run no statement yet. Such a backend
        // has no commit in flight, and may still be starting.
        let kill = "select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and application_name = 'holdpoint' and query <> ''";
        run(fixture.settings.url.reveal(), kill.to_owned()).await;
    }
    writers.join_all().await;
    assert_eq!(fixture.count("agent_task").await, 200);
    assert_eq!(fixture.count("agent_task_item").await, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_without_a_connection_is_unavailable_and_not_written() {
    let fixture = StoreFixture::postgres().await;
    let way = lossy(&fixture, MARK).await;
    let timeout = Duration::from_millis(300);
    let settings = Settings {
        url: Secret::new(way.url.clone()),
        acquire_timeout: timeout,
        ..Settings::default()
    };
    // On a busy machine, the short timeout may also end an attempt to open the store.
    let store = loop {
        match Store::open(&settings, Arc::new(SystemClock)).await {
            Ok(store) => break store,
            Err(OpenError::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    // Stops the proxy before the pool makes its first connection.
    way.listener.abort();
    assert!(way.listener.await.unwrap_err().is_cancelled());
    let id = TaskId(fresh());
    let result = store
        .commit(change(id, vec![new_task(id, "acme", "alice")]))
        .await;
    assert_eq!(result, Err(CommitError::Unavailable));
    assert!(!store.ready().await);
    assert!(fixture.store.task(id).await.unwrap().is_none());
}

/// Opens a store at a pooler that refuses the login with this error. Returns the store's error.
async fn error_at_a_pooler(code: &str, message: &str) -> OpenError {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pooler = listener.local_addr().unwrap();
    let settings = Settings {
        url: Secret::new(format!("postgres://u@{pooler}/d?sslmode=disable")),
        ..Settings::default()
    };
    let refuses = async {
        let (mut client, _) = listener.accept().await.unwrap();
        let length = client.read_u32().await.unwrap();
        let mut startup = vec![0; usize::try_from(length).unwrap() - 4];
        client.read_exact(&mut startup).await.unwrap();
        let fields = format!("SFATAL\0C{code}\0M{message}\0\0");
        let size = u32::try_from(fields.len() + 4).unwrap();
        let reply = [&b"E"[..], &size.to_be_bytes(), fields.as_bytes()].concat();
        client.write_all(&reply).await.unwrap();
    };
    let (opened, ()) = tokio::join!(Store::open(&settings, Arc::new(SystemClock)), refuses);
    opened.unwrap_err()
}

/// `PgBouncer` gives the code 08P01 to each of its own errors. Other poolers have further codes of
/// class 08 for a server that is down.
#[tokio::test]
async fn pooler_whose_server_is_down_is_unavailable_at_the_start() {
    let down = "server login has been failing, cached error: connect failed (server_login_retry)";
    for (code, message) in [
        ("08P01", down),
        ("08P01", "client_login_timeout (server down)"),
        ("08P01", "pgbouncer cannot connect to server"),
        ("08P01", "pooler is shutting down"),
        ("08P01", "server shutting down"),
        ("08006", "no server"),
    ] {
        let error = error_at_a_pooler(code, message).await;
        assert!(
            matches!(&error, OpenError::Unavailable { reason, .. } if reason == message),
            "{error:?}"
        );
    }
    let wrong = "password authentication failed";
    let error = error_at_a_pooler("08P01", wrong).await;
    assert!(
        matches!(&error, OpenError::Refused(reason) if reason == wrong),
        "{error:?}"
    );
}

/// A probe takes 20 ms here. So 400 probes, one after the other on one connection, would take 8 s,
/// and most of them would end by their timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_readiness_checks_share_a_probe_and_are_no_outage() {
    let fixture = StoreFixture::postgres().await;
    let line = Forwarder::to(fixture.settings.url.reveal()).await;
    let settings = Settings {
        url: Secret::new(line.url().to_owned()),
        ..fixture.settings.clone()
    };
    let store = Store::open(&settings, Arc::new(SystemClock)).await.unwrap();
    assert!(store.ready().await, "this opens the connection");
    line.delay(Duration::from_millis(10));
    let checks = futures_util::future::join_all((0..400).map(|_| store.ready())).await;
    assert!(checks.into_iter().all(|is_ready| is_ready));
    assert!(!store.is_known_unreachable());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_reads_open_no_more_connections_than_the_pool_may_have() {
    let fixture = StoreFixture::postgres().await;
    let settings = Settings {
        max_connections: 8,
        ..fixture.settings.clone()
    };
    let store = Store::open(&settings, Arc::new(SystemClock)).await.unwrap();
    let mut other = fixture.connection().await;
    other
        .execute("begin; lock table intervention_request in access exclusive mode")
        .await
        .unwrap();
    let filter = acme_requests(10);
    for _ in 0..40 {
        let read = tokio::time::timeout(Duration::from_millis(20), store.requests(&filter)).await;
        assert!(read.is_err(), "the table is locked");
    }
    let open = "select count(*) from pg_stat_activity where datname = current_database()
        and application_name = 'holdpoint'";
    let count = fixture.number(open).await;
    // The limit includes the connections of the fixture's own store.
    assert!(count <= 16, "{count} connections");
    other.execute("rollback").await.unwrap();
    assert!(store.requests(&filter).await.unwrap().is_empty());
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_read_without_an_answer_frees_its_connection_after_the_statement_limit() {
    let fixture = StoreFixture::postgres().await;
    let line = Forwarder::to(fixture.settings.url.reveal()).await;
    let settings = Settings {
        url: Secret::new(line.url().to_owned()),
        // With this limit, the pools `keyed` and `lists` of the store have one connection each.
        max_connections: 4,
        acquire_timeout: Duration::from_secs(20),
        // The store adds two seconds for the network to this limit.
        statement_timeout: Duration::from_secs(3),
        ..Settings::default()
    };
    let store = Store::open(&settings, Arc::new(SystemClock)).await.unwrap();
    let filter = acme_requests(10);
    assert!(store.requests(&filter).await.unwrap().is_empty());
    line.blackhole();
    let read = tokio::time::timeout(Duration::from_millis(20), store.requests(&filter)).await;
    assert!(read.is_err(), "the server is silent");
    line.mend();
    assert!(store.requests(&filter).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_change_keeps_the_connection_of_its_writer() {
    let fixture = StoreFixture::postgres().await;
    let with_key = |id: TaskId| {
        let mut change = change(id, vec![new_task(id, "acme", "alice")]);
        change.idempotency = Some(IdempotencyRow {
            tenant: "acme".to_owned(),
            user_id: "alice".to_owned(),
            person: None,
            path: "POST /v1/tasks".to_owned(),
            key: "k".to_owned(),
            body_digest: "d".to_owned(),
            task_id: id,
            request_id: None,
        });
        change
    };
    assert!(
        fixture
            .store
            .commit(with_key(TaskId(fresh())))
            .await
            .is_ok()
    );
    let first = "select min(backend_start)::text from pg_stat_activity
        where datname = current_database() and application_name = 'holdpoint' and query like 'with n as%'";
    let database = fixture.database();
    let before = database.texts(first).await;
    for _ in 0..3 {
        let refused = fixture.store.commit(with_key(TaskId(fresh()))).await;
        assert_eq!(refused, Err(CommitError::Refused));
    }
    assert_eq!(database.texts(first).await, before);
}
