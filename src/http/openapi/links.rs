//! The links of the OpenAPI document: from an operation's response to the operations that take the
//! ids and cursors in that response.

use serde_json::{Map, Value, json};

use super::put;

/// Operations that take a task's id.
const OF_TASK: &[&str] = &[
    "get_task",
    "list_task_items",
    "stream_task_events",
    "send_message",
    "cancel_task",
    "retry_task",
];
/// Operations that take a request's id.
const OF_REQUEST: &[&str] = &[
    "get_request",
    "decide_request",
    "approve_request",
    "reject_request",
    "get_approve_page",
    "get_reject_page",
];
const TASK: &str = "$response.body#/task_id";
const PENDING: &str = "$response.body#/pending/0/request_id";

/// The target operation, its parameter that takes the value, and the place of the value in the
/// linking response.
type Link = (&'static str, &'static str, &'static str);

/// The links in those responses of the operation `from` whose status is in `statuses`.
struct LinkedAnswer {
    from: &'static str,
    statuses: &'static [&'static str],
    links: Vec<Link>,
}

fn all() -> [LinkedAnswer; 7] {
    let of = |ids: &[&'static str], parameter, found| {
        ids.iter()
            .map(|id| (*id, parameter, found))
            .collect::<Vec<Link>>()
    };
    let tree = vec![
        ("list_requests", "task_id", TASK),
        ("list_tasks", "root_task_id", "$response.body#/root_task_id"),
    ];
    let created = [
        of(OF_TASK, "task_id", TASK),
        of(OF_REQUEST, "request_id", PENDING),
        tree,
    ]
    .concat();
    let next = |id, first| vec![(id, "cursor", "$response.body#/next_cursor"), first];
    let tasks = next(
        "list_tasks",
        ("get_task", "task_id", "$response.body#/tasks/0/task_id"),
    );
    let requests = next(
        "list_requests",
        (
            "get_request",
            "request_id",
            "$response.body#/requests/0/request_id",
        ),
    );
    let items = vec![("list_task_items", "after", "$response.body#/next_after")];
    [
        LinkedAnswer {
            from: "create_task",
            statuses: &["201", "202"],
            links: created,
        },
        LinkedAnswer {
            from: "send_message",
            statuses: &["200"],
            links: of(&["retry_task"], "task_id", TASK),
        },
        LinkedAnswer {
            from: "list_tasks",
            statuses: &["200"],
            links: tasks,
        },
        LinkedAnswer {
            from: "list_requests",
            statuses: &["200"],
            links: requests,
        },
        deliveries(),
        gate_calls(),
        LinkedAnswer {
            from: "list_task_items",
            statuses: &["200"],
            links: items,
        },
    ]
}

fn gate_calls() -> LinkedAnswer {
    LinkedAnswer {
        from: "propose_gate_call",
        statuses: &["200", "202"],
        links: vec![("get_gate_call", "task_id", TASK)],
    }
}

fn deliveries() -> LinkedAnswer {
    let first = "$response.body#/deliveries/0/delivery_id";
    LinkedAnswer {
        from: "list_deliveries",
        statuses: &["200"],
        links: vec![
            ("list_deliveries", "cursor", "$response.body#/next_cursor"),
            ("resend_delivery", "delivery_id", first),
        ],
    }
}

/// Adds the links to an operation's responses, each named after its target.
pub(crate) fn describe(operation: &mut Map<String, Value>, id: &str) {
    let Some(responses) = operation.get_mut("responses") else {
        return;
    };
    for answer in all().into_iter().filter(|answer| answer.from == id) {
        for status in answer.statuses {
            for (to, parameter, found) in &answer.links {
                let link = json!({ "operationId": to, "parameters": { *parameter: found } });
                put(responses, &[status, "links", to], link);
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
                    parameter["name"].as_str().unwrap().into(),
                ));
            }
        }
        for LinkedAnswer {
            from,
            statuses,
            links,
        } in all()
        {
            for (to, parameter, _) in &links {
                assert!(
                    known.contains(&((*to).to_owned(), (*parameter).to_owned())),
                    "{from} → {to} {parameter}"
                );
            }
            let (_, operation) = every_operation(&mut document)
                .find(|(_, op)| op["operationId"] == from)
                .unwrap();
            for status in statuses {
                assert_eq!(
                    operation["responses"][status]["links"]
                        .as_object()
                        .unwrap()
                        .len(),
                    links.len(),
                    "{from}"
                );
            }
        }
    }
}
