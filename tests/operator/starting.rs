//! Tests the service before its database is open: its answers, its log, and the connections that
//! stay open until the service is ready. Also tests a signal that the service inherits as ignored.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::holdpoint;
use super::served_binary::{Folder, Served};
use crate::chaos::process::free_port;
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::postgres::PrivateCluster;

const SMALL: &str = "models: { m: { provider: scripted, script: 'builtin:refunds' } }\nagents: { a: { model: m } }\n";

const INPUT: &str = r#"{"input": "hello"}"#;

/// Returns an address at which nothing listens. No other test process gets its port before this
/// process ends.
fn closed_port() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

fn url(database: SocketAddr) -> String {
    format!("postgres://user:hunter2@{database}/d?sslmode=disable")
}

/// A connection that is kept open between two requests.
struct KeptOpen(BufReader<TcpStream>);

impl KeptOpen {
    async fn to(address: &str) -> Self {
        Self(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    /// Returns the status and the body of the answer.
    async fn ask(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        self.0.write_all(request.as_bytes()).await.unwrap();
        let (mut head, mut line) = (String::new(), String::new());
        while line != "\r\n" {
            line.clear();
            let read = self.0.read_line(&mut line).await.unwrap();
            assert!(read > 0, "the connection was closed: {head}");
            head.push_str(&line);
        }
        let length = head.split("content-length: ").nth(1).unwrap();
        let length = length.lines().next().unwrap().parse().unwrap();
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, String::from_utf8(body).unwrap())
    }
}

/// Asserts that the service lives and is not ready.
async fn is_alive_and_not_ready(served: &Served) {
    let (here, other) = ([("host", "localhost")], [("host", "probe.internal")]);
    for host in [&here, &other] {
        let health = served.exchange("GET", "/healthz", host, "").await;
        assert_eq!((health.status, health.text.as_str()), (200, "ok\n"));
        let head = served.exchange("HEAD", "/healthz", host, "").await;
        assert_eq!((head.status, head.text.as_str()), (200, ""));
        let ready = served.exchange("GET", "/readyz", host, "").await;
        assert_eq!(
            (ready.status, ready.header("retry-after")),
            (503, "1"),
            "{}",
            ready.text
        );
    }
    for (method, path) in [("POST", "/v1/tasks"), ("GET", "/metrics"), ("GET", "/x")] {
        let refused = served.exchange(method, path, &here, INPUT).await;
        assert_eq!(
            (refused.status, refused.str("/code").as_str()),
            (503, "unavailable"),
            "{path}: {}",
            refused.text
        );
        assert_eq!(refused.header("retry-after"), "1", "{path}");
        let foreign = served.exchange(method, path, &other, INPUT).await;
        assert_eq!(foreign.status, 403, "{path}: {}", foreign.text);
        assert!(!format!("{refused:?} {foreign:?}").contains("hunter2"));
    }
}

/// Asserts that a client which asks for an event stream is told to reconnect, and that a POST with
/// the same header is refused.
async fn streams_end_at_once(served: &Served) {
    let stream = [("host", "localhost"), ("accept", "text/event-stream")];
    let ended = served.exchange("GET", "/v1/events", &stream, "").await;
    assert_eq!(ended.status, 200);
    assert_eq!(ended.text.as_str(), "retry: 1000\n\n");
    assert_eq!(ended.header("content-type"), "text/event-stream");
    let post = served.exchange("POST", "/v1/tasks", &stream, INPUT).await;
    assert_eq!(post.status, 503, "{}", post.text);
    let foreign = [("host", "probe.internal"), stream[1]];
    let foreign = served.exchange("GET", "/v1/events", &foreign, "").await;
    assert_eq!(foreign.status, 403, "{}", foreign.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn service_that_waits_for_its_database_lives_is_not_ready_and_ends_on_sigterm() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for database in [silent.local_addr().unwrap(), closed_port()] {
        let folder = Folder::new();
        let mut served = Served::starting(folder.path(), SMALL, &url(database));
        is_alive_and_not_ready(&served).await;
        streams_end_at_once(&served).await;
        assert!(served.terminate().success());
        let log = served.log();
        assert!(
            !log.contains("listening") && !log.contains("hunter2"),
            "{log}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_connects_while_a_service_starts_waits_for_its_database() {
    let (folder, address) = (Folder::new(), closed_port().to_string());
    std::fs::write(folder.path().join("holdpoint.yaml"), SMALL).unwrap();
    let to = address.clone();
    let first = std::thread::spawn(move || {
        let mut connection = loop {
            match std::net::TcpStream::connect(&to) {
                Ok(connection) => break connection,
                Err(_) => std::thread::yield_now(),
            }
        };
        let request = "GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        connection.write_all(request.as_bytes()).unwrap();
        std::io::read_to_string(connection).unwrap()
    });
    let serve = ["serve", "--listen", &address];
    let _served = Served::with(folder.path(), &serve, &[]);
    let answer = first.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_of_the_start_is_served_on_once_the_database_is_open() {
    let (cluster, model, folder) = (
        PrivateCluster::start(),
        FakeModel::start().await,
        Folder::new(),
    );
    model.otherwise(|_| text_answer("done"));
    let yaml = format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}' }} }}\nagents: {{ a: {{ model: m }} }}\n",
        model.base_url
    );
    cluster.crash();
    let mut served = Served::starting(folder.path(), &yaml, &cluster.url("postgres"));
    let mut connection = KeptOpen::to(&served.address).await;
    assert_eq!(connection.ask("GET", "/readyz", "").await.0, 503);
    assert_eq!(connection.ask("POST", "/v1/tasks", INPUT).await.0, 503);
    cluster.start_again();
    while connection.ask("GET", "/readyz", "").await.0 != 200 {
        crate::support::pause().await;
    }
    let (status, body) = connection.ask("POST", "/v1/tasks", INPUT).await;
    let task: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &task["status"]),
        (201, &"Completed".into()),
        "{task}"
    );
    assert!(served.terminate().success());
    let log = served.log();
    assert!(log.contains("\"listening\""), "{log}");
}

#[test]
fn address_in_use_is_reported_although_the_database_is_away() {
    let folder = Folder::new();
    std::fs::write(folder.file("holdpoint.yaml"), SMALL).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let database = url(closed_port());
    let variables = [("HOLDPOINT_DATABASE__URL", database.as_str())];
    let done = holdpoint(folder.path(), &["serve", "--listen", &address], &variables);
    assert_eq!(done.code, Some(1), "{}", done.err);
    let lines: Vec<Value> = done
        .err
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect();
    let last = lines.last().unwrap();
    assert_eq!(last["level"], "ERROR", "{last}");
    let said = last["message"].as_str().unwrap();
    assert!(
        said.contains(&format!("cannot listen on {address}")),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn outcome_of_a_command_is_known_although_the_service_inherits_an_ignored_sigchld() {
    let (model, folder) = (FakeModel::start().await, Folder::new());
    let yaml = format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}' }} }}
agents: {{ a: {{ model: m, tools: [sh] }} }}
tools: {{ sh: {{ shell: {{ env: [PATH] }} }} }}
policy: [ {{ name: all, tools: [sh], decide: allow }} ]
auth: {{ api_keys: [ {{ user: alice, key: alice-key-0123456789 }} ] }}
",
        model.base_url
    );
    let variables = [("PATH", "/usr/bin:/bin")];
    let served = Served::ignoring_sigchld(folder.path(), &yaml, &variables);
    let served = served.bearer("alice-key-0123456789");
    for command in ["true", "exit 3"] {
        let arguments = json!({"command": command}).to_string();
        model
            .then(calls(&[("sh", &arguments)]))
            .then(text_answer("done"));
        let task = served.task("go").await;
        assert_eq!(task["status"], "Completed", "{command}: {task}");
    }
}
