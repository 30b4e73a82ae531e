//! Claims due deliveries and makes the attempts. Each entry has slots of its own, so that a slow
//! receiver delays only its own messages; a lease is taken for one message, right before its attempt.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::entry::{Channel, Entry};
use super::health::Health;
use super::message::Message;
use super::{Sender, observe, schedule, webhook};
use crate::failpoint;
use crate::store::{Attempt, ClaimedDelivery, Next, ReadError};

/// The most attempts of one entry at once.
const ATTEMPTS: usize = 4;

/// An entry with its slots.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) entry: Entry,
    slots: Arc<Semaphore>,
    /// Whether more deliveries may be due than the last claim has found slots for.
    more: AtomicBool,
    health: Mutex<Health>,
}

impl Lane {
    pub(super) fn of(entry: Entry) -> Self {
        Self {
            entry,
            slots: Arc::new(Semaphore::new(ATTEMPTS)),
            more: AtomicBool::new(false),
            health: Mutex::default(),
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot of an entry, and one of the process.
type Slot = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Sender {
    /// Begins as many attempts as there are due deliveries and free slots.
    pub(super) async fn start_attempts(self: &Arc<Self>) {
        if self.lanes.is_empty() {
            return;
        }
        let due = match self.store.entries_with_due(&self.names).await {
            Ok(due) => due,
            Err(error) => {
                tracing::debug!(%error, "due deliveries could not be found");
                return;
            }
        };
        for lane in &self.lanes {
            if due.contains(&lane.entry.name) {
                lane.more.store(true, Ordering::Relaxed);
            }
        }
        self.go_on().await;
    }

    /// Begins attempts of the entries that had more due deliveries than free slots.
    pub(super) async fn go_on(self: &Arc<Self>) {
        for lane in &self.lanes {
            if lane.more.load(Ordering::Relaxed) {
                self.start_attempts_of(lane).await;
            }
        }
    }

    async fn start_attempts_of(self: &Arc<Self>, lane: &Arc<Lane>) {
        let mut slots: Vec<Slot> = Vec::new();
        while let Some(slot) = self.free_slot(lane) {
            slots.push(slot);
        }
        let count = i64::try_from(slots.len()).unwrap_or(0);
        if count == 0 || self.stop.is_cancelled() {
            return;
        }
        // Shutdown waits for the deliveries claimed here.
        let _counted = self.attempts.token();
        let claimed = match self.store.claim_deliveries(&lane.entry.name, count).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::debug!(entry = lane.entry.name, %error, "deliveries could not be claimed");
                return;
            }
        };
        let all = claimed.len() < slots.len();
        lane.more.store(!all, Ordering::Relaxed);
        if !claimed.is_empty() {
            failpoint::reach("deliver.claimed");
        }
        for (claimed, slot) in claimed.into_iter().zip(slots) {
            let (sender, lane) = (Arc::clone(self), Arc::clone(lane));
            self.attempts.spawn(async move {
                sender.deliver(&lane, &claimed).await;
                drop(slot);
                sender.freed.notify_one();
            });
        }
    }

    fn free_slot(&self, lane: &Lane) -> Option<Slot> {
        let own = Arc::clone(&lane.slots).try_acquire_owned().ok()?;
        let shared = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        Some((own, shared))
    }

    /// Makes one attempt and records it.
    async fn deliver(&self, lane: &Lane, claimed: &ClaimedDelivery) {
        let hook = match &lane.entry.channel {
            Channel::Webhook(hook) => hook,
            Channel::Mail(_) => return,
        };
        let message = match self.message(hook, claimed).await {
            Ok(Some(message)) => message,
            Ok(None) => return self.give_up(lane, claimed, "gone").await,
            // The lease runs out, and the delivery is claimed again.
            Err(ReadError::Unavailable) => return,
            Err(error) => {
                tracing::warn!(entry = lane.entry.name, root_task_id = %claimed.root, event = claimed.event_number,
                    %error, "a message cannot be made, because its event cannot be read");
                return self
                    .give_up(lane, claimed, "the event cannot be read")
                    .await;
            }
        };
        let Message { id, body, at } = message;
        let began = self.clock.uptime();
        let answer = webhook::post(&self.net, &*self.clock, hook, &id, body).await;
        if answer.is_success() {
            failpoint::reach("deliver.sent");
        }
        let next = if answer.is_success() {
            Next::Sent
        } else if answer.unwanted {
            Next::Dead
        } else {
            schedule::wait(claimed.attempts + 1, answer.asked).map_or(Next::Dead, Next::Again)
        };
        let attempt = Attempt {
            next,
            http_status: answer.status,
            problem: answer.problem,
            took: self.clock.uptime().saturating_sub(began),
            reference: answer.reference,
        };
        if self.record(lane, claimed, &attempt).await && next == Next::Sent {
            let lag = self.clock.now().since(at).as_secs_f64();
            tracing::info!(target: "holdpoint::metric", metric = "delivery_lag", entry = lane.entry.name, seconds = lag);
        }
    }

    /// Ends a delivery for which no message can be made.
    async fn give_up(&self, lane: &Lane, claimed: &ClaimedDelivery, problem: &'static str) {
        let attempt = Attempt {
            next: Next::Dead,
            http_status: None,
            problem,
            took: std::time::Duration::ZERO,
            reference: None,
        };
        self.record(lane, claimed, &attempt).await;
    }

    /// Records an attempt. `false` if it is not the one that counts, or the database does not answer:
    /// then the message is sent again, under the same id.
    async fn record(&self, lane: &Lane, claimed: &ClaimedDelivery, attempt: &Attempt) -> bool {
        let name = lane.entry.name.as_str();
        let recorded = match self.store.record_attempt(claimed, attempt).await {
            Ok(recorded) => recorded,
            Err(error) => {
                tracing::debug!(entry = name, %error, "an attempt could not be recorded");
                false
            }
        };
        failpoint::reach("deliver.recorded");
        if recorded {
            let (status, problem) = (attempt.http_status, attempt.problem);
            match attempt.next {
                Next::Sent => observe(name, "sent"),
                Next::Again(_) => observe(name, "failed"),
                Next::Dead => {
                    observe(name, "dead");
                    tracing::warn!(entry = name, delivery_id = %claimed.id, status, problem, "a message is not tried again");
                }
            }
        }
        self.pull(lane, claimed, attempt.next).await;
        recorded
    }

    /// Makes everything due that waits for a receiver that takes messages again.
    async fn pull(&self, lane: &Lane, claimed: &ClaimedDelivery, next: Next) {
        let pulled = match next {
            Next::Sent => lane.health().succeeded(claimed.id),
            Next::Again(_) => {
                lane.health().failed(claimed.id, claimed.attempts > 0);
                None
            }
            Next::Dead => {
                lane.health().ended(claimed.id);
                None
            }
        };
        let Some(except) = pulled else { return };
        match self.store.pull_deliveries(&lane.entry.name, except).await {
            Ok(0) => {}
            Ok(count) => {
                tracing::info!(
                    entry = lane.entry.name,
                    count,
                    "messages are taken again; those that waited are due"
                );
            }
            Err(error) => {
                tracing::debug!(entry = lane.entry.name, %error, "waiting deliveries could not be made due");
            }
        }
    }
}
