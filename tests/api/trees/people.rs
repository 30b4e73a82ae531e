//! Tests of permissions in a tree. A person who may read one task of the tree may read all its
//! tasks. A person may decide the requests whose rule names that person.

use macro_rules_attribute::apply;
use reqwest::Method;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::{call, does, give, id, only, open, paused, refund, trees, turn};
use crate::support::test_app::{Actor, OPS, OTHER, On};

/// Returns a refund that a member of `finance` has to approve.
fn large(order: u32) -> serde_json::Value {
    call("refund", &json!({"order": order, "amount": 600}))
}

/// Returns the HTTP statuses that a caller gets for these paths: a task, its items, the tasks of
/// its tree, the list of its requests, and one request.
async fn reads(actor: &Actor<'_>, task: &str, root: &str, request: &str) -> Vec<u16> {
    let mut statuses = Vec::new();
    for path in [
        format!("/v1/tasks/{task}"),
        format!("/v1/tasks/{task}/items"),
        format!("/v1/tasks?root_task_id={root}"),
        format!("/v1/requests?task_id={task}"),
        format!("/resume/{request}"),
    ] {
        statuses.push(actor.get(&path).await.status);
    }
    statuses
}

#[apply(on_both)]
async fn approver_of_one_request_reads_the_whole_tree_and_others_nothing(on: On) {
    let app = trees(on, "").await;
    let program = does(
        &[
            give("analyst", &does(&[large(1)], "paid")),
            give("clerk", &[json!("idle")]),
        ],
        "ok",
    );
    let root = paused(&app, &program).await;
    let root_id = root.str("/task_id");
    let request = open(&root)[0].1.clone();
    let (analyst, clerk) = (
        id(&only(&app, &root_id, "analyst").await),
        id(&only(&app, &root_id, "clerk").await),
    );
    for task in [&root_id, &analyst, &clerk] {
        for (actor, status) in [
            (app.owner(), 200),
            (app.approver(), 200),
            (app.actor(OPS), 200),
            (app.stranger(), 403),
            (app.actor(OTHER), 404),
            (app.anonymous(), 401),
        ] {
            let statuses = reads(&actor, task, &root_id, &request).await;
            assert_eq!(statuses, [status; 5]);
        }
        for (actor, status) in [
            (app.approver(), 403),
            (app.stranger(), 403),
            (app.actor(OTHER), 404),
        ] {
            assert_eq!(actor.cancel(task).await.status, status);
        }
    }

    let path = format!("/resume/{request}");
    let body = Some(("application/json", json!({"action": "approve"}).to_string()));
    for (actor, status) in [
        (app.owner(), 403),
        (app.stranger(), 403),
        (app.actor(OPS), 403),
        (app.actor(OTHER), 404),
    ] {
        let refused = actor.send(Method::POST, &path, body.clone()).await;
        assert_eq!(refused.status, status, "{}", refused.text);
    }
    assert_eq!(
        (
            &root.body["pending"][0]["can_decide"],
            &root.body["pending"][0]["allowed_actions"]
        ),
        (&json!(false), &json!([]))
    );
    assert_eq!(
        app.owner().get("/v1/requests").await.body["requests"],
        json!([])
    );
    let inbox = app.approver().get("/v1/requests").await;
    assert_eq!(
        (inbox.count("requests"), inbox.str("/requests/0/request_id")),
        (1, request.clone())
    );
    assert!(app.tool.ledger().is_empty());

    let end = app.approver().approve(&request).await;
    end.assert_status(200, "Completed");
    assert_eq!(end.str("/task_id"), root_id);
    assert_eq!(app.tool.ledger()[0].header("holdpoint-decided-by"), "bob");
    assert_eq!(app.tool.ledger()[0].header("holdpoint-user"), "alice");
    assert_eq!(
        reads(&app.approver(), &clerk, &root_id, &request).await,
        [200; 5],
        "bob has decided one of its requests"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn people_decide_only_their_own_requests_of_one_tree(on: On) {
    let app = trees(on, "").await;
    let program = [turn(&[
        give("analyst", &[turn(&[large(1)])]),
        give("clerk", &[turn(&[refund(2)])]),
    ])];
    let root = paused(&app, &program).await;
    let root_id = root.str("/task_id");
    let (analyst, clerk) = (
        id(&only(&app, &root_id, "analyst").await),
        id(&only(&app, &root_id, "clerk").await),
    );
    let of = |task: &str| {
        open(&root)
            .into_iter()
            .find(|(asking, _)| asking == task)
            .unwrap()
            .1
    };
    assert_eq!(app.approver().approve(&of(&clerk)).await.status, 403);
    let mine = app.owner().approve(&of(&clerk)).await;
    mine.assert_status(200, "Paused");
    let theirs = app.approver().approve(&of(&analyst)).await;
    theirs.assert_status(200, "Completed");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backend_speaks_for_the_owner_of_a_whole_tree() {
    let app = trees(
        On::Sqlite,
        "  - { name: by-groups, tools: [refund], when: \"'night' in user.groups\", decide: allow }\n",
    )
    .await;
    let web = || app.on_behalf_of("dora", "night");
    let program = [turn(&[give(
        "analyst",
        &[turn(&[give("clerk", &[turn(&[refund(1)])])])],
    )])];
    let done = web().create_task(&json!(program).to_string()).await;
    done.assert_status(201, "Completed");
    assert_eq!(
        app.tool.ledger().len(),
        1,
        "the groups of the owner's last message are those of the whole tree"
    );
    assert_eq!(app.tool.ledger()[0].header("holdpoint-user"), "dora");
    let tree = web()
        .get(&format!("/v1/tasks?root_task_id={}", done.str("/task_id")))
        .await;
    let owners = tree.texts("tasks", "user_id");
    assert_eq!(owners, ["dora", "dora", "dora"]);
    app.stop().await;
}
