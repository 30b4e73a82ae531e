//! Tests that an approval with `remember` is refused if it goes beyond the offer of its rule.

use std::time::Duration;

use holdpoint::engine::{CallReply, Refusal};
use holdpoint::people::Caller;
use holdpoint::task::decision::{Action, Consequence, Door};
use holdpoint::task::grant::{GrantRequest, GrantScope};
use macro_rules_attribute::apply;

use super::super::call_decisions::{approve, each, places, plain, question, refused};
use super::super::engine_harness::{decides, person, rejects};
use super::{HUGE, LARGE, TAG, answered, grant, grants, harness, hours, remembered};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn wish_beyond_the_offer_is_refused(fixture: StoreFixture) {
    let mut harness = harness(fixture, &[&[LARGE, TAG], &[HUGE]]).await;
    let task = harness.stopped().await;
    let open = harness.open_specs(task).await;
    assert_eq!(open.len(), 1, "the terms are the same");
    let (request, calls) = question(&harness, task).await;
    let api = harness.engine(0);
    let bob = person("bob");
    let reply = |scope, time| CallReply {
        remember: Some(GrantRequest {
            scope,
            expires_in: time,
        }),
        ..approve()
    };
    let reject = |remember| CallReply {
        remember,
        ..plain(Action::Reject)
    };
    let for_an_hour = || remembered(GrantScope::Task, hours(1));
    let wish = reply(GrantScope::Task, hours(1)).remember;
    for (answer, place) in [
        (
            remembered(GrantScope::Owner, hours(2)),
            "/remember/expires_in".to_owned(),
        ),
        (
            each([(calls[1], reply(GrantScope::Task, hours(2)))]),
            format!("/decisions/{}/remember/expires_in", calls[1]),
        ),
        (
            each([(
                calls[0],
                reply(GrantScope::Task, Duration::from_secs(4 * 3600 + 1)),
            )]),
            format!("/decisions/{}/remember/expires_in", calls[0]),
        ),
        (
            each([(calls[0], reject(wish))]),
            format!("/decisions/{}/remember", calls[0]),
        ),
    ] {
        assert_eq!(
            places(&refused(&harness, &api, &bob, task, answer).await),
            [place]
        );
    }
    for by in [Door::Link, Door::Slack] {
        let caller = Caller {
            door: Some(by),
            ..person("bob")
        };
        for answer in [
            for_an_hour(),
            each([(calls[0], reply(GrantScope::Task, hours(1)))]),
        ] {
            assert!(matches!(
                refused(&harness, &api, &caller, task, answer).await,
                Refusal::Forbidden(_)
            ));
        }
    }
    // Changes the rule after the request was opened.
    let before = harness.yaml();
    harness.replace("args.amount <= 500.0", "args.amount <= 400.0");
    let later = harness.engine(0);
    let changed = refused(&harness, &later, &bob, task, for_an_hour()).await;
    assert_eq!(places(&changed), ["/remember"]);
    harness.configure(|_| before.clone());
    decides(&harness.engine(0), &bob, request, for_an_hour()).await;
    assert_eq!(grants(&harness).await.len(), 2, "one for each call");
    harness.run().await;
    let beyond = refused(&harness, &api, &bob, task, for_an_hour()).await;
    assert_eq!(
        places(&beyond),
        ["/remember"],
        "the condition does not hold"
    );
    answered(&harness, task, rejects(Consequence::Continue)).await;
}

#[apply(both)]
async fn wish_is_checked_against_the_undecided_calls_alone(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE, TAG]]).await;
    let task = harness.stopped().await;
    let (request, calls) = question(&harness, task).await;
    let (api, bob) = (harness.engine(0), person("bob"));
    decides(&api, &bob, request, each([(calls[1], approve())])).await;
    let beyond = remembered(GrantScope::Task, hours(5));
    let said = refused(&harness, &api, &bob, task, beyond).await;
    assert_eq!(places(&said), ["/remember/expires_in"]);
    // The offer for the decided call has a shorter time.
    let within = remembered(GrantScope::Task, hours(2));
    decides(&api, &bob, request, within.clone()).await;
    assert_eq!(grant(&harness).await.tool, "refund");
    let repeated = api.decide(&bob, request, within, None).await.unwrap_err();
    assert!(
        matches!(repeated, Refusal::AlreadyDecided { .. }),
        "{repeated:?}"
    );
}

#[apply(both)]
async fn scope_that_is_not_offered_is_refused(fixture: StoreFixture) {
    let mut harness = harness(fixture, &[&[LARGE]]).await;
    harness.replace("for: [task, owner], most: 4h", "for: [task], most: 4h");
    let task = harness.stopped().await;
    let (api, wish) = (harness.engine(0), remembered(GrantScope::Owner, hours(1)));
    let said = refused(&harness, &api, &person("bob"), task, wish).await;
    assert_eq!(places(&said), ["/remember/for"]);
}
