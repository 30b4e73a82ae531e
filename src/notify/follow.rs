//! Updates posted messages with the outcomes of their questions. Each answer to a request, its
//! expiry and its withdrawal become a delivery of every entry whose messages can be changed. The
//! attempt at such a delivery replaces the content of the message.
//!
//! Invariant: the last update of a message shows the committed state, whichever of two changes is
//! sent last. After the receiver has accepted an update, the sender reads the requests again; the
//! delivery ends only if they have not changed since.

use std::slice::from_ref;

use super::Sender;
use super::answer::Answer;
use super::chat::Shown;
use super::digest::{Digest, LISTED, Question, Reason};
use super::exchange::WITHIN;
use super::outcome::Outcome;
use super::schedule;
use super::send::Lane;
use super::slack::{GONE, Slack};
use crate::failpoint;
use crate::people::directory::Directory;
use crate::store::{ClaimedDelivery, Posted, ReadError};
use crate::task::user::UserIds;

/// The reason for dropping a change: there is no message to update.
const UNTOLD: &str = "no message lists this request";

/// The result of an attempt to update a message.
enum Followed {
    /// Nothing is recorded: the delivery is claimed again after its lease.
    Later,
    /// There is nothing to change; the text is the reason.
    Nothing(&'static str),
    /// The receiver was asked to update the message.
    Answered(Answer),
}

impl Sender {
    /// Makes one attempt to show a request's outcome in the posted message, and records the
    /// attempt.
    pub(super) async fn deliver_change(
        &self,
        lane: &Lane,
        slack: &Slack,
        claimed: &ClaimedDelivery,
    ) {
        let began = self.clock.uptime();
        let answer = match self.follow(lane, slack, claimed).await {
            Ok(Followed::Answered(answer)) => answer,
            Ok(Followed::Nothing(reason)) => {
                return self.drop_unsent(lane, from_ref(claimed), reason).await;
            }
            Ok(Followed::Later) => return,
            // The lease runs out, and the delivery is claimed again.
            Err(error) => {
                tracing::debug!(entry = lane.entry.name, %error, "a message could not be read");
                return;
            }
        };
        if answer.is_success() {
            failpoint::reach("deliver.sent");
        }
        let next = schedule::next(&answer, claimed.attempts);
        let took = self.clock.uptime().saturating_sub(began);
        let answer = Answer {
            // The delivery that posted the message already has the reference.
            reference: None,
            ..answer
        };
        let attempt = answer.attempt(next, took);
        self.record(lane, from_ref(claimed), &attempt).await;
    }

    async fn follow(
        &self,
        lane: &Lane,
        slack: &Slack,
        claimed: &ClaimedDelivery,
    ) -> Result<Followed, ReadError> {
        let name = lane.entry.name.as_str();
        let Some(request) = claimed.request else {
            return Ok(Followed::Nothing(UNTOLD));
        };
        let reference = match self.store.posted(name, request).await? {
            Posted::Never => return Ok(Followed::Nothing(UNTOLD)),
            Posted::Sending => return Ok(Followed::Later),
            Posted::Under(reference) => reference,
        };
        let began = self.clock.uptime();
        let mut shown = self.shown_now(name, slack, &reference).await?;
        loop {
            if !shown.lists(request) {
                return Ok(Followed::Nothing(UNTOLD));
            }
            let answer = slack
                .update(&self.net, &*self.clock, &reference, &shown)
                .await;
            if answer.problem == GONE {
                return Ok(Followed::Nothing(GONE));
            }
            if !answer.is_success() {
                return Ok(Followed::Answered(answer));
            }
            let now = self.shown_now(name, slack, &reference).await?;
            if now == shown {
                return Ok(Followed::Answered(answer));
            }
            shown = now;
            // Another attempt must fit into the rest of the lease.
            let spent = self.clock.uptime().saturating_sub(began);
            if spent + WITHIN > lane.entry.channel.lease() {
                return Ok(Followed::Later);
            }
        }
    }

    /// Returns the content that a posted message should have now.
    async fn shown_now(
        &self,
        name: &str,
        slack: &Slack,
        reference: &str,
    ) -> Result<Shown, ReadError> {
        let most = i64::try_from(LISTED).unwrap_or(i64::MAX);
        let listed = self.store.listed(name, reference, most).await?;
        let (mut questions, mut outcomes) = (Vec::new(), Vec::new());
        for id in &listed.requests {
            let Some(row) = self.readable(*id).await? else {
                continue;
            };
            outcomes.push(Outcome::of(&row, self.user_ids()));
            let url = (self.rendering.url)(*id);
            questions.push(Question::of(&row, url, None, slack.summaries));
        }
        let shown = u64::try_from(listed.requests.len()).unwrap_or(u64::MAX);
        let digest = Digest {
            reason: Reason::of(&listed.kind),
            questions,
            more: listed.all.saturating_sub(shown),
            inbox: Some(self.rendering.inbox.clone()),
        };
        Ok(Shown { digest, outcomes })
    }

    /// Returns the way in which user ids are compared.
    pub(super) fn user_ids(&self) -> UserIds {
        let accounts = self.accounts.as_ref();
        accounts.map(Directory::ids).unwrap_or_default()
    }
}
