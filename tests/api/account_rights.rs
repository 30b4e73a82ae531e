//! Tests of the permissions to read, change and decide, and of the inbox. Each key of two tenants
//! is tried at each endpoint.

use macro_rules_attribute::apply;
use serde_json::json;

use super::approval_cycle::on_both;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::test_app::{
    ACCOUNTS, ALICE, Actor, BOB, CAROL, OPS, OTHER, On, REFUNDS, TestApp, WEB,
};

const BOB_READS: &str = "bob-reads-0123456789";
const BOB_DECIDES: &str = "bob-decides-01234567";
const ALICE_READS: &str = "alice-reads-01234567";
const ADMIN: &str = "admin-key-0123456789";
const NARROW: &str = r#"
    - { user: bob, tenant: acme, groups: [finance], key: "bob-reads-0123456789", may: [read] }
    - { user: bob, tenant: acme, groups: [finance], key: "bob-decides-01234567", may: [decide] }
    - { user: alice, tenant: acme, groups: [support], key: "alice-reads-01234567", may: [read] }
    - { user: dora, tenant: acme, groups: [finance], key: "dora-decides-0123456", may: [decide] }
    - { user: root, tenant: acme, key: "admin-key-0123456789", admin: true }
"#;

async fn app(on: On) -> TestApp {
    let accounts = format!("{}{}", ACCOUNTS.trim_end(), NARROW);
    TestApp::with(
        on,
        &(REFUNDS.replace("{approvers}", "{ groups: [finance] }") + &accounts),
    )
    .await
}

/// Returns the status that a caller gets at each endpoint. Every body is invalid, because it has
/// the member `zzz`. So nothing changes, and 422 means that the caller has the right.
async fn endpoint_statuses(actor: &Actor<'_>, task: &str, request: &str) -> Vec<u16> {
    let tree = format!("/v1/tasks/{task}");
    let mut statuses = Vec::new();
    for path in [
        tree.clone(),
        format!("{tree}/items"),
        format!("/v1/tasks?root_task_id={task}"),
        format!("/v1/requests?task_id={task}"),
        format!("/resume/{request}"),
        format!("/resume/{request}/approve"),
        "/v1/tasks".to_owned(),
        "/v1/requests".to_owned(),
        "/v1/me".to_owned(),
    ] {
        statuses.push(actor.get(&path).await.status);
    }
    for path in [
        format!("{tree}/messages"),
        format!("{tree}/cancel"),
        format!("{tree}/retry"),
        format!("/resume/{request}"),
        "/v1/tasks".to_owned(),
    ] {
        statuses.push(actor.post(&path, &json!({"zzz": 1})).await.status);
    }
    statuses
}

