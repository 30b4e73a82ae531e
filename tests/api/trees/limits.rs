//! Tests of limits over a tree. An agent's limits count the work of its task and of the task's
//! descendants since the user's last message.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{items, results_of};
use super::{
    assert_asks, assert_invariants, assert_outcomes, begin, call, completed, does, give, id,
    limited, of, only, open, outcomes, paused, pays, refund, task, tree, turn, typed, with,
};
use crate::support::test_app::{On, Reply, TestApp};

/// Returns the number of a task's calls that ended as `invalid`. Asserts that the result of each of
/// these calls names the limit.
async fn refused(app: &TestApp, task: &str, limit: &str) -> usize {
    let journal = items(app, task).await;
    let refused: Vec<Value> = typed(&journal, "tool_result")
        .into_iter()
        .filter(|result| result["outcome"] == "invalid")
        .cloned()
        .collect();
    for result in &refused {
        assert!(
            result["content"].as_str().unwrap().contains(limit),
            "{result}"
        );
        let judged = typed(&journal, "judged")
            .into_iter()
            .rfind(|judged| judged["tool_call_id"] == result["tool_call_id"])
            .unwrap()
            .clone();
        assert_eq!(judged["verdict"], "invalid", "{journal:#?}");
        assert_eq!(
            results_of(&journal, result["tool_call_id"].as_str().unwrap()).len(),
            1
        );
    }
    refused.len()
}

/// Creates a tree in which two sub-agents repeat a call of another sub-agent, and rejects that
/// call. Returns the root's id and the reply to the rejection.
async fn repeated_twice(app: &TestApp) -> (String, Reply) {
    let root = paused(
        app,
        &[
            turn(&[pays("analyst", 1)]),
            turn(&[pays("clerk", 1)]),
            turn(&[pays("analyst", 1)]),
            json!("end"),
        ],
    )
    .await;
    (root.str("/task_id"), reject(app, &open(&root)[0].1).await)
}

async fn reject(app: &TestApp, request: &str) -> Reply {
    let body = json!({"action": "reject", "then": "continue", "reason": "no"});
    app.owner().answer(request, &body).await
}

fn looks(order: u32) -> Value {
    turn(&[call("lookup", &json!({"order": order}))])
}

