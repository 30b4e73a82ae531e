//! The store keeps all data of the service in `SQLite` or Postgres. [`Store`] is a struct and not a
//! trait: tests need no second implementation, because they use `SQLite` on a temporary file.
//!
//! Invariant: every commit is atomic. The following functions write tasks. All other functions only
//! read tasks.
//! - `commit` writes all changes of tasks except those of the functions below.
//! - `claim`, `set_begun`, `renew` and `release` change a task's lease.
//! - `claim` also increments the task's version, so that commits of the task's old driver fail. It
//!   also counts the task's expired leases.
//! - On `SQLite`, `open` expires all leases, and ends the presences of all askers.

#![warn(missing_docs)]

mod asker_lock;
mod attempts;
mod change_rows;
mod claim;
mod claim_statement;
mod commit;
mod commit_postgres;
mod commit_single;
mod commit_sqlite;
mod connections;
mod credentials;
mod damaged_task;
mod db;
mod deliveries;
mod delivery_list;
mod events;
mod failure;
mod feed;
mod gate_calls;
mod gathered;
mod grants;
mod idempotency;
mod identity;
mod inbox;
mod journal;
mod lists;
mod metric_counts;
mod notices;
mod open;
mod open_list;
mod outage;
mod page;
mod queries;
mod record;
mod relay;
mod request_list;
mod request_reads;
mod requests;
mod resend_keys;
mod rows;
mod sessions;
mod settings;
mod shared_queue;
mod sql;
mod sqlite;
mod sqlite_open;
mod statement;
mod stopped;
mod tables;
mod task_columns;
mod task_list;
mod tasks;
mod test_support;
mod tree;
mod updatable_messages;
mod upgrade;
mod users;
mod value;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use tokio::sync::OnceCell;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

pub use self::attempts::{Attempt, NextState};
pub use self::claim::{ClaimedTask, Drive, LONE_DRIVE_AFTER};
pub use self::db::Sql;
pub use self::deliveries::ClaimedDelivery;
pub use self::delivery_list::{
    DeliveryChannel, DeliveryFilter, DeliveryRow, DeliveryState, LastAttempt, ResendFilter,
    message_id, reminder_id,
};
pub use self::notices::{
    ChangeEvents, EventFilter, EventFilters, EventHeader, NewDelivery, Notice,
};
pub use self::settings::{OpenError, Settings};

use self::commit::Committer;
pub use self::damaged_task::DamagedTask;
use self::db::{DatabaseEngine, Db, Value, sql, values};
pub use self::events::{Event, Events, MessageEvent, ReadLimit, Subtree};
pub use self::failure::{CommitError, ReadError};
use self::feed::Feed;
pub use self::feed::{CommitListener, InboxListener, Listener, News, Notification};
pub use self::gate_calls::{EqualCall, FoundCalls};
pub use self::grants::{CoverableCall, GrantFilter, GrantRow};
pub(crate) use self::idempotency::GATE_KEY_PATH;
pub use self::inbox::InboxState;
pub use self::journal::UserJournal;
#[doc(hidden)]
pub use self::open::PLANNED_ONCE;
pub use self::open_list::OpenRequest;
pub use self::outage::Outage;
pub use self::page::Page;
pub use self::queries::{RequestFilter, RequestRow, TaskFilter};
use self::record::AnyRow;
pub use self::resend_keys::{ResendKey, ResendTarget, StoredResend};
pub use self::stopped::{StoppedTask, UNCOMMITTED};
pub use self::tree::{TreeItem, TreeSnapshot};
pub use self::updatable_messages::{ListedRequests, MessageState};
pub use self::upgrade::UpgradeCursor;
use crate::task::change::{Change, Committed};
use crate::task::delta::Delta;
use crate::task::id::TaskId;
use crate::task::time::Time;
use crate::world::Locked;

