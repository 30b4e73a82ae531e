//! Quarantine: after a non-repeatable call ended with an unknown outcome or an error after sending,
//! no rule allows its tool until a person has decided a call of it.

use std::time::Duration;

use holdpoint::engine::MessageInput;
use holdpoint::task::decision::Action;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{Fact, Part, PartType};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;

use super::stage::{Stage, alice, go, rejects, turn, whole};
use crate::store::house::{House, both};

/// A rule allows this refund.
const SMALL: (&str, &str) = ("refund", r#"{"order":1,"amount":5}"#);

/// An agent that pays back a small sum in each of its first `turns` turns, and a tool that first
/// answers with `status`.
async fn stage(house: House, turns: u32, status: u16) -> Stage {
    let stage = Stage::set(house, &[]).await;
    stage.script(move |asked| Ok(turn(if asked <= turns { &[SMALL] } else { &[] })));
    stage.tool.answers(status, "what happened");
    stage
}

async fn begun(stage: &Stage) -> TaskId {
    let task = stage
        .engine(0)
        .create(&alice(), go(), None)
        .await
        .unwrap()
        .task_id;
    stage.run().await;
    task
}

async fn asked(stage: &Stage, task: TaskId) -> (RequestId, RequestKind) {
    let [only] = stage.open(task).await[..] else {
        panic!("one is open: {:#?}", stage.journal(task).await.items)
    };
    only
}

async fn answered(stage: &Stage, task: TaskId, action: Action) {
    let (request, kind) = asked(stage, task).await;
    let result =
        (action == Action::Respond && kind == RequestKind::Reconcile).then(|| "it was paid".into());
    stage
        .engine(0)
        .decide(&alice(), request, whole(action, result), None)
        .await
        .unwrap();
    stage.run().await;
}

/// The reason for which the last call was held.
async fn reason(stage: &Stage, task: TaskId) -> String {
    let items = stage.journal(task).await.items;
    let reason = items.iter().rev().find_map(|item| {
        let Fact::InterventionRequested(asked) = &item.fact else {
            return None;
        };
        asked.own_calls().next()?.reason.clone()
    });
    reason.expect("a reason")
}

fn message(supersede: bool) -> MessageInput {
    let items = vec![Part {
        content_type: PartType::Text,
        content: "and again".to_owned(),
    }];
    MessageInput {
        items,
        user_context: None,
        supersede,
    }
}

/// Checks that the next call, which a rule allows, is held.
async fn is_held(stage: &Stage, task: TaskId, paid: usize) {
    assert_eq!(asked(stage, task).await.1, RequestKind::Approval);
    assert_eq!(stage.executions(task, "/refund"), paid);
    assert_eq!(stage.status(task).await, TaskStatus::Paused);
}

both! {
    async fn tool_that_failed_with_5xx_is_held_until_one_call_of_it_is_approved(house) {
        let stage = stage(house, 3, 500).await;
        let task = begun(&stage).await;
        is_held(&stage, task, 1).await;
        let reason = reason(&stage, task).await;
        let items = stage.journal(task).await.items;
        let first = items.iter().find_map(|item| {
            let Fact::ToolStarted { tool_call_id, .. } = &item.fact else { return None };
            Some(tool_call_id.to_string())
        });
        assert!(reason.contains(&first.unwrap()) && reason.contains("500"), "{reason}");
        stage.tool.answers(200, "paid");
        answered(&stage, task, Action::Approve).await;
        assert_eq!(stage.status(task).await, TaskStatus::Completed);
        assert_eq!(stage.executions(task, "/refund"), 3);
    }

    async fn tool_that_failed_with_4xx_or_is_repeatable_is_not_quarantined(house) {
        let stage = stage(house, 3, 422).await;
        let task = begun(&stage).await;
        assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (TaskStatus::Completed, 3));
        stage.tool.answers(500, "");
        stage.script(|asked| Ok(turn(if asked <= 2 { &[("tag", r#"{"text":"paid"}"#)] } else { &[] })));
        let task = begun(&stage).await;
        assert_eq!((stage.status(task).await, stage.executions(task, "/tag")), (TaskStatus::Completed, 2));
    }

    async fn second_call_of_the_same_turn_is_held_after_a_5xx(house) {
        let stage = stage(house, 1, 503).await;
        stage.script(|asked| Ok(turn(if asked == 1 { &[SMALL, SMALL] } else { &[] })));
        let task = begun(&stage).await;
        is_held(&stage, task, 1).await;
    }

    async fn decision_about_an_unknown_call_lifts_the_quarantine(house) {
        for action in [Action::Respond, Action::Reject] {
            let stage = &stage(House::like(&house).await, 2, 502).await;
            let task = begun(stage).await;
            assert_eq!(asked(stage, task).await.1, RequestKind::Reconcile);
            stage.tool.answers(200, "paid");
            answered(stage, task, action).await;
            assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (TaskStatus::Completed, 2));
        }
    }

    async fn expired_reconcile_request_does_not_lift_the_quarantine(house) {
        let stage = stage(house, 2, 502).await;
        let task = begun(&stage).await;
        stage.tool.answers(200, "paid");
        stage.house.forward(Duration::from_hours(25));
        stage.engine(0).expire().await.unwrap();
        stage.run().await;
        is_held(&stage, task, 1).await;
    }

    async fn quarantine_outlives_a_cancel_and_a_message(house) {
        let stage = stage(house, 2, 502).await;
        let task = begun(&stage).await;
        stage.tool.answers(200, "paid");
        let door = stage.engine(0);
        door.cancel(&alice(), task, None).await.unwrap();
        door.message(&alice(), task, message(false), None).await.unwrap();
        stage.run().await;
        is_held(&stage, task, 1).await;
        door.message(&alice(), task, message(true), None).await.unwrap();
        stage.script(|asked| Ok(turn(if asked <= 3 { &[SMALL] } else { &[] })));
        stage.run().await;
        is_held(&stage, task, 1).await;
        // A rejection also ends the quarantine.
        let (request, _) = asked(&stage, task).await;
        door.decide(&alice(), request, rejects(holdpoint::task::decision::Then::Continue), None).await.unwrap();
        // This very call stays rejected, so the model makes another one.
        stage.script(|asked| Ok(turn(if asked <= 4 { &[("refund", r#"{"order":1,"amount":6}"#)] } else { &[] })));
        stage.run().await;
        assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (TaskStatus::Completed, 2));
    }

    async fn changed_effect_in_the_configuration_does_not_lift_the_quarantine(house) {
        for effect in ["idempotent", "read_only"] {
            let mut stage = stage(House::like(&house).await, 2, 500).await;
            stage.script(|asked| match asked {
                1 => Ok(turn(&[SMALL])),
                _ => Err(holdpoint::model::ModelError::new("no")),
            });
            let task = begun(&stage).await;
            let now = format!("refund:\n    effect: {effect}\n");
            stage.configure(|yaml| yaml.replace("refund:\n", &now));
            stage.script(|asked| Ok(turn(if asked <= 2 { &[SMALL] } else { &[] })));
            stage.engine(0).message(&alice(), task, message(false), None).await.unwrap();
            stage.run().await;
            is_held(&stage, task, 1).await;
        }
    }

    async fn late_5xx_after_a_cancel_does_not_lift_the_quarantine(house) {
        let stage = stage(house, 2, 500).await;
        let engine = stage.engine(4);
        stage.tool.close();
        let task = engine.create(&alice(), go(), None).await.unwrap().task_id;
        stage.tool.reached(1).await;
        engine.cancel(&alice(), task, None).await.unwrap();
        stage.tool.open();
        while !stage.journal(task).await.items.iter().any(|item| matches!(item.fact, Fact::LateResult(_))) {
            tokio::task::yield_now().await;
        }
        stage.tool.answers(200, "paid");
        engine.message(&alice(), task, message(false), None).await.unwrap();
        while stage.status(task).await == TaskStatus::Running {
            tokio::task::yield_now().await;
        }
        is_held(&stage, task, 1).await;
    }

    async fn quarantine_outlives_a_retry_after_a_model_failure(house) {
        let stage = stage(house, 1, 500).await;
        stage.script(|asked| match asked {
            1 => Ok(turn(&[SMALL])),
            _ => Err(holdpoint::model::ModelError::new("no")),
        });
        let task = begun(&stage).await;
        assert_eq!(stage.status(task).await, TaskStatus::Failed);
        stage.script(|asked| Ok(turn(if asked == 2 { &[SMALL] } else { &[] })));
        stage.engine(0).retry(&alice(), task, None).await.unwrap();
        stage.run().await;
        is_held(&stage, task, 1).await;
    }
}
