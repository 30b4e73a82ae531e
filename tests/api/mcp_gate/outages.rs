//! Tests of calls over MCP while the database does not answer. Each call gets an error that says
//! when to try again, and nothing runs.

use std::time::Duration;

use super::{call, refund, result_text};
use crate::api::gate::yaml;
use crate::support::database::Database;
use crate::support::endless_sleep::EndlessSleep;
use crate::support::forwarder::Forwarder;
use crate::support::test_app::{Reply, TestApp};

/// The amounts of two refunds: a rule allows the first, and a rule holds the second.
const AMOUNTS: [u32; 2] = [5, 120];

/// Asserts that the answer is the error -32603, and that it says after which time the client may
/// try again.
fn assert_unavailable(reply: &Reply) {
    let error = &reply.body["error"];
    assert_eq!(error["code"], -32603, "{}", reply.text);
    assert_eq!(error["data"]["code"], "unavailable", "{}", reply.text);
    assert_eq!(error["data"]["retry_after_ms"], 1000, "{}", reply.text);
    assert!(reply.body.get("result").is_none(), "{}", reply.text);
}

/// Repeats a call until the database answers again.
async fn call_again(app: &TestApp, amount: u32) -> Reply {
    loop {
        let reply = call(app, "0", &refund(amount)).await;
        if reply.body["error"]["code"] != -32603 {
            return reply;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_without_a_database_is_an_internal_error_with_retry_after_and_runs_nothing() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    // With this clock, the service's timer of one second never fires. If the timer fired before
    // the answer, the service would begin an event stream, which has no `Retry-After`.
    let clock = EndlessSleep::new(|time| time == Duration::from_secs(1));
    let app = TestApp::at_timed(line.url(), &yaml(""), clock).await;
    line.cut();
    for amount in AMOUNTS {
        let refused = call(&app, "0", &refund(amount)).await;
        assert_unavailable(&refused);
        assert_eq!(refused.header("content-type"), "application/json");
        assert_eq!(refused.header("retry-after"), "1");
    }
    assert_eq!(app.tool.count(), 0);
    line.mend();
    let done = call_again(&app, 5).await;
    assert_eq!(result_text(&done), ("{\"ok\":true}".to_owned(), false));
    assert_eq!(app.tool.count(), 1);
    app.stop().await;
}

/// The event stream of a slow answer has no `Retry-After`, so the error itself names the wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_whose_database_is_silent_is_an_internal_error_and_runs_nothing() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = TestApp::at_with(line.url(), &yaml("")).await;
    line.blackhole();
    for amount in AMOUNTS {
        assert_unavailable(&call(&app, "0", &refund(amount)).await);
    }
    assert_eq!(app.tool.count(), 0);
    line.mend();
    let done = call_again(&app, 5).await;
    assert_eq!(result_text(&done), ("{\"ok\":true}".to_owned(), false));
    app.stop().await;
}
