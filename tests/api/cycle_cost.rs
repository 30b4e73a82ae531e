//! Counts the round trips to Postgres of one cycle (task → held → approved → completed), of a
//! repeated POST and of a call at a gate. The count is taken on the wire, so statements, reads and
//! pings all count.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use super::gate;
use crate::notify::{BACKEND, yaml};
use crate::support::database::Database;
use crate::support::fake_chat_completions::says;
use crate::support::fake_receiver::FakeReceiver;
use crate::support::forwarder::Forwarder;
use crate::support::test_app::TestApp;

const CYCLES: usize = 20;
/// The expected round trips of one cycle: five commits, and one read of the request with its task's
/// journal.
const TRIPS: usize = 6;

async fn cycle(app: &TestApp) {
    let held = app.held().await;
    app.model.then(says("done"));
    let path = format!("/resume/{}/approve", held.request);
    let reply = app.owner().post(&path, &json!({})).await;
    assert_eq!(reply.str("/status"), "Completed", "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycle_takes_six_round_trips_to_the_database() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = TestApp::at(line.url()).await;
    assert_round_trips(&app, &line, TRIPS, cycle).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycle_of_which_no_receiver_wants_an_event_takes_no_round_trip_more() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let hook = FakeReceiver::start().await;
    let entry = BACKEND.replace(
        "tenants: [acme]",
        "tenants: [acme], events: [request.expired]",
    );
    let app = TestApp::at_with(line.url(), &yaml(&entry, &hook)).await;
    assert_round_trips(&app, &line, TRIPS, cycle).await;
    app.stop().await;
    let sql = "select cast(n_tup_ins as text) from pg_stat_user_tables where relname in ('notice', 'delivery')";
    assert_eq!(database.texts(sql).await, ["0", "0"]);
}

/// The key's row refuses the insert of a new task. The reads find the key, under every spelling of
/// the user's id, and the task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_post_takes_a_refused_commit_and_two_reads() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = TestApp::at(line.url()).await;
    app.model.then(says("done"));
    let post = async |app: &TestApp| {
        let owner = app.owner().header("idempotency-key", "a");
        let body = json!({"agent": "billing", "input": "Refund order 17."});
        let reply = owner.post("/v1/tasks", &body).await;
        assert_eq!(reply.str("/status"), "Completed", "{}", reply.text);
    };
    assert_round_trips(&app, &line, 3, post).await;
    app.stop().await;
}

/// The read finds the earlier calls that are equal, under every spelling of the user's id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_call_at_a_gate_takes_one_read_and_one_commit() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let yaml = gate::yaml("").replace(r#"args.command == \"ls\""#, r#"args.command != \"\""#);
    let app = TestApp::at_with(line.url(), &yaml).await;
    let number = AtomicUsize::new(0);
    let propose = async |app: &TestApp| {
        let body = gate::bash(&format!("ls {}", number.fetch_add(1, Ordering::Relaxed)));
        let reply = gate::ask(app, &body, 0).await;
        assert_eq!(reply.str("/decision"), "allow", "{}", reply.text);
    };
    assert_round_trips(&app, &line, 2, propose).await;
    app.stop().await;
}

/// Asserts that an `act` takes `expected` round trips: the lower quartile of several acts. The
/// relay and the worker also read from time to time. On a slow machine, an act includes more of
/// their reads. So the test counts up to four times.
async fn assert_round_trips(
    app: &TestApp,
    line: &Forwarder,
    expected: usize,
    act: impl AsyncFn(&TestApp),
) {
    app.store().stop_comparing();
    for _ in 0..3 {
        act(app).await;
    }
    let mut counted = Vec::new();
    for _ in 0..4 {
        let mut trips = Vec::new();
        for _ in 0..CYCLES {
            let before = line.round_trips();
            act(app).await;
            trips.push(line.round_trips() - before);
        }
        trips.sort_unstable();
        if trips[CYCLES / 4] == expected {
            return;
        }
        counted.push(trips);
    }
    panic!("round trips of each act: {counted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_of_a_cycle_touch_no_index_of_agent_task() {
    // An open snapshot of another connection keeps Postgres from pruning full pages, so that
    // updates are not HOT. So the test counts up to three times.
    let mut counted = Vec::new();
    for _ in 0..3 {
        let (all, hot) = updates_of_cycles().await;
        if hot * 100 >= all * 95 {
            return;
        }
        counted.push((all, hot));
    }
    panic!("updates of `agent_task`, and how many are HOT: {counted:?}");
}

/// Returns the number of updates of `agent_task` in [`CYCLES`] cycles on a new database, and how
/// many of them are HOT.
async fn updates_of_cycles() -> (i64, i64) {
    let database = Database::postgres().await;
    let app = TestApp::at(database.url()).await;
    for _ in 0..CYCLES {
        cycle(&app).await;
    }
    app.stop().await;
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let updates = i64::try_from(4 * CYCLES).unwrap();
    // Postgres publishes the counts after the service's connections have ended.
    loop {
        let row = connection
            .fetch_one("select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'agent_task'")
            .await
            .unwrap();
        let (all, hot): (i64, i64) = (row.get(0), row.get(1));
        if all >= updates {
            return (all, hot);
        }
        crate::support::pause().await;
    }
}
