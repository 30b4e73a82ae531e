//! A brief: the short form of a request, for messages and for the event stream of the inbox. A
//! brief is built from the request's row alone, so every reader gets the same brief.
//!
//! Invariant: of the texts that an agent or a tool wrote, a brief contains only the arguments that
//! the operator's `summary` templates show. A brief names a tool only if the configuration has a
//! tool of this name.

use serde::Serialize;
use utoipa::ToSchema;

use super::decision::{DecisionAction, WireDecision, WireDoor};
use super::request::{WireApprovers, WireEffect, WireRequestStatus, message, url};
use crate::http::Settings;
use crate::store::RequestRow;
use crate::task::request::{CallSpec, RequestKind};

const MAX_SUMMARIES: usize = 3;

/// A request in brief. Of the texts that an agent or a tool wrote, a brief contains only the
/// arguments that the operator's `summary` templates show. A brief names a tool only if the
/// configuration has a tool of this name.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct RequestBrief {
    /// The id of the request, never reused.
    #[schema(format = Uuid)]
    pub request_id: String,
    /// The id of the root task of the request's tree.
    #[schema(format = Uuid)]
    pub root_task_id: String,
    /// The task that asked; it may be a sub-agent's task.
    #[schema(format = Uuid)]
    pub task_id: String,
    /// The caller's name for the conversation, as in the task.
    pub session_id: String,
    /// The names of the agents from the root to the task that asked.
    pub agent_path: Vec<String>,
    /// The id of the user who owns the tree.
    pub user_id: String,
    /// The kind of question. The kind determines the actions that an answer may take.
    pub kind: RequestKind,
    /// `pending` while the request waits for a decision; any other status says how the request
    /// ended.
    pub status: WireRequestStatus,
    /// The rule's own message, or "Human intervention required."
    pub message: String,
    /// The names of the tools whose calls the request decides, without repetitions. A name that the
    /// configuration does not have is left out, because an agent can make up such a name at a gate
    /// with `other_tools: judge`.
    pub tools: Vec<String>,
    /// The number of calls that the request decides.
    pub calls: usize,
    /// The different values of `effect` among the calls that the request decides.
    pub effects: Vec<WireEffect>,
    /// The number of warnings about the calls that the request decides.
    pub warnings: usize,
    /// The summaries of at most the first three calls. If a call starts a sub-agent, its summary is
    /// the sub-agent's name. If the call's tool has no `summary` template, the summary is the
    /// tool's name. The list omits a call whose tool is not in `tools`. The list is null in a
    /// webhook whose receiver is configured without `summaries: true`.
    pub summaries: Option<Vec<String>>,
    /// The people who may decide, and how many of them have to approve.
    pub approvers: WireApprovers,
    /// The number of approvals so far; 0 if one approval is enough. If the request decides several
    /// calls, the undecided call with the fewest approvals gives the number. Once all calls are
    /// decided, the call with the most approvals gives the number.
    pub approvals: usize,
    /// The time at which the request was opened.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The deadline, after which answers are refused; null if there is no deadline.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// The address of the page on which a person decides the request.
    #[schema(format = "uri")]
    pub url: String,
    /// The decision; null if the request is not decided.
    pub decision: Option<BriefDecision>,
}

/// A decision in brief, without reasons, arguments and results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct BriefDecision {
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
}

impl RequestBrief {
    #[must_use]
    pub(crate) fn from_row(row: &RequestRow, settings: &Settings) -> Self {
        let (asked, state) = (&row.spec, row.state());
        let own: Vec<&CallSpec> = asked.own_calls().collect();
        let name = |call: &&CallSpec| call.operator_name().map(str::to_owned);
        let warned = |call: &&CallSpec| {
            call.warnings.len() + usize::from(state.restore_warning(call).is_some())
        };
        Self {
            request_id: asked.request_id.to_string(),
            root_task_id: row.root_task_id.to_string(),
            task_id: row.task_id.to_string(),
            session_id: row.session_id.clone(),
            agent_path: row.agent_path.clone(),
            user_id: row.owner.clone(),
            kind: asked.kind,
            status: row.status.into(),
            message: message(asked.operator_message()),
            tools: distinct(own.iter().filter_map(name)),
            calls: own.len(),
            effects: distinct(own.iter().map(|call| call.effect.into())),
            warnings: own.iter().map(warned).sum(),
            summaries: Some(summaries(&own)),
            approvers: (&asked.terms.approvers).into(),
            approvals: state.approval_count(settings.roster.ids()),
            created_at: row.created_at.to_string(),
            expires_at: row.expires_at.map(|at| at.to_string()),
            url: url(asked.request_id, settings),
            decision: WireDecision::of_request(&state).map(Into::into),
        }
    }

    /// Removes the summaries, for a receiver that is configured without `summaries: true`.
    #[must_use]
    pub(crate) fn without_summaries(self) -> Self {
        Self {
            summaries: None,
            ..self
        }
    }
}

impl From<WireDecision> for BriefDecision {
    fn from(decision: WireDecision) -> Self {
        Self {
            action: decision.action,
            by: decision.by,
            via: decision.via,
            door: decision.door,
            at: decision.at,
        }
    }
}

