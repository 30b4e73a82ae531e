//! Tests of the metrics of gateways' asks, and of Envoy at a gate with `record: held`. The gate
//! does not store an allowed call of a `read_only` tool. It counts the call in its metrics instead.

use super::ext_mcp::{LS, REQUIRED, guardrails_yaml, request};
use super::*;
use crate::api::logs::{address, start};
use crate::support::http_client;

#[tokio::test(flavor = "multi_thread")]
async fn asks_of_the_two_kinds_of_gateways_are_timed_under_doors_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = guardrails_yaml(REQUIRED)
        .replace("{model}", "http://127.0.0.1:9")
        .replace("{tool}", "http://127.0.0.1:9");
    let mut binary = start(folder.path(), &yaml);
    let url = address(folder.path(), &mut binary).await;
    let mut grpc = Grpc::at(&url).await;
    request(&mut grpc, LS).await.task();
    for command in ["ls", "make"] {
        grpc.check(&bash(command)).await;
    }
    let metrics = http_client().get(format!("{url}/metrics")).send().await;
    let metrics = metrics.unwrap().text().await.unwrap();
    for (door, count) in [("ext_mcp", 1), ("ext_authz", 2)] {
        let name = "holdpoint_gate_ask_seconds_count";
        let line = format!("{name}{{door=\"{door}\",gate=\"refunds\"}} {count}");
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}\n{metrics}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_read_only_call_that_is_only_counted_passes_and_another_allowed_call_is_stored() {
    let app = gateway_app(&format!("record: held\n    {ENVOY}")).await;
    let mut grpc = Grpc::to(&app).await;
    let stored = async || {
        let tasks = app.database.texts("select agent from agent_task").await;
        tasks.len()
    };
    let mut reads = bash("ls");
    reads["params"] = json!({"name": "Read", "arguments": {"path": "a"}});
    for _ in 0..2 {
        let passed = grpc.check(&reads).await;
        assert!(matches!(passed, Verdict::Passes(Some(_))), "{passed:?}");
    }
    assert_eq!(stored().await, 0);
    let passed = grpc.check(&bash("ls")).await;
    assert!(matches!(passed, Verdict::Passes(Some(_))), "{passed:?}");
    assert_eq!(stored().await, 1);
    app.stop().await;
}
