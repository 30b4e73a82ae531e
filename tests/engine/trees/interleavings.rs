//! Tests a cancel, or a takeover by another replica, while the drivers of a tree are suspended at
//! an await point. Afterwards the drivers continue with the state that they had loaded before. No
//! result is lost, no `once` call is repeated, and no call or sub-agent starts after a cancel.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an item of a new type says nothing here"
)]

use std::collections::BTreeMap;

use holdpoint::engine::{EngineParts, Refusal};
use holdpoint::task::change::Journal;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::{Fact, Outcome};
use holdpoint::task::status::TaskStatus;
use macro_rules_attribute::apply;

use super::super::engine_harness::{EngineHarness, alice};
use super::super::invariants::{events_have_no_gaps, inbox_has_the_open_requests};
use super::super::two_replicas::place;
use super::harness::{People, Shape, TreeDriver, handed_back, refund};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

/// A tree whose root's agent (`boss`) starts two tasks of the agent `mid`. Each of these starts one
/// leaf.
const FORK: Shape = Shape::branched(2, 2);

/// Scripts two leaves, which both call `lookup` and `refund` in their first turn. Only the refund
/// of the second leaf needs an approval.
fn one_asks(task: &str, turn: u32) -> Vec<(String, String)> {
    let lookup = ("lookup".to_owned(), r#"{"order":1}"#.to_owned());
    match turn {
        1 if task.starts_with("go.1") => vec![refund(task, 5), lookup],
        1 => vec![lookup, refund(task, 120)],
        _ => Vec::new(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    CancelRoot,
    /// The user cancels one branch, if the tree has a branch at that moment.
    CancelBranch,
    /// Another replica takes over and drives the tree as far as it goes.
    Takeover,
}

impl Meanwhile {
    /// Makes the event happen. A cancel uses the engine of `driver`; a takeover uses a new engine.
    /// Returns the canceled task, if any.
    async fn happens(
        self,
        driver: &TreeDriver<'_>,
        harness: &EngineHarness,
        parts: &EngineParts,
    ) -> Option<TaskId> {
        let root = driver.root;
        if self == Self::Takeover {
            harness.later();
            harness.drive_tree(parts, root).await;
            return None;
        }
        let branch = harness.of_agent(root, "mid").await.first().copied();
        let task = if self == Self::CancelRoot {
            Some(root)
        } else {
            branch
        }?;
        match driver.engine.cancel(&alice(), task, None).await {
            Ok(_) => {
                assert_eq!(harness.row(task).await.status, TaskStatus::Canceled);
                for row in harness.tree(root).await {
                    let below = self == Self::CancelRoot
                        || row.parent.is_some_and(|(parent, _)| parent == task);
                    let counted = (row.status.is_terminal(), row.busy, row.open_requests);
                    assert!(
                        !below || counted == (true, 0, 0),
                        "{}",
                        harness.description(root).await
                    );
                }
                Some(task)
            }
            Err(Refusal::Conflict { status, .. }) => {
                assert_eq!(status, TaskStatus::Completed);
                None
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }
}

/// Suspends the drivers of a new tree after `polls` polls, lets `meanwhile` happen, and resumes the
/// drivers. Returns the root, the canceled task, and whether the tree ended before `meanwhile`.
async fn drive_and_suspend(
    harness: &EngineHarness,
    parts: &EngineParts,
    meanwhile: Meanwhile,
    polls: usize,
) -> (TaskId, Option<TaskId>, bool) {
    let mut driver = TreeDriver::start(harness, parts).await;
    let root = driver.root;
    let api = EngineHarness::like(parts, 0);
    while driver.drive_while(|driver| driver.polls < polls).await {
        if harness.row(root).await.status.is_terminal() {
            return (root, None, true);
        }
        harness.answer_tree(&api, root, People::Approve).await;
    }
    let canceled = meanwhile.happens(&driver, harness, parts).await;
    // The suspended drivers resume, and further tasks are claimed and driven.
    driver.drive(usize::MAX).await;
    drop(driver);
    if canceled == Some(root) {
        harness.later();
        assert!(
            harness.claims_nothing(4).await,
            "after {polls} polls: {}",
            harness.description(root).await
        );
    } else {
        harness.finish_tree(parts, root, People::Approve).await;
    }
    (root, canceled, false)
}

/// Returns two event numbers: of the last start of a call or sub-agent in the subtree of the task
/// `top`, and of the cancellation of `top`.
async fn started_and_ended(harness: &EngineHarness, root: TaskId, top: TaskId) -> (i64, i64) {
    let (mut started, mut ended) = (0, 0);
    for row in harness.tree(root).await {
        let below = top == root
            || row.task_id == top
            || row.parent.is_some_and(|(parent, _)| parent == top);
        for (item, event) in harness
            .fixture
            .store
            .items(row.task_id, 0, 1000)
            .await
            .unwrap()
        {
            match item.fact {
                Fact::ToolStarted { .. } | Fact::SubAgentStarted { .. } if below => {
                    started = started.max(event);
                }
                Fact::TaskStatus {
                    status: TaskStatus::Canceled,
                    ..
                } if row.task_id == top => ended = event,
                _ => {}
            }
        }
    }
    (started, ended)
}

/// Asserts that the journal agrees with the tool's ledger. Each execution in the ledger has a
/// committed start in the journal. The journal has the result of a successful refund exactly if the
/// tool has paid it.
fn agrees_with_the_ledger(
    harness: &EngineHarness,
    task: TaskId,
    journal: &Journal,
    said: &dyn Fn() -> String,
) {
    let (paid, read) = (
        harness.executions(task, "/refund"),
        harness.executions(task, "/lookup"),
    );
    let starts = |name: &str| {
        let of =
            |fact: &Fact| matches!(fact, Fact::ToolStarted { name: known, .. } if known == name);
        journal.items.iter().filter(|item| of(&item.fact)).count()
    };
    assert!(
        paid <= 1 && paid <= starts("refund") && read <= 3 && read <= starts("lookup"),
        "{}",
        said()
    );
    let known = place(journal, |fact| {
        let good = |outcome| matches!(outcome, Outcome::Succeeded | Outcome::Responded);
        matches!(fact, Fact::ToolResult(result) | Fact::LateResult(result) if result.name == "refund" && good(result.outcome))
    });
    assert_eq!(
        known.is_some(),
        paid == 1,
        "the result is stored, in time or late: {}",
        said()
    );
}

async fn interrupted_everywhere(fixture: StoreFixture, meanwhile: Meanwhile) {
    let harness = EngineHarness::of_trees(fixture, FORK, one_asks).await;
    let parts = harness.parts(0);
    // A long run suspends the drivers at every poll. A normal run suspends them at every eighth
    // poll, and begins at a different poll for each event and each database. The drivers behave
    // alike on both databases, so together the two runs of an event cover every fourth poll. Each
    // wake-up polls all drivers of the tree, so a driver stays at an await point for several polls.
    let step = repetitions(8, 1);
    let first = (meanwhile as usize + usize::from(harness.fixture.is_postgres()) * 4) % step;
    let (mut polls, mut times) = (first, 0);
    loop {
        let (root, canceled, over) = drive_and_suspend(&harness, &parts, meanwhile, polls).await;
        let journals: BTreeMap<TaskId, Journal> = harness.checked_journals(root).await;
        let items = || {
            journals
                .values()
                .map(|journal| &journal.items)
                .collect::<Vec<_>>()
        };
        let said = || format!("{meanwhile:?} after {polls} polls: {:#?}", items());
        for (task, journal) in &journals {
            agrees_with_the_ledger(&harness, *task, journal, &said);
            let statuses = [TaskStatus::Completed, TaskStatus::Canceled];
            assert!(statuses.contains(&journal.row.status), "{}", said());
        }
        if let Some(canceled) = canceled {
            times += 1;
            let (started, ended) = started_and_ended(&harness, root, canceled).await;
            assert!(
                started < ended,
                "something started after the cancel: {}",
                said()
            );
            if canceled != root {
                assert_eq!(
                    handed_back(&journals, canceled).unwrap().outcome,
                    Outcome::Canceled,
                    "{}",
                    said()
                );
            }
        }
        let ends = if canceled == Some(root) {
            TaskStatus::Canceled
        } else {
            TaskStatus::Completed
        };
        assert_eq!(journals[&root].row.status, ends, "{}", said());
        if canceled.is_none() {
            assert_eq!(journals.len(), FORK.tasks(), "{}", said());
            times += usize::from(meanwhile == Meanwhile::Takeover);
        }
        polls += step;
        if over {
            break;
        }
    }
    assert!(times * step > 20, "only {times} places");
    events_have_no_gaps(&harness.fixture).await;
    inbox_has_the_open_requests(&harness.fixture).await;
}

#[apply(both)]
async fn cancel_of_the_root_between_any_two_lines_ends_the_whole_tree(fixture: StoreFixture) {
    interrupted_everywhere(fixture, Meanwhile::CancelRoot).await;
}

#[apply(both)]
async fn cancel_of_one_branch_between_any_two_lines_is_told_to_its_parent_once(
    fixture: StoreFixture,
) {
    interrupted_everywhere(fixture, Meanwhile::CancelBranch).await;
}

#[apply(both)]
async fn takeover_between_any_two_lines_of_a_tree_starts_nothing_twice(fixture: StoreFixture) {
    interrupted_everywhere(fixture, Meanwhile::Takeover).await;
}
