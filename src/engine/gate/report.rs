//! Stores the outcome that an asker reports for a call that it has run. Invariant: no report is
//! lost; a report that comes after the call was settled is journaled as a late result.

use std::sync::Arc;

use super::call::Viewer;
use super::{GateCall, GateRefusal, KEY_PATH};
use crate::engine::commands::Key;
use crate::engine::session::TaskSession;
use crate::engine::{Engine, Refusal, TRIES};
use crate::people::Caller;
use crate::people::may::may_ask_at_gate;
use crate::task::call_state::{CallState, Phase};
use crate::task::change::Asker;
use crate::task::id::TaskId;
use crate::task::item::{Fact, Outcome, ToolResult};
use crate::task::text::cleaned;
use crate::task::tool_spec::ToolKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedOutcome {
    /// The call ran and returned a result.
    Succeeded,
    /// The call failed, or was not made.
    Failed,
    /// The call may have run: a person is asked about the outcome.
    Unknown,
}

/// A report of a call's outcome, as its asker sent it.
#[derive(Clone, Debug)]
pub struct OutcomeReport {
    /// The task of the call, or the idempotency key of its proposal.
    pub call: Result<TaskId, String>,
    /// The attempt that the report is about; `None` is the last one.
    pub attempt: Option<u32>,
    pub outcome: ReportedOutcome,
    /// The text of the result, not yet redacted.
    pub content: String,
}

/// The effect of a report on a call.
enum Effect {
    /// The journal has the reported outcome already.
    Nothing,
    /// The facts of the report are pending in the session.
    Stores,
    /// The call has another outcome: the report is refused.
    Conflicts,
}

impl Engine {
    /// Stores the outcome of a call that its asker has run. Returns the call, and whether an
    /// earlier report with the same key was stored instead.
    ///
    /// # Errors
    /// `NotFound` and `Forbidden` as for [`Engine::look_at_call`]; `Invalid` if no permit was given
    /// for the call, or if `attempt` is not its last attempt; `Settled` if another outcome is
    /// stored.
    pub async fn report(
        self: &Arc<Self>,
        caller: &Caller,
        report: &OutcomeReport,
        key: Option<&Key>,
    ) -> Result<(GateCall, bool), GateRefusal> {
        may_ask_at_gate(caller).map_err(|why| Refusal::Forbidden(why.to_owned()))?;
        if let Some(task) = self.task_of_key(caller, key).await? {
            let session = self.load_call(caller, task).await?;
            return Ok((self.gate_call(&session, Viewer::Onlooker).await?, true));
        }
        let task = self.reported_task(caller, report).await?;
        let redactor = self.catalog.redactor();
        let content = cleaned(redactor.clean(&report.content).into_owned());
        for _ in 0..TRIES {
            let mut session = self.load_call(caller, task).await?;
            let call = session.own.progress.calls.first().cloned();
            let call = call.ok_or(Refusal::NotFound)?;
            check_attempt(&call, report)?;
            match apply(&mut session, &call, report.outcome, &content) {
                Effect::Nothing => {
                    return Ok((self.gate_call(&session, Viewer::Onlooker).await?, false));
                }
                Effect::Conflicts => {
                    let call = self.gate_call(&session, Viewer::Onlooker).await?;
                    return Err(GateRefusal::Settled(Box::new(call)));
                }
                Effect::Stores => {}
            }
            session.idempotency = key.map(|key| key.row(caller, &session, None));
            let Some((_, driven)) = self.drive_asked(session).await? else {
                continue;
            };
            let session = match driven.await.ok().flatten() {
                Some(session) => session,
                None => self.load_call(caller, task).await?,
            };
            return Ok((self.gate_call(&session, Viewer::Onlooker).await?, false));
        }
        Err(Refusal::Unavailable.into())
    }

