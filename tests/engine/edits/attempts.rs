//! Tests edited calls whose driver crashes or whose attempt is lost, and that are sent again.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use holdpoint::task::decision::Action;
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use macro_rules_attribute::apply;

use super::super::call_decisions::{
    became, bodies, each, edit, last_open_request, places, question, refused, shown,
};
use super::super::engine_harness::{EngineHarness, alice, alice_decides, whole};
use super::super::worker_steps::WorkerSteps as _;
use super::{EDITED, harness, held_call, offered};
use crate::store::store_fixture::{StoreFixture, both};

const TAG: &[(&str, &str)] = &[("tag", r#"{"text":"x"}"#)];

const TAGGED: &str = r#"{ "text" : "\u0079" }"#;

#[apply(both)]
async fn crash_anywhere_neither_loses_nor_repeats_nor_changes_an_edit(fixture: StoreFixture) {
    let harness = harness(fixture, "{ owner: true }").await;
    let (mut rounds, mut whole_rounds, mut doubts) = (0, 0, 0);
    // Each driver is dropped after 1 to 16 polls, unless it ends before. The loop runs until two
    // drivers have ended, and until a driver was dropped during its call. The progress of a driver
    // at its last poll varies, so the number of rounds for this varies, too.
    while whole_rounds < 2 || (doubts == 0 && rounds < 400) {
        let polls = 1 + rounds % 16;
        rounds += 1;
        let (task, request, call, api) = held_call(&harness).await;
        alice_decides(&api, request, each([(call, edit(EDITED))])).await;
        let driver = harness.engine(1).claim().await.unwrap().pop().unwrap();
        {
            let (mut driver, mut left) = (pin!(driver), polls);
            let done = poll_fn(|context| {
                left -= 1;
                match driver.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending if left == 0 => Poll::Ready(false),
                    Poll::Pending => Poll::Pending,
                }
            });
            whole_rounds += u32::from(done.await);
        }
        harness.later();
        harness.run().await;
        if let Some((_, RequestKind::Reconcile)) = harness.open(task).await.first() {
            doubts += 1;
            assert_eq!(
                last_open_request(&harness, task).await.pending_tool_calls[0].arguments_text,
                EDITED
            );
        }
        harness.finish(task).await;
        let ran = bodies(&harness, task, "/refund");
        assert!(
            ran.len() <= 1 && ran.iter().all(|(_, body)| body == EDITED),
            "{polls}: {ran:?}"
        );
        let [became] = became(&harness, task, [call]).await;
        assert!(
            matches!(became, Some(Outcome::Responded | Outcome::Succeeded)),
            "{polls}: {became:?}"
        );
        assert!(ran.len() == 1 || became == Some(Outcome::Responded));
    }
    assert!(rounds > 4 && doubts > 0, "{rounds} {doubts}");
}

#[apply(both)]
async fn lost_attempt_of_an_edited_call_is_asked_about_or_repeated_with_the_edit(
    fixture: StoreFixture,
) {
    let harness = harness(StoreFixture::like(&fixture).await, "{ owner: true }").await;
    harness.tool.answers(502, "");
    let (task, request, call, api) = held_call(&harness).await;
    alice_decides(&api, request, each([(call, edit(EDITED))])).await;
    harness.run().await;
    let doubt = last_open_request(&harness, task).await;
    assert_eq!(doubt.kind, RequestKind::Reconcile);
    assert_eq!(doubt.pending_tool_calls[0].arguments_text.as_str(), EDITED);
    harness.tool.answers(200, "paid");
    alice_decides(&api, doubt.request_id, whole(Action::Retry, None)).await;
    harness.run().await;
    assert_eq!(
        bodies(&harness, task, "/refund"),
        [
            (call.to_string(), EDITED.to_owned()),
            (call.to_string(), EDITED.to_owned())
        ]
    );
    assert!(shown(&harness)[0].contains(EDITED));

    let mut harness = EngineHarness::new(fixture, TAG).await;
    harness.replace(
        "tools: [lookup, tag], decide: allow",
        "tools: [lookup, tag], decide: hold",
    );
    harness.tool.answers(502, "");
    let (task, request, call, api) = held_call(&harness).await;
    alice_decides(&api, request, each([(call, edit(TAGGED))])).await;
    harness.run().await;
    assert_eq!(
        bodies(&harness, task, "/tag"),
        vec![(call.to_string(), TAGGED.to_owned()); 3]
    );
    assert_eq!(
        became(&harness, task, [call]).await,
        [Some(Outcome::Failed)]
    );
}

#[apply(both)]
async fn approval_of_a_call_that_was_sent_offers_no_edit(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, TAG).await;
    let task = harness.lost_call().await;
    harness.later();
    harness.replace(
        "tools: [lookup, tag], decide: allow",
        "tools: [lookup, tag], decide: hold",
    );
    harness.run().await;
    let (_, calls) = question(&harness, task).await;
    assert_eq!(
        last_open_request(&harness, task).await.kind,
        RequestKind::Approval
    );
    assert_eq!(
        offered(&harness, task, &alice()).await,
        [Action::Approve, Action::Reject, Action::Respond]
    );
    let refusal = refused(
        &harness,
        &harness.engine(0),
        &alice(),
        task,
        each([(calls[0], edit(TAGGED))]),
    )
    .await;
    assert_eq!(
        places(&refusal),
        [format!("/decisions/{}/action", calls[0])]
    );
    harness.finish(task).await;
    assert_eq!(
        bodies(&harness, task, "/tag"),
        vec![(calls[0].to_string(), TAG[0].1.to_owned()); 2]
    );
}
