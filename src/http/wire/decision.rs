//! A human's answer, as it is shown: one answer (in the journal), what an answered request amounts to, and what one of
//! its calls does.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::exact::Exact;
use super::wire_enum;
use crate::store::RequestRow;
use crate::task::decision::{self, Action};
use crate::task::id::CallId;
use crate::task::status::RequestStatus;
use crate::task::time::Time;
use crate::task::user::{UserId, UserIds};

wire_enum! {
    /// What an answer does.
    DecisionAction as DecisionAction from Action, "snake_case" { Approve, Reject, Edit, Respond, Retry, Mixed }
}
wire_enum! {
    /// What follows a rejection.
    ThenAction as ThenAction from decision::Then, "snake_case" { Continue, Cancel, CancelRoot }
}

/// A human's answer to a request; stored once, never changed.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Decision)]
pub(crate) struct WireDecision {
    /// What was answered; `mixed` when calls were decided differently.
    pub action: DecisionAction,
    /// Who (the last one, when several decided).
    pub by: String,
    /// The user of the key that spoke for him.
    pub via: Option<String>,
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
    /// The reason given.
    pub reason: Option<String>,
    /// What took effect after a rejection.
    pub then: Option<ThenAction>,
    /// What was filled in (of credentials: the field names with null).
    pub response: Option<Value>,
    /// The result that was supplied.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Exact>,
    /// The answer to each call, by `tool_call_id`.
    pub decisions: BTreeMap<String, CallDecision>,
}

/// What was answered about one call.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct CallDecision {
    /// What was answered.
    pub action: DecisionAction,
    /// Who.
    pub by: String,
    /// The user of the key that spoke for him.
    pub via: Option<String>,
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
    /// The reason given.
    pub reason: Option<String>,
    /// The replacement, of an edit.
    #[schema(value_type = Option<Value>)]
    pub arguments: Option<Exact>,
    /// The human's result, of a respond.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Exact>,
}

/// Somebody approved.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Approval)]
pub(crate) struct WireApproval {
    /// Who.
    pub by: String,
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
}

/// One answer, as it was given.
#[must_use]
pub(crate) fn one(at: Time, answer: &decision::Decision) -> WireDecision {
    WireDecision {
        action: answer.action.into(),
        by: answer.by.clone(),
        via: answer.via.clone(),
        at: at.to_string(),
        reason: answer.reason.clone(),
        then: answer.then.map(Into::into),
        response: answer.response.clone(),
        result: answer.result_text.as_deref().map(Exact::value),
        decisions: answer
            .decisions
            .keys()
            .filter_map(|call| Some((call.to_string(), of_call(at, answer, *call)?)))
            .collect(),
    }
}

fn of_call(at: Time, answer: &decision::Decision, call: CallId) -> Option<CallDecision> {
    answer.decisions.get(&call).map(|said| CallDecision {
        action: said.action.into(),
        by: answer.by.clone(),
        via: answer.via.clone(),
        at: at.to_string(),
        reason: said.reason.clone(),
        arguments: said.edit.as_ref().map(|edit| Exact::value(&edit.arguments_text)),
        result: said.result_text.as_deref().map(Exact::value),
    })
}

/// The answer that decided a call, if it is decided: the last one of the people its terms ask for, or whatever is not
/// an approval. Where the request is over, fewer were enough (without accounts one is): then the last one that was given.
fn deciding(row: &RequestRow, call: CallId) -> Option<&(Time, decision::Decision)> {
    let required = row.asked.required().max(1) as usize;
    let mut people = BTreeSet::new();
    let found = row.answers.iter().find(|(_, answer)| {
        let Some(said) = answer.decisions.get(&call) else { return false };
        // By the strictest comparison: where another setting counts more people, the answer itself settles its call.
        people.insert(UserIds::Folded.key(&answer.by));
        said.settles() || people.len() >= required
    });
    let over = row.answers.iter().any(|(_, answer)| answer.closes);
    let last = || row.answers.iter().rfind(|(_, answer)| over && answer.decisions.contains_key(&call));
    found.or_else(last)
}

