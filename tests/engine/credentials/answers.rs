//! Tests answers to credential requests: refused, declined, late, simultaneous, of maximum length.
//! Tests an answer while the stored credentials cannot be read.

use std::time::Duration;

use holdpoint::engine::{DecisionBody, Refusal};
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::super::engine_harness::{
    alice, alice_decides, alice_is_refused, fills, outcomes, person, rejects, whole,
};
use super::{ASKS_FOR_JIRA, TOKEN, approve, clerk, commented, fill, jira, only_open_request, ran};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn credential_repeated_in_the_reason_of_its_answer_stays_out_of_the_journal(
    fixture: StoreFixture,
) {
    let harness = clerk(fixture, &[&[ASKS_FOR_JIRA]]).await;
    let task = harness.stopped().await;
    let request = only_open_request(&harness, task).await.request_id;
    let mut answer = fills(&jira(TOKEN));
    if let DecisionBody::Whole { reason, .. } = &mut answer.body {
        *reason = Some(format!("alice@acme.com has {TOKEN}"));
    }
    alice_decides(&harness.engine(0), request, answer).await;
    let (_, decision) = harness.fixture.request(request).await.answers.remove(0);
    let shown = Some("alice@acme.com has [secret jira.token]");
    assert_eq!(decision.reason.as_deref(), shown);
    assert!(
        decision
            .decisions
            .values()
            .all(|answer| answer.reason.as_deref() == shown)
    );
}

#[apply(both)]
async fn declined_credential_rejects_its_call_and_others_go_on(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}"), ("plain", "{}")]]).await;
    let task = harness.stopped().await;
    let request = only_open_request(&harness, task).await.request_id;
    let refused = alice_is_refused(&harness.engine(0), request, whole(Action::Approve, None)).await;
    assert!(matches!(refused, Refusal::Invalid(_)), "{refused:?}");
    alice_decides(&harness.engine(0), request, whole(Action::Reject, None)).await;
    harness.run().await;
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Rejected, Outcome::Succeeded]
    );
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/comment"), 0);
    let other = harness.stopped().await;
    let request = only_open_request(&harness, other).await.request_id;
    alice_decides(&harness.engine(0), request, rejects(Consequence::Cancel)).await;
    assert_eq!(harness.status(other).await, TaskStatus::Canceled);
    assert_eq!(
        harness.tool.ledger().len(),
        1,
        "only the plain one of the first task"
    );
}

#[apply(both)]
async fn unanswered_credential_request_expires(fixture: StoreFixture) {
    let harness = clerk(
        fixture,
        &[&[ASKS_FOR_JIRA], &[("comment", "{}"), ("plain", "{}")]],
    )
    .await;
    let task = harness.stopped().await;
    for _ in 0..2 {
        let request = only_open_request(&harness, task).await.request_id;
        harness.fixture.forward(Duration::from_hours(25));
        let late = alice_is_refused(&harness.engine(0), request, fills(&jira(TOKEN))).await;
        assert!(matches!(late, Refusal::Expired(_)), "{late:?}");
        assert_eq!(harness.engine(0).worker().expire().await.unwrap(), 1);
        harness.run().await;
    }
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Expired, Outcome::Expired, Outcome::Succeeded]
    );
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/comment"), 0);
    assert_eq!(harness.stored_credentials().await, 0);
}

