//! Allows a held call if a person's standing decision covers it. Invariant: a standing decision
//! covers calls of the rule that offered it, until this rule, the tool or the giver's rights
//! change. Each judgement of a call checks that none of the three has changed. If the judgement
//! right before the start of a call finds a change, the call is held, and people are asked. The
//! commit of the start also checks that the standing decision is not revoked, expired or used up.

use super::{Driver, Stop};
use crate::store::{CoverableCall, GrantRow, ReadError};
use crate::task::call_state::{CallState, Phase};
use crate::task::grant::{GrantEnd, GrantScope, Offer};
use crate::task::verdict::{Judgement, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JudgedAt {
    /// The model proposes the call.
    Proposal,
    /// The call is about to start. Only the standing decision that allowed the call at an earlier
    /// judgement can allow it again.
    Start,
}

impl Driver<'_> {
    /// Allows a held call if a standing decision covers it. Otherwise returns `judged`, the
    /// policy's judgement. A standing decision does not help if `hold_if_uncertain` holds even an
    /// allowed call. In this case, returns `judged`, and adds the reason of `hold_if_uncertain`.
    ///
    /// # Errors
    /// As from `Engine::back_off_after_read`.
    pub(super) async fn allow_if_granted(
        &self,
        state: &CallState,
        judged: Judgement,
        judged_at: JudgedAt,
    ) -> Result<Judgement, Stop> {
        let offer = judged.offer.as_deref();
        let Some(offer) = offer.filter(|_| judged.verdict == Verdict::Hold) else {
            return Ok(judged);
        };
        if state.approval.is_some() || (judged_at == JudgedAt::Start && state.grant().is_none()) {
            return Ok(judged);
        }
        let allowed = Judgement {
            rule: judged.rule.clone(),
            ..Judgement::new(Verdict::Allow)
        };
        let uncertain = self.hold_if_uncertain(state, allowed.clone());
        if uncertain.verdict != Verdict::Allow {
            return Ok(judged.with_reason(uncertain.reason.as_deref()));
        }
        let Some(grant) = self
            .find_covering_grant(state, &judged, offer, judged_at)
            .await?
        else {
            return Ok(judged);
        };
        Ok(Judgement {
            reason: Some(grant_reason(&grant)),
            grant_id: Some(grant.grant_id),
            ..allowed
        })
    }

    /// Returns the newest standing decision that covers the call; `None` if there is none. `held`
    /// is the policy's judgement of the call.
    async fn find_covering_grant(
        &self,
        state: &CallState,
        held: &Judgement,
        offer: &Offer,
        judged_at: JudgedAt,
    ) -> Result<Option<GrantRow>, Stop> {
        let (own, engine) = (&self.session.own, self.engine);
        if own.progress.shared.grants.is_empty() && !offer.scopes.contains(&GrantScope::Owner) {
            return Ok(None);
        }
        let call = CoverableCall {
            tenant: &own.row.tenant,
            owner: engine.roster.ids().id(own.row.user_id.as_str()),
            root_agent: own.row.root_agent(),
            root_task_id: own.row.root_task_id,
            basis: &offer.basis,
            used_grant: state.used_grant,
        };
        let found = loop {
            match engine.store.grants_covering(&call).await {
                Ok(found) => break found,
                Err(ReadError::Unavailable) => engine.back_off_after_read(self.session).await?,
                Err(error @ ReadError::Corrupt(_)) => {
                    tracing::error!(task = %own.task_id(), %error, "a standing decision cannot be read; it no longer counts");
                    break Vec::new();
                }
            }
        };
        let required_grant = state.grant().filter(|_| judged_at == JudgedAt::Start);
        let counts = |grant: &GrantRow| {
            required_grant.is_none_or(|id| id == grant.grant_id)
                && self.is_in_scope(grant)
                && self.is_by_an_approver(grant, held, state)
                && self.has_uses_left(grant, state)
        };
        Ok(found.into_iter().find(counts))
    }

    fn is_in_scope(&self, grant: &GrantRow) -> bool {
        let own = &self.session.own;
        match grant.scope {
            GrantScope::Task => {
                grant.root_task_id == own.row.root_task_id
                    && own.progress.shared.grants.contains(&grant.grant_id)
            }
            GrantScope::Owner => grant.agent == own.row.root_agent(),
        }
    }

    /// Whether the giver of a standing decision may approve the call. `held` is the policy's
    /// judgement of the call. A person may not let arguments run that they wrote themselves, where
    /// other people have to approve these arguments.
    fn is_by_an_approver(&self, grant: &GrantRow, held: &Judgement, state: &CallState) -> bool {
        let (row, edited) = (&self.session.own.row, state.edited.as_ref());
        held.terms.as_ref().is_some_and(|terms| {
            let votes = std::slice::from_ref(&grant.by);
            let roster = &self.engine.roster;
            roster.votes_suffice(&row.tenant, &row.user_id, &terms.approvers, votes, edited)
        })
    }

    /// Whether a standing decision is in force and has a use left for this call. A call takes a use
    /// at its first start under the standing decision, and needs no second use for a further
    /// attempt. One use is reserved for each earlier call of this task that the standing decision
    /// allows, that has not started, and that has not taken its use yet.
    fn has_uses_left(&self, grant: &GrantRow, state: &CallState) -> bool {
        let counted = |state: &CallState| state.used_grant == Some(grant.grant_id);
        match grant.ended() {
            None if !counted(state) => {}
            None | Some(GrantEnd::UsedUp) => return counted(state),
            Some(_) => return false,
        }
        let calls = self.session.own.progress.calls.iter();
        let earlier = calls
            .take_while(|other| other.call.tool_call_id != state.call.tool_call_id)
            .filter(|other| other.grant() == Some(grant.grant_id) && !counted(other))
            .filter(|other| other.phase == Phase::Allowed)
            .count();
        i64::try_from(earlier).is_ok_and(|earlier| grant.used + earlier < grant.uses)
    }
}

/// Returns the reason for allowing a call: the giver of the standing decision, the time at which
/// they gave it, and the time at which it expires (in UTC).
fn grant_reason(grant: &GrantRow) -> String {
    let now = Some(grant.now);
    let (until, given_at) = (
        grant.expires_at.to_minute(now),
        grant.created_at.to_minute(now),
    );
    format!(
        "{} allowed this until {until} (asked {given_at})",
        grant.by.by
    )
}
