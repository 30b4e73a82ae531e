//! Tests which tasks and requests of a tree the lists show.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::{completed, id, only, paused, tree, trees};
use super::analyst_asks;
use crate::api::approval_cycle::on_both;
use crate::support::test_app::On;

#[apply(on_both)]
async fn request_of_a_sub_agent_is_listed_for_each_task_of_its_tree(on: On) {
    let app = trees(on, "").await;
    let root = paused(&app, &analyst_asks()).await;
    let root_id = root.str("/task_id");
    let inbox = app.owner().get("/v1/requests").await;
    assert_eq!(
        inbox.body["requests"],
        json!([root.body["pending"][0]]),
        "{}",
        inbox.text
    );
    let analyst = id(&only(&app, &root_id, "analyst").await);
    let clerk = id(&only(&app, &root_id, "clerk").await);
    for filter in [
        format!("task_id={root_id}"),
        format!("task_id={analyst}"),
        format!("task_id={clerk}"),
        "agent=analyst".to_owned(),
    ] {
        let found = app.owner().get(&format!("/v1/requests?{filter}")).await;
        assert_eq!(found.count("requests"), 1, "{filter}: {}", found.text);
    }
    app.stop().await;
}

#[apply(on_both)]
async fn lists_show_only_roots_unless_a_tree_is_asked_for(on: On) {
    let app = trees(on, "").await;
    let (one, other) = (
        paused(&app, &analyst_asks()).await,
        completed(&app, &[json!("nothing")]).await,
    );
    let listed = app.owner().get("/v1/tasks").await;
    let ids: Vec<_> = listed.body["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(id)
        .collect();
    assert_eq!(ids, [other.str("/task_id"), one.str("/task_id")]);
    assert_eq!(listed.body["tasks"][1], one.body);
    let tree = tree(&app, &one.str("/task_id")).await;
    let agents: Vec<_> = tree
        .iter()
        .map(|task| task["agent"].as_str().unwrap())
        .collect();
    assert_eq!((agents[0], agents.len()), ("supervisor", 3));
    assert!(
        tree.iter()
            .all(|task| task["root_task_id"] == one.body["task_id"])
    );
    let path = format!(
        "/v1/tasks?root_task_id={}&status=Completed",
        one.str("/task_id")
    );
    let filtered = app.owner().get(&path).await;
    assert_eq!(filtered.count("tasks"), 1, "{}", filtered.text);
    assert_eq!(filtered.str("/tasks/0/agent"), "clerk");
    app.stop().await;
}
