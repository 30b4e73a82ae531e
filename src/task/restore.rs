//! What a restored backup or a promoted standby leaves unknown. Its history ends before the one that was lost, in which
//! calls that look as if they had not been started may have run. What must stay true: such a call never runs again
//! unless its effect may be repeated, or a human says so who was asked after the database came back.

use super::call_state::{CallState, Phase, UNKNOWN};
use super::decision::{Action, CallAnswer, Decision};
use super::item::{Item, Outcome};
use super::request::Warning;
use super::time::Time;
use super::turn::Progress;
use super::verdict::Verdict;

/// What is known of a call that the lost history may have run.
pub const FORGOTTEN: &str = "Whether this call has run is not known: the database was restored from a backup, or a \
    standby was promoted, after it was asked for.";

/// Why a later call is held.
pub const HISTORY_LOST: &str = "The database was restored from a backup, or a standby was promoted, since the user's \
    last message: what this task has done meanwhile is not known.";

/// Up to which item a journal is in doubt; 0 where it is not. By place, not by moment: the clocks of two servers differ.
#[must_use]
pub fn uncertain_seq(items: &[Item], history_uncertain_until: Option<Time>) -> i64 {
    let Some(history_uncertain_until) = history_uncertain_until else { return 0 };
    items.iter().rev().find(|item| item.at <= history_uncertain_until).map_or(0, |item| item.seq)
}

impl Progress {
    /// A whole journal, of which everything up to that moment is in doubt.
    #[must_use]
    pub fn replay(items: &[Item], history_uncertain_until: Option<Time>) -> Self {
        let mut progress = Self { uncertain_seq: uncertain_seq(items, history_uncertain_until), ..Self::new() };
        for item in items {
            progress.apply(item);
        }
        progress
    }

    /// A human's leave, where this decision completed one, stands after everything that is in doubt.
    pub(super) fn vouched(&mut self, decision: &Decision, known: bool) {
        for state in &mut self.calls {
            let answer = decision.decisions.get(&state.call.tool_call_id);
            let of_leave =
                |answer: &CallAnswer| matches!(answer.action, Action::Approve | Action::Edit | Action::Retry);
            if known && answer.is_some_and(of_leave) {
                state.vouched = matches!(state.phase, Phase::Approved(_));
            }
        }
    }
}

impl CallState {
    /// Whether the lost history may have run it, whatever was decided since.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        let question = self.judgement.as_ref().is_some_and(|judgement| judgement.verdict == Verdict::Human);
        self.of_uncertain_turn && !question && !self.effect.repeatable()
    }

    /// The same, and no human has said since that it should run.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        self.may_have_run() && !self.vouched
    }

    /// It would run now, if nothing were in doubt.
    #[must_use]
    pub fn ready_but_uncertain(&self) -> bool {
        self.is_uncertain() && matches!(self.phase, Phase::Allowed | Phase::Approved(_))
    }

    /// What is said of it when nobody knows whether it took effect.
    #[must_use]
    pub(super) fn unknown(&self) -> String {
        if self.attempts > 0 { UNKNOWN } else { FORGOTTEN }.to_owned()
    }

    /// The words for a call that will not run (again), which says so unless it may have run already.
    pub(super) fn not_run(&self, why: &str, and: &str) -> String {
        if self.attempts > 0 || self.is_uncertain() {
            format!("{why}. {}", self.unknown())
        } else {
            format!("{why}{and}")
        }
    }

    /// Whether it ends as `unknown` when it is canceled before it has a result.
    pub(super) fn ends_unknown(&self) -> bool {
        let refused = matches!(self.phase, Phase::Settled(Outcome::Denied | Outcome::Invalid, _));
        self.attempts > 0 || (self.is_uncertain() && !refused)
    }
}

impl Warning {
    /// What an approver of such a call is told.
    #[must_use]
    pub fn may_already_have_run() -> Self {
        Self { code: MAY_ALREADY_HAVE_RUN.to_owned(), pointer: String::new(), detail: FORGOTTEN.to_owned() }
    }
}

/// The code of that warning.
pub const MAY_ALREADY_HAVE_RUN: &str = "may_already_have_run";
