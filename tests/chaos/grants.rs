//! Tests of a process that is killed during a call that a standing decision let through.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{LARGE, ServiceFixture, resume_path};
use crate::support::fake_chat_completions::{calls, text_answer};
use crate::support::pause;
use crate::support::test_app::On;

/// Approvers who may give a standing decision with an approval.
const REMEMBERING: &str = r#"{ owner: true }, remember: { when: "args.amount <= 500.0", for: [owner], most: 4h, uses: 2 }"#;

async fn used(service: &ServiceFixture) -> Value {
    service.get("/v1/grants").await["grants"][0]["used"].clone()
}

async fn killed_during_a_call(on: On) {
    let service = ServiceFixture::new(on, REMEMBERING).await;
    let (model, tool) = (&service.model, &service.tool);
    let process = service.start("").await;
    model.then(calls(&[("refund", LARGE)]));
    model.then(text_answer("done"));
    let held = service.post("/v1/tasks", &json!({"input": "go"})).await;
    let (_, held) = held.unwrap();
    let answer = json!({"action": "approve", "remember": {"for": "owner", "expires_in": "1h"}});
    let (_, done) = service.post(&resume_path(&held), &answer).await.unwrap();
    assert_eq!(done["status"], "Completed", "{done}");
    tool.close();
    model.then(calls(&[("refund", LARGE)]));
    let again = json!({"input": "again"});
    let (cut, ()) = tokio::join!(service.post("/v1/tasks", &again), async {
        tool.reached(2).await;
        process.signal(Signal::KILL);
    });
    assert!(cut.is_err());
    process.kill().await;
    tool.open();
    // On Postgres the killed process still holds the task's lease, so the clock is set ahead to a
    // time after the end of the lease.
    let process = service.start("clock=120s").await;
    assert_eq!(used(&service).await, 1, "the call that was under way");
    let asked = loop {
        let tasks = service.get("/v1/tasks?status=Paused").await;
        if let Some(task) = tasks["tasks"].as_array().and_then(|tasks| tasks.first()) {
            break task.clone();
        }
        pause().await;
    };
    let question = &asked["pending"][0];
    assert_eq!(question["kind"], "reconcile", "never silently run again");
    model.then(text_answer("done"));
    let answer = json!({"action": "respond", "result": "it was paid"});
    let (_, done) = service.post(&resume_path(&asked), &answer).await.unwrap();
    assert_eq!(done["status"], "Completed", "{done}");
    for (expected, runs) in [("Completed", 3), ("Paused", 3)] {
        model.then(calls(&[("refund", LARGE)]));
        model.then(text_answer("done"));
        let task = service.post("/v1/tasks", &json!({"input": "more"})).await;
        let seen = (task.unwrap().1["status"].clone(), tool.ledger().len());
        assert_eq!(seen, (json!(expected), runs));
    }
    assert_eq!(used(&service).await, 2);
    process.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_killed_during_a_call_that_is_let_through_neither_repeats_nor_forgets_it_on_sqlite()
{
    killed_during_a_call(On::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_killed_during_a_call_that_is_let_through_neither_repeats_nor_forgets_it_on_postgres()
 {
    killed_during_a_call(On::Postgres).await;
}
