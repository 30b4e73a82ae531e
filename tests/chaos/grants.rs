//! Tests of a process that is killed during a call that a standing decision let through.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::ServiceFixture;
use super::process::{Place, Process};
use crate::support::fake_chat_completions::{calls, says};
use crate::support::pause;
use crate::support::test_app::{ALICE, On};

const LARGE: &str = r#"{"order":1,"amount":50}"#;

/// A service at a fixed port. By its rule, a person can give a standing decision with an approval.
struct Remembering {
    fixture: ServiceFixture,
    place: Place,
    http: reqwest::Client,
}

impl Remembering {
    async fn new(on: On) -> Self {
        let fixture = ServiceFixture::new(on).await;
        let path = fixture.folder.path().join("holdpoint.yaml");
        let yaml = std::fs::read_to_string(&path).unwrap();
        let offer = r#"approvers: { owner: true }, remember: { when: "args.amount <= 500.0", for: [owner], most: 4h, uses: 2 }"#;
        let yaml = yaml
            .replace("approvers: { owner: true }", offer)
            .replace("${MODEL_KEY}", "sk-model-key-0123456789")
            .replace("${TOOL_SECRET}", "tool-secret-0123456789");
        std::fs::write(&path, yaml).unwrap();
        let place = Place::new(path);
        #[expect(
            clippy::disallowed_methods,
            reason = "a test is a client like any other"
        )]
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self {
            fixture,
            place,
            http,
        }
    }

    /// Starts a process whose clock is `ahead` seconds ahead. On Postgres, the clock of the
    /// database is also ahead.
    async fn start(&self, ahead: u32) -> Process {
        let mut process = self.place.start(&format!("clock={ahead}s"));
        let ready = process.ready(&self.http).await;
        assert!(ready, "{}", self.place.last_words());
        process
    }

    async fn post(&self, path: &str, body: &Value) -> reqwest::Result<Value> {
        let post = self.http.post(format!("{}{path}", self.place.url()));
        let reply = post.bearer_auth(ALICE).json(body).send().await?;
        reply.json().await
    }

    async fn get(&self, path: &str) -> Value {
        let get = self.http.get(format!("{}{path}", self.place.url()));
        let reply = get.bearer_auth(ALICE).send().await.unwrap();
        reply.json().await.unwrap()
    }

    async fn used(&self) -> Value {
        self.get("/v1/grants").await["grants"][0]["used"].clone()
    }
}

async fn killed_during_a_call(on: On) {
    let service = Remembering::new(on).await;
    let (model, tool) = (&service.fixture.model, &service.fixture.tool);
    let process = service.start(0).await;
    model.then(calls(&[("refund", LARGE)]));
    model.then(says("done"));
    let held = service.post("/v1/tasks", &json!({"input": "go"})).await;
    let request = held.unwrap()["pending"][0]["request_id"].clone();
    let path = format!("/resume/{}", request.as_str().unwrap());
    let answer = json!({"action": "approve", "remember": {"for": "owner", "expires_in": "1h"}});
    let done = service.post(&path, &answer).await.unwrap();
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
    // On Postgres the killed process still holds the lease, so the clock is set ahead to a time
    // after the lease.
    let process = service.start(120).await;
    assert_eq!(service.used().await, 1, "the call that was under way");
    let asked = loop {
        let tasks = service.get("/v1/tasks?status=Paused").await;
        if let Some(task) = tasks["tasks"].as_array().and_then(|tasks| tasks.first()) {
            break task.clone();
        }
        pause().await;
    };
    let question = &asked["pending"][0];
    assert_eq!(question["kind"], "reconcile", "never silently run again");
    model.then(says("done"));
    let path = format!("/resume/{}", question["request_id"].as_str().unwrap());
    let answer = json!({"action": "respond", "result": "it was paid"});
    let done = service.post(&path, &answer).await.unwrap();
    assert_eq!(done["status"], "Completed", "{done}");
    for (expected, runs) in [("Completed", 3), ("Paused", 3)] {
        model.then(calls(&[("refund", LARGE)]));
        model.then(says("done"));
        let task = service.post("/v1/tasks", &json!({"input": "more"})).await;
        let seen = (task.unwrap()["status"].clone(), tool.ledger().len());
        assert_eq!(seen, (json!(expected), runs));
    }
    assert_eq!(service.used().await, 2);
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
