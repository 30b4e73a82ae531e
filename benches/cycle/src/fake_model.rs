//! A fake model endpoint and a fake tool, which answer at once.
//!
//! `POST …/chat/completions` answers in the format of `OpenAI`'s API, as JSON or as a stream. If
//! the last message is a tool's result, or if no tool is offered, the answer is the final text.
//! Otherwise, the answer is a call of the first offered tool. `POST /tool` answers as the tool.
//! `GET /stats` returns the numbers of answers and the CPU time of this process. The program uses
//! no HTTP server library, because it shares the processors with the measured service and must cost
//! little.
//!
//! `POST /hook` receives a webhook and records its lag: the time from the event to the arrival of
//! the webhook. `/hook/slow` waits 5 ms and then does the same. `/hook/dead` answers with status
//! 500. `/hook/silent` never answers. `GET /lags` returns the number of webhooks that `/hook` and
//! `/hook/slow` have recorded since the previous `GET /lags`, and quantiles of their lags in
//! milliseconds.
//!
//! `fake-model [--listen 127.0.0.1:9100]`

use std::borrow::Cow;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use bytes::{Buf as _, BytesMut};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

static CALLS: AtomicU64 = AtomicU64::new(0);
static FINALS: AtomicU64 = AtomicU64::new(0);
static TOOL_RUNS: AtomicU64 = AtomicU64::new(0);
/// The lags of received webhooks, in microseconds.
static LAGS: Mutex<Option<Histogram<u64>>> = Mutex::new(None);

const ARGUMENTS: &str = r#"{"order_id":"A-1001","amount_cents":4250}"#;
const FINAL: &str = "Order A-1001 has been refunded: 42.50 EUR were returned to the customer.";
const USAGE: &str = r#"{"prompt_tokens":120,"completion_tokens":24,"total_tokens":144}"#;

#[derive(Deserialize)]
struct Prompt<'a> {
    #[serde(default)]
    stream: bool,
    #[serde(borrow)]
    messages: Vec<Message<'a>>,
    #[serde(borrow, default)]
    tools: Vec<Tool<'a>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Tool<'a> {
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

fn answer(out: &mut Vec<u8>, status: &str, body: &[u8]) {
    write!(
        out,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .expect("memory");
    out.extend_from_slice(body);
}

fn answer_prompt(out: &mut Vec<u8>, body: &[u8]) {
    let prompt: Prompt = match serde_json::from_slice(body) {
        Ok(prompt) => prompt,
        Err(error) => {
            let body = json!({ "error": { "message": error.to_string() } }).to_string();
            return answer(out, "400 Bad Request", body.as_bytes());
        }
    };
    let has_result = prompt
        .messages
        .last()
        .is_some_and(|last| last.role == "tool");
    let tool = prompt.tools.first().map(|tool| &*tool.function.name);
    let called = tool.filter(|_| !has_result);
    let number = if called.is_some() { &CALLS } else { &FINALS }.fetch_add(1, Relaxed);
    if prompt.stream {
        stream(out, number, called);
    } else {
        whole(out, number, called);
    }
}

/// Writes the model's answer as one JSON object.
fn whole(out: &mut Vec<u8>, number: u64, called: Option<&str>) {
    let (message, reason) = match called {
        Some(name) => (
            format!(
                r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"call_{number:012}","type":"function","function":{{"name":"{name}","arguments":{}}}}}]}}"#,
                json!(ARGUMENTS)
            ),
            "tool_calls",
        ),
        None => (
            format!(r#"{{"role":"assistant","content":"{FINAL}"}}"#),
            "stop",
        ),
    };
    let body = format!(
        r#"{{"id":"chatcmpl-{number}","object":"chat.completion","created":1760000000,"model":"fake","choices":[{{"index":0,"message":{message},"finish_reason":"{reason}"}}],"usage":{USAGE}}}"#
    );
    answer(out, "200 OK", body.as_bytes());
}

