//! The links of the OpenAPI document. A link leads from an operation's response to an operation
//! that takes an id or a cursor from this response.

use serde_json::{Map, Value, json};

use super::put;

/// Returns the links by operation. `statuses` lists the responses that have the links. `links` maps
/// each target operation to its parameters, with the runtime expressions of their values.
fn links() -> Value {
    let task = json!({ "task_id": "$response.body#/task_id" });
    let request = json!({ "request_id": "$response.body#/pending/0/request_id" });
    let next_page = json!({ "cursor": "$response.body#/next_cursor" });
    json!({
        "create_task": { "statuses": ["201", "202"], "links": {
            "get_task": task, "list_task_items": task, "stream_task_events": task,
            "send_message": task, "cancel_task": task, "retry_task": task, "list_requests": task,
            "list_tasks": { "root_task_id": "$response.body#/root_task_id" },
            "get_request": request, "decide_request": request, "approve_request": request,
            "reject_request": request, "get_approve_page": request, "get_reject_page": request,
        } },
        "send_message": { "statuses": ["200"], "links": { "retry_task": task } },
        "list_tasks": { "statuses": ["200"], "links": {
            "list_tasks": next_page, "get_task": { "task_id": "$response.body#/tasks/0/task_id" },
        } },
        "list_requests": { "statuses": ["200"], "links": {
            "list_requests": next_page,
            "get_request": { "request_id": "$response.body#/requests/0/request_id" },
        } },
        "list_deliveries": { "statuses": ["200"], "links": {
            "list_deliveries": next_page,
            "resend_delivery": { "delivery_id": "$response.body#/deliveries/0/delivery_id" },
        } },
        "propose_gate_call": { "statuses": ["200", "202"], "links": { "get_gate_call": task } },
        "list_task_items": { "statuses": ["200"], "links": {
            "list_task_items": { "after": "$response.body#/next_after" },
        } },
    })
}

/// Adds the links to an operation's responses. Each link is named after its target operation.
pub(crate) fn describe(operation: &mut Map<String, Value>, id: &str) {
    let (all, responses) = (links(), operation.get_mut("responses"));
    let (Some(response), Some(responses)) = (all.get(id), responses) else {
        return;
    };
    let statuses = response["statuses"].as_array().into_iter().flatten();
    for status in statuses.filter_map(Value::as_str) {
        for (to, parameters) in response["links"].as_object().into_iter().flatten() {
            let link = json!({ "operationId": to, "parameters": parameters });
            put(responses, &[status, "links", to], link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::{document, every_operation};

    #[test]
    fn every_link_leads_to_an_existing_parameter() {
        let mut document = document();
        let mut known: Vec<(String, String)> = Vec::new();
        for (_, operation) in every_operation(&mut document) {
            for parameter in operation
                .get("parameters")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                known.push((
                    operation["operationId"].as_str().unwrap().into(),
                    parameter["name"].as_str().unwrap_or_default().into(),
                ));
            }
        }
        for (from, response) in links().as_object().unwrap() {
            let targets = response["links"].as_object().unwrap();
            for (to, parameters) in targets {
                for parameter in parameters.as_object().unwrap().keys() {
                    assert!(
                        known.contains(&(to.clone(), parameter.clone())),
                        "{from} → {to} {parameter}"
                    );
                }
            }
            let (_, operation) = every_operation(&mut document)
                .find(|(_, op)| op["operationId"] == *from)
                .unwrap();
            for status in response["statuses"].as_array().unwrap() {
                let links = &operation["responses"][status.as_str().unwrap()]["links"];
                assert_eq!(links.as_object().unwrap().len(), targets.len(), "{from}");
            }
        }
    }
}
