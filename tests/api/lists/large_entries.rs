//! Tests the limits of lists: the bytes of a page, the bytes that the service reads for a page, and
//! the length of the arguments that a list shows.

use holdpoint::task::change::{Counters, LeaseChange};
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::verdict::Terms;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use crate::store::store_fixture::{change, fresh, new_task, request_spec, said, status};
use crate::support::allocator::limit_further_bytes;
use crate::support::fake_chat_completions::calls;
use crate::support::test_app::{On, TestApp, refunds};

const PAGE: usize = 4 * 1024 * 1024;

/// Reads a whole list. Returns the number of pages that are not empty, and all entries in their
/// order. Asserts that each page has at most 4 MiB or a single entry.
async fn pages(app: &TestApp, path: &str, member: &str) -> (usize, Vec<Value>) {
    let (mut count, mut all, mut next) = (0, Vec::new(), String::new());
    let join = if path.contains('?') { '&' } else { '?' };
    loop {
        let page = app
            .owner()
            .get(&format!("{path}{join}limit=200{next}"))
            .await;
        assert_eq!(page.status, 200, "{}", page.text);
        let entries = page.body[member].as_array().unwrap().clone();
        assert!(
            page.text.len() <= PAGE || entries.len() == 1,
            "{} bytes in {}",
            page.text.len(),
            entries.len()
        );
        count += usize::from(!entries.is_empty());
        let more = if let Some(cursor) = page.body["next_cursor"].as_str() {
            next = format!("&cursor={cursor}");
            assert!(!entries.is_empty(), "an empty page is followed by none");
            true
        } else {
            next = format!("&after={}", page.body["next_after"]);
            page.body["next_after"].is_number() && !entries.is_empty()
        };
        all.extend(entries);
        if !more {
            return (count, all);
        }
    }
}

fn long(bytes: usize) -> String {
    format!(
        r#"{{"order": 17, "amount": 120, "note": "{}"}}"#,
        "x".repeat(bytes)
    )
}

/// Starts a service with the refund agent, whose refunds may have a note. The owner decides.
async fn noting(on: On) -> TestApp {
    let note = "amount: { type: number, exclusiveMinimum: 0 }";
    let noted = format!("{note}, note: {{ type: string }}");
    TestApp::with(on, &refunds("{ owner: true }").replace(note, &noted)).await
}

/// Stores a paused task of Alice with an open request, whose arguments have about `bytes` bytes.
/// Returns the ids of the task and of the request.
async fn stored(app: &TestApp, bytes: usize) -> (TaskId, RequestId) {
    let id = TaskId(fresh());
    let mut question = request_spec(RequestKind::Approval, Terms::default(), 1);
    let request = question.request_id;
    question.pending_tool_calls[0].arguments_text = long(bytes);
    let mut task = new_task(id, "acme", "alice");
    task.facts.extend([
        Fact::InterventionRequested(question),
        status(TaskStatus::Paused),
    ]);
    task.counters = Counters {
        open_requests: 1,
        ..Counters::default()
    };
    task.lease = LeaseChange::PARK;
    let stored = app.store().commit(change(id, vec![task])).await;
    stored.unwrap();
    (id, request)
}

#[apply(on_both)]
async fn page_of_items_ends_at_4_mib_and_has_at_least_one_entry(on: On) {
    let app = TestApp::start(on).await;
    // The task has failed after each message.
    let id = TaskId(fresh());
    let mut task = new_task(id, "acme", "alice");
    let sizes = [5 << 20, 3 << 19, 3 << 19, 3 << 19, 3 << 19];
    let facts = sizes.map(|bytes| {
        [
            status(TaskStatus::Running),
            said(&"x".repeat(bytes)),
            status(TaskStatus::Failed),
        ]
    });
    task.facts = facts.into_iter().flatten().collect();
    (task.counters, task.lease) = (Counters::default(), LeaseChange::PARK);
    app.store().commit(change(id, vec![task])).await.unwrap();
    let (count, items) = pages(&app, &format!("/v1/tasks/{id}/items"), "items").await;
    let seqs: Vec<_> = items
        .iter()
        .map(|item| item["seq"].as_i64().unwrap())
        .collect();
    assert_eq!(
        seqs,
        (1..=i64::try_from(items.len()).unwrap()).collect::<Vec<_>>(),
        "none twice, none left out"
    );
    // The four pages contain: the items before the first message; the first message; the next
    // two messages; the last two messages.
    assert_eq!((count, items.len()), (4, 3 + 4 * 3));
    app.stop().await;
}