/// The decision of one call, as soon as it is decided.
#[must_use]
pub(crate) fn of_one_call(row: &RequestRow, call: CallId) -> Option<WireDecision> {
    let (at, answer) = deciding(row, call)?;
    let said = answer.decisions.get(&call)?;
    let mut decision = one(*at, answer);
    decision.action = said.action.into();
    decision.reason = said.reason.clone().or(decision.reason);
    decision.decisions.retain(|id, _| *id == call.to_string());
    Some(decision)
}

/// The approvals of one call so far, where several are required.
#[must_use]
pub(crate) fn approvals(row: &RequestRow, call: CallId, ids: UserIds) -> Vec<WireApproval> {
    if row.asked.required() < 2 {
        return Vec::new();
    }
    let approved = |answer: &decision::Decision| {
        answer.decisions.get(&call).is_some_and(|said| matches!(said.action, Action::Approve | Action::Retry))
    };
    let mut people = BTreeSet::new();
    let given = row.answers.iter().filter(|(_, answer)| approved(answer) && people.insert(ids.key(&answer.by)));
    given.map(|(at, answer)| WireApproval { by: answer.by.clone(), at: at.to_string() }).collect()
}

/// What the answers amount to, once the last call is decided.
#[must_use]
pub(crate) fn merged(row: &RequestRow) -> Option<WireDecision> {
    match row.status {
        RequestStatus::Responded | RequestStatus::Resumed => {}
        RequestStatus::Pending | RequestStatus::Expired | RequestStatus::Withdrawn => return None,
    }
    let (at, last) = row.answers.last()?;
    let mut whole = one(*at, last);
    whole.then = last.then.map(Into::into);
    whole.decisions = row
        .asked
        .own_calls()
        .filter_map(|call| {
            let (at, answer) = deciding(row, call.tool_call_id)?;
            Some((call.tool_call_id.to_string(), of_call(*at, answer, call.tool_call_id)?))
        })
        .collect();
    let rejected = whole.decisions.values().any(|decision| decision.action == DecisionAction::Reject);
    whole.then = whole.then.or(rejected.then_some(ThenAction::Continue));
    let mut actions = whole.decisions.values().map(|decision| decision.action);
    if let Some(first) = actions.next() {
        whole.action = if actions.all(|action| action == first) { first } else { DecisionAction::Mixed };
    }
    Some(whole)
}

/// What somebody who comes too late is told, about that call where it is about one: what he said himself, or else what
/// decided it, or what the request amounts to.
#[must_use]
pub(crate) fn first(row: &RequestRow, user: &UserId, call: Option<CallId>) -> Option<WireDecision> {
    let own = row
        .answers
        .iter()
        .find(|(_, answer)| user.is(&answer.by) && call.is_none_or(|call| answer.decisions.contains_key(&call)));
    let said = || own.or(row.answers.last()).map(|(at, answer)| one(*at, answer));
    match call {
        Some(call) => own.map(|(at, answer)| one(*at, answer)).or_else(|| of_one_call(row, call)).or_else(said),
        None => merged(row).or_else(said),
    }
}

