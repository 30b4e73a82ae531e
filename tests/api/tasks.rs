//! Tests of tasks as a client sees them: shapes, lists, waiting, errors.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::{Value, json};

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{CAROL, OPS, OTHER, On, TestApp, WEB};

fn members(value: &Value) -> Vec<String> {
    let mut names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
    names.sort();
    names
}

#[apply(on_both)]
async fn objects_have_all_their_members(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let mut task = [
        "task_id",
        "session_id",
        "root_task_id",
        "agent",
        "agent_version",
        "user_id",
        "status",
        "output",
        "error",
        "pending",
        "usage",
        "parent",
        "metadata",
        "created_at",
        "updated_at",
    ];
    task.sort_unstable();
    assert_eq!(members(&held.body), task);
    let mut request = [
        "request_id",
        "task_id",
        "root_task_id",
        "session_id",
        "agent_path",
        "kind",
        "status",
        "message",
        "tool_calls",
        "approvers",
        "allowed_actions",
        "can_decide",
        "question",
        "details",
        "form",
        "url",
        "approval_url",
        "rejection_url",
        "digest",
        "created_at",
        "expires_at",
        "decision",
    ];
    request.sort_unstable();
    assert_eq!(members(&held.body["pending"][0]), request);
    let mut call = [
        "tool_call_id",
        "name",
        "arguments",
        "arguments_text",
        "effect",
        "target",
        "summary",
        "warnings",
        "needs_decision",
        "verdict",
        "rule",
        "reason",
        "parameters",
        "approvals",
        "remember",
        "digest",
        "decision",
        "truncated",
    ];
    call.sort_unstable();
    assert_eq!(members(&held.body["pending"][0]["tool_calls"][0]), call);
    let at = held.body["created_at"].as_str().unwrap();
    assert!(at.len() == 27 && at.ends_with('Z'), "{at}");
    assert_eq!(
        held.body["pending"][0]["message"],
        "Human intervention required."
    );
    assert_eq!(held.body["pending"][0]["agent_path"], json!(["billing"]));
    assert_eq!(held.body["metadata"], json!({}));
    let same = app.owner().request(&held.request).await;
    assert_eq!(
        same.body, held.body["pending"][0],
        "one shape at every endpoint"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn call_that_can_never_run_has_no_digest(on: On) {
    let app = TestApp::start(on).await;
    let held = r#"{"order": 17, "amount": 120}"#;
    app.model.then(calls(&[
        ("refund", held),
        ("refund", "{}"),
        ("nothing", "{}"),
        ("forbidden", "{}"),
    ]));
    let task = app.owner().create_task("please").await;
    let asked = task.body["pending"][0]["tool_calls"].as_array().unwrap();
    let shown: Vec<_> = asked
        .iter()
        .map(|call| {
            (
                call["verdict"].as_str().unwrap(),
                call["digest"].is_string(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("hold", true),
            ("invalid", false),
            ("invalid", false),
            ("deny", true)
        ]
    );
    assert!(
        asked[1]["digest"].is_null() && asked[2]["digest"].is_null(),
        "{}",
        task.text
    );
    app.stop().await;
}

#[apply(on_both)]
async fn detail_of_an_invalid_request_names_its_first_error_in_words(on: On) {
    let app = TestApp::start(on).await;
    let reply = app
        .owner()
        .post("/v1/tasks", &json!({"input": 1, "more": 2}))
        .await;
    let first = &reply.body["errors"][0];
    assert_eq!(
        (&first["pointer"], &first["detail"]),
        (&json!("/input"), &json!("a string"))
    );
    let more = reply.count("errors") - 1;
    let expected =
        format!("The request is not valid at `/input`: a string (and {more} more in `errors`).");
    assert_eq!(reply.str("/detail"), expected);
    let query = app.owner().get("/v1/tasks?limit=0").await;
    assert_eq!(
        query.str("/detail"),
        "The request is not valid at `/limit`: a number from 1 to 200."
    );
    app.stop().await;
}

#[apply(on_both)]
async fn errors_are_problems_with_a_page(on: On) {
    let app = TestApp::start(on).await;
    let (alice, unknown) = (app.owner(), "0190aaaa-0000-7000-8000-000000000000");
    let create = async |body: Value| alice.post("/v1/tasks", &body).await;
    let missing = vec![
        alice.get("/v1/nothing").await,
        app.anonymous().get("/v1/nothing").await,
        alice.get("/v1/tasks/not-an-id").await,
        alice.task(unknown).await,
        alice.approve(unknown).await,
    ];
    let deletion = alice.send(Method::DELETE, "/v1/tasks", None).await;
    let without_a_key = app.anonymous().get("/v1/tasks").await;
    let invalid = vec![
        create(json!({})).await,
        create(json!({"input": "a", "items": []})).await,
        create(json!({"input": "a", "agent": "nobody"})).await,
        create(json!({"input": "a", "session_id": "a b"})).await,
        alice.get("/v1/tasks?limit=0").await,
        alice.get("/v1/tasks?limit=201").await,
        alice.get("/v1/tasks?status=Waiting").await,
    ];
    let body = json!({"input": "a"});
    let empty_key = app.owner().keyed("");
    let empty_key = empty_key.post("/v1/tasks", &body).await;
    let speaks_for_bob = app.owner().header("holdpoint-user", "bob");
    let forbidden = vec![
        speaks_for_bob.get("/v1/tasks").await,
        app.actor(OPS).post("/v1/tasks", &body).await,
    ];
    for (replies, status, code) in [
        (missing, 404, "not_found"),
        (vec![deletion], 405, "method_not_allowed"),
        (vec![without_a_key], 401, "unauthorized"),
        (invalid, 422, "invalid"),
        (vec![empty_key], 400, "bad_request"),
        (forbidden, 403, "forbidden"),
    ] {
        for reply in replies {
            reply.assert_code(status, code);
            assert_eq!(reply.header("content-type"), "application/problem+json");
            assert_eq!(reply.str("/type"), format!("{}/problems/{code}", app.url()));
            assert_eq!(reply.str("/instance"), reply.header("x-request-id"));
            let page = app.anonymous().get(&format!("/problems/{code}")).await;
            assert_eq!(page.status, 200);
        }
    }
    assert!(app.model.sent().is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn task_can_be_neither_seen_nor_moved_by_others(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let path = format!("/v1/tasks/{}", held.task);
    for (key, status) in [(CAROL, 403), (OTHER, 404), (OPS, 200)] {
        assert_eq!(app.actor(key).get(&path).await.status, status);
        assert_eq!(
            app.actor(key).get(&format!("{path}/items")).await.status,
            status
        );
    }
    for (key, status) in [(CAROL, 403), (OTHER, 404), (OPS, 403), (WEB, 403)] {
        for what in ["cancel", "retry"] {
            assert_eq!(
                app.actor(key).hit(&format!("{path}/{what}")).await.status,
                status,
                "{key} {what}"
            );
        }
        let message = app
            .actor(key)
            .post(
                &format!("{path}/messages"),
                &json!({"input": "x", "supersede": true}),
            )
            .await;
        assert_eq!(message.status, status);
    }
    assert_eq!(
        app.stranger().get("/v1/tasks").await.body["tasks"],
        json!([])
    );
    assert_eq!(
        app.actor(OPS)
            .get("/v1/tasks?user_id=alice")
            .await
            .str("/tasks/0/task_id"),
        held.task
    );
    app.stop().await;
}

#[apply(on_both)]
async fn message_to_a_paused_task_supersedes_only_when_it_says_so(on: On) {
    let app = TestApp::start(on).await;
    let held = app.held().await;
    let path = format!("/v1/tasks/{}/messages", held.task);
    let refused = app.owner().post(&path, &json!({"input": "else"})).await;
    refused.assert_code(409, "task_paused");
    assert_eq!(refused.str("/pending/0/request_id"), held.request);
    app.model.then(text_answer("fine"));
    let done = app
        .owner()
        .post(&path, &json!({"input": "else", "supersede": true}))
        .await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let late = app.owner().approve(&held.request).await;
    late.assert_code(409, "request_withdrawn");
    assert_eq!(late.str("/request/status"), "withdrawn");
    let items = app
        .owner()
        .get(&format!("/v1/tasks/{}/items?after=6", held.task))
        .await;
    let types = items.texts("items", "type");
    assert_eq!(
        types,
        [
            "request_closed",
            "task_status",
            "tool_result",
            "user_message",
            "assistant_message",
            "task_status"
        ]
    );
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn lists_page_by_cursor_and_filter(on: On) {
    let app = TestApp::start(on).await;
    for place in 0..5 {
        app.model.then(text_answer("ok"));
        app.owner()
            .post(
                "/v1/tasks",
                &json!({"input": "go", "session_id": format!("s{}", place % 2)}),
            )
            .await;
    }
    let mut seen = Vec::new();
    let mut path = "/v1/tasks?limit=2".to_owned();
    loop {
        let page = app.owner().get(&path).await;
        seen.extend(
            page.texts("tasks", "task_id")
                .into_iter()
                .map(str::to_owned),
        );
        let Some(cursor) = page.body["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/tasks?limit=2&cursor={cursor}");
    }
    assert_eq!(seen.len(), 5);
    assert!(
        seen.windows(2).all(|pair| pair[0] > pair[1]),
        "newest first"
    );
    let one = app.owner().get("/v1/tasks?session_id=s1").await;
    assert_eq!(one.count("tasks"), 2);
    let both = app
        .owner()
        .get("/v1/tasks?session_id=s1&session_id=s0&status=Completed&status=Failed")
        .await;
    assert_eq!(both.count("tasks"), 5);
    assert_eq!(
        app.owner().get("/v1/tasks?status=Paused").await.body["tasks"],
        json!([])
    );
    app.stop().await;
}

#[apply(on_both)]
async fn post_waits_as_its_prefer_header_says(on: On) {
    let app = TestApp::start(on).await;
    app.tool.close();
    app.model
        .then(calls(&[("lookup", r#"{"order":1}"#)]))
        .then(text_answer("ok"));
    let task = app.owner().prefer("wait=0").create_task("go").await;
    task.assert_status(202, "Running");
    assert!(
        task.header("location")
            .ends_with(&format!("/v1/tasks/{}", task.str("/task_id")))
    );
    assert_eq!(task.header("preference-applied"), "wait=0");
    let path = format!("/v1/tasks/{}", task.str("/task_id"));
    assert_eq!(
        app.owner()
            .post(&format!("{path}/messages"), &json!({"input": "x"}))
            .await
            .str("/code"),
        "task_running"
    );
    let waiter = app.owner().prefer("wait=30");
    let (done, ()) = tokio::join!(waiter.get(&path), async { app.tool.open() });
    assert_eq!(done.str("/status"), "Completed");
    app.stop().await;
}

#[apply(on_both)]
async fn me_agents_and_public_endpoints_answer(on: On) {
    let app = TestApp::start(on).await;
    let me = app.approver().get("/v1/me").await;
    assert_eq!(
        me.body,
        json!({"user_id": "bob", "tenant": "acme", "groups": ["finance"], "via": null, "admin": false, "may": ["create", "read", "decide", "gate"], "gates": []})
    );
    let agents = app.owner().get("/v1/agents").await;
    assert_eq!(agents.str("/agents/0/name"), "billing");
    assert_eq!(
        agents.body["agents"][0]["tools"][2],
        json!({"name": "refund", "description": "Pay an order back.", "effect": "once"})
    );
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"] {
        let reply = app.anonymous().get(path).await;
        assert!(
            reply.status == 200 || reply.status == 303 || reply.status == 307,
            "{path}: {}",
            reply.status
        );
    }
    let metrics = app.anonymous().get("/metrics").await.text;
    assert!(
        metrics.contains("holdpoint_build_info") && !metrics.contains("alice"),
        "{metrics}"
    );
    app.stop().await;
}
