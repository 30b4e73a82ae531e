//! Exchanges notifications with the other replicas, over one dedicated connection. Notifications
//! are sent in batches, at most once in 25 ms. A lost notification only delays listeners: once a
//! second, each replica reads the last event of every tree that has a listener on that replica.
//!
//! If the connection does not answer in time, the relay opens another, and does not wait for the
//! end of the old connection. This end may take a quarter of an hour if the network drops packets.
//!
//! Each replica announces its subscriptions: the trees and the inboxes that it listens to. A
//! replica sends the commits and deltas of a tree only if another replica has announced the tree.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::Acquire as _;
use sqlx::postgres::{PgListener, PgPool, PgPoolOptions};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::db::{DatabaseEngine, Db, Sql, sql, values};
use super::feed::{Feed, Outgoing, SUBSCRIPTION_TTL};
use super::identity::require_recorded;
use crate::task::delta::{Delta, DeltaContent};
use crate::task::id::{RequestId, TaskId};

const CHANNEL: &str = "holdpoint_feed";
/// The minimum pause between two batches of notifications.
const SEND_INTERVAL: Duration = Duration::from_millis(25);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum pause between two attempts to take the lock that marks this process as alive. The
/// pause doubles up to this maximum. Behind a pooler that assigns connections by transaction, no
/// attempt ever succeeds, and the relay tries as long as the connection lasts.
const MAX_LOCK_PAUSE: Duration = Duration::from_secs(5);
/// The time between two announcements of this replica's subscriptions. The other replicas keep a
/// subscription for `SUBSCRIPTION_TTL`.
const ANNOUNCEMENT_INTERVAL: Duration = Duration::from_secs(SUBSCRIPTION_TTL.as_secs() / 3);
/// The timeout for connecting, and for each statement on the relay's connection.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of a message, in bytes. Postgres takes a payload of at most 7,999 bytes
/// (<https://www.postgresql.org/docs/current/sql-notify.html>).
const MAX_PAYLOAD_BYTES: usize = 7_900;

/// Sends messages to the other replicas. The statement has no text for `SQLite`, because one
/// process alone uses a `SQLite` file.
const NOTIFY: Sql = Sql::on_postgres(
    "select count(pg_notify('holdpoint_feed', said.word)) as at from unnest($1::text[]) as said (word)",
);

const LAST_EVENTS: Sql =
    sql!("select task_id, next_event from agent_task where task_id " (any 1 uuid)).by_key();

pub(super) const STATEMENTS: &[Sql] = &[NOTIFY, LAST_EVENTS];

/// A message from one replica to the others. A delta that is too long for one message is split over
/// several messages.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct RelayMessage {
    from: Uuid,
    /// Whether the sender has just started to listen. If so, every other replica announces its
    /// subscriptions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hello: bool,
    /// Whether the sender has queued a task, which any worker may claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    work: bool,
    /// The trees that the sender subscribes to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    wants: Vec<TaskId>,
    /// The tenants whose inboxes the sender subscribes to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inboxes: Vec<String>,
    /// Requests that commits have opened, answered or closed, by tenant.
    #[serde(rename = "touched", default, skip_serializing_if = "Vec::is_empty")]
    requests: Vec<(String, Vec<RequestId>)>,
    /// The trees that commits have changed. The second value says whether the root runs; `None` if
    /// unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    news: Vec<(TaskId, Option<bool>)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    said: Vec<Delta>,
    /// Whether the last delta continues in the sender's next message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

pub(super) struct Relay {
    db: Arc<Db>,
    feed: Arc<Feed>,
    stop: CancellationToken,
    replica: Uuid,
    /// For tests: whether all messages, in and out, are dropped.
    muted: Arc<AtomicBool>,
    /// The deltas that lack their last parts, by sender.
    partial_deltas: HashMap<Uuid, Delta>,
}

/// The error of a connection that failed or did not answer in time. The relay then opens another
/// connection.
pub(super) struct Disconnected;

impl Relay {
    pub(super) fn new(
        db: Arc<Db>,
        feed: Arc<Feed>,
        stop: CancellationToken,
        muted: Arc<AtomicBool>,
    ) -> Option<Self> {
        let replica = Uuid::from_bytes(crate::world::random_bytes().ok()?);
        Some(Self {
            db,
            feed,
            stop,
            replica,
            muted,
            partial_deltas: HashMap::new(),
        })
    }

