//! Tries one commit. All commits of the engine go through this module.

use std::sync::atomic::Ordering;

use super::TaskSession;
use crate::engine::Engine;
use crate::engine::runtime::keyed_tools::ToolPlace;
use crate::failpoint;
use crate::store::CommitError;
use crate::task::change::{Committed, LeaseChange};
use crate::task::id::ChangeId;

impl Engine {
    /// Tries one commit. Reaches the commit's failpoints (`TaskSession::failpoints`) right before
    /// and right after it.
    pub(in crate::engine) async fn commit(
        &self,
        session: &mut TaskSession,
        lease: LeaseChange,
    ) -> Result<Committed, CommitError> {
        let now = session.now;
        session.tree.update_statuses(&mut session.own, &lease, now);
        let points = if failpoint::COMPILED {
            session.failpoints(&lease)
        } else {
            Vec::new()
        };
        for point in &points {
            failpoint::reach(&format!("{point}.before"));
        }
        let waited_for = self.store.is_watched(session.own.row.root_task_id);
        let stopped = waited_for.then(|| session.stopped(&lease)).flatten();
        let change = session.change(ChangeId(self.ids.fresh()), &lease);
        let keyed_place = self.keyed_place(session);
        // An equal proposal may come after the commit and before the second `forget`. Because of
        // the first `forget`, that proposal reads the database and finds the new key, unless
        // another proposal has read the database during the commit.
        if let Some(place) = &keyed_place {
            self.keyed_tools.forget(place);
        }
        let committed = self.store.commit_and_publish(change, stopped).await;
        // Even after an error, the commit may have stored the call's key.
        if let Some(place) = &keyed_place {
            self.keyed_tools.forget(place);
        }
        let done = committed?;
        for point in &points {
            failpoint::reach(&format!("{point}.committed"));
        }
        let queues_relative = session.queues_relative();
        session.mark_committed(done, &lease, |tool| {
            self.catalog.get(tool).is_some() || self.policy.lists_tool(tool)
        });
        if queues_relative {
            // Without this wake-up, the worker would claim the queued task of the tree only at its
            // next poll.
            self.backlog.store(true, Ordering::Relaxed);
            self.wake_worker.notify_one();
        }
        Ok(done)
    }

    /// Returns the place of the gate call whose key a commit of this session stores, if any.
    fn keyed_place(&self, session: &TaskSession) -> Option<ToolPlace> {
        let (call, row) = (session.own.call.as_ref()?, &session.own.row);
        Some(ToolPlace {
            tenant: row.tenant.clone(),
            gate: row.agent.clone(),
            user: self.roster.ids().key(row.user_id.as_str()),
            session: row.session_id.clone(),
            tool: call.tool.clone(),
        })
    }
}
