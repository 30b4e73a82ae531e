//! Derives how a gate call ended, as its asker sees it.

use crate::task::call_state::CallState;
use crate::task::failure::Failure;
use crate::task::item::{Outcome, ToolResult};
use crate::task::tool_spec::ToolKind;

/// The parts of a gate call's journal that say how the call ended.
#[derive(Clone, Copy)]
pub(super) struct CallEnd<'c> {
    pub state: &'c CallState,
    /// The last result; `None` if the call is open, or if its task has failed before the call had a
    /// result.
    pub result: Option<&'c ToolResult>,
    /// The failure of the task; `None` if the task has not failed.
    pub failure: Option<&'c Failure>,
}

impl CallEnd<'_> {
    /// Returns the outcome for [`GateCall::outcome`](super::GateCall::outcome). A failed task never
    /// runs its call again. So if the call of a failed task has no result, the outcome is final:
    /// `Unknown` if the call was started, otherwise `Withdrawn`.
    pub(super) fn outcome(self) -> Option<Outcome> {
        match (self.result, self.failure) {
            (Some(result), _) => Some(result.outcome),
            (None, Some(_)) if self.state.attempts > 0 => Some(Outcome::Unknown),
            (None, Some(_)) => Some(Outcome::Withdrawn),
            (None, None) => None,
        }
    }

    /// Returns the text for [`GateCall::end_text`](super::GateCall::end_text).
    pub(super) fn text(self) -> Option<String> {
        let was_started = self.state.attempts > 0;
        let Some(result) = self.result else {
            let failure = self.failure.filter(|_| !was_started)?;
            return Some(failure.detail.clone());
        };
        let has_text = matches!(
            result.outcome,
            Outcome::Expired | Outcome::Withdrawn | Outcome::Canceled | Outcome::Failed
        );
        let is_unreported = self.state.performer == ToolKind::External && !result.reported;
        let is_told = has_text && (!was_started || is_unreported) && !result.content.is_empty();
        is_told.then(|| result.content.clone())
    }
}
