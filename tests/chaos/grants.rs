//! A process that is killed while a call that a standing decision let through is under way.

use serde_json::{Value, json};

use super::ServiceFixture;
use crate::support::fake_chat_completions::{calls, says};
use crate::support::test_app::On;

const LARGE: &str = r#"{"order":1,"amount":50}"#;

async fn remembering() -> ServiceFixture {
    let fixture = ServiceFixture::new(On::Sqlite).await;
    let path = fixture.folder.path().join("holdpoint.yaml");
    let yaml = std::fs::read_to_string(&path).unwrap();
    let offer = r#"approvers: { owner: true }, remember: { when: "args.amount <= 500.0", for: [owner], most: 4h, uses: 2 }"#;
    let yaml = yaml.replace("approvers: { owner: true }", offer);
    std::fs::write(&path, yaml).unwrap();
    fixture
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_killed_during_a_call_that_is_let_through_neither_repeats_nor_forgets_it() {
    let fixture = remembering().await;
    let binary = fixture.start().await;
    fixture.model.then(calls(&[("refund", LARGE)]));
    fixture.model.then(says("done"));
    let (_, held) = binary.post("/v1/tasks", &json!({"input": "go"})).await;
    let request = held["pending"][0]["request_id"].as_str().unwrap();
    let answer = json!({"action": "approve", "remember": {"for": "owner", "expires_in": "1h"}});
    let (status, done) = binary.post(&format!("/resume/{request}"), &answer).await;
    assert_eq!(
        (status, &done["status"]),
        (200, &json!("Completed")),
        "{done}"
    );
    fixture.tool.close();
    fixture.model.then(calls(&[("refund", LARGE)]));
    let body = json!({"input": "again"});
    let post = binary.http.post(format!("{}/v1/tasks", binary.url));
    let post = post
        .bearer_auth(crate::support::test_app::ALICE)
        .json(&body);
    let (cut, ()) = tokio::join!(post.send(), async {
        fixture.tool.reached(2).await;
        let pid = i32::try_from(binary.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    assert!(cut.is_err());
    binary.kill();
    fixture.tool.open();
    let binary = fixture.start().await;
    let used = async || binary.get("/v1/grants").await["grants"][0]["used"].clone();
    assert_eq!(used().await, 1, "the call that was under way");
    let asked = loop {
        let tasks = binary.get("/v1/tasks?status=Paused").await;
        if let Some(task) = tasks["tasks"].as_array().and_then(|tasks| tasks.first()) {
            break task.clone();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(
        asked["pending"][0]["kind"], "reconcile",
        "never silently run again: {asked}"
    );
    fixture.model.then(says("done"));
    let path = format!(
        "/resume/{}",
        asked["pending"][0]["request_id"].as_str().unwrap()
    );
    let answer = json!({"action": "respond", "result": "it was paid"});
    let (_, done): (u16, Value) = binary.post(&path, &answer).await;
    assert_eq!(done["status"], "Completed", "{done}");
    for (expected, runs) in [("Completed", 3), ("Paused", 3)] {
        fixture.model.then(calls(&[("refund", LARGE)]));
        fixture.model.then(says("done"));
        let (_, task) = binary.post("/v1/tasks", &json!({"input": "more"})).await;
        assert_eq!(
            (&task["status"], fixture.tool.ledger().len()),
            (&json!(expected), runs),
            "{task}"
        );
    }
    assert_eq!(used().await, 2);
}
