//! Tests gate calls whose askers and runners use several replicas, or whose replica goes down.

use std::time::Duration;

use holdpoint::engine::gate::{GateRefusal, GateState};
use holdpoint::task::item::Outcome;
use holdpoint::task::time::Time;
use macro_rules_attribute::apply;
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Executor as _};

use super::super::{
    LONG, agent, approve, approved, ask, asking, asking_by, bash, harness, until_at_rest,
    until_present, until_proposed,
};
use super::by_key;
use crate::store::store_fixture::{StoreFixture, TASKS, both};

#[apply(both)]
async fn process_that_goes_down_answers_its_waiting_askers(fixture: StoreFixture) {
    let harness = harness(fixture).await;
    let engine = harness.engine(8);
    let asking = asking(&engine, 1);
    let task = until_proposed(&harness).await;
    engine.shut_down(LONG).await;
    let answer = asking.await.unwrap().unwrap();
    assert_eq!(answer.call.task_id, task);
    assert_eq!(answer.call.state, GateState::Pending);
    let next = harness.engine(8);
    approve(&harness, &next, task).await;
    assert_eq!(
        ask(&next, 1, LONG).await.call.outcome,
        Some(Outcome::Succeeded)
    );
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_runners_with_one_key_on_two_replicas_get_one_permit() {
    let harness = harness(StoreFixture::postgres().await).await;
    let (here, there) = (harness.engine(8), harness.engine(8));
    let one = |runner| by_key("k", Some(runner), bash(Duration::from_mins(5)));
    let first = asking_by(&here, one("r1"));
    let task = until_proposed(&harness).await;
    let second = asking_by(&there, one("r2"));
    approve(&harness, &there, task).await;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    let permits = [&first, &second].map(|answer| {
        answer
            .as_ref()
            .is_ok_and(|answer| answer.call.permit.is_some())
    });
    assert_eq!(
        permits.iter().filter(|has| **has).count(),
        1,
        "{first:?} {second:?}"
    );
    let refused = [first, second].into_iter().find_map(Result::err);
    assert!(matches!(refused, Some(GateRefusal::InHand(call)) if call.task_id == task));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asker_that_alternates_between_replicas_gets_the_permit_of_its_one_call() {
    let harness = harness(StoreFixture::postgres().await).await;
    let replicas = [harness.engine(8), harness.engine(8)];
    let mut tasks = Vec::new();
    for leg in 0..6 {
        let answer = replicas[leg % 2]
            .gates()
            .ask(&agent(), &bash(Duration::ZERO), None)
            .await;
        tasks.push(answer.unwrap().call.task_id);
    }
    tasks.dedup();
    let [task] = tasks[..] else {
        panic!("one call: {tasks:?}")
    };
    let asking = asking_by(&replicas[0], bash(Duration::from_mins(5)));
    until_present(&harness, task, |until| until > Time(0)).await;
    approve(&harness, &replicas[1], task).await;
    let answer = asking.await.unwrap().unwrap();
    assert!(answer.call.permit.is_some());
    assert_eq!(answer.call.task_id, task);
    assert_eq!(answer.call.state, GateState::Started);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_that_loses_against_another_commit_is_repeated_at_once() {
    let harness = harness(StoreFixture::postgres().await).await;
    let engine = harness.engine(8);
    let task = approved(&harness, &engine, &bash(Duration::ZERO)).await;
    until_at_rest(&harness, task).await;
    let url = harness.fixture.settings.url.reveal();
    let mut heard = PgListener::connect(url).await.unwrap();
    heard.listen("holdpoint_feed").await.unwrap();
    let mut other = harness.fixture.holding(TASKS, task.0).await;
    let asking = asking_by(&engine, bash(Duration::from_mins(5)));
    harness.fixture.until_locked_out(1).await;
    // Simulates the commit of another replica that ends the presence of an asker. The service gets
    // no notification of this commit.
    let left = format!(
        "update agent_task set version = version + 1, asker_until = 0 where task_id = '{task}'"
    );
    other.execute(AssertSqlSafe(left)).await.unwrap();
    other.execute("commit").await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(20), asking).await;
    let answer = answer.expect("an answer at once").unwrap().unwrap();
    assert_eq!(answer.call.task_id, task);
    assert!(answer.call.permit.is_some());
    // An ask that pauses first subscribes to the commits of other replicas.
    other.execute("notify holdpoint_feed, 'end'").await.unwrap();
    loop {
        let message = heard.recv().await.unwrap().payload().to_owned();
        if message == "end" {
            break;
        }
        assert!(!message.contains("wants"), "{message}");
    }
}
