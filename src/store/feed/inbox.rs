//! Tells the readers of a tenant's inboxes which requests a commit has opened, answered or closed.
//! A reader that misses a notification loses only time, because the rows hold the state.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::time::Instant;

use super::{Feed, INTEREST, WANTED, locked};
use crate::task::id::RequestId;

/// The maximum number of commits that a reader may fall behind before it misses some.
const BEHIND: usize = 256;

/// The requests that a commit has opened, answered or closed; `None` if commits may have been
/// missed, so that any request may have changed.
type RequestIds = Option<Arc<[RequestId]>>;

/// The channels of the tenants whose inboxes are read in this process.
#[derive(Debug, Default)]
pub(super) struct Inboxes(HashMap<String, broadcast::Sender<RequestIds>>);

/// A subscription to the requests of one tenant.
#[derive(Debug)]
pub struct InboxListener(broadcast::Receiver<RequestIds>);

impl InboxListener {
    /// Waits for the next commit that opens, answers or closes requests, and returns their ids.
    /// `None` if commits may have been missed. Cancel-safe.
    pub async fn next(&mut self) -> RequestIds {
        match self.0.recv().await {
            Ok(touched) => touched,
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl Feed {
    /// Subscribes to the requests of a tenant, and announces the subscription to the other
    /// replicas.
    pub(in crate::store) fn listen_to_inbox(&self, tenant: &str) -> InboxListener {
        let mut inboxes = locked(&self.inboxes);
        inboxes.0.retain(|_, sender| sender.receiver_count() > 0);
        let sender = inboxes.0.entry(tenant.to_owned());
        let listener = sender.or_insert_with(|| broadcast::channel(BEHIND).0);
        let listener = InboxListener(listener.subscribe());
        drop(inboxes);
        self.hand_over(|abroad| {
            abroad.out.inboxes.insert(tenant.to_owned());
        });
        listener
    }

    /// Publishes the requests that a commit of this process has opened, answered or closed.
    pub(in crate::store) fn touch(&self, tenant: &str, ids: impl Iterator<Item = RequestId>) {
        let ids: Arc<[RequestId]> = ids.collect();
        if ids.is_empty() {
            return;
        }
        self.heard_touched(tenant, &ids);
        self.hand_over(|abroad| {
            let now = Instant::now();
            if abroad.inboxes.get(tenant).is_some_and(|until| now < *until) {
                let touched = abroad.out.touched.entry(tenant.to_owned()).or_default();
                touched.extend(ids.iter());
            }
        });
    }

    /// Delivers the requests of a commit, of this or another replica, to the local readers.
    pub(in crate::store) fn heard_touched(&self, tenant: &str, ids: &Arc<[RequestId]>) {
        if let Some(sender) = locked(&self.inboxes).0.get(tenant) {
            // Without a receiver the notification is not needed.
            let _ = sender.send(Some(Arc::clone(ids)));
        }
    }

    /// Tells all readers that commits may have been missed, so that any request may have changed.
    pub(super) fn touched_unknown(&self) {
        for sender in locked(&self.inboxes).0.values() {
            let _ = sender.send(None);
        }
    }

    /// Records that another replica subscribes to the inboxes of these tenants.
    pub(in crate::store) fn wanted_inboxes(&self, tenants: impl IntoIterator<Item = String>) {
        let (mut abroad, now) = (locked(&self.abroad), Instant::now());
        abroad.inboxes.retain(|_, until| now < *until);
        let room = WANTED.saturating_sub(abroad.inboxes.len());
        let tenants = tenants.into_iter().take(room);
        abroad
            .inboxes
            .extend(tenants.map(|tenant| (tenant, now + INTEREST)));
    }

    /// Returns the tenants whose inboxes are read on this replica.
    pub(super) fn listened_inboxes(&self) -> Vec<String> {
        let inboxes = locked(&self.inboxes);
        let read = inboxes.0.iter();
        read.filter(|(_, sender)| sender.receiver_count() > 0)
            .map(|(tenant, _)| tenant.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn id(number: u128) -> RequestId {
        RequestId(Uuid::from_u128(number))
    }

    #[tokio::test]
    async fn only_readers_of_the_tenant_are_notified() {
        let feed = Feed::default();
        let mut acme = feed.listen_to_inbox("acme");
        let mut other = feed.listen_to_inbox("other");
        feed.touch("acme", [id(1), id(2)].into_iter());
        feed.touch("acme", std::iter::empty());
        feed.touch("other", [id(3)].into_iter());
        assert_eq!(
            acme.next().await.as_deref(),
            Some([id(1), id(2)].as_slice())
        );
        assert_eq!(other.next().await.as_deref(), Some([id(3)].as_slice()));
        assert!(other.0.is_empty() && acme.0.is_empty());
    }

    #[tokio::test]
    async fn reader_that_falls_behind_learns_that_it_missed_something() {
        let feed = Feed::default();
        let mut reader = feed.listen_to_inbox("acme");
        for number in 0..=u128::try_from(BEHIND).unwrap() {
            feed.touch("acme", std::iter::once(id(number)));
        }
        assert_eq!(reader.next().await, None);
        feed.heard_nothing();
        while reader.next().await.is_some() {}
    }

    #[test]
    fn touched_requests_are_sent_only_to_replicas_that_read_the_tenant() {
        let feed = Feed::default();
        feed.open();
        feed.wanted_inboxes(["acme".to_owned()]);
        feed.touch("acme", std::iter::once(id(1)));
        feed.touch("other", std::iter::once(id(2)));
        let _reader = feed.listen_to_inbox("third");
        let out = feed.take();
        assert_eq!(out.touched, [("acme".to_owned(), [id(1)].into())].into());
        assert_eq!(out.inboxes, ["third".to_owned()].into());
        assert_eq!(feed.listened_inboxes(), ["third"]);
    }
}