    pub(super) async fn run(mut self) {
        let (db, stop) = (Arc::clone(&self.db), self.stop.clone());
        let DatabaseEngine::Postgres { relay, .. } = &db.engine else {
            return;
        };
        self.feed.relay_started();
        loop {
            let began = Instant::now();
            // Each connection has a pool of its own, because an abandoned connection may keep the
            // only place in its pool for long.
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .max_lifetime(None)
                .idle_timeout(None)
                .connect_lazy_with((**relay).clone());
            // The future is boxed, because it has 31 KB.
            let connection = Box::pin(self.run_connection(&pool));
            let broken = stop.run_until_cancelled(connection).await;
            if broken.is_none() {
                let _ = timeout(TIMEOUT, pool.close()).await;
                return;
            }
            db.asker_lock.lose();
            // The connection has broken, so the unsent notifications are dropped. Commits of other
            // replicas that were missed are found by `poll_last_events`. The next connection
            // announces the subscriptions again.
            self.feed.take_outgoing();
            self.partial_deltas.clear();
            self.feed.publish_unknown_commits();
            let missed_commits = async {
                // Begins at most one connection in each `POLL_INTERVAL`.
                sleep_until(began + POLL_INTERVAL).await;
                self.poll_last_events().await;
            };
            if stop.run_until_cancelled(missed_commits).await.is_none() {
                return;
            }
        }
    }

    async fn listen(&self, pool: &PgPool) -> Result<PgListener, Disconnected> {
        let listening = async {
            let mut listener = PgListener::connect_with(pool).await?;
            listener.eager_reconnect(false);
            require_recorded(listener.acquire().await?, &self.db.uncertain_until).await?;
            listener.listen(CHANNEL).await?;
            Ok::<_, sqlx::Error>(listener)
        };
        let listening = timeout(TIMEOUT, listening).await;
        listening.map_err(|_| Disconnected)?.map_err(|error| {
            tracing::debug!(%error, "notifications of other replicas cannot be received");
            Disconnected
        })
    }

    async fn run_connection(&mut self, pool: &PgPool) -> Result<(), Disconnected> {
        let mut listener = self.listen(pool).await?;
        let opened_at = Instant::now();
        self.db.asker_lock.take(&mut listener).await?;
        self.send(&mut listener, true).await?;
        let feed = Arc::clone(&self.feed);
        let (mut next_send, mut next_poll) = (Instant::now(), Instant::now());
        let mut next_announcement = Instant::now() + ANNOUNCEMENT_INTERVAL;
        let (mut next_lock, mut lock_pause) = (Instant::now() + POLL_INTERVAL, POLL_INTERVAL);
        let mut waiting = false;
        loop {
            tokio::select! {
                received = listener.try_recv() => match received {
                    Ok(Some(message)) => self.receive(message.payload()),
                    Ok(None) | Err(_) => return Err(Disconnected),
                },
                () = feed.outgoing_ready.notified(), if !waiting => waiting = true,
                () = sleep_until(next_send), if waiting => {
                    waiting = false;
                    // Since `outgoing_ready` was notified, an announcement may have sent all
                    // pending notifications. Then nothing is left to send.
                    if feed.has_outgoing() {
                        self.send(&mut listener, false).await?;
                        next_send = Instant::now() + SEND_INTERVAL;
                    }
                }
                () = sleep_until(next_lock) => {
                    self.db.asker_lock.take(&mut listener).await?;
                    lock_pause = MAX_LOCK_PAUSE.min(2 * lock_pause);
                    next_lock = Instant::now() + lock_pause;
                }
                () = sleep_until(next_poll) => {
                    let age = opened_at.elapsed();
                    if self.db.uncertain_until.has_changed_since_opening(age) {
                        return Err(Disconnected);
                    }
                    self.poll_last_events().await;
                    next_poll = Instant::now() + POLL_INTERVAL;
                }
                () = sleep_until(next_announcement) => {
                    // The announcement is sent even without subscriptions, so that other replicas
                    // know of this replica, and this replica notices a dead connection.
                    self.feed.announce_subscriptions();
                    self.send(&mut listener, false).await?;
                    next_announcement = Instant::now() + ANNOUNCEMENT_INTERVAL;
                }
            }
        }
    }

    /// Reads, in one statement, the last event of every tree with a subscriber on this replica.
    async fn poll_last_events(&self) {
        let roots = self.feed.subscribed_trees();
        if roots.is_empty() {
            return;
        }
        let values = values![roots.as_slice()];
        let read = self.db.all::<(TaskId, i64)>(LAST_EVENTS, values).await;
        for (root, last_event) in read.unwrap_or_default() {
            self.feed.set_last_event(root, last_event);
        }
    }

