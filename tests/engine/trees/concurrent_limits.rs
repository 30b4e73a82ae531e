//! Tests a tree whose tasks ask their models, or start tasks, at the same time. No answer is lost,
//! and the limits hold.

use holdpoint::task::status::TaskStatus;
use holdpoint::task::transcript::Message;
use macro_rules_attribute::apply;

use super::super::engine_harness::{EngineHarness, alice, alice_writes, message};
use super::harness::{LEAF, Shape, TreeDriver, hands_on, one_small, said, speaks};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn model_answer_is_kept_when_relatives_commit_first(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(3), one_small).await;
    let root = harness.grown(&harness.parts(0)).await;
    let row = harness.row(root).await;
    let asked = (row.status, row.model_calls, harness.prompt_count());
    assert_eq!(
        asked,
        (TaskStatus::Completed, 8, 8),
        "{}",
        harness.description(root).await
    );
    harness.checked_journals(root).await;
}

#[apply(both)]
async fn three_children_that_ask_at_once_keep_the_limit_of_model_calls(fixture: StoreFixture) {
    // The whole tree needs 8 model calls: two of the boss and two of each leaf.
    for most in 2..=8 {
        let mut harness = EngineHarness::of_trees(
            StoreFixture::like(&fixture).await,
            Shape::flat(3),
            one_small,
        )
        .await;
        let limits = format!("sub_agents: [leaf], limits: {{ max_model_calls: {most} }}");
        harness.replace("sub_agents: [leaf]", &limits);
        let root = harness.grown(&harness.parts(0)).await;
        let row = harness.row(root).await;
        let expected = if most == 8 {
            TaskStatus::Completed
        } else {
            TaskStatus::Failed
        };
        let asked = (row.status, row.model_calls, harness.prompt_count());
        assert_eq!(
            asked,
            (expected, most, usize::try_from(most).unwrap()),
            "{}",
            harness.description(root).await
        );
    }
}

#[apply(both)]
async fn model_call_of_a_canceled_child_does_not_count_after_the_next_message(
    fixture: StoreFixture,
) {
    let mut harness = EngineHarness::of_trees(fixture, Shape::flat(1), one_small).await;
    harness.replace(
        "sub_agents: [leaf]",
        "sub_agents: [leaf], limits: { max_model_calls: 3 }",
    );
    // For each message of the user, the boss starts a leaf, and the leaf makes no call. So the tree
    // needs 3 model calls for each message.
    harness.script_by_name(|name, prompt| {
        let task = said(prompt);
        let is_first = matches!(prompt.messages.last(), Some(Message::User { .. }));
        let calls = if is_first && name != LEAF {
            vec![hands_on(LEAF, &task)]
        } else {
            Vec::new()
        };
        Ok(speaks(name, &task, &calls))
    });
    let parts = harness.parts(0);
    let mut driver = TreeDriver::start(&harness, &parts).await;
    let root = driver.root;
    let is_idle = driver.drive_while(|_| harness.prompt_count() < 2).await;
    assert!(!is_idle, "the leaf's model is asked");
    let canceled = std::mem::take(&mut driver.drivers);
    assert_eq!(canceled.len(), 1);
    let api = EngineHarness::like(&parts, 0);
    api.cancel(&alice(), root, None).await.unwrap();
    alice_writes(&api, root, message("more")).await;
    assert!(driver.drive(usize::MAX).await);
    assert_eq!(
        (harness.row(root).await.status, harness.prompt_count()),
        (TaskStatus::Completed, 5),
        "{}",
        harness.description(root).await
    );
    for late in canceled {
        late.await;
    }
    harness.checked_journals(root).await;
}

#[apply(both)]
async fn three_children_that_start_tasks_at_once_keep_the_limit_of_tasks(fixture: StoreFixture) {
    let mut harness = EngineHarness::of_trees(fixture, Shape::branched(2, 3), one_small).await;
    let limits = "sub_agents: [mid], limits: { max_tasks: 4, max_model_calls: 100 }";
    harness.replace("sub_agents: [mid]", limits);
    let root = harness.grown(&harness.parts(0)).await;
    let journals = harness.completed_journals(root).await;
    assert_eq!(
        journals.len(),
        5,
        "the root, and four below: {}",
        harness.description(root).await
    );
}
