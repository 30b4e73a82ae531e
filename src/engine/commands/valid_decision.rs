//! An answer that fits its request: the calls that it concerns, and the decision that it becomes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Refusal;
use super::decision_input::CallReply;
use crate::people::Caller;
use crate::people::may::required_of;
use crate::secret::Secret;
use crate::task::decision::{Action, CallAnswer, Decision, Edit, Then};
use crate::task::grant::{Grant, Remember};
use crate::task::id::CallId;
use crate::task::turn::Open;

/// An answer that `fitting` has checked against its request.
#[derive(Clone, Debug)]
pub(crate) struct ValidDecision {
    /// The answers by call; `None`: one answer for every call that is still undecided.
    pub(super) named: Option<BTreeMap<CallId, CallReply>>,
    /// If `named` is `None`, the action on every call; else the action that all answers share, or
    /// `Mixed`.
    pub(super) action: Action,
    pub(super) reason: Option<String>,
    pub(super) then: Option<Then>,
    /// The filled-in form, parsed and checked against the request's `form`.
    pub response: Option<Secret<Value>>,
    pub(super) result: Option<String>,
    /// The standing decision requested for all calls; used only if `named` is `None`.
    pub(super) remember: Option<Remember>,
}

/// An edit that the policy has judged.
#[derive(Clone, Debug)]
pub(crate) struct JudgedEdit {
    pub edit: Edit,
    /// Whether the edit approves the call with the new arguments.
    pub leave: bool,
}

impl ValidDecision {
    /// Returns the undecided calls that the answer concerns.
    ///
    /// # Errors
    /// `AlreadyDecided`. With answers by call: when a named call is decided, or the caller has
    /// already answered it. With one answer for all calls: when the caller has already answered
    /// every undecided call, or when the action is neither `Approve` nor `Retry` and the caller has
    /// already answered an undecided call.
    pub(super) fn targets(&self, caller: &Caller, open: &Open) -> Result<Vec<CallId>, Refusal> {
        let request = open.asked.request_id;
        let lost = |call: CallId| Refusal::AlreadyDecided {
            request,
            call: Some(call),
        };
        let own = |call: CallId| open.answered_by(call, &caller.user_id);
        if let Some(named) = &self.named {
            let taken = named
                .keys()
                .find(|call| open.decided.contains_key(call) || own(**call));
            return taken.map_or_else(
                || Ok(named.keys().copied().collect()),
                |call| Err(lost(*call)),
            );
        }
        let mut left: Vec<CallId> = open
            .asked
            .own_calls()
            .map(|call| call.tool_call_id)
            .collect();
        left.retain(|call| !open.decided.contains_key(call));
        let counted = matches!(self.action, Action::Approve | Action::Retry);
        match left.iter().find(|call| own(**call)) {
            Some(call) if !counted || left.iter().all(|call| own(*call)) => Err(lost(*call)),
            Some(_) | None => {
                left.retain(|call| !own(*call));
                if left.is_empty() {
                    Err(Refusal::AlreadyDecided {
                        request,
                        call: None,
                    })
                } else {
                    Ok(left)
                }
            }
        }
    }

    /// The edited arguments, by call.
    pub(super) fn edits(&self) -> impl Iterator<Item = (CallId, &str)> {
        let named = self.named.iter().flatten();
        named.filter_map(|(call, reply)| {
            let text = reply
                .arguments
                .as_deref()
                .filter(|_| reply.action == Action::Edit)?;
            Some((*call, text))
        })
    }

    fn reply(&self, call: CallId) -> CallReply {
        let named = self.named.as_ref().and_then(|named| named.get(&call));
        named.cloned().unwrap_or_else(|| CallReply {
            action: self.action,
            reason: self.reason.clone(),
            then: self.then,
            arguments: None,
            result: self.result.clone(),
            remember: self.remember,
        })
    }

    /// The decision for the journal. `shown` is the part of the response that every reader may see.
    pub(super) fn decision(
        &self,
        caller: &Caller,
        open: &Open,
        targets: &[CallId],
        edits: &BTreeMap<CallId, JudgedEdit>,
        granted: &BTreeMap<CallId, Grant>,
        shown: Option<Value>,
    ) -> Decision {
        let required = required_of(caller, &open.asked);
        let answer = |call: CallId| {
            let reply = self.reply(call);
            let judged = edits.get(&call);
            let leave = match reply.action {
                Action::Approve | Action::Retry => {
                    open.approved_with(call, &caller.user_id) >= required
                }
                Action::Edit => judged.is_some_and(|judged| judged.leave),
                Action::Reject | Action::Respond | Action::Mixed => false,
            };
            let edit = judged.map(|judged| judged.edit.clone());
            CallAnswer {
                action: reply.action,
                reason: reply.reason,
                edit,
                result_text: reply.result,
                leave,
                remember: granted.get(&call).cloned().map(Box::new),
            }
        };
        let decisions: BTreeMap<_, _> = targets.iter().map(|call| (*call, answer(*call))).collect();
        let (then, closes) = self.then(open, &decisions);
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

    /// The consequence of a rejection, and whether this answer closes the request.
    fn then(&self, open: &Open, decisions: &BTreeMap<CallId, CallAnswer>) -> (Option<Then>, bool) {
        let ends_task = self.then.is_some_and(|then| then != Then::Continue);
        let outcome = |call: CallId| {
            let now = decisions
                .get(&call)
                .filter(|answer| answer.settles())
                .map(|answer| answer.action);
            now.or_else(|| open.decided.get(&call).copied())
        };
        let outcomes: Vec<_> = open
            .asked
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
        let said = self.then.or(open.then);
        let then = if open.asked.kind.facts().decides_calls && all_rejected {
            Some(said.unwrap_or(open.asked.terms.on_reject))
        } else {
            rejects.then_some(Then::Continue)
        };
        (then, closes)
    }
}
