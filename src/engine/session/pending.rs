//! Keeps the pending facts that cannot be computed again when a session is reloaded: results of
//! calls, and the model's answer, if they still apply. All other pending facts can be computed
//! again.

use super::TaskSession;
use crate::task::call_state::{CallState, EARLIER_ATTEMPT_TEXT, Phase};
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
    pub attempt: u32,
    /// The time of the commit that recorded the attempt's start.
    pub started_at: Time,
    pub tool: String,
    pub answer: LateAnswerCell,
}

impl TaskSession {
    /// Returns the pending results that came from outside the process. Leaves out the results that
    /// the engine made, for example of a call that was not started, and of a sub-agent's call.
    pub(crate) fn pending_results(&self) -> Vec<ToolResult> {
        let pending = self.own.pending_items().iter();
        let received = pending.filter(|item| self.received_results.contains(&item.seq));
        let results = received.filter_map(|item| {
            let (Fact::ToolResult(result) | Fact::LateResult(result)) = &item.fact else {
                return None;
            };
            Some(result)
        });
        results.cloned().collect()
    }

    /// Pushes a result that came from outside the process, and marks the result as received. A
    /// reload of the task keeps received results, because they cannot be computed again.
    fn push_received(&mut self, fact: Fact) {
        self.push(fact);
        let pushed = self.own.pending_items().last();
        self.received_results.extend(pushed.map(|item| item.seq));
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
    /// if the outcome of the call is unknown and no later attempt was started. Earlier attempts
    /// need no check: if any of them may have taken effect, `record_result` records no result.
    fn still_applies(&self, result: &ToolResult) -> bool {
        let Some(attempt) = self.not_sent.get(&result.tool_call_id) else {
            return true;
        };
        let state = self.own.progress.call(result.tool_call_id);
        state.is_some_and(|call| {
            let is_unknown = matches!(
                call.phase,
                Phase::Started(_) | Phase::OutcomeUnknown(_) | Phase::Done(Outcome::Unknown)
            );
            is_unknown && call.attempts == *attempt
        })
    }

    /// Whether the journal already has this result. This happens if an earlier commit of the result
    /// succeeded, but its confirmation was lost.
    pub(crate) fn is_journaled(&self, result: &ToolResult) -> bool {
        self.own
            .items
            .iter()
            .any(|item| matches!(&item.fact, Fact::ToolResult(known) | Fact::LateResult(known) if known == result))
    }

    pub(crate) fn add_results(&mut self, results: Vec<ToolResult>) {
        for result in results
            .into_iter()
            .filter(|result| self.still_applies(result))
            .collect::<Vec<_>>()
        {
            self.add_result(result);
        }
    }

    /// Pushes a result as the call's result, or as a late result if the call does not wait for a
    /// result. Withdraws the call's open reconcile request, if there is one. While the tree cannot
    /// be read, a result that would change more than its call becomes a late result
    /// ([`TaskSession::wakes_or_unblocks`]).
    fn add_result(&mut self, result: ToolResult) {
        if self.is_journaled(&result) {
            return;
        }
        if !self.has_fresh_tree() && self.wakes_or_unblocks(result.tool_call_id) {
            self.push_received(Fact::LateResult(result));
            return;
        }
        let state = self.own.progress.call(result.tool_call_id);
        // `start_lost` is true if a restore of the database has removed the start of this attempt
        // from the journal.
        let start_lost = state.is_some_and(CallState::is_ready_but_uncertain);
        match state.map(|state| state.phase.clone()) {
            Some(Phase::OutcomeUnknown(request_id)) => {
                self.push(Fact::withdrawn(request_id, CloseReason::AnsweredLate));
                self.resume_if_unblocked();
                self.push_received(Fact::ToolResult(result));
            }
            // In these phases, the tool's answer to an attempt becomes the call's result:
            // - `Started`: the attempt has no answer yet.
            // - `Approved`: the attempt had no answer, and a person chose `retry`. The new attempt
            //   has not started. Or `start_lost` is true.
            // - `Settled`: the outcome `unknown` is not written yet, so the answer replaces it.
            Some(Phase::Started(_) | Phase::Approved(_) | Phase::Settled(Outcome::Unknown, _)) => {
                self.push_received(Fact::ToolResult(result));
            }
            Some(Phase::Allowed) if start_lost => self.push_received(Fact::ToolResult(result)),
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
            | None => self.push_received(Fact::LateResult(result)),
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
                let attempt = state.map_or(0, |state| state.attempts);
                self.not_sent.insert(tool_call_id, attempt);
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
            self.push_received(Fact::ToolResult(result));
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
mod tests {
    use super::*;
    use crate::engine::session::task_draft::tests::{message, row};
    use crate::task::change::{Journal, TaskRow};
    use crate::task::item::{FinishReason, Item, Turn, Usage};
    use uuid::Uuid;

    fn journal(facts: &[Fact], at: Time) -> Journal {
        let items: Vec<_> = facts
            .iter()
            .cloned()
            .zip(1..)
            .map(|(fact, seq)| Item { seq, at, fact })
            .collect();
        Journal {
            row: TaskRow {
                last_seq: i64::try_from(items.len()).unwrap(),
                ..row()
            },
            items,
            now: at,
            history_uncertain_until: None,
        }
    }

    #[test]
    fn result_of_a_tool_survives_a_reload_and_result_made_by_the_engine_does_not() {
        let shown = journal(&[message()], Time(1));
        let mut session = TaskSession::new(shown.clone());
        let [made, received] = [1, 2].map(|id| CallId(Uuid::from_u128(id)));
        session.settle_calls(vec![(made, Outcome::Failed, "not prepared".to_owned())]);
        let answer = ToolAnswer::Succeeded {
            content: "paid".to_owned(),
            http_status: None,
        };
        session.record_result(received, "pay".to_owned(), answer);
        for reload in 1..=2 {
            let kept = session.pending_results();
            let calls: Vec<_> = kept.iter().map(|result| result.tool_call_id).collect();
            assert_eq!(calls, [received], "reload {reload}");
            session.replace(shown.clone());
            assert!(session.pending_results().is_empty());
            session.add_results(kept);
            session.settle_calls(vec![(made, Outcome::Failed, "not prepared".to_owned())]);
        }
    }

    #[test]
    fn answer_is_kept_only_where_it_follows_what_the_model_was_shown() {
        let status = |status| Fact::TaskStatus {
            status,
            error: None,
            output: None,
        };
        let late = Fact::LateResult(ToolResult {
            tool_call_id: CallId(Uuid::nil()),
            name: "pay".to_owned(),
            outcome: Outcome::Succeeded,
            content: String::new(),
            http_status: None,
            suspect: false,
            reported: false,
        });
        let answer = Fact::AssistantMessage(Turn {
            turn: 1,
            text: Some("done".to_owned()),
            tool_calls: Vec::new(),
            finish_reason: FinishReason::Stop,
            usage: Usage::default(),
            raw: serde_json::Value::Null,
        });
        let (shown, at, later) = (
            vec![status(TaskStatus::Running), message()],
            Time(1),
            Time(2),
        );
        let with = |facts: &[&Fact]| {
            shown
                .iter()
                .chain(facts.iter().copied())
                .cloned()
                .collect::<Vec<_>>()
        };
        let canceled = status(TaskStatus::Canceled);
        for (name, newer, at, kept) in [
            ("the same journal", with(&[]), at, true),
            ("a late result", with(&[&late]), at, true),
            ("a cancel", with(&[&canceled]), at, false),
            (
                "the user's next message",
                with(&[&late, &canceled, &message()]),
                at,
                false,
            ),
            ("the answer itself", with(&[&answer]), at, false),
            (
                "a history whose end was lost",
                shown[..1].to_vec(),
                at,
                false,
            ),
            ("another history", with(&[]), later, false),
        ] {
            let mut session = TaskSession::new(journal(&shown, Time(1)));
            session.push(answer.clone());
            let answered = session.pending_answer();
            session.replace(journal(&newer, at));
            session.restore_answer(answered);
            assert_eq!(session.has_pending_facts(), kept, "{name}");
        }
    }
}