/// Writes the model's answer as server-sent events. The arguments of a call are sent in two pieces,
/// and a text word by word.
fn stream(out: &mut Vec<u8>, number: u64, called: Option<&str>) {
    out.extend_from_slice(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    let head = format!(
        r#"{{"id":"chatcmpl-{number}","object":"chat.completion.chunk","created":1760000000,"model":"fake""#
    );
    let mut piece = |delta: &str, reason: &str| {
        let choice = format!(r#"{{"index":0,"delta":{delta},"finish_reason":{reason}}}"#);
        event(out, &format!(r#"{head},"choices":[{choice}]}}"#));
    };
    if let Some(name) = called {
        piece(
            &format!(
                r#"{{"role":"assistant","content":null,"tool_calls":[{{"index":0,"id":"call_{number:012}","type":"function","function":{{"name":"{name}","arguments":""}}}}]}}"#
            ),
            "null",
        );
        let (first, second) = ARGUMENTS.split_at(ARGUMENTS.len() / 2);
        for part in [first, second] {
            let function = format!(r#"{{"arguments":{}}}"#, json!(part));
            let call = format!(r#"{{"tool_calls":[{{"index":0,"function":{function}}}]}}"#);
            piece(&call, "null");
        }
        piece("{}", r#""tool_calls""#);
    } else {
        piece(r#"{"role":"assistant","content":""}"#, "null");
        for word in FINAL.split_inclusive(' ') {
            piece(&format!(r#"{{"content":"{word}"}}"#), "null");
        }
        piece("{}", r#""stop""#);
    }
    event(out, &format!(r#"{head},"choices":[],"usage":{USAGE}}}"#));
    event(out, "[DONE]");
    out.extend_from_slice(b"0\r\n\r\n");
}

/// Writes one event as a chunk of the response.
fn event(out: &mut Vec<u8>, data: &str) {
    let length = "data: ".len() + data.len() + "\n\n".len();
    write!(out, "{length:x}\r\ndata: {data}\n\n\r\n").expect("memory");
}

fn answer_stats(out: &mut Vec<u8>) {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let body = json!({
        "calls": CALLS.load(Relaxed),
        "finals": FINALS.load(Relaxed),
        "tool_runs": TOOL_RUNS.load(Relaxed),
        "cpu_us": cpu.tv_sec * 1_000_000 + cpu.tv_nsec / 1000,
    });
    answer(out, "200 OK", body.to_string().as_bytes());
}

#[derive(Deserialize)]
struct Webhook<'a> {
    #[serde(borrow)]
    timestamp: Cow<'a, str>,
}

const MICROS_OF_A_DAY: u64 = 86_400_000_000;

/// Returns the time of day in microseconds since midnight. `text` is a time such as
/// `2026-11-22T09:00:00.000001Z`. Returns `None` for any other text.
fn time_of_day(text: &str) -> Option<u64> {
    let clock = text.split_once('T')?.1.trim_end_matches('Z');
    let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut total = 0;
    for part in seconds.split(':') {
        total = total * 60 + part.parse::<u64>().ok()?;
    }
    Some(total * 1_000_000 + format!("{fraction:0<6}").parse::<u64>().ok()?)
}

fn receive(body: &[u8]) {
    let sent = serde_json::from_slice::<Webhook>(body).ok();
    let Some(sent) = sent.and_then(|webhook| time_of_day(&webhook.timestamp)) else {
        return;
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.expect("after 1970").as_micros() % u128::from(MICROS_OF_A_DAY);
    let now = u64::try_from(now).expect("less than a day");
    let lag = (now + MICROS_OF_A_DAY - sent) % MICROS_OF_A_DAY;
    let mut lags = LAGS.lock().expect("no connection panics");
    let lags = lags.get_or_insert_with(|| {
        Histogram::new_with_bounds(1, MICROS_OF_A_DAY, 3).expect("valid bounds")
    });
    lags.saturating_record(lag);
}

#[expect(clippy::cast_precision_loss, reason = "times of a day at most")]
fn answer_lags(out: &mut Vec<u8>) {
    let lags = LAGS.lock().expect("no connection panics").take();
    let at = |quantile| {
        let lags = lags.as_ref();
        lags.map(|lags| lags.value_at_quantile(quantile) as f64 / 1000.0)
    };
    let body = json!({
        "received": lags.as_ref().map_or(0, Histogram::len),
        "p50": at(0.5),
        "p99": at(0.99),
    });
    answer(out, "200 OK", body.to_string().as_bytes());
}

struct Request {
    path: String,
    body: Vec<u8>,
}

/// Reads the next request from a connection; `None` once the client has closed the connection.
async fn next_request(
    stream: &mut TcpStream,
    buffer: &mut BytesMut,
) -> std::io::Result<Option<Request>> {
    loop {
        if let Some((request, length)) = parse(buffer)? {
            buffer.advance(length);
            return Ok(Some(request));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// Parses the request at the start of the buffer. Returns the request and its length in bytes;
/// `None` while the request is incomplete.
fn parse(buffer: &[u8]) -> std::io::Result<Option<(Request, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(buffer).map_err(std::io::Error::other)?;
    let httparse::Status::Complete(head) = parsed else {
        return Ok(None);
    };
    let header = |name: &str| {
        let mut headers = request.headers.iter();
        let found = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let rest = &buffer[head..];
    let body = if header("transfer-encoding").is_some() {
        dechunk(rest)
    } else {
        let length = header("content-length").map_or(0, |value| value.parse().unwrap_or(0));
        rest.get(..length).map(|body| (body.to_vec(), length))
    };
    let path = request.path.unwrap_or_default().to_owned();
    Ok(body.map(|(body, length)| (Request { path, body }, head + length)))
}

/// Decodes the chunked body at the start of `rest`. Returns the decoded bytes, and the length of
/// the encoded body. `None` while the body is incomplete.
fn dechunk(rest: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut at, mut body) = (0, Vec::new());
    loop {
        let Ok(httparse::Status::Complete((head, length))) =
            httparse::parse_chunk_size(&rest[at..])
        else {
            return None;
        };
        let start = at + head;
        let end = start + usize::try_from(length).ok()?;
        body.extend_from_slice(rest.get(start..end)?);
        at = end + "\r\n".len();
        if rest.len() < at {
            return None;
        }
        if length == 0 {
            return Some((body, at));
        }
    }
}

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::with_capacity(16 * 1024);
    let mut out = Vec::with_capacity(8 * 1024);
    while let Some(Request { path, body }) = next_request(&mut stream, &mut buffer).await? {
        out.clear();
        match path.as_str() {
            "/stats" => answer_stats(&mut out),
            "/tool" => {
                let number = TOOL_RUNS.fetch_add(1, Relaxed);
                let result = format!(r#"{{"refund_id":"R-{number}","status":"refunded"}}"#);
                answer(&mut out, "200 OK", result.as_bytes());
            }
            "/lags" => answer_lags(&mut out),
            "/hook/dead" => answer(&mut out, "500 Internal Server Error", b"{}"),
            "/hook/silent" => std::future::pending().await,
            "/hook" => {
                receive(&body);
                answer(&mut out, "200 OK", b"{}");
            }
            "/hook/slow" => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                receive(&body);
                answer(&mut out, "200 OK", b"{}");
            }
            path if path.ends_with("/chat/completions") => answer_prompt(&mut out, &body),
            _ => answer(&mut out, "404 Not Found", b"{}"),
        }
        stream.write_all(&out).await?;
    }
    Ok(())
}

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--listen");
    let address = arguments
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:9100".to_owned());
    let listen = async move {
        let listener = TcpListener::bind(address).await.expect("a free address");
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            // The result is ignored: an error on one connection must not affect other clients.
            tokio::spawn(serve(stream));
        }
    };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(listen);
}
