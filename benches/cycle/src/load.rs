//! A load generator. Each worker has one connection, on which it runs one cycle after the other.
//!
//! A cycle has two requests: `POST /v1/tasks`, which is answered once the task is paused, and
//! `POST /resume/{request_id}` with an approval, which is answered once the task is completed. A
//! cycle counts if both answers are as expected. The program prints `begin` and `end` around the
//! measured window, so that the caller can sample processes at these moments. Then it prints the
//! results as one line of JSON.
//!
//! `load --targets ADDRESS[,ADDRESS…] [--concurrency 1] [--warmup 1] [--seconds 3] [--rate 0]
//! [--tool NAME --decision allow|deny]`
//!
//! With `--rate` above 0, all workers together begin at most that many cycles per second.
//!
//! With `--tool`, a cycle is one request: `POST /v1/gate/calls` proposes a call of this tool. The
//! answer must be 200 with the decision of `--decision`. Each call has different arguments, because
//! the service would take an equal call as a repeat of an earlier call.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use http::StatusCode;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpStream;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const AUTHORIZATION: &str = "Bearer bench-key-of-32-characters-0001";
const TASK: &str =
    r#"{"input":"Please refund order A-1001, the customer was charged twice (42.50 EUR)."}"#;
const APPROVAL: &str = r#"{"action":"approve"}"#;
const OUTPUT: &str = "Order A-1001 has been refunded: 42.50 EUR were returned to the customer.";

/// The members of a task's JSON that the generator checks.
#[derive(Deserialize)]
struct Task {
    status: String,
    output: Option<String>,
    pending: Vec<Pending>,
}

#[derive(Deserialize)]
struct Pending {
    request_id: String,
}

/// The part of the answer to a proposed call that the generator checks.
#[derive(Deserialize)]
struct Verdict {
    decision: String,
}

/// A call that the workers propose at a gate, and the decision that they expect.
struct GateCall {
    tool: String,
    decision: String,
    /// The number of proposed calls. Makes the arguments of each call unique.
    proposed: AtomicU64,
}

#[derive(Default)]
struct Run {
    /// The call that each cycle proposes. `None` if a cycle creates and approves a task.
    gate_call: Option<GateCall>,
    measuring: AtomicBool,
    stopped: AtomicBool,
    /// The number of successful cycles since the start, including the warm-up.
    finished: AtomicU64,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
}

/// The durations of requests in microseconds, for cycles that ended in the measured window. There
/// is one histogram for each request of a cycle.
type Times = Vec<Histogram<u64>>;

impl Run {
    fn requests(&self) -> &'static [&'static str] {
        match self.gate_call {
            None => &["create", "approve"],
            Some(_) => &["call"],
        }
    }

    fn times(&self) -> Times {
        let histogram = |_| Histogram::new_with_bounds(1, 120_000_000, 3).expect("valid bounds");
        self.requests().iter().map(histogram).collect()
    }

    async fn cycle(&self, connection: &mut Connection) -> Result<Vec<Duration>, String> {
        match &self.gate_call {
            None => cycle(connection).await,
            Some(call) => call.propose(connection).await,
        }
    }
}

impl GateCall {
    async fn propose(&self, connection: &mut Connection) -> Result<Vec<Duration>, String> {
        let Self { tool, decision, .. } = self;
        let order = self.proposed.fetch_add(1, Relaxed);
        let body = format!(
            r#"{{"gate":"orders","tool":"{tool}","arguments":{{"order":{order},"amount_cents":4250}}}}"#
        );
        let start = Instant::now();
        let (status, verdict): (_, Verdict) = connection.post("/v1/gate/calls", body).await?;
        let took = start.elapsed();
        if status != StatusCode::OK || verdict.decision != *decision {
            return Err(format!(
                "call of {tool} is {status} with the decision {}, not {decision}",
                verdict.decision
            ));
        }
        Ok(vec![took])
    }
}

/// A connection to one server. After an error, the connection is opened again.
struct Connection {
    address: String,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    async fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<(StatusCode, T), String> {
        let answer = self.send(path, body.into()).await;
        if answer.is_err() {
            self.sender = None;
        }
        answer
    }

    async fn send<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, T), String> {
        let error = |error: hyper::Error| format!("POST {path}: {error}");
        if self.sender.is_none() {
            self.sender = Some(self.connect().await?);
        }
        let sender = self.sender.as_mut().expect("connected above");
        sender.ready().await.map_err(error)?;
        let request = http::Request::post(path)
            .header("host", &self.address)
            .header("content-type", "application/json")
            .header("authorization", AUTHORIZATION)
            .body(Full::new(body))
            .expect("a valid request");
        let response = sender.send_request(request).await.map_err(error)?;
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(error)?
            .to_bytes();
        let text = || String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
        if !status.is_success() {
            return Err(format!("POST {path}: {status}: {}", text()));
        }
        let answer = serde_json::from_slice(&body);
        let answer = answer.map_err(|error| format!("POST {path}: {error}: {}", text()))?;
        Ok((status, answer))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect(&self.address)
            .await
            .map_err(|error| format!("{}: {error}", self.address))?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        // The result of the connection is ignored: if the connection fails, requests on `sender`
        // fail, too.
        tokio::spawn(connection);
        Ok(sender)
    }
}

