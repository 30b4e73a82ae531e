//! The examples of the components. Examples of responses come from the code that serializes real
//! responses.

use serde_json::{Map, Value, json};

use super::{event_schema, put, sample};
use crate::http::server::problem::Problem;
use crate::http::wire::gate::WireGateCall;
use crate::http::wire::grant::WireGrant;
use crate::http::wire::request::InterventionRequest;
use crate::http::wire::task::AgentTask;

pub(super) fn add(schemas: &mut Map<String, Value>) {
    for (name, example) in all() {
        if let Some(schema) = schemas.get_mut(name) {
            put(schema, &["examples"], json!([example]));
        }
    }
}

pub(super) fn all() -> Vec<(&'static str, Value)> {
    let (row, settings) = (sample::request(), sample::settings());
    let request = InterventionRequest::for_caller(&row, &sample::approver(), &settings);
    let task = AgentTask::from_row(&sample::task(), &[row], &sample::caller(), &settings);
    let call = request.tool_calls.first();
    let call = call.map(|call| call.tool_call_id.clone());
    let problem = Problem::invalid_at("/input", "a string")
        .document(&settings.public_url, sample::task().task_id.0);
    let reject = json!({ "action": "reject", "reason": "wrong customer" });
    let decisions = Map::from_iter([(call.unwrap_or_default(), reject)]);
    let grant = WireGrant::from_row(&sample::grant(), None);
    vec![
        (
            "CreateTask",
            json!({ "input": "Please refund 120 for order 17" }),
        ),
        ("SendMessage", json!({ "input": "And tell the customer." })),
        ("ApproveDecision", json!({ "action": "approve" })),
        (
            "RejectDecision",
            json!({ "action": "reject", "then": "continue", "reason": "wrong customer" }),
        ),
        (
            "RespondDecision",
            json!({ "action": "respond", "response": { "answer": "Yes, both orders." } }),
        ),
        ("RetryDecision", json!({ "action": "retry" })),
        ("PerCallDecision", json!({ "decisions": decisions })),
        (
            "ApproveBody",
            json!({ "reason": "checked with the customer" }),
        ),
        (
            "RejectBody",
            json!({ "then": "continue", "reason": "wrong customer" }),
        ),
        ("Problem", json!(problem)),
        ("TaskList", json!({ "tasks": [task], "next_cursor": null })),
        (
            "RequestList",
            json!({ "requests": [request], "next_cursor": null, "open": 1, "open_more": false }),
        ),
        ("AgentTask", json!(task)),
        ("InterventionRequest", json!(request)),
        ("NewRemember", json!({ "for": "task", "expires_in": "4h" })),
        (
            "GrantList",
            json!({ "grants": [grant], "next_cursor": null }),
        ),
    ]
    .into_iter()
    .chain(gate(&request))
    .chain(event_schema::examples())
    .chain(super::webhooks::examples())
    .collect()
}

fn gate(request: &InterventionRequest) -> [(&'static str, Value); 3] {
    let settings = sample::settings();
    let call = WireGateCall::from_call(&sample::gate_call(), &sample::caller(), &settings);
    let held = WireGateCall {
        request: Some(Box::new(request.clone())),
        ..call
    };
    [
        (
            "NewGateCall",
            json!({
                "gate": "refunds", "tool": "refund_payment", "arguments": { "order": 17, "amount": 120 },
                "context": "The customer was charged twice."
            }),
        ),
        (
            "ReportGateOutcome",
            json!({ "key": "sess-17:toolu_01AbC", "outcome": "succeeded", "content": "refund r-99" }),
        ),
        ("GateCall", json!(held)),
    ]
}
