//! Tests of single bits that flip in the database between an approval and the start of the call.
//! Whichever bit flips, only approved bytes run, nothing runs with too few approvals, and nothing
//! runs twice.

mod database;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use holdpoint::engine::{DecisionInput, Engine, Refusal};
use holdpoint::people::Caller;
use holdpoint::task::decision::{Action, Consequence};
use holdpoint::task::failure::FailureCode;
use holdpoint::task::id::{RequestId, TaskId};
use holdpoint::task::status::TaskStatus;

use self::database::{Cell, OtherConnection};
use super::call_decisions::{approve, each, edit, question, reject_then};
use super::engine_harness::{Calls, EngineHarness, alice, decides, go, person, turn, whole};
use super::worker_steps::WorkerSteps as _;
use crate::store::store_fixture::StoreFixture;
use crate::support::repetitions;

const ONE: &[(&str, &str)] = &[("refund", r#"{"order":1,"amount":120}"#)];
const PAIR: &[(&str, &str)] = &[
    ("refund", r#"{"order":1,"amount":120}"#),
    ("refund", r#"{"order":2,"amount":121.50}"#),
];
const HUGE: &[(&str, &str)] = &[("refund", r#"{"order":3,"amount":5000}"#)];
const EDITED: &str = r#"{ "amount": 77.10, "order": 4 }"#;
const WRITTEN: &str = r#"{ "amount": 7000.10, "order": 5 }"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scenario {
    Approved,
    Edited,
    ByTwo,
    /// One of two calls is approved, and the other is rejected.
    Mixed,
    /// One of two required approvals is given. After the flip the same person approves again.
    Half,
    /// One person has edited the arguments, and two others have approved the new arguments.
    WrittenForTwo,
}

const SCENARIOS: [Scenario; 6] = [
    Scenario::Approved,
    Scenario::Edited,
    Scenario::ByTwo,
    Scenario::Mixed,
    Scenario::Half,
    Scenario::WrittenForTwo,
];
/// The number of tasks of each scenario. One bit of each task flips in each round.
const TASKS: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The approved bytes ran once, because the bit changed nothing that matters.
    Harmless,
    /// The task failed with the error code `integrity`.
    Integrity,
    /// The task is paused: its request is still open, or another request was opened.
    Paused,
    Unreadable,
    /// No call ran; the task has ended or is still running.
    NothingRan,
}

impl Scenario {
    fn calls(self) -> Calls {
        match self {
            Self::Approved | Self::Edited => ONE,
            Self::Mixed => PAIR,
            Self::ByTwo | Self::Half | Self::WrittenForTwo => HUGE,
        }
    }

    /// Returns the arguments that may run, byte for byte, or `None` if no call may run.
    fn approved(self) -> Option<&'static str> {
        match self {
            Self::Approved | Self::Mixed => Some(ONE[0].1),
            Self::Edited => Some(EDITED),
            Self::ByTwo => Some(HUGE[0].1),
            Self::Half => None,
            Self::WrittenForTwo => Some(WRITTEN),
        }
    }

    /// Makes this scenario's decisions about a held task. The bit flips after these decisions.
    async fn decided(self, harness: &EngineHarness, api: &Arc<Engine>, task: TaskId) {
        let (request, calls) = question(harness, task).await;
        let decide = async |caller: Caller, request: RequestId, answer: DecisionInput| {
            decides(api, &caller, request, answer).await;
        };
        let yes = || whole(Action::Approve, None);
        match self {
            Self::Approved => decide(alice(), request, yes()).await,
            Self::Edited => decide(alice(), request, each([(calls[0], edit(EDITED))])).await,
            Self::Mixed => {
                let both = each([
                    (calls[0], approve()),
                    (calls[1], reject_then(Consequence::Continue)),
                ]);
                decide(alice(), request, both).await;
            }
            Self::Half => decide(person("bob"), request, yes()).await,
            Self::ByTwo => {
                decide(alice(), request, yes()).await;
                decide(person("bob"), request, yes()).await;
            }
            // Bob has already edited the call. The open request asks about the edited arguments.
            Self::WrittenForTwo => {
                decide(alice(), request, yes()).await;
                decide(person("carol"), request, yes()).await;
            }
        }
    }
}

/// A source of pseudo-random numbers. The numbers are the same in every run.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % u64::try_from(end).unwrap()).unwrap()
    }
}

/// Returns SQL that flips one bit of one cell, and a description of the flip. In four of five cases
/// the cell is the body of an item. A body is chosen with a probability in proportion to its
/// length.
fn flip(rng: &mut Xorshift, cells: &[Cell]) -> (String, String) {
    let bodies: Vec<_> = cells.iter().filter(|cell| cell.column == "body").collect();
    let beside: Vec<_> = cells.iter().filter(|cell| cell.column != "body").collect();
    let (cell, at) = if rng.below(5) < 4 {
        let mut at = rng.below(bodies.iter().map(|cell| cell.bytes.len()).sum());
        let cell = bodies
            .iter()
            .find(|cell| {
                if at < cell.bytes.len() {
                    true
                } else {
                    at -= cell.bytes.len();
                    false
                }
            })
            .unwrap();
        (*cell, at)
    } else {
        let cell = beside[rng.below(beside.len())];
        (cell, rng.below(cell.bytes.len()))
    };
    let bit = rng.below(8);
    let mut bytes = cell.bytes.clone();
    bytes[at] ^= 1 << bit;
    let value = if cell.number {
        let number: i64 = String::from_utf8_lossy(&cell.bytes).parse().unwrap();
        (number ^ (1 << (at * 8 + bit).min(62))).to_string()
    } else {
        let hex = bytes
            .iter()
            .fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        let blob = cell.column.ends_with("_id") && cell.column != "user_id";
        if blob {
            format!("x'{hex}'")
        } else {
            format!("cast(x'{hex}' as text)")
        }
    };
    let from = at.saturating_sub(40);
    let around = String::from_utf8_lossy(&bytes[from..bytes.len().min(at + 40)]).into_owned();
    let what = format!(
        "{}.{} bit {bit} of byte {at}: …{around}…",
        cell.table, cell.column
    );
    (
        format!(
            "update or ignore {} set {} = {value} where rowid = {};",
            cell.table, cell.column, cell.row
        ),
        what,
    )
}

async fn ended(
    harness: &EngineHarness,
    task: TaskId,
    ran: &[String],
    approved: Option<&str>,
) -> End {
    if let [body] = ran {
        assert_eq!(Some(body.as_str()), approved);
        return End::Harmless;
    }
    let Ok(Some(journal)) = harness.fixture.store.journal(task).await else {
        return End::Unreadable;
    };
    match (
        journal.row.status,
        journal.row.error.map(|error| error.code),
    ) {
        (TaskStatus::Failed, Some(FailureCode::Integrity)) => End::Integrity,
        (TaskStatus::Paused, None) => End::Paused,
        (TaskStatus::Running | TaskStatus::Completed | TaskStatus::Canceled, None) => {
            End::NothingRan
        }
        other => panic!("{other:?} is none of the ends"),
    }
}

async fn driven(harness: &EngineHarness) {
    let engine = harness.engine(512);
    loop {
        let drivers = engine.claim().await.unwrap();
        if drivers.is_empty() {
            return;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "drivers of a process that ends with the test"
        )]
        let drivers = drivers.into_iter().map(|driver| tokio::spawn(driver));
        for ended in join_all(drivers.collect::<Vec<_>>()).await {
            ended.unwrap();
        }
    }
}