#[apply(on_both)]
async fn page_of_tasks_or_requests_ends_at_4_mib_of_data_read_for_it(on: On) {
    let app = TestApp::unswept(on, &refunds("{ owner: true }")).await;
    let mut expected = Vec::new();
    for _ in 0..4 {
        expected.push(stored(&app, 1_600_000).await.1.to_string());
    }
    let (count, requests) = pages(&app, "/v1/requests", "requests").await;
    let seen: Vec<_> = requests
        .iter()
        .map(|request| request["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(
        (count, seen),
        (2, expected.iter().map(String::as_str).collect()),
        "oldest first"
    );
    let (count, tasks) = pages(&app, "/v1/tasks", "tasks").await;
    let seen: Vec<_> = tasks
        .iter()
        .rev()
        .map(|task| task["pending"][0]["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(
        (count, seen),
        (2, expected.iter().map(String::as_str).collect()),
        "newest first"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn large_requests_of_trees_are_counted_a_few_at_a_time(on: On) {
    let app = TestApp::unswept(on, &refunds("{ owner: true }")).await;
    let mut trees = Vec::new();
    for _ in 0..10 {
        trees.push(format!("task_id={}", stored(&app, 4_000_000).await.0));
    }
    let path = format!("/v1/requests?limit=1&{}", trees.join("&"));
    // All requests together have 40 MB of arguments, so the count must not hold all of them at
    // once.
    limit_further_bytes(30_000_000);
    let list = app.owner().get(&path).await;
    limit_further_bytes(usize::MAX);
    assert_eq!(
        (&list.body["open"], &list.body["open_more"]),
        (&json!(10), &json!(false)),
        "{}",
        list.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn long_arguments_are_cut_in_lists_and_whole_where_they_are_decided(on: On) {
    let app = noting(on).await;
    let (long, edge) = (long(20_000), long(16 * 1024 - 40));
    assert_eq!(edge.len(), 16 * 1024);
    app.model
        .then(calls(&[("refund", &long), ("refund", &edge)]));
    let task = app.owner().create_task("please").await;
    let (id, request) = (task.str("/task_id"), task.str("/pending/0/request_id"));
    let inbox = app.owner().get("/v1/requests").await;
    let listed = app.owner().get("/v1/tasks").await;
    let shown = app.owner().task(&id).await;
    let refused = app.owner().message(&id, &json!({"input": "x"})).await;
    for (place, request) in [
        ("the answer to a POST", &task.body["pending"][0]),
        ("the inbox", &inbox.body["requests"][0]),
        ("a list of tasks", &listed.body["tasks"][0]["pending"][0]),
        ("a task", &shown.body["pending"][0]),
        ("a conflict", &refused.body["pending"][0]),
    ] {
        let (cut, fits) = (&request["tool_calls"][0], &request["tool_calls"][1]);
        assert_eq!(
            (&cut["truncated"], &cut["arguments"]),
            (&json!(true), &Value::Null),
            "{place}"
        );
        assert_eq!(
            cut["arguments_text"].as_str().unwrap(),
            &long[..16 * 1024],
            "{place}"
        );
        assert_eq!(
            (&fits["truncated"], fits["arguments_text"].as_str().unwrap()),
            (&json!(false), edge.as_str()),
            "{place}"
        );
        assert!(fits["arguments"].is_object(), "{place}");
    }
    let whole = app.owner().get(&format!("/resume/{request}")).await;
    let items = app.owner().items(&id).await;
    let items = items.body["items"].as_array().unwrap();
    let asked = items
        .iter()
        .find(|item| item["type"] == "intervention_requested")
        .unwrap();
    let event = app
        .owner()
        .watch(&id, None)
        .await
        .until("request.created")
        .await
        .pop()
        .unwrap();
    for (place, call) in [
        ("the request", &whole.body["tool_calls"][0]),
        ("its item", &asked["pending_tool_calls"][0]),
        ("its event", &event.data["request"]["tool_calls"][0]),
    ] {
        assert_eq!(call["arguments_text"].as_str().unwrap(), long, "{place}");
        assert_eq!(
            (&call["truncated"], call["arguments"].is_object()),
            (&json!(false), true),
            "{place}"
        );
    }
    app.stop().await;
}
