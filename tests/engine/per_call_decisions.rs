//! Tests decisions about single calls of one request: in any order, by different people, in one
//! HTTP body or in several.

use std::time::Duration;

use futures_util::future::join_all;
use holdpoint::engine::{CallReply, DecisionBody, Refusal};
use holdpoint::task::decision::{Action, Then};
use holdpoint::task::id::{CallId, RequestId, TaskId};
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::progress::Progress;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;

use super::call_decisions::{
    approve, became, bodies, each, edit, last_open_request, named, places, plain, question,
    refused, reject, reject_because, reject_then, respond, results, shown,
};
use super::engine_harness::{Calls, EngineHarness, alice, person, rejects, too_late, whole};
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::{StoreFixture, both};

/// Four calls that are held in one request.
const FOUR: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":100.10}"#),
    ("refund", r#"{"order":2,"amount":200}"#),
    ("refund", r#"{"order":3,"amount":300}"#),
    ("refund", r#"{"order":4,"amount":400}"#),
];
const EDITED: &str = r#"{ "amount": 33.30, "order": 3 }"#;

async fn harness(fixture: StoreFixture, calls: Calls, terms: &str) -> EngineHarness {
    let mut harness = EngineHarness::new(fixture, calls).await;
    harness.configure(|yaml| yaml.replace("{ owner: true }", terms));
    harness
}

async fn of_two(fixture: StoreFixture) -> EngineHarness {
    harness(fixture, FOUR, "{ owner: true, users: [bob] }").await
}

async fn held_calls(harness: &EngineHarness) -> (TaskId, RequestId, [CallId; 4]) {
    let task = harness.held().await;
    let (request, calls) = question(harness, task).await;
    (task, request, calls.try_into().unwrap())
}

async fn status(harness: &EngineHarness, request: RequestId) -> RequestStatus {
    harness.fixture.request(request).await.status
}

/// Asserts that the request is pending, that all results so far are rejections, and that the task
/// cannot be claimed.
async fn waits(harness: &EngineHarness, task: TaskId, request: RequestId) {
    assert_eq!(
        (status(harness, request).await, harness.status(task).await),
        (RequestStatus::Pending, TaskStatus::Paused)
    );
    let written = results(&harness.journal(task).await);
    let taken_back = written
        .values()
        .filter(|(outcome, _)| *outcome != Outcome::Rejected)
        .count();
    assert_eq!(
        taken_back, 0,
        "only rejections are written while the request is open: {written:?}"
    );
    assert!(harness.engine(1).claim().await.unwrap().is_empty());
}

/// Returns an answer for each of the four calls: approve, reject, edit and respond.
fn mixture(calls: [CallId; 4]) -> [(CallId, CallReply); 4] {
    let [first, second, third, fourth] = calls;
    [
        (first, approve()),
        (second, reject_because("twice")),
        (third, edit(EDITED)),
        (fourth, respond("\"by hand\"")),
    ]
}

/// Runs the task and checks that each call has the result that `mixture` chose for it. The order in
/// which the answers came does not matter.
async fn as_decided(harness: &EngineHarness, task: TaskId, calls: [CallId; 4]) {
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    let expected = [
        Outcome::Succeeded,
        Outcome::Rejected,
        Outcome::Succeeded,
        Outcome::Responded,
    ];
    assert_eq!(became(harness, task, calls).await, expected.map(Some));
    let ran = [
        (calls[0].to_string(), FOUR[0].1.to_owned()),
        (calls[2].to_string(), EDITED.to_owned()),
    ];
    assert_eq!(bodies(harness, task, "/refund"), ran);
    let shown = shown(harness);
    assert_eq!(shown.len(), 4, "one result for each call");
    assert!(
        shown[1].contains("twice") && shown[2].contains(EDITED) && shown[3] == "by hand",
        "{shown:?}"
    );
}

#[apply(both)]
async fn calls_are_decided_in_any_order_by_different_people(fixture: StoreFixture) {
    let harness = of_two(fixture).await;
    let api = harness.engine(0);
    for number in 0..24_usize {
        let (task, request, calls) = held_calls(&harness).await;
        let mut left = mixture(calls).to_vec();
        for (place, choices) in [(0, 4), (1, 3), (2, 2), (3, 1)] {
            let which = [number / 6, number / 2 % 3, number % 2, 0][place] % choices;
            let (call, reply) = left.remove(which);
            waits(&harness, task, request).await;
            let caller = if (number + place) % 2 == 0 {
                alice()
            } else {
                person("bob")
            };
            api.decide(&caller, request, each([(call, reply)]), None)
                .await
                .unwrap();
        }
        as_decided(&harness, task, calls).await;
        assert_eq!(status(&harness, request).await, RequestStatus::Resumed);
        let row = harness.fixture.request(request).await;
        assert_eq!(row.answers.len(), 4);
        assert_eq!(
            row.answers
                .iter()
                .filter(|(_, decision)| decision.by == "bob")
                .count(),
            2
        );
    }
}

#[apply(both)]
async fn calls_are_decided_in_one_body_or_several_now_or_later(fixture: StoreFixture) {
    let harness = of_two(fixture).await;
    for at in 0..5 {
        let (task, request, calls) = held_calls(&harness).await;
        let (now, later) = mixture(calls)
            .into_iter()
            .enumerate()
            .partition::<Vec<_>, _>(|(place, _)| *place < at);
        for part in [now, later] {
            waits(&harness, task, request).await;
            let replies = part
                .into_iter()
                .map(|(_, (call, reply))| (call.to_string(), reply));
            let mut answer = each([]);
            answer.body = DecisionBody::PerCall(replies.collect());
            if !matches!(&answer.body, DecisionBody::PerCall(replies) if replies.is_empty()) {
                harness.fixture.forward(Duration::from_hours(3));
                harness
                    .engine(0)
                    .decide(&person("bob"), request, answer, None)
                    .await
                    .unwrap();
            }
            if at == 4 {
                break;
            }
        }
        as_decided(&harness, task, calls).await;
    }
}

#[apply(both)]
async fn first_answer_to_each_call_wins_and_other_calls_are_unaffected(fixture: StoreFixture) {
    let harness = of_two(fixture).await;
    let apis = [harness.engine(0), harness.engine(0), harness.engine(0)];
    for round in 0..10 {
        let (task, request, calls) = held_calls(&harness).await;
        let mut answers = Vec::new();
        for (place, api) in apis.iter().enumerate() {
            for (number, call) in calls.iter().enumerate() {
                let reply = [approve(), reject_then(Then::Continue), respond("1")]
                    [(place + number + round) % 3]
                    .clone();
                let caller = if place == 1 { alice() } else { person("bob") };
                answers.push((*call, async move {
                    (
                        reply.action,
                        api.decide(&caller, request, each([(*call, reply)]), None)
                            .await,
                    )
                }));
            }
        }
        let (of, said): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        let said = join_all(said).await;
        harness.run().await;
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        let became = became(&harness, task, calls).await;
        for (call, became) in calls.into_iter().zip(became) {
            let of_call = || {
                of.iter()
                    .zip(&said)
                    .filter(|(of, _)| **of == call)
                    .map(|(_, said)| said)
            };
            let won: Vec<_> = of_call()
                .filter(|(_, said)| said.is_ok())
                .map(|(action, _)| *action)
                .collect();
            let [won] = won[..] else {
                panic!("exactly one is stored: {won:?}")
            };
            assert!(of_call().all(|(_, said)| said.is_ok() || too_late(said, request)));
            let expected = match won {
                Action::Approve => Outcome::Succeeded,
                Action::Reject => Outcome::Rejected,
                Action::Edit | Action::Respond | Action::Retry | Action::Mixed => {
                    Outcome::Responded
                }
            };
            assert_eq!(
                became,
                Some(expected),
                "the stored outcome matches the winner's reply"
            );
        }
    }
}

#[apply(both)]
async fn body_that_names_a_decided_call_is_refused_as_a_whole(fixture: StoreFixture) {
    let harness = of_two(fixture).await;
    let api = harness.engine(0);
    let (task, request, [first, second, third, _]) = held_calls(&harness).await;
    for decided in [approve(), reject(), edit(EDITED), respond("1")] {
        let (task, request, [first, second, ..]) = held_calls(&harness).await;
        api.decide(&alice(), request, each([(first, decided)]), None)
            .await
            .unwrap();
        for reply in [
            approve(),
            reject_then(Then::Cancel),
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
    api.decide(&alice(), request, each([(second, approve())]), None)
        .await
        .unwrap();
    let answer = each([(first, approve()), (second, approve()), (third, approve())]);
    assert!(matches!(
        refused(&harness, &api, &alice(), task, answer).await,
        Refusal::AlreadyDecided { .. }
    ));
}

#[apply(both)]
async fn approve_covers_every_undecided_call_this_person_has_not_answered(fixture: StoreFixture) {
    let harness = harness(fixture, FOUR, "{ owner: true, users: [bob], required: 2 }").await;
    let api = harness.engine(0);
    let (task, request, calls) = held_calls(&harness).await;
    let yes = || whole(Action::Approve, None);
    api.decide(&alice(), request, each([(calls[1], approve())]), None)
        .await
        .unwrap();
    api.decide(&person("bob"), request, each([(calls[0], reject())]), None)
        .await
        .unwrap();
    api.decide(&alice(), request, yes(), None).await.unwrap();
    let row = harness.fixture.request(request).await;
    let (_, last) = row.answers.last().unwrap();
    assert_eq!(
        last.decisions.keys().copied().collect::<Vec<_>>(),
        [calls[2], calls[3]]
    );
    assert!(matches!(
        refused(&harness, &api, &alice(), task, yes()).await,
        Refusal::AlreadyDecided { .. }
    ));
    waits(&harness, task, request).await;
    api.decide(&person("bob"), request, yes(), None)
        .await
        .unwrap();
    assert_eq!(
        api.decide(&alice(), request, yes(), None).await.err(),
        Some(Refusal::AlreadyDecided {
            request,
            call: None
        })
    );
    harness.run().await;
    let expected = [
        Outcome::Rejected,
        Outcome::Succeeded,
        Outcome::Succeeded,
        Outcome::Succeeded,
    ];
    assert_eq!(became(&harness, task, calls).await, expected.map(Some));
}

#[apply(both)]
async fn reject_covers_every_undecided_call(fixture: StoreFixture) {
    let harness = of_two(fixture).await;
    let api = harness.engine(0);
    let (task, request, calls) = held_calls(&harness).await;
    api.decide(&alice(), request, each([(calls[2], approve())]), None)
        .await
        .unwrap();
    api.decide(&person("bob"), request, whole(Action::Reject, None), None)
        .await
        .unwrap();
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
                api.decide(&alice(), request, each([(second, reject())]), None)
                    .await
                    .unwrap();
                waits(&harness, task, request).await;
                let rest = each([(first, reject()), (third, reject()), (fourth, reject())]);
                api.decide(&alice(), request, rest, None).await.unwrap();
            } else {
                api.decide(&alice(), request, whole(Action::Reject, None), None)
                    .await
                    .unwrap();
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
                then == Then::Continue,
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
    api.decide(
        &alice(),
        request,
        each([(calls[3], reject_then(Then::Continue))]),
        None,
    )
    .await
    .unwrap();
    waits(&harness, task, request).await;
    api.decide(&person("bob"), request, whole(Action::Reject, None), None)
        .await
        .unwrap();
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
    for then in [Then::Cancel, Then::CancelRoot] {
        let mut harness = harness(
            StoreFixture::like(&fixture).await,
            FIVE,
            "{ owner: true, users: [bob] }",
        )
        .await;
        let rule = "decide: hold, approvers: { users: [carol] }";
        harness.configure(|yaml| yaml.replace("decide: deny, reason: Not this one.", rule));
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
                api.decide(&alice(), request, each([yes, by_hand]), None)
                    .await
                    .unwrap();
                waits(&harness, task, request).await;
                api.decide(&person("bob"), request, each([no]), None)
                    .await
                    .unwrap();
            } else {
                api.decide(&alice(), request, each([yes, by_hand, no]), None)
                    .await
                    .unwrap();
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
    let both = each([(calls[0], approve()), (calls[1], reject_then(Then::Cancel))]);
    api.decide(&alice(), request, both, None).await.unwrap();
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
        api.decide(&alice(), request, some, None).await.unwrap();
        harness.fixture.forward(Duration::from_hours(2));
        let late = api
            .decide(&alice(), request, each([(calls[2], approve())]), None)
            .await;
        assert_eq!(late.err(), Some(Refusal::Expired(request)));
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
        (calls[0], reject_then(Then::Continue)),
        (calls[1], respond("1")),
    ]);
    harness
        .engine(0)
        .decide(&alice(), request, some, None)
        .await
        .unwrap();
    harness.configure(|yaml| yaml.replace("exclusiveMinimum: 0", "minimum: 1"));
    let api = harness.engine(0);
    let yes = whole(Action::Approve, None);
    assert_eq!(
        api.decide(&alice(), request, yes, None).await.err(),
        Some(Refusal::Withdrawn(request))
    );
    harness.run().await;
    let (anew, rest) = question(&harness, task).await;
    assert_eq!((anew == request, rest), (false, calls[2..].to_vec()));
    api.decide(&alice(), anew, whole(Action::Approve, None), None)
        .await
        .unwrap();
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
async fn body_that_does_not_fit_changes_nothing(fixture: StoreFixture) {
    const MIXED: &[(&str, &str)] = &[FOUR[0], FOUR[1], ("lookup", r#"{"order":1}"#)];
    let harness = harness(fixture, MIXED, "{ owner: true }, allow: [approve, reject]").await;
    let task = harness.held().await;
    let shown = last_open_request(&harness, task).await.pending_tool_calls;
    let [first, second, free] = [0, 1, 2].map(|place: usize| shown[place].tool_call_id);
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
                    then: Some(Then::Continue),
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
        (first, reject_then(Then::Continue)),
        (second, reject_then(Then::Cancel)),
    ]);
    let twice = refused(&harness, &api, &alice(), task, two).await;
    assert!(places(&twice)[0].ends_with("/then"), "{twice:?}");
    let mut beside = whole(Action::Approve, None);
    if let DecisionBody::Whole { then, .. } = &mut beside.body {
        *then = Some(Then::Continue);
    }
    assert_eq!(
        places(&refused(&harness, &api, &alice(), task, beside).await),
        ["/then"]
    );
    let outdated = holdpoint::engine::DecisionInput {
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
    let (goes_on, ends) = (reject_then(Then::Continue), reject_then(Then::Cancel));
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
        .create(&alice(), super::engine_harness::go(), None)
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

#[apply(both)]
async fn message_keeps_answered_calls_and_withdraws_the_rest(fixture: StoreFixture) {
    let harness = of_two(fixture).await;
    let (task, request, calls) = held_calls(&harness).await;
    let api = harness.engine(0);
    let some = each([
        (calls[0], approve()),
        (calls[1], reject_then(Then::Continue)),
        (calls[2], respond("1")),
    ]);
    api.decide(&alice(), request, some, None).await.unwrap();
    api.message(&alice(), task, super::call_decisions::message(), None)
        .await
        .unwrap();
    harness.run().await;
    let expected = [
        Outcome::Withdrawn,
        Outcome::Rejected,
        Outcome::Responded,
        Outcome::Withdrawn,
    ];
    assert_eq!(became(&harness, task, calls).await, expected.map(Some));
    assert_eq!(
        (
            harness.executions(task, "/refund"),
            status(&harness, request).await
        ),
        (0, RequestStatus::Withdrawn)
    );
    let late = api
        .decide(&alice(), request, rejects(Then::Continue), None)
        .await;
    assert_eq!(late.err(), Some(Refusal::Withdrawn(request)));
    let decisions = harness
        .journal(task)
        .await
        .items
        .iter()
        .filter(|item| matches!(item.fact, Fact::Decision { .. }))
        .count();
    assert_eq!(decisions, 1);
}