fn summaries(own: &[&CallSpec]) -> Vec<String> {
    let first = own.iter().take(MAX_SUMMARIES);
    first
        .filter_map(|call| call.operator_summary().map(str::to_owned))
        .collect()
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for each in all {
        if !once.contains(&each) {
            once.push(each);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;
    use crate::task::decision::Action;
    use crate::task::id::CallId;
    use crate::task::operator_text::OperatorText;
    use crate::task::status::RequestStatus;
    use serde_json::{Value, json};
    use uuid::Uuid;

    fn brief(row: &RequestRow) -> Value {
        serde_json::to_value(RequestBrief::from_row(row, &sample::settings())).unwrap()
    }

    #[test]
    fn brief_has_every_member_of_an_open_request() {
        let row = sample::request();
        let id = row.spec.request_id;
        assert_eq!(
            brief(&row),
            json!({
                "request_id": id, "root_task_id": row.root_task_id, "task_id": row.task_id,
                "session_id": "desk-7", "agent_path": ["billing"], "user_id": "alice",
                "kind": "approval", "status": "pending", "message": "Human intervention required.",
                "tools": ["refund_payment"], "calls": 1, "effects": ["once"], "warnings": 0,
                "summaries": ["Refund 120 for order 17"],
                "approvers": {"owner": false, "users": [], "groups": ["finance"], "required": 1},
                "approvals": 0, "created_at": "2026-11-03T09:30:00.250000Z",
                "expires_at": "2026-11-04T09:30:00.250000Z",
                "url": format!("http://127.0.0.1:8080/resume/{id}"), "decision": null
            })
        );
        let outside = RequestBrief::from_row(&row, &sample::settings()).without_summaries();
        assert_eq!(outside.summaries, None);
    }

    #[test]
    fn brief_lists_each_tool_once_and_three_summaries_of_many_calls() {
        let mut row = sample::request();
        let first = row.spec.pending_tool_calls[0].clone();
        for number in 0..4 {
            let mut call = first.clone();
            call.tool_call_id = CallId(Uuid::from_u128(number));
            call.name = format!("tool_{}", number % 2);
            call.summary = format!("Call {number}");
            row.spec.pending_tool_calls.push(call);
        }
        let mut context = first;
        context.needs_decision = false;
        context.name = "context".into();
        row.spec.pending_tool_calls.push(context);
        let brief = brief(&row);
        assert_eq!(
            brief["tools"],
            json!(["refund_payment", "tool_0", "tool_1"])
        );
        assert_eq!(
            (&brief["calls"], &brief["effects"]),
            (&json!(5), &json!(["once"]))
        );
        assert_eq!(
            brief["summaries"],
            json!(["Refund 120 for order 17", "Call 0", "Call 1"])
        );
    }

    #[test]
    fn brief_has_no_text_of_the_agent_and_no_argument_outside_the_summaries() {
        let mut row = sample::request();
        row.spec.question = Some("canary question".into());
        row.spec.details = Some(json!({"context": "canary details"}));
        row.spec.elicitation = Some(Box::default());
        row.spec.terms.message = Some("files asks: canary message".into());
        let call = &mut row.spec.pending_tool_calls[0];
        call.arguments_text = r#"{"note":"canary argument"}"#.into();
        call.target = "POST http://payments.internal/canary".into();
        call.reason = Some("canary reason".into());
        let call = call.tool_call_id;
        let mut answer = sample::answer("bob", Action::Approve, &[call], true).unwrap();
        answer.1.reason = Some("canary comment".into());
        row.answers.push(answer);
        row.status = RequestStatus::Resumed;
        let brief = brief(&row);
        assert!(!brief.to_string().contains("canary"), "{brief}");
        assert_eq!(
            brief["decision"],
            json!({"action": "approve", "by": "bob", "via": null, "door": null,
                "at": "2026-11-03T09:31:00.000000Z"})
        );
    }

    #[test]
    fn brief_has_no_name_and_no_summary_that_an_agent_made_up() {
        let mut row = sample::request();
        let listed = row.spec.pending_tool_calls[0].clone();
        for (number, text) in [OperatorText::Nothing, OperatorText::Name]
            .into_iter()
            .enumerate()
        {
            let mut call = listed.clone();
            call.name = ["https://evil.example/approve", "analyst"][number].into();
            call.summary = "canary task".into();
            call.operator_text = text;
            row.spec.pending_tool_calls.push(call);
        }
        let brief = brief(&row);
        assert_eq!(brief["tools"], json!(["refund_payment", "analyst"]));
        let summaries = json!(["Refund 120 for order 17", "analyst"]);
        assert_eq!(
            (&brief["summaries"], &brief["calls"]),
            (&summaries, &json!(3))
        );
    }

    #[test]
    fn approvals_of_a_brief_are_those_of_the_undecided_call_that_has_the_fewest() {
        let mut row = sample::request();
        row.spec.terms.approvers.required = 2;
        let mut second = row.spec.pending_tool_calls[0].clone();
        second.tool_call_id = CallId(Uuid::from_u128(7));
        row.spec.pending_tool_calls.push(second);
        let ids = [
            row.spec.pending_tool_calls[0].tool_call_id,
            CallId(Uuid::from_u128(7)),
        ];
        let approves = |who, calls: &[CallId]| sample::answer(who, Action::Approve, calls, false);
        row.answers.extend(approves("bob", &ids[..1]));
        assert_eq!(brief(&row)["approvals"], 0);
        row.answers.extend(approves("carol", &ids));
        assert_eq!(brief(&row)["approvals"], 1, "the first call has both");
    }

    #[test]
    fn warning_of_a_restored_history_counts() {
        let mut row = sample::request();
        row.history_uncertain = true;
        assert_eq!(brief(&row)["warnings"], 1);
    }
}
