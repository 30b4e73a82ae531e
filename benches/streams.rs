//! Measures the delay from the commit of an event to its arrival at a reader, and the cost of open
//! streams.
//!
//! `cargo bench --bench streams` runs the built service on SQLite.
//! `cargo bench --bench streams -- postgres://…` runs the service on a Postgres database, which the
//! benchmark fills with tasks.
//!
//! There are two cases: 500 readers of one task, and 500 tasks with one reader each. For each case,
//! the program prints the delay, the memory of a stream and the processor time. For comparison, it
//! prints the delay for 500 readers of a bare server, which sends events of the same size from
//! memory. Finally, it prints the cost of 500 idle streams while 10,000 tasks wait. The readers
//! share the machine's processors with the service, so the results are valid only for the machine
//! on which they were measured.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a program that measures"
)]
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "the same"
)]

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

const READERS: usize = 500;
const TURNS: usize = 60;
const WAITING: usize = 10_000;

fn main() {
    let database = std::env::args()
        .skip(1)
        .find(|argument| argument.contains("://"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(database));
}

async fn run(database: Option<String>) {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), database.as_deref()).await;
    let address = service.address.clone();

    let bare = bare().await;
    let one = continuing(&service, &address, "500 readers of one task", 1).await;
    let each = continuing(&service, &address, "500 tasks, a reader each", READERS).await;
    println!(
        "{:<34} {:>9} {:>9} {:>9} {:>9}",
        "", "p50 ms", "p99 ms", "max ms", "events"
    );
    for (name, seen) in [
        ("bare, 500 readers", &bare),
        ("500 readers of one task", &one),
        ("500 tasks, a reader each", &each),
    ] {
        println!("{name:<34} {}", seen.line());
    }
    let ratio = |seen: &Seen| seen.at(99) / bare.at(99);
    println!(
        "p99 against bare: one task {:.1}, a task each {:.1}",
        ratio(&one),
        ratio(&each)
    );
    idle(&service, &address, database.as_deref()).await;
}

/// The sorted delays of events, in milliseconds.
struct Seen(Vec<f64>);

impl Seen {
    fn of(mut late: Vec<f64>) -> Self {
        late.sort_by(f64::total_cmp);
        Self(late)
    }

    fn at(&self, percent: usize) -> f64 {
        self.0[(self.0.len() - 1) * percent / 100]
    }

    fn line(&self) -> String {
        format!(
            "{:>9.2} {:>9.2} {:>9.2} {:>9}",
            self.at(50),
            self.at(99),
            self.at(100),
            self.0.len()
        )
    }
}

