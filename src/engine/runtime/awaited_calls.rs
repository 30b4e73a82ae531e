//! The gate calls that connections of this process wait for. A task's row does not always show that
//! a connection waits: the commit that stores the call's result also marks the asker as absent,
//! before the connection has delivered the result.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::session::{ReceivedResult, TaskSession};
use crate::task::id::TaskId;
use crate::world::Locked;

#[derive(Debug, Default)]
pub(in crate::engine) struct AwaitedCalls(Locked<BTreeMap<TaskId, AwaitedCall>>);

/// The number of connections of this process that wait for a call, and the call's result for these
/// connections.
#[derive(Debug, Default)]
struct AwaitedCall {
    connections: usize,
    /// The result for the journal, and the same result as the MCP server wrote it. `None` until
    /// the result has arrived.
    raw: Option<(ReceivedResult, Arc<str>)>,
}

impl AwaitedCalls {
    /// Counts a connection that waits for the call, until [`AwaitedCalls::leave`].
    pub(in crate::engine) fn enter(&self, task: TaskId) {
        self.0.lock().entry(task).or_default().connections += 1;
    }

    pub(in crate::engine) fn leave(&self, task: TaskId) {
        let mut calls = self.0.lock();
        if let Some(awaited) = calls.get_mut(&task) {
            awaited.connections -= 1;
            if awaited.connections == 0 {
                calls.remove(&task);
            }
        }
    }

    /// Whether more than one connection of this process waits for the call.
    pub(in crate::engine) fn is_shared(&self, task: TaskId) -> bool {
        let calls = self.0.lock();
        calls
            .get(&task)
            .is_some_and(|awaited| awaited.connections > 1)
    }

    /// Whether a connection of this process waits for the call or delivers the call's result.
    pub(in crate::engine) fn contains(&self, task: TaskId) -> bool {
        self.0.lock().contains_key(&task)
    }

    /// Keeps `raw`, the result `received` as the MCP server wrote it, while a connection of this
    /// process waits for the call. Without such a connection, drops `raw`.
    pub(in crate::engine) fn keep_raw_result(
        &self,
        task: TaskId,
        received: ReceivedResult,
        raw: Arc<str>,
    ) {
        if let Some(awaited) = self.0.lock().get_mut(&task) {
            awaited.raw = Some((received, raw));
        }
    }

    /// Returns the result of the session's call as the MCP server wrote it, if it came while a
    /// connection of this process waited for the call. Returns `None` if the call has another
    /// result in the journal, for example a person's answer or the result of a later attempt.
    pub(in crate::engine) fn raw_result(&self, session: &TaskSession) -> Option<Arc<str>> {
        let calls = self.0.lock();
        let (received, raw) = calls.get(&session.task_id())?.raw.as_ref()?;
        session.has_result(received).then(|| Arc::clone(raw))
    }
}
