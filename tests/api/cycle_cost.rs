//! Counts the round trips to Postgres of one cycle (task → held → approved → completed). The count
//! is taken on the wire, so statements, reads and pings all count.

use serde_json::json;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

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
    takes_six_round_trips(&app, &line).await;
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
    takes_six_round_trips(&app, &line).await;
    app.stop().await;
    let sql = "select cast(n_tup_ins as text) from pg_stat_user_tables where relname in ('notice', 'delivery')";
    assert_eq!(database.texts(sql).await, ["0", "0"]);
}

async fn takes_six_round_trips(app: &TestApp, line: &Forwarder) {
    app.store().stop_comparing();
    for _ in 0..3 {
        cycle(app).await;
    }
    // The relay and the worker also read from time to time. On a slow machine, a cycle includes
    // more of their reads. So the test counts up to four times.
    let mut counted = Vec::new();
    for _ in 0..4 {
        let mut trips = Vec::new();
        for _ in 0..CYCLES {
            let before = line.round_trips();
            cycle(app).await;
            trips.push(line.round_trips() - before);
        }
        trips.sort_unstable();
        if trips[CYCLES / 4] == TRIPS {
            return;
        }
        counted.push(trips);
    }
    panic!("round trips of each cycle: {counted:?}");
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
