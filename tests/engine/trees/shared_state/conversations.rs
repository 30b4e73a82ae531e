//! Tests sub-agents that keep their conversation between calls.

use holdpoint::model::Prompt;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::transcript::Message;
use macro_rules_attribute::apply;

use super::super::crashes::drive_and_crash;
use super::super::harness::{LEAF, People, Shape, ended_as, hands_on, one_large, said, speaks};
use crate::engine::engine_harness::{EngineHarness, alice_writes, superseding};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

/// Returns the number of the model's answer to this prompt. The first answer after the last message
/// to the agent has the number 1.
fn turn_of_message(prompt: &Prompt) -> u32 {
    let told = prompt
        .messages
        .iter()
        .rposition(|message| matches!(message, Message::User { .. }))
        .unwrap();
    let answers = prompt.messages[told..]
        .iter()
        .filter(|message| matches!(message, Message::Assistant { .. }));
    u32::try_from(answers.count()).unwrap() + 1
}

/// Returns a harness with a boss and a leaf. The leaf keeps its conversation between calls.
async fn of_sessions(
    fixture: StoreFixture,
    boss: fn(u32) -> Vec<(String, String)>,
) -> EngineHarness {
    let mut harness = EngineHarness::of_trees(fixture, Shape::flat(1), one_large).await;
    harness.replace(
        "sub_agents: [leaf]",
        "sub_agents: [{ agent: leaf, session: true }]",
    );
    harness.script_by_name(move |name, prompt| {
        let (task, turn) = (said(prompt), turn_of_message(prompt));
        let calls = if name == LEAF {
            one_large(&task, turn)
        } else {
            boss(turn)
        };
        Ok(speaks(name, &task, &calls))
    });
    harness
}

/// Scripts a boss that calls the leaf twice in its first turn and once in its second turn.
fn three_times(turn: u32) -> Vec<(String, String)> {
    match turn {
        1 => vec![hands_on(LEAF, "go.1"), hands_on(LEAF, "go.2")],
        2 => vec![hands_on(LEAF, "go.3")],
        _ => Vec::new(),
    }
}

/// Returns, in order, the messages to an agent and the agent's answers that the agent's last prompt
/// contains. Ignores the first `since` prompts of all agents.
fn conversation(harness: &EngineHarness, since: usize, agent: &str) -> Vec<String> {
    let (_, prompt) = harness
        .prompts_since(since)
        .into_iter()
        .rfind(|(name, _)| name == agent)
        .unwrap();
    let told = prompt.messages.iter().filter_map(|message| match message {
        Message::User { parts, .. } => Some(parts[0].content.clone()),
        Message::Assistant { text, .. } => text.clone(),
        Message::Result { .. } => None,
    });
    told.collect()
}

#[apply(both)]
async fn sub_agent_conversation_stays_in_order_whenever_the_process_dies(fixture: StoreFixture) {
    let harness = of_sessions(fixture, three_times).await;
    let parts = harness.parts(0);
    // The normal runs on the two databases together cover every moment.
    let step = repetitions(2, 1);
    let first = 1 + usize::from(harness.fixture.is_postgres()) % step;
    for moment in (first..).step_by(step) {
        let began = harness.prompt_count();
        let (root, whole) = drive_and_crash(&harness, &parts, People::Approve, moment).await;
        let journals = harness.checked_journals(root).await;
        assert_eq!(
            journals.len(),
            2,
            "one task for all calls: {}",
            harness.description(root).await
        );
        let [leaf] = harness.of_agent(root, LEAF).await[..] else {
            panic!("one leaf")
        };
        assert_eq!(
            harness.executions(leaf, "/refund"),
            3,
            "{}",
            harness.description(root).await
        );
        assert_eq!(ended_as(&journals, root), [Outcome::Succeeded; 3]);
        let mut order = Vec::new();
        for item in &journals[&root].items {
            match &item.fact {
                Fact::SubAgentStarted { child_task_id, .. } => {
                    assert_eq!(*child_task_id, leaf);
                    order.push("start".to_owned());
                }
                Fact::ToolResult(result) => order.push(result.content.clone()),
                _ => {}
            }
        }
        let done = |number| format!("leaf is done with go.{number}");
        let start = || "start".to_owned();
        assert_eq!(
            order,
            [start(), done(1), start(), done(2), start(), done(3)]
        );
        let spoken = [
            "go.1".to_owned(),
            done(1),
            "go.2".to_owned(),
            done(2),
            "go.3".to_owned(),
        ];
        assert_eq!(conversation(&harness, began, LEAF), spoken);
        if whole {
            assert!(moment > 15, "only {moment} moments");
            break;
        }
    }
}

#[apply(both)]
async fn next_message_continues_the_sub_agents_conversation(fixture: StoreFixture) {
    let harness = of_sessions(fixture, |turn| {
        if turn == 1 {
            vec![hands_on(LEAF, "go.1")]
        } else {
            Vec::new()
        }
    })
    .await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    harness.finish_tree(&parts, root, People::Approve).await;
    let [leaf] = harness.of_agent(root, LEAF).await[..] else {
        panic!("one leaf")
    };
    let api = EngineHarness::like(&parts, 0);
    alice_writes(&api, root, superseding("more")).await;
    harness.drive_tree(&parts, root).await;
    // The earlier approval does not cover a second refund, so the service opens a new request.
    assert_eq!(
        harness.asked_by_tree(root).await.len(),
        1,
        "{}",
        harness.description(root).await
    );
    harness.finish_tree(&parts, root, People::Approve).await;
    assert_eq!(harness.checked_journals(root).await.len(), 2);
    assert_eq!(harness.of_agent(root, LEAF).await, [leaf]);
    assert_eq!(harness.executions(leaf, "/refund"), 2);
}
