//! Tests of the sender of messages in a storm of faults. Three replicas are killed at random
//! moments and at the sender's failpoints, or frozen until their leases are lost. Meanwhile
//! receivers refuse messages, hang, cut connections and answer late. Every event arrives at each
//! receiver that asks for it, always under the event's id.

mod checker;
mod evidence;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::Signal;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::checker::{Evidence, Findings, check};
use self::evidence::{ROLES, SenderDatabase};
use super::chaos_run::{configure, say, too_few};
use super::hooks;
use super::process::{Process, Replica, free_port, within};
use super::scripted_model::{Model, seeded_number};
use super::simulated_people::People;
use super::tool_server::ToolServer;
use crate::notify::{NEW, OLD};
use crate::support::fake_mail_server::{FakeMailServer, MailBehaviour};
use crate::support::pause;
use crate::support::postgres::{PrivateCluster, unique};

/// The configuration's entries of the healthy receivers. `every` asks for every event of tasks and
/// requests. `whole` asks for the usual events, with the whole payload.
pub const ENTRIES: [&str; 2] = ["every", "whole"];
/// The configuration's entry of the receiver at whose address nothing listens.
pub const DEAD: &str = "dead";
/// The configuration's entries of mails to the approvers. `by-mail` sends a mail for each question;
/// `gathered` sends several questions in one mail.
pub const MAILS: [&str; 2] = ["by-mail", "gathered"];
/// The people who may decide, with their mail addresses: the owner of the tasks, and a member of
/// finance.
pub const PEOPLE: [(&str, &str); 2] =
    [("alice", "alice@acme.example"), ("bob", "bob@acme.example")];

const NOTIFY: &str = r#"  people:
    - { user: alice, tenant: acme, email: alice@acme.example }
    - { user: bob, tenant: acme, email: bob@acme.example }
notify:
  mail: { url: "smtp://127.0.0.1:{mail}", from: "Holdpoint <holdpoint@acme.example>" }
  to:
    - { name: every, webhook: { url: "{tool_server}/hook/every", secrets: ["{new}"] }, tenants: [acme], events: [task.created, task.paused, task.resumed, task.completed, task.failed, task.canceled, request.created, request.decided, request.expired, request.withdrawn] }
    - { name: whole, webhook: { url: "{tool_server}/hook/whole", secrets: ["{new}", "{old}"], payload: full }, tenants: [acme] }
    - { name: dead, webhook: { url: "http://127.0.0.1:{nowhere}/", secrets: ["{new}"] }, tenants: [acme] }
    - { name: by-mail, mail: { to: approvers }, gather: 0s, tenants: [acme] }
"#;
const GATHERED: &str =
    "    - { name: gathered, mail: { to: approvers }, gather: 1s, tenants: [acme] }\n";

const POINTS: [&str; 7] = [
    "task_status.committed",
    "intervention_requested.committed",
    "decision.committed",
    "spread.committed",
    "deliver.claimed",
    "deliver.sent",
    "deliver.recorded",
];
/// The setting that makes the leases of tasks short, so that tasks of a killed replica go on soon.
const LEASES: &str = "lease=3s";
/// A time that exceeds the lease of a message.
const LEASE: Duration = Duration::from_secs(26);

struct Plan {
    /// The number of tasks that the test carries to their ends. For half of these tasks, the test
    /// also creates a task whose question stays open.
    tasks: u64,
    /// The number of kills of a replica by `kill -9`, about half of them at a failpoint. In one of
    /// eleven cases, the replica is frozen before its kill: `SIGSTOP` freezes the replica right
    /// after the replica has sent a message, and the replica wakes up after its leases are lost.
    kills: u64,
    /// Whether the configuration also has the entry `gathered`. If a replica is killed while it
    /// sends this entry's mail to a person, the next mail to this person waits until the replica's
    /// lease is over.
    gathers: bool,
    /// Whether about half of the frozen processes stay frozen until their leases are over. During
    /// every other freeze, the test ends all leases itself.
    sleeps: bool,
    within: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(not(failpoints), ignore = "needs failpoints")]
