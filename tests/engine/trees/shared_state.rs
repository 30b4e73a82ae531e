//! Tests sub-agents that keep their conversation, trees at their limits, models that fail anywhere
//! in a tree, and a rejection that holds for the whole tree.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an item of a new type says nothing here"
)]

use holdpoint::model::{self, ModelError, Prompt};
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::transcript::Message;
use macro_rules_attribute::apply;

use super::super::engine_harness::{EngineHarness, alice, outcomes};
use super::super::two_replicas::place;
use super::crashes::drive_and_crash;
use super::harness::{
    LEAF, People, Shape, TreeDriver, ended_as, handed_back, hands_on, one_large, one_small, refund,
    said, speaks,
};
use crate::store::store_fixture::{StoreFixture, both};

/// Returns the number of the answer to this prompt, counted from 1 since the last message to the
/// agent.
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
    harness.configure(|yaml| {
        yaml.replace(
            "sub_agents: [leaf]",
            "sub_agents: [{ agent: leaf, session: true }]",
        )
    });
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

/// Returns the messages to an agent and the agent's answers, in order, as the agent's last prompt
/// shows them. Leaves out the first `since` prompts that the model got.
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

/// Creates a harness and a tree of this shape whose root's agent has these limits, and drives the
/// tree until nothing can be driven. Returns the harness and the root.
async fn limited(fixture: &StoreFixture, shape: Shape, limits: &str) -> (EngineHarness, TaskId) {
    let mut harness =
        EngineHarness::of_trees(StoreFixture::like(fixture).await, shape, one_small).await;
    let sub = format!("sub_agents: [{}]", shape.name(1));
    harness.configure(|yaml| yaml.replace(&sub, &format!("{sub}, limits: {{ {limits} }}")));
    let root = harness.grown(&harness.parts(0)).await;
    (harness, root)
}

async fn last_result(harness: &EngineHarness, task: TaskId) -> String {
    let items = harness.journal(task).await.items.into_iter();
    let mut results = items.filter_map(|item| {
        if let Fact::ToolResult(result) = item.fact {
            Some(result)
        } else {
            None
        }
    });
    results.next_back().unwrap().content
}

fn fails() -> Result<model::Answer, ModelError> {
    Err(ModelError::new("it does not answer"))
}

