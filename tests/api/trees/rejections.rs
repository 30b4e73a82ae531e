//! Tests of the rejection of a sub-agent's request: the tasks that the rejection ends, and the
//! agents that are told about the rejection.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::super::request_kinds::{items, results_of};
use super::{
    assert_asks, assert_invariants, assert_outcomes, call, does, give, id, of, only, open,
    outcomes, paused, pays, prompts, results, still, task, trees, turn, typed,
};
use crate::support::test_app::{On, Reply, TestApp};

/// Creates a tree in which the analyst and the clerk each have a held refund. Returns the root, the
/// analyst's request and the clerk's request.
async fn two_held(app: &TestApp) -> (Reply, String, String) {
    let root = paused(
        app,
        &does(
            &[pays("analyst", 1), pays("clerk", 2)],
            "supervisor: goes on",
        ),
    )
    .await;
    let of = |agent: &str| {
        let pending = root.body["pending"].as_array().unwrap();
        let found = pending
            .iter()
            .find(|request| request["agent_path"][1] == agent)
            .unwrap();
        found["request_id"].as_str().unwrap().to_owned()
    };
    let (analyst, clerk) = (of("analyst"), of("clerk"));
    (root, analyst, clerk)
}

#[apply(on_both)]
async fn rejection_cancels_the_asking_sub_agent_and_its_parent_is_told(on: On) {
    let app = trees(on, "").await;
    let (root, analysts, clerks) = two_held(&app).await;
    let root_id = root.str("/task_id");
    let body = json!({"reason": "wrong customer"});
    let told = app
        .owner()
        .post(&format!("/resume/{analysts}/reject"), &body)
        .await;
    told.assert_status(200, "Paused");
    assert_eq!(told.str("/task_id"), root_id);
    assert_eq!(open(&told).len(), 1, "the clerk still waits");
    let analyst = only(&app, &root_id, "analyst").await;
    assert_eq!(
        (&analyst["status"], &analyst["pending"], &analyst["output"]),
        (&json!("Canceled"), &json!([]), &json!(null))
    );
    assert_outcomes(&app, &id(&analyst), &[("refund", "rejected")]).await;
    assert_eq!(only(&app, &root_id, "clerk").await["status"], "Paused");
    let decided = app.owner().request(&analysts).await;
    assert_eq!(
        (decided.str("/decision/then"), decided.str("/status")),
        ("cancel".to_owned(), "resumed".to_owned())
    );

    let end = app.owner().approve(&clerks).await;
    end.assert_completed("supervisor: goes on");
    assert_eq!(
        outcomes(&items(&app, &root_id).await),
        [("analyst", "canceled"), ("clerk", "succeeded")]
    );
    let told = results(prompts(&app, "supervisor").last().unwrap());
    assert_eq!(told.len(), 2);
    assert!(told[0].to_lowercase().contains("cancel"), "{told:?}");
    assert_eq!(app.tool.ledger().len(), 1);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn rejection_with_cancel_root_ends_the_whole_tree(on: On) {
    let app = trees(on, "").await;
    let (root, analysts, clerks) = two_held(&app).await;
    let root_id = root.str("/task_id");
    let body = json!({"action": "reject", "then": "cancel_root", "reason": "stop it all"});
    let end = app.owner().answer(&analysts, &body).await;
    end.assert_status(200, "Canceled");
    assert_eq!(end.body["pending"], json!([]));
    for agent in ["analyst", "clerk"] {
        assert_eq!(only(&app, &root_id, agent).await["status"], "Canceled");
    }
    let late = app.owner().approve(&clerks).await;
    late.assert_code(409, "request_withdrawn");
    assert_eq!(late.str("/request/status"), "withdrawn");
    assert_eq!(late.body["pending"], json!([]));
    assert_eq!(
        app.owner().request(&analysts).await.str("/decision/then"),
        "cancel_root"
    );
    let journal = items(&app, &root_id).await;
    assert!(
        outcomes(&journal)
            .iter()
            .all(|(_, outcome)| *outcome == "canceled"),
        "{journal:#?}"
    );
    assert!(app.tool.ledger().is_empty());
    assert_eq!(prompts(&app, "supervisor").len(), 1);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn rejection_with_continue_lets_the_sub_agent_go_on(on: On) {
    let app = trees(on, "").await;
    let (root, analysts, clerks) = two_held(&app).await;
    let root_id = root.str("/task_id");
    let body = json!({"action": "reject", "then": "continue", "reason": "not this one"});
    let told = app.owner().answer(&analysts, &body).await;
    assert_eq!(told.str("/status"), "Paused", "{}", told.text);
    let analyst = only(&app, &root_id, "analyst").await;
    assert_eq!(
        (&analyst["status"], &analyst["output"]),
        (&json!("Completed"), &json!("analyst paid 1"))
    );
    assert!(results(prompts(&app, "analyst").last().unwrap())[0].contains("not this one"));
    let end = app.owner().approve(&clerks).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert_eq!(
        outcomes(&items(&app, &root_id).await),
        [("analyst", "succeeded"), ("clerk", "succeeded")]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn rule_decides_which_tasks_a_rejection_ends(on: On) {
    for (on_reject, root, analyst) in [
        ("cancel", "Paused", "Canceled"),
        ("continue", "Paused", "Completed"),
        ("cancel_root", "Canceled", "Canceled"),
    ] {
        let rule = format!(
            "  - {{ name: first, tools: [refund], when: \"args.order == 1\", decide: hold, on_reject: {on_reject} }}\n"
        );
        let app = trees(on, &rule).await;
        let (held, analysts, _) = two_held(&app).await;
        let told = app.owner().hit(&format!("/resume/{analysts}/reject")).await;
        told.about(&on_reject).assert_status(200, root);
        assert_eq!(
            only(&app, &held.str("/task_id"), "analyst").await["status"],
            analyst,
            "{on_reject}"
        );
        assert_invariants(&app, &held.str("/task_id")).await;
        app.stop().await;
    }
}

#[apply(on_both)]
async fn rejection_two_levels_down_is_told_one_level_up_only(on: On) {
    let app = trees(on, "").await;
    let middle = give(
        "analyst",
        &does(&[pays("clerk", 1)], "analyst: then without"),
    );
    let root = paused(&app, &does(&[middle], "ok")).await;
    let root_id = root.str("/task_id");
    let end = app
        .owner()
        .hit(&format!("/resume/{}/reject", open(&root)[0].1))
        .await;
    end.assert_status(200, "Completed");
    assert_outcomes(&app, &root_id, &[("analyst", "succeeded")]).await;
    let analyst = only(&app, &root_id, "analyst").await;
    assert_outcomes(&app, &id(&analyst), &[("clerk", "canceled")]).await;
    assert_eq!(only(&app, &root_id, "clerk").await["status"], "Canceled");
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn rejection_in_one_sub_agent_holds_for_its_sibling(on: On) {
    let app = trees(on, "").await;
    let root = paused(
        &app,
        &[
            turn(&[pays("analyst", 1)]),
            turn(&[pays("clerk", 1)]),
            json!("ok"),
        ],
    )
    .await;
    let root_id = root.str("/task_id");
    let body = json!({"action": "reject", "then": "continue", "reason": "never order 1"});
    let end = app.owner().answer(&open(&root)[0].1, &body).await;
    end.about(&"asked once only")
        .assert_status(200, "Completed");
    let journal = items(&app, &id(&only(&app, &root_id, "clerk").await)).await;
    let judged = typed(&journal, "judged");
    assert_eq!(judged.last().unwrap()["verdict"], "deny");
    let call = judged[0]["tool_call_id"].as_str().unwrap().to_owned();
    let result = results_of(&journal, &call)[0];
    assert_eq!(result["outcome"], "rejected");
    assert!(
        result["content"]
            .as_str()
            .unwrap()
            .contains("never order 1"),
        "{result}"
    );
    assert!(app.tool.ledger().is_empty());
    app.stop().await;
}

#[apply(on_both)]
async fn declined_guidance_is_told_to_the_asking_sub_agent(on: On) {
    let app = trees(on, "").await;
    let wonders = turn(&[call(
        "request_human_guidance",
        &json!({"question": "Which?"}),
    )]);
    let root = paused(
        &app,
        &does(
            &[give("analyst", &[wonders, json!("analyst: alone then")])],
            "ok",
        ),
    )
    .await;
    let end = app
        .owner()
        .hit(&format!("/resume/{}/reject", open(&root)[0].1))
        .await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    let root_id = root.str("/task_id");
    let journal = items(&app, &id(&only(&app, &root_id, "analyst").await)).await;
    assert_eq!(outcomes(&journal), [("request_human_guidance", "rejected")]);
    app.stop().await;
}

#[apply(on_both)]
async fn cancel_of_a_sub_agent_ends_its_own_sub_agents_too(on: On) {
    let app = trees(on, "").await;
    let deep = give("analyst", &does(&[pays("clerk", 3)], "deep"));
    let root = paused(&app, &does(&[deep, pays("clerk", 4)], "ok")).await;
    let root_id = root.str("/task_id");
    assert_eq!(open(&root).len(), 2);
    let analyst = id(&only(&app, &root_id, "analyst").await);
    let canceled = app.owner().cancel(&analyst).await;
    canceled.assert_status(200, "Canceled");
    assert_eq!(canceled.str("/task_id"), analyst);
    let waits = still(&app, &root_id).await;
    assert_asks(&waits, 1);
    let below: Vec<_> = of(&app, &root_id, "clerk")
        .await
        .iter()
        .map(|clerk| clerk["status"].clone())
        .collect();
    assert!(
        below.contains(&json!("Canceled")) && below.contains(&json!("Paused")),
        "{below:?}"
    );
    assert_eq!(task(&app, &analyst).await.body["pending"], json!([]));
    let end = app.owner().approve(&open(&waits)[0].1).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}
