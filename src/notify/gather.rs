//! Sends the due deliveries of one person or room as one message. Drops a delivery if its request
//! is closed, or if the person has answered the request or may not decide it any more.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::answer::Answer;
use super::chat::Shown;
use super::digest::{Digest, LISTED, Question, Reason};
use super::entry::Channel;
use super::outcome::Outcome;
use super::send::Lane;
use super::{Sender, recipients, schedule};
use crate::failpoint;
use crate::people::person::Person;
use crate::store::{ClaimedDelivery, Next, ReadError, RequestRow};
use crate::task::decision::Door;
use crate::task::id::RequestId;
use crate::task::time::Time;

/// The reasons for dropping a delivery.
const OVER: &str = "the request no longer waits for this recipient";
const NO_ADDRESS: &str = "no mail reaches this person any more";

/// A delivery with its request.
type Due<'r> = (&'r ClaimedDelivery, &'r RequestRow);

impl Sender {
    /// Sends one message for the deliveries that were claimed for one recipient, and records the
    /// attempt.
    pub(super) async fn deliver_digest(&self, lane: &Lane, claimed: &[ClaimedDelivery]) {
        let Some(first) = claimed.first() else { return };
        let began = self.clock.uptime();
        let person = match self.reached(first) {
            Ok(person) => person,
            Err(problem) => return self.drop_unsent(lane, claimed, problem).await,
        };
        let rows = match self.requests(first, claimed).await {
            Ok(rows) => rows,
            // The lease runs out, and the deliveries are claimed again.
            Err(error) => {
                tracing::debug!(entry = lane.entry.name, %error, "requests could not be read");
                return;
            }
        };
        let (open, over): (Vec<_>, Vec<_>) = claimed.iter().partition(|claimed| {
            let row = claimed.request.and_then(|id| rows.get(&id));
            row.is_some_and(|row| {
                recipients::is_open(&lane.entry, person, row, self.accounts.as_ref())
            })
        });
        let over: Vec<ClaimedDelivery> = over.into_iter().cloned().collect();
        if !over.is_empty() {
            self.drop_unsent(lane, &over, OVER).await;
        }
        let open: Vec<Due<'_>> = open
            .into_iter()
            .filter_map(|claimed| Some((claimed, rows.get(&claimed.request?)?)))
            .collect();
        if open.is_empty() {
            self.close(lane, first, Duration::ZERO).await;
            return;
        }
        let digest = self.digest(lane, person, &open);
        let answer = self.send_digest(lane, person, &open, &digest).await;
        let took = self.clock.uptime().saturating_sub(began);
        self.record_digest(lane, &open, &answer, took).await;
    }

