//! Tests how long, and for which task, the service uses a credential that a person has given.

use std::time::Duration;

use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::engine_harness::{alice_writes, message, superseding};
use super::{ASKS_FOR_JIRA, TOKEN, approve, clerk, commented, fill, jira, ran, times_asked};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn expired_credential_is_asked_for_again(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[ASKS_FOR_JIRA], &[("pay", "{}")]]).await;
    let task = harness.stopped().await;
    fill(&harness, task, &jira("old-0123456789")).await;
    harness.fixture.forward(Duration::from_hours(9));
    approve(&harness, task).await;
    assert_eq!(harness.tool.ledger().len(), 0);
    fill(&harness, task, &jira("new-0123456789")).await;
    ran(&harness, task, "/pay", ("x-token", "new-0123456789"), 1).await;
}

#[apply(both)]
async fn reopened_task_asks_for_its_credential_again(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}")], &[], &[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    fill(&harness, task, &jira("old-0123456789")).await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.stored_credentials().await, 0);
    alice_writes(&harness.engine(0), task, message("go")).await;
    harness.run().await;
    assert_eq!(harness.tool.ledger().len(), 1);
    assert_eq!(times_asked(&harness, task).await, 2);
    fill(&harness, task, &jira("new-0123456789")).await;
    let sent: Vec<_> = harness
        .tool
        .ledger()
        .iter()
        .map(|call| call.header("authorization").to_owned())
        .collect();
    assert_eq!(sent, ["Bearer old-0123456789", "Bearer new-0123456789"]);
}

#[apply(both)]
async fn message_to_a_running_task_keeps_its_credentials(fixture: StoreFixture) {
    let harness = clerk(
        fixture,
        &[&[ASKS_FOR_JIRA], &[("pay", "{}")], &[("comment", "{}")]],
    )
    .await;
    let task = harness.stopped().await;
    fill(&harness, task, &jira(TOKEN)).await;
    alice_writes(&harness.engine(0), task, superseding("go")).await;
    harness.run().await;
    commented(&harness, task, TOKEN, 1).await;
    assert_eq!(harness.executions(task, "/pay"), 0);
    assert_eq!(times_asked(&harness, task).await, 1);
}

#[apply(both)]
async fn credential_of_one_task_is_not_used_by_another_of_the_same_user(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[ASKS_FOR_JIRA], &[("pay", "{}")]]).await;
    let first = harness.stopped().await;
    fill(&harness, first, &jira("first-0123456789")).await;
    harness.script_turns(&[&[("comment", "{}")]]);
    let second = harness.stopped().await;
    assert_eq!(
        harness.tool.ledger().len(),
        0,
        "what the other task was given is not sent for this one"
    );
    fill(&harness, second, &jira("second-0123456789")).await;
    commented(&harness, second, "second-0123456789", 1).await;
    approve(&harness, first).await;
    ran(&harness, first, "/pay", ("x-token", "first-0123456789"), 1).await;
}
