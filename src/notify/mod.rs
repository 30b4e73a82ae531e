//! Sends messages about commits to the receivers in the configuration. A commit writes a notice
//! (`store/notices.rs`). `expand_notices.rs` replaces the notice by deliveries: each entry that
//! wants an event of the commit gets a delivery. `send.rs` claims due deliveries and makes the
//! attempts. The content of a message is read from the journal at each attempt (`message.rs`).
//!
//! Invariants: a message is sent at least once. A webhook message has the same id at each attempt.
//! A mail has the same id at each attempt with the same deliveries. The order of messages is not
//! guaranteed. A slow or failing receiver delays the messages of its own entry and no others. A
//! receiver's secrets, mail addresses and URLs are in no row, log line or metric, and in no message
//! to another receiver.

mod attempt_result;
mod chat;
mod digest;
pub(crate) mod entry;
mod exchange;
mod expand_notices;
mod gather;
mod health;
mod mail;
mod message;
mod outcome;
mod ping;
pub(crate) mod recipients;
mod round_robin;
mod schedule;
mod send;
pub mod settings;
mod sign;
mod slack;
mod teams;
mod update_message;
mod webhook;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::value::RawValue;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::ping::{PingResult, ping};
pub use self::settings::Settings;

use self::entry::Entry;
use self::mail::Mailer;
use self::round_robin::EntryRotation;
use self::send::EntryState;
use crate::net::Net;
use crate::people::directory::Directory;
use crate::people::link::Links;
use crate::store::{Event, EventFilters, ReadError, Store};
use crate::task::id::{RequestId, TaskId};
use crate::world::{Backlog, Clock, Ids};

/// The time between two polls of the database. Between polls, a commit of this process wakes the
/// sender.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two cleanups of deliveries.
const CLEANUP_INTERVAL: Duration = Duration::from_mins(1);
/// The maximum number of concurrent attempts of a process, for all entries together. Each entry
/// also has a slot of its own, its reserve. While this maximum is reached, an entry may still make
/// one attempt with its reserve.
const SLOTS_PER_PROCESS: usize = 32;

/// A future that returns the JSON text for a message, or the reason why there is none.
pub type Rendered = BoxFuture<'static, Result<Box<RawValue>, ReadError>>;

/// Functions that write requests and events as JSON for messages, in the same form as the API.
#[derive(Clone)]
pub struct Rendering {
    /// Writes the brief (the short form) of a request. If an event is given, the brief shows the
    /// request as of the event's commit; otherwise as of now. The `bool` says whether the brief has
    /// the summaries of the calls.
    pub brief: Arc<dyn Fn(RequestId, Option<Event>, bool) -> Rendered + Send + Sync>,
    /// Writes all data of an event, as the event stream of the task tree shows them. Takes the id
    /// of the tree's root, the event, and the type of the reminder (`None` if the message is no
    /// reminder). For a reminder, the caller passes the event that opened the request. The data
    /// then have the reminder's type in place of the event's name, and show the request as of now.
    pub data: Arc<dyn Fn(TaskId, Event, Option<&'static str>) -> Rendered + Send + Sync>,
    /// Returns the URL of a request's page, which demands a sign-in.
    pub url: Arc<dyn Fn(RequestId) -> String + Send + Sync>,
    /// The URL of the inbox.
    pub inbox: String,
}

impl fmt::Debug for Rendering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rendering")
    }
}

/// The dependencies from which [`Sender::new`] makes a sender.
#[derive(Debug)]
pub struct Dependencies {
    /// The store with notices, deliveries and journals.
    pub store: Store,
    pub net: Net,
    /// The accounts and people, by which the sender finds out who may decide a request; `None` in a
    /// service without accounts.
    pub accounts: Option<Directory>,
    /// Makes the links in messages to people; `None` if messages have no links.
    pub links: Option<Links>,
    pub rendering: Rendering,
}

/// Sends the messages of a process.
pub struct Sender {
    store: Store,
    net: Net,
    accounts: Option<Directory>,
    links: Option<Links>,
    mailer: Option<Mailer>,
    rendering: Rendering,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    entry_states: Vec<Arc<EntryState>>,
    /// The names of all entries, with which the store finds their deliveries.
    entry_names: Vec<String>,
    /// The names of the entries that send no updates of messages. Deliveries of updates for these
    /// entries come from an earlier configuration (see [`Entry::leaves_updates_out`]).
    without_updates: Vec<String>,
    slots: Arc<Semaphore>,
    rotation: EntryRotation,
    /// Wakes the sender when an attempt has ended.
    slot_freed: Notify,
    attempts: TaskTracker,
    stop: CancellationToken,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender({:?})", self.entry_names)
    }
}

