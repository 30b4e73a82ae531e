//! Tests drivers that act on an outdated state of their tree, requests that wait because their tree
//! is at its limit, journals that are damaged or too new to be read, and decisions on sub-agents'
//! calls.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdpoint::engine::{DecisionBody, DecisionInput, Engine, EngineParts};
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::status::TaskStatus;
use holdpoint::task::transcript::Message;
use macro_rules_attribute::apply;

use super::super::call_decisions::edit;
use super::super::damaged_journals::{GONE, damage};
use super::super::engine_harness::{
    EngineHarness, alice, alice_decides, alice_writes, claimed, drive, join, outcomes, rejects,
    superseding, whole,
};
use super::super::stored_prompts::thinks;
use super::super::worker_steps::WorkerSteps as _;
use super::endings::looked_after;
use super::harness::{LEAF, People, Shape, hands_on, one_large, one_small, refund, said, speaks};
use crate::store::store_fixture::{StoreFixture, both};

/// Starts a boss with two leaves. Returns the root, the driver of a leaf whose first model call is
/// in flight, and the driver of the other leaf, which has not begun.
async fn one_thinks(
    harness: &EngineHarness,
    engine: &Arc<Engine>,
) -> (TaskId, BoxFuture<'static, ()>, BoxFuture<'static, ()>) {
    let root = harness.queued().await;
    drive(engine).await;
    let mut drivers = engine.claim().await.unwrap();
    assert_eq!(drivers.len(), 2, "two leaves");
    let (other, mut thinking) = (drivers.pop().unwrap(), drivers.pop().unwrap());
    thinks(harness, &mut thinking).await;
    (root, thinking, other)
}

/// Checks a tree in which nothing runs. Asserts that each row counts the busy tasks and the open
/// requests in its subtree, and that the row's status fits these counts.
pub(super) async fn balanced(harness: &EngineHarness, root: TaskId) {
    let rows = harness.tree(root).await;
    let open = harness.asked_by_tree(root).await;
    let full = open.len() == 20;
    for row in &rows {
        let mut below = vec![row.task_id];
        let mut place = 0;
        while let Some(task) = below.get(place).copied() {
            below.extend(
                rows.iter()
                    .filter(|row| row.parent.is_some_and(|p| p.0 == task))
                    .map(|row| row.task_id),
            );
            place += 1;
        }
        let busy = rows
            .iter()
            .filter(|row| below.contains(&row.task_id) && !row.parked)
            .count();
        let open = open
            .iter()
            .filter(|request| below.contains(&request.task_id))
            .count();
        let counted = (
            usize::try_from(row.busy).unwrap(),
            usize::try_from(row.open_requests).unwrap(),
        );
        assert_eq!(
            counted,
            (busy, open),
            "{:?}: {}",
            row.agent_path,
            harness.description(root).await
        );
        let fits = match row.status {
            // A running task without busy tasks in its subtree has no open request there either.
            // The task waits until its full tree may open another request.
            TaskStatus::Running => busy > 0 || (open == 0 && full),
            TaskStatus::Paused => busy == 0 && open > 0,
            TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Canceled => {
                busy == 0 && open == 0
            }
        };
        assert!(
            fits,
            "{:?} is {:?}: {}",
            row.agent_path,
            row.status,
            harness.description(root).await
        );
    }
}

