//! Tests trees that end in other ways than by completing: they are canceled in part, superseded by
//! the user's next message, damaged in the database, or their history is uncertain. Also tests
//! replicas that cannot read a sub-agent of a newer version, and end its tree or its turn.

use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::{Engine, EngineParts, Refusal};
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{CloseReason, Fact, Outcome};
use holdpoint::task::request::RequestKind;
use holdpoint::task::status::{RequestStatus, TaskStatus};
use macro_rules_attribute::apply;

use super::super::damaged_journals::{CUT, GONE, damage};
use super::super::engine_harness::{
    EngineHarness, alice, alice_is_refused, alice_writes, claimed, drive, join, rejects,
    superseding, tool_results, whole,
};
use super::super::send_deadlines::Remembering;
use super::super::two_replicas::{closed, place};
use super::super::worker_steps::WorkerSteps as _;
use super::harness::{
    LEAF, People, ROOM, Shape, TreeDriver, ended_as, handed_back, one_large, one_small, said,
};
use crate::store::store_fixture::{StoreFixture, both};

/// A boss with two branches. Each branch is a `mid` and a leaf.
const FORK: Shape = Shape::branched(2, 2);

const DAMAGES: [(&str, &str); 3] = [(CUT, "seq = 2"), (GONE, "seq = 2"), (GONE, "seq > 0")];

/// Grows a tree of the shape [`FORK`], in which each leaf has a refund that is held. Returns the
/// harness, its parts and the root.
async fn fork(fixture: StoreFixture) -> (EngineHarness, EngineParts, TaskId) {
    let harness = EngineHarness::of_trees(fixture, FORK, one_large).await;
    let parts = harness.parts(0);
    let root = harness.grown(&parts).await;
    (harness, parts, root)
}

/// Drives the tree and runs rounds of a worker, often enough that nothing is left to do.
pub(super) async fn looked_after(harness: &EngineHarness, parts: &EngineParts, root: TaskId) {
    for _ in 0..6 {
        harness.drive_tree(parts, root).await;
        // `round` ends each task that was reported as unreadable: the task is then `Failed`.
        let engine = EngineHarness::like(parts, 0);
        engine.round().await.unwrap();
    }
    harness.later();
    harness.drive_tree(parts, root).await;
}

async fn ended(harness: &EngineHarness, task: TaskId) -> (TaskStatus, Option<FailureCode>) {
    let row = harness.row(task).await;
    assert_eq!(
        (row.busy, row.open_requests, row.lease_owner),
        (0, 0, None),
        "{:?}",
        row.agent_path
    );
    (row.status, row.error.map(|error| error.code))
}

const INTEGRITY: (TaskStatus, Option<FailureCode>) =
    (TaskStatus::Failed, Some(FailureCode::Integrity));

/// Returns the outcome of the call that started the child, from the parent's journal.
async fn outcome_of(harness: &EngineHarness, parent: TaskId, child: TaskId) -> Outcome {
    let call = harness.row(child).await.parent.unwrap().1;
    let items = harness.journal(parent).await.items;
    let result = tool_results(&items).find(|result| result.tool_call_id == call);
    result.unwrap().outcome
}

const DOUBT: &str = "update database_identity set doubted_at = (select max(updated_at) from agent_task) returning doubted_at";

