//! Claims due deliveries and makes the attempts. Each entry has its own slots, so that a slow
//! receiver delays only its own messages. A delivery is claimed right before its attempt, for the
//! duration of one attempt.

use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::Answer;
use super::entry::{Channel, Entry, Hook};
use super::health::Health;
use super::message::Message;
use super::{Sender, observe, recipients, schedule, webhook};
use crate::failpoint;
use crate::store::{Attempt, ClaimedDelivery, Next, ReadError, RequestRow};
use crate::task::event_name::{CHANGES, EXPIRING, WAITING};
use crate::task::id::RequestId;
use crate::task::time::Time;

/// The maximum number of attempts of one entry at once.
const ATTEMPTS: usize = 4;

/// The result of making a webhook message.
enum Made {
    Message(Message),
    /// There is no message, because the event is gone.
    Gone,
    /// There is no message, because the reminder's request is closed.
    Over,
}

/// An entry with its slots and the health of its receiver.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) entry: Entry,
    slots: Arc<Semaphore>,
    /// Whether the next pass should claim deliveries of this entry: some are known to be due, or
    /// the last claim filled every free slot.
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

    /// Lets the next pass claim deliveries of this entry.
    pub(super) fn expect_more(&self) {
        self.more.store(true, Ordering::Relaxed);
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot of the entry, and a slot of the process.
type Slot = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Sender {
    /// Finds the entries with due deliveries, and starts as many attempts as there are free slots.
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
                lane.expect_more();
            }
        }
        self.go_on().await;
    }

    /// Starts attempts of the entries that may have due deliveries, without asking the store which.
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
        let claimed = match self.claim(lane, count).await {
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

    /// Claims due deliveries of an entry. Each inner list becomes one message; there are at most
    /// `count`.
    async fn claim(&self, lane: &Lane, count: i64) -> Result<Vec<Vec<ClaimedDelivery>>, ReadError> {
        let (name, lease) = (&lane.entry.name, lane.entry.channel.lease());
        if !lane.entry.gather.is_zero() {
            let mut claimed = self.store.claim_gathered(name, count, lease).await?;
            let left = count.saturating_sub(i64::try_from(claimed.len()).unwrap_or(count));
            if lane.entry.channel.changes() && left > 0 {
                let changes = self.store.claim_changes(name, left, lease).await?;
                claimed.extend(changes.into_iter().map(|one| vec![one]));
            }
            return Ok(claimed);
        }
        let claimed = self.store.claim_deliveries(name, count, lease).await?;
        Ok(claimed.into_iter().map(|one| vec![one]).collect())
    }

    /// Makes one attempt at the message of these deliveries, and records it.
    async fn deliver(&self, lane: &Lane, claimed: &[ClaimedDelivery]) {
        match &lane.entry.channel {
            Channel::Webhook(hook) => {
                for claimed in claimed {
                    self.deliver_event(lane, hook, claimed).await;
                }
            }
            Channel::Slack(slack) => match claimed {
                [change] if CHANGES.contains(&change.kind.as_str()) => {
                    self.deliver_change(lane, slack, change).await;
                }
                message => self.deliver_digest(lane, message).await,
            },
            Channel::Mail(_) | Channel::Teams(_) => self.deliver_digest(lane, claimed).await,
        }
    }

    async fn deliver_event(&self, lane: &Lane, hook: &Hook, claimed: &ClaimedDelivery) {
        let made = self.made(lane, hook, claimed).await;
        let Message { id, body, at } = match made {
            Ok(Made::Message(message)) => message,
            Ok(Made::Gone) => return self.give_up(lane, claimed, "gone").await,
            Ok(Made::Over) => {
                let over = "the request no longer waits";
                return self.drop_unsent(lane, from_ref(claimed), over).await;
            }
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
        let began = self.clock.uptime();
        let answer = webhook::post(&self.net, &*self.clock, hook, &id, body).await;
        if answer.is_success() {
            failpoint::reach("deliver.sent");
        }
        let next = schedule::next(&answer, claimed.attempts);
        let attempt = answer.attempt(next, self.clock.uptime().saturating_sub(began));
        if self.record(lane, from_ref(claimed), &attempt).await && next == Next::Sent {
            self.observe_lag(lane, at);
        }
    }

    /// Makes the webhook message of a delivery. A reminder of a closed request becomes no message.
    async fn made(
        &self,
        lane: &Lane,
        hook: &Hook,
        claimed: &ClaimedDelivery,
    ) -> Result<Made, ReadError> {
        let entry = &lane.entry;
        let mut timer = None;
        if matches!(claimed.kind.as_str(), EXPIRING | WAITING) {
            timer = match claimed.request {
                Some(id) => self.readable(id).await?,
                None => None,
            };
            let accounts = self.accounts.as_ref();
            let open = |row| recipients::is_open(entry, None, row, accounts);
            if !timer.as_ref().is_some_and(open) {
                return Ok(Made::Over);
            }
        }
        let message = self.message(entry, hook, claimed, timer.as_ref()).await?;
        Ok(message.map_or(Made::Gone, Made::Message))
    }

    /// Returns a request; `None` if it does not exist, or if it is damaged, so that it cannot be
    /// decided.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`] when the database does not answer.
    pub(super) async fn readable(&self, id: RequestId) -> Result<Option<RequestRow>, ReadError> {
        match self.store.request(id).await {
            Err(ReadError::Unavailable) => Err(ReadError::Unavailable),
            Err(_) => Ok(None),
            Ok(read) => Ok(read),
        }
    }

    /// Reports the time from a commit, or from the due time of a reminder, to its message, in a
    /// metric.
    pub(super) fn observe_lag(&self, lane: &Lane, since: Time) {
        let lag = self.clock.now().since(since).as_secs_f64();
        tracing::info!(target: "holdpoint::metric", metric = "delivery_lag", entry = lane.entry.name, seconds = lag);
    }

    /// Ends a delivery for which no message can be made. `problem` is the recorded reason.
    async fn give_up(&self, lane: &Lane, claimed: &ClaimedDelivery, problem: &'static str) {
        let attempt = Answer::none(problem).attempt(Next::Dead, Duration::ZERO);
        self.record(lane, from_ref(claimed), &attempt).await;
    }

    /// Records an attempt at deliveries that were claimed together. Returns `false` if the leases
    /// of all these deliveries have ended, or if the database does not answer: then the message is
    /// sent again, under the same id.
    pub(super) async fn record(
        &self,
        lane: &Lane,
        claimed: &[ClaimedDelivery],
        attempt: &Attempt,
    ) -> bool {
        let name = lane.entry.name.as_str();
        let Some(first) = claimed.first() else {
            return false;
        };
        let ids = claimed.iter().map(|one| one.id).collect();
        let recorded = self
            .store
            .record_attempt(ids, first.lease_until, attempt)
            .await;
        let recorded = recorded.unwrap_or_else(|error| {
            tracing::debug!(entry = name, %error, "an attempt could not be recorded");
            Vec::new()
        });
        failpoint::reach("deliver.recorded");
        let (status, problem) = (attempt.http_status, attempt.problem);
        for id in &recorded {
            match attempt.next {
                Next::Sent => observe(name, "sent"),
                Next::Again(_) => observe(name, "failed"),
                Next::Dropped => observe(name, "dropped"),
                Next::Dead => {
                    observe(name, "dead");
                    tracing::warn!(entry = name, delivery_id = %id, status, problem, "a message is not tried again");
                }
            }
        }
        self.pull(lane, claimed, attempt.next).await;
        !recorded.is_empty()
    }

    /// Makes all waiting deliveries of the receiver due when it accepts messages again.
    async fn pull(&self, lane: &Lane, claimed: &[ClaimedDelivery], next: Next) {
        let ids = claimed.iter().map(|one| one.id);
        let pulled = match next {
            Next::Sent => lane.health().succeeded(ids),
            Next::Again(_) => {
                let again = claimed.iter().map(|one| (one.id, one.attempts > 0));
                lane.health().failed(again);
                None
            }
            Next::Dead | Next::Dropped => {
                lane.health().ended(ids);
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
