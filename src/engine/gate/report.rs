//! Stores the outcome that an asker reports for a call that it has run. Invariant: no accepted
//! report is lost. If the call was settled before, the report is journaled as a late result.

use super::call::CallViewer;
use super::{GateCall, GateRefusal, GateState, Gates};
use crate::engine::commands::IdempotencyKey;
use crate::engine::commands::submit::unless_conflict;
use crate::engine::session::{ReceivedResult, TaskSession};
use crate::engine::{MAX_TRIES, Refusal};
use crate::people::Caller;
use crate::people::authorization::may_ask_at_gate;
use crate::store::GATE_KEY_PATH;
use crate::task::call_state::{CallState, Phase};
use crate::task::change::AskerPresence;
use crate::task::id::TaskId;
use crate::task::item::{Fact, Outcome, ToolResult};
use crate::task::text::without_nul;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedOutcome {
    /// The call ran and returned a result.
    Succeeded,
    /// The call failed, or the asker did not make the call.
    Failed,
    /// The call may have run, so a person is asked about the outcome.
    Unknown,
}

/// A report of a call's outcome, as the asker sent it.
#[derive(Clone, Debug)]
pub struct OutcomeReport {
    /// The task of the call, or the idempotency key of its proposal.
    pub call: Result<TaskId, String>,
    /// The number of the attempt that the report is about; `None` stands for the last attempt.
    pub attempt: Option<u32>,
    pub outcome: ReportedOutcome,
    /// The text of the result, not yet redacted.
    pub content: String,
}

#[derive(PartialEq, Eq)]
enum ReportEffect {
    /// The report adds nothing, for example because the journal already has the reported outcome.
    Nothing,
    /// The report adds facts, which are now pending in the session.
    Stores,
    /// The report contradicts an earlier report, so the report is refused.
    Conflicts,
    /// No permit was given for the call, so the report is refused.
    NoPermit,
    /// The report is not about the last attempt, so the report is refused.
    OtherAttempt,
}

impl Gates<'_> {
    /// Stores the outcome of a call that its asker (the client that proposed the call) has run.
    /// Returns the call, and whether an earlier report had the same key. If so, nothing was stored.
    /// A report with the same key that was stored meanwhile counts as earlier.
    ///
    /// # Errors
    /// - `NotFound`, `Forbidden` and `Unavailable` as for [`Gates::read_call`]. `Forbidden` also if
    ///   the caller may not ask at gates.
    /// - `KeyReused` if an earlier report with the same key had a different body.
    /// - `Invalid` if no permit was given for an open call, or if `attempt` is not the last attempt
    ///   at the call.
    /// - `Settled` if the call was settled without a permit, or if the report contradicts an
    ///   earlier report.
    pub async fn report(
        self,
        caller: &Caller,
        report: &OutcomeReport,
        key: Option<&IdempotencyKey>,
    ) -> Result<(GateCall, bool), GateRefusal> {
        may_ask_at_gate(caller).map_err(|why| Refusal::Forbidden(why.into()))?;
        if let Some(call) = self.earlier_report(caller, key).await? {
            return Ok((call, true));
        }
        let task = self.reported_task(caller, report).await?;
        let mut redacted = None;
        for tries in 0..MAX_TRIES {
            let mut session = self.load_call(caller, task).await?;
            let effect = self.apply(&mut session, report, &mut redacted)?;
            // A report with the same key may have been stored since the last look-up: the session
            // has its effect, or it was the reason why the last commit was refused.
            if (tries > 0 || effect != ReportEffect::Stores)
                && let Some(call) = self.earlier_report(caller, key).await?
            {
                return Ok((call, true));
            }
            match effect {
                ReportEffect::Nothing => {
                    return Ok((self.gate_call(&session, CallViewer::Reader).await?, false));
                }
                ReportEffect::Conflicts => {
                    let call = self.gate_call(&session, CallViewer::Reader).await?;
                    return Err(GateRefusal::Settled(Box::new(call)));
                }
                ReportEffect::NoPermit => {
                    let call = self.gate_call(&session, CallViewer::Reader).await?;
                    return Err(refusal_without_permit(call, report));
                }
                ReportEffect::OtherAttempt => {
                    let detail = "the number of the last attempt";
                    return Err(Refusal::invalid("/attempt", detail).into());
                }
                ReportEffect::Stores => {}
            }
            session.idempotency = key.map(|key| key.row(caller, &session, None));
            let driven = self.drive_in_background(session).await;
            let Some(drive) = unless_conflict(driven)?.flatten() else {
                continue;
            };
            let session = match drive.end.await.ok().flatten() {
                Some(session) => session,
                None => self.load_call(caller, task).await?,
            };
            return Ok((self.gate_call(&session, CallViewer::Reader).await?, false));
        }
        let earlier = self.earlier_report(caller, key).await?;
        let replayed = earlier.map(|call| (call, true));
        replayed.ok_or(GateRefusal::Command(Refusal::Unavailable))
    }

    /// Returns the call of an earlier report with the same key; `None` if there is no key, or no
    /// such report.
    ///
    /// # Errors
    /// `KeyReused` if the earlier report had a different body; those of [`Gates::read_call`].
    async fn earlier_report(
        self,
        caller: &Caller,
        key: Option<&IdempotencyKey>,
    ) -> Result<Option<GateCall>, GateRefusal> {
        let Some(key) = key else { return Ok(None) };
        let Some(row) = key.stored_row(&self.engine.store, caller).await? else {
            return Ok(None);
        };
        let session = self.load_call(caller, row.task_id).await?;
        Ok(Some(self.gate_call(&session, CallViewer::Reader).await?))
    }

    /// Applies a report to the session of its call. `redacted` keeps the redacted content for the
    /// next try.
    ///
    /// # Errors
    /// `NotFound` if the session has no call.
    fn apply(
        self,
        session: &mut TaskSession,
        report: &OutcomeReport,
        redacted: &mut Option<String>,
    ) -> Result<ReportEffect, Refusal> {
        let call = session.own.progress.calls.first().cloned();
        let call = call.ok_or(Refusal::NotFound)?;
        if !call.performer.properties().runs_at_client || call.attempts == 0 {
            return Ok(ReportEffect::NoPermit);
        }
        if report
            .attempt
            .is_some_and(|attempt| attempt != call.attempts)
        {
            return Ok(ReportEffect::OtherAttempt);
        }
        // The content may have 1 MiB. It is redacted only after the checks above, so that a refused
        // report costs no search for secrets.
        let content = redacted.get_or_insert_with(|| self.redacted(&report.content));
        Ok(apply_report(session, &call, report.outcome, content))
    }

    fn redacted(self, content: &str) -> String {
        let redactor = self.engine.catalog.redactor();
        without_nul(redactor.redact(content).into_owned())
    }

    async fn reported_task(
        self,
        caller: &Caller,
        report: &OutcomeReport,
    ) -> Result<TaskId, Refusal> {
        match &report.call {
            Ok(task) => Ok(*task),
            Err(key) => {
                let found = self
                    .engine
                    .store
                    .idempotency(&caller.tenant, &caller.user_id, GATE_KEY_PATH, key)
                    .await?;
                found.map(|row| row.task_id).ok_or(Refusal::NotFound)
            }
        }
    }
}

