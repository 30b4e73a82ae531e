//! Tests processes that panic, hang, shut down or come back with another configuration while a task
//! runs.

use holdpoint::engine::Refusal;
use holdpoint::task::decision::Action;
use holdpoint::task::failure::FailureCode;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::engine_harness::{
    EngineHarness, alice, alice_is_refused, alice_writes, drive, go, join, message, outcomes,
    spawn, tool_results, turn, whole,
};
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, both};

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];

fn without_refund(yaml: &str) -> String {
    let (before, rest) = yaml.split_once("  refund:").unwrap();
    let (_, after) = rest.split_once("  forbidden:").unwrap();
    let lines = after
        .lines()
        .filter(|line| !line.contains("tools: [refund]"))
        .collect::<Vec<_>>()
        .join("\n");
    format!(
        "{before}  forbidden:{}\n",
        lines.replace("tag, refund,", "tag,")
    )
}

#[apply(both)]
async fn panic_in_the_model_loses_neither_the_task_nor_its_slot(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    harness.script(|_| panic!("the model's client has a bug"));
    let task = harness.queued().await;
    let engine = harness.engine(1);
    for _ in 0..2 {
        for driver in engine.claim().await.unwrap() {
            assert!(spawn(driver).await.unwrap_err().is_panic());
        }
        harness.later();
    }
    harness.script(|_| Ok(turn(&[])));
    let drivers = engine.claim().await.unwrap();
    assert_eq!(drivers.len(), 1, "the only slot is free again");
    for driver in drivers {
        driver.await;
    }
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[apply(both)]
async fn task_without_progress_in_five_lone_drives_fails_and_a_retry_begins_anew(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    harness.script(|_| panic!("the model's client has a bug"));
    let api = harness.engine(0);
    let task = api.create(&alice(), go(), None).await.unwrap().task_id;
    let engine = harness.engine(1);
    // Claims 1 to 3 begin ordinary drives. Claim 4 puts the task to sleep, and claim 5 begins a
    // lone drive. After each lone drive, the next claim takes only other tasks, the second
    // claim puts the task to sleep, and the third claim begins another lone drive. Claims 8,
    // 11, 14 and 17 begin lone drives, and claim 20 ends the task.
    for _ in 0..20 {
        for driver in engine.claim().await.unwrap() {
            let _ = spawn(driver).await;
        }
        harness.later();
    }
    assert_eq!(harness.prompt_count(), 1 + 2 + 5);
    let row = harness.journal(task).await.row;
    assert_eq!(row.status, TaskStatus::Failed);
    assert_eq!(row.error.unwrap().code, FailureCode::NoProgress);
    harness.script(|_| Ok(turn(&[])));
    api.retry(&alice(), task, None).await.unwrap();
    harness.finish(task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[apply(both)]
async fn result_in_hand_moves_a_task_that_another_replica_parked_for_it(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    let (task, slow) = harness.in_flight().await;
    // Lets the lease run out. The call may still be running.
    harness.fixture.forward(std::time::Duration::from_secs(31));
    let other = harness.engine(1);
    drive(&other).await;
    assert!(
        other.claim().await.unwrap().is_empty(),
        "nothing to do but wait"
    );
    harness.tool.open();
    join(slow).await;
    let drivers = other.claim().await.unwrap();
    assert_eq!(
        drivers.len(),
        1,
        "the result is there, so nothing is left to wait for: {:#?}",
        harness.journal(task).await
    );
    for driver in drivers {
        driver.await;
    }
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
}

#[apply(both)]
async fn shutdown_during_a_call_keeps_its_result(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    harness.tool.close();
    let engine = harness.engine(1);
    let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
    harness.tool.reached(1).await;
    engine.shut_down(std::time::Duration::ZERO).await;
    harness.tool.open();
    let has_result = async || !outcomes(&harness.journal(task).await).is_empty();
    crate::support::until("the call has its result", has_result).await;
    harness.finish(task).await;
    let journal = harness.journal(task).await;
    assert!(
        !journal
            .items
            .iter()
            .any(|item| matches!(item.fact, Fact::InterventionRequested(_))),
        "no request is opened"
    );
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(outcomes(&journal), [Outcome::Succeeded]);
}

#[apply(both)]
async fn tasks_beyond_the_available_slots_all_complete(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, SMALL).await;
    let engine = harness.engine(2);
    let caller = alice();
    let accepted = (0..20).map(|_| engine.create(&caller, go(), None));
    let tasks: Vec<_> = futures_util::future::try_join_all(accepted).await.unwrap();
    for task in &tasks {
        let has_stopped = async || {
            engine.round().await.unwrap();
            harness.status(task.task_id).await != TaskStatus::Running
        };
        crate::support::until("the task does not run", has_stopped).await;
        assert_eq!(harness.status(task.task_id).await, TaskStatus::Completed);
        assert_eq!(harness.executions(task.task_id, "/refund"), 1);
    }
}

#[apply(both)]
async fn removed_agent_fails_a_running_task_but_a_canceled_one_stays_canceled(
    fixture: StoreFixture,
) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.replace("decide: hold,", "decide: hold, on_expiry: cancel,");
    let (approved, expired) = (harness.held().await, harness.held().await);
    harness.replace("  billing:", "  other:");
    let api = harness.engine(0);
    let request = harness.only_request(approved, RequestKind::Approval).await;
    // The configuration no longer has the agent or its tools, so the tool in the request does
    // not exist.
    let answered = alice_is_refused(&api, request, whole(Action::Approve, None)).await;
    assert_eq!(answered, Refusal::Withdrawn(request));
    harness.fixture.forward(std::time::Duration::from_hours(25));
    api.worker().expire().await.unwrap();
    for (task, end) in [
        (approved, TaskStatus::Failed),
        (expired, TaskStatus::Canceled),
    ] {
        let row = harness.journal(task).await.row;
        assert_eq!((row.status, row.open_requests, row.busy), (end, 0, 0));
        let code = row.error.map(|error| error.code);
        assert_eq!(
            code,
            (end == TaskStatus::Failed).then_some(FailureCode::Configuration)
        );
    }
    assert!(harness.tool.ledger().is_empty());
}

#[apply(both)]
async fn call_approved_before_a_failure_is_withdrawn_by_a_message_and_run_by_a_retry(
    fixture: StoreFixture,
) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let (api, whole_yaml) = (harness.engine(0), harness.yaml());
    let tasks = [harness.held().await, harness.held().await];
    for task in tasks {
        harness.answer_all(&api, task).await;
    }
    harness.replace("  billing:", "  other:");
    drive(&harness.engine(4)).await;
    harness.configure(|_| whole_yaml.clone());
    let [spoken, retried] = tasks;
    assert_eq!(harness.status(spoken).await, TaskStatus::Failed);
    alice_writes(&api, spoken, message("go")).await;
    api.retry(&alice(), retried, None).await.unwrap();
    harness.finish(spoken).await;
    harness.finish(retried).await;
    assert_eq!(harness.executions(spoken, "/refund"), 0);
    assert_eq!(
        outcomes(&harness.journal(spoken).await),
        [Outcome::Withdrawn]
    );
    assert_eq!(harness.executions(retried, "/refund"), 1);
    assert_eq!(
        outcomes(&harness.journal(retried).await),
        [Outcome::Succeeded]
    );
}

