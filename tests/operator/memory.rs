//! Tests the memory that a service keeps for tasks that wait for a person.

use macro_rules_attribute::apply;
use serde_json::json;

use crate::api::approval_cycle::on_both;
use crate::support::allocator::{allocated_bytes, assert_grows_less_than};
use crate::support::test_app::{ACCOUNTS, On, TestApp};

const DEMONSTRATION: &str = include_str!("../../src/config/demo.yaml");

/// The number of tasks that fill the caches of the service and of the test.
const FIRST_TASKS: usize = 20;
/// The number of tasks that follow.
const TASKS: usize = 200;
/// The maximum growth for each task. A task's row alone takes more memory. On Postgres, 100 tasks
/// were seen to add up to 70 KiB in all, and 200 tasks no more.
const MAX_BYTES: usize = 512;

#[apply(on_both)]
async fn task_that_waits_for_a_person_keeps_no_memory(on: On) {
    // The script of the demonstration pauses before each of its answers.
    let unpaced =
        DEMONSTRATION.replace("script: builtin:refunds", "script: tests/fuzz/refunds.yaml");
    let app = TestApp::with(on, &format!("{unpaced}{ACCOUNTS}")).await;
    let pause_task = async || {
        let body = json!({"input": "refund 120 for order 17"});
        let owner = app.owner().header("prefer", "wait=60");
        let created = owner.post("/v1/tasks", &body).await;
        assert_eq!(created.body["status"], "Paused", "{}", created.text);
    };
    for _ in 0..FIRST_TASKS {
        pause_task().await;
    }
    let before = allocated_bytes();
    for _ in 0..TASKS {
        pause_task().await;
    }
    assert_grows_less_than(before, TASKS * MAX_BYTES).await;
    app.stop().await;
}
