//! Tests of lists as a client pages through them. A page has at most 4 MiB, or a single larger
//! entry. Long arguments are cut. An overdue request that is not closed yet is listed as pending.

use holdpoint::task::change::{Counters, LeaseChange};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::verdict::Terms;
use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use super::request_kinds::{ASKING, ask, short};
use crate::store::store_fixture::{change, fresh, new_task, request_spec, status};
use crate::support::allocator::limit_further_bytes;
use crate::support::database::Database;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::postgres::copy_request;
use crate::support::test_app::{ACCOUNTS, Actor, On, REFUNDS, Reply, TestApp, refunds};

const ALICE: &str = "alice-key-0123456789";
const BOB: &str = "bob-key-0123456789ab";
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

/// Creates a task with `count` held refunds in one request. The arguments of each refund have about
/// `bytes` bytes.
async fn held(app: &TestApp, count: usize, bytes: usize) -> Reply {
    let arguments = long(bytes);
    app.model
        .then(calls(&vec![("refund", arguments.as_str()); count]));
    let task = app
        .owner()
        .header("prefer", "wait=300")
        .post("/v1/tasks", &json!({"input": "please"}))
        .await;
    assert_eq!(task.str("/status"), "Paused", "{}", task.text);
    task
}

/// Stores a paused task of Alice with an open request, whose arguments have about `bytes` bytes.
/// Returns the task's id.
async fn stored(app: &TestApp, bytes: usize) -> TaskId {
    let id = TaskId(fresh());
    let mut question = request_spec(RequestKind::Approval, Terms::default(), 1);
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
    task.lease = LeaseChange::Park { wake_in: None };
    let stored = app.store().commit(change(id, vec![task])).await;
    stored.unwrap();
    id
}

async fn requests_in(actor: &Actor<'_>, path: &str) -> Vec<String> {
    let reply = actor.get(path).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    let requests = reply.body["requests"].as_array().unwrap();
    let id = |request: &Value| request["request_id"].as_str().unwrap().to_owned();
    requests.iter().map(id).collect()
}

