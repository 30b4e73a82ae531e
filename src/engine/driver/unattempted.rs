//! Ends calls that get no further attempt now. Invariant: if an attempt at a `once` call is
//! unanswered, only a person's decision can fail the call.

use super::{Driver, Stop};
use crate::task::call_state::EARLIER_ATTEMPT_TEXT;
use crate::task::id::CallId;
use crate::task::item::Outcome;
use crate::task::tool_spec::Effect;

impl Driver<'_> {
    /// Ends each of these calls with its problem. If an earlier attempt may have taken effect and
    /// the call must not be repeated, asks a person about the outcome. Otherwise fails the call.
    /// Two kinds of calls must not be repeated: `once` calls, and idempotent calls whose tool has
    /// changed since its server asked questions.
    ///
    /// # Errors
    /// The [`Stop`] of a read or commit that failed.
    pub(super) async fn end_unattempted(
        &mut self,
        ended: Vec<(CallId, String)>,
    ) -> Result<(), Stop> {
        let mut unknown = Vec::new();
        for (id, problem) in ended {
            let Some(state) = self.session.own.progress.call(id) else {
                continue;
            };
            // An attempt that ended with questions of the tool's server may have acted, too.
            let text = if state.attempts > 0 || state.may_have_acted(0) {
                format!("{problem} {EARLIER_ATTEMPT_TEXT}")
            } else {
                problem
            };
            let has_changed = self.has_changed_since_questions(state);
            let may_have_acted = state.may_have_acted(0) || has_changed;
            // At another target, a repetition would be another call.
            let may_repeat = state.effect == Effect::ReadOnly
                || (state.effect == Effect::Idempotent && !has_changed);
            if may_have_acted && !may_repeat {
                self.session.unknown_outcomes.insert(id, text);
                unknown.push(id);
            } else {
                let failed = (id, Outcome::Failed, text);
                self.session.settle_calls(vec![failed]);
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        self.reconcile(&unknown).await
    }
}