    /// Sends the pending notifications. With `hello`, also announces the subscriptions, and asks
    /// the other replicas to announce their subscriptions.
    async fn send(&self, listener: &mut PgListener, hello: bool) -> Result<(), Disconnected> {
        if hello {
            self.feed.announce_subscriptions();
        }
        let texts = messages(self.replica, self.feed.take_outgoing(), hello);
        if self.muted.load(Ordering::Relaxed) {
            return Ok(());
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "on the relay's own connection, which belongs to no pool"
        )]
        let notification = sqlx::query(NOTIFY.postgres).bind(texts).execute(listener);
        match timeout(TIMEOUT, notification).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Disconnected),
        }
    }

    /// Handles a message from another replica. Ignores a message that cannot be decoded: its sender
    /// may run a newer version.
    fn receive(&mut self, payload: &str) {
        let Ok(message) = serde_json::from_str::<RelayMessage>(payload) else {
            return;
        };
        if message.from == self.replica || self.muted.load(Ordering::Relaxed) {
            return;
        }
        self.feed.record_replica();
        if message.work {
            self.feed.task_queued.notify_one();
        }
        self.feed.record_subscriptions(message.wants);
        self.feed.record_inbox_subscriptions(message.inboxes);
        for (tenant, ids) in message.requests {
            self.feed.deliver_requests(&tenant, &ids.into());
        }
        for (root, running) in message.news {
            self.feed.publish_remote_commit(root, running);
        }
        for delta in message.said {
            let delta = match self.partial_deltas.remove(&message.from) {
                Some(partial) => join_deltas(partial, delta),
                None => delta,
            };
            if message.more {
                self.partial_deltas.insert(message.from, delta);
            } else {
                self.feed.deliver_delta(Arc::new(delta));
            }
        }
        if message.hello {
            self.feed.announce_subscriptions();
        }
    }
}

/// Converts the pending notifications to messages that fit Postgres' payload limit.
fn messages(replica: Uuid, outgoing: Outgoing, hello: bool) -> Vec<String> {
    let mut messages = Vec::new();
    if hello || outgoing.has_queued_task || outgoing.is_empty() {
        messages.push(RelayMessage {
            hello,
            work: outgoing.has_queued_task,
            ..RelayMessage::default()
        });
    }
    let wants: Vec<_> = outgoing.subscriptions.into_iter().collect();
    messages.extend(wants.chunks(150).map(|wants| RelayMessage {
        wants: wants.to_vec(),
        ..RelayMessage::default()
    }));
    // Each message has at most 10 tenants or 120 requests. Names of tenants are short, so the
    // messages stay below the payload limit.
    let inboxes: Vec<_> = outgoing.inboxes.into_iter().collect();
    messages.extend(inboxes.chunks(10).map(|inboxes| RelayMessage {
        inboxes: inboxes.to_vec(),
        ..RelayMessage::default()
    }));
    for (tenant, ids) in outgoing.requests {
        let ids: Vec<_> = ids.into_iter().collect();
        messages.extend(ids.chunks(120).map(|ids| RelayMessage {
            requests: vec![(tenant.clone(), ids.to_vec())],
            ..RelayMessage::default()
        }));
    }
    // The deltas of a model's answer are sent before the news of the commit that stores this
    // answer, because readers ignore deltas that come after the stored answer.
    for delta in outgoing.deltas {
        let parts = split_delta(&delta);
        let last = parts.len().saturating_sub(1);
        let numbered = parts.into_iter().enumerate();
        messages.extend(numbered.map(|(number, part)| RelayMessage {
            said: vec![part],
            more: number < last,
            ..RelayMessage::default()
        }));
    }
    let news: Vec<_> = outgoing.news.into_iter().collect();
    messages.extend(news.chunks(120).map(|news| RelayMessage {
        news: news.to_vec(),
        ..RelayMessage::default()
    }));
    let texts = messages.into_iter().filter_map(|message| {
        let message = RelayMessage {
            from: replica,
            ..message
        };
        serde_json::to_string(&message).ok()
    });
    texts.collect()
}

