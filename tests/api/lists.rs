//! Tests of lists as a client pages through them. A page has at most 4 MiB, or a single larger
//! entry. Long arguments are cut. An overdue request that is not closed yet is listed as pending.

mod large_entries;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use super::request_kinds::{ASKING, ask, asks, begin, short};
use crate::support::database::Database;
use crate::support::endless_sleep::{BETWEEN_ROUNDS, EndlessSleep};
use crate::support::fake_chat_completions::text_answer;
use crate::support::postgres::copy_request;
use crate::support::test_app::{ACCOUNTS, Actor, On, REFUNDS, TestApp, refunds};

const ALICE: &str = "alice-key-0123456789";
const BOB: &str = "bob-key-0123456789ab";

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
    let ids = tasks.texts("tasks", "task_id");
    assert_eq!(ids, [last.task.as_str(), &damaged.task, &first.task]);
    let inbox = bob.accept_html().get("/inbox").await;
    let shows = |request: &str| {
        inbox
            .text
            .contains(&format!("<li data-request=\"{request}\""))
    };
    assert_eq!(
        [&first, &damaged, &last].map(|held| shows(&held.request)),
        [true, false, true]
    );
    app.approver().approve(&first.request).await;
    let page = app.approver().accept_html().request(&first.request).await;
    page.assert_has(&format!("<a autofocus href=\"/resume/{}\">", last.request));
    assert_eq!(
        app.approver()
            .accept_html()
            .get("/inbox/decided?all=1")
            .await
            .status,
        200
    );
    assert_eq!(app.approver().request(&damaged.request).await.status, 500);
    app.stop().await;
}

#[apply(on_both)]
async fn damaged_request_hides_no_other_request_of_its_task_in_a_list(on: On) {
    let app = TestApp::unswept(on, &(ASKING.replace("{more}", "") + ACCOUNTS)).await;
    let asked = begin(&app, &[asks("guidance"), asks("confirmation")]).await;
    assert_eq!(asked.count("pending"), 2, "{}", asked.text);
    let damaged = app.database.id(&asked.str("/pending/0/request_id"));
    app.database
        .execute(&format!(
            "update agent_task_item set body = '{{' where request_id = {damaged}"
        ))
        .await;
    let list = app.owner().get("/v1/tasks").await;
    let task = &list.body["tasks"][0];
    let pending = task["pending"].as_array().unwrap().iter();
    let shown: Vec<_> = pending.map(|request| &request["request_id"]).collect();
    let other = &asked.body["pending"][1]["request_id"];
    assert_eq!(
        (&task["status"], shown),
        (&json!("Paused"), vec![other]),
        "{}",
        list.text
    );
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
    let task = app.owner().task(&question.task).await;
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
            assert_eq!(app.owner().approve(&last).await.status, 200);
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

/// The tree has 1,001 open requests. The reply counts 1,000 of them and says that there are more.
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

/// The test copies a task and its request 6,000 times, and no copy matches the filters. The copies
/// are older than the original. A list of requests begins with the copies, because the oldest
/// request comes first. A list of tasks ends with the copies, because the newest task comes first.
#[tokio::test]
async fn page_of_a_filtered_list_ends_after_2000_entries_that_do_not_match() {
    let database = Database::postgres().await;
    let yaml = refunds("{ groups: [finance] }");
    // Copying locks whole tables. A round of the service could lock them in another order.
    let clock = EndlessSleep::new(|time| time == BETWEEN_ROUNDS);
    let app = TestApp::at_timed(database.url(), &yaml, clock).await;
    let held = app.held().await;
    let other = "'agent', 'other', 'status', 'Paused'";
    copy_request(database.url(), 6_000, "finance", other).await;
    let (alice, bob) = (app.owner(), app.actor(BOB));
    let ops = app.actor("ops-key-0123456789ab");
    let read = async |key, path: &str| app.actor(key).accept_html().get(path).await;

    let nothing = [0, 0, 0, 1];
    assert_eq!(
        lengths(&bob, "/v1/requests?agent=billing", "requests").await,
        nothing
    );
    let first = bob.get("/v1/requests?agent=billing").await;
    assert_eq!(
        (&first.body["open"], &first.body["open_more"]),
        (&json!(0), &json!(true))
    );
    let none = [0; 4];
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
    for _ in 0..3 {
        let page = read(BOB, &path).await;
        page.assert_has(so_far);
        page.assert_has("0+");
        let (_, next) = page.text.split_once("id=\"inbox-next\" href=\"").unwrap();
        path = next.split_once('"').unwrap().0.replace("&amp;", "&");
    }
    let page = read(BOB, &path).await;
    assert!(page.text.contains(&held.request) && !page.text.contains(so_far));
    let page = read(ALICE, "/tasks?status=Completed").await;
    page.assert_has(so_far);
    page.assert_has("/tasks?status=Completed&amp;cursor=");
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
