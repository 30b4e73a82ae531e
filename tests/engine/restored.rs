//! Tests uncertain history: the history up to a restore of the database. A call that would run now
//! may have run already, in the part of the history that the restore lost.

mod promotions;

use std::time::Duration;

use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::{CallId, RequestId, TaskId};
use holdpoint::task::item::Outcome;
use holdpoint::task::progress::Progress;
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;
use serde_json::Value;

use super::credentials;
use super::engine_harness::{
    EngineHarness, alice, alice_decides, alice_writes, message, outcomes, rejects, superseding,
    tool_results, turn, whole,
};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::postgres::run;
use crate::support::until;

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const TWO_LARGE: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":120}"#),
    ("refund", r#"{"order":2,"amount":120}"#),
];
const LOOKUP: &[(&str, &str)] = &[("lookup", r#"{"order":1}"#)];

const MARK_RESTORED: &str = "update database_identity set doubted_at = (select max(updated_at) from agent_task) returning doubted_at";

/// Marks the history up to now as uncertain, as if the database had been restored now.
async fn mark_restored(harness: &EngineHarness) {
    assert_eq!(
        harness.fixture.numbers(MARK_RESTORED).await.unwrap().len(),
        1
    );
}

/// Returns a harness, and a task whose refund is approved but not started, because no process has a
/// free slot.
async fn approved(fixture: StoreFixture) -> (EngineHarness, TaskId) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let task = harness.held().await;
    harness.answer_all(&harness.engine(0), task).await;
    assert_eq!(harness.status(task).await, TaskStatus::Running);
    assert_eq!(harness.tool.ledger().len(), 0);
    (harness, task)
}

async fn only_open_request(harness: &EngineHarness, task: TaskId) -> (RequestId, RequestSpec) {
    let progress = Progress::from_items(&harness.journal(task).await.items);
    let [open] = &progress.open[..] else {
        panic!("one is open: {:#?}", progress.open)
    };
    (open.spec.request_id, open.spec.clone())
}

#[apply(both)]
async fn approved_but_unstarted_call_after_a_restore_is_asked_about_and_runs_on_retry(
    fixture: StoreFixture,
) {
    let (harness, task) = approved(fixture).await;
    mark_restored(&harness).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    assert_eq!(harness.tool.ledger().len(), 0);
    let (request, asked) = only_open_request(&harness, task).await;
    assert_eq!(asked.kind, RequestKind::Reconcile);
    let details = asked.details.clone().unwrap();
    assert_eq!(details["sent_at"], Value::Null);
    assert_eq!(details["attempt"], Value::Null);
    assert_eq!(details["replica"], Value::Null);
    assert!(
        details["problem"].as_str().unwrap().contains("restored"),
        "{details}"
    );
    assert_eq!(
        asked.pending_tool_calls[0].warnings[0].code,
        "may_already_have_run"
    );
    alice_decides(&harness.engine(0), request, whole(Action::Retry, None)).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.tool.ledger().len(), 1);
}

#[apply(both)]
async fn unused_permit_to_retry_is_uncertain_again_after_the_next_restore(fixture: StoreFixture) {
    let (harness, task) = approved(fixture).await;
    mark_restored(&harness).await;
    harness.run().await;
    let (first, _) = only_open_request(&harness, task).await;
    alice_decides(&harness.engine(0), first, whole(Action::Retry, None)).await;
    mark_restored(&harness).await;
    harness.run().await;
    let (second, _) = only_open_request(&harness, task).await;
    assert!(first != second && harness.tool.ledger().is_empty());
    alice_decides(&harness.engine(0), second, rejects(Consequence::Continue)).await;
    harness.run().await;
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Failed]);
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.tool.ledger().len(), 0);
}

#[apply(both)]
async fn canceled_call_after_a_restore_ends_as_unknown_asked_about_or_not(fixture: StoreFixture) {
    let (harness, task) = approved(fixture).await;
    mark_restored(&harness).await;
    harness
        .engine(0)
        .cancel(&alice(), task, None)
        .await
        .unwrap();
    assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Unknown]);
    harness.script(|_| Ok(turn(&[])));
    alice_writes(&harness.engine(4), task, message("go")).await;
    harness.finish(task).await;
    let second = harness.queued().await;
    harness.script(|asked| Ok(turn(if asked == 1 { LARGE } else { &[] })));
    harness.run().await;
    harness.answer_all(&harness.engine(0), second).await;
    mark_restored(&harness).await;
    harness.run().await;
    assert_eq!(
        only_open_request(&harness, second).await.1.kind,
        RequestKind::Reconcile
    );
    alice_writes(&harness.engine(0), second, superseding("go")).await;
    assert_eq!(outcomes(&harness.journal(second).await), [Outcome::Unknown]);
    assert!(harness.tool.ledger().is_empty());
}