#[apply(both)]
async fn child_canceled_alone_ends_and_its_parent_is_told(fixture: StoreFixture) {
    let (harness, parts, root) = fork(fixture).await;
    let [first, second] = &harness.asked_exactly(root).await;
    let mid = harness.row(first.task_id).await.parent.unwrap().0;
    let api = EngineHarness::like(&parts, 0);
    api.cancel(&alice(), mid, None).await.unwrap();
    for task in [mid, first.task_id] {
        assert_eq!(ended(&harness, task).await.0, TaskStatus::Canceled);
    }
    assert_eq!(
        closed(&harness.journal(first.task_id).await, first.spec.request_id),
        Some(CloseReason::Canceled)
    );
    let late = alice_is_refused(&api, first.spec.request_id, whole(Action::Approve, None)).await;
    assert_eq!(late, Refusal::Withdrawn(first.spec.request_id));
    assert_eq!(
        harness.asked_by_tree(root).await,
        std::slice::from_ref(second),
        "its sibling waits on"
    );
    harness.finish_tree(&parts, root, People::Approve).await;
    let journals = harness.completed_journals(root).await;
    assert_eq!(
        ended_as(&journals, root),
        [Outcome::Canceled, Outcome::Succeeded]
    );
    assert_eq!(harness.executions(first.task_id, "/refund"), 0);
    assert_eq!(harness.executions(second.task_id, "/refund"), 1);
}

#[apply(both)]
async fn rejection_in_a_child_cancels_that_child_or_with_cancel_root_the_tree(
    fixture: StoreFixture,
) {
    let harness = EngineHarness::of_trees(fixture, FORK, one_large).await;
    for then in [Consequence::Cancel, Consequence::CancelRoot] {
        let parts = harness.parts(0);
        let root = harness.grown(&parts).await;
        let [first, second] = &harness.asked_exactly(root).await;
        EngineHarness::like(&parts, 0)
            .decide(&alice(), first.spec.request_id, rejects(then), None)
            .await
            .unwrap();
        assert_eq!(ended(&harness, first.task_id).await.0, TaskStatus::Canceled);
        harness.finish_tree(&parts, root, People::Approve).await;
        let journals = harness.checked_journals(root).await;
        assert_eq!(ended_as(&journals, first.task_id), [Outcome::Rejected]);
        let (ends, mine, other) = match then {
            Consequence::CancelRoot => (TaskStatus::Canceled, Outcome::Canceled, Outcome::Canceled),
            Consequence::Continue | Consequence::Cancel => {
                (TaskStatus::Completed, Outcome::Canceled, Outcome::Succeeded)
            }
        };
        assert_eq!(
            journals[&root].row.status,
            ends,
            "{}",
            harness.description(root).await
        );
        assert_eq!(
            handed_back(&journals, first.task_id).unwrap().outcome,
            mine,
            "{}",
            harness.description(root).await
        );
        assert_eq!(ended_as(&journals, second.task_id), [other]);
    }
}

#[apply(both)]
async fn next_message_cancels_the_working_children_and_the_tree_goes_on(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, FORK, one_large).await;
    let parts = harness.parts(0);
    // After the second message, the boss starts new children in place of the canceled children.
    harness.script_by_name(|name, prompt| {
        let mut prompt = prompt.clone();
        if name == "boss" && said(&prompt) != "go" {
            prompt.turn -= 1;
        }
        Ok(FORK.answer(one_large, name, &prompt))
    });
    let root = harness.grown(&parts).await;
    let asked = harness.asked_by_tree(root).await;
    let api = EngineHarness::like(&parts, 0);
    let refused = api
        .message(&alice(), asked[0].task_id, superseding("no"), None)
        .await;
    assert_eq!(
        refused.err(),
        Some(Refusal::NotARoot {
            root,
            status: TaskStatus::Paused
        })
    );
    alice_writes(&api, root, superseding("other.7")).await;
    for row in harness
        .tree(root)
        .await
        .into_iter()
        .filter(|row| row.task_id != root)
    {
        assert_eq!(ended(&harness, row.task_id).await.0, TaskStatus::Canceled);
    }
    for request in &asked {
        let row = harness.fixture.request(request.spec.request_id).await;
        assert_eq!(row.status, RequestStatus::Withdrawn);
    }
    assert_eq!(
        ended_as(&[(root, harness.journal(root).await)].into(), root),
        [Outcome::Canceled; 2]
    );
    harness.finish_tree(&parts, root, People::Approve).await;
    let journals = harness.checked_journals(root).await;
    assert_eq!(
        (journals.len(), journals[&root].row.status),
        (9, TaskStatus::Completed),
        "{}",
        harness.description(root).await
    );
    let paid: usize = journals
        .keys()
        .map(|task| harness.executions(*task, "/refund"))
        .sum();
    assert_eq!(paid, 2, "only those of the second message");
}

