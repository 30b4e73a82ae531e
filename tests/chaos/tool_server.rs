//! A separate process, the tool server, that the service's tools call. The process knows nothing
//! of the service. It writes each execution with its idempotency key to a file, the ledger, before
//! it answers. The arguments of a call determine whether the answer is delayed, broken, an error or
//! missing. The receivers of messages run in the same process (`hooks.rs`).

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::hooks;
use super::process::within;
use crate::support::pause;

/// The environment variable that gives the process its folder.
const FOLDER: &str = "HOLDPOINT_TEST_TOOL_SERVER";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Execution {
    pub key: String,
    pub task: String,
    pub path: String,
    pub body: String,
    /// The fault of the response, or empty: see [`answer`].
    pub fault: String,
    /// The number of this execution among all executions with the same key, counted from 1.
    pub nth: u32,
    /// The time of the execution, in microseconds since 1970.
    pub at: i64,
}

/// The running process, its address, and the part of the ledger that the test has read so far.
pub struct ToolServer {
    pub url: String,
    folder: tempfile::TempDir,
    child: Child,
    read: Mutex<Ledger>,
}

#[derive(Default)]
struct Ledger {
    offset: u64,
    lines: Vec<Execution>,
    by_key: HashMap<String, Vec<usize>>,
}

impl ToolServer {
    /// Starts the process. It runs this test program again, and serves until its standard input
    /// ends.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "chaos::tool_server::tool_server_process_serves_calls_until_its_parent_ends",
                "--ignored",
                "--nocapture",
            ])
            .env(FOLDER, folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let url = loop {
            if let Ok(url) = std::fs::read_to_string(folder.path().join("url")) {
                break url;
            }
            assert!(child.try_wait().unwrap().is_none(), "the tool server ended");
            pause().await;
        };
        Self {
            url,
            folder,
            child,
            read: Mutex::default(),
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn ledger(&self) -> Vec<Execution> {
        self.reading(|ledger| ledger.lines.clone())
    }

    pub fn of(&self, key: &str) -> Vec<Execution> {
        self.reading(|ledger| {
            let places = ledger.by_key.get(key).cloned().unwrap_or_default();
            places
                .into_iter()
                .map(|place| ledger.lines[place].clone())
                .collect()
        })
    }

    /// Returns the number of a task's executions whose body contains this text.
    pub fn saw(&self, task: &str, text: &str) -> usize {
        self.reading(|ledger| {
            ledger
                .lines
                .iter()
                .filter(|line| line.task == task && line.body.contains(text))
                .count()
        })
    }

    fn reading<T>(&self, look: impl FnOnce(&Ledger) -> T) -> T {
        let mut ledger = self.read.lock().unwrap();
        let mut file = File::open(self.folder.path().join("ledger")).unwrap();
        file.seek(SeekFrom::Start(ledger.offset)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        // A half-written line is left to the next read.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        ledger.offset += whole.len() as u64;
        for line in whole.lines() {
            let line: Execution = serde_json::from_str(line).unwrap();
            let place = ledger.lines.len();
            ledger
                .by_key
                .entry(line.key.clone())
                .or_default()
                .push(place);
            ledger.lines.push(line);
        }
        look(&ledger)
    }
}

impl Drop for ToolServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state inside the process: the ledger file, and the number of executions of each key.
struct LedgerWriter {
    file: File,
    counts: HashMap<String, u32>,
}

#[test]
#[ignore = "the process that ToolServer::start starts, no test"]
fn tool_server_process_serves_calls_until_its_parent_ends() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder).to_owned();
    std::thread::spawn(|| {
        // Standard input ends when the parent process ends, for whatever reason.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let file = File::options()
        .create(true)
        .append(true)
        .open(folder.join("ledger"))
        .unwrap();
    let ledger = Arc::new(Mutex::new(LedgerWriter {
        file,
        counts: HashMap::new(),
    }));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::fs::write(folder.join("url.new"), url).unwrap();
        std::fs::rename(folder.join("url.new"), folder.join("url")).unwrap();
        let calls = Router::new().fallback(execute).with_state(ledger);
        axum::serve(listener, calls.merge(hooks::router(&folder)))
            .await
            .unwrap();
    });
}

async fn execute(
    State(ledger): State<Arc<Mutex<LedgerWriter>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let header = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
            .to_owned()
    };
    let said: Value = serde_json::from_slice(&body).unwrap_or_default();
    let execution = {
        let mut ledger = ledger.lock().unwrap();
        let key = header("idempotency-key");
        let count = ledger.counts.entry(key.clone()).or_default();
        *count += 1;
        let execution = Execution {
            nth: *count,
            // The first execution of a key gets the disturbed response that the call asks for.
            // Later executions get a good response.
            fault: if *count == 1 {
                said["fault"].as_str().unwrap_or("").to_owned()
            } else {
                String::new()
            },
            key,
            task: header("holdpoint-task-id"),
            path: uri.path().to_owned(),
            body: String::from_utf8_lossy(&body).into_owned(),
            at: i64::try_from(
                SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap()
                    .as_micros(),
            )
            .unwrap(),
        };
        let line = serde_json::to_string(&execution).unwrap() + "\n";
        ledger.file.write_all(line.as_bytes()).unwrap();
        ledger.file.flush().unwrap();
        execution
    };
    answer(&execution, said["wait"].as_u64().unwrap_or(0)).await
}

/// Responds to an execution that is already in the ledger, in the way that `fault` names.
async fn answer(execution: &Execution, wait: u64) -> Response {
    if execution.nth == 1 {
        within(Duration::from_millis(wait)).await;
    }
    let receipt = json!({"receipt": execution.key, "nth": execution.nth});
    match execution.fault.as_str() {
        "drop" => {
            // The connection breaks in the middle of the response.
            let broken = futures_util::stream::once(async {
                Err::<Bytes, _>(std::io::Error::other("broken"))
            });
            Response::new(Body::from_stream(broken))
        }
        "fail" => (StatusCode::INTERNAL_SERVER_ERROR, "sorry").into_response(),
        "hang" => never().await,
        _ => axum::Json(receipt).into_response(),
    }
}

async fn never() -> Response {
    let endless: Infallible = std::future::pending().await;
    match endless {}
}
