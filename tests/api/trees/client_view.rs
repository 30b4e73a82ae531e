//! Tests of a tree of tasks as a client sees it: the tasks that show a request, the data that each
//! task reports, and the prompts of the models.

mod lists;
mod pages;
mod waits;

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{
    assert_invariants, does, give, id, only, open, outcomes, paused, pays, prompts, refund,
    scripted_answer, statuses, task, text, tree, trees, turn, typed,
};
use crate::support::test_app::{On, TestApp};

/// Returns the supervisor's turns. The first turn calls the analyst, whose refund is held, and the
/// clerk, which completes at once.
fn analyst_asks() -> Vec<Value> {
    does(
        &[
            pays("analyst", 17),
            give("clerk", &[json!("clerk: nothing to do")]),
        ],
        "supervisor: all done",
    )
    .to_vec()
}

/// Returns the numbers of tokens and of model calls, summed over the journals of a tree.
async fn spent(app: &TestApp, root: &str) -> (i64, i64) {
    let (mut tokens, mut asked) = (0, 0);
    for task in tree(app, root).await {
        for answer in typed(&items(app, &id(&task)).await, "assistant_message") {
            tokens += answer["usage"]["total_tokens"].as_i64().unwrap();
            asked += 1;
        }
    }
    (tokens, asked)
}

