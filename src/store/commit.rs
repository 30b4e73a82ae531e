//! The committer writes every [`Change`]. It has one or two writers, each with a queue. A writer
//! takes the queued changes, up to the limits of a batch, and writes them as one batch. A writer
//! waits for no timer, so a single change is not delayed. Two changes of one root are never written
//! at the same time, because they wait for the same writer, and a batch has at most one change of
//! each root. While a failed change is sent again, later changes of its root stay queued.
//!
//! Invariant: `Committed` means that the change is durable. An error other than `Unknown` means
//! that the change was not written. The failure of one change never makes another change fail.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::change_rows::rows;
use super::commit_single::{MAX_BATCH_LINES, is_single};
use super::db::{DatabaseEngine, Db, DbFailure, Sql, sql, values};
use super::feed::Feed;
use super::notices::EventFilters;
use super::rows::ChangeRows;
use super::{CommitError, StoppedTask, commit_postgres, commit_single, commit_sqlite};
use crate::task::change::{Change, Committed, LeaseChange};
use crate::task::id::TaskId;
use crate::task::time::Time;
use crate::world::Locked;

const MAX_BATCH_CHANGES: usize = 128;
/// The maximum bytes of the items and credentials of a batch. A single change may have more.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// The maximum number of lookups of a change whose commit result was lost. If a lookup does not
/// find the change, the change is sent again before the next lookup. No lookup begins once
/// `Db::statement_limit` has passed since the statement failed. At either limit, the outcome is
/// reported as unknown.
const MAX_LOOKUPS: usize = 48;
/// The pause between two attempts to write or look up a change. `commit_alone` multiplies this
/// pause by the number of attempts.
const RETRY_BACKOFF: Duration = Duration::from_millis(100);
/// The maximum number of attempts to send a change alone. Only a lock conflict leads to another
/// attempt.
const MAX_SENDS: u32 = 3;

const MAX_CONCURRENT_REPEATS: usize = 4;

pub(super) const FIND: Sql =
    sql!("select at from agent_task_item where task_id = $1 and seq = $2 and change_id = $3")
        .by_key();

type CommitReply = Result<Committed, CommitError>;

struct QueuedChange {
    rows: Arc<ChangeRows>,
    stopped: Option<StoppedTask>,
    reply: oneshot::Sender<CommitReply>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<QueuedChange>,
    /// The roots of the changes that [`Committer::repeat`] handles. Later changes of these roots
    /// stay queued.
    repeated_roots: HashSet<TaskId>,
    closed: bool,
}

/// A writer with its queue. All changes of a root go to the same writer, in their order.
#[derive(Default)]
struct Writer {
    queue: Locked<Queue>,
    wake: Notify,
}

pub(super) struct Committer {
    db: Arc<Db>,
    feed: Arc<Feed>,
    writers: Vec<Writer>,
    tasks: TaskTracker,
    stop: CancellationToken,
    pub(super) batch_observer: OnceLock<Box<dyn Fn(usize) + Send + Sync>>,
    /// The events about which messages are sent. Commits write no notices before this field is set.
    pub(super) event_filters: OnceLock<EventFilters>,
    /// For tests: whether `commit_postgres.rs` writes all changes, even those for
    /// `commit_single.rs`.
    pub(super) is_general_only: AtomicBool,
}

impl std::fmt::Debug for Committer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Committer")
    }
}

