//! Defines [`LateAttempt`], an attempt whose answer may come after its timeout.

use crate::task::id::CallId;
use crate::tool::LateSlot;

/// An attempt with an unknown outcome. If the attempt timed out and the tool's answer can still
/// come, `answer` holds the future that waits for this answer.
pub(in crate::engine) struct LateAttempt {
    pub call: CallId,
    pub attempt: u32,
    pub tool: String,
    pub answer: LateSlot,
}
