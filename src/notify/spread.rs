//! Replaces notices by deliveries: one for each event of the change and each entry that wants it.

use std::collections::BTreeMap;

use super::Sender;
use super::entry::Entry;
use crate::failpoint;
use crate::store::{NewDelivery, NotedChange, NotedEvent, Notice, ReadError, RequestRow};
use crate::task::id::RequestId;

/// How many notices are replaced in one transaction.
const BATCH: usize = 100;

impl Sender {
    /// Replaces every notice. What fails is left for the next look, or for another replica.
    pub(super) async fn spread(&self) {
        let mut last = None;
        while !self.stop.is_cancelled() {
            match self.spread_batch(last).await {
                Ok(Some(next)) => last = Some(next),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "notices could not be replaced");
                    return;
                }
            }
        }
    }

    /// Replaces the oldest notices. Returns the last of them if there may be more; `before` is the
    /// last of the batch before, at which another replica may be at work.
    async fn spread_batch(&self, before: Option<Notice>) -> Result<Option<Notice>, ReadError> {
        let limit = i64::try_from(BATCH).unwrap_or(i64::MAX);
        let notices = self.store.notices(limit).await?;
        if notices.is_empty() {
            return Ok(None);
        }
        let mut deliveries = Vec::new();
        for notice in &notices {
            deliveries.extend(self.deliveries(notice).await?);
        }
        self.store.replace_notices(&notices, deliveries).await?;
        failpoint::reach("spread.committed");
        let last = notices.last().copied();
        Ok(last.filter(|last| notices.len() == BATCH && before != Some(*last)))
    }

    /// The deliveries of a notice's change.
    async fn deliveries(&self, notice: &Notice) -> Result<Vec<NewDelivery>, ReadError> {
        let noted = self.store.noted(notice).await?;
        let mut requests = BTreeMap::new();
        let mut deliveries = Vec::new();
        for event in &noted.events {
            for lane in &self.lanes {
                if self
                    .is_wanted(&lane.entry, &noted, event, &mut requests)
                    .await?
                {
                    deliveries.push(NewDelivery {
                        id: self.ids.fresh(),
                        notice: *notice,
                        tenant: noted.tenant.clone(),
                        target: lane.entry.name.clone(),
                        event: event.clone(),
                    });
                }
            }
        }
        Ok(deliveries)
    }

    async fn is_wanted(
        &self,
        entry: &Entry,
        noted: &NotedChange,
        event: &NotedEvent,
        requests: &mut BTreeMap<RequestId, Option<RequestRow>>,
    ) -> Result<bool, ReadError> {
        let want = &entry.want;
        if !want.wants_tree(&noted.tenant, &noted.root_agent) || !want.events.contains(event.name) {
            return Ok(false);
        }
        if !entry.picks_requests() {
            return Ok(true);
        }
        let Some(id) = event.request else {
            return Ok(false);
        };
        let request = match requests.entry(id) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let read = match self.store.request(id).await {
                    Err(ReadError::Unavailable) => return Err(ReadError::Unavailable),
                    // A damaged request can be decided by nobody.
                    Err(_) => None,
                    Ok(read) => read,
                };
                new.insert(read)
            }
        };
        Ok(request
            .as_ref()
            .is_some_and(|request| entry.picks(request, self.accounts.as_ref())))
    }
}
