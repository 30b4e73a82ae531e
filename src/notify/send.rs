//! Claims due deliveries and makes the attempts. An attempt takes a slot of its entry and a slot of
//! the process. While no slot of the process is free, each entry may still make one attempt with a
//! slot of its own, its reserve. So slow receivers do not stop other entries. A delivery is claimed
//! right before its attempt, with a lease that is long enough for one attempt. The attempts of a
//! claim are made at the same time.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::attempt_result::AttemptResult;
use super::entry::{Channel, Entry, WebhookChannel};
use super::health::Health;
use super::message::SignableMessage;
use super::schedule::{self, RetryContext};
use super::{Sender, mail, observe, recipients, webhook};
use crate::failpoint;
use crate::store::{Attempt, ClaimedDelivery, NextState, ReadError, RequestRow};
use crate::task::event_name::{REQUEST_CHANGES, REQUEST_EXPIRING, REQUEST_WAITING};
use crate::task::id::RequestId;
use crate::task::time::Time;
use crate::world::Locked;

/// The reason for which a delivery is dropped after a change of the entry's settings.
pub(super) const UNSELECTED: &str = "the entry's settings no longer select this message";
/// The maximum number of concurrent attempts of a process for one entry.
const SLOTS_PER_ENTRY: usize = 4;

enum PreparedMessage {
    Ready(SignableMessage),
    /// No message is to be sent. The delivery gets this state, for this reason.
    Unsent(NextState, &'static str),
    /// The message is due after this wait.
    Postponed(Duration),
}

/// An entry of `notify.to`, with its slots for concurrent attempts and the health of its receiver.
#[derive(Debug)]
pub(super) struct EntryState {
    pub(super) entry: Entry,
    slots: Arc<Semaphore>,
    /// The slot with which the entry makes an attempt while every slot of the process is taken.
    reserve: Arc<Semaphore>,
    /// Whether the next pass should claim deliveries of this entry. Set if deliveries are known to
    /// be due. Also set if the last claim filled every free slot, because more may be due.
    may_have_due: AtomicBool,
    health: Locked<Health>,
}

impl EntryState {
    pub(super) fn new(entry: Entry) -> Self {
        Self {
            entry,
            slots: Arc::new(Semaphore::new(SLOTS_PER_ENTRY)),
            reserve: Arc::new(Semaphore::new(1)),
            may_have_due: AtomicBool::new(false),
            health: Locked::default(),
        }
    }

    /// Sets `may_have_due`, so that the next pass over the entries claims deliveries of this entry.
    pub(super) fn expect_due(&self) {
        self.may_have_due.store(true, Ordering::Relaxed);
    }

    /// Returns the time from the claim of a delivery to the time at which the message about its
    /// request is due. Returns `None` if the message was due at the claim. A claimed reminder may be
    /// due later, because the entry's `when` may have changed since the delivery was made.
    pub(super) fn wait_until_due(
        &self,
        claimed: &ClaimedDelivery,
        request: &RequestRow,
    ) -> Option<Duration> {
        let lease = i64::try_from(self.entry.channel.lease().as_micros()).unwrap_or(0);
        let claimed_at = Time(claimed.lease_until.saturating_sub(lease));
        let wait = self
            .entry
            .planned_message(request)?
            .due_at?
            .since(claimed_at);
        (!wait.is_zero()).then_some(wait)
    }
}

/// A slot of the entry, together with either a slot of the process or the entry's reserve.
type SendSlot = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// Whether the cause of a failed attempt is probably the receiver and not the message. The caller
/// passes only attempts after which the message is tried again.
/// - HTTP: true if the receiver did not answer, or if its status asks the sender to try later.
/// - Mail: true, except after a 4xx answer (`BUSY`), which may be about the mail itself.
fn shows_outage(attempt: &Attempt) -> bool {
    match attempt.http_status {
        Some(status) => matches!(status, 429 | 502..=504),
        None => attempt.problem != mail::BUSY,
    }
}

impl Sender {
    /// Finds the entries with due deliveries, and starts as many attempts as there are free slots.
    pub(super) async fn start_attempts(self: &Arc<Self>) {
        if self.entry_states.is_empty() {
            return;
        }
        let due = match self.store.entries_with_due(&self.entry_names).await {
            Ok(due) => due,
            Err(error) => {
                tracing::debug!(%error, "due deliveries could not be found");
                return;
            }
        };
        for state in &self.entry_states {
            if due.contains(&state.entry.name) {
                state.expect_due();
            }
        }
        self.start_expected_attempts().await;
    }

