//! Tests of trees in which a task is canceled, a task fails, or a request expires. The tests check
//! how the other tasks go on, and the effects of a retry and of the user's next message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{
    agent_of, assert_invariants, assert_outcomes, begin, call, completed, does, give, id, of, only,
    open, outcomes, patient, paused, pays, prompts, results, scripted_answer, statuses, still,
    task, tree, trees, turn, typed, unattended,
};
use crate::support::eventually;
use crate::support::test_app::{On, Reply, TestApp};

async fn cancel(app: &TestApp, task: &str) -> Reply {
    app.owner().cancel(task).await
}

/// Sends the user's next message: the list of the turns that the supervisor makes next.
async fn message(app: &TestApp, task: &str, turns: &[serde_json::Value], supersede: bool) -> Reply {
    let body = json!({"input": json!(turns).to_string(), "supersede": supersede});
    app.owner().message(task, &body).await
}

#[apply(on_both)]
async fn task_of_a_sub_agent_takes_no_message_and_no_retry(on: On) {
    let app = trees(on, "").await;
    let root = paused(
        &app,
        &does(&[pays("analyst", 1), give("clerk", &[json!(0)])], "ok"),
    )
    .await;
    let root_id = root.str("/task_id");
    let (analyst, clerk) = (
        only(&app, &root_id, "analyst").await,
        only(&app, &root_id, "clerk").await,
    );
    assert_eq!(
        (&analyst["status"], &clerk["status"]),
        (&json!("Paused"), &json!("Failed")),
        "{clerk}"
    );
    for (child, status) in [(&id(&analyst), "Paused"), (&id(&clerk), "Failed")] {
        for refused in [
            message(&app, child, &[json!("hello")], false).await,
            message(&app, child, &[json!("hello")], true).await,
            app.owner().hit(&format!("/v1/tasks/{child}/retry")).await,
        ] {
            refused.assert_code(409, "not_a_root_task");
            assert_eq!(
                (
                    refused.str("/root_task_id"),
                    refused.str("/task_status").as_str()
                ),
                (root_id.clone(), status)
            );
        }
    }
    let refused = message(&app, &root_id, &[json!("hello")], false).await;
    refused.assert_code(409, "task_paused");
    assert_eq!(refused.body["pending"], root.body["pending"]);
    app.stop().await;
}

