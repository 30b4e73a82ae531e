//! Tests of trees of tasks while they run: deep trees, a single slot, two replicas, cancels and
//! superseding messages.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{
    assert_invariants, assert_outcomes, call, completed, does, give, id, of, only, open, outcomes,
    patient, paused, pays, prompts, refund, results, scripted_answer, still, task, text, tree,
    trees, turn, typed, unattended, with,
};
use crate::support::test_app::On;
use crate::support::{eventually, until};

/// Returns a call that starts a chain of `depth` sub-agents. The last sub-agent has the turns
/// `last`.
fn chain(depth: usize, last: &[Value]) -> Value {
    let agent = |level: usize| if level % 2 == 1 { "analyst" } else { "clerk" };
    let mut inner = give(agent(depth), last);
    for level in (1..depth).rev() {
        inner = give(agent(level), &[turn(&[inner])]);
    }
    turn(&[inner])
}

fn looks(order: u32) -> Value {
    turn(&[call("lookup", &json!({"order": order}))])
}

#[apply(on_both)]
async fn request_of_the_deepest_allowed_sub_agent_is_shown_at_the_root(on: On) {
    let app = trees(on, "").await;
    let root = paused(&app, &[chain(5, &does(&[refund(1)], "paid")), json!("end")]).await;
    let root_id = root.str("/task_id");
    assert_eq!(
        root.body["pending"][0]["agent_path"],
        json!([
            "supervisor",
            "analyst",
            "clerk",
            "analyst",
            "clerk",
            "analyst"
        ])
    );
    assert!(
        tree(&app, &root_id)
            .await
            .iter()
            .all(|task| task["status"] == "Paused" && task["pending"] == root.body["pending"])
    );
    let end = app.owner().approve(&open(&root)[0].1).await;
    end.assert_completed("end");
    assert_eq!(app.tool.ledger().len(), 1);
    assert_invariants(&app, &root_id).await;
    let deeper = completed(&app, &[chain(6, &[json!("too deep")]), json!("end")]).await;
    assert_eq!(tree(&app, &deeper.str("/task_id")).await.len(), 6);
    app.stop().await;
}

#[apply(on_both)]
async fn tree_works_with_one_running_task_at_a_time(on: On) {
    let app = with(on, "", |yaml| {
        yaml.replace("wait: 60s }", "wait: 60s, max_running: 1 }")
    })
    .await;
    let three = turn(&[
        give("clerk", &[looks(1)]),
        give("clerk", &[looks(2)]),
        give("scribe", &[looks(3)]),
    ]);
    let wide = turn(&[
        give("analyst", &[three]),
        give("clerk", &[looks(4)]),
        give("analyst", &[turn(&[give("clerk", &[looks(5)])])]),
    ]);
    let root = completed(&app, &[wide, json!("end")]).await;
    let root_id = root.str("/task_id");
    assert_eq!(root.str("/output"), "end");
    assert_invariants(&app, &root_id).await;
    let held = paused(
        &app,
        &does(
            &[pays("analyst", 1), pays("clerk", 2), pays("analyst", 3)],
            "end",
        ),
    )
    .await;
    for (_, request) in open(&held) {
        assert_eq!(app.owner().approve(&request).await.status, 200);
    }
    assert_eq!(
        still(&app, &held.str("/task_id")).await.str("/status"),
        "Completed"
    );
    app.stop().await;
}

#[apply(on_both)]
async fn sub_agent_canceled_during_a_call_leaves_it_unknown_and_its_parent_goes_on(on: On) {
    let app = patient(on).await;
    app.tool.close();
    let works = give("analyst", &[turn(&[call("lose", &json!({"order": 1}))])]);
    let root = unattended(&app, &does(&[works], "supervisor: without")).await;
    app.tool.reached(1).await;
    let analyst = id(&only(&app, &root, "analyst").await);
    let canceled = app.owner().cancel(&analyst).await;
    assert_eq!(canceled.str("/status"), "Canceled", "{}", canceled.text);
    let end = still(&app, &root).await;
    // The root does not wait for its child.
    end.assert_completed("supervisor: without");
    assert_outcomes(&app, &root, &[("analyst", "canceled")]).await;
    assert_outcomes(&app, &analyst, &[("lose", "unknown")]).await;
    app.tool.open();
    let is_kept = async || !typed(&items(&app, &analyst).await, "late_result").is_empty();
    until("the late result is kept", is_kept).await;
    let shown = task(&app, &root).await;
    assert_eq!(
        (shown.str("/status").as_str(), &shown.body["pending"]),
        ("Completed", &json!([])),
        "no reconcile request is open"
    );
    assert_invariants(&app, &root).await;
    app.stop().await;
}

