//! Tests under load with random `kill -9`, frozen replicas that wake up after a takeover, and
//! crashes of Postgres. The journals are checked against an independent ledger of executions.
//! Nothing is lost, no `once` call runs twice, and every task ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use macro_rules_attribute::apply;
use rustix::process::Signal;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::chaos_run::{configure, journals, say, statuses, too_few};
use super::checker::{self, Evidence, Findings, check, report};
use super::gate_askers::Kind;
use super::inbox_rows::InboxRows;
use super::process::{Process, Replica, within};
use super::scripted_model::{Model, seeded_number};
use super::simulated_people::People;
use super::tool_server::ToolServer;
use super::{stored_prompts, with_failpoints};
use crate::support::pause;
use crate::support::postgres::{PrivateCluster, unique};
use crate::support::repetitions;

struct Plan {
    /// The first word of each task's message, which is the name of a plan of the scripted model.
    says: &'static str,
    tasks: u64,
    /// The number of times that `kill -9` ends a random replica.
    kills: u64,
    /// The number of times that `pg_ctl stop -m immediate` ends Postgres.
    crashes: u64,
    /// The number of times that `SIGSTOP` freezes a replica, each time for two to three times the
    /// length of a lease. Half of the stops come exactly between the commit of a call's start and
    /// the sending of the call.
    freezes: u64,
    replicas: u64,
    /// The length of a lease, in seconds.
    lease: u64,
    within: Duration,
}

impl Plan {
    /// Returns the plan of the present run: a tenth of this plan in a normal test run, the whole
    /// plan in `scripts/chaos counts`.
    fn scaled(self) -> Self {
        let part = |all: u64| all.div_ceil(repetitions(10, 1) as u64);
        Self {
            tasks: part(self.tasks),
            kills: part(self.kills),
            crashes: part(self.crashes),
            freezes: part(self.freezes),
            ..self
        }
    }
}

/// The short storm. A usual run does a tenth of this plan ([`Plan::scaled`]), and
/// `scripts/chaos counts` does all of it.
const SHORT: Plan = Plan {
    says: "storm",
    tasks: 500,
    kills: 100,
    crashes: 5,
    freezes: 10,
    replicas: 2,
    lease: 3,
    within: Duration::from_mins(35),
};

/// A quarter of the storm of `scripts/chaos`, which has 2,000 kills over 10,000 tasks, 200 crashes
/// and 200 frozen replicas.
const QUARTER: Plan = Plan {
    says: "storm",
    tasks: 2_500,
    kills: 500,
    crashes: 50,
    freezes: 50,
    replicas: 3,
    lease: 3,
    within: Duration::from_hours(4),
};

/// A plan with trees of six tasks each, three levels deep. A usual run does a tenth of the plan.
const TREES: Plan = Plan {
    says: "tree",
    tasks: 60,
    kills: 50,
    crashes: 3,
    freezes: 6,
    ..SHORT
};

#[apply(with_failpoints)]
async fn random_kills_lose_nothing_of_a_tree_and_start_no_sub_agent_twice() {
    storm(&TREES.scaled()).await;
}

