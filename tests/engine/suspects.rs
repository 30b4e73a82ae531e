//! After a call that must not happen twice ended in the dark, or in an error after it was sent, no rule lets its tool
//! run until a human has decided a call of it.

use std::time::Duration;

use holdpoint::engine::MessageInput;
use holdpoint::task::decision::Action;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::item::{Fact, Part, PartType};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;

use super::stage::{Stage, alice, go, rejects, turn, whole};
use crate::store::house::{House, both};

/// A rule allows it.
const SMALL: (&str, &str) = ("refund", r#"{"order":1,"amount":5}"#);

/// An agent that pays back small sums, one in each of its first `turns` turns, and a tool that answers so at first.
async fn stage(house: House, turns: u32, status: u16) -> Stage {
    let stage = Stage::set(house, &[]).await;
    stage.script(move |asked| Ok(turn(if asked <= turns { &[SMALL] } else { &[] })));
    stage.tool.answers(status, "what happened");
    stage
}

async fn begun(stage: &Stage) -> TaskId {
    let task = stage.engine(0).create(&alice(), go(), None).await.unwrap().task_id;
    stage.run().await;
    task
}

async fn asked(stage: &Stage, task: TaskId) -> (RequestId, RequestKind) {
    let [only] = stage.open(task).await[..] else { panic!("one is open: {:#?}", stage.journal(task).await.items) };
    only
}

async fn answered(stage: &Stage, task: TaskId, action: Action) {
    let (request, kind) = asked(stage, task).await;
    let result = (action == Action::Respond && kind == RequestKind::Reconcile).then(|| "it was paid".into());
    stage.engine(0).decide(&alice(), request, whole(action, result), None).await.unwrap();
    stage.run().await;
}

/// The reason why the last call was held.
async fn reason(stage: &Stage, task: TaskId) -> String {
    let items = stage.journal(task).await.items;
    let reason = items.iter().rev().find_map(|item| {
        let Fact::InterventionRequested(asked) = &item.fact else { return None };
        asked.own_calls().next()?.reason.clone()
    });
    reason.expect("a reason")
}

fn message(supersede: bool) -> MessageInput {
    let items = vec![Part { content_type: PartType::Text, content: "and again".to_owned() }];
    MessageInput { items, user_context: None, supersede }
}

/// Whether the next call, which a rule allows, is asked about.
async fn is_held(stage: &Stage, task: TaskId, paid: usize) {
    assert_eq!(asked(stage, task).await.1, RequestKind::Approval);
    assert_eq!(stage.executions(task, "/refund"), paid);
    assert_eq!(stage.status(task).await, TaskStatus::Paused);
}

both! {
    async fn after_a_5xx_the_next_call_is_held_and_the_one_after_its_approval_is_not(house) {
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

    async fn a_4xx_and_what_a_repeatable_tool_answers_hold_nothing(house) {
        let stage = stage(house, 3, 422).await;
        let task = begun(&stage).await;
        assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (TaskStatus::Completed, 3));
        stage.tool.answers(500, "");
        stage.script(|asked| Ok(turn(if asked <= 2 { &[("tag", r#"{"text":"paid"}"#)] } else { &[] })));
        let task = begun(&stage).await;
        assert_eq!((stage.status(task).await, stage.executions(task, "/tag")), (TaskStatus::Completed, 2));
    }

    async fn the_second_call_of_the_same_turn_is_held_too(house) {
        let stage = stage(house, 1, 503).await;
        stage.script(|asked| Ok(turn(if asked == 1 { &[SMALL, SMALL] } else { &[] })));
        let task = begun(&stage).await;
        is_held(&stage, task, 1).await;
    }

    async fn a_human_who_says_what_became_of_an_unknown_call_lifts_it(house) {
        for action in [Action::Respond, Action::Reject] {
            let stage = &stage(House::like(&house).await, 2, 502).await;
            let task = begun(stage).await;
            assert_eq!(asked(stage, task).await.1, RequestKind::Reconcile);
            stage.tool.answers(200, "paid");
            answered(stage, task, action).await;
            assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (TaskStatus::Completed, 2));
        }
    }

    async fn nobody_who_answers_in_time_lifts_nothing(house) {
        let stage = stage(house, 2, 502).await;
        let task = begun(&stage).await;
        stage.tool.answers(200, "paid");
        stage.house.forward(Duration::from_hours(25));
        stage.engine(0).expire().await.unwrap();
        stage.run().await;
        is_held(&stage, task, 1).await;
    }

    async fn neither_a_cancel_nor_a_message_lifts_it(house) {
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
        // A no is a decision, too.
        let (request, _) = asked(&stage, task).await;
        door.decide(&alice(), request, rejects(holdpoint::task::decision::Then::Continue), None).await.unwrap();
        // (Of this very call it also stays a no.)
        stage.script(|asked| Ok(turn(if asked <= 4 { &[("refund", r#"{"order":1,"amount":6}"#)] } else { &[] })));
        stage.run().await;
        assert_eq!((stage.status(task).await, stage.executions(task, "/refund")), (TaskStatus::Completed, 2));
    }

    async fn another_effect_in_the_configuration_does_not_lift_it(house) {
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

    async fn a_5xx_that_comes_after_a_cancel_does_not_lift_it(house) {
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

    async fn a_retry_after_a_failure_of_the_model_lifts_nothing(house) {
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
