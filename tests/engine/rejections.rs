//! Tests that a rejection stays in force: an equal call is refused with the same reason and without
//! a request, until the user's next message or until a person approves such a call.

mod approvals;

use std::time::Duration;

use holdpoint::engine::DecisionInput;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::verdict::Verdict;
use macro_rules_attribute::apply;

use super::call_decisions::{bodies, each, edit, last_open_request, question, reject_then, shown};
use super::engine_harness::{
    Calls, EngineHarness, alice, alice_decides, alice_writes, decides, outcomes, person, rejects,
    superseding, turn, whole,
};
use crate::store::store_fixture::{StoreFixture, both};

type Change = fn(&str) -> String;

const LARGE: (&str, &str) = ("refund", r#"{"order":1,"amount":120}"#);

const OTHER: (&str, &str) = ("refund", r#"{"order":1,"amount":121}"#);

async fn harness(fixture: StoreFixture, turns: &'static [Calls]) -> EngineHarness {
    let harness = EngineHarness::new(fixture, &[]).await;
    harness.script_turns(turns);
    harness
}

async fn answered(harness: &EngineHarness, task: TaskId, answer: DecisionInput) {
    let (request, _) = question(harness, task).await;
    alice_decides(&harness.engine(0), request, answer).await;
    harness.run().await;
}

/// Rejects every call of the open request with a reason, and lets the model go on.
async fn no(harness: &EngineHarness, task: TaskId) {
    let (request, calls) = question(harness, task).await;
    let mut answer = each([]);
    if let holdpoint::engine::DecisionBody::PerCall(replies) = &mut answer.body {
        for call in calls {
            let reply = holdpoint::engine::CallReply {
                reason: Some("wrong customer".to_owned()),
                ..reject_then(Consequence::Continue)
            };
            replies.insert(call.to_string(), reply);
        }
    }
    alice_decides(&harness.engine(0), request, answer).await;
    harness.run().await;
}

async fn questions(harness: &EngineHarness, task: TaskId) -> usize {
    let items = harness.journal(task).await.items;
    items
        .iter()
        .filter(|item| matches!(item.fact, Fact::InterventionRequested(_)))
        .count()
}

async fn verdicts(harness: &EngineHarness, task: TaskId) -> Vec<Verdict> {
    let judged = harness
        .journal(task)
        .await
        .items
        .into_iter()
        .filter_map(|item| {
            let Fact::Judged { judgement, .. } = item.fact else {
                return None;
            };
            Some(judgement.verdict)
        });
    judged.collect()
}

/// Asserts that the last call was refused without a further request (the journal still has `asked`
/// requests), and that the task has completed.
async fn refused_unasked(harness: &EngineHarness, task: TaskId, asked: usize) {
    let journal = harness.journal(task).await;
    assert_eq!(
        (journal.row.status, questions(harness, task).await),
        (TaskStatus::Completed, asked),
        "{:#?}",
        journal.items
    );
    assert_eq!(outcomes(&journal).last(), Some(&Outcome::Rejected));
    assert_eq!(verdicts(harness, task).await.last(), Some(&Verdict::Deny));
}

async fn asked_again(harness: &EngineHarness, task: TaskId, asked: usize) {
    let journal = harness.journal(task).await;
    assert_eq!(
        (journal.row.status, questions(harness, task).await),
        (TaskStatus::Paused, asked),
        "{:#?}",
        journal.items
    );
}

#[apply(both)]
async fn rejected_call_is_refused_with_the_same_reason_however_it_is_written(
    fixture: StoreFixture,
) {
    let harness = harness(
        fixture,
        &[
            &[LARGE],
            &[("refund", r#" { "amount" : 1.2e2 , "order" : 1 } "#)],
            &[("refund", r#"{"\u006frder":1,"amount":120.00}"#), LARGE],
        ],
    )
    .await;
    let task = harness.stopped().await;
    no(&harness, task).await;
    refused_unasked(&harness, task, 1).await;
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Rejected; 4]
    );
    assert_eq!(
        verdicts(&harness, task).await,
        [Verdict::Hold, Verdict::Deny, Verdict::Deny, Verdict::Deny]
    );
    assert!(
        shown(&harness)
            .iter()
            .all(|told| told.contains("wrong customer")),
        "{:?}",
        shown(&harness)
    );
    assert_eq!(harness.tool.ledger().len(), 0);
}

#[apply(both)]
async fn rejection_does_not_cover_other_arguments_or_other_tools(fixture: StoreFixture) {
    const ORDER: (&str, &str) = ("forbidden", r#"{"order":1,"amount":120}"#);
    let mut harness = harness(fixture, &[&[LARGE], &[OTHER], &[ORDER], &[LARGE]]).await;
    harness.configure(|yaml| {
        yaml.replace("decide: deny", "decide: hold").replace(
            "forbidden: { http",
            "forbidden: { parameters: { type: object }, http",
        )
    });
    let task = harness.stopped().await;
    for asked in 1..4 {
        asked_again(&harness, task, asked).await;
        no(&harness, task).await;
    }
    refused_unasked(&harness, task, 3).await;
}

#[apply(both)]
async fn call_without_arguments_equals_one_with_an_empty_object(fixture: StoreFixture) {
    let mut harness = harness(
        fixture,
        &[
            &[("forbidden", "")],
            &[("forbidden", "")],
            &[("forbidden", " {} ")],
            &[("forbidden", " \n")],
        ],
    )
    .await;
    harness.replace("decide: deny", "decide: hold");
    let task = harness.stopped().await;
    no(&harness, task).await;
    refused_unasked(&harness, task, 1).await;
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Rejected; 4]
    );
}

#[apply(both)]
async fn rejected_call_is_refused_even_where_a_rule_allows_it_now(fixture: StoreFixture) {
    let mut harness = harness(fixture, &[&[LARGE], &[LARGE], &[OTHER]]).await;
    let task = harness.stopped().await;
    let (request, _) = question(&harness, task).await;
    alice_decides(&harness.engine(0), request, rejects(Consequence::Continue)).await;
    harness.replace("args.amount <= 20.0", "args.amount <= 2000.0");
    harness.run().await;
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Rejected, Outcome::Rejected, Outcome::Succeeded]
    );
    assert_eq!(bodies(&harness, task, "/refund").len(), 1);
}

#[apply(both)]
async fn next_message_of_the_user_lifts_a_rejection(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE], &[LARGE], &[], &[LARGE]]).await;
    let task = harness.stopped().await;
    no(&harness, task).await;
    refused_unasked(&harness, task, 1).await;
    alice_writes(&harness.engine(0), task, superseding("and now")).await;
    harness.run().await;
    asked_again(&harness, task, 2).await;
}

