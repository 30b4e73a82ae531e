//! Uncertain history: a call that would run now may have run already, in the part of the history
//! that was lost.

use holdpoint::engine::MessageInput;
use holdpoint::task::decision::{Action, Then};
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::{RequestKind, RequestSpec};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::turn::Progress;
use serde_json::Value;

use super::stage::{Stage, alice, go, outcomes, rejects, turn, whole};
use crate::store::house::{House, both};
use crate::support::postgres::run;

const LARGE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
const SMALL: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":5}"#)];
const LOOKUP: &[(&str, &str)] = &[("lookup", r#"{"order":1}"#)];

const DOUBT: &str = "update database_identity set doubted_at = (select max(updated_at) from agent_task) returning doubted_at";

/// Marks everything up to now as uncertain history.
async fn doubt(stage: &Stage) {
    assert_eq!(stage.house.numbers(DOUBT).await.unwrap().len(), 1);
}

/// A task whose refund is approved and not started, since no process has a free slot.
async fn approved(house: House) -> (Stage, TaskId) {
    let stage = Stage::set(house, LARGE).await;
    let task = stage.held().await;
    stage.answer_all(&stage.engine(0), task).await;
    assert_eq!(
        (stage.status(task).await, stage.tool.ledger().len()),
        (TaskStatus::Running, 0)
    );
    (stage, task)
}

/// The only open request.
async fn asked(stage: &Stage, task: TaskId) -> (RequestId, RequestSpec) {
    let progress = Progress::of(&stage.journal(task).await.items);
    let [open] = &progress.open[..] else {
        panic!("one is open: {:#?}", progress.open)
    };
    (open.asked.request_id, open.asked.clone())
}

both! {
    async fn approved_but_unstarted_call_after_a_restore_is_asked_about_and_runs_on_retry(house) {
        let (stage, task) = approved(house).await;
        doubt(&stage).await;
        stage.run().await;
        assert_eq!((stage.status(task).await, stage.tool.ledger().len()), (TaskStatus::Paused, 0));
        let (request, asked) = asked(&stage, task).await;
        assert_eq!(asked.kind, RequestKind::Reconcile);
        let details = asked.details.clone().unwrap();
        assert_eq!((&details["sent_at"], &details["attempt"], &details["replica"]), (&Value::Null, &Value::Null, &Value::Null));
        assert!(details["problem"].as_str().unwrap().contains("restored"), "{details}");
        assert_eq!(asked.pending_tool_calls[0].warnings[0].code, "may_already_have_run");
        stage.engine(0).decide(&alice(), request, whole(Action::Retry, None), None).await.unwrap();
        stage.run().await;
        assert_eq!((stage.status(task).await, stage.tool.ledger().len()), (TaskStatus::Completed, 1));
    }

    async fn unused_permit_to_retry_is_uncertain_again_after_the_next_restore(house) {
        let (stage, task) = approved(house).await;
        doubt(&stage).await;
        stage.run().await;
        let (first, _) = asked(&stage, task).await;
        stage.engine(0).decide(&alice(), first, whole(Action::Retry, None), None).await.unwrap();
        doubt(&stage).await;
        stage.run().await;
        let (second, _) = asked(&stage, task).await;
        assert!(first != second && stage.tool.ledger().is_empty());
        stage.engine(0).decide(&alice(), second, rejects(Then::Continue), None).await.unwrap();
        stage.run().await;
        assert_eq!(outcomes(&stage.journal(task).await), [Outcome::Failed]);
        assert_eq!((stage.status(task).await, stage.tool.ledger().len()), (TaskStatus::Completed, 0));
    }

    async fn canceled_call_after_a_restore_ends_as_unknown_asked_about_or_not(house) {
        let (stage, task) = approved(house).await;
        doubt(&stage).await;
        stage.engine(0).cancel(&alice(), task, None).await.unwrap();
        assert_eq!(outcomes(&stage.journal(task).await), [Outcome::Unknown]);
        let message = MessageInput { items: go().items, user_context: None, supersede: false };
        stage.script(|_| Ok(turn(&[])));
        stage.engine(4).message(&alice(), task, message, None).await.unwrap();
        stage.finish(task).await;
        let second = stage.engine(0).create(&alice(), go(), None).await.unwrap().task_id;
        stage.script(|asked| Ok(turn(if asked == 1 { LARGE } else { &[] })));
        stage.run().await;
        stage.answer_all(&stage.engine(0), second).await;
        doubt(&stage).await;
        stage.run().await;
        assert_eq!(asked(&stage, second).await.1.kind, RequestKind::Reconcile);
        let message = MessageInput { items: go().items, user_context: None, supersede: true };
        stage.engine(0).message(&alice(), second, message, None).await.unwrap();
        assert_eq!(outcomes(&stage.journal(second).await), [Outcome::Unknown]);
        assert!(stage.tool.ledger().is_empty());
    }

    async fn open_request_is_marked_uncertain_after_a_restore_and_its_approval_runs_the_call(house) {
        let stage = Stage::set(house, LARGE).await;
        let task = stage.held().await;
        let (request, before) = asked(&stage, task).await;
        doubt(&stage).await;
        let row = stage.house.store.request(request).await.unwrap().unwrap();
        assert!(row.doubted && row.asked == before, "the request's content does not change");
        stage.answer_all(&stage.engine(0), task).await;
        stage.run().await;
        assert_eq!((stage.status(task).await, stage.tool.ledger().len()), (TaskStatus::Completed, 1));
    }

    async fn rejected_call_after_a_restore_is_not_reported_as_not_run(house) {
        let stage = Stage::set(house, LARGE).await;
        let task = stage.held().await;
        let (request, _) = asked(&stage, task).await;
        doubt(&stage).await;
        stage.engine(0).decide(&alice(), request, rejects(Then::Continue), None).await.unwrap();
        let items = stage.journal(task).await.items;
        let result = items.iter().find_map(|item| if let Fact::ToolResult(result) = &item.fact { Some(result) } else { None });
        let result = result.unwrap();
        assert_eq!(result.outcome, Outcome::Rejected);
        assert!(result.content.contains("not known") && !result.content.contains("was not run"), "{}", result.content);
    }

    async fn once_call_after_a_restore_is_held_until_the_users_next_message(house) {
        let stage = Stage::set(house, &[]).await;
        stage.script(|asked| Ok(turn(match asked { 1 => LOOKUP, 2 | 3 => SMALL, _ => &[] })));
        let task = stage.engine(0).create(&alice(), go(), None).await.unwrap().task_id;
        doubt(&stage).await;
        stage.run().await;
        assert_eq!((stage.executions(task, "/lookup"), stage.executions(task, "/refund")), (1, 0));
        let (_, held) = asked(&stage, task).await;
        assert_eq!((held.kind, held.terms.clone()), (RequestKind::Approval, holdpoint::task::verdict::Terms::default()));
        let call = &held.pending_tool_calls[0];
        assert!(call.reason.as_ref().unwrap().contains("restored"), "{:?}", call.reason);
        assert!(call.warnings.is_empty(), "this very call has not run");
        let message = MessageInput { items: go().items, user_context: None, supersede: true };
        stage.engine(0).message(&alice(), task, message, None).await.unwrap();
        stage.run().await;
        assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (TaskStatus::Completed, 1));
    }

    async fn repeatable_call_after_a_restore_is_repeated(house) {
        let stage = Stage::set(house, LOOKUP).await;
        let task = stage.engine(0).create(&alice(), go(), None).await.unwrap().task_id;
        doubt(&stage).await;
        stage.run().await;
        assert_eq!((stage.status(task).await, stage.executions(task, "/lookup")), (TaskStatus::Completed, 1));
    }
}

/// A process's loaded journal is older than the restore: another process may have driven the task
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn driver_waiting_for_its_model_during_a_restore_starts_nothing() {
    let stage = Stage::set(House::postgres().await, SMALL).await;
    let url = stage.house.settings.url.reveal().clone();
    stage.script(move |asked| {
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
            runtime.block_on(run(&url, lose.to_owned()));
        });
        thread.join().unwrap();
        Ok(turn(SMALL))
    });
    let task = stage
        .engine(0)
        .create(&alice(), go(), None)
        .await
        .unwrap()
        .task_id;
    stage.run().await;
    // The pool still has to replace its idle connections.
    while !stage.house.store.ready().await {}
    stage.later();
    stage.run().await;
    assert!(stage.house.store.history_uncertain_until().is_some());
    assert_eq!(
        (stage.status(task).await, stage.tool.ledger().len()),
        (TaskStatus::Paused, 0)
    );
}