#[apply(on_both)]
async fn sub_agent_is_canceled_alone_and_its_parent_goes_on(on: On) {
    let app = trees(on, "").await;
    let root = paused(&app, &does(&[pays("analyst", 1)], "supervisor: without")).await;
    let (root_id, request) = (root.str("/task_id"), open(&root)[0].1.clone());
    let analyst = id(&only(&app, &root_id, "analyst").await);
    let canceled = cancel(&app, &analyst).await;
    canceled.assert_status(200, "Canceled");
    assert_eq!(canceled.str("/task_id"), analyst);
    assert_eq!(canceled.body["pending"], json!([]));
    let end = still(&app, &root_id).await;
    end.assert_completed("supervisor: without");
    assert_outcomes(&app, &root_id, &[("analyst", "canceled")]).await;
    assert_outcomes(&app, &analyst, &[("refund", "canceled")]).await;
    let late = app.owner().approve(&request).await;
    late.assert_code(409, "request_withdrawn");
    assert_eq!(
        cancel(&app, &analyst).await.str("/status"),
        "Canceled",
        "again changes nothing"
    );
    let over = cancel(&app, &root_id).await;
    over.assert_code(409, "task_final");
    assert!(app.tool.ledger().is_empty());
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn cancel_of_the_root_cancels_its_whole_subtree_in_one_commit(on: On) {
    let app = trees(on, "").await;
    let deep = give(
        "analyst",
        &[turn(&[pays("clerk", 1), give("scribe", &[json!("noted")])])],
    );
    let root = paused(&app, &[turn(&[deep, pays("clerk", 2)])]).await;
    let root_id = root.str("/task_id");
    assert_eq!(open(&root).len(), 2);
    let canceled = cancel(&app, &root_id).await;
    canceled.assert_status(200, "Canceled");
    assert_eq!(canceled.body["pending"], json!([]));
    let mut at = Vec::new();
    for one in tree(&app, &root_id).await {
        let expected = if one["agent"] == "scribe" {
            "Completed"
        } else {
            "Canceled"
        };
        assert_eq!(
            (&one["status"], &one["pending"]),
            (&json!(expected), &json!([])),
            "{one}"
        );
        if expected == "Canceled" {
            let journal = items(&app, &id(&one)).await;
            at.push(typed(&journal, "task_status").last().unwrap()["at"].clone());
        }
    }
    assert_eq!(at.len(), 4);
    assert!(at.iter().all(|moment| *moment == at[0]), "{at:?}");
    for (_, request) in open(&root) {
        let late = app.owner().approve(&request).await;
        late.assert_code(409, "request_withdrawn");
        assert_eq!(late.body["pending"], json!([]));
    }
    assert_eq!(
        app.owner().get("/v1/requests").await.body["requests"],
        json!([])
    );
    assert!(app.tool.ledger().is_empty());
    assert_eq!(cancel(&app, &root_id).await.str("/status"), "Canceled");
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn call_running_while_its_tree_is_canceled_gets_a_late_result(on: On) {
    let app = patient(on).await;
    app.tool.close();
    let works = give("analyst", &[turn(&[call("lose", &json!({"order": 1}))])]);
    let root = unattended(&app, &[turn(&[works])]).await;
    app.tool.reached(1).await;
    assert_eq!(cancel(&app, &root).await.str("/status"), "Canceled");
    let analyst = id(&only(&app, &root, "analyst").await);
    assert_outcomes(&app, &analyst, &[("lose", "unknown")]).await;
    assert_outcomes(&app, &root, &[("analyst", "canceled")]).await;
    app.tool.open();
    let kept = async || {
        let journal = items(&app, &analyst).await;
        typed(&journal, "late_result").first().copied().cloned()
    };
    let late = eventually("the late result is kept", kept).await;
    assert_eq!(
        (&late["outcome"], &late["name"]),
        (&json!("succeeded"), &json!("lose"))
    );
    let shown = task(&app, &root).await;
    assert_eq!(
        (shown.str("/status").as_str(), &shown.body["pending"]),
        ("Canceled", &json!([]))
    );
    app.stop().await;
}

#[apply(on_both)]
async fn failed_sub_agent_is_reported_to_its_parent(on: On) {
    let app = trees(on, "").await;
    let end = completed(
        &app,
        &does(
            &[
                give("analyst", &[json!(0)]),
                give("clerk", &[json!("clerk: fine")]),
            ],
            "supervisor: so what",
        ),
    )
    .await;
    let root_id = end.str("/task_id");
    assert_eq!(end.str("/output"), "supervisor: so what");
    let analyst = task(&app, &id(&only(&app, &root_id, "analyst").await)).await;
    assert_eq!(
        (analyst.str("/status"), analyst.str("/error/code")),
        ("Failed".to_owned(), "model_failed".to_owned())
    );
    assert_eq!(
        outcomes(&items(&app, &root_id).await),
        [("analyst", "failed"), ("clerk", "succeeded")]
    );
    let told = results(prompts(&app, "supervisor").last().unwrap());
    assert!(!told[0].is_empty() && told[1] == "clerk: fine", "{told:?}");
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn failed_root_is_retried_without_starting_a_sub_agent_again(on: On) {
    let app = trees(on, "").await;
    let broken = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&broken);
    app.model.otherwise(move |body| {
        let ends = agent_of(body) == "supervisor" && !results(body).is_empty();
        if ends && seen.load(Ordering::SeqCst) {
            json!({"error": {"message": "no"}})
        } else {
            scripted_answer(body)
        }
    });
    let root = paused(
        &app,
        &does(
            &[pays("analyst", 1), give("clerk", &[json!(0)])],
            "supervisor: at last",
        ),
    )
    .await;
    let root_id = root.str("/task_id");
    let failed = app.owner().approve(&open(&root)[0].1).await;
    failed.assert_status(200, "Failed");
    assert_eq!(failed.str("/error/code"), "model_failed");
    broken.store(false, Ordering::SeqCst);
    let end = app.owner().hit(&format!("/v1/tasks/{root_id}/retry")).await;
    assert_eq!(end.status, 200, "{}", end.text);
    end.assert_completed("supervisor: at last");
    assert_eq!(tree(&app, &root_id).await.len(), 3);
    assert_eq!(app.tool.ledger().len(), 1);
    assert_eq!(
        (
            prompts(&app, "analyst").len(),
            outcomes(&items(&app, &root_id).await)
        ),
        (2, vec![("analyst", "succeeded"), ("clerk", "failed")])
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn next_message_goes_on_after_many_sub_agents_and_an_orphaned_call(on: On) {
    let app = trees(on, "").await;
    let three = turn(&[
        give("analyst", &[json!("a")]),
        give("clerk", &[json!("b")]),
        give("analyst", &[json!("c")]),
    ]);
    let root = completed(&app, &[three.clone(), json!("first")]).await;
    let root_id = root.str("/task_id");
    for round in 2..=5 {
        let end = message(
            &app,
            &root_id,
            &[three.clone(), json!(format!("round {round}"))],
            false,
        )
        .await;
        end.assert_text(200, "/output", &format!("round {round}"));
    }
    assert_eq!(tree(&app, &root_id).await.len(), 16);
    let held = message(&app, &root_id, &[turn(&[pays("clerk", 9)])], false).await;
    held.assert_status(200, "Paused");
    assert_eq!(cancel(&app, &root_id).await.str("/status"), "Canceled");
    let end = message(&app, &root_id, &[three, json!("on we go")], false).await;
    assert_eq!(end.status, 200, "{}", end.text);
    end.assert_completed("on we go");
    assert_eq!(tree(&app, &root_id).await.len(), 20);
    assert!(app.tool.ledger().is_empty());
    let last = prompts(&app, "supervisor").last().unwrap().clone();
    let told = last["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .count();
    assert_eq!(told, 19, "each call has its one result in the prompt");
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn superseding_message_cancels_waiting_sub_agents(on: On) {
    let app = trees(on, "").await;
    let deep = give("analyst", &[turn(&[pays("clerk", 1)])]);
    let root = paused(
        &app,
        &[turn(&[deep, give("clerk", &[json!("clerk: done before")])])],
    )
    .await;
    let (root_id, request) = (root.str("/task_id"), open(&root)[0].1.clone());
    let analyst = id(&only(&app, &root_id, "analyst").await);
    let end = message(&app, &root_id, &[json!("something else")], true).await;
    assert_eq!(end.status, 200, "{}", end.text);
    end.assert_completed("something else");
    assert_eq!(
        outcomes(&items(&app, &root_id).await),
        [("analyst", "canceled"), ("clerk", "succeeded")]
    );
    for one in tree(&app, &root_id).await {
        let waited = id(&one) == analyst || one["parent"]["task_id"] == analyst.as_str();
        assert!(!waited || one["status"] == "Canceled", "{one}");
    }
    let late = app.owner().approve(&request).await;
    late.assert_code(409, "request_withdrawn");
    let closed = items(&app, late.body["request"]["task_id"].as_str().unwrap()).await;
    assert!(typed(&closed, "request_closed")[0]["status"] == "withdrawn");
    let told = prompts(&app, "supervisor").last().unwrap()["messages"]
        .as_array()
        .unwrap()
        .clone();
    let roles: Vec<_> = told
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(
        roles,
        ["system", "user", "assistant", "tool", "tool", "user"]
    );
    assert!(app.tool.ledger().is_empty());
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn message_is_refused_while_a_sub_agent_works(on: On) {
    let app = trees(on, "").await;
    app.tool.close();
    let works = give("analyst", &[turn(&[call("lookup", &json!({"order": 1}))])]);
    let root = unattended(&app, &[turn(&[works])]).await;
    app.tool.reached(1).await;
    for supersede in [false, true] {
        let refused = message(&app, &root, &[json!("hello")], supersede).await;
        refused.assert_code(409, "task_running");
    }
    app.tool.open();
    assert_eq!(still(&app, &root).await.str("/status"), "Completed");
    assert_eq!(
        statuses(&items(&app, &root).await),
        ["Running", "Completed"]
    );
    app.stop().await;
}

#[apply(on_both)]
async fn request_of_a_sub_agent_expires_for_it_alone(on: On) {
    let rule = "  - { name: short, tools: [refund], when: \"args.order == 1\", decide: hold, expires_in: 500ms, on_expiry: {then} }\n";
    for (then, analyst, outcome) in [
        ("continue", "Completed", "succeeded"),
        ("cancel", "Canceled", "canceled"),
    ] {
        let app = trees(on, &rule.replace("{then}", then)).await;
        let root = begin(&app, &does(&[pays("analyst", 1), pays("clerk", 2)], "ok")).await;
        let root_id = root.str("/task_id");
        let clerk_waits_alone = async || {
            let shown = still(&app, &root_id).await;
            let waiting = open(&shown);
            let (_, first) = of(&app, &root_id, "clerk")
                .await
                .first()
                .map(|clerk| (id(clerk), clerk["status"].clone()))
                .unwrap();
            if only(&app, &root_id, "analyst").await["status"] == analyst
                && waiting.len() == 1
                && first == "Paused"
            {
                return Some(waiting[0].1.clone());
            }
            None
        };
        let clerk = eventually("only the request of the clerk is open", clerk_waits_alone).await;
        let end = app.owner().approve(&clerk).await;
        assert_eq!(end.str("/status"), "Completed", "{then}: {}", end.text);
        assert_eq!(
            outcomes(&items(&app, &root_id).await),
            [("analyst", outcome), ("clerk", "succeeded")],
            "{then}"
        );
        assert_invariants(&app, &root_id).await;
        app.stop().await;
    }
}