#[apply(both)]
async fn retried_call_that_is_not_started_after_a_restore_ends_as_unknown(fixture: StoreFixture) {
    for supersedes in [false, true] {
        let like = StoreFixture::like(&fixture).await;
        let harness = EngineHarness::new(like, TWO_LARGE).await;
        let task = harness.held().await;
        harness.answer_all(&harness.engine(0), task).await;
        mark_restored(&harness).await;
        harness.run().await;
        let (api, open) = (harness.engine(0), harness.open_specs(task).await);
        assert_eq!(open.len(), 2, "{open:#?}");
        // The retried call waits until the other call is decided.
        alice_decides(&api, open[0].request_id, whole(Action::Retry, None)).await;
        if supersedes {
            alice_writes(&api, task, superseding("go")).await;
        } else {
            api.cancel(&alice(), task, None).await.unwrap();
        }
        let items = harness.journal(task).await.items;
        let results: Vec<_> = tool_results(&items).collect();
        assert_eq!(results.len(), 2, "{results:#?}");
        for result in results {
            assert_eq!(result.outcome, Outcome::Unknown);
            assert!(result.content.contains("not known"), "{}", result.content);
        }
        assert!(harness.tool.ledger().is_empty());
    }
}

#[apply(both)]
async fn approved_call_after_a_restore_whose_credential_nobody_gives_is_not_reported_as_not_run(
    fixture: StoreFixture,
) {
    let harness = credentials::clerk(fixture, &[&[("pay", "{}")]]).await;
    let task = harness.held().await;
    mark_restored(&harness).await;
    credentials::approve(&harness, task).await;
    credentials::only_open_request(&harness, task).await;
    harness.fixture.forward(Duration::from_hours(25));
    harness.engine(4).worker().expire().await.unwrap();
    harness.run().await;
    let items = harness.journal(task).await.items;
    let result = tool_results(&items).next().unwrap();
    assert_eq!(result.outcome, Outcome::Expired);
    assert!(
        result.content.contains("not known") && !result.content.contains("was not run"),
        "{}",
        result.content
    );
    assert!(harness.tool.ledger().is_empty());
}

/// Checks that the next call is held, although a rule allows it, because `earlier` may have run.
/// Approves the call, which then runs.
async fn next_call_is_held_because_of(harness: &EngineHarness, task: TaskId, earlier: CallId) {
    harness.run().await;
    let (request, held) = only_open_request(harness, task).await;
    assert_eq!(held.kind, RequestKind::Approval);
    let reason = held.own_calls().next().unwrap().reason.clone().unwrap();
    let finding = format!("({earlier}) may have run before the database was restored");
    assert!(reason.contains(&finding), "{reason}");
    assert!(harness.tool.ledger().is_empty());
    alice_decides(&harness.engine(0), request, whole(Action::Approve, None)).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn held_call_that_ends_as_unknown_after_a_restore_holds_the_next_call_of_its_tool(
    fixture: StoreFixture,
) {
    for supersedes in [false, true] {
        let harness = EngineHarness::new(StoreFixture::like(&fixture).await, &[]).await;
        harness.script_turns(&[LARGE, SMALL]);
        let task = harness.held().await;
        let (_, asked) = only_open_request(&harness, task).await;
        mark_restored(&harness).await;
        let api = harness.engine(0);
        if supersedes {
            alice_writes(&api, task, superseding("go")).await;
        } else {
            api.cancel(&alice(), task, None).await.unwrap();
            alice_writes(&api, task, message("go")).await;
        }
        assert_eq!(outcomes(&harness.journal(task).await), [Outcome::Unknown]);
        let earlier = asked.own_calls().next().unwrap().tool_call_id;
        next_call_is_held_because_of(&harness, task, earlier).await;
    }
}

#[apply(both)]
async fn unanswered_call_after_a_restore_holds_its_tool_although_another_call_was_answered(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::new(fixture, &[]).await;
    harness.script_turns(&[TWO_LARGE, SMALL]);
    let task = harness.held().await;
    harness.answer_all(&harness.engine(0), task).await;
    mark_restored(&harness).await;
    harness.run().await;
    let open = harness.open_specs(task).await;
    let [answered, unanswered] = &open[..] else {
        panic!("each call is asked about: {open:#?}")
    };
    assert_eq!(
        [answered.kind, unanswered.kind],
        [RequestKind::Reconcile; 2]
    );
    let result = whole(Action::Respond, Some("it was paid".into()));
    alice_decides(&harness.engine(0), answered.request_id, result).await;
    harness.run().await;
    alice_writes(&harness.engine(0), task, superseding("go")).await;
    let ended = outcomes(&harness.journal(task).await);
    assert!(ended.contains(&Outcome::Unknown), "{ended:?}");
    let earlier = unanswered.own_calls().next().unwrap().tool_call_id;
    next_call_is_held_because_of(&harness, task, earlier).await;
}

#[apply(both)]
async fn open_request_is_marked_uncertain_after_a_restore_and_its_approval_runs_the_call(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let task = harness.held().await;
    let (request, before) = only_open_request(&harness, task).await;
    mark_restored(&harness).await;
    let row = harness.fixture.request(request).await;
    assert!(
        row.history_uncertain && row.spec == before,
        "the request's content does not change"
    );
    harness.answer_all(&harness.engine(0), task).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.tool.ledger().len(), 1);
}

