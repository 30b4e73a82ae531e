//! Updates posted messages with the outcomes of their questions. When a request is answered,
//! expires or is withdrawn, each entry that can update messages gets a new delivery. An attempt at
//! this delivery replaces the content of the posted message.
//!
//! Invariant: the last update of a message shows the committed state, even if updates overtake each
//! other. After Slack has accepted an update, the sender reads the requests again. If the message
//! should now have other content, the sender updates it again before the delivery ends.

use std::slice::from_ref;
use std::time::Duration;

use super::Sender;
use super::attempt_result::AttemptResult;
use super::chat::RoomMessage;
use super::digest::{Digest, DigestQuestion, MAX_LISTED_QUESTIONS, Reason};
use super::exchange::ATTEMPT_TIMEOUT;
use super::outcome::QuestionOutcome;
use super::schedule::{self, RetryContext};
use super::send::{EntryState, UNSELECTED};
use super::slack::{MESSAGE_DELETED, SlackChannel};
use crate::failpoint;
use crate::people::directory::Directory;
use crate::store::{ClaimedDelivery, MessageState, ReadError};
use crate::task::user::UserIds;

/// How long an update waits before it looks again whether its message has been posted.
const POSTING_PAUSE: Duration = Duration::from_secs(1);
const NO_MESSAGE_LISTS_REQUEST: &str = "no message lists this request";

/// The result of an attempt to update a message.
enum UpdateResult {
    /// The message is still being posted, so it cannot be updated yet.
    StillPosting,
    /// No attempt is recorded. The delivery is claimed again after its lease.
    RetryLater,
    /// There is no message to update, so the delivery is dropped. The text is the reason.
    NothingToUpdate(&'static str),
    /// The update was sent to the receiver, with this result.
    Attempted(AttemptResult),
}

impl Sender {
    /// Tries to show a request's outcome in the posted message. Records the result, if there is
    /// one. Otherwise the delivery is claimed again: after [`POSTING_PAUSE`] if the message is still
    /// being posted, else after its lease.
    pub(super) async fn deliver_update(
        &self,
        state: &EntryState,
        slack: &SlackChannel,
        claimed: &ClaimedDelivery,
    ) {
        let began = self.clock.uptime();
        let result = match self.try_update(state, slack, claimed).await {
            Ok(UpdateResult::Attempted(result)) => result,
            Ok(UpdateResult::NothingToUpdate(reason)) => {
                return self.drop_unsent(state, from_ref(claimed), reason).await;
            }
            Ok(UpdateResult::StillPosting) => {
                return self.postpone(state, claimed, POSTING_PAUSE).await;
            }
            Ok(UpdateResult::RetryLater) => return,
            Err(error) => {
                tracing::debug!(entry = state.entry.name, %error, "a message could not be read");
                return;
            }
        };
        if result.is_success() {
            failpoint::reach("deliver.sent");
        }
        let next = schedule::next(&result, RetryContext::of(claimed, self.clock.now()));
        let took = self.clock.uptime().saturating_sub(began);
        let result = AttemptResult {
            // With `None`, the store keeps the reference that the delivery already has.
            reference: None,
            ..result
        };
        let attempt = result.to_attempt(next, took);
        self.record(state, from_ref(claimed), &attempt).await;
    }

    async fn try_update(
        &self,
        state: &EntryState,
        slack: &SlackChannel,
        claimed: &ClaimedDelivery,
    ) -> Result<UpdateResult, ReadError> {
        let entry = &state.entry;
        let name = entry.name.as_str();
        let Some(request) = claimed.request else {
            return Ok(UpdateResult::NothingToUpdate(NO_MESSAGE_LISTS_REQUEST));
        };
        let reads_request = entry.selects_requests() || !entry.event_filter.agents.is_empty();
        if !entry.sends(claimed)
            || (reads_request && !self.covers_request_of(entry, claimed).await?)
        {
            return Ok(UpdateResult::NothingToUpdate(UNSELECTED));
        }
        let reference = match self.store.message_state(name, request).await? {
            MessageState::NotSent => {
                return Ok(UpdateResult::NothingToUpdate(NO_MESSAGE_LISTS_REQUEST));
            }
            MessageState::Sending => return Ok(UpdateResult::StillPosting),
            MessageState::SentAs(reference) => reference,
        };
        let began = self.clock.uptime();
        let mut message = self.current_message(name, slack, &reference).await?;
        loop {
            if !message.lists_request(request) {
                return Ok(UpdateResult::NothingToUpdate(NO_MESSAGE_LISTS_REQUEST));
            }
            let result = slack
                .update(&self.net, &*self.clock, &reference, &message)
                .await;
            if result.problem == MESSAGE_DELETED {
                return Ok(UpdateResult::NothingToUpdate(MESSAGE_DELETED));
            }
            if !result.is_success() {
                return Ok(UpdateResult::Attempted(result));
            }
            let now = self.current_message(name, slack, &reference).await?;
            if now == message {
                return Ok(UpdateResult::Attempted(result));
            }
            message = now;
            // Another update may take as long as `ATTEMPT_TIMEOUT`. If the lease may end during the
            // update, the next claim of the delivery makes the update instead.
            let spent = self.clock.uptime().saturating_sub(began);
            if spent + ATTEMPT_TIMEOUT > state.entry.channel.lease() {
                return Ok(UpdateResult::RetryLater);
            }
        }
    }

    /// Returns the content that a posted message should have now.
    async fn current_message(
        &self,
        name: &str,
        slack: &SlackChannel,
        reference: &str,
    ) -> Result<RoomMessage, ReadError> {
        let most = i64::try_from(MAX_LISTED_QUESTIONS).unwrap_or(i64::MAX);
        let listed = self.store.listed_requests(name, reference, most).await?;
        let (mut questions, mut outcomes) = (Vec::new(), Vec::new());
        for id in &listed.requests {
            let Some(row) = self.readable_request(*id).await? else {
                continue;
            };
            outcomes.push(QuestionOutcome::from_request(&row, self.user_ids()));
            let url = (self.rendering.url)(*id);
            questions.push(DigestQuestion::from_request(
                &row,
                url,
                None,
                slack.shows_summaries,
            ));
        }
        let listed_count = u64::try_from(listed.requests.len()).unwrap_or(u64::MAX);
        let digest = Digest {
            reason: Reason::from_message_type(&listed.kind),
            questions,
            unlisted: listed.total.saturating_sub(listed_count),
            inbox: Some(self.rendering.inbox.clone()),
        };
        Ok(RoomMessage { digest, outcomes })
    }

    /// Returns the rule by which user ids are compared.
    pub(super) fn user_ids(&self) -> UserIds {
        let accounts = self.accounts.as_ref();
        accounts.map(Directory::ids).unwrap_or_default()
    }
}