/// Scripts twenty-one guidance requests in all, from three leaves in three branches of the tree.
pub(super) fn twenty_one(task: &str, turn: u32) -> Vec<(String, String)> {
    let count = match task.get(..4) {
        Some("go.1") => 16,
        Some("go.2") => 4,
        _ => 1,
    };
    let question = |number| {
        (
            "request_human_guidance".to_owned(),
            format!(r#"{{"question":"which {number}?"}}"#),
        )
    };
    if turn == 1 {
        (0..count).map(question).collect()
    } else {
        Vec::new()
    }
}

/// Creates a tree with as many open requests as its limit allows. Returns the root, and the driver
/// of one more leaf. The model call of this leaf is in flight; the model's answer will contain a
/// call that needs one more request.
pub(super) async fn twenty_are_open(
    harness: &EngineHarness,
    parts: &EngineParts,
) -> (TaskId, BoxFuture<'static, ()>) {
    let engine = EngineHarness::like(parts, 4);
    let root = harness.queued().await;
    while harness.of_agent(root, LEAF).await.is_empty() {
        drive(&engine).await;
    }
    let mut last = None;
    for mut driver in engine.claim().await.unwrap() {
        thinks(harness, &mut driver).await;
        if said(&harness.prompted().1).starts_with("go.3") {
            last = Some(driver);
        } else {
            driver.await;
        }
    }
    assert_eq!(harness.asked_by_tree(root).await.len(), 20);
    (root, last.unwrap())
}

async fn after_polls(driver: &mut BoxFuture<'static, ()>, polls: usize) -> bool {
    let mut polled = 0;
    poll_fn(|context| {
        if driver.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        polled += 1;
        if polled >= polls {
            Poll::Ready(false)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Returns the calls of a task's turn. In its first turn, every task makes the same refund.
fn the_same(_: &str, turn: u32) -> Vec<(String, String)> {
    one_large("go.7", turn)
}

/// Returns a harness with two agents. For each message of the user, the root's agent calls the
/// sub-agent `leaf` once. The sub-agent keeps its conversation between these calls.
async fn of_one_session(fixture: StoreFixture) -> EngineHarness {
    let mut harness = EngineHarness::of_trees(fixture, Shape::flat(1), one_small).await;
    harness.replace(
        "sub_agents: [leaf]",
        "sub_agents: [{ agent: leaf, session: true }]",
    );
    harness.script_by_name(|name, prompt| {
        let task = said(prompt);
        let told = prompt
            .messages
            .iter()
            .rposition(|message| matches!(message, Message::User { .. }))
            .unwrap();
        let first = !prompt.messages[told..]
            .iter()
            .any(|message| matches!(message, Message::Assistant { .. }));
        let calls = match (name, first) {
            (LEAF, true) => vec![refund("go.1", 5)],
            (_, true) => vec![hands_on(LEAF, "go.1")],
            (_, false) => Vec::new(),
        };
        Ok(speaks(name, &task, &calls))
    });
    harness
}

#[apply(both)]
async fn tool_quarantined_while_a_siblings_model_answers_is_not_run_by_a_rule(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(2), one_small).await;
    let parts = harness.parts(0);
    let engine = EngineHarness::like(&parts, 4);
    let (root, thinking, other) = one_thinks(&harness, &engine).await;
    harness.tool.answers(500, "sorry");
    other.await;
    harness.tool.answers(200, "paid");
    thinking.await;
    assert_eq!(
        harness.tool.ledger().len(),
        1,
        "{}",
        harness.description(root).await
    );
    assert_eq!(harness.asked_by_tree(root).await.len(), 1);
    balanced(&harness, root).await;
    harness.finish_tree(&parts, root, People::Approve).await;
    harness.checked_journals(root).await;
}

#[apply(both)]
async fn rejection_made_while_a_siblings_model_answers_holds_for_the_sibling(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(2), the_same).await;
    let parts = harness.parts(0);
    let engine = EngineHarness::like(&parts, 4);
    let (root, thinking, other) = one_thinks(&harness, &engine).await;
    other.await;
    let [request] = &harness.asked_exactly(root).await;
    let api = EngineHarness::like(&parts, 0);
    alice_decides(
        &api,
        request.spec.request_id,
        rejects(Consequence::Continue),
    )
    .await;
    thinking.await;
    harness.drive_tree(&parts, root).await;
    assert!(
        harness.asked_by_tree(root).await.is_empty(),
        "{}",
        harness.description(root).await
    );
    for leaf in harness.of_agent(root, LEAF).await {
        assert_eq!(outcomes(&harness.journal(leaf).await), [Outcome::Rejected]);
    }
    harness.checked_journals(root).await;
}

#[apply(both)]
async fn task_waiting_to_open_a_request_is_woken_when_one_closes_while_it_parks(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(3), twenty_one).await;
    let parts = harness.parts(0);
    let api = EngineHarness::like(&parts, 0);
    for polls in 1.. {
        let (root, mut last) = twenty_are_open(&harness, &parts).await;
        let over = after_polls(&mut last, polls).await;
        let asked = harness.asked_by_tree(root).await;
        assert_eq!(asked.len(), 20);
        harness.answer_one(&api, &asked[0], People::Guide).await;
        if !over {
            last.await;
        }
        harness.drive_tree(&parts, root).await;
        let open = harness.asked_by_tree(root).await.len();
        assert_eq!(
            open,
            20,
            "after {polls} polls: {}",
            harness.description(root).await
        );
        balanced(&harness, root).await;
        if over {
            assert!(polls > 1, "the driver was never interrupted");
            break;
        }
    }
}

#[apply(both)]
async fn overdue_requests_of_one_tree_are_closed_together(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(3), twenty_one).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    harness.fixture.forward(Duration::from_hours(25));
    let closed = EngineHarness::like(&parts, 0)
        .worker()
        .expire()
        .await
        .unwrap();
    assert_eq!(closed, 20, "a deadline that passes is seen within a second");
    balanced(&harness, root).await;
}

#[apply(both)]
async fn model_is_told_the_edited_task_its_sub_agent_was_called_with(fixture: StoreFixture) {
    let mut harness = EngineHarness::of_trees(fixture, Shape::flat(1), one_small).await;
    let held = "policy:\n  - { name: calls, tools: [leaf], decide: hold }\n";
    harness.replace("policy:\n", held);
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let [request] = &harness.asked_exactly(root).await;
    let call = request.spec.own_calls().next().unwrap().tool_call_id;
    let body = DecisionBody::PerCall([(call.to_string(), edit(r#"{"task":"go.99"}"#))].into());
    let api = EngineHarness::like(&parts, 0);
    alice_decides(
        &api,
        request.spec.request_id,
        DecisionInput { digest: None, body },
    )
    .await;
    harness.finish_tree(&parts, root, People::Approve).await;
    harness.checked_journals(root).await;
    let (name, prompt) = harness.prompted();
    let result = prompt
        .messages
        .iter()
        .rev()
        .find_map(|message| match message {
            Message::Result { content, .. } => Some(content.clone()),
            Message::User { .. } | Message::Assistant { .. } => None,
        });
    let result = result.unwrap();
    assert_eq!(name, "boss");
    assert!(
        result.contains("leaf is done with go.99"),
        "the new words were given: {result}"
    );
    assert!(
        result.contains(r#"It ran with: {"task":"go.99"}"#),
        "{result}"
    );
}

#[apply(both)]
async fn unreadable_conversation_is_begun_anew_and_its_calls_are_held(fixture: StoreFixture) {
    for which in ["seq > 0", "seq = 2"] {
        let harness = of_one_session(StoreFixture::like(&fixture).await).await;
        let parts = harness.parts(0);
        let root = harness.grown(&parts).await;
        let [leaf] = harness.of_agent(root, LEAF).await[..] else {
            panic!("one leaf")
        };
        assert_eq!(harness.row(root).await.status, TaskStatus::Completed);
        damage(&harness.fixture, leaf, GONE, which).await;
        alice_writes(&EngineHarness::like(&parts, 0), root, superseding("more")).await;
        looked_after(&harness, &parts, root).await;
        // The refund of the next leaf is held although a rule allows it, because the effects of
        // the damaged leaf are unknown.
        let [asked] = &harness.asked_by_tree(root).await[..] else {
            panic!("{which}: {}", harness.description(root).await)
        };
        let reason = asked.spec.pending_tool_calls[0]
            .reason
            .as_deref()
            .unwrap_or_default();
        assert!(reason.contains("cannot be read"), "{reason}");
        harness.finish_tree(&parts, root, People::Approve).await;
        let row = harness.row(root).await;
        assert_eq!(
            row.status,
            TaskStatus::Completed,
            "{which}: {}",
            harness.description(root).await
        );
        let results = outcomes(&harness.journal(root).await);
        assert_eq!(
            results,
            [Outcome::Succeeded, Outcome::Succeeded],
            "{which}: {}",
            harness.description(root).await
        );
    }
}

#[apply(both)]
async fn damaged_task_that_has_ended_is_no_longer_reported(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(2), one_large).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let leaf = harness.asked_by_tree(root).await[0].task_id;
    damage(&harness.fixture, leaf, GONE, "seq = 2").await;
    harness.fixture.store.report_unreadable(leaf);
    looked_after(&harness, &parts, root).await;
    assert_eq!(harness.row(leaf).await.status, TaskStatus::Failed);
    balanced(&harness, root).await;
    assert!(
        harness.fixture.store.take_unreadable().is_empty(),
        "every round reads its whole tree"
    );
}

/// The call belongs to the sub-agent, or to the root after its sub-agent has ended. The number is
/// that of the caller's turn, and of the drives before the call.
#[apply(both)]
async fn driver_of_a_tree_that_cannot_be_read_stores_its_result_and_stops(fixture: StoreFixture) {
    for (caller, turn, is_taken_over) in [(LEAF, 1, false), (LEAF, 1, true), ("boss", 2, true)] {
        let fixture = StoreFixture::like(&fixture).await;
        let mut harness = EngineHarness::of_trees(fixture, Shape::flat(1), one_small).await;
        harness.replace("sub_agents: [leaf]", "sub_agents: [leaf], tools: [refund]");
        harness.replace("timeout: 5s", "timeout: 60s");
        harness.script_by_name(move |name, prompt| {
            let calls = match (name, prompt.turn) {
                ("boss", 1) => vec![hands_on(LEAF, "go.1")],
                at if at == (caller, turn) => vec![refund("go.1", 5)],
                _ => Vec::new(),
            };
            Ok(speaks(name, &said(prompt), &calls))
        });
        let parts = harness.parts(0);
        let engine = EngineHarness::like(&parts, 4);
        let root = harness.queued().await;
        for _ in 0..turn {
            drive(&engine).await;
        }
        let [task] = harness.of_agent(root, caller).await[..] else {
            panic!("one {caller}")
        };
        harness.tool.close();
        let drivers = claimed(&engine).await;
        harness.tool.reached(1).await;
        if is_taken_over {
            harness.later();
            harness.drive_tree(&parts, root).await;
            assert_eq!(harness.asked_exactly::<1>(root).await[0].task_id, task);
        }
        let set_takeovers = async |count: i64| {
            let [root, task] = [root, task].map(|it| harness.fixture.literal(it.0));
            let sql = format!(
                "update agent_task set takeovers = {count} where root_task_id = {root} and task_id <> {task}"
            );
            harness.fixture.execute(&sql).await;
        };
        // The service cannot decode a count of more than 32 bits.
        set_takeovers(1 << 40).await;
        harness.tool.open();
        join(drivers).await;
        set_takeovers(0).await;
        let journal = harness.journal(task).await;
        let mut items = journal.items.iter();
        let is_late = items.any(|item| matches!(item.fact, Fact::LateResult(_)));
        assert_eq!(is_late, is_taken_over, "{caller}");
        if is_taken_over {
            balanced(&harness, root).await;
        } else {
            assert_eq!(outcomes(&journal), [Outcome::Succeeded]);
        }
        harness.finish_tree(&parts, root, People::Approve).await;
        assert_eq!(harness.row(root).await.status, TaskStatus::Completed);
        assert_eq!(harness.executions(task, "/refund"), 1);
    }
}

#[apply(both)]
async fn task_only_a_newer_replica_can_read_does_not_go_on_under_a_canceled_root(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::of_trees(fixture, Shape::flat(2), one_large).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    let asked = harness.asked_by_tree(root).await;
    let leaf = asked[0].task_id;
    harness
        .rename_type(leaf, "user_message", "newer_message")
        .await;
    let old = EngineHarness::like(&parts, 0);
    old.cancel(&alice(), root, None).await.unwrap();
    // The item gets its readable type back. So the engines below act as the newer version, which
    // can read the item.
    harness
        .rename_type(leaf, "newer_message", "user_message")
        .await;
    let newer = EngineHarness::like(&parts, 0);
    for request in harness.asked_by_tree(root).await {
        let _ = newer
            .decide(
                &alice(),
                request.spec.request_id,
                whole(Action::Approve, None),
                None,
            )
            .await;
    }
    looked_after(&harness, &parts, root).await;
    assert!(
        harness.tool.ledger().is_empty(),
        "{}",
        harness.description(root).await
    );
    harness.checked_journals(root).await;
}