async fn cycle(connection: &mut Connection) -> Result<Vec<Duration>, String> {
    let start = Instant::now();
    let (_, task): (_, Task) = connection.post("/v1/tasks", TASK).await?;
    let paused = Instant::now();
    let (true, Some(request)) = (task.status == "Paused", task.pending.first()) else {
        return Err(format!("created task is {}, not Paused", task.status));
    };
    let path = format!("/resume/{}", request.request_id);
    let (_, task): (_, Task) = connection.post(&path, APPROVAL).await?;
    if task.status != "Completed" || task.output.as_deref() != Some(OUTPUT) {
        return Err(format!(
            "approved task is {} with the output {:?}",
            task.status, task.output
        ));
    }
    Ok(vec![paused - start, paused.elapsed()])
}

async fn work(run: Arc<Run>, address: String, pause: Option<Duration>) -> Times {
    let mut times = run.times();
    let mut connection = Connection {
        address,
        sender: None,
    };
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let mut ticks = pause.map(tokio::time::interval);
    while !run.stopped.load(Relaxed) {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        match run.cycle(&mut connection).await {
            Ok(durations) => {
                run.finished.fetch_add(1, Relaxed);
                if run.measuring.load(Relaxed) && !run.stopped.load(Relaxed) {
                    for (histogram, duration) in times.iter_mut().zip(durations) {
                        histogram.saturating_record(micros(duration));
                    }
                }
            }
            Err(error) => {
                run.errors.fetch_add(1, Relaxed);
                run.first_error
                    .lock()
                    .expect("no worker panics")
                    .get_or_insert(error);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    times
}

async fn measure(
    targets: Vec<String>,
    concurrency: usize,
    warmup: Duration,
    window: Duration,
    rate: f64,
    gate_call: Option<GateCall>,
) -> Value {
    let run = Arc::new(Run {
        gate_call,
        ..Run::default()
    });
    let cycles_at_once = f64::from(u32::try_from(concurrency).expect("few workers"));
    let pause = (rate > 0.0).then(|| Duration::from_secs_f64(cycles_at_once / rate));
    let workers: Vec<_> = targets
        .iter()
        .cycle()
        .take(concurrency)
        .map(|address| tokio::spawn(work(run.clone(), address.clone(), pause)))
        .collect();
    tokio::time::sleep(warmup).await;
    println!("begin");
    run.measuring.store(true, Relaxed);
    let start = Instant::now();
    tokio::time::sleep(window).await;
    run.stopped.store(true, Relaxed);
    let seconds = start.elapsed().as_secs_f64();
    println!("end");

    let mut all = run.times();
    for worker in workers {
        let times = worker.await.expect("no worker panics");
        for (histogram, part) in all.iter_mut().zip(&times) {
            histogram.add(part).expect("equal bounds");
        }
    }
    let cycles = all[0].len();
    let named = run.requests().iter().zip(&all);
    let requests: HashMap<_, _> = named
        .map(|(name, times)| (*name, milliseconds(times)))
        .collect();
    json!({
        "seconds": seconds,
        "cycles": cycles,
        "finished": run.finished.load(Relaxed),
        "errors": run.errors.load(Relaxed),
        "first_error": run.first_error.lock().expect("no worker panics").take(),
        "requests": requests,
    })
}

#[expect(clippy::cast_precision_loss, reason = "times of seconds at most")]
fn milliseconds(times: &Histogram<u64>) -> Value {
    let at = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
    json!({ "p50": at(0.5), "p99": at(0.99) })
}

fn main() {
    let option = |name: &str, default: &str| {
        let mut arguments = std::env::args().skip_while(|argument| argument != name);
        arguments.nth(1).unwrap_or_else(|| default.to_owned())
    };
    let seconds = |name: &str, default: &str| {
        Duration::from_secs_f64(option(name, default).parse().expect("seconds"))
    };
    let targets = option("--targets", "127.0.0.1:8080")
        .split(',')
        .map(str::to_owned)
        .collect();
    let tool = option("--tool", "");
    let gate_call = (!tool.is_empty()).then(|| GateCall {
        tool,
        decision: option("--decision", "allow"),
        proposed: AtomicU64::default(),
    });
    let report = measure(
        targets,
        option("--concurrency", "1").parse().expect("a number"),
        seconds("--warmup", "1"),
        seconds("--seconds", "3"),
        option("--rate", "0").parse().expect("cycles a second"),
        gate_call,
    );
    let report = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(report);
    println!("{report}");
}
