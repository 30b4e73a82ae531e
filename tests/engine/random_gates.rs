//! Checks random sequences of events ("runs") at two gates against the invariants of gate calls, on
//! real databases. Askers come, leave, and come back with equal arguments or with the key of their
//! call. People decide, deadlines pass, runners report, rules change, definitions of tools change
//! at their server and in the configuration, processes crash, and replicas take over. Each replica
//! has a runtime of its own, so that a crash drops all work of the replica at once. The same seed
//! always produces the same sequence of events.

mod invariants;
mod steps;
mod tool_server;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use holdpoint::engine::gate::{AskProgress, GateAnswer, GateRefusal};
use holdpoint::engine::{Engine, EngineParts};
use holdpoint::store::TaskFilter;
use holdpoint::task::change::TaskRow;
use holdpoint::task::id::TaskId;
use holdpoint::task::status::TaskStatus;
use holdpoint::task::time::Time;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use self::tool_server::ToolServer;
use super::engine_harness::EngineHarness;
use crate::store::store_fixture::StoreFixture;
use crate::support::repetitions;
use crate::support::rng::SeededRng;

const RULES: &str = "Not this one. }
  - { name: files, tools: [Read], decide: allow }
  - { name: quick, tools: [Bash], when: 'args.command == \"ls\"', decide: allow }
  - { name: shell, tools: [Bash], decide: hold, approvers: { owner: true }, expires_in: 3h }
";
const GATE: &str = "
gates:
  coding: { tools: [refund, tag, Bash, Read], use_within: 1h, run_within: 10m, no_lasts: 2m }
  review: { tools: [refund, Bash], use_within: 1h, run_within: 10m, no_lasts: 2m }
";
const TOOLS: &str = "
  Bash: { external: {}, parameters: { type: object, properties: { command: { type: string } } } }
  Read: { effect: read_only, external: {}, parameters: { type: object, properties: { path: { type: string } } } }
agents:";

/// A parameter of `refund` in the configuration, and the same parameter beside a further one. With
/// the further parameter, `refund` has another reviewed definition. The arguments of [`CALLS`] and
/// of the edits fit both.
const AMOUNT: &str = "amount: { type: number, exclusiveMinimum: 0 }";
const AMOUNT_AND_NOTE: &str =
    "amount: { type: number, exclusiveMinimum: 0 }, note: { type: string }";

/// The time for which an asker waits for its call, if it waits. No event of a sequence takes
/// longer.
const WAIT: Duration = Duration::from_mins(5);

