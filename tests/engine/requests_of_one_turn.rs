//! Tests several requests in one turn, requests that need several approvals, and calls of unknown
//! outcome.

use std::time::Duration;

use holdpoint::engine::Refusal;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;
use serde_json::Value;

use super::engine_harness::{
    EngineHarness, alice, alice_decides, alice_is_refused, decides, outcomes, person, rejects,
    too_late, whole,
};
use crate::store::store_fixture::{StoreFixture, both};

/// Two calls that are held under different terms.
const BOTH: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":120}"#),
    ("forbidden", "{}"),
];
const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];

/// Returns a harness, a task, and the task's two requests: one for alice, and one for bob with
/// `terms`.
async fn two_questions(
    fixture: StoreFixture,
    terms: &str,
) -> (EngineHarness, TaskId, RequestId, RequestId) {
    let mut harness = EngineHarness::new(fixture, BOTH).await;
    let rule = format!("decide: hold, approvers: {{ users: [bob] }}, {terms}");
    harness.replace("decide: deny, reason: Not this one.", &rule);
    let task = harness.held().await;
    let [(first, _), (second, _)] = harness.open(task).await[..] else {
        panic!("two are open")
    };
    (harness, task, first, second)
}

async fn statuses(harness: &EngineHarness, requests: [RequestId; 2]) -> [RequestStatus; 2] {
    let [first, second] = requests;
    let status = async |id| harness.fixture.request(id).await.status;
    [status(first).await, status(second).await]
}

/// Returns the types of the items after the last request and its `Paused` status.
async fn since_asked(harness: &EngineHarness, task: TaskId) -> Vec<&'static str> {
    let items = harness.journal(task).await.items;
    let asked = items
        .iter()
        .rposition(|item| matches!(item.fact, Fact::InterventionRequested(_)))
        .unwrap();
    items[asked + 2..]
        .iter()
        .map(|item| item.fact.type_name())
        .collect()
}

/// Returns a harness, a task with a refund of unknown outcome, and the reconcile request that
/// pauses the task.
async fn doubtful(fixture: StoreFixture, approvers: &str) -> (EngineHarness, TaskId, RequestId) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.replace("{ owner: true }", approvers);
    harness.tool.answers(502, "");
    let task = harness.held().await;
    let api = harness.engine(0);
    let request = harness.only_request(task, RequestKind::Approval).await;
    for user in ["alice", "bob"] {
        if harness.status(task).await == TaskStatus::Paused {
            decides(&api, &person(user), request, whole(Action::Approve, None)).await;
        }
    }
    harness.run().await;
    harness.tool.answers(200, "paid");
    let doubt = harness.only_request(task, RequestKind::Reconcile).await;
    (harness, task, doubt)
}

#[apply(both)]
async fn approver_is_warned_only_about_the_calls_to_decide(fixture: StoreFixture) {
    const STRANGE: &[(&str, &str)] = &[
        ("refund", "{\"order\":1,\"amount\":120         }"),
        ("forbidden", "         {}"),
    ];
    let mut harness = EngineHarness::new(fixture, STRANGE).await;
    harness.replace("decide: deny", "decide: hold, approvers: { users: [bob] }");
    let task = harness.held().await;
    for (request, _) in harness.open(task).await {
        let asked = harness.fixture.request(request).await.spec;
        for call in asked.pending_tool_calls {
            let codes: Vec<_> = call
                .warnings
                .iter()
                .map(|warning| warning.code.as_str())
                .collect();
            let expected: &[&str] = if call.needs_decision {
                &["long_blanks"]
            } else {
                &[]
            };
            assert_eq!(codes, expected, "{}", call.name);
        }
    }
}

#[apply(both)]
async fn two_requests_approved_and_rejected_with_continue_run_one_call(fixture: StoreFixture) {
    let (harness, task, first, second) = two_questions(fixture, "expires_in: 24h").await;
    let api = harness.engine(0);
    decides(&api, &person("bob"), second, rejects(Consequence::Continue)).await;
    assert_eq!(
        harness.status(task).await,
        TaskStatus::Paused,
        "the other request is open"
    );
    assert_eq!(
        since_asked(&harness, task).await,
        ["decision", "tool_result"]
    );
    assert_eq!(
        statuses(&harness, [first, second]).await,
        [RequestStatus::Pending, RequestStatus::Responded]
    );
    alice_decides(&api, first, whole(Action::Approve, None)).await;
    assert_eq!(
        statuses(&harness, [first, second]).await,
        [RequestStatus::Resumed; 2]
    );
    harness.run().await;
    assert_eq!(
        since_asked(&harness, task).await,
        [
            "decision",
            "tool_result",
            "decision",
            "task_status",
            "tool_started",
            "tool_result",
            "assistant_message",
            "task_status",
        ]
    );
    assert_eq!(
        harness.executions(task, "/refund") + harness.executions(task, "/forbidden"),
        1
    );
}

