//! Tests that kill the real binary at each commit of a gate call, around the call itself, and
//! around the delivery of its answer. A usual run tests each of these moments on SQLite or on
//! Postgres, `scripts/chaos counts` on both. In each run the process is restarted until every agent
//! knows how its call ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use macro_rules_attribute::apply;

use super::failpoints::{Kill, is_tested, statements};
use super::gate_askers::Kind;
use super::scripted_model::Model;
use super::simulated_people::People;
use super::tool_server::ToolServer;
use super::with_failpoints;
use crate::support::test_app::On;

/// The failpoints of a gate call, in the order in which a call reaches them.
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
    "tool_result.committed@2",
    "gate.answering",
    "gate.delivering",
    "gate.delivered",
];

/// The failpoints at two commits of a call that an agent runs itself: the commit of its permit and
/// the commit of its report. In the runs of [`POINTS`], a call that the service runs may reach
/// these failpoints first. So they are tested once more, in runs in which agents run all calls.
const POINTS_ELSEWHERE: [&str; 4] = [
    "tool_started.before",
    "tool_started.committed",
    "tool_result.before",
    "tool_result.committed",
];

/// The failpoints at a commit that stores the presence of an asker and nothing else. For an allowed
/// call, this commit records the delivery of the result, which `gate.delivering` and
/// `gate.delivered` already test. So the runs with these failpoints have only calls that people
/// decide. In these runs, the first such commit ends the presence of an asker whose wait is over.
const POINTS_OF_PRESENCE: [&str; 2] = ["keep.before", "keep.committed"];

const ALL: &[Kind] = &Kind::ALL;
const ELSEWHERE: &[Kind] = &[Kind::HeldTheirs];
const HELD: &[Kind] = &[Kind::HeldOurs, Kind::HeldTheirs];

const AT_ONCE: usize = 5;

async fn killed_at_each(on: On) {
    let (tool_server, model) = (Arc::new(ToolServer::start().await), Model::start().await);
    let elsewhere = POINTS_ELSEWHERE.iter().map(|point| (*point, ELSEWHERE));
    let presence = POINTS_OF_PRESENCE.iter().map(|point| (*point, HELD));
    let points = POINTS.iter().map(|point| (*point, ALL));
    let points = points.chain(elsewhere).chain(presence);
    let points = points.zip(1_u64..);
    let points = points.filter(|(_, number)| is_tested(on, *number));
    let points = points.flat_map(|((point, kinds), number)| {
        let settings = statements(on, number).iter();
        settings.map(move |settings| (point, kinds, number, *settings))
    });
    let runs = points.map(|(point, kinds, number, settings)| {
        let (tool_server, model) = (Arc::clone(&tool_server), model.clone());
        let kill = Kill {
            on,
            point,
            settings,
            number,
            running: 8,
            within: Duration::from_mins(10),
        };
        async move {
            let asks = async |people: &People, deaths: &AtomicU32| {
                asked_until_it_died(people, deaths, kinds).await
            };
            let (wrong, _) = kill.during(tool_server, model, asks).await;
            wrong
                .into_iter()
                .map(move |wrong| format!("{point} of {kinds:?} on {on:?} {settings}: {wrong}"))
        }
    });
    let runs = futures_util::stream::iter(runs).buffer_unordered(AT_ONCE);
    let wrong: Vec<String> = runs.flat_map(futures_util::stream::iter).collect().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lets agents propose calls of these kinds until the service's process has died. Then ends the
/// calls. Returns the tasks of the calls.
async fn asked_until_it_died(people: &People, deaths: &AtomicU32, kinds: &[Kind]) -> Vec<String> {
    // One round may miss the failpoint, because people may reject the calls that would reach it.
    loop {
        join_all(kinds.iter().map(|kind| people.ask_at_gate(*kind))).await;
        if deaths.load(Ordering::Relaxed) > 0 {
            break;
        }
    }
    people.end_gate_calls(1).await
}

#[apply(with_failpoints)]
async fn process_killed_at_any_moment_of_a_gate_call_loses_and_repeats_nothing_on_sqlite() {
    killed_at_each(On::Sqlite).await;
}

#[apply(with_failpoints)]
async fn process_killed_at_any_moment_of_a_gate_call_loses_and_repeats_nothing_on_postgres() {
    killed_at_each(On::Postgres).await;
}