/// Splits a delta into parts that fit in one message each. Drops a part that is too long and cannot
/// be split.
fn split_delta(delta: &Delta) -> Vec<Delta> {
    if serde_json::to_string(delta).is_ok_and(|text| text.len() + 100 < MAX_PAYLOAD_BYTES) {
        return vec![delta.clone()];
    }
    let (DeltaContent::Text { delta: text, .. } | DeltaContent::Arguments { delta: text, .. }) =
        &delta.said
    else {
        return Vec::new();
    };
    let half = text
        .char_indices()
        .nth(text.chars().count() / 2)
        .map_or(0, |(at, _)| at);
    if half == 0 {
        return Vec::new();
    }
    let (first, second) = text.split_at(half);
    let part = |text: &str, before: u64| {
        let mut part = delta.clone();
        if let DeltaContent::Text { offset, delta }
        | DeltaContent::Arguments { offset, delta, .. } = &mut part.said
        {
            *offset += before;
            text.clone_into(delta);
        }
        part
    };
    let before = first.chars().count() as u64;
    [part(first, 0), part(second, before)]
        .iter()
        .flat_map(split_delta)
        .collect()
}

/// Appends `next` to `partial` if `next` continues the same text where `partial` ends. Otherwise
/// returns `next` alone.
fn join_deltas(mut partial: Delta, next: Delta) -> Delta {
    let same_answer = (partial.task_id, partial.asking) == (next.task_id, next.asking);
    let continues = |offset: &u64, delta: &str, at: &u64| {
        same_answer && offset + delta.chars().count() as u64 == *at
    };
    match (&mut partial.said, &next.said) {
        (
            DeltaContent::Text { offset, delta },
            DeltaContent::Text {
                offset: at,
                delta: more,
            },
        ) if continues(offset, delta, at) => {
            delta.push_str(more);
        }
        (
            DeltaContent::Arguments {
                tool_call_id,
                offset,
                delta,
            },
            DeltaContent::Arguments {
                tool_call_id: call,
                offset: at,
                delta: more,
            },
        ) if tool_call_id == call && continues(offset, delta, at) => delta.push_str(more),
        _ => return next,
    }
    partial
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::time::Time;

    fn delta(text: &str) -> Delta {
        let id = TaskId(Uuid::from_u128(7));
        Delta {
            root_task_id: id,
            task_id: id,
            agent_path: vec!["a".into()],
            turn: 2,
            after_seq: 5,
            asking: Uuid::from_u128(9),
            at: Time(1),
            said: DeltaContent::Text {
                offset: 3,
                delta: text.to_owned(),
            },
        }
    }

    #[test]
    fn long_delta_is_sent_in_parts_that_fit_and_join_again() {
        for text in ["é", &"é\u{1}\"".repeat(20_000), &"x".repeat(7_600), ""] {
            let parts = split_delta(&delta(text));
            assert!(
                parts
                    .iter()
                    .all(|part| serde_json::to_string(part).unwrap().len() < MAX_PAYLOAD_BYTES - 90)
            );
            let mut offset = 3;
            for part in &parts {
                let DeltaContent::Text { offset: at, delta } = &part.said else {
                    panic!()
                };
                assert_eq!(*at, offset);
                offset += delta.chars().count() as u64;
            }
            assert_eq!(parts.into_iter().reduce(join_deltas).unwrap(), delta(text));
        }
    }

    #[test]
    fn deltas_from_before_a_commit_are_sent_before_its_news() {
        let id = TaskId(Uuid::from_u128(7));
        let deltas = vec![Arc::new(delta("a")), Arc::new(delta(&"b".repeat(9_000)))];
        let outgoing = Outgoing {
            deltas,
            news: [(id, Some(false))].into(),
            ..Outgoing::default()
        };
        let messages: Vec<RelayMessage> = messages(Uuid::nil(), outgoing, true)
            .iter()
            .map(|message| serde_json::from_str(message).unwrap())
            .collect();
        let has_deltas = |message: &RelayMessage| !message.said.is_empty();
        let has_news = |message: &RelayMessage| !message.news.is_empty();
        let last = messages.iter().rposition(has_deltas).unwrap();
        let news = messages.iter().position(has_news).unwrap();
        assert!(
            messages[0].hello && messages.len() == 5 && last < news,
            "{messages:#?}"
        );
    }

    #[test]
    fn message_of_a_newer_replica_is_read_as_far_as_it_is_known() {
        let message: RelayMessage =
            serde_json::from_str(&format!(r#"{{"from":"{}","later":1}}"#, Uuid::nil())).unwrap();
        assert_eq!(message, RelayMessage::default());
    }
}