#[apply(on_both)]
async fn sub_agents_nest_only_as_deep_as_the_root_allows(on: On) {
    let app = with(on, "", limited("supervisor", "max_depth: 2")).await;
    let deepest = give("analyst", &[json!("too deep")]);
    let clerk = give("clerk", &does(&[deepest], "clerk: alone"));
    let root = completed(&app, &does(&[give("analyst", &[turn(&[clerk])])], "end")).await;
    let root_id = root.str("/task_id");
    assert_eq!(tree(&app, &root_id).await.len(), 3);
    let clerk = id(&only(&app, &root_id, "clerk").await);
    assert_eq!(refused(&app, &clerk, "max_depth").await, 1);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn max_depth_of_0_starts_no_sub_agent(on: On) {
    let app = with(on, "", limited("supervisor", "max_depth: 0")).await;
    let root = completed(&app, &does(&[give("analyst", &[json!("x")])], "end")).await;
    assert_eq!(
        (
            refused(&app, &root.str("/task_id"), "max_depth").await,
            tree(&app, &root.str("/task_id")).await.len()
        ),
        (1, 1)
    );
    app.stop().await;
}

#[apply(on_both)]
async fn turn_starts_no_more_sub_agents_than_its_limit(on: On) {
    let app = with(on, "", limited("supervisor", "max_children: 2")).await;
    let three = turn(&[
        give("analyst", &[json!("a")]),
        give("clerk", &[json!("b")]),
        give("clerk", &[json!("c")]),
    ]);
    let root = completed(&app, &[three.clone(), three, json!("end")]).await;
    let root_id = root.str("/task_id");
    assert_eq!(
        refused(&app, &root_id, "max_children").await,
        2,
        "one in each turn"
    );
    assert_eq!(tree(&app, &root_id).await.len(), 5);
    let expected = [
        ("analyst", "succeeded"),
        ("clerk", "succeeded"),
        ("clerk", "invalid"),
    ];
    assert_outcomes(&app, &root_id, &[expected, expected].concat()).await;
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn turn_of_a_sub_agent_starts_no_more_sub_agents_than_the_root_allows(on: On) {
    let app = with(on, "", limited("supervisor", "max_children: 1")).await;
    let two = turn(&[give("clerk", &[json!("b")]), give("clerk", &[json!("c")])]);
    let root = completed(&app, &does(&[give("analyst", &[two, json!("a")])], "end")).await;
    let root_id = root.str("/task_id");
    let analyst = id(&only(&app, &root_id, "analyst").await);
    assert_eq!(
        (
            refused(&app, &analyst, "max_children").await,
            of(&app, &root_id, "clerk").await.len()
        ),
        (1, 1)
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn turn_of_a_sub_agent_with_more_calls_than_the_root_allows_runs_none(on: On) {
    let app = with(on, "", limited("supervisor", "max_calls: 2")).await;
    let look = |order: u32| call("lookup", &json!({"order": order}));
    let three = turn(&[look(1), look(2), look(3)]);
    let root = completed(
        &app,
        &does(&[give("analyst", &[three, looks(4), json!("a")])], "end"),
    )
    .await;
    let root_id = root.str("/task_id");
    let analyst = id(&only(&app, &root_id, "analyst").await);
    assert_eq!(
        (
            refused(&app, &analyst, "2 calls at most").await,
            app.tool.ledger().len()
        ),
        (3, 1)
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn tree_starts_no_more_sub_agents_per_message_than_its_limit(on: On) {
    let app = with(on, "", limited("supervisor", "max_tasks: 2")).await;
    let below = give("analyst", &does(&[give("clerk", &[json!("deep")])], "a"));
    let program = [
        turn(&[below]),
        turn(&[give("clerk", &[json!("one too many")])]),
        json!("end"),
    ];
    let root = completed(&app, &program).await;
    let root_id = root.str("/task_id");
    assert_eq!(
        (
            tree(&app, &root_id).await.len(),
            refused(&app, &root_id, "max_tasks").await
        ),
        (3, 1)
    );
    let body = json!({"input": json!([[give("clerk", &[json!("again")])], "end"]).to_string()});
    let next = app.owner().message(&root_id, &body).await;
    assert_eq!(next.str("/status"), "Completed", "{}", next.text);
    assert_eq!(
        (
            tree(&app, &root_id).await.len(),
            refused(&app, &root_id, "max_tasks").await
        ),
        (4, 1),
        "a message counts anew"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn model_calls_of_the_root_are_counted_over_its_tree(on: On) {
    let app = with(on, "", limited("supervisor", "max_model_calls: 3")).await;
    let root = begin(
        &app,
        &does(
            &[give("analyst", &[looks(1), looks(2), looks(3), json!("a")])],
            "end",
        ),
    )
    .await;
    let root_id = root.str("/task_id");
    root.assert_status(201, "Failed");
    assert_eq!(root.str("/error/code"), "limit_reached");
    assert_eq!(root.str("/error/limit"), "max_model_calls");
    assert_eq!(app.model.sent().len(), 3);
    let analyst = task(&app, &id(&only(&app, &root_id, "analyst").await)).await;
    assert!(
        ["Failed", "Canceled"].contains(&analyst.str("/status").as_str()),
        "{}",
        analyst.text
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn limit_of_a_sub_agent_ends_it_alone(on: On) {
    let app = with(on, "", limited("analyst", "max_model_calls: 2")).await;
    let root = completed(
        &app,
        &does(
            &[
                give("analyst", &[looks(1), looks(2), json!("a")]),
                give("clerk", &[looks(1), looks(2), json!("c")]),
            ],
            "end",
        ),
    )
    .await;
    let root_id = root.str("/task_id");
    let analyst = task(&app, &id(&only(&app, &root_id, "analyst").await)).await;
    assert_eq!(
        (
            analyst.str("/status"),
            analyst.str("/error/code"),
            analyst.str("/error/limit")
        ),
        (
            "Failed".to_owned(),
            "limit_reached".to_owned(),
            "max_model_calls".to_owned()
        )
    );
    let journal = items(&app, &root_id).await;
    assert_eq!(
        outcomes(&journal),
        [("analyst", "failed"), ("clerk", "succeeded")]
    );
    let told = typed(&journal, "tool_result")
        .into_iter()
        .find(|result| result["outcome"] == "failed")
        .unwrap()["content"]
        .clone();
    assert!(
        told.as_str().unwrap().contains("max_model_calls"),
        "its parent is told which: {told}"
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn rejections_are_counted_over_the_tree(on: On) {
    let app = with(on, "", limited("supervisor", "max_rejections: 1")).await;
    let (root_id, end) = repeated_twice(&app).await;
    assert_eq!(
        (end.str("/status"), end.str("/error/code")),
        ("Failed".to_owned(), "limit_reached".to_owned()),
        "{}",
        end.text
    );
    assert_eq!(end.str("/error/limit"), "max_rejections");
    assert!(app.tool.ledger().is_empty());
    assert_eq!(of(&app, &root_id, "analyst").await.len(), 2);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn tree_that_failed_at_a_limit_goes_on_with_the_next_message(on: On) {
    let app = with(on, "", limited("supervisor", "max_model_calls: 3")).await;
    let failed = begin(
        &app,
        &does(&[give("analyst", &[looks(1), looks(2), json!("a")])], "end"),
    )
    .await;
    assert_eq!(failed.str("/status"), "Failed", "{}", failed.text);
    let body = json!({"input": json!([[give("clerk", &[json!("c")])], "end"]).to_string()});
    let end = app.owner().message(&failed.str("/task_id"), &body).await;
    assert_eq!(end.status, 200, "{}", end.text);
    end.assert_completed("end");
    assert_invariants(&app, &failed.str("/task_id")).await;
    app.stop().await;
}

#[apply(on_both)]
async fn tree_that_failed_at_max_rejections_goes_on_with_the_next_message(on: On) {
    let app = with(on, "", limited("supervisor", "max_rejections: 1")).await;
    let (root_id, failed) = repeated_twice(&app).await;
    assert_eq!(failed.str("/error/limit"), "max_rejections");
    let body = json!({"input": json!(["end"]).to_string()});
    let end = app.owner().message(&root_id, &body).await;
    assert_eq!(end.status, 200, "{}", end.text);
    end.assert_completed("end");
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn superseding_message_resets_limits_that_sub_agents_have_spent(on: On) {
    let app = with(on, "", limited("supervisor", "max_rejections: 1")).await;
    let pay = || turn(&[refund(1)]);
    let insists = give("analyst", &[pay(), pay(), pay(), json!("a")]);
    let root = paused(&app, &does(&[insists, pays("clerk", 2)], "end")).await;
    let root_id = root.str("/task_id");
    let analyst = id(&only(&app, &root_id, "analyst").await);
    let pending = open(&root);
    let of_analyst = pending.iter().find(|(asking, _)| *asking == analyst);
    let waits = reject(&app, &of_analyst.unwrap().1).await;
    assert_asks(&waits, 1);
    let failed = task(&app, &analyst).await;
    assert_eq!(failed.str("/error/limit"), "max_rejections");
    let body = json!({"input": json!(["end"]).to_string(), "supersede": true});
    let end = app.owner().message(&root_id, &body).await;
    assert_eq!(end.status, 200, "{}", end.text);
    end.assert_completed("end");
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}