#[apply(both)]
async fn unreadable_child_fails_and_its_parent_goes_on(fixture: StoreFixture) {
    for how in DAMAGES {
        let (harness, parts, root) = fork(StoreFixture::like(&fixture).await).await;
        let [first, second] = &harness.asked_exactly(root).await;
        let mid = harness.row(first.task_id).await.parent.unwrap().0;
        let api = EngineHarness::like(&parts, 0);
        harness.answer_one(&api, first, People::Approve).await;
        damage(&harness.fixture, first.task_id, how.0, how.1).await;
        looked_after(&harness, &parts, root).await;
        assert_eq!(ended(&harness, first.task_id).await, INTEGRITY, "{how:?}");
        assert_eq!(harness.executions(first.task_id, "/refund"), 0);
        assert_eq!(
            outcome_of(&harness, mid, first.task_id).await,
            Outcome::Failed,
            "{how:?}"
        );
        assert_eq!(
            harness.row(mid).await.status,
            TaskStatus::Completed,
            "{how:?}"
        );
        let row = harness.row(root).await;
        assert_eq!(
            (row.status, row.busy, row.open_requests),
            (TaskStatus::Paused, 0, 1),
            "{how:?}: its sibling waits on"
        );
        harness.answer_one(&api, second, People::Approve).await;
        looked_after(&harness, &parts, root).await;
        assert_eq!(
            ended(&harness, root).await.0,
            TaskStatus::Completed,
            "{how:?}"
        );
        assert_eq!(harness.executions(second.task_id, "/refund"), 1);
    }
}

#[apply(both)]
async fn unreadable_parent_fails_and_its_children_are_canceled(fixture: StoreFixture) {
    for how in DAMAGES {
        let (harness, parts, root) = fork(StoreFixture::like(&fixture).await).await;
        let [first, second] = &harness.asked_exactly(root).await;
        let mid = harness.row(first.task_id).await.parent.unwrap().0;
        damage(&harness.fixture, mid, how.0, how.1).await;
        // The damage `seq > 0` leaves no items, so a read finds no journal. Every other damage
        // makes the read fail.
        assert!(harness.fixture.store.journal(mid).await.is_err() || how.1 == "seq > 0");
        harness.fixture.store.report_unreadable(mid);
        looked_after(&harness, &parts, root).await;
        assert_eq!(ended(&harness, mid).await, INTEGRITY, "{how:?}");
        assert_eq!(
            ended(&harness, first.task_id).await.0,
            TaskStatus::Canceled,
            "{how:?}"
        );
        assert_eq!(
            outcome_of(&harness, root, mid).await,
            Outcome::Failed,
            "{how:?}"
        );
        let api = EngineHarness::like(&parts, 0);
        let late =
            alice_is_refused(&api, first.spec.request_id, whole(Action::Approve, None)).await;
        assert_eq!(late, Refusal::Withdrawn(first.spec.request_id));
        harness.answer_one(&api, second, People::Approve).await;
        looked_after(&harness, &parts, root).await;
        assert_eq!(
            ended(&harness, root).await.0,
            TaskStatus::Completed,
            "{how:?}"
        );
        assert_eq!(harness.executions(first.task_id, "/refund"), 0);
        assert_eq!(harness.executions(second.task_id, "/refund"), 1);
    }
}

