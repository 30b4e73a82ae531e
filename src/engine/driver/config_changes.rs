//! Compares a call with the current configuration. The configuration may have changed since the
//! call was judged or started, or since the tool's server asked questions.

use super::Driver;
use crate::task::call_state::{CallState, Phase};
use crate::task::item::Fact;
use crate::task::tool_spec::Effect;
use crate::task::verdict::{Judgement, Verdict};

impl Driver<'_> {
    /// Returns the call's effect according to the current configuration. Returns `Once` if the tool
    /// is gone. Also returns `Once` if the tool has changed since the call was started, because a
    /// repetition would then be another call, perhaps to another target. Exception: if the effect
    /// was `ReadOnly` and still is, returns `ReadOnly` even if the tool has changed.
    pub(super) fn effect_now(&self, state: &CallState) -> Effect {
        let Some(entry) = self.offered(&state.call.name) else {
            return Effect::Once;
        };
        let id = state.call.tool_call_id;
        let reads = (state.effect, entry.spec.effect) == (Effect::ReadOnly, Effect::ReadOnly);
        if state.attempts == 0 || reads {
            return entry.spec.effect;
        }
        let mut items = self.session.own.items.iter().rev();
        let started = items.find_map(|item| {
            let Fact::ToolStarted {
                tool_call_id,
                digest,
                ..
            } = &item.fact
            else {
                return None;
            };
            (*tool_call_id == id).then_some(digest)
        });
        // The digest has the rule of the judgement before this start. Since then, `recheck` may
        // have journaled that another rule allows the call.
        let judged = items.find_map(|item| {
            let Fact::Judged {
                tool_call_id,
                judgement,
                ..
            } = &item.fact
            else {
                return None;
            };
            (*tool_call_id == id).then_some(judgement)
        });
        let rule = match &state.approval {
            Some(approval) => approval.rule.as_deref(),
            None => judged.and_then(|judged| judged.rule.as_deref()),
        };
        let text = state.arguments_text();
        let now = self.session.current_digest(&entry, id, text, rule);
        if started == Some(&now) {
            entry.spec.effect
        } else {
            Effect::Once
        }
    }

    /// Returns the rule of a call. If the configuration no longer has this rule, for example
    /// because it was renamed, returns the rule that decides about the call now. If no rule decides
    /// about the call now, returns the recorded rule.
    pub(super) async fn current_rule(&self, state: &CallState) -> Option<String> {
        let recorded = state.rule()?.to_owned();
        if self.engine.policy.terms(&recorded).is_some() {
            return Some(recorded);
        }
        let call = (state.call.name.as_str(), state.arguments_text());
        let judgement = self.engine.verdict(self.session, self.agent, call).await;
        judgement.rule.or(Some(recorded))
    }

    /// Whether the tool of a call has another definition than when its server asked the last
    /// questions. The answers and the server's state must then be sent nowhere, because the tool
    /// may have another target. The attempt that asked may have taken effect at the earlier target.
    pub(super) fn has_changed_since_questions(&self, state: &CallState) -> bool {
        if state.elicitation.is_none() {
            return false;
        }
        let entry = self.offered(&state.call.name);
        let spec = entry
            .as_deref()
            .map(|entry| entry.current_spec(self.session.task_id()));
        spec.as_deref().map(|spec| &spec.definition) != state.asking_definition.as_ref()
    }

    /// Whether a call whose questions were answered gets no further attempt, because its tool has
    /// changed since its server asked them. `now` is the present judgement of the call. People must
    /// then be asked about the outcome, because the attempt that asked may have taken effect.
    /// Returns `false` for a call that only reads. Also returns `false` if `now` holds the call, or
    /// allows a call that a person has approved: people then decide about a new attempt, and read
    /// that the call may have taken effect.
    pub(super) fn ends_after_questions(&self, state: &CallState, now: &Judgement) -> bool {
        let ends = match now.verdict {
            Verdict::Allow => state.approval.is_none(),
            Verdict::Deny | Verdict::Invalid => true,
            Verdict::Hold | Verdict::Human => false,
        };
        let may_repeat = state.effect == Effect::ReadOnly;
        let is_ready = matches!(state.phase, Phase::Allowed | Phase::Approved(_));
        ends && is_ready && !may_repeat && self.has_changed_since_questions(state)
    }
}