async fn scenarios() -> (EngineHarness, Vec<(Scenario, TaskId)>) {
    let mut harness = EngineHarness::new(StoreFixture::sqlite().await, &[]).await;
    let huge = "policy:\n  - { name: huge, tools: [refund], when: \"args.amount > 1000.0\", decide: hold, approvers: { owner: true, users: [bob, carol], required: 2 } }\n";
    harness.replace("policy:\n", huge);
    let (mut tasks, api) = (Vec::new(), harness.engine(0));
    for scenario in SCENARIOS {
        harness.script(move |asked| Ok(turn(if asked == 1 { scenario.calls() } else { &[] })));
        for _ in 0..TASKS {
            tasks.push((
                scenario,
                api.create(&alice(), go(), None).await.unwrap().task_id,
            ));
        }
        driven(&harness).await;
    }
    for (_, task) in tasks
        .iter()
        .filter(|(scenario, _)| *scenario == Scenario::WrittenForTwo)
    {
        let (request, calls) = question(&harness, *task).await;
        decides(
            &api,
            &person("bob"),
            request,
            each([(calls[0], edit(WRITTEN))]),
        )
        .await;
    }
    driven(&harness).await;
    join_all(
        tasks
            .iter()
            .map(|(scenario, task)| scenario.decided(&harness, &api, *task)),
    )
    .await;
    harness.script(|_| Ok(turn(&[])));
    (harness, tasks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bit_flip_between_approval_and_start_lets_nothing_else_run() {
    let (harness, tasks) = scenarios().await;
    let beside = OtherConnection::of(&harness);
    beside.keep();
    let cells = beside.cells();
    let mut rng = Xorshift(0x9e37_79b9_7f4a_7c15);
    let (mut seen, mut counted) = (0, BTreeMap::<(Scenario, End), usize>::new());
    let rounds = repetitions(6, 84);
    for _ in 0..rounds {
        let (mut sql, mut flips) = (String::new(), BTreeMap::new());
        for (_, task) in &tasks {
            let (update, what) = flip(&mut rng, &cells[task.0.as_bytes().as_slice()]);
            sql += &update;
            flips.insert(*task, what);
        }
        beside.changes(&sql);
        once_more(&harness, &tasks).await;
        driven(&harness).await;
        let mut ran: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let ledger = harness.tool.ledger();
        for call in &ledger[seen..] {
            ran.entry(call.header("holdpoint-task-id").to_owned())
                .or_default()
                .push(call.body.clone());
        }
        seen = ledger.len();
        let known: BTreeSet<_> = tasks.iter().map(|(_, task)| task.to_string()).collect();
        assert!(ran.keys().all(|task| known.contains(task)));
        for (scenario, task) in &tasks {
            let bodies = ran.remove(&task.to_string()).unwrap_or_default();
            let expected = scenario.approved();
            let sound =
                bodies.len() <= 1 && bodies.iter().all(|body| Some(body.as_str()) == expected);
            assert!(sound, "{scenario:?}: {bodies:?} ran after {}", flips[task]);
            let end = ended(&harness, *task, &bodies, expected).await;
            *counted.entry((*scenario, end)).or_default() += 1;
            if std::env::var_os("HOLDPOINT_TEST_FLIPS").is_some() {
                println!("{scenario:?} {end:?} {}", flips[task]);
            }
        }
        beside.bring_back();
    }
    println!("{counted:#?}");
    assert_eq!(
        counted.values().sum::<usize>(),
        rounds * TASKS * SCENARIOS.len()
    );
    for scenario in SCENARIOS {
        let of = |end| counted.get(&(scenario, end)).copied().unwrap_or_default();
        assert!(
            of(End::Unreadable) > 0 && of(End::Integrity) > 0,
            "{scenario:?} {counted:?}"
        );
        assert_eq!(of(End::Harmless) > 0, scenario != Scenario::Half);
    }
}

/// Approves once more as the same person in every task of a `Half` scenario.
async fn once_more(harness: &EngineHarness, tasks: &[(Scenario, TaskId)]) {
    let api = harness.engine(0);
    let half = tasks
        .iter()
        .filter(|(scenario, _)| *scenario == Scenario::Half);
    join_all(half.map(async |(_, task)| {
        let Ok(Some(journal)) = harness.fixture.store.journal(*task).await else {
            return;
        };
        let progress = holdpoint::task::progress::Progress::from_items(&journal.items);
        for open in progress.open {
            let said = api
                .decide(
                    &person("bob"),
                    open.spec.request_id,
                    whole(Action::Approve, None),
                    None,
                )
                .await;
            assert!(!matches!(said, Err(Refusal::KeyReused)), "{said:?}");
        }
    }))
    .await;
}