#[apply(both)]
async fn expired_request_does_not_count_as_a_rejection(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE], &[LARGE]]).await;
    let task = harness.stopped().await;
    harness.fixture.forward(Duration::from_hours(25));
    harness.engine(0).worker().expire().await.unwrap();
    harness.run().await;
    asked_again(&harness, task, 2).await;
}

#[apply(both)]
async fn withdrawn_request_does_not_count_as_a_rejection(fixture: StoreFixture) {
    let mut harness = harness(fixture, &[&[LARGE]]).await;
    let task = harness.stopped().await;
    harness.replace("exclusiveMinimum: 0", "minimum: 1");
    let (request, _) = question(&harness, task).await;
    harness
        .engine(0)
        .decide(&alice(), request, rejects(Consequence::Continue), None)
        .await
        .unwrap_err();
    harness.run().await;
    asked_again(&harness, task, 2).await;
}

#[apply(both)]
async fn declined_request_that_is_no_approval_does_not_count_as_a_rejection(fixture: StoreFixture) {
    const GUIDANCE: (&str, &str) = ("request_human_guidance", r#"{"question":"which one?"}"#);
    let table: [(Calls, Change, RequestKind); 3] = [
        (
            &[("refund", r#"{"order":1,"amount":5}"#)],
            str::to_owned,
            RequestKind::Reconcile,
        ),
        (
            &[GUIDANCE],
            |yaml| {
                yaml.replace(
                    "tools: [lookup, tag, refund, forbidden]",
                    "tools: [lookup, tag, refund, forbidden], human: [guidance]",
                )
            },
            RequestKind::Guidance,
        ),
        (
            &[("forbidden", "{}")],
            |yaml| {
                let yaml = yaml.replace(
                    "forbidden: { http: { method: POST, url: \"{tool}/forbidden\" } }",
                    "forbidden: { external: {}, parameters: { type: object } }",
                );
                yaml.replace("decide: deny, reason: Not this one.", "decide: allow")
            },
            RequestKind::ExternalResult,
        ),
    ];
    for (calls, change, kind) in table {
        let mut harness = EngineHarness::new(StoreFixture::like(&fixture).await, &[]).await;
        harness.script(move |asked| Ok(turn(if asked <= 2 { calls } else { &[] })));
        harness.configure(change);
        harness.tool.answers(502, "");
        let task = harness.stopped().await;
        for asked_before in [1, 2] {
            assert_eq!(last_open_request(&harness, task).await.kind, kind);
            assert_eq!(questions(&harness, task).await, asked_before);
            answered(&harness, task, whole(Action::Reject, None)).await;
        }
        assert_eq!(harness.status(task).await, TaskStatus::Completed);
        assert!(!verdicts(&harness, task).await.contains(&Verdict::Deny));
    }
}

#[apply(both)]
async fn rejection_of_an_edited_call_covers_the_edited_arguments_only(fixture: StoreFixture) {
    const WRITTEN: (&str, &str) = ("refund", r#"{"order":9,"amount":130}"#);
    let mut harness = harness(fixture, &[&[LARGE], &[WRITTEN], &[LARGE]]).await;
    harness.replace(
        "{ owner: true }",
        "{ owner: true, users: [bob, carol], required: 2 }",
    );
    let task = harness.stopped().await;
    let (request, calls) = question(&harness, task).await;
    decides(
        &harness.engine(0),
        &person("bob"),
        request,
        each([(calls[0], edit(r#"{"amount":130.0,"order":9}"#))]),
    )
    .await;
    harness.run().await;
    no(&harness, task).await;
    // The rejection covers only the edited arguments. `WRITTEN` has equal arguments, so this
    // call was refused without a request. The repeated call `LARGE` has other arguments, so
    // people are asked about it.
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Rejected; 2]
    );
    asked_again(&harness, task, 3).await;
    assert_eq!(
        last_open_request(&harness, task).await.pending_tool_calls[0].arguments_text,
        LARGE.1
    );
}

#[apply(both)]
async fn too_many_rejections_fail_the_task(fixture: StoreFixture) {
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.script(|_| Ok(turn(&[LARGE])));
    harness.replace(
        "tools: [lookup, tag, refund, forbidden] }",
        "tools: [lookup, tag, refund, forbidden], limits: { max_rejections: 2 } }",
    );
    let task = harness.stopped().await;
    no(&harness, task).await;
    let limited = async |refusals: usize| {
        let journal = harness.journal(task).await;
        let error = journal.row.error.clone().unwrap();
        assert_eq!(journal.row.status, TaskStatus::Failed);
        assert_eq!(error.code, FailureCode::LimitReached);
        assert_eq!(error.limit.as_deref(), Some("max_rejections"));
        assert_eq!(
            outcomes(&journal),
            vec![Outcome::Rejected; 1 + refusals],
            "that many go on, one more ends it"
        );
    };
    limited(3).await;
    // The task fails again without a model call, so the driver of the command needs no slot. It
    // ends the task itself, after the reply to the command.
    harness.engine(0).retry(&alice(), task, None).await.unwrap();
    harness.until_stopped(task).await;
    limited(3).await;
    alice_writes(&harness.engine(0), task, superseding("and now")).await;
    harness.run().await;
    asked_again(&harness, task, 2).await;
    answered(&harness, task, whole(Action::Approve, None)).await;
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn repeated_calls_within_max_rejections_do_not_fail_the_task(fixture: StoreFixture) {
    let harness = harness(fixture, &[&[LARGE], &[LARGE], &[LARGE], &[LARGE]]).await;
    let task = harness.stopped().await;
    no(&harness, task).await;
    refused_unasked(&harness, task, 1).await;
    assert_eq!(
        outcomes(&harness.journal(task).await),
        [Outcome::Rejected; 4]
    );
}
