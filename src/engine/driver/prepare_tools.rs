//! Compares tools of MCP servers with their reviewed definitions, before calls of these tools are
//! judged, and again before the calls start. Invariant: no call starts without a recent comparison
//! of its tool.

use std::sync::Arc;

use futures_util::future::join_all;

use super::{Driver, Stop};
use crate::task::id::CallId;
use crate::tool::StartReason;

/// The calls whose tools have not been compared.
#[derive(Default)]
struct UncomparedCalls {
    /// The calls whose tools could not be compared, with the problem of each.
    failed: Vec<(CallId, String)>,
    /// Whether calls were skipped, because a credential is missing.
    has_skipped: bool,
}

/// The result of [`Driver::prepare_tools`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolPreparation {
    /// No comparison is missing.
    Complete,
    /// The tools of some calls were not compared, because a credential is missing.
    LacksCredentials,
    /// A tool could not be compared, so its calls do not start.
    Failed,
}

impl Driver<'_> {
    /// Compares the tools of these calls with their reviewed definitions, before the calls are
    /// judged for the first time or shown in a reconcile request. Ignores a failed comparison:
    /// `prepare_tools` compares the tools again right before the calls start, and then starts no
    /// call whose tool cannot be compared.
    ///
    /// # Errors
    /// The [`Stop`] of a read or commit that failed.
    pub(super) async fn refresh_tools(&mut self, calls: &[CallId]) -> Result<(), Stop> {
        self.compare_tools(calls, false).await?;
        Ok(())
    }

    /// Compares the tools of these calls with their reviewed definitions, right before the calls
    /// start. If a tool cannot be compared, ends its calls (see `end_unattempted`). If a comparison
    /// is needed and a command waits for the next commit, first commits the pending facts, except
    /// at a gate.
    ///
    /// # Errors
    /// As from `Engine::save`.
    pub(super) async fn prepare_tools(
        &mut self,
        calls: &[CallId],
    ) -> Result<ToolPreparation, Stop> {
        let UncomparedCalls {
            failed,
            has_skipped,
        } = self.compare_tools(calls, true).await?;
        if !failed.is_empty() {
            self.end_unattempted(failed).await?;
            return Ok(ToolPreparation::Failed);
        }
        Ok(if has_skipped {
            ToolPreparation::LacksCredentials
        } else {
            ToolPreparation::Complete
        })
    }

    /// Compares the tools whose last comparison is too old. `start_now` says whether the calls start
    /// now, which decides how recent a comparison must be (see `Tool::is_stale`). Skips calls that
    /// lack a credential, because a person is asked for the credential first.
    async fn compare_tools(
        &mut self,
        calls: &[CallId],
        start_now: bool,
    ) -> Result<UncomparedCalls, Stop> {
        let stale = calls.iter().filter_map(|id| {
            let state = self.session.own.progress.call(*id)?;
            let entry = self.offered(&state.call.name)?;
            let tool = entry.tool.as_ref()?;
            // `start` is the reason why the call may start; `None` if it does not start now.
            let start = start_now.then_some(match state.approval {
                Some(_) => StartReason::Approved,
                None => StartReason::Allowed,
            });
            tool.is_stale(start).then(|| (*id, start, Arc::clone(tool)))
        });
        let stale: Vec<_> = stale.collect();
        if stale.is_empty() {
            return Ok(UncomparedCalls::default());
        }
        if start_now && self.session.reply.is_some() && self.agent.gate.is_none() {
            // The comparison may take more than a minute. Without this commit, a decision could
            // miss its deadline, and other overdue requests would stay open until this task's
            // request is closed. Calls at gates are exempt for two reasons:
            // - The first commit of an ask must start the call: a client that does not wait leaves
            //   right after that commit, and no call starts without its client.
            // - If an approval were committed alone, a waiting ask would claim the call at once.
            //   The commit of this claim would make this driver's next commit stale, and the tool
            //   would be compared again.
            self.save(self.engine.take_lease()).await?;
        }
        let credentials = self.credentials().await?;
        let task = self.session.task_id();
        let (ready, lacking): (Vec<_>, Vec<_>) = stale
            .into_iter()
            .partition(|(_, _, tool)| self.missing_credential(tool.spec(), &credentials).is_none());
        let compared = ready.into_iter().map(async |(id, start, tool)| {
            let why = tool.prepare(start, task, &credentials).await.err()?;
            let name = &tool.spec().name;
            let text = format!(
                "The tool `{name}` failed before it was called: its server could not be asked for its tools: {why}."
            );
            Some((id, text))
        });
        Ok(UncomparedCalls {
            failed: join_all(compared).await.into_iter().flatten().collect(),
            has_skipped: !lacking.is_empty(),
        })
    }
}
