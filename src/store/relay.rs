//! Exchanges notifications with the other replicas, over one dedicated connection. Notifications
//! are sent in batches, at most once in 25 ms. They are hints only: a lost notification costs only
//! time, because once a second a statement reads the last event of every tree with a listener on
//! this replica.
//!
//! Each replica announces the trees that it listens to. Commits and deltas are sent only for trees
//! that another replica has announced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgListener, PgPool};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::db::{Db, Engine, Sql, Value, sql};
use super::feed::{Feed, INTEREST, Outgoing};
use super::record::record;
use crate::task::delta::{Delta, Said};
use crate::task::id::{RequestId, TaskId};

const CHANNEL: &str = "holdpoint_feed";
/// The pause after each batch of messages to other replicas.
const BETWEEN: Duration = Duration::from_millis(25);
/// The interval between two reads of the last events.
const LOOK: Duration = Duration::from_secs(1);
/// The subscriptions are announced once in this many reads of the last events. The other replicas
/// forget a subscription after three times as long.
const LOOKS: u64 = INTEREST.as_secs() / 3;
/// The timeout for connecting, and for sending a batch of messages.
const PATIENCE: Duration = Duration::from_secs(5);
/// The maximum size of a message, in bytes. Postgres takes a payload of at most 7,999 bytes
/// (<https://www.postgresql.org/docs/current/sql-notify.html>).
const PAYLOAD: usize = 7_900;

/// `SQLite` has no text, because its one process has no other replicas.
const NOTIFY: Sql = Sql {
    postgres: "select count(pg_notify('holdpoint_feed', said.word)) as at from unnest($1::text[]) as said (word)",
    sqlite: "",
    by_key: false,
};

const LAST_EVENTS: Sql =
    sql!("select task_id, next_event from agent_task where task_id " (any 1 uuid)).by_key();

pub(super) const STATEMENTS: &[Sql] = &[NOTIFY, LAST_EVENTS];

record! {
    struct LastEvent {
        task_id: Uuid,
        next_event: i64,
    }
}

/// A message from one replica to the other replicas. A delta that is too long for one message is
/// split over several messages.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Word {
    /// The sending replica.
    from: Uuid,
    /// Whether the sender has just started to listen. The receiver then announces its
    /// subscriptions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hello: bool,
    /// Whether the sender has queued a task, which any worker may claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    work: bool,
    /// The trees that the sender subscribes to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    wants: Vec<TaskId>,
    /// The tenants whose inboxes the sender reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inboxes: Vec<String>,
    /// Requests that commits have opened, answered or closed, by tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    touched: Vec<(String, Vec<RequestId>)>,
    /// Trees with a commit, each with whether its root runs, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    news: Vec<(TaskId, Option<bool>)>,
    /// Deltas of models' answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    said: Vec<Delta>,
    /// Whether the last delta continues in the sender's next message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

/// Sends this replica's notifications to the other replicas, and receives theirs.
pub(super) struct Relay {
    db: Arc<Db>,
    feed: Arc<Feed>,
    stop: CancellationToken,
    replica: Uuid,
    /// For tests: whether all messages, in and out, are dropped.
    muted: Arc<AtomicBool>,
    /// The parts received so far of split deltas, by sender.
    begun: Vec<(Uuid, Delta)>,
}

