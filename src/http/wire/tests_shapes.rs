//! Tests that each item type has the expected members, and fits its component of the OpenAPI
//! document.

use serde_json::{Value, json};
use uuid::Uuid;

use super::event::{EventData, name};
use super::item::AgentTaskItem;
use super::request::InterventionRequest;
use crate::http::openapi::event_schema::EVENT_COMPONENTS;
use crate::http::openapi::{self, sample};
use crate::store::Event;
use crate::task::decision::{Action, CallAnswer, Consequence, Decision, Door};
use crate::task::failure::Failure;
use crate::task::id::{CallId, ChangeId, RequestId, TaskId};
use crate::task::item::{
    CloseReason, Fact, FinishReason, Item, Outcome, Part, PartType, ToolCall, ToolResult, Turn,
    Usage,
};
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::time::Time;
use crate::task::tool_spec::{Effect, ToolKind};
use crate::task::verdict::{Judgement, Terms, Verdict};

fn ids() -> (TaskId, RequestId, CallId) {
    (
        TaskId(Uuid::from_u128(1)),
        RequestId(Uuid::from_u128(2)),
        CallId(Uuid::from_u128(3)),
    )
}

fn result() -> ToolResult {
    let name = "refund".into();
    ToolResult {
        tool_call_id: ids().2,
        name,
        outcome: Outcome::Succeeded,
        content: "done".into(),
        http_status: Some(200),
        suspect: false,
        reported: false,
    }
}

fn turn() -> Turn {
    Turn {
        turn: 1,
        text: Some("I refund it.".into()),
        tool_calls: vec![ToolCall {
            tool_call_id: ids().2,
            name: "refund".into(),
            arguments_text: "{}".into(),
            holds_secret: false,
            provider_id: "call_0".into(),
        }],
        finish_reason: FinishReason::ToolCalls,
        usage: Usage {
            prompt_tokens: 1,
            completion_tokens: 2,
            total_tokens: 3,
        },
        raw: json!({ "thinking": "private" }),
    }
}

fn decision() -> Decision {
    let answer = CallAnswer {
        reason: Some("no".into()),
        ..CallAnswer::plain(Action::Reject)
    };
    Decision {
        action: Action::Reject,
        by: "bob".into(),
        via: Some("web".into()),
        reason: Some("no".into()),
        then: Some(Consequence::Continue),
        response: None,
        result_text: None,
        groups: vec!["private".into()],
        door: Some(Door::Session),
        decisions: [(ids().2, answer)].into(),
        closes: true,
    }
}

