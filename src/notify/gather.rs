//! Sends the due deliveries to one person or one room (a channel or chat of Slack or Teams) as one
//! message. Drops a delivery if its request is closed, if the person has answered the request, or
//! if the person may no longer decide the request.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::attempt_result::AttemptResult;
use super::chat::RoomMessage;
use super::digest::{Digest, DigestQuestion, MAX_LISTED_QUESTIONS, Reason};
use super::entry::Channel;
use super::outcome::QuestionOutcome;
use super::schedule::{self, RetryContext};
use super::send::{EntryState, UNSELECTED};
use super::{Sender, recipients, slack, teams};
use crate::failpoint;
use crate::people::person::Person;
use crate::store::{ClaimedDelivery, NextState, ReadError, RequestRow};
use crate::task::decision::Door;
use crate::task::id::RequestId;
use crate::task::time::Time;

const NO_LONGER_WAITING: &str = "the request no longer waits for this recipient";
const NO_ADDRESS: &str = "no mail reaches this person any more";

/// The number of requests that are read at once. Their rows are dropped before further requests are
/// read, because a request may have calls with large arguments.
const REQUESTS_PER_READ: usize = 20;

/// A delivery that is to be sent, and the time at which the message about its request was due. The
/// metric of the message's lag counts from this time.
type Due<'c> = (&'c ClaimedDelivery, Time);

/// The deliveries that were claimed for one recipient, and the message about the deliveries in
/// `due`. Each delivery is either in `due` or in `obsolete`, or was put off.
struct Gathered<'c> {
    due: Vec<Due<'c>>,
    /// The deliveries whose recipient needs no message any more.
    obsolete: Vec<ClaimedDelivery>,
    message: RoomMessage,
}

impl Sender {
    /// Sends one message for the deliveries that were claimed for one recipient. If the server
    /// refuses a mail for good, sends the mail again without summaries. Records both together as
    /// one attempt.
    pub(super) async fn deliver_digest(&self, state: &EntryState, claimed: &[ClaimedDelivery]) {
        let Some(first) = claimed.first() else { return };
        let began = self.clock.uptime();
        let person = match self.recipient(state, first) {
            Ok(person) => person,
            Err(problem) => return self.drop_unsent(state, claimed, problem).await,
        };
        let gathered = match self.gather(state, person, claimed).await {
            Ok(gathered) => gathered,
            // No attempt was made, so none is recorded. The lease ends, and the deliveries are
            // claimed again.
            Err(error) => {
                tracing::debug!(entry = state.entry.name, %error, "requests could not be read");
                return;
            }
        };
        let Gathered {
            due,
            obsolete,
            mut message,
        } = gathered;
        if !obsolete.is_empty() {
            self.drop_unsent(state, &obsolete, NO_LONGER_WAITING).await;
        }
        if due.is_empty() {
            self.allow_next_message(state, first, Duration::ZERO).await;
            return;
        }
        let mut result = self.send_digest(state, person, &due, &message).await;
        // A summary has arguments that an agent wrote, and a mail server may refuse a mail for its
        // text. Without a second mail, an agent could so end the deliveries of other agents'
        // questions. A room refuses no summary, because a summary is short and has no markup.
        let is_refused_mail = person.is_some() && result.is_permanent_failure;
        if is_refused_mail && message.digest.remove_summaries() {
            result = self.send_digest(state, person, &due, &message).await;
        }
        let took = self.clock.uptime().saturating_sub(began);
        self.record_digest(state, &due, &result, took).await;
    }

