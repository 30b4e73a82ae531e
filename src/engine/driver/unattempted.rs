//! Ends calls that get no further attempt now. Invariant: no `once` call of which an attempt is
//! unanswered fails without a person's decision.

use super::{Driver, Stop};
use crate::task::call_state::EARLIER_ATTEMPT_TEXT;
use crate::task::id::CallId;
use crate::task::item::Outcome;

impl Driver<'_> {
    /// Fails each of these calls with its problem. Exception: if an earlier attempt at a `once`
    /// call may have taken effect, does not fail the call, but asks a person about its outcome.
    ///
    /// # Errors
    /// `Lost` when the service goes down before the database answers.
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
            if state.may_have_acted(0) && !state.effect.is_repeatable() {
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
