//! Tests of calls at a gate while Postgres does not answer, or while its answers are lost. The gate
//! lets a call through only after a commit that is known to have succeeded, and at most once.

use serde_json::json;

use super::database::{is_refused, number};
use crate::api::gate::{AGENT, bash, call_summary, expected, refund, yaml};
use crate::support::database::Database;
use crate::support::forwarder::Forwarder;
use crate::support::test_app::{Reply, TestApp};
use crate::support::{repetitions, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_that_is_down_lets_no_gate_call_through() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = TestApp::at_with(line.url(), &yaml("")).await;
    let ask = async |body| app.actor(AGENT).post("/v1/gate/calls", &body).await;
    line.cut();
    for body in [
        refund(5),
        bash("ls"),
        json!({"tool": "Read", "arguments": {}}),
    ] {
        is_refused(&ask(body).await);
    }
    assert_eq!(app.tool.count(), 0);
    line.mend();
    let mut call = ask(refund(5)).await;
    while call.status == 503 {
        call = ask(refund(5)).await;
    }
    assert_eq!(
        call_summary(&call),
        expected(200, "allow", "settled", "succeeded"),
        "{}",
        call.text
    );
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_at_any_byte_of_a_gate_call_gives_one_permit_and_runs_one_call() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    // This test never reports the outcome of a permitted call. So `run_within` exceeds the time of
    // the longest run: no permit expires during the test.
    let app = TestApp::at_with(line.url(), &yaml("run_within: 24h")).await;
    let ask = async |key: String, body| -> Reply {
        loop {
            let agent = app.actor(AGENT).header("idempotency-key", &key);
            let agent = agent
                .header("holdpoint-runner", "r1")
                .header("prefer", "wait=5");
            let reply = agent.post("/v1/gate/calls", &body).await;
            if ![202, 503].contains(&reply.status) {
                return reply;
            }
        }
    };
    let mut made = 0;
    for cut in (0..3_600).step_by(repetitions(149, 1)) {
        line.cut_after(cut);
        let theirs = ask(format!("theirs-{cut}"), bash("ls")).await;
        assert_eq!(
            theirs.body["permit"]["attempt"], 1,
            "{cut}: {}",
            theirs.text
        );
        line.cut_after(cut);
        let ours = ask(format!("ours-{cut}"), refund(5)).await;
        assert_eq!(
            call_summary(&ours),
            expected(200, "allow", "settled", "succeeded"),
            "{cut}: {}",
            ours.text
        );
        made += 1;
    }
    let calls = number(database.url(), "select count(*) from agent_task").await;
    let starts = "select count(*) from agent_task_item where type = 'tool_started'";
    let starts = number(database.url(), starts).await;
    assert_eq!(
        (calls, starts),
        (2 * made, 2 * made),
        "one start of each call"
    );
    assert_eq!(
        i64::try_from(app.tool.count()).unwrap(),
        made,
        "each ran once"
    );
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_at_any_byte_of_a_repeated_call_hands_its_result_over_and_runs_nothing() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = TestApp::at_with(line.url(), &yaml("")).await;
    let ask = async || -> Reply {
        loop {
            let agent = app.actor(AGENT).header("prefer", "wait=0");
            let reply = agent.post("/v1/gate/calls", &refund(5)).await;
            if ![202, 503].contains(&reply.status) {
                return reply;
            }
        }
    };
    let done = expected(200, "allow", "settled", "succeeded");
    assert_eq!(call_summary(&ask().await), done);
    for cut in (0..4_000).step_by(repetitions(199, 1)) {
        let delivered = "select count(*) from agent_task where asker_until = 9223372036854775807";
        until("the answer counts as delivered", async || {
            number(database.url(), delivered).await == 1
        })
        .await;
        // Marks the result as undelivered, as if the answer had been lost.
        let lost = "update agent_task set asker_until = 0";
        crate::support::postgres::run(database.url(), lost.to_owned()).await;
        line.cut_after(cut);
        let reply = ask().await;
        assert_eq!(call_summary(&reply), done, "{cut}: {}", reply.text);
        assert_eq!(app.tool.count(), 1, "{cut}");
    }
    app.stop().await;
}