/// Returns the refusal of a report about `call`, for which no permit was given.
fn refusal_without_permit(call: GateCall, report: &OutcomeReport) -> GateRefusal {
    if call.state == GateState::Settled {
        return GateRefusal::Settled(Box::new(call));
    }
    let pointer = if report.call.is_ok() {
        "/task_id"
    } else {
        "/key"
    };
    Refusal::invalid(pointer, "a call for which a permit was given").into()
}

/// Applies a report to its call. If the report settles the call, the result counts as delivered,
/// because the reporting asker already has it. An equal proposal then does not get this result, but
/// becomes a new call.
fn apply_report(
    session: &mut TaskSession,
    call: &CallState,
    reported: ReportedOutcome,
    content: &str,
) -> ReportEffect {
    let outcome = match reported {
        ReportedOutcome::Succeeded => Outcome::Succeeded,
        ReportedOutcome::Failed => Outcome::Failed,
        ReportedOutcome::Unknown => Outcome::Unknown,
    };
    let result = ToolResult {
        tool_call_id: call.call.tool_call_id,
        name: call.call.name.clone(),
        outcome,
        content: content.to_owned(),
        http_status: None,
        suspect: false,
        reported: true,
    };
    match (&call.phase, outcome) {
        (Phase::Started(_), Outcome::Unknown) if call.is_attempt_over => ReportEffect::Nothing,
        (Phase::Started(_), Outcome::Unknown) => {
            session.push(Fact::LateResult(result));
            ReportEffect::Stores
        }
        // The report is about the running attempt, even if it equals a late result about an earlier
        // attempt.
        (Phase::Started(_), _) => {
            session.push(Fact::ToolResult(result));
            session.own.asker = Some(AskerPresence::Delivered);
            ReportEffect::Stores
        }
        (Phase::Done(_), _) => apply_late_report(session, result),
        // In every other phase, a person is being asked about the outcome of the reported attempt,
        // or has already decided about it. So a report of an unknown outcome adds nothing.
        (_, Outcome::Unknown) => ReportEffect::Nothing,
        _ if session.is_journaled(&result) => ReportEffect::Nothing,
        _ => {
            session.add_results(vec![ReceivedResult {
                result,
                start: None,
            }]);
            let state = session.own.progress.call(call.call.tool_call_id);
            // If the report is about an earlier attempt, and the next attempt waits for people, the
            // call stays open. If an open call counted as delivered, the next ask would not find
            // it.
            if state.is_some_and(|state| matches!(state.phase, Phase::Done(_))) {
                session.own.asker = Some(AskerPresence::Delivered);
            }
            ReportEffect::Stores
        }
    }
}

/// Applies a report about a settled call. Compares the report with two kinds of earlier reports of
/// the asker: the reports of a known outcome, about any attempt, and the reports of an unknown
/// outcome, about the last attempt. The first case that applies decides:
/// - If the report equals an earlier report, it adds nothing.
/// - If an earlier report has a known outcome, the report conflicts.
/// - If the report and an earlier report both have an unknown outcome, the report conflicts.
/// - Otherwise, the report is stored as a late result.
fn apply_late_report(session: &mut TaskSession, result: ToolResult) -> ReportEffect {
    let is_unknown = result.outcome == Outcome::Unknown;
    let (mut answers, mut unknown) = (Vec::new(), Vec::new());
    for item in &session.own.items {
        if matches!(item.fact, Fact::ToolStarted { .. }) {
            // A new attempt starts here. Earlier reports of an unknown outcome were about other
            // attempts.
            unknown.clear();
        }
        if let Fact::ToolResult(earlier) | Fact::LateResult(earlier) = &item.fact
            && earlier.reported
        {
            if earlier.outcome == Outcome::Unknown {
                unknown.push(earlier);
            } else {
                answers.push(earlier);
            }
        }
    }
    if answers.contains(&&result) || unknown.contains(&&result) {
        return ReportEffect::Nothing;
    }
    if !answers.is_empty() || (is_unknown && !unknown.is_empty()) {
        return ReportEffect::Conflicts;
    }
    session.push(Fact::LateResult(result));
    ReportEffect::Stores
}
