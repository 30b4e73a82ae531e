//! Tests HTTP bodies that are refused as a whole, because a part of them does not fit the request.

use holdpoint::engine::{CallReply, DecisionBody, DecisionInput, Refusal};
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::{CallId, TaskId};
use macro_rules_attribute::apply;

use super::super::call_decisions::{
    approve, each, edit, last_open_request, named, places, plain, question, refused, reject,
    reject_then, respond,
};
use super::super::engine_harness::{EngineHarness, alice, alice_decides, go, person, whole};
use super::{EDITED, FOUR, harness, held_calls, of_two};
use crate::store::store_fixture::{StoreFixture, both};

#[apply(both)]
async fn body_that_names_a_decided_call_is_refused_as_a_whole(fixture: StoreFixture) {
    let harness = of_two(fixture).await;
    let api = harness.engine(0);
    let (task, request, [first, second, third, _]) = held_calls(&harness).await;
    for decided in [approve(), reject(), edit(EDITED), respond("1")] {
        let (task, request, [first, second, ..]) = held_calls(&harness).await;
        alice_decides(&api, request, each([(first, decided)])).await;
        for reply in [
            approve(),
            reject_then(Consequence::Cancel),
            edit(EDITED),
            respond("2"),
        ] {
            let answer = each([(first, reply.clone()), (second, approve())]);
            let lost = Refusal::AlreadyDecided {
                request,
                call: Some(first),
            };
            assert_eq!(
                refused(&harness, &api, &person("bob"), task, answer).await,
                lost
            );
        }
    }
    alice_decides(&api, request, each([(second, approve())])).await;
    let answer = each([(first, approve()), (second, approve()), (third, approve())]);
    assert!(matches!(
        refused(&harness, &api, &alice(), task, answer).await,
        Refusal::AlreadyDecided { .. }
    ));
}

/// Creates a task with two calls that are held and one that needs no decision. Only the owner may
/// decide, and only approve or reject. Returns the harness, the task and the three calls.
async fn two_of_three_held(fixture: StoreFixture) -> (EngineHarness, TaskId, [CallId; 3]) {
    const MIXED: &[(&str, &str)] = &[FOUR[0], FOUR[1], ("lookup", r#"{"order":1}"#)];
    let harness = harness(fixture, MIXED, "{ owner: true }, allow: [approve, reject]").await;
    let task = harness.held().await;
    let shown = last_open_request(&harness, task).await.pending_tool_calls;
    let calls = [0, 1, 2].map(|place: usize| shown[place].tool_call_id);
    (harness, task, calls)
}

#[apply(both)]
async fn body_that_does_not_fit_changes_nothing(fixture: StoreFixture) {
    let (harness, task, [first, second, free]) = two_of_three_held(fixture).await;
    let api = harness.engine(0);
    let cases = [
        (
            each([(free, approve())]),
            vec![format!("/decisions/{free}")],
        ),
        (
            each([(first, approve()), (free, approve())]),
            vec![format!("/decisions/{free}")],
        ),
        (
            named([("a/b~c".to_owned(), approve())]),
            vec!["/decisions/a~1b~0c".to_owned()],
        ),
        (
            named([(first.to_string().to_uppercase(), approve())]),
            vec![format!("/decisions/{}", first.to_string().to_uppercase())],
        ),
        (
            each([(first, edit(EDITED))]),
            vec![format!("/decisions/{first}/action")],
        ),
        (
            each([(first, approve()), (second, respond("1"))]),
            vec![format!("/decisions/{second}/action")],
        ),
        (
            each([(first, plain(Action::Retry))]),
            vec![format!("/decisions/{first}/action")],
        ),
        (
            each([(
                first,
                CallReply {
                    then: Some(Consequence::Continue),
                    ..approve()
                },
            )]),
            vec![format!("/decisions/{first}/then")],
        ),
        (each([]), vec![]),
        (whole(Action::Retry, None), vec!["/action".to_owned()]),
        (whole(Action::Edit, None), vec!["/action".to_owned()]),
        (
            whole(Action::Respond, Some("x".into())),
            vec!["/action".to_owned()],
        ),
        (
            whole(Action::Approve, Some("x".into())),
            vec!["/result".to_owned()],
        ),
    ];
    for (answer, expected) in cases {
        assert_eq!(
            places(&refused(&harness, &api, &alice(), task, answer).await),
            expected
        );
    }
    let two = each([
        (first, reject_then(Consequence::Continue)),
        (second, reject_then(Consequence::Cancel)),
    ]);
    let twice = refused(&harness, &api, &alice(), task, two).await;
    assert!(places(&twice)[0].ends_with("/then"), "{twice:?}");
    let mut beside = whole(Action::Approve, None);
    if let DecisionBody::Whole { then, .. } = &mut beside.body {
        *then = Some(Consequence::Continue);
    }
    assert_eq!(
        places(&refused(&harness, &api, &alice(), task, beside).await),
        ["/then"]
    );
}

#[apply(both)]
async fn body_with_another_digest_or_of_a_stranger_changes_nothing(fixture: StoreFixture) {
    let (harness, task, [first, _, free]) = two_of_three_held(fixture).await;
    let api = harness.engine(0);
    let outdated = DecisionInput {
        digest: Some("sha256:0".to_owned()),
        ..each([(first, approve())])
    };
    assert!(matches!(
        refused(&harness, &api, &alice(), task, outdated).await,
        Refusal::DigestMismatch(_)
    ));
    assert!(matches!(
        refused(
            &harness,
            &api,
            &person("bob"),
            task,
            each([(free, approve())])
        )
        .await,
        Refusal::Forbidden(_)
    ));
}

#[apply(both)]
async fn two_consequences_in_one_answer_are_refused_at_a_call_that_names_one(
    fixture: StoreFixture,
) {
    let harness = of_two(fixture).await;
    let (task, _, [first, second, third, fourth]) = held_calls(&harness).await;
    let (goes_on, ends) = (
        reject_then(Consequence::Continue),
        reject_then(Consequence::Cancel),
    );
    let answer = each([
        (first, goes_on),
        (second, ends),
        (third, reject()),
        (fourth, approve()),
    ]);
    let refusal = refused(&harness, &harness.engine(0), &alice(), task, answer).await;
    let found = places(&refusal);
    let [place] = &found[..] else {
        panic!("{refusal:?}")
    };
    let named = [first, second].map(|call| format!("/decisions/{call}/then"));
    assert!(named.iter().any(|named| named == place), "{refusal:?}");
}

#[apply(both)]
async fn single_calls_can_be_named_only_in_an_approval(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[("refund", r#"{"order":1,"amount":5}"#)]).await;
    harness.tool.answers(502, "");
    let task = harness
        .engine(0)
        .create(&alice(), go(), None)
        .await
        .unwrap()
        .task_id;
    harness.run().await;
    let (_, calls) = question(&harness, task).await;
    let api = harness.engine(0);
    for reply in [plain(Action::Retry), respond("1"), reject()] {
        let refusal = refused(&harness, &api, &alice(), task, each([(calls[0], reply)])).await;
        assert_eq!(places(&refusal), ["/decisions"]);
    }
}