impl Committer {
    /// Starts the writers: `writers` of them on Postgres, a single one on `SQLite`.
    pub(super) fn start(
        db: &Arc<Db>,
        feed: &Arc<Feed>,
        writers: u32,
        stop: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Arc<Self> {
        let writers = match &db.engine {
            DatabaseEngine::Postgres { .. } => writers,
            DatabaseEngine::Sqlite(_) => 1,
        };
        let committer = Arc::new(Self {
            db: Arc::clone(db),
            feed: Arc::clone(feed),
            writers: (0..writers).map(|_| Writer::default()).collect(),
            tasks: tasks.clone(),
            stop: stop.clone(),
            batch_observer: OnceLock::new(),
            event_filters: OnceLock::new(),
            is_general_only: AtomicBool::new(false),
        });
        for number in 0..committer.writers.len() {
            tasks.spawn(Arc::clone(&committer).work(number));
        }
        committer
    }

    /// Writes one change. If this future is dropped, a queued change is still written. If no writer
    /// takes the change within `Db::statement_limit`, withdraws it and returns `Unavailable`. If
    /// the change pauses or ends the root, the caller may pass the root's new state as `stopped`.
    /// Readers in this process then get this state with the notification of the commit, and need
    /// not read the root's row.
    pub(super) async fn commit(&self, change: Change, stopped: Option<StoppedTask>) -> CommitReply {
        let no_filters = EventFilters::default();
        let Some(mut rows) = rows(change, self.event_filters.get().unwrap_or(&no_filters)) else {
            return Err(CommitError::Refused);
        };
        rows.is_general = self.is_general_only.load(Ordering::Relaxed);
        let (reply, mut receiver) = oneshot::channel();
        let id = rows.change;
        let Some(writer) = self.writer_of(rows.root) else {
            return Err(CommitError::Unavailable);
        };
        {
            let mut queue = writer.queue.lock();
            if queue.closed {
                return Err(CommitError::Unavailable);
            }
            queue.waiting.push_back(QueuedChange {
                rows: Arc::new(rows),
                stopped,
                reply,
            });
        }
        writer.wake.notify_one();
        let result = match timeout(self.db.statement_limit, &mut receiver).await {
            Ok(result) => result,
            Err(_) if writer.withdraw(id) => return Err(CommitError::Unavailable),
            // A writer has taken the change and may still write it. The wait for the reply is
            // bounded, because each statement of the writer has a time limit, and the lookups of a
            // lost batch have one time limit together.
            Err(_) => receiver.await,
        };
        result.unwrap_or(Err(CommitError::Unknown))
    }

    fn writer_of(&self, root: TaskId) -> Option<&Writer> {
        let count = self.writers.len().max(1);
        let number = root.0.as_u128() % u128::try_from(count).unwrap_or(1);
        self.writers.get(usize::try_from(number).unwrap_or(0))
    }

    /// Rejects further changes as `Unavailable`. Changes that are already queued are still written.
    pub(super) fn close(&self) {
        for writer in &self.writers {
            writer.queue.lock().closed = true;
        }
    }

    async fn work(self: Arc<Self>, number: usize) {
        let Some(writer) = self.writers.get(number) else {
            return;
        };
        loop {
            let batch = writer.take();
            if !batch.is_empty() {
                self.write(number, batch).await;
                continue;
            }
            let is_stopping = self.stop.is_cancelled();
            if is_stopping && writer.queue.lock().waiting.is_empty() {
                return;
            }
            tokio::select! {
                () = writer.wake.notified() => {}
                () = self.stop.cancelled(), if !is_stopping => {}
            }
        }
    }

    async fn write(self: &Arc<Self>, writer: usize, batch: Vec<QueuedChange>) {
        if let Some(observe) = self.batch_observer.get() {
            observe(batch.len());
        }
        let rows = batch.iter().map(|waiting| Arc::clone(&waiting.rows));
        match self.send(rows.collect(), false).await {
            Ok(times) => {
                for (waiting, at) in batch.into_iter().zip(times) {
                    self.finish(waiting, result_at(at));
                }
            }
            Err(failure) if !failure.sent => {
                for waiting in batch {
                    self.finish(waiting, Err(CommitError::Unavailable));
                }
            }
            Err(failure) => self.repeat(writer, batch, failure),
        }
    }

    /// Handles a failed batch in the background:
    /// - If the outcome of the batch is unknown, looks each change up.
    /// - If nothing was written, and the batch has several changes or met a lock conflict, sends
    ///   each change alone. So a change that cannot be stored makes no other change of the batch
    ///   fail. Once `Db::statement_limit` has passed since the batch failed, reports the remaining
    ///   changes as unavailable, so that no caller waits long while the database is away.
    /// - Otherwise a single change failed without a lock conflict. Reports its failure.
    ///
    /// Meanwhile the writer writes changes of other roots, so a change that waits for a lock delays
    /// only its own root.
    fn repeat(self: &Arc<Self>, writer: usize, batch: Vec<QueuedChange>, failure: DbFailure) {
        let one_by_one =
            !failure.is_result_lost() && (batch.len() > 1 || failure.is_lock_conflict());
        if one_by_one {
            tracing::info!(
                changes = batch.len(),
                code = failure.code(),
                "a batch failed; its changes are committed one by one"
            );
        }
        if let Some(writer) = self.writers.get(writer) {
            let roots = batch.iter().map(|waiting| waiting.rows.root);
            writer.queue.lock().repeated_roots.extend(roots);
        }
        let committer = Arc::clone(self);
        let began = Instant::now();
        self.tasks.spawn(async move {
            let each = |waiting: QueuedChange| async {
                let rows = &waiting.rows;
                let is_late = began.elapsed() > committer.db.statement_limit;
                let result = if one_by_one && is_late {
                    Err(CommitError::Unavailable)
                } else if one_by_one {
                    committer.commit_alone(rows).await
                } else {
                    committer.result_of_failure(rows, &failure, began).await
                };
                let root = waiting.rows.root;
                committer.finish(waiting, result);
                if let Some(writer) = committer.writers.get(writer) {
                    writer.queue.lock().repeated_roots.remove(&root);
                    writer.wake.notify_one();
                }
            };
            stream::iter(batch)
                .for_each_concurrent(MAX_CONCURRENT_REPEATS, each)
                .await;
        });
    }

    /// Publishes a written change, except if it only changes the presence of an asker. Sends the
    /// result to the caller of `commit`.
    fn finish(&self, waiting: QueuedChange, result: CommitReply) {
        let QueuedChange {
            rows,
            stopped,
            reply,
        } = waiting;
        if let Ok(Committed { at }) = &result
            && !rows.only_changes_presence()
        {
            let stopped = stopped.map(|stopped| stopped.with_commit_time(*at, rows.asker()));
            self.feed
                .publish_commit(rows.root, rows.root_runs(), rows.items.len(), stopped);
            self.feed
                .publish_requests(&rows.tenant, rows.affected_requests());
            let mut lines = rows.tasks.iter();
            if lines.any(|line| line.task.lease == LeaseChange::Queue) {
                self.feed.announce_queued_task();
            }
            if rows.gets_notice {
                self.feed.sender_wakeup.notify_one();
            }
        }
        // The send fails if the caller no longer waits for the result.
        let _ = reply.send(result);
    }

    async fn send(
        &self,
        batch: Vec<Arc<ChangeRows>>,
        repeated: bool,
    ) -> Result<Vec<Option<i64>>, DbFailure> {
        if let DatabaseEngine::Sqlite(_) = &self.db.engine {
            return commit_sqlite::write(&self.db, batch).await;
        }
        let batch: Vec<&ChangeRows> = batch.iter().map(|rows| &**rows).collect();
        if batch.iter().all(|rows| is_single(rows)) {
            commit_single::write(&self.db, &batch, repeated).await
        } else {
            commit_postgres::write(&self.db, &batch, repeated).await
        }
    }

    /// Commits one change. If the statement fails because of another writer's locks, it has written
    /// nothing, and the change is sent again.
    async fn commit_alone(&self, rows: &Arc<ChangeRows>) -> CommitReply {
        let mut sent = 1;
        loop {
            match self.send(vec![Arc::clone(rows)], true).await {
                Ok(times) => {
                    let time = times.into_iter().next();
                    return time.map_or(Err(CommitError::Unknown), result_at);
                }
                Err(failure) if failure.sent && failure.is_lock_conflict() && sent < MAX_SENDS => {
                    // The pause differs from change to change (jitter), so that two changes with
                    // conflicting locks do not conflict at the next attempt.
                    let spread = u32::try_from(rows.change.as_u128() % 8).unwrap_or(0);
                    let pause = RETRY_BACKOFF * sent + RETRY_BACKOFF / 8 * spread;
                    self.db.clock.sleep(pause).await;
                    sent += 1;
                }
                Err(failure) => {
                    return self.result_of_failure(rows, &failure, Instant::now()).await;
                }
            }
        }
    }

    /// Returns the result of a change whose statement failed at the time `began`.
    async fn result_of_failure(
        &self,
        rows: &Arc<ChangeRows>,
        failure: &DbFailure,
        began: Instant,
    ) -> CommitReply {
        if !failure.sent {
            return Err(CommitError::Unavailable);
        }
        if failure.is_result_lost() {
            return self.find_or_repeat(rows, began).await;
        }
        if failure.is_idempotency_key_used() {
            tracing::debug!(root_task_id = %rows.root, change_id = %rows.change,
                "the idempotency key is used");
        } else {
            tracing::warn!(root_task_id = %rows.root, change_id = %rows.change, error = %failure.error,
                "a change could not be written");
        }
        Err(commit_error(failure))
    }

    /// Handles a lost commit result: looks the change up by its first item. If the item is missing,
    /// sends the change again, in a second statement. The first statement may still run. The second
    /// statement waits for the locks of the first, and refuses the change if the first has
    /// committed. So the change is written at most once. A change that is not fenced
    /// ([`ChangeRows::is_fenced`]) is not sent again, and its outcome is reported as unknown.
    /// `began` is the time at which the first statement failed. All changes of a batch count
    /// `Db::statement_limit` from this time, so that no caller waits long while the database is
    /// away.
    async fn find_or_repeat(&self, rows: &Arc<ChangeRows>, began: Instant) -> CommitReply {
        tracing::warn!(root_task_id = %rows.root, change_id = %rows.change, "the outcome of a commit is unknown: its answer was lost");
        if !rows.is_fenced() {
            return Err(CommitError::Unknown);
        }
        let mut last = None;
        for _ in 0..MAX_LOOKUPS {
            if began.elapsed() > self.db.statement_limit {
                break;
            }
            match self.find(rows).await {
                Ok(Some(at)) => return Ok(Committed { at: Time(at) }),
                Ok(None) => {}
                Err(_) => {
                    self.db.clock.sleep(RETRY_BACKOFF).await;
                    continue;
                }
            }
            // The second statement wrote nothing: it was refused, or it failed. This later lookup
            // shows that the first statement wrote nothing either.
            if let Some(error) = last {
                return Err(error);
            }
            match self.send(vec![Arc::clone(rows)], true).await {
                Ok(answers) => match answers.into_iter().next().flatten() {
                    Some(at) => return Ok(Committed { at: Time(at) }),
                    None if rows.first_item().is_none() => return Err(CommitError::Unknown),
                    None => last = Some(CommitError::Stale),
                },
                Err(failure)
                    if !failure.sent || failure.is_result_lost() || failure.is_lock_conflict() =>
                {
                    self.db.clock.sleep(RETRY_BACKOFF).await;
                }
                Err(failure) => last = Some(commit_error(&failure)),
            }
        }
        Err(CommitError::Unknown)
    }

    async fn find(&self, rows: &ChangeRows) -> Result<Option<i64>, DbFailure> {
        let Some((task, seq)) = rows.first_item() else {
            return Ok(None);
        };
        let values = values![task, seq, rows.change];
        self.db.one(FIND, values).await
    }
}

impl Writer {
    /// Removes a change from the queue. Returns `false` if the writer has already taken it.
    fn withdraw(&self, id: uuid::Uuid) -> bool {
        let mut queue = self.queue.lock();
        let before = queue.waiting.len();
        queue.waiting.retain(|waiting| waiting.rows.change != id);
        queue.waiting.len() < before
    }