    /// Returns the task of an earlier command with the same key.
    ///
    /// # Errors
    /// `KeyReused` if that command had another body.
    pub(super) async fn task_of_key(
        &self,
        caller: &Caller,
        key: Option<&Key>,
    ) -> Result<Option<TaskId>, Refusal> {
        let Some(key) = key else { return Ok(None) };
        let found = self
            .store
            .idempotency(&caller.tenant, &caller.user_id, &key.path, &key.key)
            .await?;
        match found {
            Some(row) if !key.body.is_kept_as(&row.body_digest) => Err(Refusal::KeyReused),
            found => Ok(found.map(|row| row.task_id)),
        }
    }

    async fn reported_task(
        &self,
        caller: &Caller,
        report: &OutcomeReport,
    ) -> Result<TaskId, Refusal> {
        match &report.call {
            Ok(task) => Ok(*task),
            Err(key) => {
                let found = self
                    .store
                    .idempotency(&caller.tenant, &caller.user_id, KEY_PATH, key)
                    .await?;
                found.map(|row| row.task_id).ok_or(Refusal::NotFound)
            }
        }
    }
}

/// Checks that a permit was given for the call, and that the report is about its last attempt.
fn check_attempt(call: &CallState, report: &OutcomeReport) -> Result<(), GateRefusal> {
    let pointer = if report.call.is_ok() {
        "/task_id"
    } else {
        "/key"
    };
    if call.performer != ToolKind::External || call.attempts == 0 {
        let detail = "a call for which a permit was given";
        return Err(GateRefusal::invalid(pointer, detail));
    }
    if report
        .attempt
        .is_some_and(|attempt| attempt != call.attempts)
    {
        return Err(GateRefusal::invalid(
            "/attempt",
            "the number of the last attempt",
        ));
    }
    Ok(())
}

/// Adds the facts of a report to the session, if the report says something new.
fn apply(
    session: &mut TaskSession,
    call: &CallState,
    reported: ReportedOutcome,
    content: &str,
) -> Effect {
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
    };
    match (&call.phase, outcome) {
        (Phase::Started(_), Outcome::Unknown) if call.given_back => Effect::Nothing,
        (Phase::Started(_), Outcome::Unknown) => {
            session.push(Fact::LateResult(result));
            Effect::Stores
        }
        (Phase::OutcomeUnknown(_), Outcome::Unknown) => Effect::Nothing,
        (Phase::Done(_), _) => late(session, result),
        _ => {
            session.add_results(vec![result]);
            // The reporter knows the result: a later equal call is a new call.
            session.own.asker = Some(Asker::Delivered);
            Effect::Stores
        }
    }
}

/// Adds the first report about a settled call as a late result; a further report must equal it.
fn late(session: &mut TaskSession, result: ToolResult) -> Effect {
    if result.outcome == Outcome::Unknown {
        return Effect::Nothing;
    }
    let (mut started, mut reported) = (false, Vec::new());
    for item in &session.own.items {
        match &item.fact {
            Fact::ToolStarted { .. } => started = true,
            // A result after a decision comes from a person, unless the call was started again in
            // between.
            Fact::Decision { .. } => started = false,
            Fact::ToolResult(earlier) | Fact::LateResult(earlier) => {
                let late = matches!(item.fact, Fact::LateResult(_));
                let answers = matches!(earlier.outcome, Outcome::Succeeded | Outcome::Failed);
                reported.extend(Some(earlier).filter(|_| answers && (started || late)));
            }
            Fact::TaskStatus { .. }
            | Fact::UserMessage { .. }
            | Fact::AssistantMessage(_)
            | Fact::Judged { .. }
            | Fact::InterventionRequested(_)
            | Fact::RequestClosed { .. }
            | Fact::SubAgentStarted { .. } => {}
        }
    }
    if reported.contains(&&result) {
        return Effect::Nothing;
    }
    if !reported.is_empty() {
        return Effect::Conflicts;
    }
    session.push(Fact::LateResult(result));
    Effect::Stores
}
