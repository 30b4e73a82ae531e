//! Handles uncertain history. The end of a task's history may be lost when a backup is restored or
//! a standby is promoted. A call may then have run although the remaining history does not show its
//! start. Invariant: such a call runs only if its effect allows a repetition, or if a person
//! approves the call after the restore or the promotion.

use super::call_state::{CallState, OUTCOME_UNKNOWN_TEXT, Phase};
use super::decision::{Action, CallAnswer, Decision};
use super::item::{Item, Outcome};
use super::progress::Progress;
use super::request::{CallSpec, Warning};
use super::request_state::RequestState;
use super::status::RequestStatus;
use super::time::Time;
use super::verdict::Verdict;

/// Result text of a call that may have run in the lost part of the history.
pub(crate) const MAY_HAVE_RUN_TEXT: &str = "Whether this call has run is not known: the database was restored from a backup, or a \
    standby was promoted, after it was asked for.";

/// Reason for holding a `once` call that the policy allows. The model proposed the call after a
/// restore or a promotion, and the user has sent no message since the restore or the promotion.
pub(crate) const HISTORY_LOST_TEXT: &str = "The database was restored from a backup, or a standby was promoted, since the user's \
    last message: what this task has done meanwhile is not known.";

/// Returns the `seq` of the last uncertain item; 0 if no item is uncertain. The last uncertain item
/// is the last item whose time is at most `history_uncertain_until`. Every earlier item is also
/// uncertain, even if its own time is later: the clocks of two servers may differ.
#[must_use]
pub(crate) fn uncertain_seq(items: &[Item], history_uncertain_until: Option<Time>) -> i64 {
    let Some(history_uncertain_until) = history_uncertain_until else {
        return 0;
    };
    items
        .iter()
        .rev()
        .find(|item| item.at <= history_uncertain_until)
        .map_or(0, |item| item.seq)
}

impl Progress {
    /// Builds the state after the whole journal `items`. The items up to the time
    /// `history_uncertain_until` are uncertain.
    #[must_use]
    pub fn replay(items: &[Item], history_uncertain_until: Option<Time>) -> Self {
        let mut progress = Self {
            uncertain_seq: uncertain_seq(items, history_uncertain_until),
            ..Self::default()
        };
        for item in items {
            progress.apply(item);
        }
        progress
    }

    /// Sets `is_approval_certain` of each call that `decision` approves: true if the call now has
    /// all required approvals. `is_certain` is false for a decision that belongs to the uncertain
    /// history. Such a decision changes nothing.
    pub(super) fn mark_certain_approvals(&mut self, decision: &Decision, is_certain: bool) {
        for state in &mut self.calls {
            let answer = decision.decisions.get(&state.call.tool_call_id);
            let approves = |answer: &CallAnswer| {
                matches!(
                    answer.action,
                    Action::Approve | Action::Edit | Action::Retry
                )
            };
            if is_certain && answer.is_some_and(approves) {
                state.is_approval_certain = matches!(state.phase, Phase::Approved(_));
            }
        }
    }
}

impl CallState {
    /// Whether the call must not be repeated and may have run in the lost part of the history.
    /// Always false for a call that is a question to a person. A later approval by a person does
    /// not change the value.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        let question = self
            .judgement
            .as_ref()
            .is_some_and(|judgement| judgement.verdict == Verdict::Human);
        self.in_uncertain_history && !question && !self.effect.is_repeatable()
    }

    /// Whether uncertain history is the only reason why the call does not run now: the call may
    /// have run, and no person has approved it after the restore or the promotion.
    #[must_use]
    pub fn is_ready_but_uncertain(&self) -> bool {
        self.may_have_run()
            && !self.is_approval_certain
            && matches!(self.phase, Phase::Allowed | Phase::Approved(_))
    }

    /// Returns the result text for an unknown outcome. The text depends on whether the journal
    /// shows that the call was started.
    #[must_use]
    pub(super) fn unknown_outcome_text(&self) -> String {
        if self.attempts > 0 {
            OUTCOME_UNKNOWN_TEXT
        } else {
            MAY_HAVE_RUN_TEXT
        }
        .to_owned()
    }

    /// Returns the result text of a call that will not be attempted again. The text is the reason
    /// `why`, followed by the clause `ending`, for example `; it was not run.`. If the call may
    /// have run already, a sentence about the unknown outcome replaces `ending`.
    pub(super) fn not_run_text(&self, why: &str, ending: &str) -> String {
        if self.attempts > 0 || self.may_have_run() {
            format!("{why}. {}", self.unknown_outcome_text())
        } else {
            format!("{why}{ending}")
        }
    }

    /// Whether the call ends as `unknown` if it is canceled before it has a result. An approval
    /// after the restore or the promotion lets the call start, but does not tell whether the call
    /// ran before.
    pub(super) fn ends_unknown(&self) -> bool {
        let refused = matches!(
            self.phase,
            Phase::Settled(Outcome::Denied | Outcome::Invalid, _)
        );
        self.attempts > 0 || (self.may_have_run() && !refused)
    }
}

impl RequestState<'_> {
    /// Returns a warning for the approver if the request is open and `call` may have run in the
    /// lost part of the history. Returns `None` for a call that is safe to repeat, or whose stored
    /// warnings include this warning.
    #[must_use]
    pub fn restore_warning(&self, call: &CallSpec) -> Option<Warning> {
        let is_open = self.status == RequestStatus::Pending;
        let may_have_run = self.history_uncertain && is_open && !call.effect.is_repeatable();
        let mut codes = call.warnings.iter().map(|warning| &warning.code);
        (may_have_run && !codes.any(|code| code == MAY_ALREADY_HAVE_RUN))
            .then(Warning::may_already_have_run)
    }
}

impl Warning {
    /// Returns the warning for the approver of a call that may have run in the lost part of the
    /// history.
    #[must_use]
    pub fn may_already_have_run() -> Self {
        Self {
            code: MAY_ALREADY_HAVE_RUN.to_owned(),
            pointer: String::new(),
            detail: MAY_HAVE_RUN_TEXT.to_owned(),
        }
    }
}

pub(crate) const MAY_ALREADY_HAVE_RUN: &str = "may_already_have_run";
