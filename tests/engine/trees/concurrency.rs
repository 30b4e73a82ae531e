//! Tests several children of one parent. The children pause simultaneously, and people answer their
//! requests in any order or all at once. A child waits for days after its sibling has ended. The
//! parent's process dies before it reads the results of the children.

mod pauses;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use holdpoint::engine::Engine;
use holdpoint::store::RequestRow;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::transcript::Message;
use macro_rules_attribute::apply;

use super::super::engine_harness::{EngineHarness, alice, rejects, whole};
use super::harness::{
    DAYS, LEAF, People, Shape, TreeDriver, ended_as, handed_back, one_large, one_small, refund,
};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

/// Asserts that, after the first `since` prompts, the agent `boss` got exactly two prompts. Returns
/// the tool results in the second of these two prompts.
fn results_for_boss(harness: &EngineHarness, since: usize) -> Vec<String> {
    let prompts = harness.prompts_since(since).into_iter();
    let bosses: Vec<_> = prompts.filter(|(name, _)| name == "boss").collect();
    assert_eq!(
        bosses.len(),
        2,
        "asked again only when every call has its result"
    );
    let results = bosses[1]
        .1
        .messages
        .iter()
        .filter_map(|message| match message {
            Message::Result { content, .. } => Some(content.clone()),
            Message::User { .. } | Message::Assistant { .. } => None,
        });
    results.collect()
}

const ORDERS: [[usize; 3]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

/// Scripts a large refund for each child in its first turn, and another large refund for the first
/// child in its second turn.
fn twice_by_the_first(task: &str, turn: u32) -> Vec<(String, String)> {
    match turn {
        1 => vec![refund(task, 120)],
        2 if task.ends_with(".1") => vec![refund(task, 121)],
        _ => Vec::new(),
    }
}

/// Scripts one refund for each child. The refund of the second child needs approval. Every other
/// refund is small enough to run without an approval.
fn only_the_second_asks(task: &str, turn: u32) -> Vec<(String, String)> {
    if task.ends_with(".2") {
        one_large(task, turn)
    } else {
        one_small(task, turn)
    }
}

async fn each_has_paid_once(harness: &EngineHarness, root: TaskId) {
    for leaf in harness.of_agent(root, LEAF).await {
        assert_eq!(
            harness.executions(leaf, "/refund"),
            1,
            "{}",
            harness.description(root).await
        );
    }
}

async fn completed_leaves(harness: &EngineHarness, root: TaskId) -> usize {
    let rows = harness.tree(root).await.into_iter();
    rows.filter(|row| row.agent == LEAF && row.status == TaskStatus::Completed)
        .count()
}

#[apply(both)]
async fn three_held_children_are_decided_in_any_order_without_disturbing_siblings(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(3), one_large).await;
    let parts = harness.parts(0);
    let api = EngineHarness::like(&parts, 0);
    for order in ORDERS {
        let began = harness.prompt_count();
        let root = harness.grown(&parts).await;
        assert_eq!(harness.row(root).await.status, TaskStatus::Paused);
        let mut left = harness.asked_by_tree(root).await;
        assert!(left.is_sorted_by_key(|request| request.created_at) && left.len() == 3);
        let requests = left.clone();
        for place in order {
            let (request, child) = (&requests[place], requests[place].task_id);
            left.retain(|other| other.task_id != child);
            let before: Vec<_> =
                join_all(left.iter().map(|other| harness.row(other.task_id))).await;
            harness.answer_one(&api, request, People::Approve).await;
            assert_eq!(
                harness.row(root).await.status,
                TaskStatus::Running,
                "something of its tree is about to run"
            );
            harness.drive_tree(&parts, root).await;
            assert_eq!(harness.row(child).await.status, TaskStatus::Completed);
            let after: Vec<_> = join_all(left.iter().map(|other| harness.row(other.task_id))).await;
            assert_eq!(before, after, "{order:?}");
            assert_eq!(
                harness.asked_by_tree(root).await,
                left,
                "{order:?}: in the order they were asked"
            );
            let waits = if left.is_empty() {
                TaskStatus::Completed
            } else {
                TaskStatus::Paused
            };
            assert_eq!(
                harness.row(root).await.status,
                waits,
                "{order:?}: {}",
                harness.description(root).await
            );
        }
        harness.checked_journals(root).await;
        each_has_paid_once(&harness, root).await;
        let done = [
            "leaf is done with go.1",
            "leaf is done with go.2",
            "leaf is done with go.3",
        ];
        assert_eq!(
            results_for_boss(&harness, began),
            done,
            "in the order of its calls"
        );
        assert_eq!(
            harness.prompt_count() - began,
            8,
            "no model is asked twice for the same turn"
        );
    }
}