/// The handle to the database. A clone is cheap and uses the same connections.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    db: Arc<Db>,
    feed: Arc<Feed>,
    committer: Arc<Committer>,
    request_queue: request_reads::RequestQueue,
    attempt_queue: attempts::AttemptQueue,
    event_queue: events::EventQueue,
    /// The background work: the writers, the relay, the reads of requests and events, and the
    /// records of attempts.
    tasks: TaskTracker,
    stop: CancellationToken,
    /// For tests: whether the relay (`relay.rs`) neither sends nor receives notifications.
    muted: Arc<AtomicBool>,
    /// For tests: whether [`Store::compare`] does nothing.
    #[cfg(failpoints)]
    skips_comparison: AtomicBool,
    /// The result of the last probe of [`Store::ready`], empty until the probe ends.
    last_probe: Locked<Weak<OnceCell<bool>>>,
    /// The tenants and users whose tasks were claimed last, so that tenants and users take turns.
    last_served: Locked<claim::LastServed>,
    /// The tasks given to [`Store::report_unreadable`] since the last [`Store::take_unreadable`].
    unreadable: Locked<BTreeSet<TaskId>>,
    /// The ids of the damaged rows that were left out of lists and logged. Each id is logged once.
    logged_damage: Locked<BTreeSet<Uuid>>,
    /// Stops the writers and the relay when the last handle is dropped.
    _stop_on_drop: DropGuard,
}

/// Stores an agent's definition under its digest. If the row of this digest holds another
/// definition, the stored definition is damaged, because two definitions cannot have the same
/// digest. The statement then overwrites the damaged definition.
const STORE_AGENT_VERSION: Sql = sql!(
    "insert into agent_version (digest, definition, created_at) values ($2, $3, " (now 1) ")
     on conflict (digest) do update set definition = excluded.definition
        where agent_version.definition <> excluded.definition returning created_at as at"
);

const DEFINITION: Sql = sql!("select definition from agent_version where digest = $1").by_key();

const NOW: Sql = sql!("select " (now 1) " as at");

/// Checks readiness. Reads a table of the service, so that the check fails if the schema is
/// missing.
///
/// The texts for Postgres and `SQLite` differ because only Postgres can be read-only. The Postgres
/// text returns no row on a read-only server.
const READY: Sql = Sql {
    postgres: "select count(*) as at from agent_version
        where digest = '' having current_setting('transaction_read_only') = 'off'",
    sqlite: "select count(*) as at from agent_version where digest = ''",
    by_key: false,
};

