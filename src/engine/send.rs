//! Sends calls whose start is committed, each attempt at most once, and takes in their answers. What must stay true: the
//! last question before anything goes out is whether it still may.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::Value;

use super::Engine;
use super::drive::Stop;
use super::flight::{Flight, WINDOW};
use super::live::Live;
use crate::failpoint;
use crate::task::id::CallId;
use crate::task::item::{Fact, Outcome, ToolResult};
use crate::task::standing::Standing;
use crate::task::text::cleaned;
use crate::tool::credential::Credentials;
use crate::tool::{Invocation, Leave, Tool, ToolAnswer};

impl Engine {
    /// Sends these calls together.
    ///
    /// # Errors
    /// `Lost` when the lease was over before any of them was sent.
    pub(super) async fn send(&self, live: &mut Live, attempts: &[(Arc<dyn Tool>, Invocation)]) -> Result<(), Stop> {
        failpoint::reach("call.before");
        let began = self.clock.uptime();
        let answers = join_all(attempts.iter().map(|(tool, call)| tool.call(call))).await;
        failpoint::reach("call.answered");
        let ended = self.clock.uptime();
        // A long call counts as duration before the model is asked again.
        live.now = live.now + ended.saturating_sub(began);
        let ours = live.lease.as_ref().is_some_and(|lease| lease.lasts(ended));
        let mut lost = false;
        for ((tool, call), answer) in attempts.iter().zip(answers) {
            if call.leave.was_refused() {
                tracing::warn!(task = %live.task_id(), call = %call.call_id, ours, "a call was not sent");
                let attempt = live.own.progress.call(call.call_id).map_or(0, |standing| standing.attempts);
                live.not_sent.insert(call.call_id, attempt);
                lost |= !ours;
                if !ours {
                    continue;
                }
            }
            Self::landed(live, call.call_id, tool.spec().name.clone(), answer);
        }
        let unknown = &live.unknown;
        live.flights.retain(|flight| !unknown.contains_key(&flight.call));
        // Whoever has the task now asks about what was started; what others of these calls answered is not thrown away.
        if lost && !live.unsaved() { Err(Stop::Lost) } else { Ok(()) }
    }

    /// Leave to send a call: while the task is ours, soon after its start was committed, and unless it was called off.
    pub(super) fn leave(&self, live: &Live, flight: &Flight) -> Leave {
        let (clock, departure) = (Arc::clone(&self.clock), flight.departure());
        let lease = live.lease.as_ref().map(super::lease::Lease::watched);
        let until = live.saved_since + WINDOW;
        Leave::of(move || {
            let now = clock.uptime();
            now < until && lease.as_ref().is_some_and(|lease| lease.lasts(now)) && departure.at(now)
        })
    }

    fn landed(live: &mut Live, tool_call_id: CallId, name: String, answer: ToolAnswer) {
        let (outcome, content, http_status) = match answer {
            ToolAnswer::Succeeded { content, http_status } => (Outcome::Succeeded, content, http_status),
            ToolAnswer::Failed { content, http_status } => (Outcome::Failed, content, http_status),
            ToolAnswer::Unknown { problem } => {
                live.unknown.insert(tool_call_id, problem);
                return;
            }
        };
        live.unknown.remove(&tool_call_id);
        live.push(Fact::ToolResult(ToolResult { tool_call_id, name, outcome, content: cleaned(content), http_status }));
    }

    /// One attempt as the tool sees it; leave to send it is given once its start is committed.
    pub(super) fn invocation(
        &self,
        live: &Live,
        standing: &Standing,
        arguments: Value,
        decided_by: Option<String>,
    ) -> Invocation {
        let trace = live.own.row.root_task_id.0.simple();
        let span = self.ids.fresh().as_u128() & u128::from(u64::MAX);
        Invocation {
            tenant: live.own.row.tenant.clone(),
            owner: live.own.row.user_id.clone(),
            task_id: live.own.row.task_id,
            call_id: standing.call.tool_call_id,
            arguments_text: standing.arguments_text().to_owned(),
            arguments,
            decided_by,
            traceparent: format!("00-{trace}-{span:016x}-01"),
            leave: Leave::of(|| false),
            credentials: Credentials::default(),
        }
    }
}
