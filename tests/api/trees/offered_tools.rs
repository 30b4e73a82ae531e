//! Tests of sub-agents as a model and a client see them.

use serde_json::{Value, json};

use crate::support::fake_chat_completions::text_answer;
use crate::support::test_app::{ACCOUNTS, On, TestApp};

/// The configuration of a supervisor with two sub-agents, one of them without a description.
const OFFERED: &str = r#"
models:
  main: { provider: openai, base_url: "{model}", model: fake, api_key: "${MODEL_KEY}", retries: 1 }
tools:
  lookup: { description: Looks up., effect: read_only, http: { method: POST, url: "{tool}/lookup" }, parameters: { type: object, properties: { order: { type: integer } } } }
agents:
  supervisor: { description: Leads., model: main, tools: [lookup], sub_agents: [analyst, { agent: clerk, session: true }], human: [guidance] }
  analyst: { description: Answers questions from the data., model: main, tools: [lookup] }
  clerk: { model: main, tools: [lookup] }
default_agent: supervisor
policy:
  - { name: reads, tools: [lookup], decide: allow }
  - { name: no-deletes, tools: [analyst], when: "args.task.contains('delete')", decide: deny, reason: Nothing is deleted. }
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_is_offered_each_sub_agent_as_a_tool_with_a_task() {
    let app = TestApp::with(On::Sqlite, &(OFFERED.to_owned() + ACCOUNTS)).await;
    app.model.then(text_answer("no need"));
    let done = app.owner().create_task("hello").await;
    done.assert_status(201, "Completed");
    let sent = app.model.sent();
    let offered: Vec<&Value> = sent[0]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| &tool["function"])
        .collect();
    let names: Vec<_> = offered
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["lookup", "analyst", "clerk", "request_human_guidance"]
    );
    assert_eq!(
        offered[1]["description"],
        "Answers questions from the data."
    );
    assert_eq!(
        offered[2]["description"],
        "Gives a task to the agent clerk and returns its answer."
    );
    for tool in &offered[1..3] {
        let parameters = &tool["parameters"];
        assert_eq!(
            parameters["properties"]
                .as_object()
                .unwrap()
                .keys()
                .collect::<Vec<_>>(),
            ["task"]
        );
        assert_eq!(
            (
                &parameters["properties"]["task"]["type"],
                &parameters["required"]
            ),
            (&json!("string"), &json!(["task"]))
        );
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_sees_which_agents_an_agent_may_call() {
    let app = TestApp::with(On::Sqlite, &(OFFERED.to_owned() + ACCOUNTS)).await;
    let shown = app.owner().get("/v1/agents").await;
    let agents: Vec<_> = shown.body["agents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|agent| (agent["name"].clone(), agent["sub_agents"].clone()))
        .collect();
    let expected = [
        ("analyst", json!([])),
        ("clerk", json!([])),
        ("supervisor", json!(["analyst", "clerk"])),
    ];
    assert_eq!(agents, expected.map(|(name, subs)| (json!(name), subs)));
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_example_of_agents_that_call_agents_works() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/agents.md")).unwrap();
    let section = page.split("## Agents that call agents\n").nth(1).unwrap();
    let blocks: Vec<&str> = section
        .split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|block| Some(block.split_once('\n')?.1))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("desk-says.yaml");
    std::fs::write(&script, blocks[1]).unwrap();
    let app = TestApp::with(
        On::Sqlite,
        &blocks[0].replace("desk-says.yaml", script.to_str().unwrap()),
    )
    .await;
    assert!(blocks[2].contains(r#"{"input": "Please refund 120 for order 17"}"#));
    let held = app
        .anonymous()
        .create_task("Please refund 120 for order 17")
        .await;
    assert_eq!(
        (
            held.str("/status").as_str(),
            &held.body["pending"][0]["agent_path"]
        ),
        ("Paused", &json!(["desk", "refunds"]))
    );
    let done = app
        .anonymous()
        .hit(&held.str("/pending/0/approval_url"))
        .await;
    assert_eq!(
        done.str("/output"),
        "The refund desk says: Done: 120 was paid back for order 17.",
        "{}",
        done.text
    );
    let tree = app
        .anonymous()
        .get(&format!("/v1/tasks?root_task_id={}", held.str("/task_id")))
        .await;
    assert_eq!(tree.count("tasks"), 2);
    app.stop().await;
}
