//! Kills a process at many moments, for every shape of tree and every kind of answer. Each
//! permitted call runs exactly once, and a rejected call never runs. Each sub-agent is started
//! once. No task stays busy or keeps an open request.

use holdpoint::engine::EngineParts;
use holdpoint::model::Prompt;
use holdpoint::task::id::TaskId;
use holdpoint::task::item::Outcome;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::transcript::Message;
use macro_rules_attribute::apply;

use super::super::engine_harness::EngineHarness;
use super::super::invariants::{events_have_no_gaps, inbox_has_the_open_requests};
use super::harness::{
    EDITED, LEAF, People, Shape, TreeDriver, ended_as, handed_back, one_large, refund,
};
use crate::store::store_fixture::{StoreFixture, both};
use crate::support::repetitions;

/// Shapes of trees with one, two and three levels of sub-agents. In every second shape, one agent
/// starts three children. All other agents start one child.
const SHAPES: [Shape; 6] = [
    Shape::branched(1, 1),
    Shape::branched(1, 3),
    Shape::branched(2, 1),
    Shape::branched(2, 3),
    Shape::branched(3, 1),
    Shape {
        depth: 3,
        children: 3,
        wide: 1,
    },
];

/// Scripts a leaf that asks for guidance first and then makes a refund that needs no approval.
fn asks_and_pays(task: &str, turn: u32) -> Vec<(String, String)> {
    match turn {
        1 => vec![(
            "request_human_guidance".to_owned(),
            r#"{"question":"how much?"}"#.to_owned(),
        )],
        2 => vec![refund(task, 5)],
        _ => Vec::new(),
    }
}

/// Drives a new tree in a process that dies after `moment` steps, where each commit and each
/// executed call is a step. Then other processes finish the tree. Returns the root, and whether the
/// tree had ended before the death.
pub(super) async fn drive_and_crash(
    harness: &EngineHarness,
    parts: &EngineParts,
    people: People,
    moment: usize,
) -> (TaskId, bool) {
    let mut driver = TreeDriver::start(harness, parts).await;
    let root = driver.root;
    let api = EngineHarness::like(parts, 0);
    while driver.drive(moment).await {
        if harness.row(root).await.status.is_terminal() {
            return (root, true);
        }
        for request in harness.asked_by_tree(root).await {
            if driver.moment() < moment {
                harness.answer_one(&api, &request, people).await;
            }
        }
    }
    drop(driver);
    harness.finish_tree(parts, root, people).await;
    (root, false)
}

/// Checks that all tasks of a tree completed and that each permitted call ran once, whenever the
/// process died.
async fn ends_well(
    harness: &EngineHarness,
    shape: Shape,
    people: People,
    (root, executed): (TaskId, usize),
) {
    let journals = harness.checked_journals(root).await;
    assert_eq!(
        journals.len(),
        shape.tasks(),
        "{}",
        harness.description(root).await
    );
    let ledger = harness.tool.since(executed);
    for (task, journal) in &journals {
        assert_eq!(
            journal.row.status,
            TaskStatus::Completed,
            "{}",
            harness.description(root).await
        );
        if *task != root {
            let result = handed_back(&journals, *task).unwrap();
            assert_eq!(result.outcome, Outcome::Succeeded);
            assert_eq!(Some(&result.content), journal.row.output.as_ref());
        }
        let paid: Vec<_> = ledger
            .iter()
            .filter(|call| call.header("holdpoint-task-id") == task.to_string())
            .collect();
        let wanted = usize::from(journal.row.agent == LEAF && people != People::Reject);
        assert_eq!(
            paid.len(),
            wanted,
            "{:?}: {}",
            journal.row.agent_path,
            harness.description(root).await
        );
        let edited = paid
            .iter()
            .all(|call| call.body.contains(&EDITED.to_string()));
        assert!(
            people != People::Edit || edited,
            "the edited arguments ran: {paid:?}"
        );
        if journal.row.agent == LEAF {
            let ended = ended_as(&journals, *task);
            let last = if people == People::Reject {
                Outcome::Rejected
            } else {
                Outcome::Succeeded
            };
            // If a call's result was lost, a person may have given the result instead.
            assert!(
                ended.last() == Some(&last) || ended.last() == Some(&Outcome::Responded),
                "{ended:?}"
            );
        }
    }
}

/// Asserts that a prompt shows an agent its own messages, its own calls and their results, and
/// nothing else.
fn shown_its_own(shape: Shape, (name, prompt): &(String, Prompt)) {
    let level = (0..=shape.depth)
        .find(|level| shape.name(*level) == name)
        .unwrap();
    assert_eq!(
        prompt
            .system
            .as_ref()
            .map(|text| text.contains(&format!("You are the {name}."))),
        Some(true)
    );
    let users = prompt
        .messages
        .iter()
        .filter(|message| matches!(message, Message::User { .. }))
        .count();
    assert_eq!(users, 1, "{prompt:#?}");
    for message in &prompt.messages {
        match message {
            Message::User { parts, .. } => {
                assert_eq!(parts[0].content.matches('.').count(), level, "{parts:?}");
            }
            Message::Assistant { calls, .. } => {
                let own = |name: &String| level == shape.depth || name == shape.name(level + 1);
                assert!(calls.iter().all(|(_, name, _)| own(name)), "{calls:?}");
            }
            Message::Result { name, content, .. } if level < shape.depth => {
                assert_eq!(name, shape.name(level + 1));
                assert!(
                    content.starts_with(&format!("{name} is done with go.")),
                    "{content}"
                );
            }
            Message::Result { content, .. } => {
                assert!(!content.contains("is done with"), "{content}");
            }
        }
    }
}

