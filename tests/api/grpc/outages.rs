//! Tests of checks while the database does not answer. A gateway denies each request whose check
//! fails.

use http::StatusCode;

use super::ext_mcp::{LS, REQUEST, guardrails_yaml, message};
use super::*;
use crate::support::database::Database;
use crate::support::forwarder::Forwarder;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_without_a_database_is_unavailable_and_lets_nothing_pass() {
    let database = Database::postgres().await;
    let line = Forwarder::to(database.url()).await;
    let app = TestApp::at_with(line.url(), &guardrails_yaml(ENVOY)).await;
    let mut grpc = Grpc::to(&app).await;
    let check = |command: &str| checked(&bash(command), &[("x-user", "alice")]);
    line.cut();
    for (name, path, message) in [
        ("allowed call at Envoy", CHECK, check("ls")),
        ("held call at Envoy", CHECK, check("make")),
        (
            "allowed call at agentgateway",
            REQUEST,
            message(&["up"], "tools/call", LS, "alice"),
        ),
    ] {
        let answered = grpc.call(path, EDGE, &message).await;
        let told = (answered.http, answered.status);
        assert_eq!(told, (StatusCode::OK, Some(14)), "{name}");
        assert!(answered.message.is_empty(), "{name}");
    }
    line.mend();
    let passes = loop {
        let answered = grpc.call(CHECK, EDGE, &check("ls")).await;
        if answered.status != Some(14) {
            break verdict(&answered.message);
        }
    };
    assert!(matches!(passes, Verdict::Passes(Some(_))), "{passes:?}");
    app.stop().await;
}
