//! Tests decisions about single calls of one request: in any order, by different people, in one
//! HTTP body or in several.

mod endings;
mod refusals;
mod rejections;

use std::time::Duration;

use futures_util::future::join_all;
use holdpoint::engine::{CallReply, DecisionBody, Refusal};
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::{CallId, RequestId, TaskId};
use holdpoint::task::item::Outcome;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;

use super::call_decisions::{
    approve, became, bodies, each, edit, question, refused, reject, reject_because, reject_then,
    respond, results, shown,
};
use super::engine_harness::{
    Calls, EngineHarness, alice, alice_decides, decides, person, too_late, whole,
};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

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
    harness.replace("{ owner: true }", terms);
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
    assert_eq!(status(harness, request).await, RequestStatus::Pending);
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    let written = results(&harness.journal(task).await);
    let taken_back = written
        .values()
        .filter(|(outcome, _)| *outcome != Outcome::Rejected)
        .count();
    assert_eq!(
        taken_back, 0,
        "only rejections are written while the request is open: {written:?}"
    );
    assert!(harness.claims_nothing(1).await);
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
    // The normal runs on the two databases together try all 24 orders.
    let step = repetitions(2, 1);
    let first = usize::from(harness.fixture.is_postgres()) % step;
    for number in (first..24).step_by(step) {
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
            decides(&api, &caller, request, each([(call, reply)])).await;
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
                decides(&harness.engine(0), &person("bob"), request, answer).await;
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
    for round in 0..repetitions(6, 10) {
        let (task, request, calls) = held_calls(&harness).await;
        let mut answers = Vec::new();
        for (place, api) in apis.iter().enumerate() {
            for (number, call) in calls.iter().enumerate() {
                let reply = [approve(), reject_then(Consequence::Continue), respond("1")]
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
async fn approve_covers_every_undecided_call_this_person_has_not_answered(fixture: StoreFixture) {
    let harness = harness(fixture, FOUR, "{ owner: true, users: [bob], required: 2 }").await;
    let api = harness.engine(0);
    let (task, request, calls) = held_calls(&harness).await;
    let yes = || whole(Action::Approve, None);
    alice_decides(&api, request, each([(calls[1], approve())])).await;
    decides(&api, &person("bob"), request, each([(calls[0], reject())])).await;
    alice_decides(&api, request, yes()).await;
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
    decides(&api, &person("bob"), request, yes()).await;
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
