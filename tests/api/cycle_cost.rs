//! Counts the round trips to Postgres of one cycle (task → held → approved → completed), of a
//! repeated POST and of a call at a gate. A proxy between the service and Postgres counts them, so
//! the count includes every statement and every ping.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use super::gate;
use crate::notify::{BACKEND, yaml};
use crate::support::database::Database;
use crate::support::endless_sleep::EndlessSleep;
use crate::support::fake_chat_completions::text_answer;
use crate::support::fake_receiver::FakeReceiver;
use crate::support::forwarder::Forwarder;
use crate::support::postgres::PrivateCluster;
use crate::support::serve;
use crate::support::test_app::{LOCK, TestApp, refunds};

const CYCLES: usize = 20;
/// The expected round trips of one cycle: five commits, and one read of the request with its task's
/// journal.
const TRIPS: usize = 6;

/// Starts the service on the database at this URL. The worker and the outbox do not poll, and the
/// worker renews no lease.
async fn unpolled(url: &str, yaml: &str) -> TestApp {
    TestApp::at_timed(url, yaml, EndlessSleep::new(|_| true)).await
}

async fn cycle(app: &TestApp) {
    let held = app.held().await;
    app.model.then(text_answer("done"));
    let path = format!("/resume/{}/approve", held.request);
    let reply = app.owner().post(&path, &json!({})).await;
    assert_eq!(reply.str("/status"), "Completed", "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycle_takes_six_round_trips_to_the_database() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = unpolled(line.url(), &refunds("{ owner: true }")).await;
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
    let app = unpolled(line.url(), &yaml(&entry, &hook)).await;
    assert_round_trips(&app, &line, TRIPS, cycle).await;
    app.stop().await;
    let sql = "select cast(n_tup_ins as text) from pg_stat_user_tables where relname in ('notice', 'delivery')";
    assert_eq!(database.texts(sql).await, ["0", "0"]);
}

/// The repeated POST tries to insert a new task. The database refuses the commit, because a row for
/// the idempotency key exists. One read then finds this row, even if the row has another spelling
/// of the user's id. A second read finds the row's task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_post_takes_a_refused_commit_and_two_reads() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = unpolled(line.url(), &refunds("{ owner: true }")).await;
    app.model.then(text_answer("done"));
    let post = async |app: &TestApp| {
        let owner = app.owner().keyed("a");
        let body = json!({"agent": "billing", "input": "Refund order 17."});
        let reply = owner.post("/v1/tasks", &body).await;
        assert_eq!(reply.str("/status"), "Completed", "{}", reply.text);
    };
    assert_round_trips(&app, &line, 3, post).await;
    app.stop().await;
}

/// The read looks for earlier equal calls, under every spelling of the user's id. The commit stores
/// the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_call_at_a_gate_takes_one_read_and_one_commit() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let yaml = gate::yaml("").replace(r#"args.command == \"ls\""#, r#"args.command != \"\""#);
    let app = unpolled(line.url(), &yaml).await;
    let number = AtomicUsize::new(0);
    let propose = async |app: &TestApp| {
        let body = gate::bash(&format!("ls {}", number.fetch_add(1, Ordering::Relaxed)));
        let reply = gate::ask(app, &body, 0).await;
        assert_eq!(reply.str("/decision"), "allow", "{}", reply.text);
    };
    assert_round_trips(&app, &line, 2, propose).await;
    app.stop().await;
}

/// The service does not look for earlier equal calls, because two equal calls of a repeatable tool
/// may run at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeatable_call_at_a_gate_takes_one_commit_and_no_read() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = unpolled(line.url(), &gate::yaml("")).await;
    let propose = async |app: &TestApp| {
        let body = json!({"tool": "Read", "arguments": {"path": "a"}});
        let reply = gate::ask(app, &body, 0).await;
        assert_eq!(reply.body["permit"]["attempt"], 1, "{}", reply.text);
    };
    assert_round_trips(&app, &line, 1, propose).await;
    app.stop().await;
}

/// One read looks for equal calls, and the other counts the user's pending calls (`max_open`). One
/// commit stores the call with its request, and the other stores that the asker no longer waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_call_at_a_gate_takes_two_reads_and_two_commits() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = unpolled(line.url(), &gate::yaml("max_open: 1000")).await;
    let amount = AtomicU32::new(100);
    let propose = async |app: &TestApp| {
        let body = gate::refund(amount.fetch_add(1, Ordering::Relaxed));
        let reply = gate::ask(app, &body, 0).await;
        assert_eq!(reply.str("/state"), "pending", "{}", reply.text);
    };
    assert_round_trips(&app, &line, 4, propose).await;
    app.stop().await;
}

/// Answers a message as the MCP server `shop` in [`LOCK`], which may ask people questions.
fn answer_as_shop(message: &str) -> String {
    let message: Value = serde_json::from_str(message).unwrap();
    let lock: Value = serde_json::from_str(LOCK).unwrap();
    let tool = &lock["servers"]["shop"]["tools"]["book"]["definition"];
    let result = match message["method"].as_str().unwrap() {
        "server/discover" => json!({"supportedVersions": ["2026-07-28"]}),
        "tools/list" => json!({"tools": [tool]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "Booked."}]}),
        other => panic!("{other}"),
    };
    let mut answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    answer["result"]["resultType"] = json!("complete");
    answer.to_string()
}

