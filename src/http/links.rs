//! The links of the document: which operations take the ids and cursors that an answer holds.

use serde_json::{Map, Value, json};

use super::openapi::put;

/// What takes a task's id.
const OF_TASK: &[&str] =
    &["get_task", "list_task_items", "stream_task_events", "send_message", "cancel_task", "retry_task"];
/// What takes a request's id.
const OF_REQUEST: &[&str] =
    &["get_request", "decide_request", "approve_request", "reject_request", "get_approve_page", "get_reject_page"];
const TASK: &str = "$response.body#/task_id";
const PENDING: &str = "$response.body#/pending/0/request_id";

/// An operation that takes something of an answer: its id, its parameter, and where the answer holds the value.
type Link = (&'static str, &'static str, &'static str);

/// The answers that lead on: the operation, its statuses and its links.
fn all() -> Vec<(&'static str, &'static [&'static str], Vec<Link>)> {
    let of = |ids: &[&'static str], parameter, found| ids.iter().map(|id| (*id, parameter, found)).collect::<Vec<_>>();
    let tree = vec![("list_requests", "task_id", TASK), ("list_tasks", "root_task_id", "$response.body#/root_task_id")];
    let created = [of(OF_TASK, "task_id", TASK), of(OF_REQUEST, "request_id", PENDING), tree].concat();
    let next = |id, first| vec![(id, "cursor", "$response.body#/next_cursor"), first];
    vec![
        ("create_task", &["201", "202"], created),
        ("send_message", &["200"], of(&["retry_task"], "task_id", TASK)),
        ("list_tasks", &["200"], next("list_tasks", ("get_task", "task_id", "$response.body#/tasks/0/task_id"))),
        (
            "list_requests",
            &["200"],
            next("list_requests", ("get_request", "request_id", "$response.body#/requests/0/request_id")),
        ),
        ("list_task_items", &["200"], vec![("list_task_items", "after", "$response.body#/next_after")]),
    ]
}

/// Adds the links to an operation's answers; several that lead to one operation are named by their parameter, too.
pub fn describe(operation: &mut Map<String, Value>, id: &str) {
    let Some(responses) = operation.get_mut("responses") else { return };
    for (_, statuses, links) in all().into_iter().filter(|(from, _, _)| *from == id) {
        for (status, (to, parameter, found)) in
            statuses.iter().flat_map(|status| links.iter().map(move |to| (status, to)))
        {
            let link = json!({ "operationId": to, "parameters": { *parameter: found } });
            put(responses, &[status, "links", to], link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::{document, every_operation};

    #[test]
    fn every_link_leads_to_a_parameter_that_there_is() {
        let mut document = document();
        let mut known: Vec<(String, String)> = Vec::new();
        for (_, operation) in every_operation(&mut document) {
            for parameter in operation.get("parameters").and_then(Value::as_array).into_iter().flatten() {
                known.push((
                    operation["operationId"].as_str().unwrap().into(),
                    parameter["name"].as_str().unwrap().into(),
                ));
            }
        }
        for (from, statuses, links) in all() {
            for (to, parameter, _) in &links {
                assert!(known.contains(&((*to).to_owned(), (*parameter).to_owned())), "{from} → {to} {parameter}");
            }
            let (_, operation) = every_operation(&mut document).find(|(_, op)| op["operationId"] == from).unwrap();
            for status in statuses {
                assert_eq!(operation["responses"][status]["links"].as_object().unwrap().len(), links.len(), "{from}");
            }
        }
    }
}