#[apply(both)]
async fn two_requests_approved_and_rejected_with_cancel_run_nothing(fixture: StoreFixture) {
    let (harness, task, first, second) = two_questions(fixture, "expires_in: 24h").await;
    let api = harness.engine(0);
    alice_decides(&api, first, whole(Action::Approve, None)).await;
    assert!(
        harness.claims_nothing(1).await,
        "nothing of a turn runs while a question is open"
    );
    decides(&api, &person("bob"), second, rejects(Consequence::Cancel)).await;
    assert_eq!(
        since_asked(&harness, task).await,
        [
            "decision",
            "decision",
            "tool_result",
            "tool_result",
            "task_status"
        ]
    );
    let journal = harness.journal(task).await;
    assert_eq!(outcomes(&journal), [Outcome::Canceled, Outcome::Rejected]);
    assert_eq!(journal.row.status, TaskStatus::Canceled);
    assert_eq!(journal.row.open_requests, 0);
    assert_eq!(
        statuses(&harness, [first, second]).await,
        [RequestStatus::Resumed; 2]
    );
    assert_eq!(harness.tool.ledger().len(), 0);
}

#[apply(both)]
async fn answered_request_is_resumed_when_its_task_is_canceled(fixture: StoreFixture) {
    let (harness, task, first, second) = two_questions(fixture, "expires_in: 24h").await;
    let api = harness.engine(0);
    alice_decides(&api, first, whole(Action::Approve, None)).await;
    api.cancel(&alice(), task, None).await.unwrap();
    assert_eq!(
        statuses(&harness, [first, second]).await,
        [RequestStatus::Resumed, RequestStatus::Withdrawn]
    );
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Canceled; 2]
    );
}

#[apply(both)]
async fn request_that_expires_leaves_the_other_request_open(fixture: StoreFixture) {
    let (harness, task, first, second) = two_questions(fixture, "expires_in: 1h").await;
    let api = harness.engine(0);
    harness.fixture.forward(Duration::from_hours(2));
    let late = api
        .decide(&person("bob"), second, whole(Action::Approve, None), None)
        .await;
    assert_eq!(late.err(), Some(Refusal::Expired(second)), "swept or not");
    api.worker().expire().await.unwrap();
    assert_eq!(
        since_asked(&harness, task).await,
        ["request_closed", "tool_result"]
    );
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    alice_decides(&api, first, whole(Action::Approve, None)).await;
    harness.finish(task).await;
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Expired, Outcome::Succeeded]
    );
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(harness.executions(task, "/forbidden"), 0);
}

#[apply(both)]
async fn request_whose_expiry_cancels_withdraws_the_other_request(fixture: StoreFixture) {
    let (harness, task, first, second) =
        two_questions(fixture, "expires_in: 1h, on_expiry: cancel").await;
    let api = harness.engine(0);
    harness.fixture.forward(Duration::from_hours(2));
    api.worker().expire().await.unwrap();
    assert_eq!(harness.status(task).await, TaskStatus::Canceled);
    assert_eq!(
        statuses(&harness, [first, second]).await,
        [RequestStatus::Withdrawn, RequestStatus::Expired]
    );
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Canceled; 2]
    );
    let late = alice_is_refused(&api, first, whole(Action::Approve, None)).await;
    assert_eq!(late, Refusal::Withdrawn(first));
}

#[apply(both)]
async fn two_required_approvals_must_come_from_two_people(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, LARGE).await;
    harness.replace(
        "{ owner: true }",
        "{ owner: true, users: [bob], required: 2 }",
    );
    let task = harness.held().await;
    let (request, _) = harness.only_open(task).await;
    let api = harness.engine(0);
    alice_decides(&api, request, whole(Action::Approve, None)).await;
    for again in [Action::Approve, Action::Reject] {
        let twice = api
            .decide(&alice(), request, whole(again, None), None)
            .await;
        assert!(too_late(&twice, request));
    }
    assert!(harness.claims_nothing(1).await, "one is not enough");
    decides(&api, &person("bob"), request, whole(Action::Approve, None)).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(
        harness.tool.ledger()[0].header("holdpoint-decided-by"),
        "alice,bob"
    );
}

#[apply(both)]
async fn retry_of_a_call_that_required_two_approvals_requires_two(fixture: StoreFixture) {
    let (harness, task, doubt) =
        doubtful(fixture, "{ owner: true, users: [bob], required: 2 }").await;
    let api = harness.engine(0);
    alice_decides(&api, doubt, whole(Action::Retry, None)).await;
    assert!(harness.claims_nothing(1).await, "one is not enough");
    let twice = api
        .decide(&alice(), doubt, whole(Action::Retry, None), None)
        .await;
    assert!(too_late(&twice, doubt));
    decides(&api, &person("bob"), doubt, whole(Action::Retry, None)).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 2);
    let keys: Vec<_> = harness
        .tool
        .ledger()
        .iter()
        .map(|call| call.header("idempotency-key").to_owned())
        .collect();
    assert_eq!(keys[0], keys[1], "the same key");
}

