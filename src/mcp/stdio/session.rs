//! The requests to a running child that call no tool, and the work after a timeout. Invariant: a
//! check that ends a child is pending until the child has ended, so that the end counts as a change
//! of the server's tools before the next call is prepared.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::child::{Child, Pending};
use super::super::client::spawn_background;
use super::super::content::outcome;
use super::super::wire::{Revision, RpcAnswer, RpcRequest};
use super::{ANSWER_LOST, BUSY, LATE_ANSWER_TIMEOUT, PROCESS_ENDED, Stdio};
use crate::net::NO_ANSWER_IN_TIME;
use crate::secret::Redactor;
use crate::tool::ToolAnswer;
use crate::world::complete_by;

/// A running child, with the revision that the server speaks and the server's `serverInfo`.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) child: Arc<Child>,
    pub(super) revision: Revision,
    pub(super) server: Value,
}

impl Session {
    /// Sends a request that calls no tool. Waits at most `within` for the answer.
    pub(super) async fn ask(
        &self,
        request: &RpcRequest<'_>,
        within: Duration,
    ) -> Result<RpcAnswer, String> {
        let until = Instant::now() + within;
        let mut pending = self.child.expect(request.id.unwrap_or_default());
        let wrote = self
            .child
            .write(&request.text(self.revision), until, || true)
            .await;
        wrote.map_err(|_| unwritten_reason(until))?;
        match complete_by(until, pending.answer()).await {
            Some(Some(answer)) => Ok(answer),
            Some(None) => Err(ANSWER_LOST.to_owned()),
            None => Err(NO_ANSWER_IN_TIME.to_owned()),
        }
    }
}

impl Stdio {
    /// After a timeout, checks with a request that has no effect whether the child still answers.
    /// If it does not answer in time, ends the child process. After the timeout of a call, first
    /// cancels its request `call_id` at the server, and waits for at most `TimeLimits::alive`.
    /// After a late list of tools (`call_id` is `None`), waits for at most
    /// `TimeLimits::after_list`. If the call's message was not written completely, the child's
    /// input is closed, and the check only waits for the end of the child. Does all this in the
    /// background, so that the outcome of the call does not wait for the server.
    pub(super) fn check(&self, session: Session, call_id: Option<&str>) {
        let cancel = call_id.map(|id| {
            let mut cancel = RpcRequest::notification("notifications/cancelled");
            let reason = json!("the timeout is over");
            cancel.params.push(("requestId", json!(id).to_string()));
            cancel.params.push(("reason", reason.to_string()));
            cancel.text(session.revision)
        });
        let method = if session.revision.is_stateless() {
            "server/discover"
        } else {
            "ping"
        };
        let (server, id) = (self.name.clone(), self.fresh_id(method));
        let within = call_id.map_or(self.limits.after_list, |_| self.limits.alive);
        spawn_background(self.checks.track_future(async move {
            let until = Instant::now() + within;
            if let Some(cancel) = cancel {
                let _ = session.child.write(&cancel, until, || true).await;
            }
            let request = RpcRequest::new(&id, method);
            let Err(why) = session.ask(&request, until - Instant::now()).await else {
                return;
            };
            // A child that has ended by itself, or with the service, is not logged. Several checks
            // of a child that hangs log one line.
            let is_silent = why == NO_ANSWER_IN_TIME || why == BUSY;
            if is_silent && !session.child.was_silent.swap(true, Ordering::Relaxed) {
                tracing::warn!(server, why, "an MCP server did not answer and was ended");
            }
            session.child.end().await;
        }));
    }
}

/// Waits for the late answer to a request that has timed out. `declined` has the names of form
/// fields in which the server asked for a secret earlier in the call. The returned answer mentions
/// these fields.
pub(super) async fn late_answer(
    mut pending: Pending,
    redactor: Redactor,
    declined: Vec<String>,
) -> Option<ToolAnswer> {
    let answered = tokio::time::timeout(LATE_ANSWER_TIMEOUT, pending.answer()).await;
    let late = outcome(answered.ok()??, &redactor);
    late.noting(&declined).settled().ok()
}

/// Returns the error text for a message that was not written completely: [`BUSY`] if the time
/// `until` has passed, otherwise [`PROCESS_ENDED`].
pub(super) fn unwritten_reason(until: Instant) -> String {
    let reason = if Instant::now() >= until {
        BUSY
    } else {
        PROCESS_ENDED
    };
    reason.to_owned()
}
