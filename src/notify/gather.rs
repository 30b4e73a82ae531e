//! Sends the due deliveries to one person or one room (a channel or chat of Slack or Teams) as one
//! message. Drops a delivery if its request is closed, if the person has answered the request, or
//! if the person may no longer decide the request.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::attempt_result::AttemptResult;
use super::chat::RoomMessage;
use super::digest::{Digest, MAX_LISTED_QUESTIONS, Question, Reason};
use super::entry::Channel;
use super::outcome::Outcome;
use super::send::EntryState;
use super::{Sender, recipients, schedule};
use crate::failpoint;
use crate::people::person::Person;
use crate::store::{ClaimedDelivery, NextState, ReadError, RequestRow};
use crate::task::decision::Door;
use crate::task::id::RequestId;
use crate::task::time::Time;

const NO_LONGER_WAITING: &str = "the request no longer waits for this recipient";
const NO_ADDRESS: &str = "no mail reaches this person any more";

type Due<'r> = (&'r ClaimedDelivery, &'r RequestRow);

impl Sender {
    /// Sends one message for the deliveries that were claimed for one recipient. Records the
    /// attempt.
    pub(super) async fn deliver_digest(&self, state: &EntryState, claimed: &[ClaimedDelivery]) {
        let Some(first) = claimed.first() else { return };
        let began = self.clock.uptime();
        let person = match self.recipient(first) {
            Ok(person) => person,
            Err(problem) => return self.drop_unsent(state, claimed, problem).await,
        };
        let rows = match self.requests(first, claimed).await {
            Ok(rows) => rows,
            // No attempt is recorded. The deliveries are claimed again after their lease.
            Err(error) => {
                tracing::debug!(entry = state.entry.name, %error, "requests could not be read");
                return;
            }
        };
        let (open, obsolete): (Vec<_>, Vec<_>) = claimed.iter().partition(|claimed| {
            let row = claimed.request.and_then(|id| rows.get(&id));
            row.is_some_and(|row| {
                let (kind, accounts) = (claimed.kind.as_str(), self.accounts.as_ref());
                recipients::is_message_needed(&state.entry, person, kind, row, accounts)
            })
        });
        let obsolete: Vec<ClaimedDelivery> = obsolete.into_iter().cloned().collect();
        if !obsolete.is_empty() {
            self.drop_unsent(state, &obsolete, NO_LONGER_WAITING).await;
        }
        let open: Vec<Due<'_>> = open
            .into_iter()
            .filter_map(|claimed| Some((claimed, rows.get(&claimed.request?)?)))
            .collect();
        if open.is_empty() {
            self.allow_next_message(state, first, Duration::ZERO).await;
            return;
        }
        let digest = self.digest(state, person, &open);
        let result = self.send_digest(state, person, &open, &digest).await;
        let took = self.clock.uptime().saturating_sub(began);
        self.record_digest(state, &open, &result, took).await;
    }

