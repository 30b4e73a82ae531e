//! A queue of calls that share statements. While a statement is in flight, further calls wait. The
//! next statement serves the waiting calls together. So the number of statements per call falls
//! under load.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Store;
use crate::world::Locked;

/// The size at which a batch is full. The last call of a batch may exceed this size.
const FULL_BATCH_SIZE: usize = 64;

/// A call in the queue, with the sender of its reply. If the sender is dropped, the caller goes on
/// without the queue.
type QueuedCall<C, R> = (C, oneshot::Sender<R>);

#[derive(Debug)]
pub(super) struct SharedQueue<C, R>(Locked<QueuedCalls<C, R>>);

#[derive(Debug)]
struct QueuedCalls<C, R> {
    waiting: VecDeque<QueuedCall<C, R>>,
    /// Points to the token of the Tokio task that serves the calls. The token is dropped when this
    /// Tokio task ends or is canceled. So as long as this pointer is valid, a Tokio task serves the
    /// calls.
    server: Weak<()>,
}

impl<C, R> Default for SharedQueue<C, R> {
    fn default() -> Self {
        Self(Locked::new(QueuedCalls {
            waiting: VecDeque::new(),
            server: Weak::new(),
        }))
    }
}

impl<C, R> SharedQueue<C, R> {
    /// Adds a call to the queue, and waits at most `wait` for the reply. If no Tokio task serves
    /// the calls, starts one that runs `serve`. Returns `None` if there is no reply. The caller
    /// must then run a statement of its own.
    pub(super) async fn share<F>(
        &self,
        store: &Store,
        call: C,
        wait: Duration,
        serve: impl FnOnce(Store) -> F,
    ) -> Option<R>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (reply, result) = oneshot::channel();
        if let Some(server) = self.add((call, reply)) {
            let serving = serve(store.clone());
            store.inner.tasks.spawn(async move {
                serving.await;
                drop(server);
            });
        }
        timeout(wait, result).await.ok()?.ok()
    }

    /// Adds a call to the queue. Returns `None` if a Tokio task already serves the calls. Otherwise
    /// returns a token. The caller must then start a Tokio task that serves the calls, and that
    /// holds the token until it ends.
    pub(super) fn add(&self, call: QueuedCall<C, R>) -> Option<Arc<()>> {
        let mut calls = self.0.lock();
        calls.waiting.push_back(call);
        if calls.server.strong_count() > 0 {
            return None;
        }
        let server = Arc::new(());
        calls.server = Arc::downgrade(&server);
        Some(server)
    }

    /// Takes the next batch from the queue. `size` is the share of a call in the size of the batch.
    /// Drops calls whose callers no longer wait. If the batch is empty, the queue is empty, and the
    /// calling Tokio task must end.
    pub(super) fn take(&self, size: impl Fn(&C) -> usize) -> Vec<QueuedCall<C, R>> {
        let mut calls = self.0.lock();
        let (mut batch, mut batch_size) = (Vec::new(), 0);
        while batch_size < FULL_BATCH_SIZE
            && let Some((call, reply)) = calls.waiting.pop_front()
        {
            if !reply.is_closed() {
                batch_size += size(&call);
                batch.push((call, reply));
            }
        }
        if batch.is_empty() {
            // The calling Tokio task serves no further call, but may still hold its token. The
            // reset makes `add` start another Tokio task for the next call.
            calls.server = Weak::new();
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_ends_with_the_call_that_fills_it() {
        let queue = SharedQueue::<usize, ()>::default();
        let _callers = [60, 1_000, 3, 1].map(|size| {
            let (reply, result) = oneshot::channel();
            queue.add((size, reply));
            result
        });
        let taken = || {
            let batch = queue.take(|size| *size).into_iter();
            batch.map(|(size, _)| size).collect::<Vec<_>>()
        };
        assert_eq!(
            [taken(), taken(), taken()],
            [vec![60, 1_000], vec![3, 1], vec![]]
        );
    }
}