    /// Starts attempts for the entries whose `may_have_due` is set. Does not ask the store for
    /// other entries with due deliveries. The entries take turns at the slots of the process.
    pub(super) async fn start_expected_attempts(self: &Arc<Self>) {
        for index in self.rotation.order(self.entry_states.len()) {
            let state = self.entry_states.get(index);
            let expected = state.filter(|state| state.may_have_due.load(Ordering::Relaxed));
            if let Some(state) = expected
                && self.start_attempts_of(state).await
            {
                self.rotation.served(index);
            }
        }
    }

    /// Starts as many attempts of an entry as there are free slots. Returns whether an attempt was
    /// started.
    async fn start_attempts_of(self: &Arc<Self>, state: &Arc<EntryState>) -> bool {
        let mut slots: Vec<SendSlot> = Vec::new();
        while let Some(slot) = self.free_slot(state) {
            slots.push(slot);
        }
        let count = i64::try_from(slots.len()).unwrap_or(0);
        if count == 0 || self.stop.is_cancelled() {
            return false;
        }
        // The shutdown waits until this token is dropped. Without the token, the shutdown could end
        // during the claim, and would not wait for the attempts that are started below.
        let _counted = self.attempts.token();
        let claimed = match self.claim(state, count).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::debug!(entry = state.entry.name, %error, "deliveries could not be claimed");
                return false;
            }
        };
        let claimed_all = claimed.len() < slots.len();
        state.may_have_due.store(!claimed_all, Ordering::Relaxed);
        if claimed.is_empty() {
            return false;
        }
        failpoint::reach("deliver.claimed");
        for (claimed, slot) in claimed.into_iter().zip(slots) {
            let (sender, state) = (Arc::clone(self), Arc::clone(state));
            self.attempts.spawn(async move {
                sender.deliver(&state, &claimed).await;
                drop(slot);
                sender.slot_freed.notify_one();
            });
        }
        true
    }

    fn free_slot(&self, state: &EntryState) -> Option<SendSlot> {
        let entry_slot = Arc::clone(&state.slots).try_acquire_owned().ok()?;
        let process_slot = Arc::clone(&self.slots).try_acquire_owned();
        let process_slot = process_slot.or_else(|_| Arc::clone(&state.reserve).try_acquire_owned());
        Some((entry_slot, process_slot.ok()?))
    }

    /// Claims due deliveries of an entry. Returns at most `count` lists. The deliveries of a list
    /// are sent as one message. If the entry does not gather, each list has a single delivery.
    async fn claim(
        &self,
        state: &EntryState,
        count: i64,
    ) -> Result<Vec<Vec<ClaimedDelivery>>, ReadError> {
        let (name, lease) = (&state.entry.name, state.entry.channel.lease());
        let pause = state.entry.gather;
        if !pause.is_zero() {
            let gathered = self.store.claim_gathered(name, count, lease, pause);
            let mut claimed = gathered.await?;
            let remaining = count.saturating_sub(i64::try_from(claimed.len()).unwrap_or(count));
            if remaining > 0 && !state.entry.leaves_updates_out() {
                let claim = self
                    .store
                    .claim_deliveries(name, remaining, lease, &REQUEST_CHANGES);
                // The deliveries in `claimed` are already leased. They are sent even if the claim
                // of updates fails.
                let changes = claim.await.unwrap_or_else(|error| {
                    tracing::debug!(entry = name, %error, "deliveries could not be claimed");
                    Vec::new()
                });
                claimed.extend(changes.into_iter().map(|one| vec![one]));
            }
            return Ok(claimed);
        }
        let claimed = self.store.claim_deliveries(name, count, lease, &[]);
        let claimed = claimed.await?;
        Ok(claimed.into_iter().map(|one| vec![one]).collect())
    }

    /// Makes one attempt to send the message of these deliveries, and records the attempt. For a
    /// webhook, `claimed` has a single delivery, because a webhook does not gather.
    async fn deliver(&self, state: &EntryState, claimed: &[ClaimedDelivery]) {
        match (&state.entry.channel, claimed) {
            (Channel::Webhook(hook), [claimed]) => self.deliver_event(state, hook, claimed).await,
            (Channel::Slack(slack), [change])
                if REQUEST_CHANGES.contains(&change.kind.as_str()) =>
            {
                self.deliver_update(state, slack, change).await;
            }
            (Channel::Webhook(_) | Channel::Mail(_) | Channel::Slack(_) | Channel::Teams(_), _) => {
                self.deliver_digest(state, claimed).await;
            }
        }
    }

    async fn deliver_event(
        &self,
        state: &EntryState,
        hook: &WebhookChannel,
        claimed: &ClaimedDelivery,
    ) {
        let prepared = match self.prepare_message(state, hook, claimed).await {
            Ok(prepared) => prepared,
            // No attempt is recorded. The delivery is claimed again after its lease.
            Err(ReadError::Unavailable) => return,
            Err(error) => {
                tracing::warn!(entry = state.entry.name, root_task_id = %claimed.root, event = claimed.event_number,
                    %error, "a message cannot be made, because its event cannot be read");
                PreparedMessage::Unsent(NextState::Dead, "the event cannot be read")
            }
        };
        let SignableMessage { id, body, at } = match prepared {
            PreparedMessage::Ready(message) => message,
            PreparedMessage::Unsent(next, problem) => {
                let result = AttemptResult::without_status(problem);
                let attempt = result.to_attempt(next, Duration::ZERO);
                self.record(state, from_ref(claimed), &attempt).await;
                return;
            }
            PreparedMessage::Postponed(wait) => return self.postpone(state, claimed, wait).await,
        };
        let began = self.clock.uptime();
        let result = webhook::post(&self.net, &*self.clock, hook, &id, body).await;
        if result.is_success() {
            failpoint::reach("deliver.sent");
        }
        let next = schedule::next(&result, RetryContext::of(claimed, self.clock.now()));
        let attempt = result.to_attempt(next, self.clock.uptime().saturating_sub(began));
        if self.record(state, from_ref(claimed), &attempt).await && next == NextState::Sent {
            self.observe_lag(state, at);
        }
    }

    /// Makes the webhook message of a delivery, unless no message is to be sent.
    async fn prepare_message(
        &self,
        state: &EntryState,
        hook: &WebhookChannel,
        claimed: &ClaimedDelivery,
    ) -> Result<PreparedMessage, ReadError> {
        let entry = &state.entry;
        // The delivery was made for a person, when the entry still sent mail. Each recipient of the
        // mail has such a delivery, so the webhook would get the same message several times.
        if !claimed.person.is_empty() {
            return Ok(PreparedMessage::Unsent(NextState::Dropped, UNSELECTED));
        }
        let mut reminder_request = None;
        if matches!(claimed.kind.as_str(), REQUEST_EXPIRING | REQUEST_WAITING) {
            reminder_request = match claimed.request {
                Some(id) => self.readable_request(id).await?,
                None => None,
            };
            let accounts = self.accounts.as_ref();
            let kind = claimed.kind.as_str();
            let open = |row| recipients::is_message_needed(entry, None, kind, row, accounts);
            let request = reminder_request.as_ref();
            if !request.is_some_and(open) {
                let is_open = request.is_some_and(|row| row.state().is_open());
                let closed = "the request no longer waits";
                let problem = if is_open { UNSELECTED } else { closed };
                return Ok(PreparedMessage::Unsent(NextState::Dropped, problem));
            }
            if let Some(wait) = request.and_then(|row| state.wait_until_due(claimed, row)) {
                return Ok(PreparedMessage::Postponed(wait));
            }
        } else if !entry.sends(claimed)
            || (entry.selects_requests() && !self.covers_request_of(entry, claimed).await?)
        {
            return Ok(PreparedMessage::Unsent(NextState::Dropped, UNSELECTED));
        }
        let Some(event) = self.store.message_event(claimed.id).await? else {
            return Ok(PreparedMessage::Unsent(NextState::Dead, "gone"));
        };
        let filter = &entry.event_filter;
        if !filter.matches_tree(&event.tenant, &event.root_agent) {
            return Ok(PreparedMessage::Unsent(NextState::Dropped, UNSELECTED));
        }
        let message = self.message(entry, hook, claimed, &event, reminder_request.as_ref());
        message.await.map(PreparedMessage::Ready)
    }

    /// Whether the entry, as it is configured now, sends messages about the delivery's request. The
    /// delivery may be older than the entry's present settings.
    pub(super) async fn covers_request_of(
        &self,
        entry: &Entry,
        claimed: &ClaimedDelivery,
    ) -> Result<bool, ReadError> {
        let Some(id) = claimed.request else {
            return Ok(true);
        };
        let accounts = self.accounts.as_ref();
        let request = self.readable_request(id).await?;
        Ok(request.is_some_and(|row| entry.covers(&row, accounts)))
    }

    /// Returns a request; `None` if the request does not exist, or is damaged. A damaged request
    /// cannot be decided.
    ///
    /// # Errors
    /// Fails with [`ReadError::Unavailable`] if the database does not answer.
    pub(super) async fn readable_request(
        &self,
        id: RequestId,
    ) -> Result<Option<RequestRow>, ReadError> {
        match self.store.request(id).await {
            Err(ReadError::Unavailable) => Err(ReadError::Unavailable),
            Err(_) => Ok(None),
            Ok(read) => Ok(read),
        }
    }

    /// Gives a delivery back without an attempt. It can be claimed again after `wait`.
    pub(super) async fn postpone(
        &self,
        state: &EntryState,
        claimed: &ClaimedDelivery,
        wait: Duration,
    ) {
        if let Err(error) = self.store.put_off_delivery(claimed, wait).await {
            tracing::debug!(entry = state.entry.name, %error, "a delivery could not be given back");
        }
    }

    /// Records in a metric the time that has passed since `since`: the time of the commit, or the
    /// time at which a reminder was due.
    pub(super) fn observe_lag(&self, state: &EntryState, since: Time) {
        let lag = self.clock.now().since(since).as_secs_f64();
        tracing::info!(target: "holdpoint::metric", metric = "delivery_lag", entry = state.entry.name, seconds = lag);
    }

    /// Records an attempt at deliveries that were claimed together. Returns false if nothing was
    /// recorded, because the leases have ended or the database does not answer. The same message is
    /// sent again in this case.
    pub(super) async fn record(
        &self,
        state: &EntryState,
        claimed: &[ClaimedDelivery],
        attempt: &Attempt,
    ) -> bool {
        let name = state.entry.name.as_str();
        let Some(first) = claimed.first() else {
            return false;
        };
        let ids = claimed.iter().map(|one| one.id).collect();
        let recorded = self.store.record_attempt(ids, first.lease_until, attempt);
        let recorded = recorded.await.unwrap_or_else(|error| {
            tracing::debug!(entry = name, %error, "an attempt could not be recorded");
            Vec::new()
        });
        failpoint::reach("deliver.recorded");
        let (status, problem) = (attempt.http_status, attempt.problem);
        for id in &recorded {
            match attempt.next {
                NextState::Sent => observe(name, "sent"),
                NextState::Again(_) | NextState::Postponed(_) => observe(name, "failed"),
                NextState::Dropped => observe(name, "dropped"),
                NextState::Dead => {
                    observe(name, "dead");
                    tracing::warn!(entry = name, delivery_id = %id, status, problem, "a message is not tried again");
                }
            }
        }
        self.update_health(state, claimed, attempt).await;
        !recorded.is_empty()
    }

    /// Updates the health of the receiver. If the receiver accepts messages again, the waiting
    /// deliveries of the entry become due.
    async fn update_health(
        &self,
        state: &EntryState,
        claimed: &[ClaimedDelivery],
        attempt: &Attempt,
    ) {
        let ids = claimed.iter().map(|one| one.id);
        let except = match attempt.next {
            NextState::Sent => state.health.lock().succeeded(ids, self.clock.uptime()),
            NextState::Again(_) => {
                let again = claimed.iter().map(|one| (one.id, one.attempts > 0));
                state.health.lock().failed(again, shows_outage(attempt));
                None
            }
            // A postponed message does not change the health: a success of another message does not
            // shorten its wait, which the receiver has set.
            NextState::Postponed(_) => None,
            NextState::Dead | NextState::Dropped => {
                state.health.lock().ended(ids);
                None
            }
        };
        let Some(except) = except else { return };
        let name = state.entry.name.as_str();
        let made_due = self.store.make_waiting_deliveries_due(name, except);
        match made_due.await {
            Ok(0) => {}
            Ok(count) => {
                // This process claims the deliveries in its next pass, so that it makes the
                // attempts itself. Only its own attempts tell it which messages are refused.
                state.expect_due();
                tracing::info!(
                    entry = name,
                    count,
                    "the receiver accepts messages again: waiting deliveries are due"
                );
            }
            Err(error) => {
                tracing::debug!(entry = name, %error, "waiting deliveries could not be made due");
            }
        }
    }
}
