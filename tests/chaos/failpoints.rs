//! Tests that kill the real binary at failpoints, on SQLite and on Postgres: before and after the
//! commits of the driver's loop and of decisions, after the worker's commits, and around each call.
//! The binary is restarted until every task has ended. If a listed failpoint is never reached, the
//! test fails.

mod scenario;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use macro_rules_attribute::apply;

use self::scenario::{say, scenario};
use super::chaos_run::{configure, journals, statuses};
use super::checker::{Evidence, TaskRecord, check, report};
use super::process::Replica;
use super::scripted_model::Model;
use super::simulated_people::People;
use super::tool_server::ToolServer;
use super::{stored_prompts, with_failpoints};
use crate::support::database::Database;
use crate::support::is_long_run;
use crate::support::test_app::On;

/// The commits that a whole run of [`scenario`] makes several times. Each commit has two
/// failpoints: one with the suffix `.before` and one with the suffix `.committed`.
const OFTEN: &[&str] = &[
    "task_status",
    "user_message",
    "assistant_message",
    "judged",
    "intervention_requested",
    "decision",
    "tool_started",
    "tool_result",
    "sub_agent_started",
    "take",
    "park",
];
/// The commits that a whole run of [`scenario`] makes once. Each commit has two failpoints, as in
/// [`OFTEN`].
const ONCE: &[&str] = &["request_closed", "late_result", "queue", "keep"];

static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const AT_ONCE: usize = 6;

/// The settings of `failpoint.rs` for the two statements that write commits on Postgres.
const STATEMENTS: [&str; 2] = ["", "statement=general"];

/// Returns the failpoints that kill a process when it reaches them for the first time.
fn first() -> Vec<String> {
    let commits = OFTEN
        .iter()
        .chain(ONCE)
        .flat_map(|point| [format!("{point}.before"), format!("{point}.committed")]);
    let others = [
        "submit.committed",
        "claim.committed",
        "renew.committed",
        "call.before",
        "call.answered",
    ];
    commits.chain(others.map(str::to_owned)).collect()
}

/// Returns the failpoints that kill a process when it reaches them for the second time. Each
/// failpoint has the suffix `@2`. A whole run of [`scenario`] reaches these failpoints several
/// times.
fn second() -> Vec<String> {
    let commits = OFTEN.iter().map(|point| format!("{point}.committed"));
    let others = ["submit.committed", "call.before", "call.answered"];
    commits
        .chain(others.map(str::to_owned))
        .map(|point| format!("{point}@2"))
        .collect()
}

#[apply(with_failpoints)]
async fn process_killed_at_any_failpoint_loses_and_repeats_nothing_on_sqlite() {
    killed_at_each(On::Sqlite, first()).await;
}

#[apply(with_failpoints)]
async fn process_killed_at_any_failpoint_loses_and_repeats_nothing_on_postgres() {
    killed_at_each(On::Postgres, first()).await;
}

#[apply(with_failpoints)]
async fn process_killed_at_a_failpoints_second_pass_loses_and_repeats_nothing_on_sqlite() {
    killed_at_each(On::Sqlite, second()).await;
}

#[apply(with_failpoints)]
async fn process_killed_at_a_failpoints_second_pass_loses_and_repeats_nothing_on_postgres() {
    killed_at_each(On::Postgres, second()).await;
}

#[apply(with_failpoints)]
async fn process_killed_at_each_prompt_has_sent_only_what_is_stored_on_sqlite() {
    killed_by_each_prompt(On::Sqlite).await;
}

#[apply(with_failpoints)]
async fn process_killed_at_each_prompt_has_sent_only_what_is_stored_on_postgres() {
    killed_by_each_prompt(On::Postgres).await;
}

