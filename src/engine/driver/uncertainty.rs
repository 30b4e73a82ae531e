//! Holds allowed calls whose tool is in quarantine, or whose task's history is not fully known.

use super::verdict::{held_despite_permission, held_for_owner};
use super::{Driver, Stop};
use crate::store::ReadError;
use crate::task::call_state::CallState;
use crate::task::restore::HISTORY_LOST_TEXT;
use crate::task::verdict::{Judgement, Verdict};

/// The reason for holding a call while another task of its tree is unreadable.
const TREE_DAMAGED_REASON: &str = "The stored data of another task of this tree cannot be read: the effects of that task are not known.";

/// The reason for holding a call at a gate while the rows of earlier calls are unreadable.
const CALLS_UNREADABLE_REASON: &str =
    "The stored data of an earlier call of this tool cannot be read: it may have run.";

impl Driver<'_> {
    /// Holds an allowed call if its tool is in quarantine, or if a part of the tree's history is
    /// lost or unreadable. If a rule already holds a call of a tool in quarantine, adds the reason
    /// of the quarantine to the rule's reason. Returns any other judgement unchanged.
    pub(super) fn hold_if_uncertain(&self, state: &CallState, judgement: Judgement) -> Judgement {
        self.hold_if_quarantined(state, self.hold_if_history_lost(state, judgement))
    }

    /// Holds an allowed call if its tool is in quarantine (see `Quarantine`) and no person has
    /// approved the call. If a rule holds the call, adds the reason of the quarantine to the rule's
    /// reason. The person who decides must know of the earlier call that put the tool in
    /// quarantine.
    fn hold_if_quarantined(&self, state: &CallState, judgement: Judgement) -> Judgement {
        let quarantine = &self.session.own.progress.shared.quarantine;
        let reason = quarantine.reason(&state.call.name);
        let Some(reason) = reason.filter(|_| state.approval.is_none()) else {
            return judgement;
        };
        match judgement.verdict {
            Verdict::Allow => held_for_owner(None, reason),
            Verdict::Hold => judgement.with_reason(Some(&reason)),
            Verdict::Deny | Verdict::Invalid | Verdict::Human => judgement,
        }
    }

    /// Keeps a gate call held that a rule would now allow, for example after its tool has changed.
    /// Earlier calls at the gate may be the reason of the hold, and the rules do not know them. If
    /// a rule holds the call anew, adds the earlier reason.
    pub(super) fn keep_gate_hold(&self, state: &CallState, judgement: Judgement) -> Judgement {
        let earlier = state.judgement.as_ref();
        let Some(earlier) =
            earlier.filter(|it| self.agent.gate.is_some() && it.verdict == Verdict::Hold)
        else {
            return judgement;
        };
        match judgement.verdict {
            Verdict::Allow => earlier.clone(),
            Verdict::Hold => Judgement {
                offer: judgement.offer.clone().filter(|_| earlier.offer.is_some()),
                ..judgement.with_reason(earlier.reason.as_deref())
            },
            Verdict::Deny | Verdict::Invalid | Verdict::Human => judgement,
        }
    }

    /// Checks an allowed `once` call at a gate right before its start, and holds it if another call
    /// of its tool may have run (`quarantine_before_start`). The proposal was compared with earlier
    /// calls, but since then the call may have waited for a slot or for a person's login. Skips a
    /// call that a person has approved. Also skips a call that is not stored yet, because it was
    /// compared just before.
    ///
    /// # Errors
    /// As from `Engine::back_off_after_read`.
    pub(super) async fn hold_if_earlier_call_may_have_run(
        &self,
        state: &CallState,
        judgement: Judgement,
    ) -> Result<Judgement, Stop> {
        let (row, name) = (&self.session.own.row, &state.call.name);
        let is_stored = row.last_seq > 0;
        if !(self.agent.gate.is_some() && is_stored)
            || judgement.verdict != Verdict::Allow
            || state.approval.is_some()
            || self.effect_now(state).is_repeatable()
        {
            return Ok(judgement);
        }
        let reason = loop {
            match self.engine.quarantine_before_start(row, name).await {
                Ok(reason) => break reason,
                Err(ReadError::Unavailable) => {
                    self.engine.back_off_after_read(self.session).await?;
                }
                Err(error @ ReadError::Corrupt(_)) => {
                    tracing::error!(task = %row.task_id, %error, "earlier calls at a gate cannot be read; the call is held");
                    break Some(CALLS_UNREADABLE_REASON.to_owned());
                }
            }
        };
        Ok(match reason {
            Some(reason) => held_despite_permission(&self.engine.policy, judgement, reason),
            None => judgement,
        })
    }

    /// Holds an allowed `once` call (a call that must not be repeated) in two cases:
    /// - A part of the history before the call's turn is lost, so the model may be repeating a lost
    ///   call. This case lasts until the user's next message.
    /// - Another task of the tree is unreadable. That task may have run an equal call, or a person
    ///   may have rejected an equal call in it. Calls that start a sub-agent and calls that a
    ///   person approved are exempt from this case.
    fn hold_if_history_lost(&self, state: &CallState, judgement: Judgement) -> Judgement {
        let entry = self.offered(&state.call.name);
        let spec = entry.as_deref().map(|entry| &entry.spec);
        let repeatable = spec.is_some_and(|spec| spec.effect.is_repeatable());
        let shared = &self.session.own.progress.shared;
        let later = shared.message_uncertain && !state.in_uncertain_history;
        let alone = spec.is_some_and(|spec| !spec.kind.properties().starts_sub_agent)
            && state.approval.is_none();
        let damaged = alone && self.session.tree.is_damaged();
        if repeatable || !(later || damaged) || judgement.verdict != Verdict::Allow {
            return judgement;
        }
        let why = if later {
            HISTORY_LOST_TEXT
        } else {
            TREE_DAMAGED_REASON
        };
        held_for_owner(judgement.rule, why)
    }
}