#[apply(both)]
async fn call_whose_request_expired_when_its_task_failed_stays_expired_after_a_message_or_a_retry(
    fixture: StoreFixture,
) {
    let mut harness = EngineHarness::new(fixture, &[("tag", r#"{"text":"paid"}"#)]).await;
    harness.replace(
        r#"http: { method: POST, url: "{tool}/tag" }"#,
        "external: {}",
    );
    let whole_yaml = harness.yaml();
    let [spoken, retried] = [harness.held().await, harness.held().await];
    harness.replace("  billing:", "  other:");
    harness.fixture.forward(std::time::Duration::from_hours(25));
    let closed = harness.engine(0).worker().expire().await.unwrap();
    assert_eq!(closed, 2);
    for task in [spoken, retried] {
        let journal = harness.journal(task).await;
        assert_eq!(journal.row.status, TaskStatus::Failed);
        assert_eq!(outcomes(&journal), []);
    }
    harness.configure(|_| whole_yaml.clone());
    let api = harness.engine(0);
    alice_writes(&api, spoken, message("go")).await;
    api.retry(&alice(), retried, None).await.unwrap();
    let text = "The request for the result of this call expired. It is not known whether the call was run.";
    for task in [spoken, retried] {
        harness.finish(task).await;
        let journal = harness.journal(task).await;
        assert_eq!(journal.row.status, TaskStatus::Completed);
        let results = tool_results(&journal.items);
        let results: Vec<_> = results
            .map(|result| (result.outcome, result.content.as_str()))
            .collect();
        assert_eq!(results, [(Outcome::Expired, text)]);
    }
}

#[apply(both)]
async fn tool_removed_after_the_approval_gives_an_invalid_result(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    let task = harness.held().await;
    harness.answer_all(&harness.engine(0), task).await;
    harness.configure(without_refund);
    harness.finish(task).await;
    let journal = harness.journal(task).await;
    assert_eq!(journal.row.status, TaskStatus::Completed);
    assert_eq!(outcomes(&journal), [Outcome::Invalid]);
    assert_eq!(harness.executions(task, "/refund"), 0);
}

#[apply(both)]
async fn raised_limit_lets_a_retry_go_on(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, SMALL).await;
    let unlimited = harness.yaml();
    harness.replace(
        "model: main,",
        "model: main, limits: { max_model_calls: 1 },",
    );
    let api = harness.engine(0);
    let task = api.create(&alice(), go(), None).await.unwrap().task_id;
    harness.finish(task).await;
    let error = harness.journal(task).await.row.error.unwrap();
    assert_eq!(error.code, FailureCode::LimitReached);
    assert_eq!(error.limit.as_deref(), Some("max_model_calls"));
    api.retry(&alice(), task, None).await.unwrap();
    harness.finish(task).await;
    assert_eq!(
        harness.status(task).await,
        TaskStatus::Failed,
        "the limit still stands"
    );
    harness.configure(|_| unlimited.clone());
    harness.engine(0).retry(&alice(), task, None).await.unwrap();
    harness.finish(task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(
        harness.executions(task, "/refund"),
        1,
        "no finished call runs again"
    );
}

#[apply(both)]
async fn long_call_counts_as_duration_before_the_model_is_asked_again(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, SMALL).await;
    harness.replace(
        "model: main,",
        "model: main, limits: { max_duration: 10m },",
    );
    let (task, drivers) = harness.in_flight().await;
    harness.fixture.forward(std::time::Duration::from_mins(11));
    harness.tool.open();
    join(drivers).await;
    let error = harness.journal(task).await.row.error.unwrap();
    assert_eq!(error.code, FailureCode::LimitReached);
    assert_eq!(error.limit.as_deref(), Some("max_duration"));
}

#[apply(both)]
async fn long_model_call_counts_as_duration_before_the_model_is_asked_again(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.replace(
        "model: main,",
        "model: main, limits: { max_duration: 10m },",
    );
    let clock = harness.fixture.clock.clone();
    harness.script(move |_| {
        clock.forward(std::time::Duration::from_mins(11));
        Ok(turn(&[("unknown", "{}")]))
    });
    let task = harness.stopped().await;
    let error = harness.journal(task).await.row.error.unwrap();
    assert_eq!(error.code, FailureCode::LimitReached);
    assert_eq!(error.limit.as_deref(), Some("max_duration"));
    assert_eq!(harness.prompt_count(), 1);
}

#[apply(both)]
async fn process_clock_does_not_count_as_duration(fixture: StoreFixture) {
    // On Postgres, the clock of the test's process is years behind the database's clock. A
    // duration between times of both clocks would exceed `max_duration` (by default, an hour).
    let harness = EngineHarness::new(fixture, SMALL).await;
    let engine = harness.engine(1);
    let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
    harness.until_stopped(task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[apply(both)]
async fn waiting_for_a_decision_does_not_count_as_duration(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.replace(
        "model: main,",
        "model: main, limits: { max_duration: 10m },",
    );
    let task = harness.held().await;
    harness.fixture.forward(std::time::Duration::from_hours(2));
    harness.answer_all(&harness.engine(0), task).await;
    drive(&harness.engine(1)).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}