#[apply(both)]
async fn credential_answer_that_does_not_fit_is_refused_by_place_without_its_value(
    fixture: StoreFixture,
) {
    const VALUE: &str = "val-0123456789";
    let harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    let request = only_open_request(&harness, task).await.request_id;
    let token = |token: Value| json!({"email": "a@acme.com", "token": token});
    let cases = [
        (
            token(json!(format!("{VALUE}\r\nX-Evil: 1"))),
            "/response/token",
        ),
        (token(json!(format!("{VALUE}\u{0}"))), "/response/token"),
        (token(json!(format!("{VALUE}\u{7f}"))), "/response/token"),
        (token(json!("x".repeat(8193))), "/response/token"),
        (token(json!("")), "/response/token"),
        (token(json!(null)), "/response/token"),
        (token(json!([VALUE])), "/response/token"),
        (token(json!({VALUE: 1})), "/response/token"),
        (token(json!(1_234_567_890)), "/response/token"),
        (json!({"email": "a@acme.com"}), "/response/token"),
        (
            json!({"email": "a@acme.com", "token": VALUE, "more": VALUE}),
            "/response/more",
        ),
        (json!({"email": VALUE, "token": VALUE}), "/response/email"),
        (json!(VALUE), "/response"),
        (json!([VALUE]), "/response"),
        (json!(null), "/response"),
    ];
    for (response, place) in cases {
        let refused = alice_is_refused(&harness.engine(0), request, fills(&response)).await;
        let Refusal::Invalid(errors) = &refused else {
            panic!("{response}: {refused:?}")
        };
        let places: Vec<_> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(places, [place], "{response}");
        assert!(!errors[0].detail.to_string().is_empty());
        let told = format!("{refused:?}");
        assert!(
            !told.contains("0123456789") && !told.contains("1234567890") && !told.contains("Evil"),
            "{told}"
        );
    }
    assert_eq!(harness.stored_credentials().await, 0);
    fill(&harness, task, &jira(TOKEN)).await;
    commented(&harness, task, TOKEN, 1).await;
}

#[apply(both)]
async fn credential_of_one_letter_and_the_maximum_length_is_sent(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    let token = "a".repeat(8192);
    fill(&harness, task, &jira(&token)).await;
    commented(&harness, task, &token, 1).await;
}

#[apply(both)]
async fn first_of_two_credential_answers_is_stored_and_sent(fixture: StoreFixture) {
    let harness = clerk(fixture, &[&[("comment", "{}")]]).await;
    let task = harness.stopped().await;
    let request = only_open_request(&harness, task).await.request_id;
    let (one, other) = (harness.engine(0), harness.engine(0));
    let caller = alice();
    let (first, second) = tokio::join!(
        one.decide(&caller, request, fills(&jira("first-0123456789")), None),
        other.decide(&caller, request, fills(&jira("second-0123456789")), None),
    );
    assert_ne!(first.is_ok(), second.is_ok(), "{first:?} {second:?}");
    let lost = if first.is_ok() { &second } else { &first };
    assert!(
        matches!(lost, Err(Refusal::AlreadyDecided { .. })),
        "{lost:?}"
    );
    harness.run().await;
    let won = if first.is_ok() {
        "first-0123456789"
    } else {
        "second-0123456789"
    };
    commented(&harness, task, won, 1).await;
}

#[apply(both)]
async fn approval_is_refused_as_unavailable_while_the_credentials_of_its_task_cannot_be_read(
    fixture: StoreFixture,
) {
    let harness = clerk(fixture, &[&[ASKS_FOR_JIRA], &[("pay", "{}")]]).await;
    let task = harness.stopped().await;
    fill(&harness, task, &jira(TOKEN)).await;
    let request = harness.only_request(task, RequestKind::Approval).await;
    let (engine, database) = (harness.engine(4), harness.fixture.database());
    // The renamed table makes every read of credentials fail, as in an outage.
    let hide = "alter table credential rename to hidden_credential";
    database.execute(hide).await;
    let (bob, approval) = (person("bob"), whole(Action::Approve, None));
    let decided = engine.decide(&bob, request, approval, None);
    let decided = timeout(Duration::from_mins(1), decided).await;
    assert!(
        matches!(decided, Ok(Err(Refusal::Unavailable))),
        "{decided:?}"
    );
    let show = "alter table hidden_credential rename to credential";
    database.execute(show).await;
    approve(&harness, task).await;
    ran(&harness, task, "/pay", ("x-token", TOKEN), 1).await;
}
