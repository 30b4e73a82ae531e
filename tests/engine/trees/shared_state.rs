//! Tests what the tasks of a tree have in common: the tree's limits, and the rejections and
//! quarantines that hold for the whole tree. Also tests sub-agents that keep their conversation,
//! and models that fail anywhere in a tree.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an item of a new type says nothing here"
)]

mod conversations;
mod model_failures;

use holdpoint::task::decision::Consequence;
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::engine_harness::{EngineHarness, alice_decides, outcomes, rejects, tool_results};
use super::super::two_replicas::place;
use super::harness::{
    LEAF, People, Shape, ended_as, hands_on, one_large, one_small, refund, said, speaks,
};
use crate::store::store_fixture::{StoreFixture, both};

/// Creates a harness and a tree of this shape whose root's agent has these limits, and drives the
/// tree until nothing can be driven. Returns the harness and the root.
async fn limited(fixture: &StoreFixture, shape: Shape, limits: &str) -> (EngineHarness, TaskId) {
    let mut harness =
        EngineHarness::of_trees(StoreFixture::like(fixture).await, shape, one_small).await;
    let sub = format!("sub_agents: [{}]", shape.name(1));
    harness.replace(&sub, &format!("{sub}, limits: {{ {limits} }}"));
    let root = harness.grown(&harness.parts(0)).await;
    (harness, root)
}

async fn last_result(harness: &EngineHarness, task: TaskId) -> String {
    let items = harness.journal(task).await.items;
    let last = tool_results(&items).next_back().unwrap();
    last.content.clone()
}

#[apply(both)]
async fn requests_beyond_the_limit_of_a_tree_open_as_others_are_answered(fixture: StoreFixture) {
    let mut harness = EngineHarness::of_trees(fixture, Shape::branched(2, 3), one_large).await;
    harness.replace(
        "sub_agents: [mid]",
        "sub_agents: [mid], limits: { max_model_calls: 100 }",
    );
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
        harness.drive_tree(&parts, root).await;
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
async fn tree_stays_within_its_width_depth_and_size_limits(fixture: StoreFixture) {
    let deep = Shape::branched(2, 1);
    for (shape, limit, tasks) in [
        (Shape::flat(3), "max_children: 2", 3),
        (deep, "max_depth: 1", 2),
        (Shape::flat(3), "max_tasks: 2", 3),
        (Shape::branched(3, 1), "max_tasks: 2", 3),
        // Two agents try to start one more task each, simultaneously.
        (Shape::branched(2, 2), "max_tasks: 3", 4),
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
        let result = tool_results(&refused.items).find(|result| result.outcome == Outcome::Invalid);
        let (name, number) = limit.split_once(": ").unwrap();
        let text = &result.unwrap().content;
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
    assert_eq!(row.status, TaskStatus::Failed);
    assert_eq!(error.code, FailureCode::LimitReached);
    assert_eq!(error.limit.as_deref(), Some("max_model_calls"));
    assert_eq!(row.model_calls, 5);
    for leaf in harness.of_agent(root, LEAF).await {
        assert_eq!(harness.row(leaf).await.status, TaskStatus::Completed);
        assert_eq!(harness.row(leaf).await.model_calls, 2);
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
    // The root's agent starts one child per turn, so the first child has ended when the second
    // child starts.
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
    harness.drive_tree(&parts, root).await;
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
    assert_eq!(ended_as(&journals, first), [Outcome::Rejected]);
    assert_eq!(ended_as(&journals, second), [Outcome::Rejected]);
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
async fn held_call_that_waits_for_room_is_refused_unasked_after_the_rejection_of_an_equal_call(
    fixture: StoreFixture,
) {
    // The two leaves need 21 requests, and both end their turn with the same refund. So the leaf
    // that comes second opens all its requests except the one about its refund.
    fn questions_and_the_same(task: &str, turn: u32) -> Vec<(String, String)> {
        let count = if task == "go.1" { 10 } else { 9 };
        let question = |number: u32| {
            let arguments = format!(r#"{{"question":"which {number}?"}}"#);
            ("request_human_guidance".to_owned(), arguments)
        };
        if turn == 1 {
            let questions = (0..count).map(question);
            questions.chain([refund("go.7", 120)]).collect()
        } else {
            Vec::new()
        }
    }
    let harness = EngineHarness::of_trees(fixture, Shape::flat(2), questions_and_the_same).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let asked = harness.asked_exactly::<20>(root).await;
    let approvals = asked
        .iter()
        .filter(|request| request.spec.kind == RequestKind::Approval);
    let [approval] = approvals.collect::<Vec<_>>()[..] else {
        panic!("{}", harness.description(root).await)
    };
    let api = EngineHarness::like(&parts, 0);
    let no = rejects(Consequence::Continue);
    alice_decides(&api, approval.spec.request_id, no).await;
    harness.drive_tree(&parts, root).await;
    let open = harness.asked_by_tree(root).await;
    let kinds: Vec<_> = open.iter().map(|request| request.spec.kind).collect();
    assert_eq!(
        kinds,
        [RequestKind::Guidance; 19],
        "{}",
        harness.description(root).await
    );
    harness.finish_tree(&parts, root, People::Guide).await;
    let journals = harness.completed_journals(root).await;
    for leaf in harness.of_agent(root, LEAF).await {
        let ended = ended_as(&journals, leaf).into_iter();
        let rejected = ended.filter(|outcome| *outcome == Outcome::Rejected);
        assert_eq!(rejected.count(), 1);
    }
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
    assert_eq!(request.task_id, second);
    assert_eq!(outcomes(&harness.journal(first).await), [Outcome::Failed]);
    assert!(request.spec.pending_tool_calls[0].reason.is_some());
    assert_eq!(harness.executions(second, "/refund"), 0);
    harness.finish_tree(&parts, root, People::Approve).await;
    harness.checked_journals(root).await;
    assert_eq!(harness.executions(first, "/refund"), 1);
    assert_eq!(harness.executions(second, "/refund"), 1);
}