/// Drives a new tree to its end in one process. Returns the root, the moment at which the tree
/// first waits for people, and the moment at which it ends.
async fn drive_without_crash(
    harness: &EngineHarness,
    parts: &EngineParts,
    people: People,
) -> (TaskId, usize, usize) {
    let mut driver = TreeDriver::start(harness, parts).await;
    let (root, api) = (driver.root, EngineHarness::like(parts, 0));
    assert!(driver.drive(usize::MAX).await);
    let waits = driver.moment();
    while !harness.row(root).await.status.is_terminal() {
        harness.answer_tree(&api, root, people).await;
        assert!(driver.drive(usize::MAX).await);
    }
    (root, waits, driver.moment())
}

/// Checks a tree that has ended. `asked` and `executed` are the numbers of prompts and of executed
/// calls before the tree began. `whole` tells whether one process drove the whole tree.
async fn check_tree(
    harness: &EngineHarness,
    (shape, people): (Shape, People),
    root: TaskId,
    (asked, executed): (usize, usize),
    whole: bool,
) {
    ends_well(harness, shape, people, (root, executed)).await;
    let prompts = harness.prompts_since(asked);
    for prompt in &prompts {
        shown_its_own(shape, prompt);
    }
    let turns = usize::try_from(harness.row(root).await.model_calls).unwrap();
    // If the process dies before it stores a model's answer, the model is asked again. In a tree
    // without siblings, only one model answers at a time, so at most one answer gets lost. Trees
    // with siblings can lose several answers, so they are not checked.
    let asked_again = prompts.len() - turns;
    assert!(
        shape.children > 1 || asked_again <= usize::from(!whole),
        "{asked_again}: {}",
        harness.description(root).await
    );
}

/// Runs trees whose process dies, each at another moment. Before the first request, all kinds of
/// people behave alike, so only `Approve` tests these moments.
///
/// A normal run of the tests tries only every fourth moment, and begins at a different moment for
/// each kind of answer and each database. Together, these runs cover every moment of the driver's
/// loop. If an agent has three children, each of them passes the same moments, so a normal run tries
/// only every twelfth moment, and each depth begins at a different child.
async fn dies_at_every_moment(fixture: StoreFixture, people: People) {
    let leaf = if people == People::Guide {
        asks_and_pays
    } else {
        one_large
    };
    let mut harness = EngineHarness::new(fixture, &[]).await;
    let without_agents = harness.yaml();
    for shape in SHAPES {
        harness.configure(|_| without_agents.clone());
        harness.use_shape(shape, leaf);
        let parts = harness.parts(0);
        let counts = || (harness.prompt_count(), harness.tool.count());
        let before = counts();
        let (root, waits, end) = drive_without_crash(&harness, &parts, people).await;
        check_tree(&harness, (shape, people), root, before, true).await;
        assert!(end > 4 + 2 * shape.depth, "only {end} moments");
        let first = if people == People::Approve {
            1
        } else {
            waits - 1
        };
        let stride = repetitions(4 * shape.children, 1);
        let kind = people as usize * shape.children + usize::from(harness.fixture.is_postgres());
        let child = if shape.children > 1 { shape.depth } else { 0 };
        for moment in (first + (kind + child) % stride..=end).step_by(stride) {
            let before = counts();
            let (root, whole) = drive_and_crash(&harness, &parts, people, moment).await;
            check_tree(&harness, (shape, people), root, before, whole).await;
        }
    }
    events_have_no_gaps(&harness.fixture).await;
    inbox_has_the_open_requests(&harness.fixture).await;
}

#[apply(both)]
async fn tree_runs_an_approved_call_once_whenever_the_process_dies(fixture: StoreFixture) {
    dies_at_every_moment(fixture, People::Approve).await;
}

#[apply(both)]
async fn tree_never_runs_a_rejected_call_whenever_the_process_dies(fixture: StoreFixture) {
    dies_at_every_moment(fixture, People::Reject).await;
}

#[apply(both)]
async fn tree_runs_an_edited_call_as_written_whenever_the_process_dies(fixture: StoreFixture) {
    dies_at_every_moment(fixture, People::Edit).await;
}

#[apply(both)]
async fn tree_delivers_guidance_to_the_asking_task_whenever_the_process_dies(
    fixture: StoreFixture,
) {
    dies_at_every_moment(fixture, People::Guide).await;
}