struct Service {
    child: Child,
    address: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Service {
    async fn start(folder: &std::path::Path, database: Option<&str>) -> Self {
        let mut script = String::from(
            "- { when: { last: user, matches: hold }, calls: [{ name: pay, arguments: {} }] }\n",
        );
        for turn in 1..=TURNS {
            let _ = writeln!(
                script,
                "- {{ when: {{ turn: {turn}, matches: '.*' }}, calls: [{{ name: look, arguments: {{ order: \"1\" }} }}], delay: 20ms }}"
            );
        }
        script += "- { when: {}, say: done }\n";
        let script = script.replace("- { when: { turn: 1,", "- { when: { last: user,");
        std::fs::write(folder.join("script.yaml"), script).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let url = database.map_or_else(|| "sqlite://bench.db".to_owned(), ToOwned::to_owned);
        let config = format!(
            r#"
server: {{ listen: "{address}", max_streams: 2000, max_streams_per_caller: 2000 }}
database: {{ url: "{url}" }}
models: {{ main: {{ provider: scripted, script: script.yaml }} }}
tools:
  look: {{ effect: read_only, http: {{ method: POST, url: "builtin:refunds/lookup_order" }}, parameters: {{ type: object, properties: {{ order: {{ type: string }} }} }} }}
  pay: {{ http: {{ method: POST, url: "builtin:refunds/refund_payment" }}, parameters: {{ type: object }} }}
agents: {{ reader: {{ model: main, tools: [look, pay], limits: {{ max_model_calls: 1000 }} }} }}
policy: [ {{ name: reads, tools: [look], decide: allow }} ]
"#
        );
        std::fs::write(folder.join("bench.yaml"), config).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_holdpoint"))
            .args(["serve", "--config", "bench.yaml"])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let service = Self { child, address };
        for _ in 0..200 {
            if let Ok((200, _)) = service.ask("GET", "/readyz", None).await {
                return service;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        unreachable!("the service does not start");
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> std::io::Result<(u16, Value)> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let kind = if body.is_empty() {
            ""
        } else {
            "content-type: application/json\r\n"
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nprefer: wait=0\r\n{kind}content-length: {}\r\n\r\n",
            body.len()
        );
        let mut line = TcpStream::connect(&self.address).await?;
        line.write_all((head + &body).as_bytes()).await?;
        let mut reply = String::new();
        line.read_to_string(&mut reply).await?;
        let status = reply
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or(0);
        let body = reply.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status, serde_json::from_str(body).unwrap_or_default()))
    }

    async fn task(&self, input: &str) -> String {
        let (status, task) = self
            .ask("POST", "/v1/tasks", Some(&json!({"input": input})))
            .await
            .unwrap();
        assert!([201, 202].contains(&status), "{status} {task}");
        task["task_id"].as_str().unwrap().to_owned()
    }

    async fn approve(&self, task: &str) {
        let path = format!("/v1/tasks/{task}");
        let (_, shown) = self.ask("GET", &path, None).await.unwrap();
        let request = shown["pending"][0]["request_id"].as_str().unwrap();
        let path = format!("/resume/{request}/approve");
        let (status, _) = self.ask("POST", &path, None).await.unwrap();
        assert!([200, 202].contains(&status), "{status}");
    }

    /// Returns the resident memory of the service, in KiB.
    fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Returns the processor time that the service has used since its start, in seconds.
    fn processor(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
    }
}

fn now() -> f64 {
    jiff::Timestamp::now().as_microsecond() as f64 / 1000.0
}

/// Reads a stream. Signals `ready` at the event `caught_up`, and then records the delay of each
/// event.
async fn reader(
    address: String,
    path: String,
    ready: tokio::sync::mpsc::UnboundedSender<()>,
    late: Arc<Mutex<Vec<f64>>>,
) {
    let mut line = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\naccept: text/event-stream\r\n\r\n"
    );
    line.write_all(head.as_bytes()).await.unwrap();
    let (mut bytes, mut chunk, mut caught_up, mut mine) =
        (Vec::new(), vec![0; 64 * 1024], false, Vec::new());
    loop {
        let read = line.read(&mut chunk).await.unwrap_or(0);
        if read == 0 {
            break;
        }
        let arrived = now();
        bytes.extend_from_slice(&chunk[..read]);
        while let Some(end) = bytes.windows(2).position(|pair| pair == b"\n\n") {
            let block: Vec<u8> = bytes.drain(..end + 2).collect();
            let block = String::from_utf8_lossy(&block);
            if block.contains("event: caught_up") {
                caught_up = true;
                ready.send(()).unwrap();
            } else if caught_up
                && block.contains("id: ")
                && let Some((_, rest)) = block.rsplit_once("\"at\":\"")
                && let Some((at, _)) = rest.split_once('"')
            {
                let at: jiff::Timestamp = at.parse().unwrap();
                mine.push(arrived - at.as_microsecond() as f64 / 1000.0);
            }
        }
    }
    late.lock().unwrap().extend(mine);
}

struct Readers {
    all: JoinSet<()>,
    late: Arc<Mutex<Vec<f64>>>,
}

impl Readers {
    /// Starts a reader for each of `paths`. Waits until each reader gets the event `caught_up`.
    async fn at(address: &str, paths: Vec<String>) -> Self {
        let (ready, mut told) = tokio::sync::mpsc::unbounded_channel();
        let (mut all, late, count) = (JoinSet::new(), Arc::default(), paths.len());
        for path in paths {
            all.spawn(reader(
                address.to_owned(),
                path,
                ready.clone(),
                Arc::clone(&late),
            ));
        }
        for _ in 0..count {
            told.recv().await.unwrap();
        }
        Self { all, late }
    }

    async fn seen(mut self) -> Seen {
        while self.all.join_next().await.is_some() {}
        Seen::of(std::mem::take(&mut self.late.lock().unwrap()))
    }
}

