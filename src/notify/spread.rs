//! Replaces notices by deliveries. A notice becomes a delivery for each of its events and each
//! entry that wants the event. For mail, it becomes a delivery for each person.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use super::entry::{Channel, Entry, Told};
use super::settings::Recipients;
use super::{Sender, recipients};
use crate::failpoint;
use crate::store::{NewDelivery, NotedChange, NotedEvent, Notice, ReadError, RequestRow};
use crate::task::event_name::CHANGES;
use crate::task::id::RequestId;

/// The maximum number of notices that are replaced in one transaction.
const BATCH: usize = 100;

impl Sender {
    /// Replaces every notice. If a notice fails, it is left for the next pass or for another
    /// replica. Returns whether an entry has new deliveries that are due.
    pub(super) async fn spread(&self) -> bool {
        let (mut last, mut any) = (None, false);
        while !self.stop.is_cancelled() {
            match self.spread_batch(last, &mut any).await {
                Ok(Some(next)) => last = Some(next),
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "notices could not be replaced");
                    break;
                }
            }
        }
        any
    }

    /// Replaces the oldest notices by their deliveries. Returns the last of these notices if there
    /// may be more. `before` is the last notice of the previous batch: if it comes again, another
    /// replica may be replacing the batch, and this replica stops. Sets `any` if an entry has new
    /// deliveries that are due.
    async fn spread_batch(
        &self,
        before: Option<Notice>,
        any: &mut bool,
    ) -> Result<Option<Notice>, ReadError> {
        let limit = i64::try_from(BATCH).unwrap_or(i64::MAX);
        let notices = self.store.notices(limit).await?;
        if notices.is_empty() {
            return Ok(None);
        }
        let mut deliveries = Vec::new();
        for notice in &notices {
            deliveries.extend(self.deliveries(notice).await?);
        }
        let due = deliveries.iter().filter(|one| one.due_at.is_none());
        let due: BTreeSet<String> = due.map(|one| one.target.clone()).collect();
        self.store.replace_notices(&notices, deliveries).await?;
        for lane in self
            .lanes
            .iter()
            .filter(|lane| due.contains(&lane.entry.name))
        {
            lane.expect_more();
            *any = true;
        }
        failpoint::reach("spread.committed");
        let last = notices.last().copied();
        Ok(last.filter(|last| notices.len() == BATCH && before != Some(*last)))
    }

    /// Returns the deliveries for the events of a notice's change.
    async fn deliveries(&self, notice: &Notice) -> Result<Vec<NewDelivery>, ReadError> {
        let noted = self.store.noted(notice).await?;
        let mut requests = BTreeMap::new();
        let mut deliveries = Vec::new();
        for event in &noted.events {
            for lane in &self.lanes {
                let told = self.told(&lane.entry, &noted, event, &mut requests).await?;
                deliveries.extend(told.into_iter().map(|(person, told)| NewDelivery {
                    id: self.ids.fresh(),
                    notice: *notice,
                    tenant: noted.tenant.clone(),
                    target: lane.entry.name.clone(),
                    channel: lane.entry.channel.of_delivery(),
                    person,
                    kind: told.kind,
                    event: event.clone(),
                    due_at: told.due_at,
                }));
            }
        }
        Ok(deliveries)
    }

    /// Returns the messages of an entry about an event, each after its recipient: a person's id, or
    /// an empty text if the receiver is not a person. `requests` caches the requests that were
    /// read.
    async fn told(
        &self,
        entry: &Entry,
        noted: &NotedChange,
        event: &NotedEvent,
        requests: &mut BTreeMap<RequestId, Option<RequestRow>>,
    ) -> Result<Vec<(String, Told)>, ReadError> {
        let want = &entry.want;
        if !want.wants_tree(&noted.tenant, &noted.root_agent) || !want.events.contains(event.name) {
            return Ok(Vec::new());
        }
        if entry.tells_of_events() {
            return Ok(vec![(String::new(), Told::at_once(event.name))]);
        }
        let Some(id) = event.request else {
            return Ok(Vec::new());
        };
        if let btree_map::Entry::Vacant(unread) = requests.entry(id) {
            unread.insert(self.readable(id).await?);
        }
        let accounts = self.accounts.as_ref();
        let request = requests.get(&id).and_then(Option::as_ref);
        let picked = request.filter(|row| !entry.picks_requests() || entry.picks(row, accounts));
        let Some(request) = picked else {
            return Ok(Vec::new());
        };
        let told = if entry.when.is_none() || CHANGES.contains(&event.name) {
            Some(Told::at_once(event.name))
        } else {
            entry.told(request)
        };
        let Some(told) = told else {
            return Ok(Vec::new());
        };
        Ok(match (&entry.channel, accounts) {
            (Channel::Webhook(_) | Channel::Slack(_) | Channel::Teams(_), _) => {
                vec![(String::new(), told)]
            }
            (Channel::Mail(mail), Some(accounts)) => {
                let people = recipients::people(mail, request, accounts);
                if people.is_empty() && mail.to == Recipients::Approvers {
                    unreachable(&entry.name);
                }
                let people = people.into_iter();
                people.map(|person| (person.user.clone(), told)).collect()
            }
            (Channel::Mail(_), None) => Vec::new(),
        })
    }
}

/// Counts in a metric a question for which no approver has a mail address.
fn unreachable(entry: &str) {
    tracing::info!(target: "holdpoint::metric", metric = "unreachable", entry);
}