    /// Returns the person to whom a delivery goes; `None` if the delivery goes to a room.
    ///
    /// # Errors
    /// Fails if no mail can reach the person. The error is the reason.
    fn recipient(&self, claimed: &ClaimedDelivery) -> Result<Option<&Person>, &'static str> {
        if claimed.person.is_empty() {
            return Ok(None);
        }
        let accounts = self.accounts.as_ref();
        let person = accounts.and_then(|all| all.person(&claimed.tenant, &claimed.person));
        let person = person.filter(|person| person.email.is_some());
        person.map(Some).ok_or(NO_ADDRESS)
    }

    /// Returns the requests of these deliveries by id. Leaves out damaged requests.
    async fn requests(
        &self,
        first: &ClaimedDelivery,
        claimed: &[ClaimedDelivery],
    ) -> Result<BTreeMap<RequestId, RequestRow>, ReadError> {
        let ids: Vec<RequestId> = claimed.iter().filter_map(|one| one.request).collect();
        // The read leaves out damaged requests, because they cannot be decided.
        let rows = self.store.requests_by_id(&first.tenant, &ids).await?;
        let keyed = rows.into_iter().map(|row| (row.spec.request_id, row));
        Ok(keyed.collect())
    }

    fn digest(&self, state: &EntryState, person: Option<&Person>, open: &[Due<'_>]) -> Digest {
        let entry = &state.entry;
        let questions = open
            .iter()
            .take(MAX_LISTED_QUESTIONS)
            .map(|(claimed, row)| {
                let id = row.spec.request_id;
                let link = person.zip(self.links.as_ref()).and_then(|(person, links)| {
                    links.url(person, id, row.expires_at, self.clock.now(), claimed.id)
                });
                Question::from_request(
                    row,
                    (self.rendering.url)(id),
                    link,
                    entry.channel.shows_summaries(),
                )
            });
        let can_sign_in = person.is_none_or(|person| {
            let accounts = self.accounts.as_ref();
            accounts.is_some_and(|all| all.most_entitled_caller(person).door == Some(Door::Key))
        });
        Digest {
            reason: open.first().map_or(Reason::New, |(claimed, _)| {
                Reason::from_message_type(&claimed.kind)
            }),
            questions: questions.collect(),
            unlisted: u64::try_from(open.len().saturating_sub(MAX_LISTED_QUESTIONS)).unwrap_or(0),
            inbox: can_sign_in.then(|| self.rendering.inbox.clone()),
        }
    }

    async fn send_digest(
        &self,
        state: &EntryState,
        person: Option<&Person>,
        open: &[Due<'_>],
        digest: &Digest,
    ) -> AttemptResult {
        match (&state.entry.channel, person) {
            (Channel::Mail(_), Some(person)) => match &self.mailer {
                Some(mailer) => {
                    mailer
                        .send(&*self.clock, person, &gathered_message_id(open), digest)
                        .await
                }
                None => AttemptResult::without_status("there is no mail server"),
            },
            (Channel::Slack(slack), None) => {
                let message = self.room_message(open, digest);
                slack.post(&self.net, &*self.clock, &message).await
            }
            (Channel::Teams(teams), None) => {
                let message = self.room_message(open, digest);
                teams.post(&self.net, &*self.clock, &message).await
            }
            (Channel::Mail(_), None)
            | (Channel::Slack(_) | Channel::Teams(_), Some(_))
            | (Channel::Webhook(_), _) => {
                AttemptResult::without_status("the channel cannot send this")
            }
        }
    }

    fn room_message(&self, open: &[Due<'_>], digest: &Digest) -> RoomMessage {
        let rows = open.iter().take(MAX_LISTED_QUESTIONS).map(|(_, row)| row);
        RoomMessage {
            digest: digest.clone(),
            outcomes: rows
                .map(|row| Outcome::from_request(row, self.user_ids()))
                .collect(),
        }
    }

    async fn record_digest(
        &self,
        state: &EntryState,
        open: &[Due<'_>],
        result: &AttemptResult,
        took: Duration,
    ) {
        let Some((first, _)) = open.first() else {
            return;
        };
        if result.is_success() {
            failpoint::reach("deliver.sent");
            self.allow_next_message(state, first, state.entry.gather)
                .await;
            let all: Vec<_> = open.iter().map(|(claimed, _)| (*claimed).clone()).collect();
            let attempt = result.to_attempt(NextState::Sent, took);
            if self.record(state, &all, &attempt).await {
                let since = open.iter().map(|(_, row)| due_since(state, row)).min();
                self.observe_lag(state, since.unwrap_or_default());
            }
            return;
        }
        let mut by_attempts: BTreeMap<i64, Vec<ClaimedDelivery>> = BTreeMap::new();
        for (claimed, _) in open {
            let all = by_attempts.entry(claimed.attempts).or_default();
            all.push((*claimed).clone());
        }
        let mut soonest = state.entry.gather;
        // The groups with earlier attempts come first: a failed first attempt would make the
        // receiver count as failing, and then no message counts as refused (`health.rs`).
        for (attempts, claimed) in by_attempts.into_iter().rev() {
            let next = schedule::next(result, attempts);
            if let NextState::Again(wait) = next {
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
    let due = state
        .entry
        .planned_message(row)
        .and_then(|message| message.due_at);
    due.unwrap_or(row.created_at)
}

/// Returns the id of the message of these deliveries: the id of a single delivery, or a hash of the
/// ids of several deliveries. A retry that adds deliveries has another id, because a receiver may
/// drop a message whose id it knows.
fn gathered_message_id(open: &[Due<'_>]) -> String {
    if let [(only, _)] = open {
        return only.id.to_string();
    }
    let mut hash = Sha256::new();
    for (claimed, _) in open {
        hash.update(claimed.id.as_bytes());
    }
    let mut id = [0; 16];
    for (to, from) in id.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    Uuid::from_bytes(id).to_string()
}