#[apply(both)]
async fn sub_agent_conversation_stays_in_order_whenever_the_process_dies(fixture: StoreFixture) {
    let harness = of_sessions(fixture, three_times).await;
    let parts = harness.parts(0);
    for moment in 1.. {
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
    api.message(&alice(), root, super::harness::superseding("more"), None)
        .await
        .unwrap();
    TreeDriver::of(&harness, &parts, root)
        .drive(usize::MAX)
        .await;
    // A person is asked again about the same refund, although it has been approved once.
    assert_eq!(
        harness.asked_by_tree(root).await.len(),
        1,
        "{}",
        harness.description(root).await
    );
    harness.finish_tree(&parts, root, People::Approve).await;
    assert_eq!(harness.checked_journals(root).await.len(), 2);
    assert_eq!(
        (
            harness.of_agent(root, LEAF).await,
            harness.executions(leaf, "/refund")
        ),
        (vec![leaf], 2)
    );
}

#[apply(both)]
async fn requests_beyond_the_limit_of_a_tree_open_as_others_are_answered(fixture: StoreFixture) {
    let mut harness = EngineHarness::of_trees(
        fixture,
        Shape {
            depth: 2,
            children: 3,
            wide: 0,
        },
        one_large,
    )
    .await;
    harness.configure(|yaml| {
        yaml.replace(
            "sub_agents: [mid]",
            "sub_agents: [mid], limits: { max_model_calls: 100 }",
        )
    });
    harness.script_by_name(|name, prompt| {
        let task = said(prompt);
        let many = |agent: &str, count: u32| {
            (1..=count)
                .map(|child| hands_on(agent, &format!("{task}.{child}")))
                .collect()
        };
        let calls = match (name, prompt.turn) {
            ("boss", 1) => many("mid", 3),
            ("mid", 1) => many(LEAF, 8),
            (LEAF, 1) => vec![refund(&task, 120)],
            _ => Vec::new(),
        };
        Ok(speaks(name, &task, &calls))
    });
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let mut seen = 0;
    let api = EngineHarness::like(&parts, 0);
    while !harness.row(root).await.status.is_terminal() {
        let asked = harness.asked_by_tree(root).await;
        assert!(
            !asked.is_empty() && asked.len() <= 20,
            "{} are open",
            asked.len()
        );
        assert_eq!(
            seen == 0,
            asked.len() == 20,
            "the tree opens as many requests as its limit allows"
        );
        for request in asked.iter().take(7) {
            harness.answer_one(&api, request, People::Approve).await;
            seen += 1;
        }
        harness.later();
        TreeDriver::of(&harness, &parts, root)
            .drive(usize::MAX)
            .await;
        assert!(seen <= 24, "a request was opened twice");
        if seen < 4 {
            assert_eq!(harness.asked_by_tree(root).await.len(), 20);
        }
    }
    let journals = harness.checked_journals(root).await;
    assert_eq!(
        (seen, journals.len(), journals[&root].row.status),
        (24, 28, TaskStatus::Completed)
    );
    for leaf in harness.of_agent(root, LEAF).await {
        assert_eq!(harness.executions(leaf, "/refund"), 1);
    }
}

#[apply(both)]
async fn parent_whose_model_fails_after_its_children_ended_goes_on_with_a_retry(
    fixture: StoreFixture,
) {
    let shape = Shape::flat(2);
    let harness = EngineHarness::of_trees(fixture, shape, one_small).await;
    let parts = harness.parts(0);
    harness.script_by_name(move |name, prompt| {
        if name == "boss" && prompt.turn == 2 {
            fails()
        } else {
            Ok(shape.answer(one_small, name, prompt))
        }
    });
    let root = harness.grown(&parts).await;
    let row = harness.row(root).await;
    assert_eq!(
        (row.status, row.error.map(|error| error.code)),
        (TaskStatus::Failed, Some(FailureCode::ModelFailed))
    );
    harness.script_by_name(move |name, prompt| Ok(shape.answer(one_small, name, prompt)));
    EngineHarness::like(&parts, 0)
        .retry(&alice(), root, None)
        .await
        .unwrap();
    harness.finish_tree(&parts, root, People::Approve).await;
    let journals = harness.checked_journals(root).await;
    assert_eq!(
        (journals.len(), journals[&root].row.status),
        (3, TaskStatus::Completed)
    );
    for leaf in harness.of_agent(root, LEAF).await {
        assert_eq!(
            harness.executions(leaf, "/refund"),
            1,
            "no finished call runs again"
        );
    }
}

#[apply(both)]
async fn parent_that_fails_beside_waiting_children_cancels_them_and_a_retry_goes_on(
    fixture: StoreFixture,
) {
    // The configuration renames the root's agent (`boss`) before the root has stored the result
    // of its first child.
    let mut harness = EngineHarness::of_trees(fixture, Shape::flat(2), one_large).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let asked = harness.asked_by_tree(root).await;
    let api = EngineHarness::like(&parts, 0);
    harness.answer_one(&api, &asked[0], People::Approve).await;
    let mut driver = TreeDriver::of(&harness, &parts, root);
    while harness.row(asked[0].task_id).await.status != TaskStatus::Completed {
        let moment = driver.moment();
        assert!(!driver.drive(moment + 1).await);
    }
    drop(driver);
    harness.configure(|yaml| {
        yaml.replace("  boss: { description", "  chief: { description")
            .replace("default_agent: boss", "default_agent: chief")
    });
    let without = harness.parts(0);
    harness.later();
    TreeDriver::of(&harness, &without, root)
        .drive(usize::MAX)
        .await;
    let row = harness.row(root).await;
    let code = row.error.map(|error| error.code);
    assert_eq!(
        (row.status, code),
        (TaskStatus::Failed, Some(FailureCode::Configuration))
    );
    assert_eq!(
        harness.row(asked[1].task_id).await.status,
        TaskStatus::Canceled,
        "{}",
        harness.description(root).await
    );
    assert!(harness.asked_by_tree(root).await.is_empty());
    api.retry(&alice(), root, None).await.unwrap();
    harness.finish_tree(&parts, root, People::Approve).await;
    let journals = harness.checked_journals(root).await;
    assert_eq!(
        journals[&root].row.status,
        TaskStatus::Completed,
        "{}",
        harness.description(root).await
    );
    assert_eq!(harness.executions(asked[0].task_id, "/refund"), 1);
}

#[apply(both)]
async fn child_whose_model_fails_is_a_failed_call_and_its_sibling_goes_on(fixture: StoreFixture) {
    let shape = Shape {
        depth: 2,
        children: 2,
        wide: 0,
    };
    let harness = EngineHarness::of_trees(fixture, shape, one_small).await;
    harness.script_by_name(move |name, prompt| {
        let fallen = name == LEAF && said(prompt).starts_with("go.1");
        if fallen {
            fails()
        } else {
            Ok(shape.answer(one_small, name, prompt))
        }
    });
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let journals = harness.checked_journals(root).await;
    assert_eq!(
        journals[&root].row.status,
        TaskStatus::Completed,
        "{}",
        harness.description(root).await
    );
    let failed: Vec<_> = journals
        .values()
        .filter(|journal| journal.row.status == TaskStatus::Failed)
        .collect();
    let [child] = &failed[..] else {
        panic!("one has failed: {}", harness.description(root).await)
    };
    let result = handed_back(&journals, child.row.task_id).unwrap();
    assert_eq!(result.outcome, Outcome::Failed);
    assert!(
        result.content.contains("it does not answer"),
        "{}",
        result.content
    );
    let api = EngineHarness::like(&parts, 0);
    let refused = api
        .retry(&alice(), child.row.task_id, None)
        .await
        .unwrap_err();
    assert!(
        matches!(refused, holdpoint::engine::Refusal::NotARoot { .. }),
        "{refused:?}"
    );
}

#[apply(both)]
async fn tree_stays_within_its_width_depth_and_size_limits(fixture: StoreFixture) {
    let deep = Shape {
        depth: 2,
        children: 1,
        wide: 0,
    };
    for (shape, limit, tasks) in [
        (Shape::flat(3), "max_children: 2", 3),
        (deep, "max_depth: 1", 2),
        (Shape::flat(3), "max_tasks: 2", 3),
        (
            Shape {
                depth: 3,
                children: 1,
                wide: 0,
            },
            "max_tasks: 2",
            3,
        ),
        // Two agents try to start one more task each, simultaneously.
        (
            Shape {
                depth: 2,
                children: 2,
                wide: 0,
            },
            "max_tasks: 3",
            4,
        ),
    ] {
        let (harness, root) = limited(&fixture, shape, limit).await;
        let journals = harness.checked_journals(root).await;
        assert_eq!(
            journals[&root].row.status,
            TaskStatus::Completed,
            "{limit}: {}",
            harness.description(root).await
        );
        assert_eq!(
            journals.len(),
            tasks,
            "{limit}: {}",
            harness.description(root).await
        );
        let refused: Vec<_> = journals
            .values()
            .filter(|journal| outcomes(journal).contains(&Outcome::Invalid))
            .collect();
        let [refused] = &refused[..] else {
            panic!("{limit}: {}", harness.description(root).await)
        };
        let invalid = outcomes(refused)
            .iter()
            .filter(|outcome| **outcome == Outcome::Invalid)
            .count();
        let text = refused.items.iter().find_map(|item| match &item.fact {
            Fact::ToolResult(result) if result.outcome == Outcome::Invalid => {
                Some(result.content.clone())
            }
            _ => None,
        });
        let (name, number) = limit.split_once(": ").unwrap();
        let text = text.unwrap();
        assert!(
            invalid == 1 && text.contains(name) && text.contains(number),
            "{limit}: {text}"
        );
    }
}

#[apply(both)]
async fn limit_of_model_calls_counts_the_whole_tree(fixture: StoreFixture) {
    // The boss is asked once and each leaf twice. Then the limit of five is reached.
    let (harness, root) = limited(&fixture, Shape::flat(2), "max_model_calls: 5").await;
    let row = harness.row(root).await;
    let error = row.error.unwrap();
    assert_eq!(
        (row.status, error.code, error.limit.as_deref()),
        (
            TaskStatus::Failed,
            FailureCode::LimitReached,
            Some("max_model_calls")
        )
    );
    assert_eq!(row.model_calls, 5);
    for leaf in harness.of_agent(root, LEAF).await {
        assert_eq!(
            (
                harness.row(leaf).await.status,
                harness.row(leaf).await.model_calls
            ),
            (TaskStatus::Completed, 2)
        );
    }
}

#[apply(both)]
async fn rejection_in_one_child_holds_for_its_sibling(fixture: StoreFixture) {
    fn the_same(_: &str, turn: u32) -> Vec<(String, String)> {
        if turn == 1 {
            vec![refund("go.7", 120)]
        } else {
            Vec::new()
        }
    }
    // The second child starts when the first child is done.
    let harness = EngineHarness::of_trees(fixture, Shape::flat(1), the_same).await;
    harness.script_by_name(|name, prompt| {
        let task = said(prompt);
        let calls = match name {
            LEAF => the_same(&task, prompt.turn),
            _ if prompt.turn < 3 => vec![hands_on(LEAF, &format!("go.{}", prompt.turn))],
            _ => Vec::new(),
        };
        Ok(speaks(name, &task, &calls))
    });
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    harness
        .answer_tree(&EngineHarness::like(&parts, 0), root, People::Reject)
        .await;
    TreeDriver::of(&harness, &parts, root)
        .drive(usize::MAX)
        .await;
    let journals = harness.checked_journals(root).await;
    assert_eq!(
        (journals.len(), journals[&root].row.status),
        (3, TaskStatus::Completed),
        "{}",
        harness.description(root).await
    );
    let [first, second] = harness.of_agent(root, LEAF).await[..] else {
        panic!("two leaves")
    };
    assert_eq!(
        (ended_as(&journals, first), ended_as(&journals, second)),
        (vec![Outcome::Rejected], vec![Outcome::Rejected])
    );
    let asked = |fact: &Fact| matches!(fact, Fact::InterventionRequested(_));
    assert_eq!(
        (
            place(&journals[&first], asked).is_some(),
            place(&journals[&second], asked)
        ),
        (true, None),
        "unasked"
    );
    assert!(
        last_result(&harness, second)
            .await
            .contains("rejected this same call")
    );
    assert!(harness.tool.ledger().is_empty());
}

#[apply(both)]
async fn tool_quarantined_in_one_child_is_not_allowed_in_its_sibling(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(1), one_small).await;
    harness.script_by_name(|name, prompt| {
        let task = said(prompt);
        let calls = match name {
            LEAF => one_small(&task, prompt.turn),
            _ if prompt.turn < 3 => vec![hands_on(LEAF, &format!("go.{}", prompt.turn))],
            _ => Vec::new(),
        };
        Ok(speaks(name, &task, &calls))
    });
    harness.tool.answers(500, "sorry");
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    harness.tool.answers(200, "paid");
    let [request] = &harness.asked_by_tree(root).await[..] else {
        panic!("one is open: {}", harness.description(root).await)
    };
    let [first, second] = harness.of_agent(root, LEAF).await[..] else {
        panic!("two leaves")
    };
    assert_eq!(
        (request.task_id, outcomes(&harness.journal(first).await)),
        (second, vec![Outcome::Failed])
    );
    assert!(request.spec.pending_tool_calls[0].reason.is_some());
    assert_eq!(harness.executions(second, "/refund"), 0);
    harness.finish_tree(&parts, root, People::Approve).await;
    harness.checked_journals(root).await;
    assert_eq!(
        (
            harness.executions(first, "/refund"),
            harness.executions(second, "/refund")
        ),
        (1, 1)
    );
}
