//! Brings tools of MCP servers up to date before their calls are judged and before they start.
//! Invariant: no call starts without a recent comparison of its tool with the reviewed definition.

use std::sync::Arc;

use futures_util::future::join_all;

use super::{Driver, Stop};
use crate::task::id::CallId;
use crate::task::item::Outcome;
use crate::tool::{Start, Tool};

/// A call, the ground on which it is about to start, and its tool, which is not up to date.
type Stale = (CallId, Option<Start>, Arc<dyn Tool>);

impl Driver<'_> {
    /// Compares the tools of these calls before the calls are judged for the first time. A failure
    /// is left to the start of the call.
    ///
    /// # Errors
    /// `Lost` when the service goes down before the database answers.
    pub(super) async fn look_at_servers(&mut self, calls: &[CallId]) -> Result<(), Stop> {
        let stale = self.stale(calls, |_| None);
        if !stale.is_empty() {
            self.compare(stale).await?;
        }
        Ok(())
    }

    /// Compares the tools of these calls right before the calls start. If the tools of some calls
    /// cannot be compared, those calls fail, and the driver asks `next_step` again: then `false`.
    ///
    /// # Errors
    /// `Lost` when the service goes down before the database answers.
    pub(super) async fn prepare_tools(&mut self, calls: &[CallId]) -> Result<bool, Stop> {
        let stale = self.stale(calls, |approved| {
            Some(if approved {
                Start::Approved
            } else {
                Start::Allowed
            })
        });
        if stale.is_empty() {
            return Ok(true);
        }
        let failed = self.compare(stale).await?;
        let go = failed.is_empty();
        self.session.settle_calls(failed);
        Ok(go)
    }

    /// The calls whose tools are not up to date. `start` returns the ground of a start from whether
    /// a person approved the call.
    fn stale(&self, calls: &[CallId], start: impl Fn(bool) -> Option<Start>) -> Vec<Stale> {
        let stale = calls.iter().filter_map(|id| {
            let state = self.session.own.progress.call(*id)?;
            let entry = self.offered(&state.call.name)?;
            let tool = entry.tool.as_ref()?;
            let start = start(state.approval.is_some());
            tool.is_stale(start).then(|| (*id, start, Arc::clone(tool)))
        });
        stale.collect()
    }

    /// Compares these tools. Returns the results of the calls whose tools could not be compared. A
    /// call that lacks a credential is left out: a person is asked for the credential first.
    async fn compare(&mut self, stale: Vec<Stale>) -> Result<Vec<(CallId, Outcome, String)>, Stop> {
        let credentials = self.credentials().await?;
        let task = self.session.task_id();
        let ready = stale
            .into_iter()
            .filter(|(_, _, tool)| self.lacking(tool.spec(), &credentials).is_none());
        let compared = ready.map(async |(id, start, tool)| {
            let why = tool.prepare(start, task, &credentials).await.err()?;
            let name = &tool.spec().name;
            let text = format!(
                "The tool `{name}` failed before it was called: its server could not be asked for its tools: {why}."
            );
            Some((id, Outcome::Failed, text))
        });
        Ok(join_all(compared).await.into_iter().flatten().collect())
    }
}
