//! Tests answers to questions of a tool's server that a person gives before the tool gets another
//! target, and that no attempt has returned yet, or only an attempt whose outcome is unknown.

use std::sync::atomic::Ordering;

use holdpoint::task::decision::Action;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Outcome;
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;
use serde_json::json;

use super::super::engine_harness::{
    EngineHarness, alice_decides, claimed, fills, kill, outcomes, whole,
};
use super::unknown_outcomes::{DENIED_ELSEWHERE, GONE};
use super::{LARGE, SMALL, Server, answer, asking, asks, resume, the_request};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::until;

const FOLDER: &[&str] = &["folder"];

/// Answers the question in a process that drives no task, so that the answer is sent nowhere yet.
async fn folder_is_answered(harness: &EngineHarness, task: TaskId) {
    let asked = the_request(harness, task).await;
    assert_eq!(asked.kind, RequestKind::Elicitation);
    let folder = fills(&json!({"folder": "a"}));
    alice_decides(&harness.engine(0), asked.request_id, folder).await;
}

/// Answers the question. The process dies while the attempt with the answer is in flight.
async fn attempt_with_folder_is_lost(harness: &EngineHarness, server: &Server, task: TaskId) {
    server.unanswered.store(2, Ordering::Relaxed);
    folder_is_answered(harness, task).await;
    let drivers = claimed(&harness.engine(1)).await;
    let is_sent = async || server.resumed().len() == 2;
    until("the second attempt is sent", is_sent).await;
    kill(drivers).await;
    harness.later();
}

/// Drives the task after a change of the tool's target.
async fn run_elsewhere(harness: &mut EngineHarness) {
    harness.replace("{tool}/refund", "{tool}/elsewhere");
    harness.run().await;
}

async fn has_succeeded(harness: &EngineHarness, task: TaskId) {
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Succeeded]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
}

#[apply(both)]
async fn lost_attempt_with_an_answer_is_retried_at_another_target_without_the_answer(
    fixture: StoreFixture,
) {
    for effect in ["once", "idempotent"] {
        let like = StoreFixture::like(&fixture).await;
        let (mut harness, server, task) = asking(like, effect, SMALL, vec![asks(FOLDER)]).await;
        attempt_with_folder_is_lost(&harness, &server, task).await;
        run_elsewhere(&mut harness).await;
        let unknown = the_request(&harness, task).await;
        assert_eq!(unknown.kind, RequestKind::Reconcile);
        answer(&harness, task, whole(Action::Retry, None)).await;
        let accepted = json!({"folder": {"action": "accept", "content": {"folder": "a"}}});
        let expected = [None, Some(resume(&accepted)), None];
        assert_eq!(server.resumed(), expected, "{effect}");
        has_succeeded(&harness, task).await;
    }
}

#[apply(both)]
async fn allowed_call_with_an_answer_and_another_target_is_asked_about_and_sent_without_the_answer(
    fixture: StoreFixture,
) {
    for effect in ["once", "idempotent"] {
        let like = StoreFixture::like(&fixture).await;
        let (mut harness, server, task) = asking(like, effect, SMALL, vec![asks(FOLDER)]).await;
        folder_is_answered(&harness, task).await;
        run_elsewhere(&mut harness).await;
        let unknown = the_request(&harness, task).await;
        assert_eq!(unknown.kind, RequestKind::Reconcile, "{effect}");
        let problem = unknown.details.unwrap()["problem"].to_string();
        for part in ["has changed since", "may have taken effect"] {
            assert!(problem.contains(part), "{problem}");
        }
        assert_eq!(server.resumed(), [None]);
        answer(&harness, task, whole(Action::Retry, None)).await;
        assert_eq!(server.resumed(), [None, None]);
        has_succeeded(&harness, task).await;
    }
}

#[apply(both)]
async fn approved_call_with_an_answer_and_another_target_is_asked_about_and_sent_without_the_answer(
    fixture: StoreFixture,
) {
    let (mut harness, server, task) = asking(fixture, "once", LARGE, vec![asks(FOLDER)]).await;
    answer(&harness, task, whole(Action::Approve, None)).await;
    folder_is_answered(&harness, task).await;
    run_elsewhere(&mut harness).await;
    let anew = the_request(&harness, task).await;
    assert_eq!(anew.kind, RequestKind::Approval);
    let reason = anew.pending_tool_calls[0].reason.clone().unwrap();
    for part in ["has changed since", "may have taken effect"] {
        assert!(reason.contains(part), "{reason}");
    }
    answer(&harness, task, whole(Action::Approve, None)).await;
    assert_eq!(server.resumed(), [None, None]);
    has_succeeded(&harness, task).await;
}

#[apply(both)]
async fn call_that_only_reads_is_sent_to_another_target_without_the_answer(fixture: StoreFixture) {
    let (mut harness, server, task) = asking(fixture, "read_only", SMALL, vec![asks(FOLDER)]).await;
    folder_is_answered(&harness, task).await;
    run_elsewhere(&mut harness).await;
    assert_eq!(server.resumed(), [None, None]);
    has_succeeded(&harness, task).await;
}

#[apply(both)]
async fn call_with_an_answer_whose_tool_is_gone_or_denied_is_asked_about_unless_it_only_reads(
    fixture: StoreFixture,
) {
    for (effect, calls, changes, is_asked) in [
        ("once", SMALL, GONE, true),
        ("once", SMALL, DENIED_ELSEWHERE, true),
        ("once", LARGE, GONE, true),
        ("idempotent", SMALL, GONE, true),
        ("idempotent", SMALL, DENIED_ELSEWHERE, true),
        ("read_only", SMALL, GONE, false),
    ] {
        let like = StoreFixture::like(&fixture).await;
        let (mut harness, server, task) = asking(like, effect, calls, vec![asks(FOLDER)]).await;
        if calls == LARGE {
            answer(&harness, task, whole(Action::Approve, None)).await;
        }
        folder_is_answered(&harness, task).await;
        for (part, by) in changes {
            harness.replace(part, by);
        }
        harness.run().await;
        let expected = if is_asked {
            let unknown = the_request(&harness, task).await;
            assert_eq!(unknown.kind, RequestKind::Reconcile, "{effect}");
            let paid = whole(Action::Respond, Some("it was paid".into()));
            answer(&harness, task, paid).await;
            Outcome::Responded
        } else {
            Outcome::Invalid
        };
        harness.until_stopped(task).await;
        let journal = harness.journal(task).await;
        assert_eq!(outcomes(&journal), [expected], "{effect}, {changes:?}");
        assert_eq!(server.resumed(), [None]);
    }
}
