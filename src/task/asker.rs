//! The step of a call at a gate, which may start only while its asker is there.

use super::question::awaited;
use super::step::{Ending, On, Step};
use super::tool_spec::ToolKind;
use super::turn::Progress;

/// Whether the asker of a gate call is there to take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskerState {
    /// The asker waits for the call.
    Present,
    /// The asker has left; the call waits until it is asked about again.
    Absent,
    /// The time in which the call could be started is over.
    Late,
}

/// The step of a gate call when neither a decision nor an attempt is awaited: a call may start only
/// while its asker is there.
pub(super) fn at_gate(progress: &Progress, asker: AskerState) -> Step {
    let Some(state) = progress.unfinished().next() else {
        return Step::Finish(Ending::Settled);
    };
    if !progress.open.is_empty() {
        return Step::Wait(awaited(progress, Vec::new()));
    }
    let id = state.call.tool_call_id;
    match asker {
        AskerState::Late => Step::Settle(vec![state.not_asked_for()]),
        AskerState::Absent => Step::Wait(vec![On::Asker]),
        AskerState::Present if state.performer == ToolKind::External => Step::Hand(id),
        AskerState::Present => Step::Run(vec![id]),
    }
}
