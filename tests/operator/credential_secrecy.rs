//! Tests where a credential that a user fills in can be found: in the HTTP request to the tool that
//! takes it, and nowhere else. The credential is not in a reply, a page, an item, a table, a file
//! of the database, a log or a prompt, in any spelling or as a hash that could be guessed. The same
//! holds for the values of refused answers.

mod fixture;
mod refused_answers;

use serde_json::json;

use self::fixture::{PlantedSecrets, SecrecyFixture};
use super::served_binary::{Served, fakes};
use super::stored_values::everything;
use crate::support::database::Database;
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_tool::FakeTool;
use crate::support::test_app::{ACCOUNTS, ALICE, On};

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const HTML: &str = "text/html,application/xhtml+xml";
/// A text in the user's messages. The search for leaked values must find this text, to prove that
/// the search works.
const SEEN: &str = "canary-that-may-be-seen/\"é+0123456789";

const FILE: &str = r#"
secrets: { keys: [ { id: k1, key: "${SEALING_KEY}" } ] }
credentials: { vault: { fields: { long: {}, json: {}, percent: {} } } }
models: { main: { provider: openai, base_url: "{model}", model: fake, retries: 0 } }
tools:
  use: { http: { method: POST, url: "{tool}/use/{{credential:vault.percent}}?q={{credential:vault.long}}", headers: { X-Long: "{{credential:vault.long}}", X-Json: "{{credential:vault.json}}" } } }
  pay: { http: { method: POST, url: "{tool}/pay", headers: { X-Long: "{{credential:vault.long}}" } } }
  sh: { shell: { env: { PATH: "${PATH}", LONG: "{{credential:vault.long}}", JSON: "{{credential:vault.json}}" } } }
agents: { clerk: { description: A clerk., model: main, tools: [use, pay, sh], human: [credentials] } }
policy:
  - { name: held, tools: [pay], decide: hold }
  - { name: rest, tools: [use, sh], decide: allow }
"#;

/// Returns how often the tool received the planted values. Asserts that the values arrived
/// unchanged.
fn received(tool: &FakeTool, planted: &PlantedSecrets) -> usize {
    let long = |call: &crate::support::fake_tool::Execution| call.header("x-long") == planted.long;
    let calls = tool.ledger();
    for call in calls
        .iter()
        .filter(|call| long(call) && call.uri.starts_with("/use/"))
    {
        assert_eq!(call.headers["x-json"].as_bytes(), planted.json.as_bytes());
        let url = url::Url::parse(&format!("http://h{}", call.uri)).unwrap();
        let path = url
            .path_segments()
            .unwrap()
            .nth(1)
            .unwrap()
            .replace('+', "%2B");
        assert_eq!(
            url::form_urlencoded::parse(path.as_bytes())
                .next()
                .unwrap()
                .0,
            planted.percent
        );
        assert_eq!(url.query_pairs().next().unwrap().1, planted.long);
    }
    calls.iter().filter(|call| long(call)).count()
}

/// Answers a credential request with JSON. The tool, a command and the model repeat everything that
/// they get.
async fn answered_as_json(fixture: &mut SecrecyFixture, model: &FakeModel, tool: &FakeTool) {
    let (task, request) = fixture.task("task-1", "use").await;
    fixture.refused(&request).await;
    assert!(
        tool.ledger().is_empty(),
        "the refused answers changed nothing"
    );
    let (answer, echoed) = {
        let planted = fixture.plant();
        let values = [&planted.long, &planted.json, &planted.percent];
        (
            planted.answer(),
            values
                .iter()
                .flat_map(|value| super::variable_secrecy::spellings(value))
                .collect::<Vec<_>>()
                .join(" | "),
        )
    };
    tool.answers(200, echoed.clone());
    let command = json!({"command": "printf '%s' \"$LONG $JSON\"; printf '%s' \"$LONG\" | base64 -w0; printf '%s' \"$JSON\" >&2; exit 3"});
    model
        .then(calls(&[("sh", &command.to_string())]))
        .then(calls(&[(
            &echoed[..200],
            &json!({"x": echoed}).to_string(),
        )]))
        .then(text_answer(&echoed));
    let path = format!("/resume/{request}");
    let done = fixture.post(&path, "answer-1", &answer).await;
    done.assert_status(200, "Completed");
    assert!(
        done.str("/output").contains("[secret vault.long]"),
        "{}",
        done.text
    );
    let again = fixture.post(&path, "answer-1", &answer).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (200, "true"),
        "{}",
        again.text
    );
    for (key, status) in [("answer-1", 422), ("late-1", 409), ("late-2", 409)] {
        let other = fixture.plant().answer();
        assert_eq!(fixture.post(&path, key, &other).await.status, status);
    }
    fixture.read(&task, &request).await;
    let of_json = fixture
        .planted
        .iter()
        .filter(|planted| received(tool, planted) > 0)
        .count();
    assert_eq!(
        (of_json, tool.ledger().len()),
        (1, 1),
        "one request of one tool has it"
    );
}