#[apply(with_failpoints)]
async fn random_kills_lose_nothing_and_repeat_nothing() {
    storm(&SHORT.scaled()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: scripts/chaos five_hundred_kills_of_trees runs it"]
async fn five_hundred_kills_of_trees_lose_nothing_and_repeat_nothing() {
    storm(&Plan {
        tasks: 700,
        kills: 500,
        crashes: 40,
        freezes: 50,
        within: Duration::from_hours(2),
        ..TREES
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half an hour: scripts/chaos runs it"]
async fn two_thousand_kills_lose_nothing_and_repeat_nothing() {
    for _ in 0..4 {
        storm(&QUARTER).await;
    }
}

/// Runs a small part of the short storm, to try out changes to this suite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the short storm contains it"]
async fn ten_kills_lose_nothing_and_repeat_nothing() {
    storm(&Plan {
        tasks: 60,
        kills: 12,
        crashes: 1,
        freezes: 2,
        ..SHORT
    })
    .await;
}

/// The state of a run: the faults that are still to come and the faults that have happened.
struct FaultInjector<'a> {
    plan: &'a Plan,
    seed: u64,
    processes_left: AtomicU64,
    freezes_left: AtomicU64,
    kills: AtomicU64,
    freezes: AtomicU64,
    crashes: AtomicU64,
    inbox: InboxRows,
    /// The number of processes that have ended.
    over: watch::Sender<u64>,
    /// Permits to create tasks. The end of a process adds permits, so that tasks are created until
    /// the last fault.
    creations: Semaphore,
    /// Permits to freeze a replica. There is one permit less than there are replicas, so at least
    /// one replica stays awake.
    awake: Semaphore,
}

async fn storm(plan: &Plan) {
    let began = Instant::now();
    let seed = u64::from_str_radix(&unique()[24..], 16).unwrap();
    let cluster = Arc::new(PrivateCluster::start());
    let (tool_server, model) = (Arc::new(ToolServer::start().await), Model::start().await);
    let folder = tempfile::tempdir().unwrap();
    let database = cluster.url("postgres");
    let config = configure(folder.path(), &model, &tool_server, &database, 64);
    let replicas: Vec<_> = (0..plan.replicas)
        .map(|_| Replica::new(config.clone()))
        .collect();
    let urls = replicas.iter().map(Replica::url).collect();
    let people = Arc::new(People::new(
        urls,
        Arc::clone(&tool_server),
        seed,
        began + plan.within,
    ));
    let replica_count = usize::try_from(plan.replicas).unwrap();
    let injector = FaultInjector {
        plan,
        seed,
        processes_left: AtomicU64::new(plan.kills + plan.freezes),
        freezes_left: AtomicU64::new(plan.freezes),
        kills: AtomicU64::new(0),
        freezes: AtomicU64::new(0),
        crashes: AtomicU64::new(0),
        inbox: InboxRows::of(&database),
        over: watch::Sender::new(0),
        creations: Semaphore::new(20),
        awake: Semaphore::new(replica_count - 1),
    };
    // The first replica migrates the schema before the storm begins.
    replicas[0].serve("", people.http()).await.kill().await;
    let faults = async {
        let last_processes = replicas.iter().map(|it| injector.disturb(it, &people));
        let (last, ()) = tokio::join!(join_all(last_processes), injector.crash(&cluster));
        say(&format!(
            "storm {seed:x}: faults are over after {} s: {} kills, {} Postgres crashes, {} frozen replicas",
            began.elapsed().as_secs(),
            injector.kills.load(Ordering::Relaxed),
            injector.crashes.load(Ordering::Relaxed),
            injector.freezes.load(Ordering::Relaxed)
        ));
        injector
            .creations
            .add_permits(usize::try_from(plan.tasks).unwrap());
        last
    };
    let (last, tasks) = tokio::join!(faults, injector.load(&people));
    let ended = [&tasks[..], &people.end_gate_calls(plan.tasks / 5).await].concat();
    let said = statuses(&people, &ended).await;
    let (listed, open) = (people.listed().await, people.get("/v1/requests").await);
    for process in last {
        process.kill().await;
    }
    let told = journals(&database, said).await;
    let (ledger, history, attempted) = (tool_server.ledger(), people.history(), people.attempted());
    let evidence = Evidence {
        tasks: &told,
        ledger: &ledger,
        history: &history,
        attempted: &attempted,
        one_clock: true,
    };
    let findings = check(&evidence);
    say(&injector.figures(&findings, &people, began));
    let mut wrong = people.complaints();
    wrong.extend(model.complaints());
    injector.inbox.compare().await;
    wrong.extend(injector.inbox.wrong());
    wrong.extend(stored_prompts::missing(
        &model.prompts(),
        &stored_prompts::stored(&told),
    ));
    if listed.len() != tasks.len() {
        wrong.push(format!(
            "{} tasks were created, {} are listed",
            tasks.len(),
            listed.len()
        ));
    }
    if open["requests"]
        .as_array()
        .is_none_or(|open| !open.is_empty())
    {
        wrong.push(format!("questions are left open: {open}"));
    }
    if !findings.wrong.is_empty() {
        wrong.push(report(&findings, &evidence));
    }
    wrong.extend(injector.vacuous(&findings, &people));
    assert!(wrong.is_empty(), "seed {seed:x}\n{}", wrong.join("\n"));
}

impl FaultInjector<'_> {
    /// Starts and kills processes of one replica until all faults have happened.
    /// Then starts one more process, which runs without faults, and returns it.
    async fn disturb(&self, replica: &Replica, people: &People) -> Process {
        let leases = format!("lease={}s", self.plan.lease);
        while let Some(number) = self.next_process() {
            let draw = |what| seeded_number(self.seed.wrapping_add(number), what);
            let freezes = self.claim_freeze(number);
            // Of the processes to be frozen, half stop themselves at the failpoint right before a
            // call is sent. The test stops the other half.
            let exact = draw(1).is_multiple_of(2);
            let point = format!(";call.before=freeze@{}", 1 + draw(2) % 5);
            let mut armed = leases.clone();
            if freezes && exact {
                armed += &point;
            }
            // Half of the processes write every change with the general statement.
            if draw(5).is_multiple_of(2) {
                armed += ";statement=general";
            }
            let begins = Instant::now();
            let mut process = replica.start(&armed);
            let alive = process.ready(people.http()).await;
            assert!(
                alive,
                "a replica ended by itself: {}",
                replica.last_log_lines()
            );
            // The process runs for about 0.1 to 3 times as long as its start took, so the time fits
            // this machine.
            let start = begins.elapsed();
            self.inbox.compare().await;
            within(
                start / 10
                    + start.mul_f64(f64::from(u32::try_from(draw(3) % 1000).unwrap()) * 0.003),
            )
            .await;
            if freezes {
                self.freeze(&process, exact, draw(4)).await;
            }
            // The test alone ends replicas, so a replica that has ended by itself is a failure.
            let by_itself = process.is_over();
            assert!(
                by_itself.is_none(),
                "a replica ended by itself, {by_itself:?}: {}",
                replica.last_log_lines()
            );
            process.kill().await;
            self.kills.fetch_add(1, Ordering::Relaxed);
            self.inbox.compare().await;
            self.is_over();
        }
        replica.serve(&leases, people.http()).await
    }

    fn next_process(&self) -> Option<u64> {
        let taken = self
            .processes_left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        taken.ok()
    }

    fn claim_freeze(&self, number: u64) -> bool {
        let left = self.freezes_left.load(Ordering::SeqCst);
        if left == 0 || seeded_number(self.seed.wrapping_add(number), 0) % (number.max(1)) >= left {
            return false;
        }
        self.freezes_left.fetch_sub(1, Ordering::SeqCst);
        true
    }

    /// Freezes the process for two to three leases, then wakes it. Meanwhile other replicas take
    /// over its tasks and open reconcile requests for its calls. If `exact`, first waits at most 2
    /// s until the process stops itself at its failpoint.
    async fn freeze(&self, process: &Process, exact: bool, draw: u64) {
        let _awake = self.awake.acquire().await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(2);
        while exact && !process.frozen() && Instant::now() < deadline {
            pause().await;
        }
        process.signal(Signal::STOP);
        let lease = Duration::from_secs(self.plan.lease);
        within(lease * 2 + Duration::from_millis(draw % 3_000)).await;
        process.signal(Signal::CONT);
        self.freezes.fetch_add(1, Ordering::Relaxed);
        within(Duration::from_millis(1_500)).await;
        // After the first `SIGCONT` the process may have reached its failpoint and stopped itself,
        // so it gets a second signal.
        process.signal(Signal::CONT);
    }

    fn is_over(&self) {
        let all = self.plan.kills + self.plan.freezes;
        let mut over = 0;
        self.over.send_modify(|count| {
            *count += 1;
            over = *count;
        });
        let more = self.plan.tasks * over / all - self.plan.tasks * (over - 1) / all;
        self.creations.add_permits(usize::try_from(more).unwrap());
    }

    /// Crashes Postgres at even intervals, which are counted in ended processes and not in time.
    async fn crash(&self, cluster: &Arc<PrivateCluster>) {
        let (all, mut over) = (self.plan.kills + self.plan.freezes, self.over.subscribe());
        for crash in 1..=self.plan.crashes {
            let due = all * crash / (self.plan.crashes + 1);
            over.wait_for(|over| *over >= due).await.unwrap();
            let cluster = Arc::clone(cluster);
            let crashed = tokio::task::spawn_blocking(move || {
                cluster.crash();
                cluster.start_again();
            });
            crashed.await.unwrap();
            self.crashes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Creates the tasks and carries each to its end, while agents ask at the gate. Returns the ids
    /// of the tasks.
    async fn load(&self, people: &Arc<People>) -> Vec<String> {
        let (mut running, mut tasks) = (JoinSet::new(), Vec::new());
        let mut agents = JoinSet::new();
        for number in 0..self.plan.tasks {
            self.creations.acquire().await.unwrap().forget();
            if number.is_multiple_of(5) {
                let kind = Kind::ALL[usize::try_from(number / 5 % 3).unwrap()];
                let people = Arc::clone(people);
                agents.spawn(async move { people.ask_at_gate(kind).await });
            }
            let (people, says) = (Arc::clone(people), self.plan.says);
            running.spawn(async move {
                let task = people.create(&format!("{says} {number}")).await;
                people.complete(&task).await;
                task
            });
        }
        while let Some(task) = running.join_next().await {
            tasks.push(task.unwrap());
        }
        while let Some(asked) = agents.join_next().await {
            asked.unwrap();
        }
        tasks
    }

    fn figures(&self, found: &Findings, people: &People, began: Instant) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "storm {:x}: {} tasks ({} of sub-agents), {} calls, {} executions, {} decisions, {} kills, {} Postgres crashes, {} frozen replicas, {} cut off \
             between start and result, {} taken over, {} POSTs repeated ({} decisions), {} conflicts, {} sent to a human, \
             {} duplicates, {} lost, {} s",
            self.seed,
            found.tasks,
            found.children,
            found.calls,
            found.executions,
            found.decisions,
            count(&self.kills),
            count(&self.crashes),
            count(&self.freezes),
            found.cut_off,
            found.takeovers,
            count(&people.counts.repeated),
            count(&people.counts.repeated_decisions),
            count(&people.counts.conflicts),
            found.to_human,
            found.count(checker::Kind::Duplicate),
            found.count(checker::Kind::Lost),
            began.elapsed().as_secs()
        )
    }

    /// Returns a message for each kind of event that was too rare for the run to prove anything.
    fn vacuous(&self, found: &Findings, people: &People) -> Vec<String> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let plan = self.plan;
        // A tenth of the short storm must show at least one of each of these events.
        let part = |all: u64, parts| {
            if plan.says == "tree" {
                all / parts
            } else {
                all.div_ceil(parts)
            }
        };
        let least = [
            ("kills", count(&self.kills), plan.kills),
            ("Postgres crashes", count(&self.crashes), plan.crashes),
            ("frozen replicas", count(&self.freezes), plan.freezes),
            (
                "comparisons of an inbox",
                count(&self.inbox.looks),
                plan.kills / 5,
            ),
            (
                "kills between a start and its result",
                found.cut_off as u64,
                plan.kills / 10,
            ),
            (
                "tasks that went on elsewhere",
                found.takeovers as u64,
                plan.kills / 5,
            ),
            (
                "calls that a human was asked about",
                found.to_human as u64,
                part(plan.kills, 20),
            ),
            (
                "repeated POSTs",
                count(&people.counts.repeated),
                part(plan.kills, 20),
            ),
            (
                "repeated decisions",
                count(&people.counts.repeated_decisions),
                plan.kills / 50,
            ),
            (
                "conflicts",
                count(&people.counts.conflicts),
                part(plan.tasks, 100),
            ),
            ("rejections", found.rejected as u64, part(plan.tasks, 100)),
            ("executions", found.executions as u64, plan.tasks),
            (
                "tasks of sub-agents",
                found.children as u64,
                if plan.says == "tree" {
                    plan.tasks * 4
                } else {
                    0
                },
            ),
        ];
        too_few(&least)
    }
}
