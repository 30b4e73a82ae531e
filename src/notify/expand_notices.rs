//! Turns notices into deliveries. A commit writes a notice if messages may have to be sent about
//! its events. A delivery is one message to one receiver. For each event, each entry of `notify.to`
//! that wants the event gets a delivery. An entry with mail gets a delivery for each person.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use super::entry::{Channel, Entry, PlannedMessage};
use super::settings::Recipients;
use super::{Sender, recipients};
use crate::failpoint;
use crate::store::{ChangeEvents, EventHeader, NewDelivery, Notice, ReadError, RequestRow};
use crate::task::event_name::REQUEST_CHANGES;
use crate::task::id::RequestId;

/// The maximum number of notices that one transaction replaces by their deliveries.
const BATCH: usize = 100;

impl Sender {
    /// Replaces all notices by their deliveries, batch by batch. If a batch fails, the notices of
    /// this batch and of the later batches stay for the next pass or another replica. Returns
    /// whether a new delivery is due now.
    pub(super) async fn expand_notices(&self) -> bool {
        let (mut last, mut has_due) = (None, false);
        while !self.stop.is_cancelled() {
            match self.expand_batch(last, &mut has_due).await {
                Ok(Some(next)) => last = Some(next),
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "notices could not be replaced");
                    break;
                }
            }
        }
        has_due
    }

    /// Replaces the oldest notices, at most [`BATCH`] of them, by their deliveries. Sets `has_due`
    /// if a new delivery is due now.
    ///
    /// Returns the last notice of a full batch, which the caller passes to the next call as
    /// `before`. Returns `None`, which ends the caller's loop, in two cases:
    /// - The batch is not full, so no more notices wait.
    /// - The batch ends with `before` again: the previous call did not replace its notices, perhaps
    ///   because another replica is replacing them.
    async fn expand_batch(
        &self,
        before: Option<Notice>,
        has_due: &mut bool,
    ) -> Result<Option<Notice>, ReadError> {
        let limit = i64::try_from(BATCH).unwrap_or(i64::MAX);
        let notices = self.store.notices(limit).await?;
        if notices.is_empty() {
            return Ok(None);
        }
        let changes = self.store.change_events(&notices).await?;
        let mut deliveries = Vec::new();
        for (notice, change) in notices.iter().zip(&changes) {
            deliveries.extend(self.deliveries(notice, change).await?);
        }
        let due = deliveries.iter().filter(|one| one.due_at.is_none());
        let due: BTreeSet<String> = due.map(|one| one.target.clone()).collect();
        self.store.replace_notices(&notices, deliveries).await?;
        for state in self
            .entry_states
            .iter()
            .filter(|state| due.contains(&state.entry.name))
        {
            state.expect_due();
            *has_due = true;
        }
        failpoint::reach("spread.committed");
        let last = notices.last().copied();
        Ok(last.filter(|last| notices.len() == BATCH && before != Some(*last)))
    }

    async fn deliveries(
        &self,
        notice: &Notice,
        change: &ChangeEvents,
    ) -> Result<Vec<NewDelivery>, ReadError> {
        let mut requests = BTreeMap::new();
        let mut deliveries = Vec::new();
        for event in &change.events {
            for state in &self.entry_states {
                let messages = self
                    .messages_about(&state.entry, change, event, &mut requests)
                    .await?;
                deliveries.extend(messages.into_iter().map(|(person, message)| NewDelivery {
                    id: self.ids.fresh(),
                    notice: *notice,
                    tenant: change.tenant.clone(),
                    target: state.entry.name.clone(),
                    channel: state.entry.channel.delivery_channel(),
                    person,
                    kind: message.kind,
                    event: event.clone(),
                    due_at: message.due_at,
                }));
            }
        }
        Ok(deliveries)
    }

    /// Returns the messages of an entry about an event, each with the id of the person to whom it
    /// is sent. For a webhook or a room, the id is empty. `requests` caches the requests that were
    /// read.
    async fn messages_about(
        &self,
        entry: &Entry,
        change: &ChangeEvents,
        event: &EventHeader,
        requests: &mut BTreeMap<RequestId, Option<RequestRow>>,
    ) -> Result<Vec<(String, PlannedMessage)>, ReadError> {
        let event_filter = &entry.event_filter;
        if !event_filter.matches_tree(&change.tenant, &change.root_agent)
            || !event_filter.events.contains(event.name)
        {
            return Ok(Vec::new());
        }
        if entry.sends_every_event() {
            return Ok(vec![(String::new(), PlannedMessage::due_now(event.name))]);
        }
        let Some(id) = event.request else {
            return Ok(Vec::new());
        };
        if let btree_map::Entry::Vacant(unread) = requests.entry(id) {
            unread.insert(self.readable_request(id).await?);
        }
        let accounts = self.accounts.as_ref();
        let request = requests.get(&id).and_then(Option::as_ref);
        let selected =
            request.filter(|row| !entry.selects_requests() || entry.selects(row, accounts));
        let Some(request) = selected else {
            return Ok(Vec::new());
        };
        let message = if entry.when.is_none() || REQUEST_CHANGES.contains(&event.name) {
            Some(PlannedMessage::due_now(event.name))
        } else {
            entry.planned_message(request)
        };
        let Some(message) = message else {
            return Ok(Vec::new());
        };
        Ok(match (&entry.channel, accounts) {
            (Channel::Webhook(_) | Channel::Slack(_) | Channel::Teams(_), _) => {
                vec![(String::new(), message)]
            }
            (Channel::Mail(mail), Some(accounts)) => {
                let people = recipients::mail_recipients(mail, request, accounts);
                if people.is_empty() && mail.to == Recipients::Approvers {
                    count_unreachable(&entry.name);
                }
                let people = people.into_iter();
                people
                    .map(|person| (person.user.clone(), message))
                    .collect()
            }
            (Channel::Mail(_), None) => Vec::new(),
        })
    }
}

/// Counts a question that no approver can get by mail.
fn count_unreachable(entry: &str) {
    tracing::info!(target: "holdpoint::metric", metric = "unreachable", entry);
}