/// The error that the connection failed or did not answer in time. The relay then replaces the
/// connection.
struct Broken;

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
            begun: Vec::new(),
        })
    }

    /// Sends and receives until the store is closed.
    pub(super) async fn run(mut self) {
        let Engine::Postgres { relay, .. } = &self.db.engine else {
            return;
        };
        let (pool, stop) = (relay.clone(), self.stop.clone());
        self.feed.open();
        let work = async {
            loop {
                let _ = self.connected(&pool).await;
                // Without a connection, notifications are lost. `look` finds the commits, and the
                // next connection announces the subscriptions again.
                self.feed.take();
                self.begun.clear();
                self.feed.heard_nothing();
                let until = Instant::now() + LOOK;
                sleep_until(until).await;
                self.look().await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    /// Sends and receives until the connection breaks.
    async fn connected(&mut self, pool: &PgPool) -> Result<(), Broken> {
        let listening = async {
            let mut listener = PgListener::connect_with(pool).await?;
            listener.eager_reconnect(false);
            listener.listen(CHANNEL).await?;
            Ok::<_, sqlx::Error>(listener)
        };
        let listening = timeout(PATIENCE, listening).await.map_err(|_| Broken)?;
        let mut listener = listening.map_err(|error| {
            tracing::debug!(%error, "notifications of other replicas cannot be received");
            Broken
        })?;
        self.tell(&mut listener, true).await?;
        let feed = Arc::clone(&self.feed);
        let (mut quiet, mut look, mut looks) = (Instant::now(), Instant::now(), 0_u64);
        let mut waiting = false;
        loop {
            tokio::select! {
                heard = listener.try_recv() => match heard {
                    Ok(Some(word)) => self.hear(word.payload()),
                    Ok(None) | Err(_) => return Err(Broken),
                },
                () = feed.outgoing(), if !waiting => waiting = true,
                () = sleep_until(quiet), if waiting => {
                    waiting = false;
                    self.tell(&mut listener, false).await?;
                    quiet = Instant::now() + BETWEEN;
                }
                () = sleep_until(look) => {
                    self.look().await;
                    look = Instant::now() + LOOK;
                    looks += 1;
                    if looks.is_multiple_of(LOOKS) {
                        // A message is sent even without subscriptions, so that other replicas
                        // know of this replica, and a dead connection is noticed.
                        self.feed.want_again();
                        self.tell(&mut listener, false).await?;
                    }
                }
            }
        }
    }

    /// Reads the last event of every tree with a listener: one statement, or none without
    /// listeners.
    async fn look(&self) {
        let roots: Vec<Uuid> = self
            .feed
            .listened()
            .into_iter()
            .map(|root| root.0)
            .collect();
        if roots.is_empty() {
            return;
        }
        let Ok(rows) = self
            .db
            .all::<LastEvent>(LAST_EVENTS, vec![Value::Ids(roots)])
            .await
        else {
            return;
        };
        for row in rows {
            self.feed.reached(TaskId(row.task_id), row.next_event);
        }
    }

    /// Sends the pending notifications. With `hello`, also announces the subscriptions and asks the
    /// other replicas for theirs.
    async fn tell(&self, listener: &mut PgListener, hello: bool) -> Result<(), Broken> {
        if hello {
            self.feed.want_again();
        }
        let words = words(self.replica, self.feed.take(), hello);
        if self.muted.load(Ordering::Relaxed) {
            return Ok(());
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "on the relay's own connection, which is no pool's"
        )]
        let told = sqlx::query(NOTIFY.postgres).bind(words).execute(listener);
        match timeout(PATIENCE, told).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Broken),
        }
    }

    /// Handles a message from another replica. Ignores a message that cannot be decoded: its sender
    /// may run a newer version.
    fn hear(&mut self, payload: &str) {
        let Ok(word) = serde_json::from_str::<Word>(payload) else {
            return;
        };
        if word.from == self.replica || self.muted.load(Ordering::Relaxed) {
            return;
        }
        self.feed.met();
        if word.work {
            self.feed.has_work();
        }
        self.feed.wanted(word.wants);
        self.feed.wanted_inboxes(word.inboxes);
        for (tenant, ids) in word.touched {
            self.feed.heard_touched(&tenant, &ids.into());
        }
        for (root, running) in word.news {
            self.feed.heard(root, running);
        }
        for delta in word.said {
            let begun = self.begun.iter().position(|(from, _)| *from == word.from);
            let delta = match begun.map(|at| self.begun.swap_remove(at).1) {
                Some(begun) => joined(begun, delta),
                None => delta,
            };
            if word.more {
                self.begun.push((word.from, delta));
            } else {
                self.feed.pass_on(Arc::new(delta));
            }
        }
        if word.hello {
            self.feed.want_again();
        }
    }
}

/// Converts the pending notifications to messages that fit Postgres' payload limit.
fn words(replica: Uuid, out: Outgoing, hello: bool) -> Vec<String> {
    let word = || Word {
        from: replica,
        ..Word::default()
    };
    let mut words = Vec::new();
    if hello || out.work || out.is_empty() {
        words.push(Word {
            hello,
            work: out.work,
            ..word()
        });
    }
    let wants: Vec<_> = out.wants.into_iter().collect();
    words.extend(wants.chunks(150).map(|wants| Word {
        wants: wants.to_vec(),
        ..word()
    }));
    words.extend(inbox_words(replica, out.inboxes, out.touched));
    // Deltas are sent before the news of the commit that follows them.
    for delta in out.said {
        let parts = parts(&delta);
        let last = parts.len().saturating_sub(1);
        let numbered = parts.into_iter().enumerate();
        words.extend(numbered.map(|(number, part)| Word {
            said: vec![part],
            more: number < last,
            ..word()
        }));
    }
    let news: Vec<_> = out.news.into_iter().collect();
    words.extend(news.chunks(120).map(|news| Word {
        news: news.to_vec(),
        ..word()
    }));
    words
        .iter()
        .filter_map(|word| serde_json::to_string(word).ok())
        .collect()
}

