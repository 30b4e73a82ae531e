//! Keeps the pending facts that cannot be computed again when a session is reloaded: results of
//! calls, and the model's answer, if they still apply. All other pending facts can be computed
//! again.

use std::cmp::Ordering;

use super::TaskSession;
use crate::task::call_state::{AttemptStart, CallState, EARLIER_ATTEMPT_TEXT, Phase};
use crate::task::elicitation::{MAX_ROUNDS, declined_note};
use crate::task::failure::{Failure, FailureCode};
use crate::task::id::CallId;
use crate::task::item::{CloseReason, Fact, Outcome, ToolResult};
use crate::task::status::TaskStatus;
use crate::task::text::without_nul;
use crate::task::time::Time;
use crate::tool::{LateAnswerCell, ToolAnswer};

/// An attempt with an unknown outcome. If the attempt timed out and the tool's answer can still
/// come, `answer` holds the future that waits for this answer.
pub(in crate::engine) struct LateAttempt {
    pub call: CallId,
    pub start: Option<AttemptStart>,
    pub tool: String,
    pub answer: LateAnswerCell,
}

/// A result that came from outside the process.
#[derive(Debug)]
pub(in crate::engine) struct ReceivedResult {
    pub result: ToolResult,
    /// The start of the attempt that the result answers. `None` for an asker's report, which is
    /// about the last attempt.
    pub start: Option<AttemptStart>,
}

impl TaskSession {
    /// Returns the pending results that came from outside the process. Leaves out the results that
    /// the engine made, for example of a call that was not started, and of a sub-agent's call.
    pub(in crate::engine) fn pending_results(&self) -> Vec<ReceivedResult> {
        let pending = self.own.pending_items().iter();
        let results = pending.filter_map(|item| {
            let start = self.received_results.get(&item.seq)?;
            let (Fact::ToolResult(result) | Fact::LateResult(result)) = &item.fact else {
                return None;
            };
            Some(ReceivedResult {
                result: result.clone(),
                start: start.clone(),
            })
        });
        results.collect()
    }

    /// Pushes a result that came from outside the process, and marks the result as received. A
    /// reload of the task keeps received results, because they cannot be computed again. `start` is
    /// that of [`ReceivedResult`].
    fn push_received(&mut self, fact: Fact, start: Option<AttemptStart>) {
        self.push(fact);
        let pushed = self.own.pending_items().last();
        self.received_results
            .extend(pushed.map(|item| (item.seq, start)));
    }

    /// Returns the model's pending answer or failure; `None` if neither is pending.
    pub(crate) fn pending_answer(&self) -> Option<PendingAnswer> {
        let is_model_failure = |failure: &Failure| failure.code == FailureCode::ModelFailed;
        let answers = |fact: &&Fact| {
            matches!(fact, Fact::AssistantMessage(_))
                || matches!(fact, Fact::TaskStatus { error: Some(error), .. } if is_model_failure(error))
        };
        let fact = self
            .own
            .pending_items()
            .iter()
            .map(|item| &item.fact)
            .find(answers)?
            .clone();
        let shown = self.own.items.iter().take(self.own.committed);
        Some(PendingAnswer {
            fact,
            shown: shown.map(|item| (item.seq, item.at)).collect(),
        })
    }

    /// After a reload, makes the model's answer pending again. Drops the answer instead if the
    /// journal no longer begins with the items that the model was shown, or has an item after them.
    /// A late result does not count as such an item. If the answer is dropped, retracts the deltas
    /// (parts of the answer) that subscribers have received.
    pub(crate) fn restore_answer(&mut self, answer: Option<PendingAnswer>) {
        let follows = |answer: &PendingAnswer| {
            let (items, shown) = (&self.own.items, &answer.shown);
            let mut since = items.iter().skip(shown.len());
            items
                .iter()
                .map(|item| (item.seq, item.at))
                .take(shown.len())
                .eq(shown.iter().copied())
                && since.all(|item| matches!(item.fact, Fact::LateResult(_)))
        };
        match answer.filter(follows) {
            Some(answer) => self.push(answer.fact),
            None => self.delta_stream = None,
        }
    }

