//! Tests of Envoy at a gate with `record: held`. The gate does not store an allowed call of a
//! `read_only` tool. It counts the call in its metrics instead.

use super::*;

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