async fn killed_sender_of_three_replicas_tells_every_event_under_its_id() {
    storm(&Plan {
        tasks: 17,
        kills: 17,
        gathers: false,
        sleeps: false,
        within: Duration::from_mins(10),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: scripts/chaos sender runs it"]
async fn killed_between_any_two_lines_of_the_sender_every_event_arrives() {
    storm(&Plan {
        tasks: 300,
        kills: 220,
        gathers: true,
        sleeps: true,
        within: Duration::from_hours(1),
    })
    .await;
}

/// The state of a run: the faults that are still to come and the faults that have happened.
struct FaultInjector<'a> {
    plan: &'a Plan,
    seed: u64,
    sender_database: SenderDatabase,
    people: &'a People,
    processes_left: AtomicU64,
    /// The number of killed replicas. `at_points` counts those that were killed at a failpoint.
    kills: AtomicU64,
    at_points: AtomicU64,
    freezes: AtomicU64,
    creations: Semaphore,
    faults_over: AtomicBool,
}

async fn storm(plan: &Plan) {
    let began = Instant::now();
    let seed = u64::from_str_radix(&unique()[24..], 16).unwrap();
    let cluster = PrivateCluster::start();
    let (tool_server, model) = (Arc::new(ToolServer::start().await), Model::start().await);
    let mail = FakeMailServer::start().await;
    let database = cluster.url("postgres");
    let sender_database = SenderDatabase::of(&database);
    sender_database.add_roles().await;
    let folder = tempfile::tempdir().unwrap();
    let notify = notify(plan, &tool_server, mail.port);
    let replicas: Vec<_> = ROLES
        .iter()
        .map(|role| {
            let database = database.replace("postgres@", &format!("{role}@"));
            let folder = folder.path().join(role);
            Replica::new(configured(
                &folder,
                &model,
                &tool_server,
                &notify,
                &database,
            ))
        })
        .collect();
    let urls = replicas.iter().map(Replica::url).collect();
    let people = Arc::new(People::new(
        urls,
        Arc::clone(&tool_server),
        seed,
        began + plan.within,
    ));
    // The first replica migrates the schema before the storm begins.
    replicas[0].serve("", people.http()).await.kill().await;
    sender_database.audit().await;
    let injector = FaultInjector {
        plan,
        seed,
        sender_database,
        people: &people,
        processes_left: AtomicU64::new(plan.kills),
        kills: AtomicU64::new(0),
        at_points: AtomicU64::new(0),
        freezes: AtomicU64::new(0),
        creations: Semaphore::new(6),
        faults_over: AtomicBool::new(false),
    };
    let faults = async {
        join_all(replicas.iter().map(|replica| injector.disturb(replica))).await;
        injector.faults_over.store(true, Ordering::SeqCst);
        hooks::stop_faults(tool_server.folder());
        mail.then(MailBehaviour::Take);
        // A clock that is ahead ends the leases of the killed replicas.
        let ahead = if plan.sleeps { LEASES } else { "clock=60s" };
        let last = replicas
            .iter()
            .map(|replica| replica.serve(ahead, people.http()));
        let last = join_all(last).await;
        injector.creations.add_permits(Semaphore::MAX_PERMITS / 2);
        last
    };
    let (last, (), ()) = tokio::join!(
        faults,
        injector.load(&people),
        injector.disturb_mail_server(&mail)
    );
    let mut left = injector.sender_database.left().await;
    while left.count().await > 0 {
        people.in_time("what is left");
        pause().await;
    }
    for process in last {
        process.kill().await;
    }
    let evidence = Evidence {
        stored: injector.sender_database.stored().await,
        arrivals: hooks::arrivals(tool_server.folder()),
        mails: mail.all(),
        mail_entries: MAILS[..=usize::from(plan.gathers)].to_vec(),
    };
    let mut findings = check(&evidence);
    say(&injector.figures(&findings, began));
    let mut wrong = people.complaints();
    wrong.append(&mut findings.wrong);
    wrong.extend(injector.vacuous(&findings));
    wrong.truncate(20);
    assert!(wrong.is_empty(), "seed {seed:x}\n{}", wrong.join("\n"));
}

fn notify(plan: &Plan, tool_server: &ToolServer, mail: u16) -> String {
    let gathered = if plan.gathers { GATHERED } else { "" };
    format!("{NOTIFY}{gathered}")
        .replace("{tool_server}", &tool_server.url)
        .replace("{mail}", &mail.to_string())
        .replace("{nowhere}", &free_port().to_string())
        .replace("{new}", NEW)
        .replace("{old}", OLD)
}

fn configured(
    folder: &Path,
    model: &Model,
    tool_server: &ToolServer,
    notify: &str,
    database: &str,
) -> PathBuf {
    std::fs::create_dir(folder).unwrap();
    let path = configure(folder, model, tool_server, database, 64);
    let yaml = std::fs::read_to_string(&path).unwrap();
    // All replicas have one public address, as behind a load balancer. So a message has the same
    // text, whichever replica writes it.
    let yaml = yaml
        .replace(
            "server: { ",
            "server: { public_url: \"https://holdpoint.example\", ",
        )
        .replace("{ owner: true }", "{ owner: true, groups: [finance] }")
        .replace("database: {", &format!("{notify}database: {{"));
    std::fs::write(&path, yaml).unwrap();
    path
}

impl FaultInjector<'_> {
    /// Starts and kills the processes of one replica until all faults have happened.
    async fn disturb(&self, replica: &Replica) {
        while let Some(number) = self.next_process() {
            let draw = |what| seeded_number(self.seed.wrapping_add(number), what);
            let freezes = number % 11 == 5;
            let exact = draw(0).is_multiple_of(2);
            let pass = 1 + draw(1) % 3;
            let point = POINTS[usize::try_from(draw(2)).unwrap() % POINTS.len()];
            let armed = if freezes {
                format!("{LEASES};deliver.sent=freeze@{pass}")
            } else if exact {
                format!("{LEASES};{point}=abort@{pass}")
            } else {
                LEASES.to_owned()
            };
            let begins = Instant::now();
            let mut process = replica.start(&armed);
            let alive = process.ready(self.people.http()).await;
            assert!(
                alive || exact,
                "a replica ended: {}",
                replica.last_log_lines()
            );
            let start = begins.elapsed();
            if freezes {
                self.freeze(&mut process, draw(3)).await;
            } else if exact {
                let deadline = Instant::now() + Duration::from_secs(2);
                while process.is_over().is_none() && Instant::now() < deadline {
                    pause().await;
                }
            } else {
                let part = f64::from(u32::try_from(draw(3) % 1000).unwrap()) * 0.003;
                within(start / 10 + start.mul_f64(part)).await;
            }
            let by_itself = process.is_over().is_some();
            assert!(
                !by_itself || exact,
                "it ended: {}",
                replica.last_log_lines()
            );
            self.at_points
                .fetch_add(u64::from(by_itself), Ordering::Relaxed);
            if !by_itself {
                process.kill().await;
            }
            self.kills.fetch_add(1, Ordering::Relaxed);
            let more = self.plan.tasks.div_ceil(self.plan.kills);
            self.creations.add_permits(usize::try_from(more).unwrap());
        }
    }

    fn next_process(&self) -> Option<u64> {
        let next = |left: u64| left.checked_sub(1);
        self.processes_left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
            .ok()
    }

    /// Waits at most four seconds until the process freezes itself at its failpoint. Then freezes
    /// the process if it still runs. Wakes the process after its leases have ended.
    async fn freeze(&self, process: &mut Process, draw: u64) {
        let deadline = Instant::now() + Duration::from_secs(4);
        while !process.frozen() && Instant::now() < deadline {
            pause().await;
        }
        let exact = process.frozen();
        process.signal(Signal::STOP);
        // The wait gives other replicas the time to take over the lost leases. Without the wait,
        // the process wakes up before another replica has looked for lost leases.
        if self.plan.sleeps && draw.is_multiple_of(2) {
            within(LEASE).await;
        } else {
            self.sender_database.end_leases().await;
        }
        process.signal(Signal::CONT);
        self.freezes.fetch_add(u64::from(exact), Ordering::Relaxed);
        within(Duration::from_millis(700)).await;
        // After the first `SIGCONT` the process may have reached its failpoint and stopped itself,
        // so it gets a second signal.
        process.signal(Signal::CONT);
    }

    /// Keeps changing the behavior of the mail server until all faults have happened.
    async fn disturb_mail_server(&self, mail: &FakeMailServer) {
        let behaviors = [
            MailBehaviour::Cut,
            MailBehaviour::Refuse(451),
            MailBehaviour::Take,
            MailBehaviour::Hang,
        ];
        for round in 0.. {
            if self.faults_over.load(Ordering::SeqCst) {
                return;
            }
            // In most rounds the mail server takes mails.
            let draw = usize::try_from(seeded_number(self.seed, 1_000 + round) % 16).unwrap();
            mail.then(behaviors.get(draw).copied().unwrap_or(MailBehaviour::Take));
            within(Duration::from_millis(200)).await;
        }
    }

    /// Creates the tasks of the plan. Carries each task with the input `storm …` to its end. The
    /// question of each task with the input `held …` stays open.
    async fn load(&self, people: &Arc<People>) {
        let mut running = JoinSet::new();
        for number in 0..self.plan.tasks {
            self.creations.acquire().await.unwrap().forget();
            let people = Arc::clone(people);
            running.spawn(async move {
                if number % 2 == 0 {
                    people.create(&format!("held {number}")).await;
                }
                let task = people.create(&format!("storm {number}")).await;
                people.complete(&task).await;
            });
        }
        while let Some(done) = running.join_next().await {
            done.unwrap();
        }
    }

    fn figures(&self, found: &Findings, began: Instant) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "sender's storm {:x}: {} kills ({} at failpoints), {} frozen replicas, {} events, {} messages arrived ({} repeated, {} not \
             answered with 200), {} mails ({} repeated), {} told by mail, {} closed before, {} leases taken over, {} POSTs \
             repeated, {} s",
            self.seed,
            count(&self.kills),
            count(&self.at_points),
            count(&self.freezes),
            found.events,
            found.arrived,
            found.repeated,
            found.refused,
            found.mails,
            found.repeated_mails,
            found.told,
            found.dropped,
            found.taken_over,
            count(&self.people.counts.repeated),
            began.elapsed().as_secs()
        )
    }

    /// Returns a message for each kind of event that was too rare for the run to prove anything.
    fn vacuous(&self, findings: &Findings) -> Vec<String> {
        let plan = self.plan;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let found = |number: usize| number as u64;
        let (kills, tasks) = (plan.kills, plan.tasks);
        too_few(&[
            ("kills", count(&self.kills), kills),
            ("kills at failpoints", count(&self.at_points), kills / 25),
            ("frozen replicas", count(&self.freezes), kills / 30),
            ("events", found(findings.events), tasks * 4),
            ("repeated messages", found(findings.repeated), kills / 2),
            ("refused messages", found(findings.refused), kills / 2),
            ("told by mail", found(findings.told), tasks / 2),
            ("repeated mails", found(findings.repeated_mails), kills / 25),
            ("leases taken over", found(findings.taken_over), kills / 10),
        ])
    }
}
