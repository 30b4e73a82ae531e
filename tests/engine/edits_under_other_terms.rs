//! Tests edited arguments that another rule holds, under other terms than the original arguments.
//! People other than the editor must be able to approve the edited arguments, and must do so if the
//! original request required several approvals.

use holdpoint::engine::Refusal;
use holdpoint::task::decision::Action;
use holdpoint::task::grant::GrantScope;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::call_decisions::{each, edit, last_open_request, places, question, ran_as, refused};
use super::edits::{TWO, bob_may_not_approve, harness, held_call, rewritten};
use super::engine_harness::{EngineHarness, alice_decides, decides, person, whole};
use super::grants::{hours, remembered};
use crate::store::store_fixture::{StoreFixture, both};

/// Arguments that one approval of Bob or Carol lets run.
const SINGLE: &str = r#"{"order":777,"amount":120}"#;

/// Returns a harness in which large refunds need two approvals, but a large refund for the order
/// 777 needs a single approval.
async fn two_or_one(fixture: StoreFixture) -> EngineHarness {
    let mut harness = harness(fixture, TWO).await;
    let single = r#"  - { name: single, tools: [refund], when: "args.order == 777", decide: hold, approvers: { users: [bob, carol] } }"#;
    harness.configure(|yaml| {
        let odd = "  - { name: odd";
        yaml.replacen(odd, &format!("{single}\n{odd}"), 1)
    });
    harness
}

#[apply(both)]
async fn editor_may_not_approve_where_the_new_rule_needs_one_approval(fixture: StoreFixture) {
    let harness = two_or_one(fixture).await;
    let (task, request, call, api) = rewritten(&harness, SINGLE).await;
    let shown = last_open_request(&harness, task).await;
    assert_eq!(shown.terms.approvers.required, 1);
    assert_eq!(shown.own_calls().count(), 1);
    bob_may_not_approve(&harness, &api, task, call).await;
    // Bob's next edit does not count as an approval either.
    let again = r#"{"order":777,"amount":121}"#;
    decides(&api, &person("bob"), request, each([(call, edit(again))])).await;
    harness.run().await;
    let (third, _) = question(&harness, task).await;
    assert!(third != request && harness.executions(task, "/refund") == 0);
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
    decides(&api, &person("carol"), third, whole(Action::Approve, None)).await;
    harness.run().await;
    ran_as(&harness, task, "/refund", call, again);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[apply(both)]
async fn edit_by_another_person_approves_where_one_approval_is_needed(fixture: StoreFixture) {
    let harness = two_or_one(fixture).await;
    let (task, request, call, api) = rewritten(&harness, SINGLE).await;
    let by_carol = r#"{"order":777,"amount":122}"#;
    decides(
        &api,
        &person("carol"),
        request,
        each([(call, edit(by_carol))]),
    )
    .await;
    harness.run().await;
    ran_as(&harness, task, "/refund", call, by_carol);
}

#[apply(both)]
async fn edit_that_too_few_others_could_approve_is_refused(fixture: StoreFixture) {
    let harness = harness(fixture, TWO).await;
    let (task, _, call, api) = held_call(&harness).await;
    // Only Carol may approve refunds over 1000, and editors may not approve their own arguments.
    // So the service refuses the edit from Carol, and accepts the same edit from Alice.
    let huge = each([(call, edit(r#"{"order":1,"amount":2000}"#))]);
    let no = refused(&harness, &api, &person("carol"), task, huge.clone()).await;
    assert_eq!(places(&no), [format!("/decisions/{call}/arguments")]);
    let (request, _) = question(&harness, task).await;
    alice_decides(&api, request, huge).await;
}

/// The tool changes after the edit, so the edited call is judged again without a request. Bob has
/// given a standing decision about a call that the model made.
#[apply(both)]
async fn standing_decision_of_the_editor_does_not_cover_the_edited_call(fixture: StoreFixture) {
    let mut harness = two_or_one(fixture).await;
    harness.replace(
        "{ users: [bob, carol] } }",
        r#"{ users: [bob, carol] }, remember: { when: "args.amount <= 500.0", for: [owner], most: 4h, uses: 3 } }"#,
    );
    let (task, request, call, _) = rewritten(&harness, SINGLE).await;
    harness.replace("exclusiveMinimum: 0", "minimum: 1");
    harness.script_turns(&[&[("refund", SINGLE)]]);
    let (other, api) = (harness.held().await, harness.engine(0));
    let (asked, _) = question(&harness, other).await;
    let standing_decision = remembered(GrantScope::Owner, hours(1));
    decides(&api, &person("bob"), asked, standing_decision).await;
    harness.run().await;
    assert_eq!(harness.executions(other, "/refund"), 1);
    let (carol, approval) = (person("carol"), whole(Action::Approve, None));
    let late = api.decide(&carol, request, approval.clone(), None).await;
    assert!(matches!(late, Err(Refusal::Withdrawn(_))), "{late:?}");
    harness.run().await;
    assert_eq!(harness.executions(task, "/refund"), 0);
    bob_may_not_approve(&harness, &api, task, call).await;
    let (anew, _) = question(&harness, task).await;
    decides(&api, &carol, anew, approval).await;
    harness.run().await;
    ran_as(&harness, task, "/refund", call, SINGLE);
}
