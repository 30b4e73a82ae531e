//! Tests connections of clients without a key, and connections beyond the limit. Such connections
//! must not block the service for other clients.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::served_binary::{Served, fakes};
use crate::support::fake_chat_completions::{FakeModel, calls, text_answer};
use crate::support::fake_tool::FakeTool;
use crate::support::raw_http;
use crate::support::test_app::{On, TestApp, refunds};

/// Returns a configuration with few database connections and few slots, and with a `once` tool
/// whose calls are held.
fn paying(model: &FakeModel, tool: &FakeTool, server: &str) -> String {
    format!(
        "models: {{ m: {{ provider: openai, model: x, base_url: '{}' }} }}
agents: {{ a: {{ model: m, tools: [pay] }} }}
tools: {{ pay: {{ http: {{ url: '{}/pay' }} }} }}
database: {{ max_connections: 4 }}
server: {{ max_running: 4{server} }}
",
        model.base_url, tool.url
    )
}

fn logged(served: &Served, message: &str) -> Option<Value> {
    let lines = served.lines();
    let mut lines = lines
        .iter()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find(|line| line["message"] == message)
}

/// Opens 200 connections of a client without a key: some silent, some with half a request, and some
/// kept open after a whole request.
async fn flood(address: &str) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for number in 0..200 {
        let mut connection = TcpStream::connect(address).await.unwrap();
        match number % 3 {
            0 => {}
            1 => connection
                .write_all(b"POST /v1/tasks HTTP/1.1\r\nhost: x\r\n")
                .await
                .unwrap(),
            _ => {
                connection
                    .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                    .await
                    .unwrap();
                connection.read_exact(&mut [0; 15]).await.unwrap();
            }
        }
        held.push(connection);
    }
    held
}

