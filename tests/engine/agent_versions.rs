//! Tests which agent version a task uses. The version stays pinned from one user message to the
//! next, even if the configuration changes in between.

mod attempts;
mod damage;

use holdpoint::engine::Refusal;
use holdpoint::task::decision::Action;
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::engine_harness::{
    EngineHarness, alice, alice_decides, alice_is_refused, alice_writes, message, outcomes, whole,
};
use crate::store::store_fixture::{StoreFixture, both};

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];

const TAG: &[(&str, &str)] = &[("tag", r#"{"text":"paid"}"#)];

/// Returns the configuration with a changed refund agent. The agent has other instructions, another
/// model and fewer tools, and the tool `refund` has another description.
fn changed(yaml: &str) -> String {
    with_another_model(yaml)
        .replace(
            "model: main, instructions: You handle refunds., tools: [lookup, tag, refund, forbidden]",
            "model: other, instructions: You are new., tools: [lookup, refund]",
        )
        .replace("Pay an order back.", "Give money back.")
}

fn with_another_model(yaml: &str) -> String {
    if yaml.contains("  other:") {
        return yaml.to_owned();
    }
    yaml.replace(
        "models:\n",
        "models:\n  other: { provider: openai, base_url: \"{model}\", model: fake }\n",
    )
}

/// Returns three parts of the last prompt: the model's name, the instructions, and the tools with
/// their descriptions.
fn shown(harness: &EngineHarness) -> (String, String, Vec<String>) {
    let (model, prompt) = harness.prompted();
    let tools = prompt
        .tools
        .iter()
        .map(|tool| format!("{}: {}", tool.name, tool.description))
        .collect();
    (model, prompt.system.unwrap_or_default(), tools)
}

fn before() -> (String, String, Vec<String>) {
    let tools = [
        "lookup: ",
        "tag: ",
        "refund: Pay an order back.",
        "forbidden: ",
    ];
    (
        "main".to_owned(),
        "You handle refunds.".to_owned(),
        tools.map(str::to_owned).to_vec(),
    )
}

fn after() -> (String, String, Vec<String>) {
    let tools = ["lookup: ", "refund: Give money back."];
    (
        "other".to_owned(),
        "You are new.".to_owned(),
        tools.map(str::to_owned).to_vec(),
    )
}

async fn failure(harness: &EngineHarness, task: TaskId) -> Option<FailureCode> {
    let row = harness.journal(task).await.row;
    assert_eq!(
        (row.status, row.open_requests, row.busy),
        (TaskStatus::Failed, 0, 0)
    );
    row.error.map(|error| error.code)
}

async fn retry(harness: &EngineHarness, task: TaskId) {
    harness.engine(0).retry(&alice(), task, None).await.unwrap();
    run(harness, task).await;
}

/// Drives the task until it no longer runs. A claim skips a task whose row is locked, so there may
/// be several claims.
async fn run(harness: &EngineHarness, task: TaskId) {
    for _ in 0..20 {
        harness.run().await;
        if harness.status(task).await != TaskStatus::Running {
            return;
        }
        harness.later();
    }
}

async fn approved(harness: &EngineHarness) -> TaskId {
    let task = harness.held().await;
    harness.answer_all(&harness.engine(0), task).await;
    task
}

#[apply(both)]
async fn paused_task_keeps_its_agent_version_until_the_next_message(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let task = harness.held().await;
    let version = harness.journal(task).await.row.agent_version;
    harness.configure(changed);
    harness.answer_all(&harness.engine(0), task).await;
    harness.run().await;
    assert_eq!(shown(&harness), before());
    let row = harness.journal(task).await.row;
    assert_eq!(row.status, TaskStatus::Completed);
    assert_eq!(row.agent_version, version);
    alice_writes(&harness.engine(0), task, message("go")).await;
    assert_ne!(
        harness.journal(task).await.row.agent_version,
        version,
        "in the commit of the message"
    );
    harness.run().await;
    assert_eq!(shown(&harness), after());
    let current = harness.queued().await;
    assert_eq!(
        harness.journal(current).await.row.agent_version,
        harness.journal(task).await.row.agent_version
    );
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn tasks_of_two_agent_versions_run_side_by_side_on_either_replica(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.configure(with_another_model);
    let (old, old_task) = (harness.engine(4), harness.held().await);
    harness.configure(changed);
    let (new, new_task) = (harness.engine(4), harness.held().await);
    for (engine, task, expected) in [(&new, old_task, before()), (&old, new_task, after())] {
        harness.answer_all(engine, task).await;
        harness.until_stopped(task).await;
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        assert_eq!(shown(&harness), expected);
        assert_eq!(harness.executions(task, "/refund"), 1);
    }
}

#[apply(both)]
async fn removed_model_fails_the_task_and_a_retry_goes_on_when_it_is_back(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let whole_yaml = harness.yaml();
    let task = approved(&harness).await;
    let version = harness.journal(task).await.row.agent_version;
    harness.configure(|yaml| {
        yaml.replace("  main:", "  renamed:")
            .replace("model: main", "model: renamed")
    });
    harness.run().await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Configuration)
    );
    retry(&harness, task).await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Configuration),
        "the model is still gone"
    );
    harness.configure(|_| whole_yaml.clone());
    retry(&harness, task).await;
    let row = harness.journal(task).await.row;
    assert_eq!(row.status, TaskStatus::Completed);
    assert_eq!(row.agent_version, version);
    assert_eq!(shown(&harness), before());
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn conversation_whose_agents_name_is_now_a_gates_fails_at_its_next_message(
    fixture: StoreFixture,
) {
    // A call at a gate would end with the result of `lookup` as its output.
    let mut harness = EngineHarness::new(fixture, &[("lookup", r#"{"order":1}"#)]).await;
    let whole_yaml = harness.yaml();
    let task = harness.stopped().await;
    let ended = harness.journal(task).await.row;
    assert_eq!(ended.status, TaskStatus::Completed);
    let prompts = harness.prompt_count();
    harness.configure(|yaml| {
        yaml.replacen("  billing:", "  clerk:", 1) + "gates:\n  billing: { tools: [lookup] }\n"
    });
    alice_writes(&harness.engine(0), task, message("go")).await;
    run(&harness, task).await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Configuration)
    );
    let version = harness.journal(task).await.row.agent_version;
    assert_eq!(version, ended.agent_version, "not that of the gate");
    assert_eq!(harness.prompt_count(), prompts);
    harness.configure(|_| whole_yaml.clone());
    retry(&harness, task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.prompt_count(), prompts + 1);
    assert_eq!(shown(&harness), before());
    assert_eq!(harness.executions(task, "/lookup"), 1);
}

#[apply(both)]
async fn removed_variable_fails_the_task_and_a_retry_uses_its_new_value(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.variables.push(("WHO", "Ada"));
    harness.replace("You handle refunds.", "\"You are ${WHO}.\"");
    let task = approved(&harness).await;
    harness.variables.pop();
    harness.replace("${WHO}", "nobody");
    harness.run().await;
    assert_eq!(
        failure(&harness, task).await,
        Some(FailureCode::Configuration)
    );
    assert_eq!(harness.executions(task, "/refund"), 0);
    harness.variables.push(("WHO", "Eve"));
    retry(&harness, task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(shown(&harness).1, "You are Eve.".to_owned());
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn changed_limit_and_changed_policy_apply_at_once(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let original = harness.yaml();
    let limited = approved(&harness).await;
    harness.configure(|yaml| {
        changed(yaml).replace(
            "model: other,",
            "model: other, limits: { max_model_calls: 1 },",
        )
    });
    harness.run().await;
    assert_eq!(
        failure(&harness, limited).await,
        Some(FailureCode::LimitReached)
    );
    harness.configure(|_| original.clone());
    let denied = approved(&harness).await;
    let deny = "decide: deny, reason: Refunds above 20 need a look. }";
    harness.configure(|yaml| {
        changed(yaml).replace(
            "decide: hold, reason: Refunds above 20 need a look., approvers: { owner: true } }",
            deny,
        )
    });
    harness.run().await;
    assert_eq!(outcomes(&harness.journal(denied).await), [Outcome::Denied]);
    assert_eq!(harness.executions(limited, "/refund"), 1);
    assert_eq!(harness.executions(denied, "/refund"), 0);
}

#[apply(both)]
async fn changed_secret_of_a_tool_is_sent_with_an_approved_call(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let task = approved(&harness).await;
    let variables = &mut harness.variables;
    variables.retain(|(name, _)| *name != "TOOL_SECRET");
    variables.push(("TOOL_SECRET", "newer-secret-0123456789"));
    run(&harness, task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    let sent = harness.tool.ledger();
    let secrets: Vec<_> = sent.iter().map(|call| call.header("x-secret")).collect();
    assert_eq!(secrets, ["newer-secret-0123456789"]);
}

#[apply(both)]
async fn lower_limit_of_calls_stops_no_turn_that_has_begun_and_refuses_the_next_task(
    fixture: StoreFixture,
) {
    const CALLS: &[(&str, &str)] = &[
        ("lookup", r#"{"order":1}"#),
        ("refund", r#"{"order":1,"amount":5}"#),
        ("tag", r#"{"text":"paid"}"#),
    ];
    let mut harness = EngineHarness::new(fixture, CALLS).await;
    // `lookup` succeeds, and the outcome of `refund` stays unknown.
    harness.tool.answers_next(&[200, 504]);
    let task = harness.stopped().await;
    let doubt = harness.only_request(task, RequestKind::Reconcile).await;
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Succeeded],
        "`tag` waits for the person"
    );
    harness.replace(
        "refund, forbidden]",
        "refund, forbidden], limits: { max_calls: 2 }",
    );
    let retry = whole(Action::Retry, None);
    alice_decides(&harness.engine(0), doubt, retry).await;
    run(&harness, task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Succeeded; 3]
    );
    let sent = ["/lookup", "/refund", "/tag"].map(|path| harness.executions(task, path));
    assert_eq!(sent, [1, 2, 1]);
    let refused = harness.stopped().await;
    assert_eq!(
        outcomes(&harness.journal(refused).await),
        [Outcome::Invalid; 3]
    );
}

#[apply(both)]
async fn tool_with_a_changed_target_is_asked_about_anew(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let (waiting, task) = (harness.held().await, approved(&harness).await);
    harness.replace("{tool}/refund", "{tool}/elsewhere");
    harness.run().await;
    harness.only_request(task, RequestKind::Approval).await;
    let request = harness.only_request(waiting, RequestKind::Approval).await;
    let answered =
        alice_is_refused(&harness.engine(0), request, whole(Action::Approve, None)).await;
    assert_eq!(answered, Refusal::Withdrawn(request));
    assert_eq!(harness.tool.ledger().len(), 0);
    harness.finish(task).await;
    assert_eq!(harness.executions(task, "/refund"), 0);
    assert_eq!(harness.executions(task, "/elsewhere"), 1);
}
