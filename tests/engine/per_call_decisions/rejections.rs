//! Tests rejections of some or all calls of a request, and what follows for the other calls.

use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::item::Outcome;
use holdpoint::task::progress::Progress;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;

use super::super::call_decisions::{approve, became, each, reject, reject_then, respond};
use super::super::engine_harness::{alice_decides, decides, person, too_late, whole};
use super::{FOUR, harness, held_calls, of_two, status, waits};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn reject_covers_every_undecided_call(fixture: StoreFixture) {
    let harness = of_two(fixture).await;
    let api = harness.engine(0);
    let (task, request, calls) = held_calls(&harness).await;
    alice_decides(&api, request, each([(calls[2], approve())])).await;
    decides(&api, &person("bob"), request, whole(Action::Reject, None)).await;
    harness.run().await;
    let expected = [
        Outcome::Rejected,
        Outcome::Rejected,
        Outcome::Succeeded,
        Outcome::Rejected,
    ];
    assert_eq!(became(&harness, task, calls).await, expected.map(Some));
    assert_eq!(
        harness.status(task).await,
        TaskStatus::Completed,
        "not every call was rejected"
    );
}

#[apply(both)]
async fn rule_decides_what_follows_when_every_call_is_rejected(fixture: StoreFixture) {
    for (rule, end) in [
        ("", TaskStatus::Canceled),
        ("continue", TaskStatus::Completed),
        ("cancel", TaskStatus::Canceled),
        ("cancel_root", TaskStatus::Canceled),
    ] {
        let terms = if rule.is_empty() {
            "{ owner: true }".to_owned()
        } else {
            format!("{{ owner: true }}, on_reject: {rule}")
        };
        let harness = harness(StoreFixture::like(&fixture).await, FOUR, &terms).await;
        for bodies in [1, 2] {
            let (task, request, [first, second, third, fourth]) = held_calls(&harness).await;
            let api = harness.engine(0);
            if bodies == 2 {
                alice_decides(&api, request, each([(second, reject())])).await;
                waits(&harness, task, request).await;
                let rest = each([(first, reject()), (third, reject()), (fourth, reject())]);
                alice_decides(&api, request, rest).await;
            } else {
                alice_decides(&api, request, whole(Action::Reject, None)).await;
            }
            harness.run().await;
            assert_eq!(
                became(&harness, task, [first, second, third, fourth]).await,
                [Some(Outcome::Rejected); 4]
            );
            assert_eq!(harness.status(task).await, end, "{rule}");
            let row = harness.fixture.request(request).await;
            let then = row.answers.last().unwrap().1.then.unwrap();
            assert_eq!(
                then == Consequence::Continue,
                end == TaskStatus::Completed,
                "what took effect is written"
            );
        }
    }
}

#[apply(both)]
async fn continue_with_one_rejection_holds_for_all(fixture: StoreFixture) {
    let harness = of_two(fixture).await;
    let (task, request, calls) = held_calls(&harness).await;
    let api = harness.engine(0);
    alice_decides(
        &api,
        request,
        each([(calls[3], reject_then(Consequence::Continue))]),
    )
    .await;
    waits(&harness, task, request).await;
    decides(&api, &person("bob"), request, whole(Action::Reject, None)).await;
    harness.run().await;
    assert_eq!(
        became(&harness, task, calls).await,
        [Some(Outcome::Rejected); 4]
    );
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[apply(both)]
async fn cancel_with_one_rejection_ends_all_calls_at_once(fixture: StoreFixture) {
    const FIVE: &[(&str, &str)] = &[FOUR[0], FOUR[1], FOUR[2], FOUR[3], ("forbidden", "{}")];
    for then in [Consequence::Cancel, Consequence::CancelRoot] {
        let mut harness = harness(
            StoreFixture::like(&fixture).await,
            FIVE,
            "{ owner: true, users: [bob] }",
        )
        .await;
        let rule = "decide: hold, approvers: { users: [carol] }";
        harness.replace("decide: deny, reason: Not this one.", rule);
        for late in [false, true] {
            let task = harness.held().await;
            let [(request, _), (beside, _)] = harness.open(task).await[..] else {
                panic!("two are open")
            };
            let asked = harness.fixture.request(request).await.spec;
            let calls: Vec<_> = asked
                .pending_tool_calls
                .iter()
                .map(|call| call.tool_call_id)
                .collect();
            let [first, second, third, fourth, _] = calls[..] else {
                panic!("five are shown")
            };
            let api = harness.engine(0);
            let (yes, by_hand, no) = (
                (first, approve()),
                (second, respond("1")),
                (fourth, reject_then(then)),
            );
            if late {
                alice_decides(&api, request, each([yes, by_hand])).await;
                waits(&harness, task, request).await;
                decides(&api, &person("bob"), request, each([no])).await;
            } else {
                alice_decides(&api, request, each([yes, by_hand, no])).await;
            }
            assert_eq!(harness.status(task).await, TaskStatus::Canceled);
            let row = harness.fixture.request(request).await;
            assert_eq!(row.status, RequestStatus::Resumed);
            assert!(
                row.answers
                    .iter()
                    .all(|(_, decision)| !decision.decisions.contains_key(&third))
            );
            let every = [first, second, third, fourth, calls[4]];
            let expected = [
                Outcome::Canceled,
                Outcome::Canceled,
                Outcome::Canceled,
                Outcome::Rejected,
                Outcome::Canceled,
            ];
            assert_eq!(
                became(&harness, task, every).await,
                expected.map(Some),
                "{late}"
            );
            let again = api
                .decide(&person("bob"), request, each([(third, approve())]), None)
                .await;
            assert!(too_late(&again, request));
            assert_eq!(status(&harness, beside).await, RequestStatus::Withdrawn);
        }
        assert_eq!(harness.tool.ledger().len(), 0);
    }
}

#[apply(both)]
async fn call_with_one_of_two_approvals_is_canceled_when_a_rejection_of_another_call_cancels(
    fixture: StoreFixture,
) {
    let harness = harness(fixture, FOUR, "{ owner: true, users: [bob], required: 2 }").await;
    let (task, request, calls) = held_calls(&harness).await;
    let api = harness.engine(0);
    let both = each([
        (calls[0], approve()),
        (calls[1], reject_then(Consequence::Cancel)),
    ]);
    alice_decides(&api, request, both).await;
    assert_eq!(harness.status(task).await, TaskStatus::Canceled);
    let expected = [
        Outcome::Canceled,
        Outcome::Rejected,
        Outcome::Canceled,
        Outcome::Canceled,
    ];
    assert_eq!(became(&harness, task, calls).await, expected.map(Some));
    let progress = Progress::from_items(&harness.journal(task).await.items);
    assert_eq!(
        progress.call(calls[0]).unwrap().approval,
        None,
        "no valid approval"
    );
    assert_eq!(harness.tool.ledger().len(), 0);
}
