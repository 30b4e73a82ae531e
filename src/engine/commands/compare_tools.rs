//! Compares the tools of MCP servers with their reviewed definitions, before a decision that can
//! let a call run is stored. If a tool has changed since the request was opened, [`Decider`]
//! withdraws the request instead of storing the decision, and the driver judges the call again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::decide::Decider;
use crate::agent::Agent;
use crate::engine::driver::credentials::stored_credentials;
use crate::engine::session::TaskSession;
use crate::task::decision::Action;
use crate::task::id::CallId;
use crate::task::progress::RequestProgress;
use crate::task::request_kind::ResponseKind;
use crate::tool::{StartReason, Tool};

/// The maximum time for which a decision waits for the comparison. It is short, because a person
/// waits, and because the tool is compared once more right before its call starts.
const MAX_WAIT: Duration = Duration::from_secs(5);

impl Decider<'_> {
    /// Compares the tools of `calls` with their reviewed definitions, if an answer with this
    /// `action` can let a call run. The answer is processed even if a comparison fails, or takes
    /// longer than [`MAX_WAIT`]. A longer comparison continues in the background, because it may be
    /// starting the server: a start whose future is dropped counts as failed.
    pub(super) async fn compare_tools(
        self,
        agent: &Agent,
        session: &TaskSession,
        (open, action): (&RequestProgress, Action),
        calls: &[CallId],
    ) {
        let properties = open.spec.kind.properties();
        let may_start = match action {
            Action::Approve | Action::Edit | Action::Mixed => properties.depends_on_tool,
            Action::Retry => true,
            // The next attempt at the call sends the answer or the refusal to the server. A tool
            // that seems changed is compared: the request may show a change of the tool that this
            // process does not know yet, for example after a restart.
            Action::Reject | Action::Respond => {
                properties.response == ResponseKind::ServerForm
                    && self.is_tool_changed(Some(agent), session, open, action, calls)
            }
        };
        if !may_start {
            return;
        }
        let start = Some(StartReason::Approved);
        let own = open.spec.own_calls();
        let named = own.filter(|call| calls.contains(&call.tool_call_id));
        let mut tools: Vec<Arc<dyn Tool>> = named
            .filter_map(|call| self.engine.offered(agent, &call.name)?.tool.clone())
            .collect();
        tools.retain(|tool| tool.is_stale(start));
        if tools.is_empty() {
            return;
        }
        let Ok(credentials) = stored_credentials(self.engine, session).await else {
            return;
        };
        let task = session.task_id();
        let compared = self.engine.drivers.spawn(async move {
            let tools = tools.iter();
            join_all(tools.map(|tool| tool.prepare(start, task, &credentials))).await
        });
        let _ = timeout(MAX_WAIT, compared).await;
    }
}