/// A fact, and the expected item of this fact: its `role`, and the members that are specific to its
/// type.
type Shape = (Fact, &'static str, Value);

fn facts() -> Vec<Shape> {
    [message_facts(), request_facts(), tool_facts()].concat()
}

fn message_facts() -> Vec<Shape> {
    let call = ids().2;
    let judgement = Judgement {
        rule: Some("large".into()),
        terms: Some(Terms::default()),
        repeats: Some(call),
        ..Judgement::new(Verdict::Hold)
    };
    vec![
        (
            Fact::TaskStatus {
                status: TaskStatus::Failed,
                error: Some(Failure::limit("max_calls")),
                output: None,
            },
            "system",
            json!({"status": "Failed", "output": null, "error": {
                "type": "http://127.0.0.1:8080/problems/limit_reached", "title": "A limit was reached", "status": 500,
                "detail": Failure::limit("max_calls").detail, "instance": null, "code": "limit_reached",
                "limit": "max_calls"}}),
        ),
        (
            Fact::UserMessage {
                items: vec![Part {
                    content_type: PartType::Text,
                    content: "hi".into(),
                }],
                user_context: None,
                by: "alice".into(),
                groups: vec!["private".into()],
            },
            "user",
            json!({"items": [{"content_type": "text", "content": "hi"}], "user_context": null, "by": "alice"}),
        ),
        (
            Fact::AssistantMessage(turn()),
            "assistant",
            json!({"turn": 1, "text": "I refund it.", "finish_reason": "tool_calls",
                "tool_calls": [{"tool_call_id": call, "name": "refund", "arguments_text": "{}"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}),
        ),
        (
            Fact::Judged {
                tool_call_id: call,
                judgement,
                effect: Effect::Once,
                performer: ToolKind::External,
            },
            "system",
            json!({"tool_call_id": call, "verdict": "hold", "rule": "large", "reason": null, "grant_id": null}),
        ),
    ]
}

fn request_facts() -> Vec<Shape> {
    let (_, request, call) = ids();
    let at = "1970-01-01T00:00:00.000000Z";
    let asked = sample::request().spec;
    let shown_call =
        serde_json::to_value(super::request::call_as_opened(&asked.pending_tool_calls[0])).unwrap();
    let decided = json!({"action": "reject", "by": "bob", "via": "web", "door": "session", "at": at, "reason": "no", "arguments": null,
        "result": null, "remember": null});
    vec![
        (
            Fact::InterventionRequested(asked.clone()),
            "assistant",
            json!({"request_id": asked.request_id, "kind": "approval", "pending_tool_calls": [shown_call]}),
        ),
        (
            Fact::Decision {
                request_id: request,
                decision: decision(),
            },
            "human",
            json!({"request_id": request, "decision": {"action": "reject", "by": "bob", "via": "web", "door": "session", "at": at,
                "reason": "no", "then": "continue", "response": null, "result": null, "remember": null,
                "decisions": {call.to_string(): decided}}}),
        ),
        (
            Fact::RequestClosed {
                request_id: request,
                status: RequestStatus::Withdrawn,
                reason: CloseReason::ToolChanged,
            },
            "system",
            json!({"request_id": request, "status": "withdrawn", "reason": "tool_changed"}),
        ),
    ]
}

fn tool_facts() -> Vec<Shape> {
    let (task, _, call) = ids();
    let result_members = json!({"tool_call_id": call, "name": "refund", "outcome": "succeeded", "content": "done", "http_status": 200, "reported": false});
    vec![
        (
            Fact::ToolStarted {
                tool_call_id: call,
                name: "refund".into(),
                digest: "sha256:x".into(),
                attempt: 1,
                timeout_ms: 30_000,
                replica: "private".into(),
                grant: None,
            },
            "system",
            json!({"tool_call_id": call, "name": "refund", "digest": "sha256:x", "attempt": 1}),
        ),
        (Fact::ToolResult(result()), "tool", result_members.clone()),
        (Fact::LateResult(result()), "system", result_members),
        (
            Fact::SubAgentStarted {
                tool_call_id: call,
                child_task_id: task,
                agent: "analyst".into(),
            },
            "system",
            json!({"tool_call_id": call, "child_task_id": task, "agent": "analyst"}),
        ),
    ]
}

#[test]
fn every_item_shows_its_members_and_no_more_and_fits_its_component() {
    let document = openapi::document();
    let any = openapi::tests::validator(&document, "AgentTaskItem");
    let (task, _, _) = ids();
    let facts = facts();
    assert_eq!(facts.len(), 11);
    for (fact, role, members) in facts {
        let name = fact.type_name();
        let item = Item {
            seq: 4,
            at: Time(0),
            fact,
        };
        let shown =
            serde_json::to_value(AgentTaskItem::from_item(task, &item, &sample::settings()))
                .unwrap();
        let mut expected = json!({"task_id": task, "seq": 4, "type": name, "role": role, "at": "1970-01-01T00:00:00.000000Z"});
        expected
            .as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        assert_eq!(shown, expected, "{name}");
        assert!(
            any.is_valid(&shown),
            "{name}: {:?}",
            any.iter_errors(&shown)
                .map(|e| e.to_string())
                .collect::<Vec<_>>()
        );
    }
}

#[test]
fn every_event_is_its_item_in_its_place_and_fits_the_component_of_its_name() {
    let document = openapi::document();
    let (any, streamed) = (
        openapi::tests::validator(&document, "TaskEvent"),
        openapi::tests::validator(&document, "StreamedEvent"),
    );
    let (task, _, _) = ids();
    let (settings, agent_path) = (
        sample::settings(),
        vec!["boss".to_owned(), "clerk".to_owned()],
    );
    let request =
        InterventionRequest::for_caller(&sample::request(), &sample::approver(), &settings);
    for (fact, _, _) in facts() {
        let event = Event {
            number: 9,
            task_id: task,
            of_root: false,
            agent_path: agent_path.clone(),
            change: ChangeId(Uuid::from_u128(5)),
            item: Item {
                seq: 4,
                at: Time(0),
                fact,
            },
        };
        let about = event.item.fact.request_id().map(|_| request.clone());
        let item =
            serde_json::to_value(AgentTaskItem::from_item(task, &event.item, &settings)).unwrap();
        let text = serde_json::to_string(&EventData::from_event(
            TaskId(Uuid::from_u128(6)),
            &event,
            about,
            &settings,
        ))
        .unwrap();
        let shown: Value = serde_json::from_str(&text).unwrap();
        let mut expected = item;
        expected["event"] = json!(name(&event));
        expected["agent_path"] = json!(agent_path);
        expected["root_task_id"] = json!(Uuid::from_u128(6));
        if event.item.fact.request_id().is_some() {
            let mut whole = serde_json::to_value(&request).unwrap();
            whole
                .as_object_mut()
                .unwrap()
                .retain(|name, _| name != "allowed_actions" && name != "can_decide");
            expected["request"] = whole;
        }
        assert_eq!(shown, expected);
        let component = EVENT_COMPONENTS
            .iter()
            .find(|(known, _)| *known == name(&event))
            .unwrap()
            .1;
        for validator in [
            &any,
            &streamed,
            &openapi::tests::validator(&document, component),
        ] {
            let found: Vec<_> = validator
                .iter_errors(&shown)
                .map(|error| error.to_string())
                .collect();
            assert!(found.is_empty(), "{}: {found:?}", name(&event));
        }
    }
}

#[test]
fn status_name_tells_task_from_sub_agent_and_marks_the_first() {
    let named = |status, of_root, seq| {
        let fact = Fact::TaskStatus {
            status,
            error: None,
            output: None,
        };
        let change = ChangeId(Uuid::from_u128(5));
        let item = Item {
            seq,
            at: Time(0),
            fact,
        };
        name(&Event {
            number: 1,
            task_id: ids().0,
            of_root,
            agent_path: Vec::new(),
            change,
            item,
        })
    };
    let statuses = [
        (TaskStatus::Running, "resumed"),
        (TaskStatus::Paused, "paused"),
        (TaskStatus::Completed, "completed"),
        (TaskStatus::Failed, "failed"),
        (TaskStatus::Canceled, "canceled"),
    ];
    for (of_root, who) in [(true, "task"), (false, "sub_agent")] {
        assert_eq!(
            named(TaskStatus::Running, of_root, 1),
            format!("{who}.created")
        );
        for (status, word) in statuses {
            assert_eq!(named(status, of_root, 2), format!("{who}.{word}"));
        }
    }
}
