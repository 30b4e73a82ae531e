//! Finds the calls that a checked answer concerns, and builds the decision for the journal. The
//! answer was checked against its request before (see `decision_input.rs`).

use std::collections::BTreeMap;

use serde_json::Value;

use super::Refusal;
use super::decision_input::CallReply;
use crate::people::authorization::{Approver, required_approvals};
use crate::secret::Secret;
use crate::task::decision::{Action, CallAnswer, Consequence, Decision, Edit};
use crate::task::grant::{Grant, GrantRequest};
use crate::task::id::CallId;
use crate::task::progress::RequestProgress;
use crate::task::request_state::RequestState;

#[derive(Clone, Debug)]
pub(crate) struct ValidDecision {
    /// The answer to each call that the person named. `None` for a single answer to every call that
    /// is still undecided.
    pub(super) by_call: Option<BTreeMap<CallId, CallReply>>,
    /// The action that all answers share; `Mixed` if the answers in `by_call` have different
    /// actions.
    pub(super) action: Action,
    pub(super) reason: Option<String>,
    pub(super) then: Option<Consequence>,
    /// The filled-in form, parsed and checked against the request's `form`.
    pub response: Option<Secret<Value>>,
    pub(super) result: Option<String>,
    /// The standing decision requested for all calls; `None` for an answer by call.
    pub(super) remember: Option<GrantRequest>,
}

#[derive(Clone, Debug)]
pub(crate) struct JudgedEdit {
    pub edit: Edit,
    pub approves: bool,
}

impl ValidDecision {
    /// Returns the undecided calls that the answer concerns.
    ///
    /// # Errors
    /// `AlreadyDecided` in three cases:
    /// - The answer names a call that is decided, or that the caller has already approved.
    /// - The answer is for the whole request, and each call is decided or was already approved by
    ///   the caller.
    /// - The answer is for the whole request, its action is neither `Approve` nor `Retry`, and the
    ///   caller has already approved one of the undecided calls.
    pub(super) fn targets(
        &self,
        approver: Approver<'_>,
        open: &RequestProgress,
    ) -> Result<Vec<CallId>, Refusal> {
        let caller = approver.caller();
        let request = open.spec.request_id;
        let already_decided = |call: CallId| Refusal::AlreadyDecided {
            request,
            call: Some(call),
        };
        let has_answered = |call: CallId| open.has_approved(call, &caller.user_id);
        if let Some(by_call) = &self.by_call {
            let conflicting = by_call
                .keys()
                .find(|call| open.decided.contains_key(call) || has_answered(**call));
            return conflicting.map_or_else(
                || Ok(by_call.keys().copied().collect()),
                |call| Err(already_decided(*call)),
            );
        }
        let mut undecided: Vec<CallId> = open
            .spec
            .own_calls()
            .map(|call| call.tool_call_id)
            .collect();
        undecided.retain(|call| !open.decided.contains_key(call));
        let is_approval = matches!(self.action, Action::Approve | Action::Retry);
        match undecided.iter().find(|call| has_answered(**call)) {
            Some(call) if !is_approval || undecided.iter().all(|call| has_answered(*call)) => {
                Err(already_decided(*call))
            }
            Some(_) | None => {
                undecided.retain(|call| !has_answered(*call));
                if undecided.is_empty() {
                    Err(Refusal::AlreadyDecided {
                        request,
                        call: None,
                    })
                } else {
                    Ok(undecided)
                }
            }
        }
    }

    /// Returns the first call that this answer names and that an earlier answer has decided. `None`
    /// if there is no such call, or if this answer is for the whole request.
    pub(super) fn decided_call(&self, state: &RequestState<'_>) -> Option<CallId> {
        let mut named = self.by_call.iter().flatten().map(|(call, _)| *call);
        named.find(|call| state.deciding_answer(*call).is_some())
    }

    pub(super) fn edits(&self) -> impl Iterator<Item = (CallId, &str)> {
        let by_call = self.by_call.iter().flatten();
        by_call.filter_map(|(call, reply)| {
            let text = reply
                .arguments
                .as_deref()
                .filter(|_| reply.action == Action::Edit)?;
            Some((*call, text))
        })
    }

