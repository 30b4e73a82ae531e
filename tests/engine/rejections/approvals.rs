//! Tests approvals beside a rejection of an equal call: the approval may lift the rejection.

use std::time::Duration;

use holdpoint::task::decision::Action;
use holdpoint::task::item::Outcome;
use macro_rules_attribute::apply;

use super::super::call_decisions::{approve, each, edit, question, reject, reject_because, shown};
use super::super::engine_harness::{alice_decides, decides, outcomes, person, whole};
use super::{LARGE, OTHER, answered, asked_again, harness, no, refused_unasked};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn later_approval_of_such_a_call_lifts_its_rejection(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE], &[OTHER], &[LARGE]]).await;
    let task = harness.stopped().await;
    no(&harness, task).await;
    // A person edits a call so that it equals the rejected call. The edit lets the edited call
    // run.
    let (request, calls) = question(&harness, task).await;
    let written = each([(calls[0], edit(r#"{"amount":120,"order":1}"#))]);
    decides(&harness.engine(0), &person("alice"), request, written).await;
    harness.run().await;
    asked_again(&harness, task, 3).await;
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn edit_into_rejected_arguments_asks_the_others_who_must_approve(fixture: StoreFixture) {
    let mut harness = harness(fixture, &[&[LARGE], &[OTHER]]).await;
    harness.replace(
        "{ owner: true }",
        "{ owner: true, users: [bob, carol], required: 2 }",
    );
    let task = harness.stopped().await;
    no(&harness, task).await;
    let api = harness.engine(0);
    let (request, calls) = question(&harness, task).await;
    let written = each([(calls[0], edit(r#"{"amount":120,"order":1}"#))]);
    alice_decides(&api, request, written).await;
    let (again, calls) = question(&harness, task).await;
    assert_ne!(again, request);
    for approver in ["bob", "carol"] {
        let yes = each([(calls[0], approve())]);
        decides(&api, &person(approver), again, yes).await;
    }
    harness.run().await;
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn last_decision_of_two_equal_calls_in_one_request_stands(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE, LARGE], &[LARGE]]).await;
    for first_no in [true, false] {
        let task = harness.stopped().await;
        let (request, calls) = question(&harness, task).await;
        let api = harness.engine(0);
        for (call, yes) in [(calls[0], !first_no), (calls[1], first_no)] {
            let reply = if yes { approve() } else { reject() };
            alice_decides(&api, request, each([(call, reply)])).await;
        }
        harness.run().await;
        assert_eq!(
            harness.executions(task, "/refund"),
            1,
            "the one that was approved runs"
        );
        if first_no {
            asked_again(&harness, task, 2).await;
        } else {
            refused_unasked(&harness, task, 1).await;
        }
    }
    // Here, one body has the answers to both calls. The approval is then not later than the
    // rejection, so the rejection stays in force.
    for first_no in [true, false] {
        let task = harness.stopped().await;
        let (request, calls) = question(&harness, task).await;
        let (no, yes) = if first_no {
            (calls[0], calls[1])
        } else {
            (calls[1], calls[0])
        };
        alice_decides(
            &harness.engine(0),
            request,
            each([(no, reject()), (yes, approve())]),
        )
        .await;
        harness.run().await;
        assert_eq!(harness.executions(task, "/refund"), 1);
        refused_unasked(&harness, task, 1).await;
    }
}

#[apply(both)]
async fn incomplete_approval_does_not_lift_a_rejection(fixture: StoreFixture) {
    let mut harness = harness(fixture, &[&[LARGE, LARGE], &[LARGE]]).await;
    harness.replace(
        "{ owner: true }",
        "{ owner: true, users: [bob], required: 2 }",
    );
    let task = harness.stopped().await;
    let (request, calls) = question(&harness, task).await;
    let api = harness.engine(0);
    alice_decides(&api, request, each([(calls[0], reject())])).await;
    alice_decides(&api, request, each([(calls[1], approve())])).await;
    harness.fixture.forward(Duration::from_hours(25));
    api.worker().expire().await.unwrap();
    harness.run().await;
    refused_unasked(&harness, task, 1).await;
    assert_eq!(harness.tool.ledger().len(), 0);
}

#[apply(both)]
async fn single_rejection_among_several_calls_goes_on_and_is_kept(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE, OTHER], &[OTHER, LARGE]]).await;
    let task = harness.stopped().await;
    let (request, calls) = question(&harness, task).await;
    let some = each([
        (calls[0], approve()),
        (calls[1], reject_because("too much")),
    ]);
    alice_decides(&harness.engine(0), request, some).await;
    harness.run().await;
    // The model repeats both calls. A person is asked about the call that was approved before.
    // The call that was rejected before is refused at once.
    let (_, again) = question(&harness, task).await;
    assert_eq!(again.len(), 1);
    answered(&harness, task, whole(Action::Approve, None)).await;
    let expected = [
        Outcome::Rejected,
        Outcome::Succeeded,
        Outcome::Rejected,
        Outcome::Succeeded,
    ];
    assert_eq!(outcomes(&harness.journal(task).await), expected);
    assert!(
        shown(&harness)[2].contains("too much"),
        "{:?}",
        shown(&harness)
    );
}
