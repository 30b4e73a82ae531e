//! A person's answer as the API shows it: a single answer, the decision of one call, or the
//! decision of a whole request.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::raw_json::RawJson;
use super::wire_enum;
use crate::task::decision::{self, Action};
use crate::task::grant::{self, Grant};
use crate::task::id::CallId;
use crate::task::request_state::{RequestState, TimedDecision};
use crate::task::time::Time;
use crate::task::user::UserIds;

wire_enum! {
    /// The effect of an answer: `approve` (run the call as shown), `reject` (do not run it), `edit`
    /// (run it with other arguments), `respond` (take the person's answer or result instead),
    /// `retry` (run a call of unknown outcome again) or `mixed` (the calls of the request were
    /// decided with different actions).
    DecisionAction as DecisionAction from Action, "snake_case" { Approve, Reject, Edit, Respond, Retry, Mixed }
}
wire_enum! {
    /// How the person proved who they are: `key` (an API key), `session` (the cookie of a browser
    /// session), `link` (a sealed link from a message) or `slack` (a user of Slack who is mapped to
    /// the person).
    WireDoor as Door from decision::Door, "snake_case" { Key, Session, Link, Slack }
}
wire_enum! {
    /// The tasks in which a standing decision (an approval that also lets later calls through)
    /// counts: `task` (the task tree of the approved call, until the user's next message) or
    /// `owner` (every task of the same owner and root agent).
    WireGrantScope as GrantScope from grant::GrantScope, "snake_case" { Task, Owner }
}
wire_enum! {
    /// The consequence of a rejection: `continue` (the model is told and goes on), `cancel` (the
    /// task that asked is canceled) or `cancel_root` (the root of the tree is canceled).
    ThenAction as ThenAction from decision::Consequence, "snake_case" { Continue, Cancel, CancelRoot }
}

/// A human's answer to a request; stored once, never changed.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Decision)]
pub(crate) struct WireDecision {
    /// The action of the answer; `mixed` when calls were decided differently.
    pub action: DecisionAction,
    /// The id of the user who decided; if several users decided, the id of the last.
    pub by: String,
    /// If a service answered for the approver with its own key, the id of that key's user; else
    /// null.
    pub via: Option<String>,
    /// How the person proved who they are; null in a service without accounts, and in decisions
    /// that were stored before this member existed.
    pub door: Option<WireDoor>,
    /// The time of the answer.
    #[schema(format = DateTime)]
    pub at: String,
    /// The approver's reason; null if they gave none.
    pub reason: Option<String>,
    /// The consequence of a rejection for the task; null without a rejection. If the answer left
    /// calls of the request undecided, this is the `then` that the answer named; null if it named
    /// none.
    pub then: Option<ThenAction>,
    /// The form as the person filled it in; null without a form. For credentials, every value is
    /// null.
    pub response: Option<Value>,
    /// The result that the person supplied with `respond`; null without such a result.
    #[schema(value_type = Option<Value>)]
    pub result: Option<RawJson>,
    /// If the answer gave exactly one standing decision, that decision; else null. For several
    /// standing decisions, see `decisions`.
    pub remember: Option<Remembered>,
    /// The answer to each call, by `tool_call_id`.
    pub decisions: BTreeMap<String, CallDecision>,
}

/// A standing decision, given with the approval of one call. The later calls that it covers run
/// without a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Remembered {
    /// The id of the standing decision, as in `GET /v1/grants`.
    #[schema(format = Uuid)]
    pub grant_id: String,
    /// The tasks in which the standing decision counts.
    pub r#for: WireGrantScope,
    /// The time at which the standing decision expires.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// The maximum number of calls that the standing decision lets through.
    pub uses: u32,
}

/// The answer to one call.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct CallDecision {
    /// The action on this call; never `mixed`.
    pub action: DecisionAction,
    /// The id of the user who answered.
    pub by: String,
    /// If a service answered for the approver with its own key, the id of that key's user; else
    /// null.
    pub via: Option<String>,
    /// How the person proved who they are; null in a service without accounts, and in decisions
    /// that were stored before this member existed.
    pub door: Option<WireDoor>,
    /// The time of the answer.
    #[schema(format = DateTime)]
    pub at: String,
    /// The approver's reason for this call; null if they gave none.
    pub reason: Option<String>,
    /// The new arguments of an `edit`; null for other actions.
    #[schema(value_type = Option<Value>)]
    pub arguments: Option<RawJson>,
    /// The result that a `respond` supplied; null for other actions.
    #[schema(value_type = Option<Value>)]
    pub result: Option<RawJson>,
    /// The standing decision that was given with an `approve`; null if none was given.
    pub remember: Option<Remembered>,
}

/// The approval of one user.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Approval)]
pub(crate) struct WireApproval {
    /// The id of the user who approved.
    pub by: String,
    /// The time of the approval.
    #[schema(format = DateTime)]
    pub at: String,
}

