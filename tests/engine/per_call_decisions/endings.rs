//! Tests requests that end while some of their calls are decided and the others are not.

use std::time::Duration;

use holdpoint::engine::Refusal;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;

use super::super::call_decisions::{approve, became, each, question, reject, reject_then, respond};
use super::super::engine_harness::{
    alice, alice_decides, alice_is_refused, alice_writes, rejects, superseding, whole,
};
use super::{FOUR, harness, held_calls, of_two, status};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn decided_calls_stay_decided_at_the_deadline(fixture: StoreFixture) {
    for (on_expiry, end) in [
        ("continue", TaskStatus::Completed),
        ("cancel", TaskStatus::Canceled),
    ] {
        let terms =
            format!("{{ owner: true, users: [bob] }}, expires_in: 1h, on_expiry: {on_expiry}");
        let harness = harness(StoreFixture::like(&fixture).await, FOUR, &terms).await;
        let (task, request, calls) = held_calls(&harness).await;
        let api = harness.engine(0);
        let some = each([
            (calls[0], approve()),
            (calls[1], reject()),
            (calls[3], respond("\"so\"")),
        ]);
        alice_decides(&api, request, some).await;
        harness.fixture.forward(Duration::from_hours(2));
        let late = alice_is_refused(&api, request, each([(calls[2], approve())])).await;
        assert_eq!(late, Refusal::Expired(request));
        api.worker().expire().await.unwrap();
        harness.run().await;
        let expected = match end {
            TaskStatus::Completed => [
                Outcome::Succeeded,
                Outcome::Rejected,
                Outcome::Expired,
                Outcome::Responded,
            ],
            TaskStatus::Running
            | TaskStatus::Paused
            | TaskStatus::Failed
            | TaskStatus::Canceled => [
                Outcome::Canceled,
                Outcome::Rejected,
                Outcome::Canceled,
                Outcome::Responded,
            ],
        };
        assert_eq!(became(&harness, task, calls).await, expected.map(Some));
        assert_eq!(harness.status(task).await, end);
        assert_eq!(
            harness.executions(task, "/refund"),
            usize::from(end == TaskStatus::Completed)
        );
    }
}

#[apply(both)]
async fn changed_tool_keeps_decided_calls_and_asks_about_the_rest(fixture: StoreFixture) {
    let mut harness = of_two(fixture).await;
    let (task, request, calls) = held_calls(&harness).await;
    let some = each([
        (calls[0], reject_then(Consequence::Continue)),
        (calls[1], respond("1")),
    ]);
    alice_decides(&harness.engine(0), request, some).await;
    harness.replace("exclusiveMinimum: 0", "minimum: 1");
    let api = harness.engine(0);
    let yes = whole(Action::Approve, None);
    assert_eq!(
        api.decide(&alice(), request, yes, None).await.err(),
        Some(Refusal::Withdrawn(request))
    );
    harness.run().await;
    let (anew, rest) = question(&harness, task).await;
    assert_eq!((anew == request, rest), (false, calls[2..].to_vec()));
    alice_decides(&api, anew, whole(Action::Approve, None)).await;
    harness.run().await;
    let expected = [
        Outcome::Rejected,
        Outcome::Responded,
        Outcome::Succeeded,
        Outcome::Succeeded,
    ];
    assert_eq!(became(&harness, task, calls).await, expected.map(Some));
}

#[apply(both)]
async fn message_keeps_answered_calls_and_withdraws_the_rest(fixture: StoreFixture) {
    let harness = of_two(fixture).await;
    let (task, request, calls) = held_calls(&harness).await;
    let api = harness.engine(0);
    let some = each([
        (calls[0], approve()),
        (calls[1], reject_then(Consequence::Continue)),
        (calls[2], respond("1")),
    ]);
    alice_decides(&api, request, some).await;
    alice_writes(&api, task, superseding("and now")).await;
    harness.run().await;
    let expected = [
        Outcome::Withdrawn,
        Outcome::Rejected,
        Outcome::Responded,
        Outcome::Withdrawn,
    ];
    assert_eq!(became(&harness, task, calls).await, expected.map(Some));
    assert_eq!(harness.executions(task, "/refund"), 0);
    assert_eq!(status(&harness, request).await, RequestStatus::Withdrawn);
    let late = alice_is_refused(&api, request, rejects(Consequence::Continue)).await;
    assert_eq!(late, Refusal::Withdrawn(request));
    let decisions = harness
        .journal(task)
        .await
        .items
        .iter()
        .filter(|item| matches!(item.fact, Fact::Decision { .. }))
        .count();
    assert_eq!(decisions, 1);
}