    fn reply(&self, call: CallId) -> CallReply {
        let by_call = self.by_call.as_ref().and_then(|by_call| by_call.get(&call));
        by_call.cloned().unwrap_or_else(|| CallReply {
            action: self.action,
            reason: self.reason.clone(),
            then: self.then,
            arguments: None,
            result: self.result.clone(),
            remember: self.remember,
        })
    }

    /// Returns the decision for the journal. `shown` is the person's `response` without the values
    /// of credentials, because readers of the task see the decision.
    pub(super) fn decision(
        &self,
        approver: Approver<'_>,
        open: &RequestProgress,
        targets: &[CallId],
        edits: &BTreeMap<CallId, JudgedEdit>,
        grants: &BTreeMap<CallId, Grant>,
        shown: Option<Value>,
    ) -> Decision {
        let caller = approver.caller();
        let required = required_approvals(caller, &open.spec);
        let answer = |call: CallId| {
            let reply = self.reply(call);
            let judged = edits.get(&call);
            let edit = judged.map(|judged| judged.edit.clone());
            let mut answer = CallAnswer {
                action: reply.action,
                reason: reply.reason,
                edit,
                result_text: reply.result,
                leave: false,
                remember: grants.get(&call).cloned().map(Box::new),
            };
            answer.leave = match answer.action {
                Action::Approve | Action::Retry => {
                    answer.decides(open.approvals_including(call, &caller.user_id), required)
                }
                Action::Edit => judged.is_some_and(|judged| judged.approves),
                Action::Reject | Action::Respond | Action::Mixed => false,
            };
            answer
        };
        let decisions: BTreeMap<_, _> = targets.iter().map(|call| (*call, answer(*call))).collect();
        let (then, closes) = self.consequence(open, &decisions);
        Decision {
            action: self.action,
            by: caller.user_id.to_string(),
            via: caller.via.clone(),
            groups: caller
                .via
                .as_ref()
                .map(|_| caller.groups.clone())
                .unwrap_or_default(),
            door: caller.door,
            reason: self.reason.clone(),
            then,
            response: shown,
            result_text: self.result.clone(),
            decisions,
            closes,
        }
    }

    /// Returns the consequence of rejections, and whether the answer closes the request. The
    /// consequence is the value of the first case that applies:
    /// - The answer demands the end of the task, or leaves the request open: the answer's `then`.
    /// - The answer closes an approval request whose calls are all rejected: the answer's `then`,
    ///   else the `then` of an earlier answer, else the request's `on_reject`.
    /// - The answer rejects a call: `Continue`.
    /// - Otherwise: `None`.
    fn consequence(
        &self,
        open: &RequestProgress,
        decisions: &BTreeMap<CallId, CallAnswer>,
    ) -> (Option<Consequence>, bool) {
        let ends_task = self.then.is_some_and(|then| then != Consequence::Continue);
        let outcome = |call: CallId| {
            let now = decisions
                .get(&call)
                .filter(|answer| answer.settles())
                .map(|answer| answer.action);
            now.or_else(|| open.decided.get(&call).copied())
        };
        let outcomes: Vec<_> = open
            .spec
            .own_calls()
            .map(|call| outcome(call.tool_call_id))
            .collect();
        let closes = ends_task || outcomes.iter().all(Option::is_some);
        if ends_task || !closes {
            return (self.then, closes);
        }
        let rejects = decisions
            .values()
            .any(|answer| answer.action == Action::Reject);
        let all_rejected = outcomes
            .iter()
            .all(|outcome| *outcome == Some(Action::Reject));
        let named_consequence = self.then.or(open.then);
        let then = if open.spec.kind.properties().decides_calls && all_rejected {
            Some(named_consequence.unwrap_or(open.spec.terms.on_reject))
        } else {
            rejects.then_some(Consequence::Continue)
        };
        (then, closes)
    }
}