#[apply(both)]
async fn simultaneous_decisions_of_three_people_on_three_children_are_all_stored(
    fixture: StoreFixture,
) {
    let mut harness = EngineHarness::of_trees(fixture, Shape::flat(3), one_large).await;
    harness.replace("{ owner: true }", "{ owner: true, users: [bob, carol] }");
    let parts = harness.parts(0);
    let apis: Vec<Arc<Engine>> = (0..3).map(|_| EngineHarness::like(&parts, 0)).collect();
    for round in 0..repetitions(6, 24) {
        let root = harness.grown(&parts).await;
        let requests = harness.asked_by_tree(root).await;
        let order = ORDERS[round % 6];
        let people = ["alice", "bob", "carol"].map(super::super::engine_harness::person);
        let said = join_all(order.map(|place| {
            let answer = if place == 1 {
                rejects(Consequence::Continue)
            } else {
                whole(Action::Approve, None)
            };
            apis[place].decide(
                &people[place],
                requests[place].spec.request_id,
                answer,
                None,
            )
        }))
        .await;
        assert!(
            said.iter().all(Result::is_ok),
            "no decision loses to another one: {said:?}"
        );
        harness.finish_tree(&parts, root, People::Approve).await;
        let journals = harness.completed_journals(root).await;
        for (place, request) in requests.iter().enumerate() {
            let (child, no) = (request.task_id, place == 1);
            assert_eq!(harness.executions(child, "/refund"), usize::from(!no));
            let ended = if no {
                Outcome::Rejected
            } else {
                Outcome::Succeeded
            };
            assert_eq!(ended_as(&journals, child), [ended]);
        }
    }
}

#[apply(both)]
async fn child_held_twice_is_asked_about_twice_and_its_siblings_once(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(2), twice_by_the_first).await;
    let parts = harness.parts(0);
    let api = EngineHarness::like(&parts, 0);
    let root = harness.grown(&parts).await;
    let mut first = harness.asked_by_tree(root).await;
    let amounts = |request: &RequestRow| request.spec.pending_tool_calls[0].arguments_text.clone();
    first.sort_by_key(amounts);
    let [one, other] = &first[..] else {
        panic!("two are open")
    };
    harness.answer_one(&api, one, People::Approve).await;
    harness.drive_tree(&parts, root).await;
    let second = harness.asked_by_tree(root).await;
    assert_eq!(
        (second.len(), &second[0]),
        (2, other),
        "{}",
        harness.description(root).await
    );
    assert_eq!(second[1].task_id, one.task_id);
    assert_eq!(harness.row(root).await.status, TaskStatus::Paused);
    harness.answer_one(&api, &second[1], People::Approve).await;
    harness.drive_tree(&parts, root).await;
    assert_eq!(
        harness.asked_by_tree(root).await,
        std::slice::from_ref(other)
    );
    harness.answer_one(&api, other, People::Approve).await;
    harness.drive_tree(&parts, root).await;
    harness.completed_journals(root).await;
    assert_eq!(harness.executions(one.task_id, "/refund"), 2);
    assert_eq!(harness.executions(other.task_id, "/refund"), 1);
}

#[apply(both)]
async fn child_held_for_days_goes_on_beside_a_long_finished_sibling(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(2), only_the_second_asks).await;
    let parts = harness.parts(0);
    let began = harness.prompt_count();
    let root = harness.grown(&parts).await;
    let [request] = &harness.asked_exactly(root).await;
    let waiting =
        |row: &holdpoint::task::change::TaskRow| (row.status, row.busy, row.open_requests);
    assert_eq!(
        waiting(&harness.row(root).await),
        (TaskStatus::Paused, 0, 1)
    );
    harness.fixture.forward(DAYS);
    assert!(
        harness.claims_nothing(4).await,
        "nothing can be claimed meanwhile"
    );
    harness
        .answer_one(&EngineHarness::like(&parts, 0), request, People::Approve)
        .await;
    harness.drive_tree(&parts, root).await;
    assert_eq!(
        harness.checked_journals(root).await[&root].row.status,
        TaskStatus::Completed,
        "waiting is not duration"
    );
    each_has_paid_once(&harness, root).await;
    assert_eq!(
        results_for_boss(&harness, began),
        ["leaf is done with go.1", "leaf is done with go.2"]
    );
}

