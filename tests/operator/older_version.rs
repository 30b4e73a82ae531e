//! A database written by an older version of the program: the current version opens it, shows the
//! same tasks, and finishes the open tasks.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqliteConnection};

use super::served_binary::{Folder, Served};
use crate::support::test_app::ALICE;

const CONFIGURATION: &str = include_str!("data/older_version.yaml");
const SCRIPT: &str = include_str!("data/older_version_script.yaml");
/// The database of a service of version 0.1.0 (b0c1832), by `sqlite3 holdpoint.db .dump`: the four
/// tasks below, the second created with the idempotency key `once-only`.
const DATABASE: &str = include_str!("data/older_version.sql");

const FINISHED: &str = "01a2050d-5c06-751d-9f29-1d838c490f5d";
const HELD: &str = "01a2050d-5c3b-7746-849d-382da2df7325";
const ASKING: &str = "01a2050d-5c84-74ca-8978-dbb3de864539";
const REJECTED: &str = "01a2050d-5ca6-7682-997e-291e24ea6fd8";
const APPROVAL: &str = "01a2050d-5c41-7436-87ed-8686946c37f0";
const QUESTION: &str = "01a2050d-5c88-74cc-a1ad-53bab4c14dc4";

/// Serves a copy of the older version's database.
async fn serve(folder: &Folder) -> Served {
    std::fs::write(folder.file("script.yaml"), SCRIPT).unwrap();
    let url = format!(
        "sqlite://{}?mode=rwc",
        folder.file("holdpoint.db").display()
    );
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    connection.execute(DATABASE).await.unwrap();
    // An idempotency key older than a day counts as never used.
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_micros();
    let used_now = format!("update idempotency set created_at = {now}");
    connection.execute(AssertSqlSafe(used_now)).await.unwrap();
    connection.close().await.unwrap();
    Served::start(folder.path(), CONFIGURATION, &[]).bearer(ALICE)
}

async fn read(served: &Served, path: &str) -> Value {
    serde_json::from_str(&served.get(path).await).unwrap()
}

/// The items of one type in a task's journal.
async fn items(served: &Served, task: &str, of_type: &str) -> Vec<Value> {
    let page = read(served, &format!("/v1/tasks/{task}/items?limit=200")).await;
    let all = page["items"].as_array().unwrap().iter();
    all.filter(|item| item["type"] == of_type)
        .cloned()
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_of_an_older_version_is_opened_with_its_tasks_and_requests() {
    let folder = Folder::new();
    let served = serve(&folder).await;
    let listed = read(&served, "/v1/tasks").await;
    let statuses: Vec<_> = listed["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| {
            (
                task["task_id"].as_str().unwrap(),
                task["status"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        statuses,
        [
            (REJECTED, "Canceled"),
            (ASKING, "Paused"),
            (HELD, "Paused"),
            (FINISHED, "Completed")
        ]
    );
    let rejected = items(&served, REJECTED, "tool_result").await;
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    assert_eq!(rejected[0]["outcome"], "rejected", "{rejected:?}");
    for (task, request, kind) in [(HELD, APPROVAL, "approval"), (ASKING, QUESTION, "guidance")] {
        let task = read(&served, &format!("/v1/tasks/{task}")).await;
        let pending = &task["pending"][0];
        assert_eq!(
            (&pending["request_id"], &pending["kind"], &pending["status"]),
            (&json!(request), &json!(kind), &json!("pending")),
            "{task}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_opened_by_an_older_version_are_decided_and_the_call_runs_once() {
    let folder = Folder::new();
    let served = serve(&folder).await;
    let path = format!("/resume/{APPROVAL}");
    let paid = served.post(&path, &json!({"action": "approve"})).await;
    assert_eq!(
        (&paid["task_id"], &paid["status"]),
        (&json!(HELD), &json!("Completed")),
        "{paid}"
    );
    let again = served.post(&path, &json!({"action": "approve"})).await;
    assert_eq!(again["status"], 409, "{again}");
    let (starts, results) = (
        items(&served, HELD, "tool_started").await,
        items(&served, HELD, "tool_result").await,
    );
    assert_eq!(
        (starts.len(), results.len()),
        (1, 1),
        "{starts:?} {results:?}"
    );
    assert_eq!(results[0]["outcome"], "succeeded", "{results:?}");

    let answer = json!({"action": "respond", "response": {"answer": "order 17"}});
    let answered = served.post(&format!("/resume/{QUESTION}"), &answer).await;
    assert_eq!(
        (&answered["task_id"], &answered["status"]),
        (&json!(ASKING), &json!("Completed")),
        "{answered}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn post_repeated_under_a_key_of_an_older_version_gets_the_task_it_created() {
    let folder = Folder::new();
    let served = serve(&folder).await;
    let bearer = format!("Bearer {ALICE}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("idempotency-key", "once-only"),
    ];
    let repeated = served
        .exchange(
            "POST",
            "/v1/tasks",
            &headers,
            r#"{"input":"refund the order"}"#,
        )
        .await;
    assert_eq!(
        (
            repeated.status,
            repeated.header("idempotency-replayed"),
            repeated.str("/task_id")
        ),
        (201, "true", HELD.to_owned()),
        "{}",
        repeated.text
    );
    let other = served
        .exchange("POST", "/v1/tasks", &headers, r#"{"input":"another"}"#)
        .await;
    assert_eq!(other.status, 422, "{}", other.text);
}
