//! Judges each call by its arguments and the policy: when the model proposes the call, and again
//! right before the call starts. Invariant: the second judgement can only be stricter than the
//! first. A held call runs only after a person has approved it, or under a standing decision (an
//! earlier approval that also covers later calls, see `grants.rs`).

use super::grants::JudgedAt;
use super::verdict::{denied_again, other_tool, parse_arguments};
use super::{Driver, Stop};
use crate::task::call_state::{CallState, OUTCOME_UNKNOWN_TEXT};
use crate::task::id::CallId;
use crate::task::item::{Fact, FinishReason};
use crate::task::progress::LastMessage;
use crate::task::text::cut;
use crate::task::tool_spec::ToolKind;
use crate::task::verdict::{Judgement, Verdict};

/// The reason why a call is invalid if its arguments held a secret. The arguments of such a call
/// are stored redacted.
const SECRET_REASON: &str = "the arguments hold a value that is kept secret; it is not repeated here, and no call is run with it";

impl Driver<'_> {
    /// Journals the judgement of each of these calls.
    ///
    /// # Errors
    /// The [`Stop`] of a read or commit that failed.
    pub(crate) async fn judge_calls(&mut self, calls: &[CallId]) -> Result<(), Stop> {
        self.refresh_tools(calls).await?;
        for state in self.states_of(calls) {
            let judgement = self.judgement(&state, JudgedAt::Proposal).await?;
            let judgement = self.keep_gate_hold(&state, judgement);
            let entry = self.offered(&state.call.name);
            let spec = entry.as_deref().map(|entry| &entry.spec);
            let effect = self.effect_now(&state);
            let performer = spec.map_or(ToolKind::default(), |spec| spec.kind);
            self.session.push(Fact::Judged {
                tool_call_id: state.call.tool_call_id,
                judgement,
                effect,
                performer,
            });
        }
        Ok(())
    }

    /// Judges a call. Checks, in this order: the reasons of `invalid_reason`; whether a person has
    /// rejected an equal call; the arguments and the policy; the standing decisions; lost history;
    /// and the tool's quarantine.
    async fn judgement(&self, state: &CallState, judged_at: JudgedAt) -> Result<Judgement, Stop> {
        if let Some(reason) = self.invalid_reason(state) {
            return Ok(Judgement::invalid(reason));
        }
        if let Some(rejection) = self.earlier_rejection(state) {
            return Ok(rejection);
        }
        let call = (state.call.name.as_str(), state.arguments_text());
        let judgement = self.engine.verdict(self.session, self.agent, call).await;
        let judgement = self.allow_if_granted(state, judgement, judged_at).await?;
        Ok(self.hold_if_uncertain(state, judgement))
    }

    /// Denies those of `calls` that equal a call that a person has rejected. Returns whether there
    /// are such calls. A held call may wait long for its request, because the tree has the maximum
    /// number of open requests. Meanwhile, a person may reject an equal call of the tree. Exempts
    /// calls that a person has edited: that person asks for these arguments, not the model.
    pub(super) fn deny_rejected(&mut self, calls: &[CallId]) -> bool {
        if self.session.own.progress.shared.rejections.is_empty() {
            return false;
        }
        let mut denies = false;
        for state in self.states_of(calls) {
            let rejection = self.earlier_rejection(&state);
            if let Some(rejection) = rejection.filter(|_| state.edited.is_none()) {
                let id = state.call.tool_call_id;
                self.session.push_judgement(id, rejection);
                denies = true;
            }
        }
        denies
    }

    /// Returns a denial if a person has rejected an equal call, so that people are not asked again.
    /// Calls that a person approved, and calls of tools that ask a person, are exempt.
    fn earlier_rejection(&self, state: &CallState) -> Option<Judgement> {
        if state.approval.is_some() || state.performer.properties().asks_person {
            return None;
        }
        let arguments = parse_arguments(state.arguments_text())?;
        let rejections = &self.session.own.progress.shared.rejections;
        let rejected = rejections.find(&state.call.name, &arguments)?;
        Some(denied_again(rejected.call, rejected.reason.as_deref()))
    }

    /// Returns the reason why a call is invalid regardless of the policy; `None` if there is no
    /// such reason. The possible reasons: the turn was cut off, ended for an unknown reason or has
    /// too many calls; the arguments hold a secret; the tool does not exist; a sub-agent would
    /// exceed a limit.
    ///
    /// The maximum of calls applies only to the first judgement of a call. A lower maximum in a
    /// later configuration does not stop a turn whose calls have begun to run.
    fn invalid_reason(&self, state: &CallState) -> Option<String> {
        if let LastMessage::Model(turn) = &self.session.own.progress.last_message
            && turn.turn == state.turn
        {
            let max_calls = self.turn_limit(|limits| limits.max_calls);
            match turn.finish_reason {
                FinishReason::Length => {
                    return Some("the answer was cut off at its length".to_owned());
                }
                FinishReason::ContentFilter => {
                    return Some("the answer was cut off by a filter".to_owned());
                }
                FinishReason::Other => {
                    return Some("the answer ended for a reason that is not known".to_owned());
                }
                FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Gate => {}
            }
            let has_too_many =
                turn.tool_calls.len() > usize::try_from(max_calls).unwrap_or(usize::MAX);
            if has_too_many && state.judgement.is_none() {
                return Some(format!(
                    "a turn may have {max_calls} calls at most; none of these ran"
                ));
            }
        }
        if state.call.holds_secret {
            return Some(SECRET_REASON.to_owned());
        }
        let name = &state.call.name;
        let agent = self.agent;
        let named = agent.offered_tool(name).is_some()
            || agent.sub_agent(name).is_some()
            || agent.human_request_kind(name).is_some()
            || other_tool(agent, name).is_some();
        match (named, self.offered(name)) {
            (true, Some(_)) => self.sub_agent_limit(state),
            (true, None) => Some(format!("the tool {name:?} is gone from the configuration")),
            (false, _) => Some(format!("there is no tool {:?}", cut(name, 64))),
        }
    }

    /// Judges calls again right before they start. Returns `true` if one of the calls may no longer
    /// run (`stricter_judgement`). Also returns `true` in four cases: a call's effect has changed
    /// and no person has approved the call, the kind of a call's tool has changed before the first
    /// attempt, a rule now allows a call that a standing decision had allowed, or a call ends
    /// (`ends_after_questions`). After `true`, none of the calls may start, and the driver asks
    /// `next_step` again.
    ///
    /// # Errors
    /// The [`Stop`] of a read or commit that failed.
    pub(crate) async fn recheck(&mut self, calls: &[CallId]) -> Result<bool, Stop> {
        let (mut differs, mut ended) = (false, Vec::new());
        for state in self.states_of(calls) {
            let now = self.judgement(&state, JudgedAt::Start).await?;
            let now = self.hold_if_earlier_call_may_have_run(&state, now).await?;
            if self.ends_after_questions(&state, &now) {
                let text = "The tool asked the user a question, and has changed since.";
                ended.push((state.call.tool_call_id, text.to_owned()));
                continue;
            }
            let effect = self.effect_now(&state);
            // The kind of the tool decides who runs the call. After the first attempt, the kind
            // stays, because it also decides who reports the outcome of that attempt.
            let entry = self.offered(&state.call.name);
            let entry = entry.filter(|_| state.attempts == 0);
            let performer = entry.map_or(state.performer, |entry| entry.spec.kind);
            // An approval covers the effect that the approver saw in the request.
            let is_effect_approved = effect == state.effect || state.approval.is_some();
            // If a rule now allows the call by itself, the start must not use the standing
            // decision: if this decision has ended, the store refuses each commit of such a start.
            let is_unchanged =
                is_effect_approved && performer == state.performer && now.grant_id == state.grant();
            let changed = (!is_unchanged).then(|| now.clone());
            let Some(mut judgement) = self.stricter_judgement(&state, now).or(changed) else {
                continue;
            };
            let may_have_acted =
                state.unanswered_attempts() > 0 || self.has_changed_since_questions(&state);
            if judgement.verdict == Verdict::Hold && may_have_acted {
                // An earlier attempt got no answer, or asked a question at another target, so the
                // call may have taken effect. The reason says so, because a person now decides
                // whether to attempt the call again.
                judgement = judgement.with_reason(Some(OUTCOME_UNKNOWN_TEXT));
            }
            self.session.push(Fact::Judged {
                tool_call_id: state.call.tool_call_id,
                judgement,
                effect,
                performer,
            });
            differs = true;
        }
        differs |= !ended.is_empty();
        self.end_unattempted(ended).await?;
        Ok(differs)
    }

    /// Returns the judgement to journal if the call may no longer run, otherwise `None`. `now` is
    /// the present judgement of the call. A call without an approval may run only if `now` is
    /// `Allow`, and if the call was not held before. An approved call may no longer run if `now` is
    /// `Deny` or `Invalid`, if its tool has changed, or if its approvals no longer suffice.
    fn stricter_judgement(&self, state: &CallState, now: Judgement) -> Option<Judgement> {
        let Some(approval) = &state.approval else {
            if now.verdict != Verdict::Allow {
                return Some(now);
            }
            let before = state.judgement.as_ref();
            return before.filter(|it| it.verdict == Verdict::Hold).cloned();
        };
        if matches!(now.verdict, Verdict::Deny | Verdict::Invalid) {
            return Some(now);
        }
        let entry = self.offered(&state.call.name);
        let digest = entry.as_deref().map(|entry| {
            let (id, rule) = (state.call.tool_call_id, approval.rule.as_deref());
            self.session
                .current_digest(entry, id, state.arguments_text(), rule)
        });
        let is_tool_unchanged = digest.as_deref() == Some(approval.digest.as_str());
        let (tenant, owner) = (&self.session.own.row.tenant, &self.session.own.row.user_id);
        let edited = state.edited.as_ref().filter(|_| !approval.is_retry);
        let suffice = |approvers| {
            self.engine
                .roster
                .votes_suffice(tenant, owner, approvers, &approval.by, edited)
        };
        let are_approvals_valid = suffice(&approval.terms.approvers);
        let suffices = now
            .terms
            .as_ref()
            .is_none_or(|terms| suffice(&terms.approvers));
        if is_tool_unchanged && are_approvals_valid && suffices {
            return None;
        }
        let reason = match (is_tool_unchanged, are_approvals_valid) {
            (false, _) => Some(
                entry
                    .as_deref()
                    .and_then(|entry| entry.definition_change(self.session.task_id()))
                    .map_or_else(
                        || "The tool has changed since it was approved.".to_owned(),
                        |change| change.reason,
                    ),
            ),
            (true, false) => {
                Some("A person who approved this call has lost the right to approve it.".to_owned())
            }
            (true, true) => now.reason,
        };
        let terms = Some(now.terms.unwrap_or_else(|| approval.terms.clone()));
        Some(Judgement {
            rule: now.rule,
            reason,
            terms,
            ..Judgement::new(Verdict::Hold)
        })
    }
}
