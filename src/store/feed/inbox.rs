//! Notifies the readers of a tenant's inboxes when a commit opens, answers or closes requests. A
//! reader that misses a notification is delayed but loses nothing, because the rows hold the state.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::time::Instant;

use super::other_replicas::record;
use super::{Feed, MAX_REMOTE_SUBSCRIPTIONS};
use crate::task::id::RequestId;

/// How many commits a reader may fall behind before it misses notifications.
const INBOX_BUFFER: usize = 256;

/// The requests that a commit has opened, answered or closed. `None` if commits may have been
/// missed, so that any request may have changed.
type RequestIds = Option<Arc<[RequestId]>>;

/// The channels of the tenants whose inboxes are read in this process.
#[derive(Debug, Default)]
pub(super) struct Inboxes(HashMap<String, broadcast::Sender<RequestIds>>);

/// A subscription to the requests of one tenant.
#[derive(Debug)]
pub struct InboxListener(broadcast::Receiver<RequestIds>);

impl InboxListener {
    /// Waits for the next commit that opens, answers or closes requests, and returns the ids of
    /// these requests. Returns `None` if commits may have been missed. Cancel-safe.
    pub async fn next(&mut self) -> RequestIds {
        match self.0.recv().await {
            Ok(touched) => touched,
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl Feed {
    /// Subscribes to the requests of a tenant. Announces the subscription to the other replicas.
    pub(in crate::store) fn listen_to_inbox(&self, tenant: &str) -> InboxListener {
        let mut inboxes = self.inboxes.lock();
        inboxes.0.retain(|_, sender| sender.receiver_count() > 0);
        let sender = inboxes.0.entry(tenant.to_owned());
        let listener = sender.or_insert_with(|| broadcast::channel(INBOX_BUFFER).0);
        let listener = InboxListener(listener.subscribe());
        drop(inboxes);
        self.with_replicas(|replicas| {
            replicas.outgoing.inboxes.insert(tenant.to_owned());
        });
        listener
    }

    pub(in crate::store) fn publish_requests(
        &self,
        tenant: &str,
        ids: impl Iterator<Item = RequestId>,
    ) {
        let ids: Arc<[RequestId]> = ids.collect();
        if ids.is_empty() {
            return;
        }
        self.deliver_requests(tenant, &ids);
        self.with_replicas(|replicas| {
            let until = replicas.inboxes.get(tenant);
            if until.is_some_and(|until| Instant::now() < *until) {
                let requests = &mut replicas.outgoing.requests;
                let requests = requests.entry(tenant.to_owned()).or_default();
                requests.extend(ids.iter());
            }
        });
    }

    /// Tells this process's readers of the tenant's inbox which requests a commit has changed. Any
    /// replica may have made the commit.
    pub(in crate::store) fn deliver_requests(&self, tenant: &str, ids: &Arc<[RequestId]>) {
        if let Some(sender) = self.inboxes.lock().0.get(tenant) {
            // The send fails if the tenant has no reader. Then the notification is not needed.
            let _ = sender.send(Some(Arc::clone(ids)));
        }
    }

    /// Notifies the local readers that commits may have been missed, so that any request may have
    /// changed.
    pub(super) fn publish_unknown_requests(&self) {
        for sender in self.inboxes.lock().0.values() {
            let _ = sender.send(None);
        }
    }

    pub(in crate::store) fn record_inbox_subscriptions(
        &self,
        tenants: impl IntoIterator<Item = String>,
    ) {
        let mut replicas = self.replicas.lock();
        record(&mut replicas.inboxes, tenants, MAX_REMOTE_SUBSCRIPTIONS);
    }

    pub(super) fn subscribed_inboxes(&self) -> Vec<String> {
        let inboxes = self.inboxes.lock();
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
        feed.publish_requests("acme", [id(1), id(2)].into_iter());
        feed.publish_requests("acme", std::iter::empty());
        feed.publish_requests("other", [id(3)].into_iter());
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
        for number in 0..=u128::try_from(INBOX_BUFFER).unwrap() {
            feed.publish_requests("acme", std::iter::once(id(number)));
        }
        assert_eq!(reader.next().await, None);
        feed.publish_unknown_commits();
        while reader.next().await.is_some() {}
    }

    #[test]
    fn touched_requests_are_sent_only_to_replicas_that_read_the_tenant() {
        let feed = Feed::default();
        feed.relay_started();
        feed.record_inbox_subscriptions(["acme".to_owned()]);
        feed.publish_requests("acme", std::iter::once(id(1)));
        feed.publish_requests("other", std::iter::once(id(2)));
        let _reader = feed.listen_to_inbox("third");
        let out = feed.take_outgoing();
        assert_eq!(out.requests, [("acme".to_owned(), [id(1)].into())].into());
        assert_eq!(out.inboxes, ["third".to_owned()].into());
        assert_eq!(feed.subscribed_inboxes(), ["third"]);
    }
}