#[apply(on_both)]
async fn sub_agents_can_be_canceled_as_they_begin(on: On) {
    let app = trees(on, "").await;
    for _ in 0..8 {
        let three = [
            give("analyst", &[looks(1)]),
            give("clerk", &[looks(2)]),
            give("analyst", &[looks(3)]),
        ];
        let root = unattended(&app, &does(&three, "end")).await;
        let started = async || {
            Some(tree(&app, &root).await.split_off(1)).filter(|children| children.len() == 3)
        };
        let children = eventually("three children are started", started).await;
        for child in &children {
            let canceled = app.owner().cancel(&id(child)).await;
            assert!([200, 409].contains(&canceled.status), "{}", canceled.text);
        }
        let end = still(&app, &root).await;
        end.assert_completed("end");
        for (child, (_, outcome)) in children.iter().zip(outcomes(&items(&app, &root).await)) {
            let found = tree(&app, &root)
                .await
                .into_iter()
                .find(|task| task["task_id"] == child["task_id"])
                .unwrap();
            let expected = if found["status"] == "Canceled" {
                "canceled"
            } else {
                "succeeded"
            };
            assert_eq!(outcome, expected, "{found}");
        }
        assert_invariants(&app, &root).await;
    }
    app.stop().await;
}

#[apply(on_both)]
async fn sub_agent_may_return_an_empty_output(on: On) {
    let app = trees(on, "").await;
    let root = completed(&app, &does(&[give("analyst", &[json!("")])], "end")).await;
    let journal = items(&app, &root.str("/task_id")).await;
    assert_eq!(outcomes(&journal), [("analyst", "succeeded")]);
    assert_eq!(typed(&journal, "tool_result")[0]["content"], "");
    app.stop().await;
}

#[apply(on_both)]
async fn long_output_of_a_sub_agent_is_kept_whole_and_cut_for_the_model(on: On) {
    let app = trees(on, "").await;
    let long = "é".repeat(100_000);
    let root = completed(&app, &does(&[give("analyst", &[json!(long)])], "end")).await;
    let root_id = root.str("/task_id");
    assert_eq!(only(&app, &root_id, "analyst").await["output"], long);
    assert_eq!(
        typed(&items(&app, &root_id).await, "tool_result")[0]["content"],
        long
    );
    let told = &results(prompts(&app, "supervisor").last().unwrap())[0];
    assert!(
        told.len() < 70_000 && told.starts_with("éé"),
        "{}",
        told.len()
    );
    app.stop().await;
}

#[apply(on_both)]
async fn conversation_goes_on_after_a_superseding_message(on: On) {
    let app = trees(on, "").await;
    let root = paused(&app, &does(&[pays("scribe", 1), pays("scribe", 2)], "end")).await;
    let root_id = root.str("/task_id");
    let next = json!([turn(&[give("scribe", &[json!("noted")])]), "end"]).to_string();
    let body = json!({"input": next, "supersede": true});
    let end = app.owner().message(&root_id, &body).await;
    assert_eq!(end.status, 200, "{}", end.text);
    end.assert_completed("end");
    let scribe = only(&app, &root_id, "scribe").await;
    assert_eq!(
        (&scribe["status"], &scribe["output"]),
        (&json!("Completed"), &json!("noted"))
    );
    let last = prompts(&app, "scribe").last().unwrap().clone();
    let users: Vec<_> = last["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "user")
        .map(text)
        .collect();
    assert_eq!(
        users.len(),
        2,
        "a call that had not begun never reached the scribe: {users:?}"
    );
    let journal = items(&app, &root_id).await;
    let results = outcomes(&journal);
    assert_eq!(
        (results.len(), results[0], results[2]),
        (3, ("scribe", "canceled"), ("scribe", "succeeded"))
    );
    assert!(
        ["canceled", "withdrawn"].contains(&results[1].1),
        "{results:?}"
    );
    assert!(app.tool.ledger().is_empty());
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_share_one_tree_without_repeating_a_call() {
    let one = trees(On::Postgres, "").await;
    let two = one.replica().await;
    for _ in 0..4 {
        let (ran, asked) = (one.tool.ledger().len(), one.model.sent().len());
        one.model.otherwise(scripted_answer);
        let below = |order: u32| {
            give(
                "analyst",
                &does(&[pays("clerk", order), pays("clerk", order + 1)], "both"),
            )
        };
        let root = paused(&one, &does(&[below(1), below(3), pays("clerk", 5)], "end")).await;
        let root_id = root.str("/task_id");
        let requests = open(&root);
        assert_eq!(requests.len(), 5, "{}", root.text);
        let (first, second) = (one.owner(), two.owner());
        let answers = requests.iter().enumerate().map(|(place, (_, request))| {
            let actor = if place % 2 == 0 { &first } else { &second };
            actor.approve(request)
        });
        for answer in futures_util::future::join_all(answers).await {
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
        let end = still(&two, &root_id).await;
        end.assert_completed("end");
        assert_eq!(one.tool.ledger().len(), ran + 5);
        assert_eq!(of(&one, &root_id, "clerk").await.len(), 5);
        assert_eq!(
            one.model.sent().len(),
            asked + 16,
            "no model is asked twice for one turn"
        );
        assert_invariants(&one, &root_id).await;
    }
    two.stop().await;
    one.stop().await;
}