/// Measures the baseline: a server that sends events from memory.
async fn bare() -> Seen {
    let (sender, _) = broadcast::channel::<String>(1024);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let events = sender.clone();
    let stream = move || {
        let receiver = events.subscribe();
        async move {
            let first =
                futures_util::stream::iter([Ok(Event::default().event("caught_up").data("{}"))]);
            let rest = futures_util::stream::unfold(receiver, |mut receiver| async {
                let data = receiver.recv().await.ok().filter(|data| !data.is_empty())?;
                Some((
                    Ok::<_, std::convert::Infallible>(Event::default().id("1").data(data)),
                    receiver,
                ))
            });
            Sse::new(futures_util::StreamExt::chain(first, rest))
        }
    };
    let server =
        tokio::spawn(axum::serve(listener, Router::new().route("/", get(stream))).into_future());
    let readers = Readers::at(&address, vec!["/".to_owned(); READERS]).await;
    for _ in 0..4 * TURNS {
        let at = jiff::Timestamp::now();
        sender
            .send(json!({"text": "x".repeat(350), "at": format!("{at:.6}")}).to_string())
            .unwrap();
        tokio::time::sleep(Duration::from_millis(6)).await;
    }
    sender.send(String::new()).unwrap();
    let seen = readers.seen().await;
    server.abort();
    seen
}

/// Measures and prints the cost of [`READERS`] streams on the events of `count` tasks. Each of
/// these tasks continues once all streams are open.
async fn continuing(service: &Service, address: &str, name: &str, count: usize) -> Seen {
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(service.task("hold").await);
    }
    let memory = service.memory();
    let path = |task: &String| format!("/v1/tasks/{task}/events");
    let paths = tasks.iter().map(path).cycle().take(READERS);
    let readers = Readers::at(address, paths.collect()).await;
    let each = (service.memory() - memory) / READERS as f64;
    // The tasks continue after all readers have caught up, so that the measured times exclude the
    // opening of the streams.
    let (began, processor) = (Instant::now(), service.processor());
    for task in &tasks {
        service.approve(task).await;
    }
    let seen = readers.seen().await;
    let busy = (service.processor() - processor) / began.elapsed().as_secs_f64();
    println!(
        "{name}: {each:.1} KiB a stream, {busy:.2} processors, {:.1} s",
        began.elapsed().as_secs_f64()
    );
    seen
}

/// Measures and prints the cost of streams on which no event arrives.
async fn idle(service: &Service, address: &str, database: Option<&str>) {
    let mut tasks = Vec::with_capacity(WAITING);
    for _ in 0..WAITING / 20 {
        tasks.extend(futures_util::future::join_all((0..20).map(|_| service.task("hold"))).await);
    }
    let memory = service.memory();
    let paths = tasks
        .iter()
        .take(READERS)
        .map(|task| format!("/v1/tasks/{task}/events"))
        .collect();
    let _readers = Readers::at(address, paths).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (processor, statements, began) = (
        service.processor(),
        statements(database).await,
        Instant::now(),
    );
    tokio::time::sleep(Duration::from_secs(20)).await;
    let seconds = began.elapsed().as_secs_f64();
    let busy = (service.processor() - processor) / seconds;
    let each = (service.memory() - memory) / READERS as f64;
    print!(
        "nothing happens, {WAITING} waiting tasks and {READERS} streams: {busy:.3} processors, {each:.1} KiB a stream"
    );
    match (statements, self::statements(database).await) {
        (Some(before), Some(after)) => println!(
            ", {:.1} statements a second",
            (after - before) as f64 / seconds
        ),
        _ => println!(),
    }
}

/// Returns the number of transactions that the Postgres database has run so far. Each statement of
/// the service is one transaction. Returns `None` if `database` is `None` or cannot be read.
async fn statements(database: Option<&str>) -> Option<i64> {
    let mut connection = PgConnection::connect(database?).await.ok()?;
    // Postgres publishes its statistics with a delay of up to a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let count = "select (xact_commit + xact_rollback)::bigint from pg_stat_database where datname = current_database()";
    sqlx::query_scalar(count)
        .fetch_one(&mut connection)
        .await
        .ok()
}