#[apply(on_both)]
async fn every_key_opens_exactly_the_endpoints_it_may_use(on: On) {
    let app = app(on).await;
    let held = app.held().await;
    let (ok, no, none, fits) = (200, 403, 404, 422);
    let expected = [
        // The statuses of GET (task, items, tree, requests, request, page, tasks, inbox, me)
        // and of POST (message, cancel, retry, decide, create).
        (
            "alice",
            ALICE,
            [
                ok, ok, ok, ok, ok, ok, ok, ok, ok, fits, fits, fits, no, fits,
            ],
        ),
        (
            "alice reads",
            ALICE_READS,
            [ok, ok, ok, ok, ok, ok, ok, ok, ok, no, no, no, no, no],
        ),
        (
            "bob",
            BOB,
            [ok, ok, ok, ok, ok, ok, ok, ok, ok, no, no, no, fits, fits],
        ),
        (
            "bob reads",
            BOB_READS,
            [ok, ok, ok, ok, ok, ok, ok, ok, ok, no, no, no, no, no],
        ),
        (
            "bob decides",
            BOB_DECIDES,
            [ok, ok, ok, ok, ok, ok, no, ok, no, no, no, no, fits, no],
        ),
        (
            "carol",
            CAROL,
            [no, no, no, no, no, no, ok, ok, ok, no, no, no, no, fits],
        ),
        (
            "ops",
            OPS,
            [ok, ok, ok, ok, ok, ok, ok, ok, ok, no, no, no, no, no],
        ),
        (
            "root",
            ADMIN,
            [ok, ok, ok, ok, ok, ok, ok, ok, ok, no, fits, fits, no, fits],
        ),
        (
            "web",
            WEB,
            [no, no, no, no, no, no, ok, ok, ok, no, no, no, no, fits],
        ),
        (
            "mallory",
            OTHER,
            [
                none, none, none, none, none, none, ok, ok, ok, none, none, none, none, fits,
            ],
        ),
    ];
    for (name, key, statuses) in expected {
        assert_eq!(
            endpoint_statuses(&app.actor(key), &held.task, &held.request).await,
            statuses,
            "{name}"
        );
    }
    assert_eq!(
        endpoint_statuses(&app.anonymous(), &held.task, &held.request).await,
        [401; 14]
    );
    let as_alice = app.on_behalf_of("alice", "finance");
    assert_eq!(
        endpoint_statuses(&as_alice, &held.task, &held.request).await,
        expected[0].2,
        "no group makes the owner an approver"
    );
    let as_zoe = app.on_behalf_of("zoe", "finance");
    assert_eq!(
        endpoint_statuses(&as_zoe, &held.task, &held.request).await,
        expected[2].2,
        "zoe is of finance"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn owner_whose_key_lacks_a_permission_is_told_of_the_key(on: On) {
    let app = app(on).await;
    let held = app.held().await;
    let tree = format!("/v1/tasks/{}", held.task);
    let reader = app.actor(ALICE_READS);
    let commands = ["messages", "cancel", "retry"].map(|command| format!("{tree}/{command}"));
    for path in ["/v1/tasks"]
        .into_iter()
        .chain(commands.iter().map(String::as_str))
    {
        let refused = reader.post(path, &json!({})).await;
        refused.about(&path).assert_code(403, "forbidden");
        assert_eq!(
            refused.str("/detail"),
            "This key may not create, continue or cancel tasks.",
            "{path}"
        );
    }
    app.stop().await;
}

#[apply(on_both)]
async fn inbox_lists_only_requests_the_caller_can_decide(on: On) {
    let app = app(on).await;
    let held = app.held().await;
    for (key, count) in [
        (ALICE, 0),
        (BOB, 1),
        (BOB_READS, 0),
        (BOB_DECIDES, 1),
        (CAROL, 0),
        (OPS, 0),
        (ADMIN, 0),
        (OTHER, 0),
    ] {
        for query in ["", "?status=pending", "?status=pending&status=pending"] {
            let inbox = app.actor(key).get(&format!("/v1/requests{query}")).await;
            let requests = inbox.body["requests"].as_array().unwrap();
            assert_eq!(requests.len(), count, "{key} {query}: {}", inbox.text);
            assert!(
                requests.iter().all(|request| request["can_decide"] == true),
                "{}",
                inbox.text
            );
        }
    }
    for (query, count) in [
        ("kind=approval", 1),
        ("kind=guidance", 0),
        ("agent=billing", 1),
        ("agent=x", 0),
        ("agent=x&agent=billing", 1),
        ("session_id=x", 0),
        ("status=resumed", 0),
        ("status=resumed&status=pending", 1),
        ("status=expired", 0),
    ] {
        let inbox = app.approver().get(&format!("/v1/requests?{query}")).await;
        assert_eq!(inbox.count("requests"), count, "{query}: {}", inbox.text);
    }
    let by_a_key_that_reads = async || {
        let list = app
            .actor(BOB_READS)
            .get("/v1/requests?status=pending&status=resumed")
            .await;
        list.count("requests")
    };
    assert_eq!(
        by_a_key_that_reads().await,
        0,
        "a key that may not decide lists no question"
    );
    app.model.then(text_answer("done"));
    assert_eq!(app.approver().approve(&held.request).await.status, 200);
    assert_eq!(by_a_key_that_reads().await, 1, "bob has decided it");
    for (query, count) in [("", 0), ("?status=resumed", 1), ("?status=pending", 0)] {
        let inbox = app.approver().get(&format!("/v1/requests{query}")).await;
        assert_eq!(inbox.count("requests"), count, "{query}: {}", inbox.text);
    }
    let tree = app
        .owner()
        .get(&format!("/v1/requests?task_id={}", held.task))
        .await;
    assert_eq!(
        tree.str("/requests/0/status"),
        "resumed",
        "a tree's requests in any status"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn owner_in_the_approving_group_neither_lists_the_decided_request_nor_reads_by_a_deciding_key(
    on: On,
) {
    let app = app(on).await;
    let dora = app.on_behalf_of("dora", "finance");
    let held = app.held_by(&dora).await;
    for path in [
        format!("/v1/tasks/{}", held.task),
        format!("/resume/{}", held.request),
    ] {
        assert_eq!(dora.get(&path).await.status, 200);
        assert_eq!(
            app.actor("dora-decides-0123456").get(&path).await.status,
            403,
            "{path}"
        );
    }
    app.model.then(text_answer("done"));
    assert_eq!(app.approver().approve(&held.request).await.status, 200);
    for (actor, count) in [(&dora, 0), (&app.approver(), 1)] {
        let list = actor.get("/v1/requests?status=resumed").await;
        assert_eq!(list.count("requests"), count, "{}", list.text);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn lists_are_paged_without_a_gap(on: On) {
    let app = app(on).await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(app.held().await);
    }
    let (mut tasks, mut requests) = (Vec::new(), Vec::new());
    for (actor, list, id, seen) in [
        (app.owner(), "tasks", "task_id", &mut tasks),
        (app.approver(), "requests", "request_id", &mut requests),
    ] {
        let mut cursor = String::new();
        loop {
            let page = actor.get(&format!("/v1/{list}?limit=2{cursor}")).await;
            seen.extend(page.texts(list, id).into_iter().map(str::to_owned));
            let Some(next) = page.body["next_cursor"].as_str() else {
                break;
            };
            cursor = format!("&cursor={next}");
        }
    }
    assert_eq!(
        tasks,
        made.iter()
            .rev()
            .map(|held| held.task.clone())
            .collect::<Vec<_>>(),
        "newest first"
    );
    assert_eq!(
        requests,
        made.iter()
            .map(|held| held.request.clone())
            .collect::<Vec<_>>(),
        "oldest first"
    );
    for query in [
        "limit=0",
        "limit=201",
        "limit=x",
        "limit=",
        "limit=1&limit=2",
        "cursor=x",
        "status=paused",
        "zzz=1",
        "agent=%00",
    ] {
        assert_eq!(
            app.owner().get(&format!("/v1/tasks?{query}")).await.status,
            422,
            "{query}"
        );
        assert_eq!(
            app.owner()
                .get(&format!("/v1/requests?{query}"))
                .await
                .status,
            422,
            "{query}"
        );
    }
    assert_eq!(app.owner().get("/v1/tasks?user_id=bob").await.status, 403);
    let unknown = "root_task_id=00000000-0000-7000-8000-000000000000";
    let path = format!("/v1/tasks?user_id=bob&{unknown}");
    assert_eq!(
        app.owner().get(&path).await.status,
        404,
        "a missing task is checked before the right"
    );
    assert_eq!(
        app.actor(OPS).get("/v1/tasks?user_id=bob").await.body["tasks"],
        json!([])
    );
    assert_eq!(app.actor(OPS).get("/v1/tasks").await.count("tasks"), 5);
    app.stop().await;
}

#[apply(on_both)]
async fn markup_written_by_others_stays_text(on: On) {
    let hostile = "<script>alert(1)</script>\"'><img src=x onerror=y>\r\nx-evil: 1 \u{202e}";
    // The service's own scripts. Any other script in a page comes from `hostile`.
    let ours =
        "<script src=\"/times.js\" defer></script><script src=\"/follow.js\" defer></script>";
    let strange = |text: &str| text.replacen(ours, "", 1).contains("<script");
    let escaped =
        |text: &str| !strange(text) && !text.contains("<img") && !text.contains('\u{202e}');
    let app = app(on).await;
    let bad = json!({"order": 17, "amount": 120, "note": hostile}).to_string();
    app.model.then(calls(&[
        ("refund", r#"{"order": 17, "amount": 120}"#),
        (hostile, "{}"),
        ("refund", &bad),
    ]));
    let held = app
        .owner()
        .post(
            "/v1/tasks",
            &json!({"input": hostile, "metadata": {"m": hostile}}),
        )
        .await;
    let path = format!("/resume/{}", held.str("/pending/0/request_id"));
    let page = || app.approver().accept_html();
    for place in [
        path.clone(),
        format!("{path}/approve"),
        format!("{path}/reject"),
    ] {
        let shown = page().get(&place).await;
        assert!(
            shown.status == 200 && escaped(&shown.text),
            "{}",
            shown.text
        );
        assert!(shown.header("x-evil").is_empty());
        shown.assert_has("&lt;script&gt;");
        shown.assert_has("\\u{202e}");
    }
    let wrong = page()
        .post(&path, &json!({"action": "approve", hostile: 1}))
        .await;
    assert!(
        wrong.status == 422 && escaped(&wrong.text),
        "{}",
        wrong.text
    );
    let rejected = app.on_behalf_of("<b>zoe</b>", "finance");
    let done = rejected
        .post(&format!("{path}/reject"), &json!({"reason": hostile}))
        .await;
    assert_eq!(done.str("/status"), "Canceled", "{}", done.text);
    let shown = page().get(&path).await;
    assert!(
        escaped(&shown.text) && !shown.text.contains("<b>") && shown.text.contains("&lt;b&gt;zoe"),
        "{}",
        shown.text
    );
    app.stop().await;
}
