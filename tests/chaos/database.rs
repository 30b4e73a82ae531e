//! Tests of failures of Postgres: a crash, a freeze, a read-only database, and terminated sessions.
//! Also tests a connection that is cut or silent.

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::json;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::support::database::Database;
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::forwarder::Forwarder;
use crate::support::postgres::{PrivateCluster, run};
use crate::support::test_app::{ALICE, Reply, TestApp, refunds};

/// An upper bound of the time that a working service takes to answer on any machine.
const WORKS: Duration = Duration::from_secs(10);
/// The time within which the service must give up while the database does not answer. A service
/// that waits until the database answers again takes longer.
const GIVES_UP: Duration = Duration::from_mins(1);

/// Asserts that the reply is a 503 `unavailable` with `Retry-After`.
pub fn is_refused(reply: &Reply) {
    reply.assert_code(503, "unavailable");
    assert!(
        reply
            .header("retry-after")
            .parse::<u64>()
            .is_ok_and(|seconds| seconds > 0)
    );
}

/// Asserts that `/healthz` answers at once, and that `/readyz` soon says that the service is not
/// ready.
async fn is_alive_and_not_ready(app: &TestApp) {
    let began = Instant::now();
    assert_eq!(app.anonymous().get("/healthz").await.status, 200);
    assert!(began.elapsed() < WORKS);
    is_refused(&app.anonymous().get("/readyz").await);
    assert!(began.elapsed() < GIVES_UP, "{:?}", began.elapsed());
}

async fn gets_ready(app: &TestApp) {
    let began = Instant::now();
    while app.anonymous().get("/readyz").await.status != 200 {
        assert!(
            began.elapsed() < 2 * GIVES_UP,
            "the service does not get ready again"
        );
    }
}

async fn ended(app: &TestApp, task: &str) -> Reply {
    loop {
        let reply = app
            .owner()
            .header("prefer", "wait=20")
            .get(&format!("/v1/tasks/{task}"))
            .await;
        if reply.status != 503 && reply.body["status"] != "Running" {
            return reply;
        }
    }
}

pub async fn number(url: &str, sql: &'static str) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    connection.fetch_one(sql).await.unwrap().get(0)
}

/// Like [`TestApp::at`], but with a timeout of `refund` that no test reaches.
async fn start(url: &str) -> TestApp {
    let yaml = refunds("{ owner: true }");
    TestApp::at_with(url, &yaml.replace("timeout: 5s", "timeout: 5m")).await
}