    /// Whether a result still applies to its call. The result of an attempt that may have been sent
    /// always applies. The result of an attempt that was never sent (see `not_sent`) applies only
    /// if the outcome of the call is unknown and this attempt is the last one of the journal. A
    /// journal without it may have lost later attempts, too. Earlier attempts need no check: if any
    /// of them may have taken effect, `record_result` records no result.
    fn still_applies(&self, received: &ReceivedResult) -> bool {
        let call = received.result.tool_call_id;
        if !self.not_sent.contains(&call) {
            return true;
        }
        self.own.progress.call(call).is_some_and(|state| {
            let is_unknown = matches!(
                state.phase,
                Phase::Started(_) | Phase::OutcomeUnknown(_) | Phase::Done(Outcome::Unknown)
            );
            is_unknown && state.start == received.start
        })
    }

    /// Whether a later attempt was started than the attempt that this result answers. A failover
    /// may have lost the start of the answered attempt. If a person then lets the call run again,
    /// the later attempt has the number of the lost attempt, or a lower number if several starts
    /// were lost.
    fn has_later_attempt(&self, received: &ReceivedResult) -> bool {
        let state = self.own.progress.call(received.result.tool_call_id);
        let last = state.and_then(|state| state.start.as_ref());
        let Some((last, answered)) = last.zip(received.start.as_ref()) else {
            return false;
        };
        match last.attempt.cmp(&answered.attempt) {
            Ordering::Greater => true,
            Ordering::Equal => last.at != answered.at,
            Ordering::Less => last.at > answered.at,
        }
    }

    /// Whether the journal already has this result. This happens if an earlier commit of the result
    /// succeeded, but its confirmation was lost.
    pub(crate) fn is_journaled(&self, result: &ToolResult) -> bool {
        self.own
            .items
            .iter()
            .any(|item| matches!(&item.fact, Fact::ToolResult(known) | Fact::LateResult(known) if known == result))
    }

    /// Whether the journal has `received` as the result of its call, and not as a late result. The
    /// last attempt at the call is then the attempt that `received` answers.
    pub(in crate::engine) fn has_result(&self, received: &ReceivedResult) -> bool {
        let state = self.own.progress.call(received.result.tool_call_id);
        state.is_some_and(|state| state.start == received.start)
            && self.own.items.iter().any(
                |item| matches!(&item.fact, Fact::ToolResult(known) if *known == received.result),
            )
    }

    pub(in crate::engine) fn add_results(&mut self, results: Vec<ReceivedResult>) {
        for received in results
            .into_iter()
            .filter(|received| self.still_applies(received))
            .collect::<Vec<_>>()
        {
            self.add_result(received);
        }
    }

    /// Pushes a result as the call's result, or as a late result if the call does not wait for a
    /// result, or has had a later attempt. Withdraws the call's open reconcile request, if there is
    /// one. While the tree cannot be read, a result that would change more than its call becomes a
    /// late result ([`TaskSession::wakes_or_unblocks`]).
    fn add_result(&mut self, received: ReceivedResult) {
        let call = received.result.tool_call_id;
        let is_late = self.has_later_attempt(&received)
            || (!self.has_fresh_tree() && self.wakes_or_unblocks(call));
        let ReceivedResult { result, start } = received;
        if is_late {
            self.push_late(result, start);
            return;
        }
        let state = self.own.progress.call(call);
        // `start_lost` is true if a restore of the database has removed the start of this attempt
        // from the journal.
        let start_lost = state.is_some_and(CallState::is_ready_but_uncertain);
        match state.map(|state| state.phase.clone()) {
            Some(Phase::OutcomeUnknown(request_id)) => {
                self.push(Fact::withdrawn(request_id, CloseReason::AnsweredLate));
                self.resume_if_unblocked();
                self.push_received(Fact::ToolResult(result), start);
            }
            // In these phases, the tool's answer to an attempt becomes the call's result:
            // - `Started`: the attempt has no answer yet.
            // - `Approved`: the attempt had no answer, and a person chose `retry`. The new attempt
            //   has not started. Or `start_lost` is true.
            // - `Settled`: the outcome `unknown` is not written yet, so the answer replaces it.
            Some(Phase::Started(_) | Phase::Approved(_) | Phase::Settled(Outcome::Unknown, _)) => {
                self.push_received(Fact::ToolResult(result), start);
            }
            Some(Phase::Allowed) if start_lost => {
                self.push_received(Fact::ToolResult(result), start);
            }
            Some(
                Phase::New
                | Phase::Allowed
                | Phase::Held(_)
                | Phase::Human(_)
                | Phase::ServerAsks
                | Phase::AwaitsDecision(_)
                | Phase::Settled(..)
                | Phase::Delegated(_)
                | Phase::Done(_),
            )
            | None => self.push_late(result, start),
        }
    }