    /// Takes waiting changes in order, up to the limits of a batch. The batch has at most one
    /// change of each root. One statement writes the whole batch, and [`is_single`] decides which
    /// statement. So the batch has only changes for which `is_single` returns the same value.
    fn take(&self) -> Vec<QueuedChange> {
        let mut queue = self.queue.lock();
        let mut single = None;
        let mut batch = Vec::new();
        let mut later = VecDeque::new();
        // A change waits while an earlier change of its root is in this batch, stays in the queue,
        // or is sent again by `Committer::repeat`.
        let mut roots: HashSet<TaskId> = queue.repeated_roots.clone();
        let (mut bytes, mut lines) = (0, 0);
        while let Some(waiting) = queue.waiting.pop_front() {
            let size = waiting.rows.size();
            let more = waiting.rows.lines();
            let exceeds_limits = bytes + size > MAX_BATCH_BYTES || lines + more > MAX_BATCH_LINES;
            let full = batch.len() >= MAX_BATCH_CHANGES || (!batch.is_empty() && exceeds_limits);
            let kind = is_single(&waiting.rows);
            let fits = !full && single.is_none_or(|single| single == kind);
            if roots.insert(waiting.rows.root) && fits {
                single = Some(kind);
                (bytes, lines) = (bytes + size, lines + more);
                batch.push(waiting);
                continue;
            }
            later.push_back(waiting);
            if full {
                break;
            }
        }
        later.append(&mut queue.waiting);
        queue.waiting = later;
        batch
    }
}

fn result_at(at: Option<i64>) -> CommitReply {
    at.map(|at| Committed { at: Time(at) })
        .ok_or(CommitError::Stale)
}

/// Returns the error for a statement that wrote nothing:
/// - `Refused` if the failure has no code, or if the data of the change caused it and would cause
///   it again, such as a violated constraint, a value that does not fit, or a row that is too big.
/// - `Unavailable` for any other failure, such as a full disk, a read-only server, a lost privilege
///   or a statement that took too long.
pub(super) fn commit_error(failure: &DbFailure) -> CommitError {
    let code = failure.code();
    // On `SQLite`, the low byte is the primary code: 18 for a value that is too big, 19 for a
    // violated constraint, 20 for a type mismatch.
    let sqlite = code
        .parse::<i64>()
        .ok()
        .filter(|_| code.len() < 5)
        .map(|code| code & 0xff);
    let class = code
        .get(..2)
        .filter(|_| code.len() == 5)
        .unwrap_or_default();
    let is_data_error =
        matches!(class, "21" | "22" | "23" | "54" | "P0") || matches!(sqlite, Some(18..=20));
    if is_data_error || code.is_empty() {
        CommitError::Refused
    } else {
        CommitError::Unavailable
    }
}

#[cfg(test)]
mod tests;