/// Runs a task. The model kills the process each time it receives a prompt that it has not received
/// before. A usual run divides the messages of the task between the two databases.
async fn killed_by_each_prompt(on: On) {
    let messages: &[&str] = if is_long_run() {
        &["doubt 1", "long 1", "tree 1"]
    } else {
        match on {
            On::Sqlite => &["tree 1"],
            On::Postgres => &["doubt 1", "long 1", "doubt 2"],
        }
    };
    let database = Database::of(on).await;
    let (tool_server, model) = (Arc::new(ToolServer::start().await), Model::start().await);
    let folder = tempfile::tempdir().unwrap();
    let config = configure(folder.path(), &model, &tool_server, database.url(), 64);
    let replica = Replica::new(config);
    let deadline = Instant::now() + Duration::from_mins(20);
    let people = People::new(vec![replica.url()], tool_server, 1, deadline);
    let deaths = AtomicU32::new(0);
    model.kills();
    let said = tokio::select! {
        said = async {
            let task = people.create("small 1").await;
            for message in messages {
                people.settle(&task).await;
                say(&people, &task, message).await;
            }
            people.settle(&task).await;
            statuses(&people, &[task]).await
        } => said,
        end = restart_after_kills(&replica, "", &model, &deaths, deadline) => panic!("{end}; {}", replica.last_log_lines()),
    };
    let tasks = journals(database.url(), said).await;
    let died = deaths.load(Ordering::Relaxed);
    assert!(died > 10, "only {died} prompts");
    let mut wrong = [people.complaints(), model.complaints()].concat();
    wrong.extend(stored_prompts::missing(
        &model.prompts(),
        &stored_prompts::stored(&tasks),
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[apply(with_failpoints)]
async fn twenty_processes_that_die_right_after_their_claim_fail_no_task_on_sqlite() {
    dies_after_its_claims(On::Sqlite).await;
}

#[apply(with_failpoints)]
async fn twenty_processes_that_die_right_after_their_claim_fail_no_task_on_postgres() {
    dies_after_its_claims(On::Postgres).await;
}

async fn dies_after_its_claims(on: On) {
    let (tool_server, model) = (Arc::new(ToolServer::start().await), Model::start().await);
    let database = Database::of(on).await;
    let folder = tempfile::tempdir().unwrap();
    let config = configure(folder.path(), &model, &tool_server, database.url(), 8);
    let replica = Replica::new(config);
    let people = People::new(
        vec![replica.url()],
        Arc::clone(&tool_server),
        1,
        Instant::now() + Duration::from_mins(20),
    );
    let deaths = async {
        for death in 0..=20 {
            let point = if death == 0 {
                "submit.committed"
            } else {
                "claim.committed"
            };
            let mut process =
                replica.start(&format!("lease=3s;clock={}s;{point}=abort", 120 * death));
            let status = process.ended().await;
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            assert_eq!(
                signal,
                Some(9),
                "death {death}: {}",
                replica.last_log_lines()
            );
        }
        replica.start(&format!("lease=3s;clock={}s", 120 * 21))
    };
    let created = async { people.create("small 1").await };
    let (process, task) = tokio::join!(deaths, created);
    assert_eq!(people.settle(&task).await, "Completed");
    assert_eq!(
        (tool_server.ledger().len(), people.complaints()),
        (1, Vec::new())
    );
    process.kill().await;
}

/// Returns the settings with which the run with this number is made: both of [`STATEMENTS`] in
/// `scripts/chaos counts`, otherwise one of them. `SQLite` has one way to write a commit.
pub fn statements(on: On, number: u64) -> &'static [&'static str] {
    let chosen = usize::from(!(number / 4).is_multiple_of(2));
    match on {
        On::Sqlite => &STATEMENTS[..1],
        On::Postgres if is_long_run() => &STATEMENTS,
        On::Postgres => &STATEMENTS[chosen..=chosen],
    }
}

/// Returns whether the point with this number, counted from 1, is tested on this database. A usual
/// run divides the points between the two databases: for each commit, the point before it is tested
/// on one database and the point after it on the other. `scripts/chaos counts` tests each point on
/// both.
pub fn is_tested(on: On, number: u64) -> bool {
    is_long_run() || (number + (number - 1) / 2) % 2 == on as u64
}

/// Runs [`scenario`] once for each of these points that [`is_tested`] selects, and kills the
/// process at that point. On Postgres, a usual run divides the points also between the two
/// statements that write commits.
async fn killed_at_each(on: On, points: Vec<String>) {
    let (tool_server, model) = (Arc::new(ToolServer::start().await), Model::start().await);
    let (wrong, stored) = (Mutex::new(Vec::new()), Mutex::new(HashSet::new()));
    let only = std::env::var_os("HOLDPOINT_TEST_POINT").map(|point| point.into_string().unwrap());
    let points = points.into_iter().zip(1_u64..);
    let points = points
        .filter(|(_, number)| is_tested(on, *number))
        .filter(|(point, _)| only.as_ref().is_none_or(|only| point == only));
    let with_settings = points.flat_map(|(point, number)| {
        let settings = statements(on, number).iter();
        settings.map(move |settings| (point.clone(), number, *settings))
    });
    let runs = futures_util::stream::iter(with_settings).map(|(point, number, settings)| {
        let (tool_server, model, wrong, stored) =
            (Arc::clone(&tool_server), model.clone(), &wrong, &stored);
        async move {
            let kill = Kill {
                on,
                point: &point,
                settings,
                number,
                // One task runs at a time, so that the second task waits in the queue.
                running: 1,
                within: Duration::from_mins(20),
            };
            let asked = model.clone();
            let scenario = async |people: &People, deaths: &AtomicU32| {
                scenario(people, &asked, number, &point, deaths).await
            };
            let (complaints, tasks) = kill.during(tool_server, model, scenario).await;
            wrong.lock().unwrap().extend(
                complaints
                    .into_iter()
                    .map(|what| format!("{point} on {on:?} {settings}: {what}")),
            );
            stored
                .lock()
                .unwrap()
                .extend(stored_prompts::stored(&tasks));
        }
    });
    runs.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    let mut wrong = wrong.into_inner().unwrap();
    wrong.extend(model.complaints());
    wrong.extend(stored_prompts::missing(
        &model.prompts(),
        &stored.into_inner().unwrap(),
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A plan to kill a process when it first reaches a failpoint. With the suffix `@2`, the process is
/// killed when it reaches the failpoint for the second time.
pub struct Kill<'p> {
    pub on: On,
    pub point: &'p str,
    /// Further settings of `failpoint.rs`, for all processes.
    pub settings: &'static str,
    /// A number that makes the calls' arguments unique.
    pub number: u64,
    pub running: u32,
    pub within: Duration,
}

impl Kill<'_> {
    /// Runs `scenario`, the actions of a test, while the process dies and is restarted. `scenario`
    /// can read how often the process has died, and returns the ids of the tasks that it created.
    /// Returns the failures and the tasks.
    pub async fn during(
        self,
        tool_server: Arc<ToolServer>,
        model: Model,
        scenario: impl AsyncFnOnce(&People, &AtomicU32) -> Vec<String>,
    ) -> (Vec<String>, Vec<TaskRecord>) {
        let database = match self.on {
            On::Sqlite => Database::sqlite().await,
            On::Postgres => {
                // The file lock in `shared_cluster` blocks the thread, so two tasks of this process
                // must not wait for it at once.
                let _alone = ALONE.lock().await;
                Database::postgres().await
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let config = configure(
            folder.path(),
            &model,
            &tool_server,
            database.url(),
            self.running,
        );
        let replica = Replica {
            settings: self.settings,
            ..Replica::new(config)
        };
        let deadline = Instant::now() + self.within;
        let people = People::new(
            vec![replica.url()],
            Arc::clone(&tool_server),
            self.number,
            deadline,
        );
        let deaths = AtomicU32::new(0);
        let armed = if self.point.contains('@') {
            self.point.replace('@', "=abort@")
        } else {
            format!("{}=abort", self.point)
        };
        let said = tokio::select! {
            said = async {
                let tasks = scenario(&people, &deaths).await;
                statuses(&people, &tasks).await
            } => Ok(said),
            // If the scenario ends first, `select!` drops this future. The drop kills the process.
            end = restart_after_kills(&replica, &armed, &model, &deaths, deadline) => Err(end),
        };
        let mut wrong = people.complaints();
        let said = match said {
            Ok(said) => said,
            Err(end) => {
                wrong.push(format!("{end}; {}", replica.last_log_lines()));
                return (wrong, Vec::new());
            }
        };
        if deaths.load(Ordering::Relaxed) == 0 {
            wrong.push("it was never reached".to_owned());
        }
        let tasks = journals(database.url(), said).await;
        let (ledger, history, attempted) =
            (tool_server.ledger(), people.history(), people.attempted());
        let ledger: Vec<_> = ledger
            .into_iter()
            .filter(|line| tasks.iter().any(|told| told.task.to_string() == line.task))
            .collect();
        let evidence = Evidence {
            tasks: &tasks,
            ledger: &ledger,
            history: &history,
            attempted: &attempted,
            one_clock: false,
        };
        let findings = check(&evidence);
        if !findings.wrong.is_empty() {
            wrong.push(report(&findings, &evidence));
        }
        (wrong, tasks)
    }
}

/// Starts the process with the failpoint `armed`. After each kill, restarts the process without the
/// failpoint and with a later clock, so that all leases have run out. Returns when the process ends
/// without a kill, or when the deadline passes. The returned text says which of the two happened.
pub async fn restart_after_kills(
    replica: &Replica,
    armed: &str,
    model: &Model,
    deaths: &AtomicU32,
    deadline: Instant,
) -> String {
    let mut process = replica.start(&format!("lease=3s;{armed}"));
    loop {
        model.is_asked_by(&process);
        let ended = tokio::time::timeout_at(deadline.into(), process.ended()).await;
        let Ok(status) = ended else {
            return "it took too long".to_owned();
        };
        if std::os::unix::process::ExitStatusExt::signal(&status) != Some(9) {
            return format!("it ended by itself: {status}");
        }
        let died = deaths.fetch_add(1, Ordering::Relaxed) + 1;
        process = replica.start(&format!("lease=3s;clock={}s", 120 * died));
    }
}
