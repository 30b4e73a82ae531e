//! Tests of a configuration that changes while sub-agents wait: the agent version to which a task
//! is pinned, and agents that are removed.

use macro_rules_attribute::apply;
use serde_json::json;

use super::super::approval_cycle::on_both;
use super::super::request_kinds::items;
use super::{
    agent_of, assert_invariants, call, does, give, id, of, only, open, outcomes, paused, pays,
    prompts, results, still, trees, turn,
};
use crate::support::test_app::On;

#[apply(on_both)]
async fn parent_keeps_its_description_of_a_sub_agent_and_a_new_sub_agent_is_current(on: On) {
    let mut app = trees(on, "").await;
    let root = paused(
        &app,
        &[
            turn(&[pays("analyst", 1)]),
            turn(&[give("analyst", &[json!("again")])]),
            json!("end"),
        ],
    )
    .await;
    let root_id = root.str("/task_id");
    let before = only(&app, &root_id, "analyst").await["agent_version"].clone();
    app.restart_with(|yaml| {
        yaml.replace(
            "description: Answers questions from the data.",
            "description: Knows better by now.",
        )
    })
    .await;
    let end = app.owner().approve(&open(&root)[0].1).await;
    end.assert_completed("end");
    for prompt in prompts(&app, "supervisor") {
        let tool = prompt["tools"]
            .as_array()
            .unwrap()
            .iter()
            .find(|tool| tool["function"]["name"] == "analyst")
            .unwrap()
            .clone();
        assert_eq!(
            tool["function"]["description"],
            "Answers questions from the data."
        );
    }
    let analysts = of(&app, &root_id, "analyst").await;
    assert_eq!(analysts.len(), 2);
    assert_eq!(
        analysts[0]["agent_version"], before,
        "the waiting task keeps its version"
    );
    assert_ne!(
        analysts[1]["agent_version"], before,
        "a new task has the current version"
    );
    let body = json!({"input": json!(["hello"]).to_string()});
    app.owner().message(&root_id, &body).await;
    let last = prompts(&app, "supervisor").last().unwrap().to_string();
    assert!(last.contains("Knows better by now."), "{last}");
    app.stop().await;
}

#[apply(on_both)]
async fn sub_agent_removed_from_its_caller_is_an_invalid_tool(on: On) {
    let mut app = trees(on, "").await;
    let wonders = turn(&[call(
        "request_human_guidance",
        &json!({"question": "Which?"}),
    )]);
    let root = paused(
        &app,
        &[
            wonders,
            turn(&[give("scribe", &[json!("x")])]),
            json!("end"),
        ],
    )
    .await;
    app.restart_with(|yaml| {
        yaml.replace(", { agent: scribe, session: true }]", "]")
            .replace("  scribe: {", "  writer: {")
    })
    .await;
    let body = json!({"action": "respond", "response": {"answer": "north"}});
    let end = app.owner().answer(&open(&root)[0].1, &body).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    let journal = items(&app, &root.str("/task_id")).await;
    assert_eq!(
        outcomes(&journal),
        [
            ("request_human_guidance", "responded"),
            ("scribe", "invalid")
        ]
    );
    let told = results(prompts(&app, "supervisor").last().unwrap());
    assert!(told[1].contains("gone"), "{told:?}");
    app.stop().await;
}

#[apply(on_both)]
async fn waiting_sub_agent_removed_from_the_configuration_fails_and_its_parent_goes_on(on: On) {
    let mut app = trees(on, "").await;
    let root = paused(&app, &does(&[pays("scribe", 1), pays("analyst", 2)], "end")).await;
    let root_id = root.str("/task_id");
    let scribe = id(&only(&app, &root_id, "scribe").await);
    let of = |task: &str| {
        open(&root)
            .into_iter()
            .find(|(asking, _)| asking == task)
            .unwrap()
            .1
    };
    app.restart_with(|yaml| {
        yaml.replace(", { agent: scribe, session: true }]", "]")
            .replace("  scribe: {", "  writer: {")
    })
    .await;
    let told = app.owner().approve(&of(&scribe)).await;
    told.about(&"its agent is gone")
        .assert_code(409, "request_withdrawn");
    let shown = still(&app, &scribe).await;
    assert_eq!(
        (shown.str("/status"), shown.str("/error/code")),
        ("Failed".to_owned(), "configuration".to_owned())
    );
    let analyst = id(&only(&app, &root_id, "analyst").await);
    let end = app.owner().approve(&of(&analyst)).await;
    end.assert_completed("end");
    assert_eq!(
        outcomes(&items(&app, &root_id).await),
        [("scribe", "failed"), ("analyst", "succeeded")]
    );
    assert_eq!(app.tool.ledger().len(), 1);
    assert_invariants(&app, &root_id).await;
    app.stop().await;
}

#[apply(on_both)]
async fn stricter_rule_for_a_parent_stops_the_call_of_its_sub_agent(on: On) {
    let mut app = trees(on, "").await;
    let root = paused(&app, &does(&[pays("analyst", 1)], "end")).await;
    let rule = "policy:\n  - { name: not-any-more, tools: [refund], when: \"agent.name == 'supervisor'\", decide: deny, reason: Not any more. }\n";
    app.restart_with(|yaml| yaml.replace("policy:\n", rule))
        .await;
    let end = app.owner().approve(&open(&root)[0].1).await;
    assert_eq!(end.str("/status"), "Completed", "{}", end.text);
    assert!(app.tool.ledger().is_empty());
    let journal = items(
        &app,
        &id(&only(&app, &root.str("/task_id"), "analyst").await),
    )
    .await;
    assert_eq!(outcomes(&journal), [("refund", "denied")]);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompt_of_a_default_agent_is_recognized_as_its_own() {
    let app = trees(On::Sqlite, "").await;
    let body = json!({"agent": "clerk", "input": json!([[give("analyst", &[json!("a")])], "c"]).to_string()});
    let end = app.owner().post("/v1/tasks", &body).await;
    assert_eq!(end.str("/output"), "c", "{}", end.text);
    let agents: Vec<_> = app.model.sent().iter().map(agent_of).collect();
    assert_eq!(agents, ["clerk", "analyst", "clerk"]);
    app.stop().await;
}