impl Store {
    /// Whether this process is the only user of the database; true only on `SQLite`. So each lease
    /// that a `SQLite` file has at the start of this process belongs to an earlier process.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        matches!(self.inner.db.engine, DatabaseEngine::Sqlite(_))
    }

    /// Opens the database. Locks a `SQLite` file. Without `unsafe_ok`, refuses a Postgres server
    /// that may lose confirmed commits. Migrates an older schema if `migrate` is set; otherwise
    /// refuses an older schema. Always refuses a newer schema.
    ///
    /// # Errors
    /// [`OpenError`] if the database cannot be opened, or is refused. The error has the reason.
    pub async fn open(
        settings: &Settings,
        clock: Arc<dyn crate::world::Clock>,
    ) -> Result<Self, OpenError> {
        let schema = if settings.migrate {
            open::Schema::Migrate
        } else {
            open::Schema::Check
        };
        let db = Arc::new(open::open(settings, schema, clock).await?);
        identity::load_uncertain_until(&db, settings.restored).await?;
        if matches!(db.engine, DatabaseEngine::Sqlite(_)) {
            for (over, values) in [
                (open::EXPIRE_LEASES, Vec::new()),
                (open::END_PRESENCE, vec![Value::Now]),
                (gathered::EXPIRE_LEASES, Vec::new()),
                (deliveries::EXPIRE_LEASES, Vec::new()),
            ] {
                db.count_written(over, values)
                    .await
                    .map_err(|failure| OpenError::Refused(failure.error.to_string()))?;
            }
        }
        let (feed, tasks, stop) = (
            Arc::new(Feed::default()),
            TaskTracker::new(),
            CancellationToken::new(),
        );
        let committer = Committer::start(&db, &feed, settings.writers, &stop, &tasks);
        let muted = Arc::new(AtomicBool::new(false));
        if let Some(relay) = relay::Relay::new(
            Arc::clone(&db),
            Arc::clone(&feed),
            stop.clone(),
            Arc::clone(&muted),
        ) {
            tasks.spawn(relay.run());
        }
        tasks.close();
        Ok(Self {
            inner: Arc::new(Inner {
                db,
                feed,
                committer,
                request_queue: request_reads::RequestQueue::default(),
                attempt_queue: attempts::AttemptQueue::default(),
                event_queue: events::EventQueue::default(),
                tasks,
                _stop_on_drop: stop.clone().drop_guard(),
                stop,
                muted,
                #[cfg(failpoints)]
                skips_comparison: AtomicBool::new(false),
                last_probe: Locked::default(),
                last_served: Locked::default(),
                unreadable: Locked::default(),
                logged_damage: Locked::default(),
            }),
        })
    }

    /// Migrates the schema and closes the database, for the command `migrate`.
    ///
    /// # Errors
    /// [`OpenError`] if the schema cannot be migrated. The error has the reason.
    pub async fn migrate(
        settings: &Settings,
        clock: Arc<dyn crate::world::Clock>,
    ) -> Result<(), OpenError> {
        open::open(settings, open::Schema::MigrateOnly, clock)
            .await?
            .close()
            .await;
        Ok(())
    }

    /// Writes the queued changes, then closes the database. Later commits fail with `Unavailable`.
    /// Call this function before the same `SQLite` file is opened again: a store that is merely
    /// dropped is closed some time later.
    pub async fn close(&self) {
        self.inner.committer.close();
        self.inner.stop.cancel();
        self.inner.tasks.wait().await;
        self.inner.db.close().await;
    }

    /// Writes one change atomically. The write continues if the future is dropped.
    ///
    /// # Errors
    /// [`CommitError`]: after `Unknown` the change may have been written; after any other error the
    /// change was not written.
    pub async fn commit(&self, change: Change) -> Result<Committed, CommitError> {
        self.commit_and_publish(change, None).await
    }

    /// Like [`Store::commit`]. If the change pauses or ends the root, the caller may pass the
    /// root's state after the commit as `stopped`. The watchers of the tree in this process then
    /// get this state with the notification of the commit, and need not read the database.
    ///
    /// # Errors
    /// The errors of [`Store::commit`].
    pub async fn commit_and_publish(
        &self,
        change: Change,
        stopped: Option<StoppedTask>,
    ) -> Result<Committed, CommitError> {
        self.inner.committer.commit(change, stopped).await
    }

    /// Frees the memory of a tree's last [`News`]. Does nothing if this process holds a receiver or
    /// a listener for the tree.
    pub fn forget(&self, root: TaskId) {
        self.inner.feed.forget(root);
    }

    /// Whether this process holds a receiver from [`Store::watch`], or a [`Listener`], for the
    /// tree. A [`CommitListener`] does not count, because it does not read [`News::stopped`].
    pub fn is_watched(&self, root: TaskId) -> bool {
        self.inner.feed.is_watched(root)
    }

    /// Calls `observer` with the number of changes in each batch, for a metric. Only the first call
    /// takes effect.
    pub fn observe_batches(&self, observer: impl Fn(usize) + Send + Sync + 'static) {
        let _ = self.inner.committer.batch_observer.set(Box::new(observer));
    }

    /// Stores an agent's definition under its digest; called at every start.
    ///
    /// # Errors
    /// [`CommitError`] if it is not certain that the definition was stored. The caller may repeat
    /// the call after every error.
    pub async fn store_agent_version(
        &self,
        digest: &str,
        definition: &str,
    ) -> Result<(), CommitError> {
        let values = values![Value::Now, digest, definition];
        self.inner.db.count_written(STORE_AGENT_VERSION, values).await.map(|_| ()).map_err(|failure| {
            if !failure.is_unreached() {
                tracing::warn!(error = %failure.error, "an agent's definition could not be stored");
            }
            // A lost result gives `Unavailable`, too, although the definition may have been
            // written. The caller may repeat the call after every error, so this is safe.
            if !failure.sent || failure.is_result_lost() { CommitError::Unavailable } else { commit::commit_error(&failure) }
        })
    }

    /// Reads the definition stored under a digest; `None` if there is none. The caller must check
    /// that the definition has this digest, because the stored text may be damaged.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn agent_definition(&self, digest: &str) -> Result<Option<String>, ReadError> {
        let values = values![digest];
        Ok(self.db().one(DEFINITION, values).await?)
    }

    /// Reads the database's clock.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer, or a stored value cannot be decoded.
    pub async fn now(&self) -> Result<Time, ReadError> {
        let at = self.db().one(NOW, vec![Value::Now]).await?;
        at.ok_or_else(|| ReadError::Corrupt("the database did not return its time".to_owned()))
    }

    /// Whether the database answers in time and has the tables of the service. A Postgres must also
    /// accept writes.
    ///
    /// Concurrent calls share a probe, because anyone may read `/readyz`, and the pool of the probe
    /// has one connection. Many probes that wait for this connection would end by `PROBE_TIMEOUT`,
    /// which counts as an outage.
    pub async fn ready(&self) -> bool {
        let probe = {
            let mut last = self.inner.last_probe.lock();
            let in_flight = last.upgrade().filter(|probe| !probe.initialized());
            let probe = in_flight.unwrap_or_default();
            *last = Arc::downgrade(&probe);
            probe
        };
        let ask = || async { self.db().probe::<AnyRow>(READY).await.is_some() };
        *probe.get_or_init(ask).await
    }

    /// Returns a receiver that is notified of each commit of this process to the tree of `root`.
    /// While this process has a listener from [`Store::listen`] or [`Store::subscribe`] for the
    /// tree, the receiver is also notified of the commits of other replicas. Otherwise it may miss
    /// those commits.
    pub fn watch(&self, root: TaskId) -> tokio::sync::watch::Receiver<News> {
        self.inner.feed.watch(root)
    }

    /// Returns a listener for the tree of `root`. The listener gets the commits and the deltas of
    /// models' answers from all replicas.
    pub fn listen(&self, root: TaskId) -> Listener {
        self.subscribe(root, self.listen_locally(root))
    }

    /// Like [`Store::listen`], but the listener is not announced to other replicas, and no deltas
    /// are produced for it. The listener gets every commit of this process, and may miss commits of
    /// other replicas.
    pub fn listen_locally(&self, root: TaskId) -> Listener {
        self.inner.feed.listen_locally(root)
    }

    /// Gives a listener from [`Store::listen_locally`] everything that a listener from
    /// [`Store::listen`] gets: the commits and the deltas of all replicas. The listener loses no
    /// notification during the switch.
    pub fn subscribe(&self, root: TaskId, listener: Listener) -> Listener {
        self.inner.feed.subscribe(root, listener)
    }

    /// Returns a listener for the commits, on any replica, that open, answer or close requests of
    /// this tenant.
    pub fn listen_to_inbox(&self, tenant: &str) -> InboxListener {
        self.inner.feed.listen_to_inbox(tenant)
    }

    /// Whether the tree has a listener from [`Store::listen`] or [`Store::subscribe`] on any
    /// replica, as far as this replica knows.
    pub fn is_listened_to(&self, root: TaskId) -> bool {
        self.inner.feed.is_listened_to(root)
    }

    /// Publishes a delta of a model's answer to the tree's listeners, before the answer is stored.
    pub fn publish_delta(&self, delta: Delta) {
        self.inner.feed.publish_delta(delta);
    }

    /// Waits until another replica has queued a task. By then, another worker may have claimed it.
    pub async fn wait_for_queued_task(&self) {
        self.inner.feed.task_queued.notified().await;
    }

    fn db(&self) -> &Db {
        &self.inner.db
    }
}