#[apply(both)]
async fn unreadable_root_ends_its_whole_tree(fixture: StoreFixture) {
    for how in DAMAGES {
        let (harness, parts, root) = fork(StoreFixture::like(&fixture).await).await;
        let asked = harness.asked_by_tree(root).await;
        let others: Vec<_> = harness
            .tree(root)
            .await
            .into_iter()
            .map(|row| row.task_id)
            .filter(|task| *task != root)
            .collect();
        damage(&harness.fixture, root, how.0, how.1).await;
        // The decision lets a call of a sub-agent run, so a driver loads the sub-agent. It loads
        // the root, too, and so finds the damage.
        let api = EngineHarness::like(&parts, 0);
        let _ = api
            .decide(
                &alice(),
                asked[0].spec.request_id,
                whole(Action::Approve, None),
                None,
            )
            .await;
        looked_after(&harness, &parts, root).await;
        assert_eq!(ended(&harness, root).await, INTEGRITY, "{how:?}");
        for task in others {
            assert!(
                ended(&harness, task).await.0.is_terminal(),
                "{how:?}: {:?}",
                harness.row(task).await
            );
        }
        let left = harness.fixture.store.pending(root, root).await.unwrap();
        assert!(left.is_empty(), "{how:?}: {left:?}");
        assert!(harness.executions(asked[0].task_id, "/refund") <= 1);
        assert_eq!(harness.executions(asked[1].task_id, "/refund"), 0);
    }
}

#[apply(both)]
async fn approved_but_unstarted_call_of_a_child_is_asked_about_after_a_restore(
    fixture: StoreFixture,
) {
    let (harness, parts, root) = fork(fixture).await;
    let [first, second] = &harness.asked_exactly(root).await;
    harness
        .answer_one(&EngineHarness::like(&parts, 0), first, People::Approve)
        .await;
    assert_eq!(harness.fixture.numbers(DOUBT).await.unwrap().len(), 1);
    harness.drive_tree(&parts, root).await;
    assert!(
        harness.tool.ledger().is_empty(),
        "the call may have run already"
    );
    let asked = harness.asked_by_tree(root).await;
    let kinds: Vec<_> = asked
        .iter()
        .map(|request| (request.task_id, request.spec.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            (second.task_id, RequestKind::Approval),
            (first.task_id, RequestKind::Reconcile)
        ]
    );
    assert!(asked[0].history_uncertain && !asked[1].history_uncertain);
    harness.finish_tree(&parts, root, People::Approve).await;
    harness.completed_journals(root).await;
    assert_eq!(harness.executions(first.task_id, "/refund"), 1);
    assert_eq!(harness.executions(second.task_id, "/refund"), 1);
}

#[apply(both)]
async fn payment_of_a_sub_agent_lost_in_a_restore_is_not_repeated_by_a_rule(fixture: StoreFixture) {
    let harness = EngineHarness::of_trees(fixture, FORK, one_small).await;
    let parts = harness.parts(0);
    let driver = TreeDriver::start(&harness, &parts).await;
    let root = driver.root;
    drop(driver);
    // No driver has run, so the journal has only the user's message. A restore that loses all later
    // work of the sub-agents leaves the same journal.
    assert_eq!(harness.fixture.numbers(DOUBT).await.unwrap().len(), 1);
    harness.drive_tree(&parts, root).await;
    assert!(
        harness.tool.ledger().is_empty(),
        "no rule allows the call: {}",
        harness.description(root).await
    );
    assert_eq!(
        harness.row(root).await.status,
        TaskStatus::Paused,
        "{}",
        harness.description(root).await
    );
    harness.finish_tree(&parts, root, People::Approve).await;
    let journals = harness.completed_journals(root).await;
    let paid: Vec<_> = harness
        .of_agent(root, LEAF)
        .await
        .iter()
        .map(|leaf| harness.executions(*leaf, "/refund"))
        .collect();
    assert_eq!(paid, [1, 1], "when a human has said so");
    for leaf in harness.of_agent(root, LEAF).await {
        let asked = place(&journals[&leaf], |fact| {
            matches!(fact, Fact::InterventionRequested(_))
        });
        assert!(
            asked.is_some(),
            "of the payment itself: {}",
            harness.description(root).await
        );
    }
}

