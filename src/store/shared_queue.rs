//! A queue of calls that share statements. While a statement is in flight, further calls wait. The
//! next statement serves the waiting calls together. So the number of statements per call falls
//! under load.

use std::collections::VecDeque;
use std::iter::from_fn;
use std::sync::{Arc, Weak};

use crate::world::Locked;

/// The maximum number of calls that one statement serves.
const MAX_BATCH_CALLS: usize = 64;

#[derive(Debug)]
pub(super) struct SharedQueue<C>(Locked<QueuedCalls<C>>);

#[derive(Debug)]
struct QueuedCalls<C> {
    waiting: VecDeque<C>,
    /// Points to the token of the Tokio task that serves the calls. The token is dropped when this
    /// Tokio task ends or is canceled. So as long as this pointer is valid, a Tokio task serves the
    /// calls.
    server: Weak<()>,
}

impl<C> Default for SharedQueue<C> {
    fn default() -> Self {
        Self(Locked::new(QueuedCalls {
            waiting: VecDeque::new(),
            server: Weak::new(),
        }))
    }
}

impl<C> SharedQueue<C> {
    /// Adds a call to the queue. Returns `None` if a Tokio task already serves the calls. Otherwise
    /// returns a token. The caller must then start a Tokio task that serves the calls, and that
    /// holds the token until it ends.
    pub(super) fn add(&self, call: C) -> Option<Arc<()>> {
        let mut calls = self.0.lock();
        calls.waiting.push_back(call);
        if calls.server.strong_count() > 0 {
            return None;
        }
        let server = Arc::new(());
        calls.server = Arc::downgrade(&server);
        Some(server)
    }

    /// Takes the next batch from the queue: at most `MAX_BATCH_CALLS` calls for which `is_awaited`
    /// returns true. Drops the other calls before them. If the batch is empty, the queue is empty,
    /// and the calling Tokio task must end.
    pub(super) fn take(&self, is_awaited: impl Fn(&C) -> bool) -> Vec<C> {
        let mut calls = self.0.lock();
        let waiting = from_fn(|| calls.waiting.pop_front());
        let batch: Vec<C> = waiting.filter(is_awaited).take(MAX_BATCH_CALLS).collect();
        if batch.is_empty() {
            // The calling Tokio task serves no further call, but may still hold its token. The
            // reset makes `add` start another Tokio task for the next call.
            calls.server = Weak::new();
        }
        batch
    }
}
