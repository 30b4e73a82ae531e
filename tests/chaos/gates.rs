//! Agents at a gate while the real binary is killed at each commit of their calls, around the call
//! itself, and around the delivery of its answer, on SQLite and on Postgres. Each scene restarts
//! the process until every agent knows the end of its call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;

use super::chaos_run::{configure, journals, statuses};
use super::checker::{Evidence, check, report};
use super::failpoints::keeps_alive;
use super::gate_askers::Kind;
use super::process::Place;
use super::scripted_model::Model;
use super::simulated_people::People;
use super::world::World;
use crate::support::database::Database;
use crate::support::test_app::On;

/// The moments of a gate call, in their order.
const POINTS: [&str; 15] = [
    "intervention_requested.before",
    "intervention_requested.committed",
    "decision.before",
    "decision.committed",
    "tool_started.before",
    "tool_started.committed",
    "gate.handed",
    "call.before",
    "call.answered",
    "tool_result.before",
    "tool_result.committed",
    "tool_result.committed=abort@2",
    "gate.answering",
    "gate.delivering",
    "gate.delivered",
];

static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// How many processes run at the same time.
const AT_ONCE: usize = 5;

async fn killed_at_each(on: On) {
    let (world, model) = (Arc::new(World::start().await), Model::start().await);
    let scenes = POINTS.iter().zip(1_u64..).map(|(point, number)| {
        let (world, model) = (Arc::clone(&world), model.clone());
        async move {
            let wrong = killed_at(on, point, number, world, model).await;
            wrong
                .into_iter()
                .map(move |wrong| format!("{point} on {on:?}: {wrong}"))
        }
    });
    let scenes = futures_util::stream::iter(scenes).buffer_unordered(AT_ONCE);
    let wrong: Vec<String> = scenes.flat_map(futures_util::stream::iter).collect().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lets agents ask while the process dies at one failpoint. Returns the failures.
async fn killed_at(
    on: On,
    point: &str,
    number: u64,
    world: Arc<World>,
    model: Model,
) -> Vec<String> {
    let database = match on {
        On::Sqlite => Database::sqlite(),
        On::Postgres => {
            let _alone = ALONE.lock().await;
            Database::postgres().await
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let place = Place::new(configure(
        folder.path(),
        &model.base_url,
        &world.url,
        database.url(),
        8,
    ));
    let deadline = Instant::now() + Duration::from_mins(10);
    let people = People::new(vec![place.url()], Arc::clone(&world), number, deadline);
    let deaths = AtomicU32::new(0);
    let armed = if point.contains('=') {
        point.to_owned()
    } else {
        format!("{point}=abort")
    };
    let said = tokio::select! {
        said = async {
            // People may reject the calls that would reach the failpoint.
            loop {
                join_all(Kind::ALL.map(|kind| people.ask_at_gate(kind))).await;
                if deaths.load(Ordering::Relaxed) > 0 {
                    break;
                }
            }
            let calls = people.end_gate_calls(1).await;
            statuses(&people, &calls).await
        } => said,
        end = keeps_alive(&place, &armed, &model, &deaths, deadline) => {
            return vec![format!("{end}; {}", place.last_words())];
        }
    };
    let mut wrong = people.complaints();
    if deaths.load(Ordering::Relaxed) == 0 {
        wrong.push("it was never reached".to_owned());
    }
    let tasks = journals(database.url(), said).await;
    let (ledger, history, attempted) = (world.ledger(), people.history(), people.attempted());
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
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(
    not(any(debug_assertions, feature = "failpoints")),
    ignore = "needs failpoints"
)]
async fn process_killed_at_any_moment_of_a_gate_call_loses_and_repeats_nothing_on_sqlite() {
    killed_at_each(On::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[cfg_attr(
    not(any(debug_assertions, feature = "failpoints")),
    ignore = "needs failpoints"
)]
async fn process_killed_at_any_moment_of_a_gate_call_loses_and_repeats_nothing_on_postgres() {
    killed_at_each(On::Postgres).await;
}