#[apply(both)]
async fn rejected_call_after_a_restore_is_not_reported_as_not_run(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LARGE).await;
    let task = harness.held().await;
    let (request, _) = only_open_request(&harness, task).await;
    mark_restored(&harness).await;
    alice_decides(&harness.engine(0), request, rejects(Consequence::Continue)).await;
    let items = harness.journal(task).await.items;
    let result = tool_results(&items).next().unwrap();
    assert_eq!(result.outcome, Outcome::Rejected);
    assert!(
        result.content.contains("not known") && !result.content.contains("was not run"),
        "{}",
        result.content
    );
}

#[apply(both)]
async fn once_call_after_a_restore_is_held_until_the_users_next_message(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, &[]).await;
    harness.script_turns(&[LOOKUP, SMALL, SMALL]);
    let task = harness.queued().await;
    mark_restored(&harness).await;
    harness.run().await;
    assert_eq!(harness.executions(task, "/lookup"), 1);
    assert_eq!(harness.executions(task, "/refund"), 0);
    let (_, held) = only_open_request(&harness, task).await;
    assert_eq!(held.kind, RequestKind::Approval);
    assert_eq!(
        held.terms.clone(),
        holdpoint::task::verdict::Terms::default()
    );
    let call = &held.pending_tool_calls[0];
    assert!(
        call.reason.as_ref().unwrap().contains("restored"),
        "{:?}",
        call.reason
    );
    assert!(call.warnings.is_empty(), "this very call has not run");
    alice_writes(&harness.engine(0), task, superseding("go")).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/refund"), 1);
}

#[apply(both)]
async fn repeatable_call_after_a_restore_is_repeated(fixture: StoreFixture) {
    let harness = EngineHarness::new(fixture, LOOKUP).await;
    let task = harness.queued().await;
    mark_restored(&harness).await;
    harness.run().await;
    assert_eq!(harness.status(task).await, TaskStatus::Completed);
    assert_eq!(harness.executions(task, "/lookup"), 1);
}

/// The driver loaded the journal before the restore. Since the restore, another process may have
/// driven the task from the restored journal, so the driver must not rely on its own copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_waiting_for_its_model_during_a_restore_starts_nothing() {
    let harness = EngineHarness::new(StoreFixture::postgres().await, SMALL).await;
    let url = harness.fixture.settings.url.clone();
    harness.script(move |asked| {
        if asked > 1 {
            return Ok(turn(&[]));
        }
        let lose = "update database_identity set identity = 'another';
            select pg_terminate_backend(pid) from pg_stat_activity
             where datname = current_database() and application_name = 'holdpoint'";
        let url = url.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(run(url.reveal(), lose.to_owned()));
        });
        thread.join().unwrap();
        Ok(turn(SMALL))
    });
    let task = harness.stopped().await;
    // Waits until the pool has replaced the connections that the simulated restore has cut.
    let is_ready = async || harness.fixture.store.ready().await;
    until("the database answers again", is_ready).await;
    harness.later();
    harness.run().await;
    assert!(harness.fixture.store.history_uncertain_until().is_some());
    assert_eq!(harness.status(task).await, TaskStatus::Paused);
    assert_eq!(harness.tool.ledger().len(), 0);
}