impl Sender {
    /// Returns a sender for the entries of `settings`. Tells the store which events the entries
    /// want, so that a commit with such an event writes a notice. [`Sender::work`] sends the
    /// messages.
    #[must_use]
    pub fn new(
        settings: &Settings,
        dependencies: Dependencies,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
    ) -> Arc<Self> {
        let entries: Vec<Entry> = settings
            .to
            .iter()
            .filter_map(Entry::from_settings)
            .collect();
        let event_filters = entries.iter().map(|entry| entry.event_filter.clone());
        let without_updates = entries.iter().filter(|entry| entry.leaves_updates_out());
        dependencies
            .store
            .set_event_filters(EventFilters(event_filters.collect()));
        Arc::new(Self {
            store: dependencies.store,
            net: dependencies.net,
            accounts: dependencies.accounts,
            links: dependencies.links,
            mailer: settings.mail.as_ref().and_then(Mailer::from_settings),
            rendering: dependencies.rendering,
            clock,
            ids,
            entry_names: entries.iter().map(|entry| entry.name.clone()).collect(),
            without_updates: without_updates.map(|entry| entry.name.clone()).collect(),
            entry_states: entries
                .into_iter()
                .map(|entry| Arc::new(EntryState::new(entry)))
                .collect(),
            slots: Arc::new(Semaphore::new(SLOTS_PER_PROCESS)),
            rotation: EntryRotation::default(),
            slot_freed: Notify::new(),
            attempts: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Sends messages until the service goes down.
    pub async fn work(self: Arc<Self>) {
        tokio::join!(self.send_messages(), self.close_idle_connections());
    }

    /// Closes the connections to the mail server that no mail has used for some seconds, until the
    /// service goes down. Runs beside [`Self::send_messages`], because a slow mail server must not
    /// delay the messages to other receivers.
    async fn close_idle_connections(&self) {
        let Some(mailer) = &self.mailer else { return };
        while !self.stop.is_cancelled() {
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.clock.sleep(POLL_INTERVAL) => mailer.close_idle(&*self.clock).await,
            }
        }
    }

    /// Expands notices and starts attempts until the service goes down.
    async fn send_messages(self: &Arc<Self>) {
        let (mut poll_at, mut cleanup_at) = (self.clock.uptime(), self.clock.uptime());
        // Without entries, the database is polled only to clean up removed entries' deliveries.
        let poll_interval = if self.entry_states.is_empty() {
            CLEANUP_INTERVAL
        } else {
            POLL_INTERVAL
        };
        let mut was_notified = false;
        while !self.stop.is_cancelled() {
            let poll_is_due = self.clock.uptime() >= poll_at;
            let has_new = (poll_is_due || was_notified) && self.expand_notices().await;
            // `expand_notices` has marked the entries that have new due deliveries. If a
            // notification came and there is no such delivery, a client may have made old
            // deliveries due again. No entry is marked for these, so `start_attempts` asks the
            // store.
            if poll_is_due || (was_notified && !has_new) {
                poll_at = self.clock.uptime() + poll_interval;
                self.start_attempts().await;
            } else {
                self.start_expected_attempts().await;
            }
            if self.clock.uptime() >= cleanup_at {
                cleanup_at = self.clock.uptime() + CLEANUP_INTERVAL;
                self.clean().await;
            }
            was_notified = false;
            let next_work = poll_at.min(cleanup_at);
            let pause = next_work.saturating_sub(self.clock.uptime());
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.store.wait_for_notice() => was_notified = true,
                () = self.slot_freed.notified() => {}
                () = self.clock.sleep(pause) => {}
            }
        }
    }

    /// Counts the messages that wait to be sent, for each entry. The count of an entry without
    /// waiting messages is 0.
    ///
    /// # Errors
    /// Fails with [`ReadError`] if the database does not answer.
    pub async fn backlogs(&self) -> Result<Vec<Backlog>, ReadError> {
        let counted = self
            .store
            .delivery_backlogs(&self.entry_names, &self.without_updates);
        let names = self.entry_names.iter().map(String::as_str);
        Ok(Backlog::with_all(counted.await?, names))
    }

    /// Starts no further attempts. Waits at most `time` until all attempts in flight are recorded,
    /// and then closes the connections to the mail server.
    pub async fn shut_down(&self, time: Duration) {
        self.stop.cancel();
        self.attempts.close();
        tokio::select! {
            () = self.attempts.wait() => {
                if let Some(mailer) = &self.mailer {
                    mailer.close_all(&*self.clock).await;
                }
            }
            () = self.clock.sleep(time) => tracing::warn!("messages were still being sent at the shutdown deadline"),
        }
    }

    /// Drops the deliveries of entries that are no longer configured, and the updates of entries
    /// that can no longer update messages. Removes ended deliveries after their retention. Removes
    /// the stored time of a recipient's next message some time after it has passed.
    async fn clean(&self) {
        let dropped = self
            .store
            .drop_orphaned_deliveries(&self.entry_names, &self.without_updates);
        match dropped.await {
            Ok(dropped) => {
                for name in dropped {
                    observe(&name, "dropped");
                }
            }
            Err(error) => tracing::debug!(%error, "deliveries could not be dropped"),
        }
        if let Err(error) = self.store.remove_spent_gathered().await {
            tracing::debug!(%error, "the times of messages could not be removed");
        }
        while !self.stop.is_cancelled()
            && let Ok(true) = self.store.remove_spent_deliveries().await
        {}
    }
}

/// Counts an attempt or a dropped delivery by its outcome, in a metric of the entry.
fn observe(entry: &str, outcome: &str) {
    tracing::info!(target: "holdpoint::metric", metric = "delivery", entry, outcome);
}