/// A call that the sequences propose.
struct ProposedCall {
    gate: &'static str,
    tool: &'static str,
    /// Three spellings of the same arguments.
    spellings: [&'static str; 3],
}

const REFUND: [&str; 3] = [
    r#"{"order":7,"amount":120}"#,
    r#"{ "amount": 120.0, "order": 7 }"#,
    r#"{"amount":1.2e2,"order":7}"#,
];
const MAKE: [&str; 3] = [
    r#"{"command":"make"}"#,
    r#"{ "command" : "make" }"#,
    r#"{"command":"\u006dake"}"#,
];

const CALLS: [ProposedCall; 8] = [
    ProposedCall {
        gate: "coding",
        tool: "refund",
        spellings: REFUND,
    },
    ProposedCall {
        gate: "coding",
        tool: "Bash",
        spellings: MAKE,
    },
    ProposedCall {
        gate: "coding",
        tool: "refund",
        spellings: [
            r#"{"order":8,"amount":5}"#,
            r#"{"amount":5,"order":8}"#,
            r#"{"order":8.0,"amount":5.0}"#,
        ],
    },
    ProposedCall {
        gate: "coding",
        tool: "Bash",
        spellings: [
            r#"{"command":"ls"}"#,
            r#"{"command": "ls"}"#,
            r#"{ "command":"ls" }"#,
        ],
    },
    ProposedCall {
        gate: "coding",
        tool: "Read",
        spellings: [r#"{"path":"a"}"#, r#"{"path": "a"}"#, r#"{ "path":"a" }"#],
    },
    ProposedCall {
        gate: "coding",
        tool: "tag",
        spellings: [r#"{"text":"a"}"#, r#"{"text": "a"}"#, r#"{ "text":"a" }"#],
    },
    // The first two calls, at another gate.
    ProposedCall {
        gate: "review",
        tool: "refund",
        spellings: REFUND,
    },
    ProposedCall {
        gate: "review",
        tool: "Bash",
        spellings: MAKE,
    },
];

/// The calls of the runs that test a tool in doubt. Both are calls of `Bash`. The first call needs
/// an approval, and puts `Bash` in doubt if it may have run. A rule allows the second call.
const IN_DOUBT: [usize; 2] = [1, 3];

/// The calls of the runs that make an equal call at both gates.
const AT_BOTH_GATES: [[usize; 2]; 2] = [[0, 6], [1, 7]];

/// One process: its engine, and the runtime that ends when the process crashes.
pub struct Replica {
    pub engine: Arc<Engine>,
    runtime: Runtime,
}

impl Replica {
    pub fn start(parts: &EngineParts) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let engine = {
            let _inside = runtime.enter();
            Engine::new(parts.clone())
        };
        Self { engine, runtime }
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    pub fn crash(self) {
        tokio::task::block_in_place(|| self.runtime.shutdown_timeout(Duration::from_mins(1)));
    }
}

struct Ask {
    number: u32,
    call: usize,
    /// Whether the ask identifies its call by the tool and the arguments (`Identity::Value`).
    by_bytes: bool,
    runner: Option<&'static str>,
    replica: usize,
    progress: AskProgress,
    handle: JoinHandle<Result<GateAnswer, GateRefusal>>,
}

/// The time in which the asker of one ask may have been present. It begins just before the ask, and
/// ends when the test receives the answer. If no answer comes, it ends when the test next lets time
/// pass (`RunState::later`).
struct Presence {
    ask: u32,
    call: usize,
    from: Time,
    until: Option<Time>,
}

/// A result that was handed to an ask that identifies its call by the arguments (`by_bytes`).
struct HandedResult {
    replica: usize,
    crashes: u32,
    /// The number of the first ask that began after the test had read in the call's row that the
    /// result was delivered; `None` if the test has not read this yet.
    noted_before: Option<u32>,
}

/// Counts events that must occur in the runs (random sequences of events at a gate). The runs
/// prove nothing about an event that never occurred.
#[derive(Debug, Default)]
struct Seen {
    crashes: usize,
    leaves: usize,
    starts: usize,
    held_starts: usize,
    permits: usize,
    delivered: usize,
    lost: usize,
    expired: usize,
    doubtful: usize,
    /// Calls that were held because an earlier call of their tool may have run.
    in_doubt: usize,
    edits: usize,
    /// Changes of the definition of `refund` while a call of `refund` waited.
    changes: usize,
    /// Approved calls about which a person was asked again, because the definition had changed.
    held_anew: usize,
    /// Processes that started with the other reviewed definition of `refund`.
    other_reviews: usize,
    /// Calls about which people were asked under both reviewed definitions.
    asked_under_both: usize,
    /// Runs that stored an equal call at each of the two gates.
    at_both_gates: usize,
}

/// One run: the calls of one session at a gate.
struct RunState<'h> {
    harness: &'h EngineHarness,
    /// The parts from which a process is built: for each set of rules, one value for each reviewed
    /// definition of `refund`.
    rules: &'h [[EngineParts; 2]],
    server: &'h ToolServer,
    replicas: &'h mut Vec<Replica>,
    seed: u64,
    rng: SeededRng,
    /// Chooses the reviewed definitions, so that this choice takes no number of `rng`.
    reviews: SeededRng,
    session: String,
    /// The calls of this random run, as indexes into [`CALLS`].
    calls: Vec<usize>,
    asks: Vec<Ask>,
    last_ask: u32,
    presences: Vec<Presence>,
    /// Decisions, reports and runs of drivers that go on in parallel with the next steps.
    beside: Vec<JoinHandle<()>>,
    handed: BTreeMap<TaskId, Vec<HandedResult>>,
    /// For each permit (a task and an attempt): the runner, if any, and the number of the ask that
    /// got the permit.
    permits: BTreeMap<(TaskId, u32), (Option<&'static str>, u32)>,
    crashes: u32,
    /// Whether a process has crashed since the test last let time pass. The store may then still
    /// show that process's askers as present.
    crashed_lately: bool,
    /// The number of calls that the tool had executed before this random run.
    executions: usize,
    seen: &'h mut Seen,
}

impl RunState<'_> {
    async fn now(&self) -> Time {
        self.harness.fixture.store.now().await.unwrap()
    }

    /// Returns the rows of the run's calls, oldest first.
    async fn rows(&self) -> Vec<TaskRow> {
        let filter = TaskFilter {
            tenant: "acme".to_owned(),
            sessions: vec![self.session.clone()],
            limit: 1_000,
            ..TaskFilter::default()
        };
        let listed = self.harness.fixture.store.tasks(&filter).await;
        let mut rows = listed.unwrap().rows;
        rows.reverse();
        rows
    }

    async fn tasks(&self) -> Vec<TaskId> {
        let rows = self.rows().await.into_iter();
        rows.map(|row| row.task_id).collect()
    }

    /// Returns the calls that have not ended.
    async fn live_tasks(&self) -> Vec<TaskId> {
        let rows = self.rows().await.into_iter();
        rows.filter(|row| !row.status.is_terminal())
            .map(|row| row.task_id)
            .collect()
    }

    async fn run_steps(mut self) {
        let count = 8 + self.rng.below(14);
        self.steps(count).await;
        if self.calls == IN_DOUBT {
            // Every open question expires, also a question about an unknown outcome.
            self.later(Duration::from_hours(25)).await;
            for _ in 0..6 {
                self.asks().await;
                self.answers().await;
            }
            self.steps(4).await;
        }
        // A killed process may have sent the commit of a new call to the database. If the database
        // executes this commit after `ends`, `check` returns false, and the loop runs again.
        loop {
            self.ends().await;
            if self.check().await {
                return;
            }
        }
    }

    async fn steps(&mut self, count: u64) {
        for _ in 0..count {
            self.step().await;
            self.answers().await;
        }
    }

    /// Lets time pass and settles open requests until every call of the run has ended.
    async fn ends(&mut self) {
        for _ in 0..12 {
            self.later(Duration::from_hours(4)).await;
            let mut open = false;
            for task in self.live_tasks().await {
                open = true;
                if self.harness.status(task).await == TaskStatus::Paused {
                    self.settle(task).await;
                }
            }
            if !open {
                return;
            }
        }
        panic!("seed {}: a call does not end", self.seed);
    }
}

/// Checks `count` runs. The seed of the first run is `first`, or the value of
/// `HOLDPOINT_TEST_SEED`.
async fn check_runs(fixture: StoreFixture, first: usize, count: usize) {
    // On Postgres, several processes may drive the tasks of one database.
    let replicas = if fixture.is_postgres() { 2 } else { 1 };
    let mut harness = EngineHarness::new(fixture, &[]).await;
    harness.configure(|yaml| {
        let yaml = yaml.replacen("\nagents:", TOOLS, 1);
        yaml.replacen("Not this one. }\n", RULES, 1) + GATE
    });
    let (usual, server) = (harness.yaml(), ToolServer::start());
    let mut rules = Vec::new();
    for (from, to) in [
        ("", ""),
        (
            "tools: [refund], decide: hold",
            "tools: [refund], decide: deny",
        ),
        (
            "decide: allow }\n  - { name: shell",
            "decide: hold, approvers: { owner: true } }\n  - { name: shell",
        ),
    ] {
        let yaml = usual.replacen(from, to, 1);
        rules.push([AMOUNT, AMOUNT_AND_NOTE].map(|parameters| {
            harness.configure(|_| yaml.replacen(AMOUNT, parameters, 1));
            server.behind(harness.parts(8))
        }));
    }
    let first_parts = &rules[0][0];
    let mut running: Vec<_> = (0..replicas).map(|_| Replica::start(first_parts)).collect();
    let mut seen = Seen::default();
    let first = std::env::var_os("HOLDPOINT_TEST_SEED")
        .map_or(first, |seed| seed.into_string().unwrap().parse().unwrap());
    for seed in first as u64..(first + count) as u64 {
        let mut rng = SeededRng(seed);
        let likely = [0, 0, 0, 1, 1, 1, 2, 3, 4, 5];
        let calls = match rng.below(8) {
            0..=1 => IN_DOUBT.to_vec(),
            2 => rng.pick(&AT_BOTH_GATES).to_vec(),
            _ => vec![rng.pick(&likely), rng.pick(&likely)],
        };
        server.restore();
        let run = RunState {
            executions: harness.tool.count(),
            harness: &harness,
            rules: &rules,
            server: &server,
            replicas: &mut running,
            seed,
            rng,
            reviews: SeededRng(!seed),
            session: format!("run {seed}"),
            calls,
            asks: Vec::new(),
            last_ask: 0,
            presences: Vec::new(),
            beside: Vec::new(),
            handed: BTreeMap::new(),
            permits: BTreeMap::new(),
            crashes: 0,
            crashed_lately: false,
            seen: &mut seen,
        };
        run.run_steps().await;
    }
    running.into_iter().for_each(Replica::crash);
    let wanted = [
        (seen.crashes, 2),
        (seen.leaves, 10),
        (seen.starts, 2),
        (seen.held_starts, 15),
        (seen.permits, 8),
        (seen.delivered, 40),
        (seen.lost, 100),
        (seen.expired, 6),
        (seen.doubtful, 10),
        (seen.in_doubt, 30),
        (seen.edits, 60),
        (seen.changes, 12),
        (seen.held_anew, 200),
        (seen.other_reviews, 8),
        (seen.asked_under_both, 200),
        (seen.at_both_gates, 20),
    ];
    let enough = wanted.iter().all(|(seen, runs)| *seen >= count / runs);
    assert!(enough, "the runs prove nothing: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_invariants_hold_over_random_runs_with_crashes_on_sqlite() {
    check_runs(StoreFixture::sqlite().await, 0, repetitions(60, 10_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gate_invariants_hold_over_random_runs_with_crashes_and_takeovers_on_postgres() {
    // The normal runs on the two databases begin at different seeds.
    let (first, count) = (repetitions(45, 0), repetitions(45, 10_000));
    check_runs(StoreFixture::postgres().await, first, count).await;
}
