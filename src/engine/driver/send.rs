//! Builds the permits of calls, and records the answers of the tools.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::{Driver, Stop};
use crate::engine::runtime::in_flight_calls::{InFlightCall, SEND_WINDOW};
use crate::engine::runtime::leases::Lease;
use crate::engine::session::LateAttempt;
use crate::task::call_state::{CallState, MAX_ATTEMPTS};
use crate::task::id::CallId;
use crate::tool::credential::Credentials;
use crate::tool::{AttemptPermit, Invocation, LateAnswerCell, RawResultCell, Tool, ToolAnswer};

impl Driver<'_> {
    /// Adds the time since the uptime `began` to the session's `now`, and returns the present
    /// uptime. Without this addition, `now` would stay at the time of the last read or commit, and
    /// the limit `max_duration` would ignore the duration of a call or wait until the next commit.
    pub(crate) fn advance_now(&mut self, began: Duration) -> Duration {
        let uptime = self.engine.clock.uptime();
        self.session.now = self.session.now + uptime.saturating_sub(began);
        uptime
    }

    /// Records the tools' answers to these attempts. `answers` has the same order as `attempts`.
    /// `began` is the uptime at which the permits of the attempts were decided. Ignores the answer
    /// to an attempt whose permit was refused in two cases:
    /// - The call may be repeated, has attempts left and is not canceled. `next_step` then returns
    ///   the call again.
    /// - The lease has ended. The task's next driver then handles the call.
    ///
    /// # Errors
    /// `Lost` if a call was not sent because the lease had ended, and the session has no pending
    /// facts. If the session has pending facts, returns `Ok`, so that the driver first stores them.
    pub(crate) fn record_answers(
        &mut self,
        attempts: &[(Arc<dyn Tool>, Invocation)],
        answers: Vec<ToolAnswer>,
        began: Duration,
    ) -> Result<(), Stop> {
        let ended = self.advance_now(began);
        let has_lease = self
            .session
            .lease
            .as_ref()
            .is_some_and(|lease| lease.lasts(ended));
        let mut is_lost = false;
        for ((tool, call), answer) in attempts.iter().zip(answers) {
            if call.permit.was_refused() {
                tracing::warn!(task = %self.session.task_id(), call = %call.call_id, ours = has_lease, "a call was not sent");
                is_lost |= !has_lease;
                let is_tried_again = self.record_unsent(tool.as_ref(), call.call_id, began..ended);
                if !has_lease || is_tried_again {
                    continue;
                }
            }
            let is_final = matches!(
                answer,
                ToolAnswer::Succeeded { .. } | ToolAnswer::Failed { .. }
            );
            let raw = call.raw.take().filter(|_| is_final);
            if matches!(answer, ToolAnswer::Unknown { .. }) {
                let state = self.session.own.progress.call(call.call_id);
                let start = state.and_then(|state| state.start.clone());
                self.session.late_attempts.push(LateAttempt {
                    call: call.call_id,
                    start,
                    tool: tool.spec().name.clone(),
                    answer: call.late.clone(),
                });
            }
            self.session
                .record_result(call.call_id, tool.spec().name.clone(), answer);
            let awaited = &self.engine.awaited_calls;
            if let Some(raw) = raw.filter(|_| awaited.contains(call.task_id))
                && let Some(received) = self.session.pending_results().pop()
            {
                awaited.keep_raw_result(call.task_id, received, raw);
            }
        }
        let unknown = &self.session.unknown_outcomes;
        self.session
            .in_flight_calls
            .retain(|in_flight| !unknown.contains_key(&in_flight.call));
        // If a call was not sent because the lease had ended, this driver stops, but first stores
        // its pending facts, if any. The journal has the start of the call, but no result. So the
        // task's next driver repeats the call, or asks a person about the outcome.
        if is_lost && !self.session.has_pending_facts() {
            Err(Stop::Lost)
        } else {
            Ok(())
        }
    }

    /// Handles an attempt whose permit was refused. `waited` is the range of uptimes from the
    /// decision about the attempt's permit until the tool's answer is recorded. Returns whether the
    /// call gets another attempt.
    fn record_unsent(&mut self, tool: &dyn Tool, call: CallId, waited: Range<Duration>) -> bool {
        let mut in_flight = self.session.in_flight_calls.iter();
        let is_canceled = in_flight.any(|one| one.call == call && one.is_canceled());
        let send_end = self.session.commit_started_at + SEND_WINDOW;
        if tool.connects_first() && waited.contains(&send_end) && !is_canceled {
            self.engine.in_flight_calls.mark_late(&tool.spec().name);
        }
        let state = self.session.own.progress.call(call);
        state.is_some_and(|state| {
            let has_attempts_left = state.unanswered_attempts() < MAX_ATTEMPTS;
            state.effect.is_repeatable() && has_attempts_left && !is_canceled
        })
    }

    /// Returns a function that tells whether the call may be sent now and, if so, marks the call as
    /// sent. Three conditions must hold: the lease has not ended, the commit that stored the call's
    /// start began at most [`SEND_WINDOW`] ago, and no cancel forbids sending the call.
    pub(crate) fn send_permit(
        &self,
        in_flight: &InFlightCall,
    ) -> impl Fn() -> bool + Send + Sync + use<> {
        let (clock, registration) = (Arc::clone(&self.engine.clock), in_flight.registration());
        let lease = self.session.lease.as_ref().map(Lease::view);
        let until = self.session.commit_started_at + SEND_WINDOW;
        move || {
            let now = clock.uptime();
            now < until
                && lease.as_ref().is_some_and(|lease| lease.lasts(now))
                && registration.mark_sent(now)
        }
    }

    /// Returns the data that a tool needs for one attempt. The caller adds the credentials and
    /// `resume`.
    pub(crate) fn invocation(
        &self,
        state: &CallState,
        arguments: Value,
        decided_by: Option<String>,
        permit: AttemptPermit,
    ) -> Invocation {
        let trace = self.session.own.row.root_task_id.0.simple();
        let span = self.engine.ids.fresh().as_u128() & u128::from(u64::MAX);
        Invocation {
            tenant: self.session.own.row.tenant.clone(),
            owner: self.session.own.row.user_id.clone(),
            task_id: self.session.own.row.task_id,
            call_id: state.call.tool_call_id,
            may_be_lost: state.effect.is_repeatable() && state.attempts == 0,
            arguments_text: state.arguments_text().to_owned(),
            arguments,
            decided_by,
            traceparent: format!("00-{trace}-{span:016x}-01"),
            permit,
            credentials: Credentials::default(),
            resume: None,
            late: LateAnswerCell::default(),
            raw: RawResultCell::default(),
        }
    }
}
