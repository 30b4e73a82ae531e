//! The links of the OpenAPI document. A link leads from an operation's response to an operation
//! that takes an id or a cursor from this response.

use serde_json::{Map, Value, json};

use super::put;

const TASK_OPERATIONS: &[&str] = &[
    "get_task",
    "list_task_items",
    "stream_task_events",
    "send_message",
    "cancel_task",
    "retry_task",
];
const REQUEST_OPERATIONS: &[&str] = &[
    "get_request",
    "decide_request",
    "approve_request",
    "reject_request",
    "get_approve_page",
    "get_reject_page",
];
const TASK_ID: &str = "$response.body#/task_id";
const NEXT_CURSOR: &str = "$response.body#/next_cursor";

/// One link to each of several operations that take the same parameter. The fields are the target
/// operations, the name of the parameter, and the runtime expression that gives its value.
type OperationLinks = (&'static [&'static str], &'static str, &'static str);

/// The links of the operation `from`, for its responses with a status in `statuses`.
struct LinkedResponse {
    from: &'static str,
    statuses: &'static [&'static str],
    links: &'static [OperationLinks],
}

const ALL: &[LinkedResponse] = &[
    LinkedResponse {
        from: "create_task",
        statuses: &["201", "202"],
        links: &[
            (TASK_OPERATIONS, "task_id", TASK_ID),
            (
                REQUEST_OPERATIONS,
                "request_id",
                "$response.body#/pending/0/request_id",
            ),
            (&["list_requests"], "task_id", TASK_ID),
            (
                &["list_tasks"],
                "root_task_id",
                "$response.body#/root_task_id",
            ),
        ],
    },
    LinkedResponse {
        from: "send_message",
        statuses: &["200"],
        links: &[(&["retry_task"], "task_id", TASK_ID)],
    },
    LinkedResponse {
        from: "list_tasks",
        statuses: &["200"],
        links: &[
            (&["list_tasks"], "cursor", NEXT_CURSOR),
            (&["get_task"], "task_id", "$response.body#/tasks/0/task_id"),
        ],
    },
    LinkedResponse {
        from: "list_requests",
        statuses: &["200"],
        links: &[
            (&["list_requests"], "cursor", NEXT_CURSOR),
            (
                &["get_request"],
                "request_id",
                "$response.body#/requests/0/request_id",
            ),
        ],
    },
    LinkedResponse {
        from: "list_deliveries",
        statuses: &["200"],
        links: &[
            (&["list_deliveries"], "cursor", NEXT_CURSOR),
            (
                &["resend_delivery"],
                "delivery_id",
                "$response.body#/deliveries/0/delivery_id",
            ),
        ],
    },
    LinkedResponse {
        from: "propose_gate_call",
        statuses: &["200", "202"],
        links: &[(&["get_gate_call"], "task_id", TASK_ID)],
    },
    LinkedResponse {
        from: "list_task_items",
        statuses: &["200"],
        links: &[(&["list_task_items"], "after", "$response.body#/next_after")],
    },
];

/// Adds the links to an operation's responses. Each link is named after its target operation.
pub(crate) fn describe(operation: &mut Map<String, Value>, id: &str) {
    let Some(responses) = operation.get_mut("responses") else {
        return;
    };
    for response in ALL.iter().filter(|response| response.from == id) {
        for status in response.statuses {
            for (targets, parameter, found) in response.links {
                for to in *targets {
                    let link = json!({ "operationId": to, "parameters": { *parameter: found } });
                    put(responses, &[status, "links", to], link);
                }
            }
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
        for LinkedResponse {
            from,
            statuses,
            links,
        } in ALL
        {
            let mut count = 0;
            for (targets, parameter, _) in *links {
                for to in *targets {
                    assert!(
                        known.contains(&((*to).to_owned(), (*parameter).to_owned())),
                        "{from} → {to} {parameter}"
                    );
                    count += 1;
                }
            }
            let (_, operation) = every_operation(&mut document)
                .find(|(_, op)| op["operationId"] == *from)
                .unwrap();
            for status in *statuses {
                let links = &operation["responses"][status]["links"];
                assert_eq!(links.as_object().unwrap().len(), count, "{from}");
            }
        }
    }
}
