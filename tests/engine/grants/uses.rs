//! Tests how the uses of a standing decision are counted, also for simultaneous and lost calls.

use std::time::Duration;

use futures_util::future::join_all;
use holdpoint::engine::Refusal;
use holdpoint::task::decision::Action;
use holdpoint::task::grant::GrantScope;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Fact;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::call_decisions::{last_open_request, question};
use super::super::engine_harness::{
    EngineHarness, alice, claimed, decides, go, kill, person, whole,
};
use super::super::takeover::{Drop, drive_and_drop};
use super::super::two_replicas::Pair;
use super::{
    BY_BOB, LARGE, TAG, answered, asks, grant, grants, harness, hours, judgements, ran, remembered,
};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn calls_of_one_turn_use_no_more_than_is_left(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[TAG], &[TAG, TAG, TAG]]).await;
    let task = harness.stopped().await;
    answered(&harness, task, remembered(GrantScope::Task, hours(1))).await;
    asks(&harness, task, "/tag", 1).await;
    assert_eq!(
        question(&harness, task).await.1.len(),
        1,
        "two are let through"
    );
    answered(&harness, task, whole(Action::Approve, None)).await;
    ran(&harness, task, "/tag", 4).await;
    assert_eq!(grant(&harness).await.used, 2);
    assert_eq!(grants(&harness).await.len(), 1);
}

#[apply(both)]
async fn tasks_of_two_replicas_use_no_more_than_is_left(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE]]).await;
    let first = harness.stopped().await;
    answered(&harness, first, remembered(GrantScope::Owner, hours(1))).await;
    let pair = Pair::of(harness).await;
    let begin = async |round: usize| {
        pair.turned(round)
            .0
            .create(&alice(), go(), None)
            .await
            .unwrap()
            .task_id
    };
    let tasks = join_all((0..8).map(begin)).await;
    for task in &tasks {
        let mut news = pair.harness.fixture.store.watch(*task);
        while pair.harness.status(*task).await == TaskStatus::Running {
            let _ = tokio::time::timeout(Duration::from_millis(50), news.changed()).await;
        }
    }
    let mut run = 0;
    for task in tasks {
        let calls = pair.harness.executions(task, "/refund");
        let status = if calls == 1 {
            TaskStatus::Completed
        } else {
            TaskStatus::Paused
        };
        assert_eq!(
            (pair.harness.status(task).await, calls <= 1),
            (status, true)
        );
        run += calls;
    }
    assert_eq!((run, grant(&pair.harness).await.used), (3, 3));
}

#[apply(both)]
async fn replayed_approval_gives_no_second_standing_decision(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE]]).await;
    let task = harness.stopped().await;
    let (request, _) = question(&harness, task).await;
    let engine = harness.engine(0);
    let once = remembered(GrantScope::Owner, hours(1));
    decides(&engine, &person("bob"), request, once.clone()).await;
    let again = engine.decide(&person("bob"), request, once, None).await;
    assert!(
        matches!(again, Err(Refusal::AlreadyDecided { .. })),
        "{again:?}"
    );
    assert_eq!(grants(&harness).await.len(), 1);
}

/// Lets a first task call the tool with an approval that counts for later calls. Then creates a
/// second task, whose process dies while the call is in flight. Returns the second task's id.
async fn lost_call_after_an_approved_one(harness: &EngineHarness) -> TaskId {
    let first = harness.stopped().await;
    answered(harness, first, remembered(GrantScope::Owner, hours(1))).await;
    harness.tool.close();
    let second = harness.queued().await;
    let drivers = claimed(&harness.engine(1)).await;
    harness.tool.reached(2).await;
    kill(drivers).await;
    assert_eq!(grant(harness).await.used, 1);
    harness.tool.open();
    harness.later();
    second
}

#[apply(both)]
async fn retried_attempt_counts_once(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[TAG]]).await;
    let second = lost_call_after_an_approved_one(&harness).await;
    harness.run().await;
    ran(&harness, second, "/tag", 2).await;
    assert_eq!(
        grant(&harness).await.used,
        1,
        "the second attempt is the same call"
    );
}

#[apply(both)]
async fn lost_call_that_a_rule_allows_by_now_is_repeated_without_its_standing_decision(
    fixture: StoreFixture,
) {
    for ends in [false, true] {
        let mut harness = harness(StoreFixture::like(&fixture).await, &[&[TAG]]).await;
        let task = lost_call_after_an_approved_one(&harness).await;
        if ends {
            let (bob, id) = (person("bob"), grant(&harness).await.grant_id);
            harness.engine(0).grants().end(&bob, id).await.unwrap();
        }
        let trusted = "policy:\n  - { name: trusted, tools: [tag], decide: allow }\n";
        harness.replace("policy:\n", trusted);
        harness.run().await;
        ran(&harness, task, "/tag", 2).await;
        let last = judgements(&harness, task).await.pop().unwrap();
        assert_eq!(
            (last.rule.as_deref(), last.grant_id),
            (Some("trusted"), None)
        );
    }
}

#[apply(both)]
async fn lost_call_that_is_let_through_is_asked_about_by_the_approvers_of_its_renamed_rule(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture, &[&[LARGE]]).await;
    let task = lost_call_after_an_approved_one(&harness).await;
    harness.replace("name: large,", "name: big,");
    harness.run().await;
    asks(&harness, task, "/refund", 1).await;
    let asked = last_open_request(&harness, task).await;
    assert_eq!(asked.kind, RequestKind::Reconcile);
    assert_eq!(asked.terms.approvers.users, ["bob"]);
}

#[apply(both)]
async fn call_that_is_let_through_runs_at_most_once_wherever_its_driver_is_dropped(
    fixture: StoreFixture,
) {
    let mut harness = harness(fixture, &[&[LARGE]]).await;
    harness.replace("uses: 3", "uses: 1000");
    // Alice answers the questions about unknown outcomes.
    harness.replace(BY_BOB, "approvers: { owner: true, users: [bob] }");
    let first = harness.stopped().await;
    answered(&harness, first, remembered(GrantScope::Owner, hours(4))).await;
    let (mut polls, mut started) = (0, 0);
    loop {
        let (task, by_itself) = drive_and_drop(&harness, Drop::AtOnce, polls).await;
        let journal = harness.journal(task).await;
        let starts = journal.items.iter().filter(
            |item| matches!(&item.fact, Fact::ToolStarted { grant: Some(used), .. } if !used.again),
        );
        started += starts.count();
        assert!(
            harness.executions(task, "/refund") <= 1,
            "{polls}: {:#?}",
            journal.items
        );
        let used = grant(&harness).await.used;
        assert_eq!(
            usize::try_from(used),
            Ok(started),
            "{polls}: {:#?}",
            journal.items
        );
        polls += 1;
        if by_itself {
            break;
        }
    }
    assert!(polls > 5, "only {polls} await points");
}
