//! Tests of clients that wait for a tree of which some tasks run, and of a decision about one task
//! while another task of the tree runs.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::{
    begin, call, does, give, id, of, only, open, pays, statuses, still, task, trees, turn,
};
use crate::api::approval_cycle::on_both;
use crate::api::request_kinds::items;
use crate::support::eventually;
use crate::support::test_app::On;

#[apply(on_both)]
async fn client_waits_for_a_sub_agent_as_for_a_root(on: On) {
    let app = trees(on, "").await;
    app.tool.close();
    let slow = turn(&[call("lookup", &json!({"order": 1}))]);
    let program = does(
        &[
            give("analyst", &[slow, json!("analyst: looked")]),
            pays("clerk", 17),
        ],
        "ok",
    );
    let body = json!({"input": json!(program).to_string()});
    let root = app
        .owner()
        .prefer("respond-async")
        .post("/v1/tasks", &body)
        .await;
    root.assert_status(202, "Running");
    let root_id = root.str("/task_id");
    app.tool.reached(1).await;
    let started = async || of(&app, &root_id, "clerk").await.first().map(id);
    let clerk = eventually("the clerk is started", started).await;
    assert_eq!(still(&app, &clerk).await.str("/status"), "Paused");
    let shown = task(&app, &root_id).await;
    assert_eq!(
        shown.str("/status"),
        "Running",
        "one of its sub-agents works"
    );
    assert_eq!(shown.count("pending"), 1);
    let analyst = id(&only(&app, &root_id, "analyst").await);
    let zero = app.owner().prefer("wait=0").task(&analyst).await;
    assert_eq!(zero.str("/status"), "Running");
    let (waited, ()) = tokio::join!(still(&app, &analyst), async { app.tool.open() });
    waited.assert_completed("analyst: looked");
    assert_eq!(still(&app, &root_id).await.str("/status"), "Paused");
    app.stop().await;
}

#[apply(on_both)]
async fn decision_is_taken_while_a_sibling_works(on: On) {
    let app = trees(on, "").await;
    app.tool.close();
    let slow = turn(&[call("lookup", &json!({"order": 1}))]);
    let held = turn(&[call(
        "request_human_guidance",
        &json!({"question": "Which?"}),
    )]);
    let program = does(
        &[
            give("analyst", &[slow]),
            give("clerk", &[held, json!("clerk: heard")]),
        ],
        "ok",
    );
    let body = json!({"input": json!(program).to_string()});
    let root = app
        .owner()
        .prefer("respond-async")
        .post("/v1/tasks", &body)
        .await;
    let root_id = root.str("/task_id");
    app.tool.reached(1).await;
    let asked = async || open(&task(&app, &root_id).await).pop();
    let (_, request) = eventually("the clerk asks", asked).await;
    let body = json!({"action": "respond", "response": {"answer": "north"}});
    let taken = app.owner().prefer("wait=0").answer(&request, &body).await;
    taken.assert_status(202, "Running");
    let clerk = id(&only(&app, &root_id, "clerk").await);
    assert_eq!(still(&app, &clerk).await.str("/output"), "clerk: heard");
    app.tool.open();
    let end = still(&app, &root_id).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert_eq!(
        statuses(&items(&app, &root_id).await),
        ["Running", "Completed"],
        "something ran all the time"
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_waiting_for_a_running_tree_is_answered_when_it_pauses() {
    let app = trees(On::Sqlite, "").await;
    let root = begin(
        &app,
        &[turn(&[give(
            "analyst",
            &[turn(&[pays("clerk", 1), pays("clerk", 2)])],
        )])],
    )
    .await;
    root.assert_status(201, "Paused");
    assert_eq!(open(&root).len(), 2);
    app.stop().await;
}