#[apply(on_both)]
async fn request_of_a_sub_agent_is_shown_at_its_root(on: On) {
    let app = trees(on, "").await;
    let root = paused(&app, &analyst_asks()).await;
    let root_id = root.str("/task_id");
    let (analyst, clerk) = (
        only(&app, &root_id, "analyst").await,
        only(&app, &root_id, "clerk").await,
    );
    let [(asking, request)] = &open(&root)[..] else {
        panic!("{}", root.text)
    };
    assert_eq!(*asking, id(&analyst));
    let asked = &root.body["pending"][0];
    assert_eq!(asked["agent_path"], json!(["supervisor", "analyst"]));
    assert_eq!(
        (&asked["root_task_id"], &asked["session_id"]),
        (&root.body["task_id"], &root.body["session_id"])
    );
    assert_eq!(asked["tool_calls"][0]["summary"], "Refund 120 for order 17");
    assert_eq!(
        (&asked["kind"], &asked["can_decide"]),
        (&json!("approval"), &json!(true))
    );
    assert_eq!(analyst["status"], "Paused");
    assert_eq!(
        (&analyst["pending"][0], &clerk["pending"]),
        (asked, &json!([]))
    );
    assert_eq!(
        (&clerk["status"], &clerk["output"]),
        (&json!("Completed"), &json!("clerk: nothing to do"))
    );
    for child in [&id(&analyst), &id(&clerk)] {
        let shown = task(&app, child).await;
        assert_eq!(
            shown.body,
            only(&app, &root_id, shown.body["agent"].as_str().unwrap()).await
        );
    }
    for task in [&root_id, &id(&clerk)] {
        let page = app
            .owner()
            .accept_html()
            .get(&format!("/tasks/{task}"))
            .await;
        page.assert_has("tree of 3");
    }
    let page = app.owner().accept_html().request(request).await;
    page.assert_has("supervisor › analyst");

    let end = app.owner().approve(request).await;
    end.assert_status(200, "Completed");
    assert_eq!(
        (end.str("/task_id"), end.str("/output")),
        (root_id.clone(), "supervisor: all done".to_owned())
    );
    let ledger = app.tool.ledger();
    assert_eq!(ledger.len(), 1);
    assert_eq!(
        (
            ledger[0].header("holdpoint-task-id"),
            ledger[0].header("holdpoint-user")
        ),
        (id(&analyst).as_str(), "alice")
    );
    assert_eq!(ledger[0].header("holdpoint-decided-by"), "alice");
    let decided = app.owner().request(request).await;
    assert_eq!(
        (decided.str("/status"), decided.str("/decision/action")),
        ("resumed".to_owned(), "approve".to_owned())
    );
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn parent_is_told_only_the_final_output_of_its_sub_agent(on: On) {
    let app = trees(on, "").await;
    app.tool.answers(200, "the-tools-own-words");
    let root = paused(&app, &analyst_asks()).await;
    let end = app.owner().approve(&open(&root)[0].1).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    let told = prompts(&app, "supervisor");
    assert_eq!(
        told.len(),
        2,
        "the model is asked again only when all calls have results: {told:#?}"
    );
    let messages = told[1]["messages"].as_array().unwrap();
    let roles: Vec<_> = messages
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
    assert_eq!(
        (text(&messages[3]), text(&messages[4])),
        (
            "analyst paid 17".to_owned(),
            "clerk: nothing to do".to_owned()
        )
    );
    assert!(!json!(told).to_string().contains("the-tools-own-words"));
    let analyst = prompts(&app, "analyst");
    assert_eq!(analyst.len(), 2);
    let roles: Vec<_> = analyst[1]["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].clone())
        .collect();
    assert_eq!(
        roles,
        ["system", "user", "assistant", "tool"],
        "a sub-agent sees nothing of its parent's conversation"
    );
    assert_eq!(
        text(&analyst[1]["messages"][1]),
        json!([[refund(17)], "analyst paid 17"]).to_string()
    );
    assert_eq!(text(&analyst[1]["messages"][3]), "the-tools-own-words");
    app.stop().await;
}

#[apply(on_both)]
async fn task_of_a_sub_agent_names_its_parent_root_and_owner(on: On) {
    let app = trees(on, "").await;
    let body = json!({"input": json!(analyst_asks()).to_string(), "session_id": "desk-7", "metadata": {"ticket": "T-1"}});
    let root = app.owner().post("/v1/tasks", &body).await;
    let root_id = root.str("/task_id");
    let started = items(&app, &root_id).await;
    let starts = typed(&started, "sub_agent_started");
    assert_eq!(starts.len(), 2, "{started:#?}");
    let agents = app.owner().get("/v1/agents").await;
    for start in starts {
        let child = task(&app, start["child_task_id"].as_str().unwrap())
            .await
            .body;
        assert_eq!(child["agent"], start["agent"]);
        assert_eq!(
            child["parent"],
            json!({"task_id": root_id, "tool_call_id": start["tool_call_id"]})
        );
        assert_eq!(
            (
                &child["root_task_id"],
                &child["session_id"],
                &child["user_id"]
            ),
            (&json!(root_id), &json!("desk-7"), &json!("alice"))
        );
        let card = agents.body["agents"]
            .as_array()
            .unwrap()
            .iter()
            .find(|card| card["name"] == child["agent"])
            .unwrap()
            .clone();
        assert_eq!(child["agent_version"], card["agent_version"]);
        let journal = items(&app, &id(&child)).await;
        assert_eq!(
            (
                &journal[0]["type"],
                &journal[0]["status"],
                &journal[1]["type"]
            ),
            (
                &json!("task_status"),
                &json!("Running"),
                &json!("user_message")
            )
        );
        assert_eq!(journal[1]["by"], "alice");
        assert_eq!(
            journal[0]["at"], start["at"],
            "the child's journal begins in the commit that starts it"
        );
    }
    let end = app.owner().approve(&open(&root)[0].1).await;
    let spent = spent(&app, &root_id).await;
    assert_eq!(
        (
            end.body["usage"]["total_tokens"].as_i64(),
            end.body["usage"]["model_calls"].as_i64()
        ),
        (Some(spent.0), Some(spent.1))
    );
    assert_eq!(app.model.sent().len(), 5);
    assert_eq!(spent.1, 5);
    assert_eq!(
        only(&app, &root_id, "analyst").await["usage"]["model_calls"],
        2
    );
    assert_eq!(
        only(&app, &root_id, "clerk").await["usage"]["model_calls"],
        1
    );
    app.stop().await;
}

#[apply(on_both)]
async fn status_reaches_the_root_in_the_commit_that_changes_it(on: On) {
    let app = trees(on, "").await;
    let clerk = pays("clerk", 17);
    let root = paused(
        &app,
        &does(&[give("analyst", &does(&[clerk], "analyst: paid"))], "ok"),
    )
    .await;
    let root_id = root.str("/task_id");
    let path = [
        root_id.clone(),
        id(&only(&app, &root_id, "analyst").await),
        id(&only(&app, &root_id, "clerk").await),
    ];
    assert_eq!(
        root.body["pending"][0]["agent_path"],
        json!(["supervisor", "analyst", "clerk"])
    );
    for one in &path {
        let shown = task(&app, one).await;
        assert_eq!(
            (shown.str("/status").as_str(), &shown.body["pending"]),
            ("Paused", &root.body["pending"])
        );
    }
    let end = app.owner().approve(&open(&root)[0].1).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    let mut journals = Vec::new();
    for one in &path {
        journals.push(items(&app, one).await);
    }
    let at = |journal: &[Value], nth: usize| typed(journal, "task_status")[nth]["at"].clone();
    for journal in &journals {
        assert_eq!(
            statuses(journal),
            ["Running", "Paused", "Running", "Completed"],
            "{journal:#?}"
        );
        assert_eq!(at(journal, 1), at(&journals[2], 1), "paused together");
        assert_eq!(at(journal, 2), at(&journals[2], 2), "resumed together");
    }
    assert_eq!(
        at(&journals[2], 1),
        typed(&journals[2], "intervention_requested")[0]["at"]
    );
    assert_eq!(
        at(&journals[2], 2),
        typed(&journals[2], "decision")[0]["at"]
    );
    assert_eq!(outcomes(&journals[0]), [("analyst", "succeeded")]);
    assert_eq!(outcomes(&journals[1]), [("clerk", "succeeded")]);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tree_goes_on_after_a_restart_and_on_another_replica() {
    let mut app = trees(On::Postgres, "").await;
    let clerk = pays("clerk", 17);
    let root = paused(&app, &[turn(&[give("analyst", &[turn(&[clerk])])])]).await;
    app.restart().await;
    let other = app.replica().await;
    other.model.otherwise(scripted_answer);
    let shown = task(&other, &root.str("/task_id")).await;
    assert_eq!(
        shown.body["pending"][0]["request_id"],
        root.body["pending"][0]["request_id"]
    );
    let end = other.owner().approve(&open(&root)[0].1).await;
    end.assert_completed("supervisor: analyst: clerk paid 17");
    assert_eq!(app.tool.ledger().len(), 1);
    assert_invariants(&app, &root.str("/task_id")).await;
    other.stop().await;
    app.stop().await;
}
