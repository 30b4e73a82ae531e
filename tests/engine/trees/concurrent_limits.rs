//! Tests a tree whose tasks ask their models, or start tasks, at the same time. No answer is lost,
//! and the limits hold.

use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::engine_harness::EngineHarness;
use super::harness::{Shape, one_small};
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