    /// Pushes a late result unless the journal has an equal result. A call whose result is
    /// journaled accepts late results alone, so no result is stored twice.
    fn push_late(&mut self, result: ToolResult, start: Option<AttemptStart>) {
        if !self.is_journaled(&result) {
            self.push_received(Fact::LateResult(result), start);
        }
    }

    /// Whether the commit of the call's result also closes a request or queues the task. Such a
    /// commit changes the counters of the task's ancestors, so it needs their present versions.
    fn wakes_or_unblocks(&self, call: CallId) -> bool {
        let (row, progress) = (&self.own.row, &self.own.progress);
        let state = progress.call(call);
        state.is_some_and(|state| matches!(state.phase, Phase::OutcomeUnknown(_)))
            || (row.parked && progress.status == Some(TaskStatus::Running))
    }

    /// Records the answer to an attempt. A result becomes a pending fact. For an unknown outcome,
    /// or for questions from the tool's server, the function pushes no fact, but stores the answer
    /// in the session. The driver then opens a request about the outcome or the questions. After
    /// [`MAX_ROUNDS`] attempts with questions, further questions fail the call.
    ///
    /// An attempt that was not sent fails the call only if no earlier attempt may have taken
    /// effect. Otherwise the outcome of the call stays unknown.
    pub(crate) fn record_result(&mut self, tool_call_id: CallId, name: String, answer: ToolAnswer) {
        let answer = match answer {
            ToolAnswer::Unknown { problem } => {
                self.unknown_outcomes.insert(tool_call_id, problem);
                return;
            }
            ToolAnswer::NotSent { content } => {
                let state = self.own.progress.call(tool_call_id);
                if state.is_some_and(|state| state.may_have_acted(1)) {
                    let problem = format!("{content} {EARLIER_ATTEMPT_TEXT}");
                    self.unknown_outcomes.insert(tool_call_id, problem);
                    return;
                }
                self.not_sent.insert(tool_call_id);
                ToolAnswer::failed(content)
            }
            ToolAnswer::Elicitation(elicitation) => {
                let state = self.own.progress.call(tool_call_id);
                let last = state.and_then(|state| state.elicitation.as_ref());
                if last.is_none_or(|last| last.round < MAX_ROUNDS) {
                    let attempt = state.map_or(0, |state| state.attempts);
                    self.elicitations
                        .insert(tool_call_id, (attempt, elicitation));
                    return;
                }
                ToolAnswer::Failed {
                    content: format!(
                        "The tool asked the user more than {MAX_ROUNDS} times in one call.{}",
                        declined_note(&elicitation.declined)
                    ),
                    http_status: None,
                }
            }
            ToolAnswer::Succeeded { .. }
            | ToolAnswer::Failed { .. }
            | ToolAnswer::Suspect { .. } => answer,
        };
        self.unknown_outcomes.remove(&tool_call_id);
        if let Some(result) = Self::result(tool_call_id, name, answer) {
            let state = self.own.progress.call(tool_call_id);
            let start = state.and_then(|state| state.start.clone());
            self.push_received(Fact::ToolResult(result), start);
        }
    }

    /// Returns the result of a call from a tool's answer. Returns `None` if the answer does not
    /// settle the call: the outcome is unknown, the answer consists of questions, or the attempt
    /// was not sent.
    pub(crate) fn result(
        tool_call_id: CallId,
        name: String,
        answer: ToolAnswer,
    ) -> Option<ToolResult> {
        let suspect = matches!(answer, ToolAnswer::Suspect { .. });
        let (outcome, content, http_status) = match answer {
            ToolAnswer::Succeeded {
                content,
                http_status,
            } => (Outcome::Succeeded, content, http_status),
            ToolAnswer::Failed {
                content,
                http_status,
            } => (Outcome::Failed, content, http_status),
            ToolAnswer::Suspect { content } => (Outcome::Failed, content, None),
            ToolAnswer::NotSent { .. }
            | ToolAnswer::Unknown { .. }
            | ToolAnswer::Elicitation(_) => return None,
        };
        Some(ToolResult {
            tool_call_id,
            name,
            outcome,
            content: without_nul(content),
            http_status,
            suspect,
            reported: false,
        })
    }
}

/// A model's pending answer or failure. `shown` has the `seq` and the time of each journal item
/// from which the model's prompt was built.
pub(crate) struct PendingAnswer {
    fact: Fact,
    shown: Vec<(i64, Time)>,
}

#[cfg(test)]
mod tests;