/// Makes the messages about inboxes. A tenant's name is short enough for each chunk to fit in a
/// message.
fn inbox_words(
    replica: Uuid,
    inboxes: BTreeSet<String>,
    touched: BTreeMap<String, BTreeSet<RequestId>>,
) -> Vec<Word> {
    let word = || Word {
        from: replica,
        ..Word::default()
    };
    let inboxes: Vec<_> = inboxes.into_iter().collect();
    let wants = inboxes.chunks(10).map(|inboxes| Word {
        inboxes: inboxes.to_vec(),
        ..word()
    });
    let mut words: Vec<_> = wants.collect();
    for (tenant, ids) in touched {
        let ids: Vec<_> = ids.into_iter().collect();
        words.extend(ids.chunks(120).map(|ids| Word {
            touched: vec![(tenant.clone(), ids.to_vec())],
            ..word()
        }));
    }
    words
}

/// Splits a delta into parts that fit in one message each. A part that is too long and cannot be
/// split is dropped.
fn parts(delta: &Delta) -> Vec<Delta> {
    let fits = serde_json::to_string(delta).is_ok_and(|text| text.len() + 100 < PAYLOAD);
    let (Said::Text { delta: text, .. } | Said::Arguments { delta: text, .. }) = &delta.said else {
        return if fits {
            vec![delta.clone()]
        } else {
            Vec::new()
        };
    };
    let half = text
        .char_indices()
        .nth(text.chars().count() / 2)
        .map_or(0, |(at, _)| at);
    if fits || half == 0 {
        return if fits {
            vec![delta.clone()]
        } else {
            Vec::new()
        };
    }
    let (first, second) = text.split_at(half);
    let part = |text: &str, before: u64| {
        let mut part = delta.clone();
        if let Said::Text { offset, delta } | Said::Arguments { offset, delta, .. } = &mut part.said
        {
            *offset += before;
            text.clone_into(delta);
        }
        part
    };
    let before = first.chars().count() as u64;
    [part(first, 0), part(second, before)]
        .iter()
        .flat_map(parts)
        .collect()
}

/// Appends `next` to `begun` if `next` continues the same text where `begun` ends; otherwise
/// returns `next` alone.
fn joined(mut begun: Delta, next: Delta) -> Delta {
    let of_one = (begun.task_id, begun.asking) == (next.task_id, next.asking);
    let goes_on = |offset: &u64, delta: &str, at: &u64| {
        of_one && offset + delta.chars().count() as u64 == *at
    };
    match (&mut begun.said, &next.said) {
        (
            Said::Text { offset, delta },
            Said::Text {
                offset: at,
                delta: more,
            },
        ) if goes_on(offset, delta, at) => {
            delta.push_str(more);
        }
        (
            Said::Arguments {
                tool_call_id,
                offset,
                delta,
            },
            Said::Arguments {
                tool_call_id: call,
                offset: at,
                delta: more,
            },
        ) if tool_call_id == call && goes_on(offset, delta, at) => delta.push_str(more),
        _ => return next,
    }
    begun
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
            said: Said::Text {
                offset: 3,
                delta: text.to_owned(),
            },
        }
    }

    #[test]
    fn long_delta_is_sent_in_parts_that_fit_and_join_again() {
        for text in ["é", &"é\u{1}\"".repeat(20_000), &"x".repeat(7_600), ""] {
            let parts = parts(&delta(text));
            assert!(
                parts
                    .iter()
                    .all(|part| serde_json::to_string(part).unwrap().len() < PAYLOAD - 90)
            );
            let mut offset = 3;
            for part in &parts {
                let Said::Text { offset: at, delta } = &part.said else {
                    panic!()
                };
                assert_eq!(*at, offset);
                offset += delta.chars().count() as u64;
            }
            assert_eq!(parts.into_iter().reduce(joined).unwrap(), delta(text));
        }
    }

    #[test]
    fn deltas_from_before_a_commit_are_sent_before_its_news() {
        let id = TaskId(Uuid::from_u128(7));
        let said = vec![Arc::new(delta("a")), Arc::new(delta(&"b".repeat(9_000)))];
        let out = Outgoing {
            said,
            news: [(id, Some(false))].into(),
            ..Outgoing::default()
        };
        let words: Vec<Word> = words(Uuid::nil(), out, true)
            .iter()
            .map(|word| serde_json::from_str(word).unwrap())
            .collect();
        let last = words
            .iter()
            .rposition(|word| !word.said.is_empty())
            .unwrap();
        let news = words.iter().position(|word| !word.news.is_empty()).unwrap();
        assert!(
            words[0].hello && words.len() == 5 && last < news,
            "{words:#?}"
        );
    }

    #[test]
    fn message_of_a_newer_replica_is_read_as_far_as_it_is_known() {
        let word: Word =
            serde_json::from_str(&format!(r#"{{"from":"{}","later":1}}"#, Uuid::nil())).unwrap();
        assert_eq!(word, Word::default());
    }
}
