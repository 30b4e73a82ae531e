//! A human's answer as the API shows it: a single answer, the decision of one call, or the decision
//! of a whole request.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::exact::Exact;
use super::wire_enum;
use crate::task::decision::{self, Action};
use crate::task::grant::{self, Grant};
use crate::task::id::CallId;
use crate::task::request_state::{Given, RequestState};
use crate::task::time::Time;
use crate::task::user::UserIds;

wire_enum! {
    /// The effect of an answer.
    DecisionAction as DecisionAction from Action, "snake_case" { Approve, Reject, Edit, Respond, Retry, Mixed }
}
wire_enum! {
    /// How the person proved who they are.
    WireDoor as Door from decision::Door, "snake_case" { Key, Session, Link, Slack }
}
wire_enum! {
    /// The tasks in which a standing decision counts: the tree of the call that was approved, until
    /// the user's next message; or every task of the same owner and root agent.
    WireGrantScope as GrantScope from grant::GrantScope, "snake_case" { Task, Owner }
}
wire_enum! {
    /// The task to cancel after a rejection, if any.
    ThenAction as ThenAction from decision::Then, "snake_case" { Continue, Cancel, CancelRoot }
}

/// A human's answer to a request; stored once, never changed.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Decision)]
pub(crate) struct WireDecision {
    /// The action of the answer; `mixed` when calls were decided differently.
    pub action: DecisionAction,
    /// The user who decided; the last, where several did.
    pub by: String,
    /// The user of the service key that acted for them.
    pub via: Option<String>,
    /// How the person proved who they are; null in a service without accounts, and in decisions
    /// from before this was recorded.
    pub door: Option<WireDoor>,
    /// The time of the answer.
    #[schema(format = DateTime)]
    pub at: String,
    /// The reason.
    pub reason: Option<String>,
    /// The effect that followed a rejection.
    pub then: Option<ThenAction>,
    /// The filled-in form (for credentials: the field names with null).
    pub response: Option<Value>,
    /// The result that was supplied.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Exact>,
    /// The standing decision that was given with the approval of a single call; those of several
    /// calls stand in `decisions`.
    pub remember: Option<Remembered>,
    /// The answer to each call, by `tool_call_id`.
    pub decisions: BTreeMap<String, CallDecision>,
}

/// A standing decision, given with the approval of one call: later calls that it covers run without
/// a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Remembered {
    /// Its id, as in `GET /v1/grants`.
    #[schema(format = Uuid)]
    pub grant_id: String,
    /// The tasks in which it counts.
    pub r#for: WireGrantScope,
    /// The end of its time.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// How many calls it lets through.
    pub uses: u32,
}

/// The answer to one call.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct CallDecision {
    /// The action of the answer.
    pub action: DecisionAction,
    /// The id of the user.
    pub by: String,
    /// The user of the service key that acted for them.
    pub via: Option<String>,
    /// How the person proved who they are; null in a service without accounts, and in decisions
    /// from before this was recorded.
    pub door: Option<WireDoor>,
    /// The time of the answer.
    #[schema(format = DateTime)]
    pub at: String,
    /// The reason.
    pub reason: Option<String>,
    /// The replaced arguments of an `edit`.
    #[schema(value_type = Option<Value>)]
    pub arguments: Option<Exact>,
    /// The supplied result of a `respond`.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Exact>,
    /// The standing decision that was given with an `approve`.
    pub remember: Option<Remembered>,
}

/// The approval of one user.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Approval)]
pub(crate) struct WireApproval {
    /// The id of the user.
    pub by: String,
    /// The time of the answer.
    #[schema(format = DateTime)]
    pub at: String,
}

impl WireDecision {
    /// A single answer, committed at `at`.
    #[must_use]
    pub(crate) fn of_answer(at: Time, answer: &decision::Decision) -> Self {
        let calls = answer.decisions.keys();
        Self {
            action: answer.action.into(),
            by: answer.by.clone(),
            via: answer.via.clone(),
            door: answer.door.map(Into::into),
            at: at.to_string(),
            reason: answer.reason.clone(),
            then: answer.then.map(Into::into),
            response: answer.response.clone(),
            result: answer.result_text.as_deref().map(Exact::value),
            remember: the_only(at, answer),
            decisions: calls
                .filter_map(|call| Some((call.to_string(), of_call(at, answer, *call)?)))
                .collect(),
        }
    }