#[apply(both)]
async fn outcome_of_a_call_may_be_told_by_one_person(fixture: StoreFixture) {
    let (harness, task, doubt) =
        doubtful(fixture, "{ owner: true, users: [bob], required: 2 }").await;
    let api = harness.engine(0);
    alice_decides(&api, doubt, whole(Action::Retry, None)).await;
    let paid = whole(Action::Respond, Some(Value::from("it was paid")));
    decides(&api, &person("bob"), doubt, paid).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Responded]);
}

#[apply(both)]
async fn later_calls_wait_after_an_unknown_outcome(fixture: StoreFixture) {
    let harness = EngineHarness::new(
        fixture,
        &[
            ("refund", r#"{"order":1,"amount":5}"#),
            ("lookup", r#"{"order":1}"#),
        ],
    )
    .await;
    harness.tool.answers(504, "");
    let task = harness.stopped().await;
    assert_eq!(harness.executions(task, "/refund"), 1);
    assert_eq!(harness.executions(task, "/lookup"), 0);
    harness.tool.answers(200, "found");
    harness.answer_all(&harness.engine(0), task).await;
    harness.run().await;
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Responded, Outcome::Succeeded]
    );
}

#[apply(both)]
async fn repeatable_call_fails_after_three_attempts(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[("tag", r#"{"text":"x"}"#)]).await;
    harness.tool.answers(502, "");
    let task = harness.stopped().await;
    let journal = harness.journal(task).await;
    assert_eq!(journal.row.status, TaskStatus::Completed);
    assert_eq!(outcomes(&journal), [Outcome::Failed]);
    let keys: std::collections::BTreeSet<_> = harness
        .tool
        .ledger()
        .iter()
        .map(|call| call.header("idempotency-key").to_owned())
        .collect();
    assert_eq!((harness.executions(task, "/tag"), keys.len()), (3, 1));
}

/// Creates a task with two calls whose results a client gives, and a held call.
async fn held_beside_external_calls(fixture: StoreFixture) -> (EngineHarness, TaskId) {
    const CALLS: &[(&str, &str)] = &[
        ("outside", "{}"),
        ("elsewhere", "{}"),
        ("refund", r#"{"order":1,"amount":120}"#),
    ];
    let mut harness = EngineHarness::new(fixture, CALLS).await;
    let tools = "  outside: { parameters: { type: object }, external: {} }
  elsewhere: { parameters: { type: object }, external: {} }
  forbidden: {";
    harness.replace("  forbidden: {", tools);
    let offered = "refund, forbidden, outside, elsewhere]";
    harness.replace("refund, forbidden]", offered);
    let rule = "policy:\n  - { name: far, tools: [elsewhere], decide: allow }\n";
    harness.replace("policy:\n", rule);
    let task = harness.held().await;
    (harness, task)
}

#[apply(both)]
async fn judgement_of_an_external_call_comes_before_the_request_of_another(fixture: StoreFixture) {
    let denied = (
        "[elsewhere], decide: allow",
        "[elsewhere], decide: deny",
        &[
            "decision",
            "task_status",
            "judged",
            "tool_result",
            "intervention_requested",
            "tool_started",
            "tool_result",
            "task_status",
        ][..],
    );
    let run_here = (
        "elsewhere: { parameters: { type: object }, external: {} }",
        r#"elsewhere: { http: { method: POST, url: "{tool}/elsewhere" } }"#,
        &[
            "decision",
            "task_status",
            "judged",
            "intervention_requested",
            "tool_started",
            "tool_result",
            "tool_started",
            "tool_result",
            "task_status",
        ][..],
    );
    for (part, by, expected) in [denied, run_here] {
        let like = StoreFixture::like(&fixture).await;
        let (mut harness, task) = held_beside_external_calls(like).await;
        let approval = harness.only_request(task, RequestKind::Approval).await;
        harness.replace(part, by);
        alice_decides(&harness.engine(0), approval, whole(Action::Approve, None)).await;
        harness.run().await;
        let items = harness.journal(task).await.items;
        let names = items.iter().map(|item| item.fact.type_name());
        let since: Vec<_> = names.skip_while(|name| *name != "decision").collect();
        assert_eq!(since, expected, "{by}");
        harness
            .only_request(task, RequestKind::ExternalResult)
            .await;
    }
}

#[apply(both)]
async fn judgement_of_a_call_at_its_start_is_committed_after_the_request_of_another(
    fixture: StoreFixture,
) {
    let (mut harness, task) = held_beside_external_calls(fixture).await;
    let approval = harness.only_request(task, RequestKind::Approval).await;
    let stop = "policy:\n  - { name: stop, tools: [refund], decide: deny }\n";
    harness.replace("policy:\n", stop);
    alice_decides(&harness.engine(8), approval, whole(Action::Approve, None)).await;
    harness.until_stopped(task).await;
    let journal = harness.journal(task).await;
    assert_eq!(outcomes(&journal), [Outcome::Denied]);
    let last = |name: &str| {
        let items = journal.items.iter();
        let times = items.filter(|item| item.fact.type_name() == name);
        times.map(|item| item.at).max()
    };
    // The items of a commit have the same time.
    let (judged, requested) = (last("judged"), last("intervention_requested"));
    assert!(judged > requested, "{judged:?} {requested:?}");
}
