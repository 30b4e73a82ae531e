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
    let examples = all();
    for (name, example) in examples.iter().filter_map(Value::as_object).flatten() {
        if let Some(schema) = schemas.get_mut(name) {
            put(schema, &["examples"], json!([example]));
        }
    }
}

/// Returns the examples of all components, in four objects by component name.
pub(super) fn all() -> [Value; 4] {
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
    let own = json!({
        "CreateTask": { "input": "Please refund 120 for order 17" },
        "SendMessage": { "input": "And tell the customer." },
        "ApproveDecision": { "action": "approve" },
        "RejectDecision": { "action": "reject", "then": "continue", "reason": "wrong customer" },
        "RespondDecision": { "action": "respond", "response": { "answer": "Yes, both orders." } },
        "RetryDecision": { "action": "retry" },
        "PerCallDecision": { "decisions": decisions },
        "ApproveBody": { "reason": "checked with the customer" },
        "RejectBody": { "then": "continue", "reason": "wrong customer" },
        "Problem": problem,
        "TaskList": { "tasks": [task], "next_cursor": null },
        "RequestList": { "requests": [request], "next_cursor": null, "open": 1, "open_more": false },
        "AgentTask": task,
        "InterventionRequest": request,
        "NewRemember": { "for": "task", "expires_in": "4h" },
        "GrantList": { "grants": [grant], "next_cursor": null },
    });
    let of_events = event_schema::examples().into_iter().collect();
    [own, gate(request), of_events, super::webhooks::examples()]
}

/// Returns the examples of the components of gates.
fn gate(request: InterventionRequest) -> Value {
    let settings = sample::settings();
    let call = WireGateCall::from_call(&sample::gate_call(), &sample::caller(), &settings);
    let held = WireGateCall {
        request: Some(Box::new(request)),
        ..call
    };
    json!({
        "NewGateCall": {
            "gate": "refunds", "tool": "refund_payment", "arguments": { "order": 17, "amount": 120 },
            "context": "The customer was charged twice."
        },
        "ReportGateOutcome": { "key": "sess-17:toolu_01AbC", "outcome": "succeeded", "content": "refund r-99" },
        "GateCall": held,
    })
}
