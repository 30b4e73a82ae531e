//! Tests edited calls after a direct change in the database: a change of the stored edit, or of the
//! request about the edited call.

use holdpoint::engine::Refusal;
use holdpoint::task::decision::Action;
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::call_decisions::{each, edit, last_open_request};
use super::super::engine_harness::{
    EngineHarness, alice_decides, alice_is_refused, decides, person, whole,
};
use super::{EDITED, LARGE, TWO, harness, held_call};
use crate::store::store_fixture::{StoreFixture, both};

async fn tampered(harness: &EngineHarness, task: TaskId, of: &str, from: &str, to: &str) {
    let id = harness.fixture.literal(task.0);
    let sql = format!(
        "update agent_task_item set body = replace(body, '{from}', '{to}') where type = '{of}' and task_id = {id}"
    );
    harness.fixture.execute(&sql).await;
}

async fn is_damaged(harness: &EngineHarness, task: TaskId) {
    let row = harness.row(task).await;
    assert_eq!(
        (row.status, row.error.map(|error| error.code)),
        (TaskStatus::Failed, Some(FailureCode::Integrity))
    );
    assert_eq!(harness.executions(task, "/refund"), 0);
}

#[apply(both)]
async fn stored_edit_that_was_changed_in_the_database_does_not_run(fixture: StoreFixture) {
    let harness = harness(fixture, "{ owner: true }").await;
    let (task, request, call, api) = held_call(&harness).await;
    alice_decides(&api, request, each([(call, edit(EDITED))])).await;
    tampered(&harness, task, "decision", "41.10", "41.20").await;
    harness.run().await;
    is_damaged(&harness, task).await;
}

#[apply(both)]
async fn decision_that_lost_its_edit_is_asked_for_again(fixture: StoreFixture) {
    let harness = harness(fixture, "{ owner: true }").await;
    let (task, request, call, api) = held_call(&harness).await;
    alice_decides(&api, request, each([(call, edit(EDITED))])).await;
    tampered(&harness, task, "decision", "\"edit\":{", "\"edjt\":{").await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    assert_eq!(harness.executions(task, "/refund"), 0);
    let anew = last_open_request(&harness, task).await;
    assert_eq!(
        (
            anew.request_id == request,
            anew.pending_tool_calls[0].arguments_text.as_str()
        ),
        (false, LARGE[0].1)
    );
}

#[apply(both)]
async fn required_approvals_cannot_change_while_their_request_is_open(fixture: StoreFixture) {
    let harness = harness(fixture, TWO).await;
    for approved in [false, true] {
        let (task, request, _, api) = held_call(&harness).await;
        if approved {
            for user in ["alice", "bob"] {
                decides(&api, &person(user), request, whole(Action::Approve, None)).await;
            }
        }
        tampered(
            &harness,
            task,
            "intervention_requested",
            "\"required\":2",
            "\"required\":1",
        )
        .await;
        if approved {
            harness.run().await;
        } else {
            let said = alice_is_refused(&api, request, whole(Action::Approve, None)).await;
            assert_eq!(said, Refusal::Withdrawn(request));
        }
        is_damaged(&harness, task).await;
    }
}