    /// The decision of one call; `None` while it is undecided.
    #[must_use]
    pub(crate) fn of_call(state: &RequestState<'_>, call: CallId) -> Option<Self> {
        let (at, answer) = state.deciding(call)?;
        let given = answer.decisions.get(&call)?;
        let mut decision = Self::of_answer(*at, answer);
        decision.action = given.action.into();
        decision.reason = given.reason.clone().or(decision.reason);
        decision.decisions.retain(|id, _| *id == call.to_string());
        Some(decision)
    }

    /// The decision of a whole request; `None` unless it is decided.
    #[must_use]
    pub(crate) fn of_request(state: &RequestState<'_>) -> Option<Self> {
        let resolution = state.resolution()?;
        let (at, last) = resolution.last;
        let calls = resolution.calls.iter();
        Some(Self {
            action: resolution.action.into(),
            then: resolution.then.map(Into::into),
            decisions: calls
                .filter_map(|(call, (at, answer))| {
                    Some((call.to_string(), of_call(*at, answer, *call)?))
                })
                .collect(),
            ..Self::of_answer(*at, last)
        })
    }
}

fn of_call(at: Time, answer: &decision::Decision, call: CallId) -> Option<CallDecision> {
    answer.decisions.get(&call).map(|given| CallDecision {
        action: given.action.into(),
        by: answer.by.clone(),
        via: answer.via.clone(),
        door: answer.door.map(Into::into),
        at: at.to_string(),
        reason: given.reason.clone(),
        arguments: given
            .edit
            .as_ref()
            .map(|edit| Exact::value(&edit.arguments_text)),
        result: given.result_text.as_deref().map(Exact::value),
        remember: given.remember.as_deref().map(|grant| remembered(at, grant)),
    })
}

fn remembered(at: Time, grant: &Grant) -> Remembered {
    Remembered {
        grant_id: grant.grant_id.to_string(),
        r#for: grant.scope.into(),
        expires_at: (at + grant.expires_in).to_string(),
        uses: grant.uses,
    }
}

/// The standing decision of an answer that gave a single one.
fn the_only(at: Time, answer: &decision::Decision) -> Option<Remembered> {
    let mut given = answer.grants();
    match (given.next(), given.next()) {
        (Some((_, grant)), None) => Some(remembered(at, grant)),
        _ => None,
    }
}

/// The approvals of one call so far, where several are required.
#[must_use]
pub(crate) fn approvals(state: &RequestState<'_>, call: CallId, ids: UserIds) -> Vec<WireApproval> {
    let shown = |(at, answer): &Given| WireApproval {
        by: answer.by.clone(),
        at: at.to_string(),
    };
    state.approvals(call, ids).into_iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;
    use crate::task::decision::CallAnswer;
    use crate::task::status::RequestStatus;
    use serde_json::json;

    #[test]
    fn decision_shows_every_member() {
        let asked = sample::request().asked;
        let call = asked.pending_tool_calls[0].tool_call_id;
        let answer = decision::Decision {
            action: Action::Approve,
            by: "bob".into(),
            via: None,
            groups: Vec::new(),
            door: None,
            reason: None,
            then: None,
            response: None,
            result_text: None,
            decisions: [(call, CallAnswer::plain(Action::Approve))].into(),
            closes: false,
        };
        let answers = [(Time(0), answer)];
        let state = RequestState {
            asked: &asked,
            answers: &answers,
            status: RequestStatus::Resumed,
            expired: false,
        };
        let at = "1970-01-01T00:00:00.000000Z";
        let whole = WireDecision::of_request(&state);
        assert_eq!(
            serde_json::to_value(&whole).unwrap(),
            json!({"action": "approve", "by": "bob", "via": null, "door": null, "at": at, "reason": null, "then": null, "response": null,
                "result": null, "remember": null, "decisions": {call.to_string(): {"action": "approve", "by": "bob", "via": null, "door": null, "at": at,
                "reason": null, "arguments": null, "result": null, "remember": null}}})
        );
        assert_eq!(WireDecision::of_call(&state, call), whole);
    }
}