    /// Returns the person to whom a delivery goes; `None` for a room.
    ///
    /// # Errors
    /// The reason why no mail can reach the person.
    fn reached(&self, claimed: &ClaimedDelivery) -> Result<Option<&Person>, &'static str> {
        if claimed.person.is_empty() {
            return Ok(None);
        }
        let accounts = self.accounts.as_ref();
        let person = accounts.and_then(|all| all.person(&claimed.tenant, &claimed.person));
        let person = person.filter(|person| person.email.is_some());
        person.map(Some).ok_or(NO_ADDRESS)
    }

    /// Returns the requests of these deliveries. Leaves out damaged requests.
    async fn requests(
        &self,
        first: &ClaimedDelivery,
        claimed: &[ClaimedDelivery],
    ) -> Result<BTreeMap<RequestId, RequestRow>, ReadError> {
        let ids: Vec<RequestId> = claimed.iter().filter_map(|one| one.request).collect();
        let rows = match self.store.requests_of(&first.tenant, &ids).await {
            Ok(rows) => rows,
            Err(ReadError::Unavailable) => return Err(ReadError::Unavailable),
            // One damaged request fails the whole read, so each request is read alone. A damaged
            // request cannot be decided, so it is left out.
            Err(_) => {
                let mut rows = Vec::new();
                for id in ids {
                    rows.extend(self.readable(id).await?);
                }
                rows
            }
        };
        let keyed = rows.into_iter().map(|row| (row.asked.request_id, row));
        Ok(keyed.collect())
    }

    fn digest(&self, lane: &Lane, person: Option<&Person>, open: &[Due<'_>]) -> Digest {
        let entry = &lane.entry;
        let questions = open.iter().take(LISTED).map(|(claimed, row)| {
            let id = row.asked.request_id;
            let link = person.zip(self.links.as_ref()).and_then(|(person, links)| {
                links.url(person, id, row.expires_at, claimed.now, claimed.id)
            });
            Question::of(
                row,
                (self.rendering.url)(id),
                link,
                entry.channel.summaries(),
            )
        });
        let signs_in = person.is_none_or(|person| {
            let accounts = self.accounts.as_ref();
            accounts.is_some_and(|all| all.who_is(person).door == Some(Door::Key))
        });
        Digest {
            reason: open
                .first()
                .map_or(Reason::New, |(claimed, _)| Reason::of(&claimed.kind)),
            questions: questions.collect(),
            more: u64::try_from(open.len().saturating_sub(LISTED)).unwrap_or(0),
            inbox: signs_in.then(|| self.rendering.inbox.clone()),
        }
    }

    async fn send_digest(
        &self,
        lane: &Lane,
        person: Option<&Person>,
        open: &[Due<'_>],
        digest: &Digest,
    ) -> Answer {
        match (&lane.entry.channel, person) {
            (Channel::Mail(_), Some(person)) => match &self.mailer {
                Some(mailer) => {
                    mailer
                        .send(&*self.clock, person, &message_of(open), digest)
                        .await
                }
                None => Answer::none("there is no mail server"),
            },
            (Channel::Slack(slack), None) => {
                let shown = self.shown(open, digest);
                slack.post(&self.net, &*self.clock, &shown).await
            }
            (Channel::Teams(teams), None) => {
                let shown = self.shown(open, digest);
                teams.post(&self.net, &*self.clock, &shown).await
            }
            (Channel::Mail(_), None)
            | (Channel::Slack(_) | Channel::Teams(_), Some(_))
            | (Channel::Webhook(_), _) => Answer::none("the channel cannot send this"),
        }
    }

    /// Returns the content of a message to a room, with the outcomes so far.
    fn shown(&self, open: &[Due<'_>], digest: &Digest) -> Shown {
        let rows = open.iter().take(LISTED).map(|(_, row)| row);
        Shown {
            digest: digest.clone(),
            outcomes: rows.map(|row| Outcome::of(row, self.user_ids())).collect(),
        }
    }

    async fn record_digest(&self, lane: &Lane, open: &[Due<'_>], answer: &Answer, took: Duration) {
        let Some((first, _)) = open.first() else {
            return;
        };
        if answer.is_success() {
            failpoint::reach("deliver.sent");
            self.close(lane, first, lane.entry.gather).await;
            let all: Vec<_> = open.iter().map(|(claimed, _)| (*claimed).clone()).collect();
            let attempt = answer.attempt(Next::Sent, took);
            if self.record(lane, &all, &attempt).await {
                let since = open.iter().map(|(_, row)| told_since(lane, row)).min();
                self.observe_lag(lane, since.unwrap_or_default());
            }
            return;
        }
        let mut tried: BTreeMap<i64, Vec<ClaimedDelivery>> = BTreeMap::new();
        for (claimed, _) in open {
            let all = tried.entry(claimed.attempts).or_default();
            all.push((*claimed).clone());
        }
        let mut soonest = lane.entry.gather;
        for (attempts, claimed) in tried {
            let next = schedule::next(answer, attempts);
            if let Next::Again(wait) = next {
                soonest = soonest.min(wait);
            }
            self.record(lane, &claimed, &answer.attempt(next, took))
                .await;
        }
        self.close(lane, first, soonest).await;
    }

    /// Lets the next message to this recipient become due after `wait`.
    async fn close(&self, lane: &Lane, claimed: &ClaimedDelivery, wait: Duration) {
        let name = lane.entry.name.as_str();
        if lane.entry.gather.is_zero() {
            return;
        }
        if let Err(error) = self.store.close_gathered(name, claimed, wait).await {
            tracing::debug!(entry = name, %error, "the time of the next message could not be set");
        }
    }

    /// Ends deliveries without sending a message. `problem` is the recorded reason.
    pub(super) async fn drop_unsent(
        &self,
        lane: &Lane,
        claimed: &[ClaimedDelivery],
        problem: &'static str,
    ) {
        let attempt = Answer::none(problem).attempt(Next::Dropped, Duration::ZERO);
        self.record(lane, claimed, &attempt).await;
    }
}

/// Returns the time at which the message about a request was due.
fn told_since(lane: &Lane, row: &RequestRow) -> Time {
    let due = lane.entry.told(row).and_then(|told| told.due_at);
    due.unwrap_or(row.created_at)
}

/// Returns the id of the message of these deliveries: the id of a single delivery, or a hash of all
/// their ids. A retry keeps the id only if it has the same deliveries. Otherwise a receiver that
/// drops known ids would drop the questions that were added.
fn message_of(open: &[Due<'_>]) -> String {
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
