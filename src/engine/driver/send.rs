//! Sends calls whose start is committed, each attempt at most once, and takes in their answers. What must stay true: the
//! last question before anything goes out is whether it still may.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::Value;

use super::Engine;
use super::drive::Stop;
use super::in_flight::{InFlightCall, WINDOW};
use super::session::TaskSession;
use crate::failpoint;
use crate::task::id::CallId;
use crate::task::item::{Fact, Outcome, ToolResult};
use crate::task::call_state::CallState;
use crate::task::text::cleaned;
use crate::tool::credential::Credentials;
use crate::tool::{Invocation, SendPermit, Tool, ToolAnswer};

impl Engine {
    /// Sends these calls together.
    ///
    /// # Errors
    /// `Lost` when the lease was over before any of them was sent.
    pub(super) async fn send(&self, session: &mut TaskSession, attempts: &[(Arc<dyn Tool>, Invocation)]) -> Result<(), Stop> {
        failpoint::reach("call.before");
        let began = self.clock.uptime();
        let answers = join_all(attempts.iter().map(|(tool, call)| tool.call(call))).await;
        failpoint::reach("call.answered");
        let ended = self.clock.uptime();
        // A long call counts as duration before the model is asked again.
        session.now = session.now + ended.saturating_sub(began);
        let ours = session.lease.as_ref().is_some_and(|lease| lease.lasts(ended));
        let mut lost = false;
        for ((tool, call), answer) in attempts.iter().zip(answers) {
            if call.permit.was_refused() {
                tracing::warn!(task = %session.task_id(), call = %call.call_id, ours, "a call was not sent");
                let attempt = session.own.progress.call(call.call_id).map_or(0, |state| state.attempts);
                session.not_sent.insert(call.call_id, attempt);
                lost |= !ours;
                if !ours {
                    continue;
                }
            }
            Self::record_result(session, call.call_id, tool.spec().name.clone(), answer);
        }
        let unknown = &session.unknown;
        session.in_flight_calls.retain(|in_flight| !unknown.contains_key(&in_flight.call));
        // Whoever has the task now asks about what was started; what others of these calls answered is not thrown away.
        if lost && !session.unsaved() { Err(Stop::Lost) } else { Ok(()) }
    }

    /// Leave to send a call: while the task is ours, soon after its start was committed, and unless it was called off.
    pub(super) fn leave(&self, session: &TaskSession, in_flight: &InFlightCall) -> SendPermit {
        let (clock, registration) = (Arc::clone(&self.clock), in_flight.registration());
        let lease = session.lease.as_ref().map(super::lease::Lease::view);
        let until = session.saved_since + WINDOW;
        SendPermit::of(move || {
            let now = clock.uptime();
            now < until && lease.as_ref().is_some_and(|lease| lease.lasts(now)) && registration.at(now)
        })
    }

    fn record_result(session: &mut TaskSession, tool_call_id: CallId, name: String, answer: ToolAnswer) {
        let (outcome, content, http_status) = match answer {
            ToolAnswer::Succeeded { content, http_status } => (Outcome::Succeeded, content, http_status),
            ToolAnswer::Failed { content, http_status } => (Outcome::Failed, content, http_status),
            ToolAnswer::Unknown { problem } => {
                session.unknown.insert(tool_call_id, problem);
                return;
            }
        };
        session.unknown.remove(&tool_call_id);
        session.push(Fact::ToolResult(ToolResult { tool_call_id, name, outcome, content: cleaned(content), http_status }));
    }

    /// One attempt as the tool sees it; leave to send it is given once its start is committed.
    pub(super) fn invocation(
        &self,
        session: &TaskSession,
        state: &CallState,
        arguments: Value,
        decided_by: Option<String>,
    ) -> Invocation {
        let trace = session.own.row.root_task_id.0.simple();
        let span = self.ids.fresh().as_u128() & u128::from(u64::MAX);
        Invocation {
            tenant: session.own.row.tenant.clone(),
            owner: session.own.row.user_id.clone(),
            task_id: session.own.row.task_id,
            call_id: state.call.tool_call_id,
            arguments_text: state.arguments_text().to_owned(),
            arguments,
            decided_by,
            traceparent: format!("00-{trace}-{span:016x}-01"),
            permit: SendPermit::of(|| false),
            credentials: Credentials::default(),
        }
    }
}
