//! Tests a database that an older version of the program wrote. The current version opens it, shows
//! the same tasks, and finishes the open tasks.

use macro_rules_attribute::apply;
use serde_json::{Value, json};

use super::served_binary::{Folder, Served};
use crate::support::postgres::{TestDatabase, empty_database, run};
use crate::support::sqlite_file;
use crate::support::test_app::ALICE;

const CONFIGURATION: &str = include_str!("data/older_version.yaml");
const SCRIPT: &str = include_str!("data/older_version_script.yaml");
/// The SQL dump of a database that a service of version 0.1.0 wrote, and the ids of its four tasks
/// and two open requests. The second task was created with the idempotency key `once-only`.
struct OlderDatabase {
    dump: &'static str,
    finished: &'static str,
    held: &'static str,
    asking: &'static str,
    rejected: &'static str,
    /// The open request of the task `held`.
    approval: &'static str,
    /// The open request of the task `asking`.
    question: &'static str,
}

/// The database that the program at commit b0c1832 wrote, dumped by `sqlite3 holdpoint.db .dump`.
const SQLITE: OlderDatabase = OlderDatabase {
    dump: include_str!("data/older_version_sqlite.sql"),
    finished: "01a2050d-5c06-751d-9f29-1d838c490f5d",
    held: "01a2050d-5c3b-7746-849d-382da2df7325",
    asking: "01a2050d-5c84-74ca-8978-dbb3de864539",
    rejected: "01a2050d-5ca6-7682-997e-291e24ea6fd8",
    approval: "01a2050d-5c41-7436-87ed-8686946c37f0",
    question: "01a2050d-5c88-74cc-a1ad-53bab4c14dc4",
};

/// The database that the program at commit 293922e wrote, dumped by `pg_dump --inserts`.
const POSTGRES: OlderDatabase = OlderDatabase {
    dump: include_str!("data/older_version_postgres.sql"),
    finished: "01a206c5-0d1b-72ed-9a2a-ead5492b4328",
    held: "01a206c5-0dec-719f-9a7b-f172531921f5",
    asking: "01a206c5-0eaa-740e-8baa-ed90979c9b18",
    rejected: "01a206c5-0f3d-74e8-b7fe-1ea8027d5342",
    approval: "01a206c5-0dfa-7089-a6d5-d18b2c37c296",
    question: "01a206c5-0ead-76b5-af8a-cb4b3442dced",
};

struct Upgraded {
    served: Served,
    _folder: Folder,
    _database: Option<TestDatabase>,
}

async fn serve(older: &OlderDatabase) -> Upgraded {
    let folder = Folder::new();
    std::fs::write(folder.file("script.yaml"), SCRIPT).unwrap();
    // An idempotency key expires after a day, so the keys of the dump get the current time.
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_micros();
    let used_now = format!("update public.idempotency set created_at = {now}");
    let (mut configuration, mut database) = (CONFIGURATION.to_owned(), None);
    if older.dump.starts_with("PRAGMA") {
        let file = folder.file("holdpoint.db");
        std::fs::File::create(&file).unwrap();
        let connection = sqlite_file::connect(&format!("sqlite://{}", file.display()));
        connection.execute_batch(older.dump).unwrap();
        let used_now = used_now.replace("public.", "");
        connection.execute_batch(&used_now).unwrap();
    } else {
        let empty = empty_database().await;
        run(&empty.url, older.dump.to_owned()).await;
        run(&empty.url, used_now).await;
        configuration = format!("{CONFIGURATION}database: {{ url: \"{}\" }}\n", empty.url);
        database = Some(empty);
    }
    Upgraded {
        served: Served::start(folder.path(), &configuration, &[]).bearer(ALICE),
        _folder: folder,
        _database: database,
    }
}

/// Makes two tests of a function: one per database engine. Each test begins with a database that the
/// older version wrote.
macro_rules! on_both {
    (async fn $name:ident($older:ident: &OlderDatabase $(,)?) $body:block) => {
        async fn $name($older: &OlderDatabase) $body

        mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_sqlite() {
                super::$name(&super::SQLITE).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_postgres() {
                super::$name(&super::POSTGRES).await;
            }
        }
    };
}

async fn read(served: &Served, path: &str) -> Value {
    serde_json::from_str(&served.get(path).await).unwrap()
}

async fn items(served: &Served, task: &str, of_type: &str) -> Vec<Value> {
    let page = read(served, &format!("/v1/tasks/{task}/items?limit=200")).await;
    let all = page["items"].as_array().unwrap().iter();
    all.filter(|item| item["type"] == of_type)
        .cloned()
        .collect()
}

#[apply(on_both)]
async fn database_of_an_older_version_is_opened_with_its_tasks_and_requests(older: &OlderDatabase) {
    let upgraded = serve(older).await;
    let served = &upgraded.served;
    let listed = read(served, "/v1/tasks").await;
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
            (older.rejected, "Canceled"),
            (older.asking, "Paused"),
            (older.held, "Paused"),
            (older.finished, "Completed")
        ]
    );
    let rejected = items(served, older.rejected, "tool_result").await;
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    assert_eq!(rejected[0]["outcome"], "rejected", "{rejected:?}");
    for (task, request, kind) in [
        (older.held, older.approval, "approval"),
        (older.asking, older.question, "guidance"),
    ] {
        let task = read(served, &format!("/v1/tasks/{task}")).await;
        let pending = &task["pending"][0];
        assert_eq!(
            (&pending["request_id"], &pending["kind"], &pending["status"]),
            (&json!(request), &json!(kind), &json!("pending")),
            "{task}"
        );
    }
}

#[apply(on_both)]
async fn requests_opened_by_an_older_version_are_decided_and_the_call_runs_once(
    older: &OlderDatabase,
) {
    let upgraded = serve(older).await;
    let served = &upgraded.served;
    let path = format!("/resume/{}", older.approval);
    let paid = served.post(&path, &json!({"action": "approve"})).await;
    assert_eq!(
        (&paid["task_id"], &paid["status"]),
        (&json!(older.held), &json!("Completed")),
        "{paid}"
    );
    let again = served.post(&path, &json!({"action": "approve"})).await;
    assert_eq!(again["status"], 409, "{again}");
    let (starts, results) = (
        items(served, older.held, "tool_started").await,
        items(served, older.held, "tool_result").await,
    );
    assert_eq!(
        (starts.len(), results.len()),
        (1, 1),
        "{starts:?} {results:?}"
    );
    assert_eq!(results[0]["outcome"], "succeeded", "{results:?}");

    let answer = json!({"action": "respond", "response": {"answer": "order 17"}});
    let answered = served
        .post(&format!("/resume/{}", older.question), &answer)
        .await;
    assert_eq!(
        (&answered["task_id"], &answered["status"]),
        (&json!(older.asking), &json!("Completed")),
        "{answered}"
    );
}

#[apply(on_both)]
async fn post_repeated_under_a_key_of_an_older_version_gets_the_task_it_created(
    older: &OlderDatabase,
) {
    let upgraded = serve(older).await;
    let served = &upgraded.served;
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
        (201, "true", older.held.to_owned()),
        "{}",
        repeated.text
    );
    let other = served
        .exchange("POST", "/v1/tasks", &headers, r#"{"input":"another"}"#)
        .await;
    assert_eq!(other.status, 422, "{}", other.text);
}