/// One commit stores the call with its start, and the other stores its result. The service looks
/// for earlier equal calls only if one of them has a call key, and it knows for a second that none
/// has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeatable_call_of_a_server_that_may_ask_takes_two_commits_and_no_read() {
    let answers = async |message: String| {
        (
            [(CONTENT_TYPE, "application/json")],
            answer_as_shop(&message),
        )
    };
    let shop = serve(Router::new().fallback(answers)).await;
    let server = format!("{{ url: \"http://{shop}/mcp\", effects: {{ book: read_only }} }}");
    let yaml = gate::yaml("")
        .replace("Bash, Read]", "Bash, Read, shop_book]")
        .replace("tools: [Read]", "tools: [Read, shop_book]");
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = unpolled(line.url(), &format!("{yaml}mcp: {{ shop: {server} }}\n")).await;
    let propose = async |app: &TestApp| {
        let body = json!({"tool": "shop_book", "arguments": {"people": 2}});
        let reply = gate::ask(app, &body, 10).await;
        assert_eq!(reply.str("/outcome"), "succeeded", "{}", reply.text);
    };
    assert_round_trips(&app, &line, 2, propose).await;
    app.stop().await;
}

/// Runs `act` [`CYCLES`] times, and asserts that the lower quartile of the round trips of a run is
/// `expected`. The count includes reads of the store's relay. On a slow machine, a run takes longer
/// and includes more of these reads. So the function measures up to four times.
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

/// The rows that a cycle inserts, updates and deletes in each table.
const ROWS: &[(&str, [i64; 3])] = &[
    ("agent_task", [1, 4, 0]),
    ("agent_task_item", [12, 0, 0]),
    ("claimable_task", [2, 0, 2]),
    ("decision", [1, 0, 0]),
    ("inbox", [1, 0, 1]),
    ("intervention_request", [1, 1, 0]),
    ("request_approver", [1, 0, 0]),
];

/// While another connection has an open snapshot, Postgres cannot remove old row versions from a
/// full page. An update of a row in this page then needs another page, so it is not HOT. Therefore
/// the test measures up to three times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycle_writes_a_fixed_number_of_rows_and_its_updates_touch_no_index_of_agent_task() {
    let mut counted = Vec::new();
    for _ in 0..3 {
        let written = rows_of_cycles().await;
        let is_expected = |(table, count): &(String, [i64; 4])| {
            let [inserted, updated, deleted, hot] = *count;
            let cycles = i64::try_from(CYCLES).unwrap();
            let rows = [inserted, updated, deleted].map(|number| number / cycles);
            let expected = ROWS.iter().find(|(name, _)| name == table);
            expected.is_some_and(|(_, expected)| rows == *expected)
                && (table != "agent_task" || hot * 100 >= updated * 95)
        };
        if written.len() == ROWS.len() && written.iter().all(is_expected) {
            return;
        }
        counted.push(written);
    }
    panic!("rows inserted, updated and deleted, and HOT updates: {counted:?}");
}

/// The bytes of the write-ahead log that a cycle may take with the bodies of these tests. Postgres
/// writes no whole pages here, as in the measurements of `docs/performance.md`.
const LOG_BYTES: i64 = 10_350;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cycle_writes_a_bounded_number_of_bytes_to_the_log_of_postgres() {
    let cluster = PrivateCluster::with("-c full_page_writes=off -c autovacuum=off");
    let url = cluster.url("postgres");
    let app = unpolled(&url, &refunds("{ owner: true }")).await;
    cycle(&app).await;
    let database = Database::at(&url);
    let written = "select cast(pg_current_wal_insert_lsn() - '0/0' as text)";
    let bytes = async || {
        let texts = database.texts(written).await;
        texts[0].parse::<i64>().unwrap()
    };
    let before = bytes().await;
    for _ in 0..CYCLES {
        cycle(&app).await;
    }
    let of_cycle = (bytes().await - before) / i64::try_from(CYCLES).unwrap();
    app.stop().await;
    assert!(
        (LOG_BYTES / 2..=LOG_BYTES).contains(&of_cycle),
        "{of_cycle} bytes"
    );
}

/// Returns the numbers of rows that [`CYCLES`] cycles on a new database insert, update and delete
/// in each table, and how many of the updates are HOT. Leaves out tables with less than a row for
/// each cycle.
async fn rows_of_cycles() -> Vec<(String, [i64; 4])> {
    let database = Database::postgres().await;
    let app = unpolled(database.url(), &refunds("{ owner: true }")).await;
    for _ in 0..CYCLES {
        cycle(&app).await;
    }
    app.stop().await;
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let cycles = i64::try_from(CYCLES).unwrap();
    // Postgres publishes the counts after the service's connections have ended.
    loop {
        let rows = connection
            .fetch_all("select relname::text, n_tup_ins, n_tup_upd, n_tup_del, n_tup_hot_upd from pg_stat_user_tables")
            .await
            .unwrap();
        let written: Vec<(String, [i64; 4])> = rows
            .iter()
            .map(|row| (row.get(0), [1, 2, 3, 4].map(|column| row.get(column))))
            .filter(|(_, count): &(String, [i64; 4])| count.iter().sum::<i64>() >= cycles)
            .collect();
        let is_published =
            |(table, count): &(String, [i64; 4])| table == "agent_task" && count[1] >= 4 * cycles;
        if written.iter().any(is_published) {
            return written;
        }
        crate::support::pause().await;
    }
}
