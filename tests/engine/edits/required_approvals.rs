//! Tests edits of calls that need two approvals: who may approve, reject or edit after an edit.

use holdpoint::engine::Refusal;
use holdpoint::people::authorization::{Roster, permitted_actions};
use holdpoint::task::decision::Action;
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::approval_rights::{account, directory};
use super::super::call_decisions::{
    approve, became, bodies, each, edit, last_open_request, places, question, ran_as, refused,
    reject, respond,
};
use super::super::engine_harness::{alice_decides, decides, person, whole};
use super::super::two_replicas::finance;
use super::{EDITED, TWO, bob_may_not_approve, harness, held_call, offered, rewritten};
use crate::store::store_fixture::{StoreFixture, both};

const AGAIN: &str = r#"{"order":3,"amount":1e2}"#;

#[apply(both)]
async fn editor_of_the_arguments_is_not_one_of_two_required_approvers(fixture: StoreFixture) {
    let harness = harness(fixture, TWO).await;
    // The edit does not count as an approval, whether the rules hold or allow the edited
    // arguments.
    for text in [EDITED, r#"{"order":1,"amount":5}"#] {
        let (task, request, call, api) = rewritten(&harness, text).await;
        assert_eq!(harness.executions(task, "/refund"), 0);
        let shown = last_open_request(&harness, task).await;
        assert_eq!(shown.pending_tool_calls[0].arguments_text, text);
        assert_eq!(shown.pending_tool_calls[0].editor.as_deref(), Some("bob"));
        bob_may_not_approve(&harness, &api, task, call).await;
        alice_decides(&api, request, whole(Action::Approve, None)).await;
        assert!(harness.claims_nothing(1).await, "one is not enough");
        decides(&api, &person("carol"), request, each([(call, approve())])).await;
        harness.run().await;
        ran_as(&harness, task, "/refund", call, text);
        let ledger = harness.tool.ledger();
        assert_eq!(
            ledger.last().unwrap().header("holdpoint-decided-by"),
            "alice,carol"
        );
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
    }
}

#[apply(both)]
async fn editor_of_the_arguments_may_still_reject_or_edit_again(fixture: StoreFixture) {
    let harness = harness(fixture, TWO).await;
    let (task, request, call, api) = rewritten(&harness, EDITED).await;
    decides(&api, &person("bob"), request, each([(call, reject())])).await;
    assert_eq!(harness.status(task).await, TaskStatus::Canceled);
    assert_eq!(
        became(&harness, task, [call]).await,
        [Some(Outcome::Rejected)]
    );
    let (task, request, call, api) = rewritten(&harness, EDITED).await;
    alice_decides(&api, request, whole(Action::Approve, None)).await;
    decides(&api, &person("bob"), request, each([(call, edit(AGAIN))])).await;
    harness.run().await;
    let (third, _) = question(&harness, task).await;
    // Approvals of earlier arguments no longer count, and Bob, who wrote these arguments,
    // cannot approve them.
    alice_decides(&api, third, whole(Action::Approve, None)).await;
    assert!(matches!(
        refused(
            &harness,
            &api,
            &person("bob"),
            task,
            whole(Action::Approve, None)
        )
        .await,
        Refusal::Forbidden(_)
    ));
    assert!(harness.claims_nothing(1).await);
    // Carol replaces Bob's arguments, so Bob may now approve them and count as an approver.
    decides(&api, &person("carol"), third, each([(call, edit(EDITED))])).await;
    harness.run().await;
    let (fourth, _) = question(&harness, task).await;
    for user in ["bob", "alice"] {
        decides(&api, &person(user), fourth, whole(Action::Approve, None)).await;
    }
    harness.run().await;
    ran_as(&harness, task, "/refund", call, EDITED);
}

#[apply(both)]
async fn rule_that_requires_two_offers_no_respond_and_no_edit_that_leaves_too_few(
    fixture: StoreFixture,
) {
    let harness = harness(
        StoreFixture::like(&fixture).await,
        "{ users: [bob, carol], required: 2 }",
    )
    .await;
    let (task, _, call, api) = held_call(&harness).await;
    assert_eq!(
        offered(&harness, task, &person("bob")).await,
        [Action::Approve, Action::Reject]
    );
    for reply in [edit(EDITED), respond("1")] {
        let refusal = refused(&harness, &api, &person("bob"), task, each([(call, reply)])).await;
        assert_eq!(places(&refusal), [format!("/decisions/{call}/action")]);
    }
    // The rule requires two of three people. After an edit by Bob, only Carol and Dave can approve,
    // so both must. Bob may therefore edit only if Carol and Dave both have keys.
    let harness = super::harness(fixture, "{ users: [bob, carol, dave], required: 2 }").await;
    let (task, ..) = held_call(&harness).await;
    let asked = last_open_request(&harness, task).await;
    for (known, left) in [
        (&["bob", "carol"][..], false),
        (&["bob", "carol", "dave"], true),
    ] {
        let accounts = known.iter().map(|user| account(user, &[]));
        let roster = Roster::new(Some(directory(accounts)));
        let bob = permitted_actions(&roster, &person("bob"), "acme", "alice", &asked);
        assert_eq!(bob.contains(&Action::Edit), left, "{known:?}");
    }
}

#[apply(both)]
async fn editor_counts_among_the_two_who_let_an_edited_call_of_unknown_outcome_run_again(
    fixture: StoreFixture,
) {
    let harness = harness(fixture, "{ groups: [finance], required: 2 }").await;
    let (task, request, call, api) = held_call(&harness).await;
    let edited = each([(call, edit(EDITED))]);
    decides(&api, &finance("carol"), request, edited).await;
    harness.run().await;
    let (anew, _) = question(&harness, task).await;
    for user in ["bob", "dan"] {
        decides(&api, &finance(user), anew, whole(Action::Approve, None)).await;
    }
    harness.tool.answers(504, "");
    harness.run().await;
    let doubt = harness.only_request(task, RequestKind::Reconcile).await;
    harness.tool.answers(200, "paid");
    // Other people have approved Carol's arguments before the first attempt.
    for user in ["carol", "bob"] {
        decides(&api, &finance(user), doubt, whole(Action::Retry, None)).await;
    }
    harness.run().await;
    let sent = (call.to_string(), EDITED.to_owned());
    assert_eq!(bodies(&harness, task, "/refund"), [sent.clone(), sent]);
    // With a further request, the task would be paused.
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(
        became(&harness, task, [call]).await,
        [Some(Outcome::Succeeded)]
    );
    let ledger = harness.tool.ledger();
    let deciders = ledger
        .iter()
        .map(|sent| sent.header("holdpoint-decided-by"));
    assert_eq!(deciders.collect::<Vec<_>>(), ["bob,dan", "carol,bob"]);
}

#[apply(both)]
async fn next_approver_is_warned_of_edited_arguments(fixture: StoreFixture) {
    let harness = harness(fixture, TWO).await;
    let (task, ..) = rewritten(&harness, "{\"order\":1,\"amount\":50              }").await;
    let codes: Vec<_> = last_open_request(&harness, task).await.pending_tool_calls[0]
        .warnings
        .iter()
        .map(|warning| warning.code.clone())
        .collect();
    assert_eq!(codes, ["long_blanks"]);
}