/// A replica of an older version takes the user's message while the lowest sub-agent waits for a
/// person. The newer replica then drives the sub-agents in one order, and in the other.
#[apply(both)]
async fn task_only_a_newer_replica_can_read_does_not_go_on_after_a_superseding_message(
    fixture: StoreFixture,
) {
    for (depth, is_reversed) in [(1, false), (2, false), (2, true)] {
        let shape = Shape::branched(depth, 1);
        let fixture = StoreFixture::like(&fixture).await;
        let harness = EngineHarness::of_trees(fixture, shape, one_large).await;
        let parts = harness.parts(0);
        // After the second message, the boss starts a new sub-agent.
        harness.script_by_name(move |name, prompt| {
            let mut prompt = prompt.clone();
            if name == "boss" && said(&prompt) != "go" {
                prompt.turn -= 1;
            }
            Ok(shape.answer(one_large, name, &prompt))
        });
        let root = harness.grown(&parts).await;
        let [before] = harness.asked_exactly(root).await;
        let leaf = before.task_id;
        let tree = harness.tree(root).await;
        let unread = &tree[1..];
        let [message, newer] = ["user_message", "newer_message"];
        for row in unread {
            harness.rename_type(row.task_id, message, newer).await;
        }
        let api = EngineHarness::like(&parts, 0);
        alice_writes(&api, root, superseding("other.7")).await;
        for row in unread {
            harness.rename_type(row.task_id, newer, message).await;
        }
        harness.answer_one(&api, &before, People::Approve).await;
        let mut drivers = EngineHarness::like(&parts, ROOM).claim().await.unwrap();
        if is_reversed {
            drivers.reverse();
        }
        for driver in drivers {
            driver.await;
        }
        harness.finish_tree(&parts, root, People::Approve).await;
        harness.completed_journals(root).await;
        for row in unread {
            assert_eq!(ended(&harness, row.task_id).await.0, TaskStatus::Canceled);
        }
        assert_eq!(harness.executions(leaf, "/refund"), 0);
    }
}

/// The replica that cancels the tree does not know which calls the sub-agent has started. It is
/// asked again after a newer replica has ended the sub-agent.
#[apply(both)]
async fn cancel_waits_until_a_task_that_it_cannot_read_can_send_no_call(fixture: StoreFixture) {
    let mut harness = EngineHarness::of_trees(fixture, Shape::flat(1), one_small).await;
    harness.replace("timeout: 5s", "timeout: 60s");
    let parts = harness.parts(0);
    let engine = EngineHarness::like(&parts, 4);
    let root = harness.queued().await;
    drive(&engine).await;
    let [leaf] = harness.of_agent(root, LEAF).await[..] else {
        panic!("one leaf")
    };
    harness.tool.close();
    let drivers = claimed(&engine).await;
    harness.tool.reached(1).await;
    let clock = Arc::new(Remembering::default());
    let old = Engine::new(EngineParts {
        clock: clock.clone(),
        ..parts.clone()
    });
    let [message, newer] = ["user_message", "newer_message"];
    for time in ["first", "second"] {
        *clock.0.lock().unwrap() = Duration::ZERO;
        harness.rename_type(leaf, message, newer).await;
        old.cancel(&alice(), root, None).await.unwrap();
        harness.rename_type(leaf, newer, message).await;
        let journal = harness.journal(leaf).await;
        let started = place(&journal, |fact| matches!(fact, Fact::ToolStarted { .. })).unwrap();
        let waited = journal.now.since(journal.items[started].at) + *clock.0.lock().unwrap();
        assert!(
            waited >= Duration::from_secs(2),
            "the {time} cancel answered {waited:?} after the start"
        );
        harness.drive_tree(&parts, root).await;
        assert_eq!(ended(&harness, leaf).await.0, TaskStatus::Canceled);
    }
    harness.tool.open();
    join(drivers).await;
    harness.checked_journals(root).await;
}