    /// Returns the person to whom a delivery goes; `None` if the delivery goes to a room.
    ///
    /// # Errors
    /// Fails if no mail can reach the person, or if the delivery was made for another channel. The
    /// error is the reason.
    fn recipient(
        &self,
        state: &EntryState,
        claimed: &ClaimedDelivery,
    ) -> Result<Option<&Person>, &'static str> {
        let is_mail = matches!(state.entry.channel, Channel::Mail(_));
        if is_mail == claimed.person.is_empty() {
            return Err(UNSELECTED);
        }
        if !is_mail {
            return Ok(None);
        }
        let accounts = self.accounts.as_ref();
        let person = accounts.and_then(|all| all.person(&claimed.tenant, &claimed.person));
        let person = person.filter(|person| person.email.is_some());
        person.map(Some).ok_or(NO_ADDRESS)
    }

    /// Reads the requests of these deliveries, and checks of each request whether its message is
    /// still needed. Makes one message about the requests for which this is true. Puts deliveries
    /// off that are not due yet (see [`EntryState::wait_until_due`]).
    async fn gather<'c>(
        &self,
        state: &EntryState,
        person: Option<&Person>,
        claimed: &'c [ClaimedDelivery],
    ) -> Result<Gathered<'c>, ReadError> {
        let (mut due, mut obsolete) = (Vec::new(), Vec::new());
        let (mut questions, mut outcomes) = (Vec::new(), Vec::new());
        for part in claimed.chunks(REQUESTS_PER_READ) {
            let rows = self.requests(part).await?;
            for claimed in part {
                let row = claimed.request.and_then(|id| rows.get(&id));
                let accounts = self.accounts.as_ref();
                let Some(row) = row.filter(|row| {
                    let kind = claimed.kind.as_str();
                    recipients::is_message_needed(&state.entry, person, kind, row, accounts)
                }) else {
                    obsolete.push(claimed.clone());
                    continue;
                };
                if let Some(wait) = state.wait_until_due(claimed, row) {
                    self.postpone(state, claimed, wait).await;
                    continue;
                }
                due.push((claimed, due_since(state, row)));
                if questions.len() < MAX_LISTED_QUESTIONS {
                    questions.push(self.question(state, person, claimed, row));
                    outcomes.push(QuestionOutcome::from_request(row, self.user_ids()));
                }
            }
        }
        let kind = due.first().map_or("", |(first, _)| first.kind.as_str());
        let digest = Digest {
            reason: Reason::from_message_type(kind),
            unlisted: u64::try_from(due.len() - questions.len()).unwrap_or(0),
            questions,
            inbox: self
                .can_sign_in(person)
                .then(|| self.rendering.inbox.clone()),
        };
        Ok(Gathered {
            due,
            obsolete,
            message: RoomMessage { digest, outcomes },
        })
    }

    /// Returns the requests of these deliveries by id. Leaves out damaged requests.
    async fn requests(
        &self,
        claimed: &[ClaimedDelivery],
    ) -> Result<BTreeMap<RequestId, RequestRow>, ReadError> {
        let tenant = claimed.first().map_or("", |first| first.tenant.as_str());
        let ids: Vec<RequestId> = claimed.iter().filter_map(|one| one.request).collect();
        // The read leaves out damaged requests, because they cannot be decided.
        let rows = self.store.requests_by_id(tenant, &ids).await?;
        let keyed = rows.into_iter().map(|row| (row.spec.request_id, row));
        Ok(keyed.collect())
    }

    fn question(
        &self,
        state: &EntryState,
        person: Option<&Person>,
        claimed: &ClaimedDelivery,
        row: &RequestRow,
    ) -> DigestQuestion {
        let id = row.spec.request_id;
        let link = person.zip(self.links.as_ref()).and_then(|(person, links)| {
            links.url(person, id, row.expires_at, self.clock.now(), claimed.id)
        });
        let shows_summaries = state.entry.channel.shows_summaries();
        DigestQuestion::from_request(row, (self.rendering.url)(id), link, shows_summaries)
    }

    /// Whether the recipient can sign in. Always true for a room (`None`).
    fn can_sign_in(&self, person: Option<&Person>) -> bool {
        person.is_none_or(|person| {
            let accounts = self.accounts.as_ref();
            accounts.is_some_and(|all| all.most_entitled_caller(person).door == Some(Door::Key))
        })
    }

    async fn send_digest(
        &self,
        state: &EntryState,
        person: Option<&Person>,
        due: &[Due<'_>],
        message: &RoomMessage,
    ) -> AttemptResult {
        let (net, clock) = (&self.net, &*self.clock);
        match (&state.entry.channel, person) {
            (Channel::Mail(_), Some(person)) => match &self.mailer {
                Some(mailer) => {
                    let id = gathered_message_id(due);
                    mailer.send(clock, person, &id, &message.digest).await
                }
                None => AttemptResult::without_status("there is no mail server"),
            },
            (Channel::Slack(room), None) => room.post(net, clock, slack::content(message)).await,
            (Channel::Teams(room), None) => room.post(net, clock, &teams::body(message)).await,
            (Channel::Mail(_), None)
            | (Channel::Slack(_) | Channel::Teams(_), Some(_))
            | (Channel::Webhook(_), _) => {
                AttemptResult::without_status("the channel cannot send this")
            }
        }
    }

    async fn record_digest(
        &self,
        state: &EntryState,
        due: &[Due<'_>],
        result: &AttemptResult,
        took: Duration,
    ) {
        let Some((first, _)) = due.first() else {
            return;
        };
        if result.is_success() {
            failpoint::reach("deliver.sent");
            self.allow_next_message(state, first, state.entry.gather)
                .await;
            let all: Vec<_> = due.iter().map(|(claimed, _)| (*claimed).clone()).collect();
            let attempt = result.to_attempt(NextState::Sent, took);
            if self.record(state, &all, &attempt).await {
                let since = due.iter().map(|(_, since)| *since).min();
                self.observe_lag(state, since.unwrap_or_default());
            }
            return;
        }
        let now = self.clock.now();
        let mut groups: BTreeMap<RetryContext, Vec<ClaimedDelivery>> = BTreeMap::new();
        for (claimed, _) in due {
            let group = groups.entry(RetryContext::of(claimed, now)).or_default();
            group.push((*claimed).clone());
        }
        let mut soonest = state.entry.gather;
        // Deliveries with earlier attempts are recorded first. A failed first attempt makes the
        // receiver count as failing. After that, a delivery with earlier attempts could no longer
        // count as refused (`health.rs`).
        for (context, claimed) in groups.into_iter().rev() {
            let next = schedule::next(result, context);
            if let NextState::Again(wait) | NextState::Postponed(wait) = next {
                soonest = soonest.min(wait);
            }
            self.record(state, &claimed, &result.to_attempt(next, took))
                .await;
        }
        self.allow_next_message(state, first, soonest).await;
    }

    /// Sets the earliest time of the next message to this recipient: `wait` from now.
    async fn allow_next_message(
        &self,
        state: &EntryState,
        claimed: &ClaimedDelivery,
        wait: Duration,
    ) {
        let name = state.entry.name.as_str();
        if state.entry.gather.is_zero() {
            return;
        }
        if let Err(error) = self.store.allow_next_message(name, claimed, wait).await {
            tracing::debug!(entry = name, %error, "the time of the next message could not be set");
        }
    }

    /// Ends deliveries without sending a message. `problem` is the recorded reason.
    pub(super) async fn drop_unsent(
        &self,
        state: &EntryState,
        claimed: &[ClaimedDelivery],
        problem: &'static str,
    ) {
        let attempt =
            AttemptResult::without_status(problem).to_attempt(NextState::Dropped, Duration::ZERO);
        self.record(state, claimed, &attempt).await;
    }
}

/// Returns the time at which the entry's message about a request was due.
fn due_since(state: &EntryState, row: &RequestRow) -> Time {
    let planned = state.entry.planned_message(row);
    let due = planned.and_then(|message| message.due_at);
    due.unwrap_or(row.created_at)
}

/// Returns the id of the message of these deliveries: the id of a single delivery, or a hash of the
/// ids of several deliveries. A retry that adds deliveries has another id. With the same id, a
/// receiver might drop the retry as a duplicate, and the added questions would be lost.
fn gathered_message_id(due: &[Due<'_>]) -> String {
    if let [(only, _)] = due {
        return only.id.to_string();
    }
    let mut hash = Sha256::new();
    for (claimed, _) in due {
        hash.update(claimed.id.as_bytes());
    }
    let mut id = [0; 16];
    for (to, from) in id.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    Uuid::from_bytes(id).to_string()
}
