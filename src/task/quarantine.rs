//! Quarantined tools. A call with the effect `once` puts its tool into quarantine in two cases. In
//! the first case, the call's outcome is unknown. In the second case, the call was sent and failed,
//! but may have acted all the same (for example, the answer has a 5xx status). Neither case needs a
//! start of the call in the journal, because a restore of the database may have lost the start (see
//! `restore.rs`). A call of a quarantined tool needs a person's decision, whatever the rules say.
//! The quarantine ends when a person decides a call of the tool. Credentials for a call, an answer
//! to a question of the tool's server, a message, a cancellation and a retry of the task do not end
//! the quarantine.
//!
//! At a gate, each call is a task of its own, but a quarantine applies to all calls of the tool in
//! the session: a decision in one task ends a quarantine that another task began. Therefore, each
//! task stores its last change of the quarantine ([`Quarantine::change_since`]). The newest change
//! in the session tells whether the tool is quarantined (`store/gate_calls.rs`).

use std::collections::BTreeMap;

use super::call_state::{CallState, Phase};
use super::id::CallId;
use super::item::{Fact, Item, Outcome, ToolResult};
use super::status::TaskStatus;
use super::tool_spec::Effect;

/// The quarantined tools of a task or of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quarantine {
    /// The tools by name, each with the call that caused the quarantine.
    tools: BTreeMap<String, Quarantined>,
    /// `seq` of the last item that was applied.
    seq: i64,
    /// The last change: the `seq` of its item, and `true` if the item quarantined a tool, or
    /// `false` if a person decided a call. `None` before the first change.
    changed: Option<(i64, bool)>,
}

/// The text of `Quarantined::finding` for a started call without a result.
const OUTCOME_UNKNOWN: &str = "was started, and its outcome is not known";

/// The text of `Quarantined::finding` for a call of unknown outcome whose journal shows no start.
const MAY_HAVE_RUN: &str =
    "may have run before the database was restored from a backup, or a standby was promoted";

/// Returns the reason of a quarantine that `call` at a gate has caused. Used if the call's journal
/// is unreadable or does not show a more specific reason.
#[must_use]
pub(crate) fn reason_without_journal(call: CallId) -> String {
    reason_of(call, "may have acted")
}

fn reason_of(call: CallId, finding: &str) -> String {
    format!(
        "An earlier call of this tool ({call}) {finding}. Each call of this tool is held until a human has decided one of them."
    )
}

/// Returns the finding about a call of unknown outcome.
fn unknown_finding(state: &CallState) -> &'static str {
    if state.attempts > 0 {
        OUTCOME_UNKNOWN
    } else {
        MAY_HAVE_RUN
    }
}

