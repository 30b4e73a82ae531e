//! Decides the next step of a call at a gate. The call may start only while its asker (the client
//! that proposed the call) waits for the verdict.

use super::call_state::{CallState, Phase};
use super::id::CallId;
use super::item::{Fact, Item, Outcome};
use super::planned_request::awaited_events;
use super::progress::Progress;
use super::step::{AwaitedEvent, Ending, Step};
use super::time::Time;

/// Whether the asker of a gate call (the client that proposed the call) waits for the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskerState {
    /// The asker waits, so an approved call may start.
    Present,
    /// The asker has left. The call can start once it is proposed again.
    Absent,
    /// The time limit for starting the call, or for reporting the outcome of a started call, has
    /// passed.
    Late,
}

/// Returns the time since which a gate call has been free to start. The caller must have checked
/// that the call may start now. The time is that of the newest item in `items` that is a person's
/// decision (about any request) or a judgement; `None` if there is no such item.
///
/// The time of the first approval would be too early. After this approval, the call may have to
/// wait until a person answers a question of the tool's server, or enters a credential.
#[must_use]
pub(crate) fn startable_since(items: &[Item]) -> Option<Time> {
    let newest = items.iter().rev();
    let mut lets_start =
        newest.filter(|item| matches!(item.fact, Fact::Decision { .. } | Fact::Judged { .. }));
    lets_start.next().map(|item| item.at)
}

/// Returns the result of an unfinished call when a decision or a deadline ends the call's task.
/// `asker` is `None` if the call was not proposed at a gate.
///
/// A gate call that is settled as `Expired` and cannot have run keeps its result, because the text
/// tells the asker the reason. Any other call gets its [`CallState::canceled_result`].
pub(super) fn result_at_end(
    state: &CallState,
    asker: Option<AskerState>,
) -> (CallId, Outcome, String) {
    if let Phase::Settled(Outcome::Expired, text) = &state.phase
        && asker.is_some()
        && !state.ends_unknown()
    {
        return (state.call.tool_call_id, Outcome::Expired, text.clone());
    }
    state.canceled_result()
}

/// Decides the next step of the task of a gate call. The caller must have checked that no request
/// blocks the turn, and that no attempt is in flight (`is_in_flight` in `step.rs`).
pub(super) fn step_at_gate(progress: &Progress, asker: AskerState) -> Step {
    let Some(state) = progress.unfinished().next() else {
        return Step::Finish(Ending::Settled);
    };
    if !progress.open.is_empty() {
        return Step::Wait(awaited_events(progress, Vec::new()));
    }
    let id = state.call.tool_call_id;
    match asker {
        AskerState::Late => Step::Settle(vec![state.late_asker_result()]),
        AskerState::Absent => Step::Wait(vec![AwaitedEvent::Asker]),
        AskerState::Present if state.performer.properties().runs_at_client => Step::HandOver(id),
        AskerState::Present => Step::RunCalls(vec![id]),
    }
}