/// Answers a credential request through the form of the request's page. Afterwards a call that uses
/// the credential waits for approval. Returns the task, its credential request and its approval
/// request.
async fn answered_by_form(
    fixture: &mut SecrecyFixture,
    model: &FakeModel,
    tool: &FakeTool,
) -> (String, String, String) {
    model.then(calls(&[("request_credentials", r#"{"service":"vault"}"#)]));
    let asked = fixture
        .post("/v1/tasks", "task-2", &json!({"input": SEEN}))
        .await;
    let (second, asked) = (asked.str("/task_id"), asked.str("/pending/0/request_id"));
    let (path, bearer) = (format!("/resume/{asked}"), format!("Bearer {ALICE}"));
    let shown = fixture
        .send(
            "GET",
            &path,
            &[("authorization", &bearer), ("accept", JSON)],
            Vec::new(),
        )
        .await;
    let form = {
        let planted = fixture.plant();
        let values = [&planted.long, &planted.json, &planted.percent];
        let echoed: Vec<_> = values
            .iter()
            .flat_map(|value| super::variable_secrecy::spellings(value))
            .collect();
        tool.answers(400, echoed.join(" | "));
        planted.form(&[("digest", &shown.str("/digest"))])
    };
    model.then(calls(&[("pay", "{}")]));
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", FORM),
        ("accept", HTML),
        ("idempotency-key", "form-1"),
    ];
    let typed = fixture
        .send("POST", &path, &headers, form.into_bytes())
        .await;
    assert_eq!(
        (typed.status, typed.header("location")),
        (303, path.as_str()),
        "{}",
        typed.text
    );
    let held = loop {
        let task = fixture
            .send(
                "GET",
                &format!("/v1/tasks/{second}"),
                &[("authorization", &bearer), ("prefer", "wait=5")],
                Vec::new(),
            )
            .await;
        if task.body["pending"][0]["kind"] == "approval" {
            break task.str("/pending/0/request_id");
        }
    };
    fixture.read(&second, &asked).await;
    (second, asked, held)
}

async fn nothing_is_seen(on: On, level: &str) {
    let (model, tool, folder) = fakes().await;
    let database = match on {
        On::Sqlite => Database::at(&format!(
            "sqlite://{}/holdpoint.db",
            folder.path().display()
        )),
        On::Postgres => Database::postgres().await,
    };
    let yaml = FILE
        .replace("{model}", &model.base_url)
        .replace("{tool}", &tool.url)
        + ACCOUNTS;
    let yaml = format!("{yaml}\ndatabase: {{ url: '{}' }}\n", database.url());
    let variables = [
        (
            "SEALING_KEY",
            "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
        ),
        ("RUST_LOG", level),
        ("PATH", "/usr/bin:/bin"),
    ];
    let served = Served::start(folder.path(), &yaml, &variables);
    let mut fixture = SecrecyFixture {
        served,
        model: model.clone(),
        planted: Vec::new(),
        body_hashes: Vec::new(),
        heard: Vec::new(),
    };

    answered_as_json(&mut fixture, &model, &tool).await;
    let (second, asked, held) = answered_by_form(&mut fixture, &model, &tool).await;

    // The test searches the database twice: now, while the credential is stored, and after a crash.
    let kept = everything(database.url(), folder.path()).await;
    assert!(
        kept.iter()
            .any(|(table, rows)| table == "credential" && rows.contains("vault")),
        "it is kept"
    );
    fixture.is_silent("the database while it is kept", &kept, true);
    fixture.served.kill();
    let log = fixture.served.log();
    assert!(log.lines().all(|line| line.starts_with('{')), "{log}");
    fixture.is_silent("the log up to a crash", &[("log".to_owned(), log)], false);
    fixture.is_silent(
        "the database after a crash",
        &everything(database.url(), folder.path()).await,
        true,
    );

    fixture.served = Served::start(folder.path(), &yaml, &variables);
    model.then(text_answer("done"));
    let paid = fixture
        .post(
            &format!("/resume/{held}"),
            "approve-1",
            &json!({"action": "approve"}),
        )
        .await;
    paid.assert_status(200, "Completed");
    assert_eq!(received(&tool, fixture.planted.last().unwrap()), 1);
    assert_eq!(tool.ledger().len(), 2);
    fixture.read(&second, &asked).await;
    assert!(fixture.served.terminate().success());
    let log = fixture.served.log();
    fixture.is_silent("the log", &[("log".to_owned(), log)], false);
    fixture.is_silent(
        "the database",
        &everything(database.url(), folder.path()).await,
        true,
    );
    fixture.is_silent("answers", &fixture.heard, true);
    let sent: Vec<_> = model
        .sent()
        .iter()
        .map(|body| ("model".to_owned(), body.to_string()))
        .collect();
    fixture.is_silent("what the model was sent", &sent, true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credential_is_only_in_the_request_of_its_tool_on_sqlite() {
    nothing_is_seen(On::Sqlite, "trace").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credential_is_only_in_the_request_of_its_tool_on_postgres() {
    nothing_is_seen(On::Postgres, "debug").await;
}