#[apply(on_both)]
async fn damaged_request_hides_no_other_request_or_task_of_a_list(on: On) {
    let accounts = refunds("{ groups: [finance] }");
    let app = TestApp::unswept(on, &accounts).await;
    let (first, damaged, last) = (app.held().await, app.held().await, app.held().await);
    let id = app.database.id(&damaged.request);
    app.database
        .execute(&format!(
            "update agent_task_item set body = '{{' where request_id = {id}"
        ))
        .await;
    let readable = [first.request.as_str(), &last.request];
    let bob = app.approver();
    for path in ["/v1/requests", "/v1/requests?status=pending&status=resumed"] {
        assert_eq!(requests_in(&bob, path).await, readable, "{path}");
    }
    let page = bob.get("/v1/requests?limit=1").await;
    assert_eq!(page.str("/requests/0/request_id"), first.request);
    let cursor = page.str("/next_cursor");
    let page = bob
        .get(&format!("/v1/requests?limit=1&cursor={cursor}"))
        .await;
    assert_eq!(
        (
            page.str("/requests/0/request_id"),
            &page.body["next_cursor"]
        ),
        (last.request.clone(), &Value::Null)
    );
    let tasks = app.owner().get("/v1/tasks").await;
    let ids: Vec<_> = tasks.body["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["task_id"].as_str())
        .collect();
    assert_eq!(
        ids,
        [
            Some(last.task.as_str()),
            Some(&damaged.task),
            Some(&first.task)
        ]
    );
    let inbox = bob.header("accept", "text/html").get("/inbox").await;
    let shows = |request: &str| {
        inbox
            .text
            .contains(&format!("<li data-request=\"{request}\""))
    };
    assert_eq!(
        [&first, &damaged, &last].map(|held| shows(&held.request)),
        [true, false, true]
    );
    app.approver()
        .hit(&format!("/resume/{}/approve", first.request))
        .await;
    let page = app
        .approver()
        .header("accept", "text/html")
        .get(&format!("/resume/{}", first.request))
        .await;
    assert!(
        page.text
            .contains(&format!("<a autofocus href=\"/resume/{}\">", last.request)),
        "{}",
        page.text
    );
    assert_eq!(
        app.approver()
            .header("accept", "text/html")
            .get("/inbox/decided?all=1")
            .await
            .status,
        200
    );
    assert_eq!(
        app.approver()
            .get(&format!("/resume/{}", damaged.request))
            .await
            .status,
        500
    );
    app.stop().await;
}

#[apply(on_both)]
async fn page_of_items_ends_at_4_mib_and_has_at_least_one_entry(on: On) {
    let app = TestApp::start(on).await;
    // The first message makes every prompt too large for the fake model, so the task fails
    // after each message. Each message adds three items: the status Running, the message, the
    // status Failed.
    let patient = app.owner().header("prefer", "wait=300");
    let first = patient
        .post("/v1/tasks", &json!({"input": "x".repeat(5 << 20)}))
        .await;
    let path = format!("/v1/tasks/{}", first.str("/task_id"));
    for _ in 0..4 {
        patient
            .post(
                &format!("{path}/messages"),
                &json!({"input": "x".repeat(3 << 19)}),
            )
            .await;
    }
    let (count, items) = pages(&app, &format!("{path}/items"), "items").await;
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
    let app = noting(on).await;
    let mut expected = Vec::new();
    for _ in 0..4 {
        expected.push(held(&app, 8, 200_000).await.str("/pending/0/request_id"));
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
    for _ in 0..16 {
        trees.push(format!("task_id={}", stored(&app, 4_000_000).await));
    }
    let path = format!("/v1/requests?limit=1&{}", trees.join("&"));
    // All requests together have 64 MB of arguments, so the count must not hold all of them at
    // once.
    limit_further_bytes(48_000_000);
    let list = app.owner().get(&path).await;
    limit_further_bytes(usize::MAX);
    assert_eq!(
        (&list.body["open"], &list.body["open_more"]),
        (&json!(16), &json!(false)),
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
    let task = app
        .owner()
        .post("/v1/tasks", &json!({"input": "please"}))
        .await;
    let (id, request) = (task.str("/task_id"), task.str("/pending/0/request_id"));
    let inbox = app.owner().get("/v1/requests").await;
    let listed = app.owner().get("/v1/tasks").await;
    let shown = app.owner().get(&format!("/v1/tasks/{id}")).await;
    let refused = app
        .owner()
        .post(&format!("/v1/tasks/{id}/messages"), &json!({"input": "x"}))
        .await;
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
    let items = app.owner().get(&format!("/v1/tasks/{id}/items")).await;
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

#[apply(on_both)]
async fn overdue_request_is_pending_and_in_no_inbox_until_it_is_closed(on: On) {
    let app = TestApp::unswept(on, &(ASKING.replace("{more}", &short("3s", "")) + ACCOUNTS)).await;
    let question = ask(&app, "guidance").await;
    let path = format!("/resume/{}", question.id);
    let is_overdue = async || app.owner().get(&path).await.body["can_decide"] != true;
    crate::support::until("the request is overdue", is_overdue).await;
    let late = app
        .owner()
        .post(
            &path,
            &json!({"action": "respond", "response": {"answer": "x"}}),
        )
        .await;
    late.assert_code(410, "request_expired");
    let shown = app.owner().get(&path).await;
    let task = app
        .owner()
        .get(&format!("/v1/tasks/{}", question.task))
        .await;
    let tasks = app.owner().get("/v1/tasks").await;
    let tree = app
        .owner()
        .get(&format!(
            "/v1/requests?task_id={}&status=pending",
            question.task
        ))
        .await;
    for (place, request) in [
        ("the request", &shown.body),
        ("the 410", &late.body["request"]),
        ("its task", &task.body["pending"][0]),
        ("a list of tasks", &tasks.body["tasks"][0]["pending"][0]),
        ("its tree", &tree.body["requests"][0]),
    ] {
        let found = (
            &request["request_id"],
            &request["status"],
            &request["can_decide"],
            &request["allowed_actions"],
        );
        assert_eq!(
            found,
            (
                &json!(question.id),
                &json!("pending"),
                &json!(false),
                &json!([])
            ),
            "{place}"
        );
    }
    for path in [
        "/v1/requests",
        "/v1/requests?status=pending",
        "/v1/requests?status=expired",
    ] {
        assert_eq!(
            app.owner().get(path).await.body["requests"],
            json!([]),
            "{path}"
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn inbox_page_has_an_entry_or_no_next_page(on: On) {
    let two = "{ owner: true, users: [bob], required: 2 }";
    let app = TestApp::with(on, &refunds(two)).await;
    let mut last = String::new();
    for approved in [true, true, true, false] {
        last = app.held().await.request;
        if approved {
            assert_eq!(
                app.owner()
                    .hit(&format!("/resume/{last}/approve"))
                    .await
                    .status,
                200
            );
        }
    }
    let page = app.owner().get("/v1/requests?limit=1").await;
    assert_eq!(
        page.str("/requests/0/request_id"),
        last,
        "answered requests fill no page"
    );
    assert_eq!(page.body["next_cursor"], Value::Null);
    app.stop().await;
}

async fn lengths(actor: &Actor<'_>, path: &str, member: &str) -> Vec<usize> {
    let (mut lengths, mut next) = (Vec::new(), String::new());
    loop {
        let page = actor.get(&format!("{path}&limit=10{next}")).await;
        lengths.push(page.body[member].as_array().unwrap().len());
        match page.body["next_cursor"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => return lengths,
        }
    }
}

/// A person with more than a thousand open questions sees that the count stops there.
#[tokio::test]
async fn count_of_a_trees_requests_ends_at_a_thousand() {
    let database = Database::postgres().await;
    let app = TestApp::at_with(database.url(), &refunds("{ owner: true }")).await;
    let held = app.held().await;
    let copies = "
        create temporary table ids as
            select (lpad(to_hex(1700000000000 + n), 12, '0') || '7' || substr(md5(n::text), 14))::uuid as id, n
              from generate_series(1, 1000) n;
        insert into agent_task_item select (x.i).* from (select jsonb_populate_record(i, jsonb_build_object(
            'seq', 100 + n, 'event_number', 100 + n, 'request_id', id)) as i
            from agent_task_item i, ids where i.type = 'intervention_requested') x;
        insert into intervention_request select (x.r).* from (select jsonb_populate_record(r, jsonb_build_object(
            'seq', 100 + n, 'request_id', id)) as r from intervention_request r, ids) x;
        insert into request_approver select (x.a).* from (select jsonb_populate_record(a, jsonb_build_object(
            'request_id', id)) as a from request_approver a, ids) x;
        insert into inbox select (x.b).* from (select jsonb_populate_record(b, jsonb_build_object(
            'request_id', id)) as b from inbox b, ids) x;";
    database.execute(copies).await;
    let list = app
        .owner()
        .get(&format!("/v1/requests?limit=1&task_id={}", held.task))
        .await;
    assert_eq!(
        (&list.body["open"], &list.body["open_more"]),
        (&json!(1000), &json!(true)),
        "{}",
        list.text
    );
    app.stop().await;
}

/// The test makes 20,000 copies of a request, and none of them matches the filters. A list of
/// requests reaches the copies first; a list of tasks reaches them last.
#[tokio::test]
async fn page_of_a_filtered_list_ends_after_2000_entries_that_do_not_match() {
    let database = Database::postgres().await;
    let yaml = refunds("{ groups: [finance] }");
    let app = TestApp::at_with(database.url(), &yaml).await;
    let held = app.held().await;
    let other = "'agent', 'other', 'status', 'Paused'";
    copy_request(database.url(), "finance", other).await;
    let (alice, bob) = (app.owner(), app.actor(BOB));
    let ops = app.actor("ops-key-0123456789ab");
    let read = async |key, path: &str| app.actor(key).header("accept", "text/html").get(path).await;

    let nothing = [[0; 10].as_slice(), &[1]].concat();
    assert_eq!(
        lengths(&bob, "/v1/requests?agent=billing", "requests").await,
        nothing
    );
    let first = bob.get("/v1/requests?agent=billing").await;
    assert_eq!(
        (&first.body["open"], &first.body["open_more"]),
        (&json!(0), &json!(true))
    );
    let none = [0; 11];
    assert_eq!(
        lengths(&bob, "/v1/requests?status=responded", "requests").await,
        none
    );
    assert_eq!(
        lengths(&alice, "/v1/tasks?status=Completed", "tasks").await,
        none
    );
    assert_eq!(
        lengths(&ops, "/v1/tasks?status=Completed", "tasks").await,
        none
    );

    let so_far = "None found so far";
    let mut path = "/inbox?agent=billing".to_owned();
    for _ in 0..10 {
        let page = read(BOB, &path).await;
        assert!(
            page.text.contains(so_far) && page.text.contains("0+"),
            "{}",
            page.text
        );
        let (_, next) = page.text.split_once("id=\"inbox-next\" href=\"").unwrap();
        path = next.split_once('"').unwrap().0.replace("&amp;", "&");
    }
    let page = read(BOB, &path).await;
    assert!(page.text.contains(&held.request) && !page.text.contains(so_far));
    let page = read(ALICE, "/tasks?status=Completed").await;
    assert!(page.text.contains(so_far), "{}", page.text);
    assert!(
        page.text.contains("/tasks?status=Completed&amp;cursor="),
        "{}",
        page.text
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decided_request_is_listed_in_a_service_without_accounts_whoever_its_approvers_are() {
    let yaml = REFUNDS.replace("{approvers}", "{ groups: [finance] }");
    let app = TestApp::with(On::Sqlite, &yaml).await;
    let held = app.held_by(&app.anonymous()).await;
    app.model.then(text_answer("done"));
    let path = format!("/resume/{}/approve", held.request);
    assert_eq!(app.anonymous().hit(&path).await.status, 200);
    let list = app.anonymous().get("/v1/requests?status=resumed").await;
    assert_eq!(list.str("/requests/0/request_id"), held.request);
    app.stop().await;
}
