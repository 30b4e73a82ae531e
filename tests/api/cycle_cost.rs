//! The round trips to Postgres of a cycle (task → held → approved → completed), counted on the
//! wire: statements, reads and pings alike.

use serde_json::json;

use crate::support::database::Database;
use crate::support::fake_chat_completions::says;
use crate::support::forwarder::Forwarder;
use crate::support::test_app::TestApp;

const CYCLES: usize = 20;
/// Five commits, and one read of the request with its task's journal.
const TRIPS: usize = 6;
/// For the relay and the worker, which read once in a while.
const ELSEWHERE: usize = 12;

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
    app.store().stop_comparing();
    for _ in 0..3 {
        cycle(&app).await;
    }
    let before = line.round_trips();
    for _ in 0..CYCLES {
        cycle(&app).await;
    }
    let trips = line.round_trips() - before;
    assert!(
        (5 * CYCLES..=TRIPS * CYCLES + ELSEWHERE).contains(&trips),
        "{trips} round trips in {CYCLES} cycles"
    );
    app.stop().await;
}