impl WireDecision {
    /// Returns the decision of a single answer, which was committed at the time `at`.
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
            result: answer.result_text.as_deref().map(RawJson::value),
            remember: only_grant(at, answer),
            decisions: calls
                .filter_map(|call| Some((call.to_string(), call_decision(at, answer, *call)?)))
                .collect(),
        }
    }

    /// Returns the decision of one call; `None` while the call is undecided.
    #[must_use]
    pub(crate) fn of_call(state: &RequestState<'_>, call: CallId) -> Option<Self> {
        let (at, answer) = state.deciding_answer(call)?;
        let call_answer = answer.decisions.get(&call)?;
        let mut decision = Self::of_answer(*at, answer);
        decision.action = call_answer.action.into();
        decision.reason = call_answer.reason.clone().or(decision.reason);
        let result = call_answer.result_text.as_deref().map(RawJson::value);
        decision.result = result.or(decision.result);
        // `then` is the effect of the rejections in the answer.
        let is_rejected = call_answer.action == Action::Reject;
        decision.then = decision.then.filter(|_| is_rejected);
        // An answer may give a standing decision for each of several calls. The decision of a call
        // keeps only the standing decision for this call.
        let grant = call_answer.remember.as_deref();
        decision.remember = grant.map(|grant| remembered(*at, grant));
        decision.decisions.retain(|id, _| *id == call.to_string());
        Some(decision)
    }

    /// Returns the decision of a whole request; `None` if the request is not decided.
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
                    Some((call.to_string(), call_decision(*at, answer, *call)?))
                })
                .collect(),
            ..Self::of_answer(*at, last)
        })
    }
}

fn call_decision(at: Time, answer: &decision::Decision, call: CallId) -> Option<CallDecision> {
    let call_answer = answer.decisions.get(&call)?;
    let (edit, grant) = (call_answer.edit.as_ref(), call_answer.remember.as_deref());
    Some(CallDecision {
        action: call_answer.action.into(),
        by: answer.by.clone(),
        via: answer.via.clone(),
        door: answer.door.map(Into::into),
        at: at.to_string(),
        reason: call_answer.reason.clone(),
        arguments: edit.map(|edit| RawJson::value(&edit.arguments_text)),
        result: call_answer.result_text.as_deref().map(RawJson::value),
        remember: grant.map(|grant| remembered(at, grant)),
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

fn only_grant(at: Time, answer: &decision::Decision) -> Option<Remembered> {
    if let [grant] = answer.grants()[..] {
        Some(remembered(at, grant))
    } else {
        None
    }
}

/// Returns the approvals that a call has so far; empty if one approval is enough.
#[must_use]
pub(crate) fn approvals(state: &RequestState<'_>, call: CallId, ids: UserIds) -> Vec<WireApproval> {
    let shown = |(at, answer): &TimedDecision| WireApproval {
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
    use crate::task::request::RequestSpec;
    use crate::task::status::RequestStatus;
    use serde_json::json;
    use std::time::Duration;

    fn resumed<'s>(spec: &'s RequestSpec, answers: &'s [TimedDecision]) -> RequestState<'s> {
        RequestState {
            spec,
            answers,
            status: RequestStatus::Resumed,
            expired: false,
            history_uncertain: false,
        }
    }

    #[test]
    fn decision_shows_every_member() {
        let asked = sample::request().spec;
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
        let state = resumed(&asked, &answers);
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

    #[test]
    fn decision_of_a_call_shows_the_standing_decision_about_this_call_alone() {
        let asked = sample::several(2).spec;
        let [first, second] =
            [0, 1].map(|index: usize| asked.pending_tool_calls[index].tool_call_id);
        let given = sample::grant();
        let grant = |uses: u32| Grant {
            grant_id: given.grant_id,
            scope: given.scope,
            expires_in: Duration::from_hours(1),
            uses,
            tool: given.tool.clone(),
            rule: given.rule.clone(),
            basis: given.basis.clone(),
        };
        let uses_shown = |grants: [Option<u32>; 2]| {
            let (at, mut answer) =
                sample::answer("bob", Action::Approve, &[first, second], true).unwrap();
            for (call, uses) in [first, second].into_iter().zip(grants) {
                let call_answer = answer.decisions.get_mut(&call).unwrap();
                call_answer.remember = uses.map(|uses| Box::new(grant(uses)));
            }
            let answers = [(at, answer)];
            let state = resumed(&asked, &answers);
            [first, second].map(|call| {
                let decision = WireDecision::of_call(&state, call).unwrap();
                decision.remember.map(|remembered| remembered.uses)
            })
        };
        for grants in [[Some(3), None], [Some(3), Some(4)], [None, None]] {
            assert_eq!(uses_shown(grants), grants);
        }
    }

    /// An answer may hold a result for each call, but holds one `then` for all its rejections.
    #[test]
    fn decision_of_a_call_shows_the_result_and_the_effect_of_this_call_alone() {
        let asked = sample::several(2).spec;
        let [first, second] =
            [0, 1].map(|index: usize| asked.pending_tool_calls[index].tool_call_id);
        let (at, mut answer) =
            sample::answer("bob", Action::Reject, &[first, second], true).unwrap();
        answer.then = Some(decision::Consequence::Continue);
        let answer_to_first = answer.decisions.get_mut(&first).unwrap();
        answer_to_first.action = Action::Respond;
        answer_to_first.result_text = Some("\"by hand\"".to_owned());
        let answers = [(at, answer)];
        let state = resumed(&asked, &answers);
        let shown = [first, second].map(|call| {
            let decision = WireDecision::of_call(&state, call);
            let decision = serde_json::to_value(decision).unwrap();
            (decision["result"].clone(), decision["then"].clone())
        });
        let (result, then) = (json!("by hand"), json!("continue"));
        let null = Value::Null;
        assert_eq!(shown, [(result, null.clone()), (null, then)]);
    }
}
