//! Handles the standing decisions that a person gives with an approval. Invariant: a standing
//! decision is stored only if the rule still offers it for the call, and only with a scope and a
//! lifetime within this offer.

use std::collections::BTreeMap;

use super::Refusal;
use super::decide::Decider;
use super::valid_decision::ValidDecision;
use crate::agent::Agent;
use crate::engine::session::TaskSession;
use crate::people::Caller;
use crate::people::authorization::required_approvals;
use crate::task::decision::{Action, Door};
use crate::task::grant::{Grant, GrantRequest};
use crate::task::id::{CallId, GrantId};
use crate::task::progress::RequestProgress;
use crate::task::request::{CallSpec, RequestSpec};
use crate::task::units::format_duration;

/// Checks whether the standing decision `requested` fits a call. Returns `None` if so. Otherwise
/// returns a JSON pointer, relative to the person's answer about the call, and the value that is
/// expected there.
pub(super) fn grant_misfit(
    caller: &Caller,
    spec: &RequestSpec,
    call: &CallSpec,
    action: Action,
    requested: GrantRequest,
) -> Option<(&'static str, String)> {
    if action != Action::Approve {
        return Some(("/remember", "only beside an approve".to_owned()));
    }
    let offer = call
        .offer
        .as_deref()
        .filter(|_| spec.kind.properties().decides_calls && required_approvals(caller, spec) < 2);
    let Some(offer) = offer else {
        let detail = "nothing: the rule does not offer to remember an approval of this call";
        return Some(("/remember", detail.to_owned()));
    };
    if !offer.scopes.contains(&requested.scope) {
        let words: Vec<_> = offer.scopes.iter().map(|it| it.as_str()).collect();
        return Some(("/remember/for", format!("one of: {}", words.join(", "))));
    }
    (requested.expires_in > offer.most).then(|| {
        let most = format_duration(offer.most);
        ("/remember/expires_in", format!("{most} at most"))
    })
}

/// Refuses a standing decision through a link or through Slack. There, a person sees a single
/// question, but a standing decision also approves later calls.
///
/// # Errors
/// `Forbidden` if the caller came by a link or through Slack.
pub(super) fn check_door(caller: &Caller) -> Result<(), Refusal> {
    match caller.door {
        None | Some(Door::Key | Door::Session) => Ok(()),
        Some(Door::Link | Door::Slack) => Err(Refusal::Forbidden(
            "A link cannot give a standing decision: sign in, or decide without `remember`.".into(),
        )),
    }
}

impl Decider<'_> {
    /// Returns the standing decisions that an answer gives, by call. Calls with the same basis,
    /// scope and lifetime share one standing decision, so that its limit of uses holds for all of
    /// these calls.
    ///
    /// # Errors
    /// `Invalid` if the rule no longer offers the standing decision that the request shows for a
    /// call.
    pub(super) async fn requested_grants(
        self,
        session: &TaskSession,
        agent: Option<&Agent>,
        open: &RequestProgress,
        decision: &ValidDecision,
        targets: &[CallId],
    ) -> Result<BTreeMap<CallId, Grant>, Refusal> {
        let mut grants = BTreeMap::new();
        for call in targets {
            let Some((requested, place)) = decision.requested_grant(*call) else {
                continue;
            };
            let state = session.own.progress.call(*call);
            let spec = open.spec.own_calls().find(|own| own.tool_call_id == *call);
            let (Some(agent), Some(state), Some(spec)) = (agent, state, spec) else {
                return Err(Refusal::internal("a decided call is not in its request"));
            };
            let judged = (state.call.name.as_str(), state.arguments_text());
            let now = self.engine.verdict(session, agent, judged).await;
            let shown_basis = spec.offer.as_deref().map(|offer| offer.basis.as_str());
            let offer = now
                .offer
                .filter(|offer| Some(offer.basis.as_str()) == shown_basis);
            let (Some(offer), Some(rule)) = (offer, now.rule) else {
                let detail = "nothing: the rule does not offer it for this call any more";
                return Err(Refusal::invalid(place, detail));
            };
            let new = Grant {
                grant_id: GrantId(self.engine.ids.fresh()),
                scope: requested.scope,
                expires_in: requested.expires_in,
                uses: offer.uses,
                tool: spec.name.clone(),
                rule,
                basis: offer.basis,
            };
            let equals_new = |grant: &&Grant| {
                **grant
                    == Grant {
                        grant_id: grant.grant_id,
                        ..new.clone()
                    }
            };
            let earlier = grants.values().find(equals_new).cloned();
            grants.insert(*call, earlier.unwrap_or(new));
        }
        Ok(grants)
    }
}

impl ValidDecision {
    /// Returns the standing decision that the answer requests for a call, and the JSON pointer to
    /// the member `remember` that requests it.
    fn requested_grant(&self, call: CallId) -> Option<(GrantRequest, String)> {
        match &self.by_call {
            Some(by_call) => {
                let requested = by_call.get(&call)?.remember?;
                Some((requested, format!("/decisions/{call}/remember")))
            }
            None => Some((self.remember?, "/remember".to_owned())),
        }
    }
}
