//! Tests approved calls whose rule has changed since the approval.

use holdpoint::task::decision::Action;
use holdpoint::task::item::Outcome;
use macro_rules_attribute::apply;

use super::super::call_decisions::{became, last_open_request, shown};
use super::super::engine_harness::{alice_decides, whole};
use super::{asked_again, harness, held_call, ran, vouched};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn changed_rule_asks_again_unless_those_who_approved_are_among_its_approvers(
    fixture: StoreFixture,
) {
    let table = [
        ("{ users: [bob] }", true),
        ("{ users: [carol], groups: [finance] }", true),
        ("{ users: [carol] }", false),
        ("{ groups: [audit] }", false),
        ("{ groups: [finance], required: 2 }", false),
        ("{ owner: true }", false),
    ];
    for (approvers, stands) in table {
        let mut harness =
            harness(StoreFixture::like(&fixture).await, "{ groups: [finance] }").await;
        let (task, request, _) = held_call(&harness).await;
        harness
            .engine(0)
            .decide(&vouched("bob"), request, whole(Action::Approve, None), None)
            .await
            .unwrap();
        harness.replace("{ groups: [finance] }", approvers);
        harness.run().await;
        if stands {
            ran(&harness, task).await;
        } else {
            asked_again(&harness, task, request).await;
            let terms = last_open_request(&harness, task).await.terms.approvers;
            assert!(
                !terms.groups.contains(&"finance".to_owned()) || terms.required == 2,
                "the terms of today: {terms:?}"
            );
        }
    }
}

#[apply(both)]
async fn rule_that_denies_since_the_approval_denies_the_call(fixture: StoreFixture) {
    let mut harness = harness(fixture, "{ owner: true }").await;
    let (task, request, call) = held_call(&harness).await;
    harness.replace(
        "policy:\n",
        "policy:\n  - { name: stop, tools: [refund], decide: deny, reason: Not today. }\n",
    );
    alice_decides(&harness.engine(0), request, whole(Action::Approve, None)).await;
    harness.run().await;
    assert_eq!(harness.executions(task, "/refund"), 0);
    assert_eq!(
        became(&harness, task, [call]).await,
        [Some(Outcome::Denied)]
    );
    assert!(shown(&harness)[0].contains("Not today"));
}