#[apply(both)]
async fn unanswered_request_of_a_child_expires_and_the_tree_goes_on(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::branched(2, 2), one_large).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    assert_eq!(harness.asked_by_tree(root).await.len(), 2);
    harness.fixture.forward(Duration::from_hours(25));
    let (api, mut expired) = (EngineHarness::like(&parts, 0), 0);
    while expired < 2 {
        // One sweep may close one request or both requests.
        let closed = api.worker().expire().await.unwrap();
        assert!(closed > 0);
        expired += closed;
    }
    harness.drive_tree(&parts, root).await;
    let journals = harness.completed_journals(root).await;
    for leaf in harness.of_agent(root, LEAF).await {
        assert_eq!(ended_as(&journals, leaf), [Outcome::Expired]);
        assert_eq!(harness.executions(leaf, "/refund"), 0);
        assert_eq!(
            handed_back(&journals, leaf).unwrap().outcome,
            Outcome::Succeeded
        );
    }
}

#[apply(both)]
async fn parent_that_dies_after_the_end_of_a_child_loses_nothing(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(2), one_small).await;
    let parts = harness.parts(0);
    let mut cut = 0;
    // The normal runs on the two databases together cover every number of polls.
    let step = repetitions(2, 1);
    let first = usize::from(harness.fixture.is_postgres()) % step;
    for polls in (first..20).step_by(step) {
        let mut driver = TreeDriver::start(&harness, &parts).await;
        let root = driver.root;
        // Drives until both children have completed. Their parent has not stored their results
        // yet.
        while completed_leaves(&harness, root).await < 2 {
            let moment = driver.moment();
            assert!(!driver.drive(moment + 1).await);
        }
        drop(driver);
        harness.later();
        let mut crashing = TreeDriver::of(&harness, &parts, root);
        let whole = crashing.drive_while(|driver| driver.polls < polls).await;
        drop(crashing);
        harness.finish_tree(&parts, root, People::Approve).await;
        let journals = harness.checked_journals(root).await;
        assert_eq!(journals.len(), 3);
        assert_eq!(journals[&root].row.status, TaskStatus::Completed);
        assert_eq!(ended_as(&journals, root), [Outcome::Succeeded; 2]);
        each_has_paid_once(&harness, root).await;
        cut += usize::from(!whole);
    }
    assert!(cut * step > 2, "the drive was cut {cut} times");
}

#[apply(both)]
async fn request_of_a_child_names_its_agent_path_and_its_root(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::branched(3, 1), one_large).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let [request] = &harness.asked_exactly(root).await;
    assert_eq!(request.root_task_id, root);
    assert_eq!(request.spec.kind, RequestKind::Approval);
    assert_eq!(request.agent_path, ["boss", "mid", "low", "leaf"]);
    for row in harness.tree(root).await {
        assert_eq!(
            (row.status, row.busy, row.open_requests),
            (TaskStatus::Paused, 0, 1),
            "{:?}",
            row.agent_path
        );
        let seen = harness
            .fixture
            .store
            .pending(root, row.task_id)
            .await
            .unwrap();
        assert_eq!(
            seen,
            std::slice::from_ref(request),
            "every ancestor lists it: {:?}",
            row.agent_path
        );
        let last = harness.journal(row.task_id).await.items.pop().unwrap().fact;
        assert_eq!(
            last,
            Fact::TaskStatus {
                status: TaskStatus::Paused,
                error: None,
                output: None
            }
        );
    }
    EngineHarness::like(&parts, 0)
        .cancel(&alice(), root, None)
        .await
        .unwrap();
    assert_eq!(harness.checked_journals(root).await.len(), 4);
}