/// Whether `user` has something left to answer: a call that is not decided and that he has not answered.
#[must_use]
pub(crate) fn open_for(row: &RequestRow, user: &UserId) -> bool {
    row.asked.own_calls().any(|call| {
        let answered =
            |answer: &decision::Decision| user.is(&answer.by) && answer.decisions.contains_key(&call.tool_call_id);
        deciding(row, call.tool_call_id).is_none() && !row.answers.iter().any(|(_, answer)| answered(answer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;
    use crate::task::decision::CallAnswer;
    use serde_json::json;

    fn answer(by: &str, calls: &[(CallId, Action)]) -> decision::Decision {
        let said = CallAnswer::plain;
        decision::Decision {
            action: calls[0].1,
            by: by.into(),
            via: None,
            groups: Vec::new(),
            reason: None,
            then: None,
            response: None,
            result_text: None,
            decisions: calls.iter().map(|(call, action)| (*call, said(*action))).collect(),
            closes: false,
        }
    }

    #[test]
    fn one_answer_shows_every_member() {
        let mut row = sample::request();
        let call = row.asked.pending_tool_calls[0].tool_call_id;
        row.answers = vec![(Time(0), answer("bob", &[(call, Action::Approve)]))];
        row.status = RequestStatus::Resumed;
        let at = "1970-01-01T00:00:00.000000Z";
        assert_eq!(
            serde_json::to_value(merged(&row)).unwrap(),
            json!({"action": "approve", "by": "bob", "via": null, "at": at, "reason": null, "then": null, "response": null,
                "result": null, "decisions": {call.to_string(): {"action": "approve", "by": "bob", "via": null, "at": at,
                "reason": null, "arguments": null, "result": null}}})
        );
        assert_eq!(of_one_call(&row, call), merged(&row));
        assert!(approvals(&row, call, UserIds::Folded).is_empty());
    }

    #[test]
    fn what_closed_a_request_decided_its_calls_whoever_was_asked_for() {
        let mut row = sample::request();
        row.asked.terms.approvers.required = 2;
        let call = row.asked.pending_tool_calls[0].tool_call_id;
        let closing = decision::Decision { closes: true, ..answer("local", &[(call, Action::Approve)]) };
        row.answers = vec![(Time(0), closing)];
        row.status = RequestStatus::Responded;
        assert_eq!(of_one_call(&row, call).unwrap().by, "local");
        assert_eq!(merged(&row).unwrap().decisions.len(), 1);
    }

    #[test]
    fn calls_decided_differently_are_mixed() {
        let mut row = sample::request();
        let first = row.asked.pending_tool_calls[0].clone();
        let mut second = first.clone();
        second.tool_call_id = CallId(uuid::Uuid::from_u128(77));
        row.asked.pending_tool_calls.push(second.clone());
        row.answers = vec![(Time(0), answer("bob", &[(first.tool_call_id, Action::Approve)]))];
        assert_eq!(merged(&row), None);
        assert!(open_for(&row, &"bob".into()));
        assert!(of_one_call(&row, first.tool_call_id).is_some());
        assert!(of_one_call(&row, second.tool_call_id).is_none());
        row.answers.push((Time(1), answer("eve", &[(second.tool_call_id, Action::Reject)])));
        row.status = RequestStatus::Responded;
        let whole = merged(&row).unwrap();
        assert_eq!((whole.action, whole.by.as_str()), (DecisionAction::Mixed, "eve"));
        assert_eq!(whole.decisions.len(), 2);
    }

    #[test]
    fn where_two_are_required_one_approval_decides_nothing() {
        let mut row = sample::request();
        row.asked.terms.approvers.required = 2;
        let call = row.asked.pending_tool_calls[0].tool_call_id;
        row.answers = vec![(Time(0), answer("bob", &[(call, Action::Approve)]))];
        assert_eq!(of_one_call(&row, call), None);
        assert_eq!(approvals(&row, call, UserIds::Folded).len(), 1);
        row.answers.push((Time(1), answer("BOB", &[(call, Action::Approve)])));
        assert_eq!(of_one_call(&row, call), None, "one person, spelt in two ways before ids were folded");
        assert_eq!([UserIds::Folded, UserIds::Exact].map(|ids| approvals(&row, call, ids).len()), [1, 2]);
        row.answers.pop();
        assert!(!open_for(&row, &"bob".into()) && open_for(&row, &"eve".into()));
        assert_eq!(first(&row, &"eve".into(), None).unwrap().by, "bob");
        row.answers.push((Time(1), answer("eve", &[(call, Action::Approve)])));
        assert_eq!(of_one_call(&row, call).unwrap().by, "eve");
    }
}
