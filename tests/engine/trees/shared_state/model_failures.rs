//! Tests models that fail in a tree: at the parent, beside waiting children, and at a child.

use holdpoint::model::{self, ModelError};
use holdpoint::task::failure::FailureCode;
use holdpoint::task::item::Outcome;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::harness::{
    LEAF, People, Shape, TreeDriver, handed_back, one_large, one_small, said,
};
use crate::engine::engine_harness::{EngineHarness, alice};
use crate::store::store_fixture::{StoreFixture, both};

fn fails() -> Result<model::Answer, ModelError> {
    Err(ModelError::new("it does not answer"))
}

#[apply(both)]
async fn parent_whose_model_fails_after_its_children_ended_goes_on_with_a_retry(
    fixture: StoreFixture,
) {
    let shape = Shape::flat(2);
    let harness = EngineHarness::of_trees(fixture, shape, one_small).await;
    let parts = harness.parts(0);
    harness.script_by_name(move |name, prompt| {
        if name == "boss" && prompt.turn == 2 {
            fails()
        } else {
            Ok(shape.answer(one_small, name, prompt))
        }
    });
    let root = harness.grown(&parts).await;
    let row = harness.row(root).await;
    assert_eq!(
        (row.status, row.error.map(|error| error.code)),
        (TaskStatus::Failed, Some(FailureCode::ModelFailed))
    );
    harness.script_by_name(move |name, prompt| Ok(shape.answer(one_small, name, prompt)));
    EngineHarness::like(&parts, 0)
        .retry(&alice(), root, None)
        .await
        .unwrap();
    harness.finish_tree(&parts, root, People::Approve).await;
    let journals = harness.checked_journals(root).await;
    assert_eq!(journals.len(), 3);
    assert_eq!(journals[&root].row.status, TaskStatus::Completed);
    for leaf in harness.of_agent(root, LEAF).await {
        assert_eq!(
            harness.executions(leaf, "/refund"),
            1,
            "no finished call runs again"
        );
    }
}

#[apply(both)]
async fn parent_that_fails_beside_waiting_children_cancels_them_and_a_retry_goes_on(
    fixture: StoreFixture,
) {
    // The first child completes. Before the root has stored the child's result, the test renames
    // the root's agent from `boss` to `chief`, so the root fails.
    let mut harness = EngineHarness::of_trees(fixture, Shape::flat(2), one_large).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let asked = harness.asked_by_tree(root).await;
    let api = EngineHarness::like(&parts, 0);
    harness.answer_one(&api, &asked[0], People::Approve).await;
    let mut driver = TreeDriver::of(&harness, &parts, root);
    while harness.row(asked[0].task_id).await.status != TaskStatus::Completed {
        let moment = driver.moment();
        assert!(!driver.drive(moment + 1).await);
    }
    drop(driver);
    harness.configure(|yaml| {
        yaml.replace("  boss: { description", "  chief: { description")
            .replace("default_agent: boss", "default_agent: chief")
    });
    let without = harness.parts(0);
    harness.later();
    harness.drive_tree(&without, root).await;
    let row = harness.row(root).await;
    let code = row.error.map(|error| error.code);
    assert_eq!(row.status, TaskStatus::Failed);
    assert_eq!(code, Some(FailureCode::Configuration));
    assert_eq!(
        harness.row(asked[1].task_id).await.status,
        TaskStatus::Canceled,
        "{}",
        harness.description(root).await
    );
    assert!(harness.asked_by_tree(root).await.is_empty());
    api.retry(&alice(), root, None).await.unwrap();
    harness.finish_tree(&parts, root, People::Approve).await;
    harness.completed_journals(root).await;
    assert_eq!(harness.executions(asked[0].task_id, "/refund"), 1);
}

#[apply(both)]
async fn child_whose_model_fails_is_a_failed_call_and_its_sibling_goes_on(fixture: StoreFixture) {
    let shape = Shape::branched(2, 2);
    let harness = EngineHarness::of_trees(fixture, shape, one_small).await;
    harness.script_by_name(move |name, prompt| {
        let fallen = name == LEAF && said(prompt).starts_with("go.1");
        if fallen {
            fails()
        } else {
            Ok(shape.answer(one_small, name, prompt))
        }
    });
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let journals = harness.completed_journals(root).await;
    let failed: Vec<_> = journals
        .values()
        .filter(|journal| journal.row.status == TaskStatus::Failed)
        .collect();
    let [child] = &failed[..] else {
        panic!("one has failed: {}", harness.description(root).await)
    };
    let result = handed_back(&journals, child.row.task_id).unwrap();
    assert_eq!(result.outcome, Outcome::Failed);
    assert!(
        result.content.contains("it does not answer"),
        "{}",
        result.content
    );
    let api = EngineHarness::like(&parts, 0);
    let refused = api
        .retry(&alice(), child.row.task_id, None)
        .await
        .unwrap_err();
    assert!(
        matches!(refused, holdpoint::engine::Refusal::NotARoot { .. }),
        "{refused:?}"
    );
}
