//! Tests of the log of the real binary. The log has ids, names, sizes and durations, and nothing
//! that a client sent.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use reqwest::Method;
use serde_json::{Value, json};

use super::gate::{AGENT, yaml};
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_tool::FakeTool;
use crate::support::http_client;
use crate::support::test_app::ALICE;

/// A text in everything that the test sends. No log line may contain it.
const MARK: &str = "Mk7qZ";

pub(super) struct Binary(Child);

impl Drop for Binary {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves the configuration on a free port, with the file `log` in the folder as its log.
pub(super) fn start(folder: &Path, yaml: &str) -> Binary {
    fs::write(folder.join("holdpoint.yaml"), yaml).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_holdpoint"))
        .args([
            "serve",
            "--config",
            "holdpoint.yaml",
            "--listen",
            "127.0.0.1:0",
        ])
        .current_dir(folder)
        .env_clear()
        .envs([
            ("MODEL_KEY", "sk-model-Mk7qZ-0123456789"),
            ("TOOL_SECRET", "tool-secret-Mk7qZ-0123456789"),
        ])
        .env("RUST_LOG", "trace")
        .stderr(File::create(folder.join("log")).unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Binary(child)
}

/// Waits until the log has the address on which the binary listens. Returns the address as a URL.
pub(super) async fn address(folder: &Path, binary: &mut Binary) -> String {
    loop {
        assert!(
            binary.0.try_wait().unwrap().is_none(),
            "{}",
            fs::read_to_string(folder.join("log")).unwrap()
        );
        let log = fs::read_to_string(folder.join("log")).unwrap();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        if let Some(line) = lines
            .into_iter()
            .find(|line| line["message"] == "listening")
        {
            return format!("http://{}", line["address"].as_str().unwrap());
        }
        crate::support::pause().await;
    }
}

#[tokio::test]
async fn log_holds_nothing_that_was_sent() {
    let (folder, model, tool) = (
        tempfile::tempdir().unwrap(),
        FakeModel::start().await,
        FakeTool::start().await,
    );
    let yaml = yaml("")
        .replace("{ groups: [finance] }", "{ owner: true }")
        .replace("{model}", &model.base_url)
        .replace("{tool}", &tool.url);
    let mut binary = start(folder.path(), &yaml);
    let url = address(folder.path(), &mut binary).await;
    let http = http_client();
    let send = async |method: Method, path: &str, body: Option<Value>| -> (u16, Value) {
        let mut request = http
            .request(method, format!("{url}{path}"))
            .bearer_auth(ALICE);
        for name in [
            "idempotency-key",
            "prefer",
            "traceparent",
            "user-agent",
            "x-request-id",
            "cookie",
            "referer",
        ] {
            request = request.header(name, format!("{MARK}-{path}").replace('/', "_"));
        }
        let request = if let Some(body) = body {
            request.json(&body)
        } else {
            request
        };
        let reply = request.send().await.unwrap();
        (
            reply.status().as_u16(),
            serde_json::from_str(&reply.text().await.unwrap()).unwrap_or_default(),
        )
    };
    tool.answers(500, format!("it broke: {MARK}"));
    let refund = r#"{"order":17,"amount":120}"#;
    model
        .then(calls(&[
            ("refund", refund),
            (MARK, MARK),
            ("tag", &json!({"text": MARK}).to_string()),
        ]))
        .then(text_answer(MARK));
    let task = json!({"input": MARK, "metadata": {MARK: MARK}, "user_context": {MARK: MARK}, "session_id": MARK});
    let (status, held) = send(Method::POST, "/v1/tasks", Some(task)).await;
    assert_eq!((status, &held["status"]), (201, &json!("Paused")), "{held}");
    let request = format!(
        "/resume/{}",
        held["pending"][0]["request_id"].as_str().unwrap()
    );
    for (method, path, body, expected) in marked_requests(&request) {
        assert_eq!(send(method, &path, body).await.0, expected, "{path}");
    }
    assert!(!tool.ledger().is_empty());
    propose_calls(&http, &url).await;
    let wrong = http
        .get(format!("{url}/v1/me"))
        .bearer_auth(format!("{MARK}-0123456789"))
        .send()
        .await
        .unwrap();
    assert_eq!(wrong.status(), 401);
    let token = sign_in(&http, &url).await;
    drop(binary);
    log_is_clean(
        &fs::read_to_string(folder.path().join("log")).unwrap(),
        &token,
    );
}

/// Asserts that each line of the log is JSON, and that no line contains anything that a client
/// sent. Also asserts that both wrong keys are logged with the client's address.
fn log_is_clean(log: &str, token: &str) {
    assert!(log.lines().count() > 10, "{log}");
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let wrong: Vec<_> = lines
        .filter(|line| line["message"] == "a wrong key")
        .map(|line| line["source"].clone())
        .collect();
    assert_eq!(
        wrong,
        ["127.0.0.1", "127.0.0.1"],
        "one in the API, one at the sign-in"
    );
    for line in log.lines() {
        assert!(
            serde_json::from_str::<Value>(line).is_ok(),
            "one JSON line each: {line}"
        );
        assert!(
            ![MARK, ALICE, AGENT, token]
                .iter()
                .any(|text| line.contains(text)),
            "{line}"
        );
    }
}

/// Returns HTTP requests that have [`MARK`] in every place, with their expected statuses. `request`
/// is the path of an open approval request, which the last HTTP request approves.
fn marked_requests(request: &str) -> [(Method, String, Option<Value>, u16); 9] {
    [
        (Method::GET, format!("/v1/tasks?agent={MARK}"), None, 200),
        (Method::GET, format!("/{MARK}?{MARK}={MARK}"), None, 404),
        (Method::GET, format!("/resume/{MARK}"), None, 404),
        (Method::GET, format!("/problems/{MARK}"), None, 404),
        (
            Method::from_bytes(MARK.as_bytes()).unwrap(),
            "/v1/tasks".to_owned(),
            None,
            405,
        ),
        (
            Method::POST,
            "/v1/tasks".to_owned(),
            Some(json!({"input": "x", MARK: MARK})),
            422,
        ),
        (
            Method::POST,
            "/v1/tasks".to_owned(),
            Some(json!({"input": "x", "agent": MARK})),
            422,
        ),
        (
            Method::POST,
            request.to_owned(),
            Some(json!({"action": MARK})),
            422,
        ),
        (
            Method::POST,
            request.to_owned(),
            Some(json!({"action": "approve", "reason": MARK})),
            200,
        ),
    ]
}

/// Proposes calls at a gate and reports the outcomes of two, with [`MARK`] in every place. Only the
/// second call has a permit, so only its outcome is stored.
async fn propose_calls(http: &reqwest::Client, url: &str) {
    let held = json!({"tool": "Bash", "arguments": {"command": MARK}, "session_id": MARK, "context": MARK, "metadata": {MARK: MARK}});
    let permitted = json!({"tool": "Read", "arguments": {"path": MARK}, "session_id": MARK});
    let unknown = json!({"tool": MARK, "arguments": {MARK: MARK}});
    let report =
        |call: u8| json!({"key": format!("{MARK}-{call}"), "outcome": "failed", "content": MARK});
    let over_mcp = |name: &str| {
        let meta = json!({"holdpoint/session": MARK, "holdpoint/key": format!("{MARK}-{name}")});
        let params = json!({"name": name, "arguments": {"text": MARK}, "_meta": meta});
        json!({"jsonrpc": "2.0", "id": MARK, "method": "tools/call", "params": params})
    };
    for (number, (path, body, status)) in [
        ("/v1/gate/calls", held, 202),
        ("/v1/gate/calls", permitted, 200),
        ("/v1/gate/calls", unknown, 200),
        ("/v1/gate/outcomes", report(0), 422),
        ("/v1/gate/outcomes", report(1), 200),
        ("/mcp/refunds", over_mcp("tag"), 200),
        ("/mcp/refunds", over_mcp(MARK), 200),
    ]
    .into_iter()
    .enumerate()
    {
        let post = http.post(format!("{url}{path}")).bearer_auth(AGENT);
        let post = post
            .header("idempotency-key", format!("{MARK}-{number}"))
            .header("holdpoint-runner", MARK)
            .header("prefer", "wait=0");
        let reply = post.json(&body).send().await.unwrap();
        assert_eq!(reply.status().as_u16(), status, "{body}");
    }
}

/// Signs in as a browser does, first with a wrong key and then with the right key, and signs out
/// again. Returns the session's token.
async fn sign_in(http: &reqwest::Client, url: &str) -> String {
    let enter = async |key: &str| {
        let form = format!("key={key}&next=https%3A%2F%2F{MARK}");
        let request = http.post(format!("{url}/sign-in?{MARK}={MARK}")).body(form);
        request
            .header("content-type", "application/x-www-form-urlencoded")
            .send()
            .await
            .unwrap()
    };
    assert_eq!(enter(&format!("{MARK}-0123456789")).await.status(), 401);
    let entered = enter(ALICE).await;
    assert_eq!(entered.status(), 303);
    let cookie = entered.headers()["set-cookie"]
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    for (method, path) in [
        (Method::GET, "/v1/me"),
        (Method::GET, "/sign-in"),
        (Method::POST, "/sign-out"),
    ] {
        let request = http
            .request(method, format!("{url}{path}"))
            .header("cookie", &cookie);
        assert!(
            !request.send().await.unwrap().status().is_client_error(),
            "{path}"
        );
    }
    cookie.split('=').nth(1).unwrap().to_owned()
}