fn sockets(served: &Served) -> usize {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", served.process.id())).unwrap();
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_without_a_key_stop_neither_answers_nor_outbound_calls() {
    let (model, tool, folder) = fakes().await;
    let served = Served::limited(folder.path(), &paying(&model, &tool, ""), 100, 160);
    let shared = logged(&served, "file descriptors are reserved").unwrap();
    assert_eq!(
        (&shared["descriptors"], &shared["connections"]),
        (&160.into(), &48.into()),
        "the soft limit was raised: {shared}"
    );
    model
        .then(calls(&[("pay", "{}")]))
        .then(text_answer("paid"));
    let task = served.task("pay").await;
    let held = flood(&served.address).await;
    assert_eq!(served.status("/readyz").await, 200);
    let sockets = sockets(&served);
    assert!(
        sockets < 80,
        "{sockets} sockets are open: more than the connections' share"
    );
    let done = served.approve(&task).await;
    assert_eq!(
        (&done["status"], tool.ledger().len()),
        (&"Completed".into(), 1),
        "{done}"
    );
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_stay_within_the_configured_limit() {
    let (model, tool, folder) = fakes().await;
    let served = Served::start(
        folder.path(),
        &paying(&model, &tool, ", max_connections: 5"),
        &[],
    );
    let mut held = flood(&served.address).await;
    assert_eq!(served.status("/readyz").await, 200);
    let sockets = sockets(&served);
    assert!(sockets < 20, "{sockets} sockets are open");
    // Waits until the service has closed the first 190 of the 200 connections.
    for connection in &mut held[..190] {
        let mut rest = Vec::new();
        let _ = connection.read_to_end(&mut rest).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_of_a_known_caller_outlives_strangers_and_their_requests_make_room() {
    let room = "\nserver: { max_connections: 3 }\n";
    let app = TestApp::with(On::Sqlite, &(refunds("{ owner: true }") + room)).await;
    // At the limit, the service may close an idle connection while the client reuses it. `close`
    // keeps the client from reusing a connection.
    let owner = || app.owner().header("connection", "close");
    let held = app.held_by(&owner()).await;
    let mut watch = owner().watch(&held.task, None).await;
    watch.until("request.created").await;
    let url = app.url();
    let mut strangers = Vec::new();
    for _ in 0..4 {
        let mut stranger = TcpStream::connect(url.strip_prefix("http://").unwrap())
            .await
            .unwrap();
        let half = "POST /sign-in HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: 40\r\n\r\nkey=";
        stranger.write_all(half.as_bytes()).await.unwrap();
        strangers.push(stranger);
    }
    app.model.then(text_answer("done"));
    let path = format!("/resume/{}/approve", held.request);
    assert_eq!(owner().hit(&path).await.status, 200);
    let events = watch.rest().await;
    assert!(
        events.iter().any(|event| event.name == "request.decided"),
        "{events:?}"
    );
    // The stream holds one of the three connections, and two strangers hold the others. For
    // each newcomer, the service closes one stranger's connection. The newcomers are the other two
    // strangers and the approval.
    let ends = strangers.iter_mut().map(|stranger| async {
        let mut rest = Vec::new();
        let _ = stranger.read_to_end(&mut rest).await;
        rest
    });
    let closed: Vec<_> = ends
        .collect::<FuturesUnordered<_>>()
        .take(3)
        .collect()
        .await;
    assert!(closed.iter().all(Vec::is_empty), "no answer: {closed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_leave_a_connection_to_other_requests() {
    let room = "\nserver: { max_connections: 4 }\n";
    let app = TestApp::with(On::Sqlite, &(refunds("{ owner: true }") + room)).await;
    let held = app.held().await;
    let mut watching = Vec::new();
    for _ in 0..3 {
        watching.push(app.owner().watch(&held.task, None).await);
    }
    assert!(watching.iter().all(|watch| watch.status == 200));
    // At the limit, the service may close an idle connection while the client reuses it. `close`
    // keeps the client from reusing the connection of the refused stream.
    let refused = app.owner().header("connection", "close");
    assert_eq!(refused.watch(&held.task, None).await.status, 429);
    app.model.then(text_answer("done"));
    let decided = app
        .owner()
        .hit(&format!("/resume/{}/approve", held.request))
        .await;
    assert_eq!(decided.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_descriptors_prevent_the_start() {
    let (model, tool, folder) = fakes().await;
    std::fs::write(folder.file("holdpoint.yaml"), paying(&model, &tool, "")).unwrap();
    let program = env!("CARGO_BIN_EXE_holdpoint");
    let serve = format!(
        "ulimit -n 120; exec '{program}' serve --config holdpoint.yaml --listen 127.0.0.1:0"
    );
    let mut shell = std::process::Command::new("/bin/sh");
    let done = shell
        .args(["-c", &serve])
        .env_clear()
        .current_dir(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(told.contains("120 descriptors, and needs 128"), "{told}");
    assert_eq!(done.status.code(), Some(1), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_is_refused() {
    let app = TestApp::start(On::Sqlite).await;
    // The test sends raw bytes instead of a request by the client library hyper. If the service
    // closes the connection just as hyper takes the request, the request might wait for ever.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut connection = raw_http::send(&app.url(), preface).await;
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer).await;
    assert_eq!(answer, b"", "the connection is closed without an answer");
    assert_eq!(app.anonymous().get("/healthz").await.status, 200);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_listen_moves_metrics_to_an_address_of_their_own() {
    let (model, tool, folder) = fakes().await;
    let yaml = paying(&model, &tool, ", metrics_listen: '127.0.0.1:0'");
    let mut served = Served::start(folder.path(), &yaml, &[]);
    assert_eq!(served.status("/metrics").await, 404);
    let address = loop {
        if let Some(line) = logged(&served, "metrics are served at an address of their own") {
            break line["address"].as_str().unwrap().to_owned();
        }
        crate::support::pause().await;
    };
    let main = std::mem::replace(&mut served.address, address);
    assert!(
        served
            .get("/metrics")
            .await
            .contains("holdpoint_build_info")
    );
    for path in ["/healthz", "/v1/tasks", "/docs", "/sign-in"] {
        assert_eq!(served.status(path).await, 404, "{path}");
    }
    // A service without accounts refuses requests that a proxy has forwarded, also at the address
    // of the metrics.
    let passed_on = served
        .exchange("GET", "/metrics", &[("x-forwarded-for", "1.2.3.4")], "")
        .await;
    passed_on.assert_code(403, "forbidden");
    served.address = main;
    assert_eq!(served.terminate().code(), Some(0));
}