fn state_of(calls: &[CallState], id: CallId) -> Option<&CallState> {
    calls.iter().find(|state| state.call.tool_call_id == id)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Quarantined {
    call: CallId,
    /// The predicate of a sentence about the call, for example
    /// `failed with status 500 after it was sent`.
    finding: String,
}

impl Quarantine {
    /// Returns the reason why the tool is quarantined; `None` if the tool is not quarantined.
    #[must_use]
    pub fn reason(&self, tool: &str) -> Option<String> {
        let Quarantined { call, finding } = self.tools.get(tool)?;
        Some(reason_of(*call, finding))
    }

    /// Returns the last change of the quarantine by an item after `seq`: `true` if the item
    /// quarantined a tool, `false` if a person decided a call, and `None` if there is no change. A
    /// decision counts as a change even if the tool is not in quarantine in this task, because
    /// another task may have quarantined the tool.
    #[must_use]
    pub fn change_since(&self, seq: i64) -> Option<bool> {
        let (_, quarantines) = self.changed.filter(|(at, _)| *at > seq)?;
        Some(quarantines)
    }

    /// Applies the next item of a task. `calls` holds the task's calls in their state before the
    /// item.
    pub(super) fn apply(&mut self, item: &Item, calls: &[CallState]) {
        self.seq = item.seq;
        match &item.fact {
            Fact::InterventionRequested(asked) if asked.kind.properties().outcome_unknown => {
                for call in asked.own_calls() {
                    let state = state_of(calls, call.tool_call_id);
                    let finding = state.map_or(OUTCOME_UNKNOWN, unknown_finding);
                    self.quarantine_tool(&call.name, call.tool_call_id, finding);
                }
            }
            Fact::ToolResult(result) | Fact::LateResult(result) => self.apply_result(result, calls),
            // In a task that continues, the reconcile request about a started `once` call
            // quarantines the tool. A failed task opens no reconcile request, so its failure
            // quarantines the tool.
            Fact::TaskStatus {
                status: TaskStatus::Failed,
                ..
            } => {
                for state in calls.iter().filter(|state| state.effect == Effect::Once) {
                    if matches!(state.phase, Phase::Started(_) | Phase::OutcomeUnknown(_)) {
                        let (name, call) = (&state.call.name, state.call.tool_call_id);
                        self.quarantine_tool(name, call, unknown_finding(state));
                    }
                }
            }
            Fact::InterventionRequested(_)
            | Fact::TaskStatus { .. }
            | Fact::UserMessage { .. }
            | Fact::AssistantMessage(_)
            | Fact::Judged { .. }
            | Fact::Decision { .. }
            | Fact::RequestClosed { .. }
            | Fact::ToolStarted { .. }
            | Fact::SubAgentStarted { .. } => {}
        }
    }

    /// Ends the quarantine of `tool`, because a person has decided a call of it. Must be called
    /// after [`Self::apply`] of the item with the decision: `self.seq` is then this item's `seq`.
    pub(super) fn lift(&mut self, tool: &str) {
        self.tools.remove(tool);
        self.changed = Some((self.seq, false));
    }

    fn apply_result(&mut self, result: &ToolResult, calls: &[CallState]) {
        let state = state_of(calls, result.tool_call_id);
        let once = state.filter(|state| state.effect == Effect::Once);
        match (result.outcome, result.http_status) {
            (Outcome::Unknown, _) if let Some(state) = once => {
                let finding = unknown_finding(state);
                self.quarantine_tool(&result.name, result.tool_call_id, finding);
            }
            (Outcome::Failed, Some(status @ 500..)) if once.is_some() => {
                let finding = format!("failed with status {status} after it was sent");
                self.quarantine_tool(&result.name, result.tool_call_id, &finding);
            }
            (Outcome::Failed, _) if once.is_some() && result.suspect => {
                self.quarantine_tool(
                    &result.name,
                    result.tool_call_id,
                    "failed after it was sent, and may have acted",
                );
            }
            // A result that arrives during the quarantine does not end it, because only a person
            // may end a quarantine. The result only changes the reason that people read.
            (Outcome::Succeeded | Outcome::Failed, _) => {
                if let Some(entry) = self.tools.get_mut(&result.name)
                    && entry.call == result.tool_call_id
                {
                    entry.finding = format!(
                        "had an unknown outcome; its answer came late: {}",
                        result.outcome.as_str()
                    );
                }
            }
            (
                Outcome::Invalid
                | Outcome::Denied
                | Outcome::Rejected
                | Outcome::Responded
                | Outcome::Expired
                | Outcome::Withdrawn
                | Outcome::Canceled
                | Outcome::Unknown
                | Outcome::Released,
                _,
            ) => {}
        }
    }

    fn quarantine_tool(&mut self, tool: &str, call: CallId, finding: &str) {
        self.changed = Some((self.seq, true));
        self.tools.insert(
            tool.to_owned(),
            Quarantined {
                call,
                finding: finding.to_owned(),
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::call_state::tests::{CALL, after_judgement};

    /// Returns the reason of the quarantine after this result of a call with this effect. The
    /// journal does not show the start of the call.
    fn reason_after(
        effect: Effect,
        outcome: Outcome,
        http_status: Option<u16>,
        suspect: bool,
    ) -> Option<String> {
        let result = Fact::ToolResult(ToolResult {
            tool_call_id: CALL,
            name: "pay".to_owned(),
            outcome,
            content: String::new(),
            http_status,
            suspect,
            reported: false,
        });
        let progress = after_judgement("pay", effect, [result]);
        progress.shared.quarantine.reason("pay")
    }

    #[test]
    fn call_that_may_have_acted_quarantines_its_tool_without_a_start_in_the_journal() {
        for (outcome, status, suspect, finding) in [
            (Outcome::Unknown, None, false, MAY_HAVE_RUN),
            (
                Outcome::Failed,
                Some(500),
                false,
                "failed with status 500 after it was sent",
            ),
            (
                Outcome::Failed,
                None,
                true,
                "failed after it was sent, and may have acted",
            ),
        ] {
            let reason = reason_after(Effect::Once, outcome, status, suspect);
            assert_eq!(reason, Some(reason_of(CALL, finding)));
            let repeatable = reason_after(Effect::Idempotent, outcome, status, suspect);
            assert_eq!(repeatable, None);
        }
        for (outcome, status) in [
            (Outcome::Failed, Some(422)),
            (Outcome::Failed, None),
            (Outcome::Canceled, None),
        ] {
            assert_eq!(reason_after(Effect::Once, outcome, status, false), None);
        }
    }
}
