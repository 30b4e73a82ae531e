//! Tests rules that require several approvals: whose approvals count, and when.

use holdpoint::engine::Refusal;
use holdpoint::people::Caller;
use holdpoint::people::authorization::Roster;
use holdpoint::task::decision::Action;
use holdpoint::task::item::Outcome;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::call_decisions::{
    approve, became, bodies, each, edit, question, refused, respond,
};
use super::super::engine_harness::{decides, go, too_late, whole};
use super::super::worker_steps::WorkerSteps as _;
use super::{
    EDITED, LARGE, account, asked_again, decided_by, driven, harness, held_call, keyed, known,
    process, ran, vouched,
};
use crate::store::store_fixture::{StoreFixture, both};

fn local() -> Caller {
    Caller {
        door: None,
        without_accounts: true,
        ..keyed("local", &[])
    }
}

#[apply(both)]
async fn two_required_approvals_are_asked_anew_when_one_approver_is_gone(fixture: StoreFixture) {
    let harness = harness(fixture, "{ groups: [finance], required: 2 }").await;
    let (bob, carol) = (account("bob", &["finance"]), account("carol", &["finance"]));
    let before = known([bob.clone(), carol.clone(), account("dave", &["finance"])]);
    for (now, stands) in [
        (known([bob.clone(), carol.clone()]), true),
        (known([bob, account("dave", &["finance"])]), false),
    ] {
        let (task, request, _) = held_call(&harness).await;
        for user in ["bob", "carol"] {
            decided_by(&harness, &before, user, request, Action::Approve).await;
        }
        driven(&harness, &now).await;
        if stands {
            ran(&harness, task).await;
            continue;
        }
        // The new request begins without approvals.
        let anew = asked_again(&harness, task, request).await;
        decided_by(&harness, &now, "bob", anew, Action::Approve).await;
        assert!(process(&harness, &now, 1).claim().await.unwrap().is_empty());
        decided_by(&harness, &now, "dave", anew, Action::Approve).await;
        driven(&harness, &now).await;
        ran(&harness, task).await;
    }
}

#[apply(both)]
async fn second_answer_of_one_person_is_refused_and_one_rejection_decides(fixture: StoreFixture) {
    let harness = harness(fixture, "{ groups: [finance], required: 3 }").await;
    let (task, request, call) = held_call(&harness).await;
    let api = harness.engine(0);
    decides(&api, &vouched("bob"), request, whole(Action::Approve, None)).await;
    for again in [
        whole(Action::Approve, None),
        whole(Action::Reject, None),
        each([(call, approve())]),
        each([(call, edit(EDITED))]),
    ] {
        // Bob's answers through the key `web` and through Bob's own key count as answers of one
        // person.
        for caller in [vouched("bob"), keyed("bob", &["finance"])] {
            let lost = Refusal::AlreadyDecided {
                request,
                call: Some(call),
            };
            assert_eq!(
                refused(&harness, &api, &caller, task, again.clone()).await,
                lost
            );
        }
    }
    decides(
        &api,
        &vouched("carol"),
        request,
        whole(Action::Approve, None),
    )
    .await;
    assert!(harness.claims_nothing(1).await, "two of three");
    decides(&api, &vouched("dave"), request, whole(Action::Reject, None)).await;
    assert_eq!(harness.status(task).await, TaskStatus::Canceled);
    assert_eq!(harness.executions(task, "/refund"), 0);
    let late = api
        .decide(
            &vouched("erin"),
            request,
            whole(Action::Approve, None),
            None,
        )
        .await;
    assert!(too_late(&late, request));
}

#[apply(both)]
async fn single_approval_suffices_without_accounts_where_two_are_required(fixture: StoreFixture) {
    let harness = harness(fixture, "{ groups: [finance], required: 2 }").await;
    let nobody = Roster::default();
    let by_hand = "\"by hand\"";
    for (reply, outcome, ran_with) in [
        (approve(), Outcome::Succeeded, vec![LARGE[0].1.to_owned()]),
        (edit(EDITED), Outcome::Succeeded, vec![EDITED.to_owned()]),
        (respond(by_hand), Outcome::Responded, vec![]),
    ] {
        let task = process(&harness, &nobody, 0)
            .create(&local(), go(), None)
            .await
            .unwrap()
            .task_id;
        driven(&harness, &nobody).await;
        let (request, calls) = question(&harness, task).await;
        process(&harness, &nobody, 0)
            .decide(&local(), request, each([(calls[0], reply)]), None)
            .await
            .unwrap();
        driven(&harness, &nobody).await;
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        assert_eq!(became(&harness, task, [calls[0]]).await, [Some(outcome)]);
        let bodies: Vec<_> = bodies(&harness, task, "/refund")
            .into_iter()
            .map(|(_, body)| body)
            .collect();
        assert_eq!(bodies, ran_with);
    }
    // Approvals given in a service with accounts do not count in a service without accounts,
    // and vice versa.
    let (task, request, _) = held_call(&harness).await;
    for user in ["bob", "carol"] {
        harness
            .engine(0)
            .decide(&vouched(user), request, whole(Action::Approve, None), None)
            .await
            .unwrap();
    }
    driven(&harness, &nobody).await;
    asked_again(&harness, task, request).await;
    let task = process(&harness, &nobody, 0)
        .create(&local(), go(), None)
        .await
        .unwrap()
        .task_id;
    driven(&harness, &nobody).await;
    let (request, _) = question(&harness, task).await;
    process(&harness, &nobody, 0)
        .decide(&local(), request, whole(Action::Approve, None), None)
        .await
        .unwrap();
    harness.run().await;
    asked_again(&harness, task, request).await;
}