/// Creates a task whose call of `refund` is in flight and unanswered. Returns the task's id.
async fn under_way(app: &TestApp) -> String {
    app.tool.close();
    app.model
        .then(calls(&[("refund", r#"{"order":1,"amount":5}"#)]));
    let before = app.tool.ledger().len();
    let reply = app
        .owner()
        .header("prefer", "wait=0")
        .post("/v1/tasks", &json!({"input": "go"}))
        .await;
    assert_eq!(reply.status, 202, "{}", reply.text);
    app.tool.reached(before + 1).await;
    reply.str("/task_id")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_crash_is_503_and_running_tasks_continue_after_it() {
    let cluster = PrivateCluster::start();
    let app = start(&cluster.url("postgres")).await;
    let held = app.held().await;
    let running = under_way(&app).await;
    cluster.crash();
    app.tool.open();
    is_refused(&app.owner().get(&format!("/v1/tasks/{}", held.task)).await);
    is_refused(
        &app.owner()
            .header("idempotency-key", "k")
            .post("/v1/tasks", &json!({"input": "new"}))
            .await,
    );
    is_refused(
        &app.owner()
            .hit(&format!("/resume/{}/approve", held.request))
            .await,
    );
    is_alive_and_not_ready(&app).await;
    cluster.start_again();
    gets_ready(&app).await;
    let done = ended(&app, &running).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    let approved = app
        .owner()
        .hit(&format!("/resume/{}/approve", held.request))
        .await;
    approved.assert_status(200, "Completed");
    let new = app
        .owner()
        .header("idempotency-key", "k")
        .post("/v1/tasks", &json!({"input": "new"}))
        .await;
    assert_eq!(new.status, 201, "{}", new.text);
    assert_eq!(app.tool.ledger().len(), 2, "each ran once");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_database_is_503_in_time_and_nothing_is_done_twice() {
    let cluster = PrivateCluster::start();
    let app = start(&cluster.url("postgres")).await;
    let running = under_way(&app).await;
    cluster.freeze();
    app.tool.open();
    let began = Instant::now();
    let owner = || app.owner().header("idempotency-key", "k");
    let body = json!({"input": "new"});
    let (new, seen, ()) = tokio::join!(
        async { owner().post("/v1/tasks", &body).await },
        async { app.owner().get(&format!("/v1/tasks/{running}")).await },
        is_alive_and_not_ready(&app)
    );
    is_refused(&new);
    is_refused(&seen);
    assert!(began.elapsed() < GIVES_UP, "{:?}", began.elapsed());
    cluster.thaw();
    gets_ready(&app).await;
    assert_eq!(ended(&app, &running).await.str("/status"), "Completed");
    let again = owner().post("/v1/tasks", &body).await;
    assert!([201, 202].contains(&again.status), "{}", again.text);
    let tasks = number(&cluster.url("postgres"), "select count(*) from agent_task").await;
    assert_eq!((tasks, app.tool.ledger().len()), (2, 1));
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_at_any_byte_loses_no_answer_and_repeats_no_effect() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = TestApp::at(line.url()).await;
    app.model.otherwise(|body| {
        let last = body["messages"].as_array().unwrap().last().unwrap();
        if last["role"] == "tool" {
            text_answer("done")
        } else {
            calls(&[("refund", r#"{"order":1,"amount":5}"#)])
        }
    });
    let mut made = 0;
    for cut in (0..2400).step_by(97) {
        let key = format!("k{cut}");
        line.cut_after(cut);
        let mut reply = app
            .owner()
            .header("idempotency-key", &key)
            .post("/v1/tasks", &json!({"input": "go"}))
            .await;
        while reply.status == 503 {
            reply = app
                .owner()
                .header("idempotency-key", &key)
                .post("/v1/tasks", &json!({"input": "go"}))
                .await;
        }
        assert!([201, 202].contains(&reply.status), "{cut}: {}", reply.text);
        made += 1;
        let done = ended(&app, &reply.str("/task_id")).await;
        assert_eq!(done.str("/status"), "Completed", "{cut}: {}", done.text);
    }
    assert_eq!(
        number(database.url(), "select count(*) from agent_task").await,
        made
    );
    assert_eq!(
        i64::try_from(app.tool.ledger().len()).unwrap(),
        made,
        "each ran once"
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connection_is_503_in_time_and_frees_its_place_in_the_pool() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = TestApp::at(line.url()).await;
    let held = app.held().await;
    let path = format!("/v1/tasks/{}", held.task);
    let many =
        || futures_util::future::join_all((0..30).map(|_| async { app.owner().get(&path).await }));
    assert!(many().await.iter().all(|reply| reply.status == 200));
    line.delay(Duration::from_millis(20));
    assert!(
        many().await.iter().all(|reply| reply.status == 200),
        "slow is not lost"
    );
    line.blackhole();
    let began = Instant::now();
    let (replies, ()) = tokio::join!(many(), is_alive_and_not_ready(&app));
    replies.iter().for_each(is_refused);
    assert!(began.elapsed() < GIVES_UP, "{:?}", began.elapsed());
    line.mend();
    gets_ready(&app).await;
    for _ in 0..3 {
        assert!(many().await.iter().all(|reply| reply.status == 200));
    }
    line.cut();
    is_alive_and_not_ready(&app).await;
    line.mend();
    gets_ready(&app).await;
    assert!(
        many().await.iter().all(|reply| reply.status == 200),
        "what was idle is not used unasked"
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_database_fails_no_task() {
    let database = Database::postgres().await;
    let app = start(database.url()).await;
    let name = database.url().rsplit('/').next().unwrap().to_owned();
    let said = async |value: &str| {
        run(database.url(), format!("alter database \"{name}\" {value}")).await;
        let kill = "select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and application_name = 'holdpoint'";
        run(database.url(), kill.to_owned()).await;
    };
    let running = under_way(&app).await;
    said("set default_transaction_read_only = on").await;
    app.tool.open();
    is_refused(&app.anonymous().get("/readyz").await);
    is_refused(
        &app.owner()
            .post("/v1/tasks", &json!({"input": "new"}))
            .await,
    );
    let seen = app.owner().get(&format!("/v1/tasks/{running}")).await;
    assert_eq!(
        (seen.status, seen.str("/status").as_str()),
        (200, "Running"),
        "it can be read: {}",
        seen.text
    );
    // New sessions are still read-only by default, so this session allows itself to write.
    let mut reset = PgConnection::connect(database.url()).await.unwrap();
    reset
        .execute("set default_transaction_read_only = off")
        .await
        .unwrap();
    let back = format!("alter database \"{name}\" reset default_transaction_read_only");
    reset.execute(sqlx::AssertSqlSafe(back)).await.unwrap();
    gets_ready_anew(&app, database.url()).await;
    let done = ended(&app, &running).await;
    assert_eq!(done.str("/status"), "Completed", "{}", done.text);
    assert_eq!(app.tool.ledger().len(), 1);
    app.stop().await;
}

/// Terminates the sessions that began while the database's default was read-only, because they keep
/// that default. Then waits until the service is ready.
async fn gets_ready_anew(app: &TestApp, url: &str) {
    let kill = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and application_name = 'holdpoint'";
    run(url, kill.to_owned()).await;
    gets_ready(app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_sessions_terminated_repeatedly_cause_only_503() {
    let database = Database::postgres().await;
    let app = TestApp::at(database.url()).await;
    app.model.otherwise(|body| {
        let last = body["messages"].as_array().unwrap().last().unwrap();
        if last["role"] == "tool" {
            text_answer("done")
        } else {
            calls(&[("refund", r#"{"order":1,"amount":50}"#)])
        }
    });
    let cycles = futures_util::future::join_all((0..12).map(|number| {
        let app = &app;
        async move {
            let key = || {
                app.actor(ALICE)
                    .header("idempotency-key", &format!("k{number}"))
            };
            let patient = async |path: String, body: serde_json::Value| loop {
                let reply = key().post(&path, &body).await;
                let fine = [
                    StatusCode::OK,
                    StatusCode::CREATED,
                    StatusCode::ACCEPTED,
                    StatusCode::SERVICE_UNAVAILABLE,
                ];
                assert!(
                    fine.iter().any(|status| *status == reply.status),
                    "{path}: {}",
                    reply.text
                );
                if reply.status != 503 {
                    return reply;
                }
            };
            let made = patient("/v1/tasks".to_owned(), json!({"input": "go"})).await;
            let held = ended(app, &made.str("/task_id")).await;
            let path = format!("/resume/{}", held.str("/pending/0/request_id"));
            patient(path, json!({"action": "approve"})).await;
            assert_eq!(
                ended(app, &made.str("/task_id")).await.str("/status"),
                "Completed"
            );
        }
    }));
    let kills = async {
        for _ in 0..25 {
            let kill = "select pg_terminate_backend(pid) from pg_stat_activity
                where datname = current_database() and application_name = 'holdpoint'";
            run(database.url(), kill.to_owned()).await;
        }
    };
    tokio::join!(cycles, kills);
    assert_eq!(app.tool.ledger().len(), 12, "each ran once");
    assert_eq!(
        number(database.url(), "select count(*) from agent_task").await,
        12
    );
    app.stop().await;
}
