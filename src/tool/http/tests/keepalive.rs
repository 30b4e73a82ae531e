//! Tests of calls to a server that announces `keep-alive` but soon closes its connections, while
//! the machine is busy. No call may lose its outcome.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::AsyncReadExt as _;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::Semaphore;

use super::*;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok";

/// Threads that keep the processors busy until this value is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn new() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let over = Arc::clone(&over);
            std::thread::spawn(move || while !over.load(Ordering::Relaxed) {});
        }
        Self(over)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts a server that announces `keep-alive`, but closes each connection after the answer: at
/// once, or after up to three milliseconds of silence. Returns the server's origin and the counter
/// of its requests.
fn impatient() -> (String, Arc<AtomicU64>) {
    let listener = tokio::net::TcpSocket::new_v4().unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.listen(1024).unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&requests);
    #[expect(clippy::disallowed_methods, reason = "the fake endpoint of a test")]
    tokio::spawn(async move {
        loop {
            let (peer, _) = listener.accept().await.unwrap();
            peer.set_nodelay(true).unwrap();
            let counted = Arc::clone(&counted);
            #[expect(clippy::disallowed_methods, reason = "the fake endpoint of a test")]
            tokio::spawn(async move {
                let (mut from, mut to) = peer.into_split();
                while request(&mut from).await {
                    // The request is counted before the answer, because the test reads the count
                    // after the last answer.
                    let number = counted.fetch_add(1, Ordering::Relaxed);
                    if to.write_all(ANSWER).await.is_err() {
                        return;
                    }
                    let patience = Duration::from_micros(number.wrapping_mul(2_654_435_761) % 3000);
                    if number.is_multiple_of(2)
                        || tokio::time::timeout(patience, from.readable())
                            .await
                            .is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    (origin, requests)
}

/// Reads a request that ends with the body `{}`. Returns false if the client has closed the
/// connection.
async fn request(from: &mut OwnedReadHalf) -> bool {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n{}") {
        if from.read_buf(&mut read).await.unwrap_or(0) == 0 {
            return false;
        }
    }
    true
}

/// Makes `count` calls, at most `at_once` of them concurrently. If the outcome of the first attempt
/// is unknown and the call may be repeated, the call has a second attempt. Returns the number of
/// attempts, and the last answer of each call that did not succeed.
async fn calls(tool: &Arc<dyn Tool>, count: u32, at_once: usize) -> (u64, Vec<ToolAnswer>) {
    let places = Arc::new(Semaphore::new(at_once));
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (tool, place) = (
            Arc::clone(tool),
            Arc::clone(&places).acquire_owned().await.unwrap(),
        );
        running.spawn(async move {
            let mut call = invocation("{}");
            let mut answer = tool.call(&call).await;
            let is_lost = matches!(answer, ToolAnswer::Unknown { .. });
            if is_lost && tool.spec().effect != Effect::Once {
                call.may_be_lost = false;
                answer = tool.call(&call).await;
            }
            drop(place);
            (1 + u64::from(is_lost), answer)
        });
    }
    let ended = running.join_all().await;
    let attempts = ended.iter().map(|(attempts, _)| attempts).sum();
    let answers = ended.into_iter().map(|(_, answer)| answer);
    let lost = answers.filter(|answer| !matches!(answer, ToolAnswer::Succeeded { .. }));
    (attempts, lost.collect())
}

async fn nothing_is_lost(effect: Effect, count: u32) {
    let (origin, requests) = impatient();
    let tool = tool_of(Method::POST, origin, effect, any(), Duration::from_secs(30));
    let _load = Load::new();
    let mut all_attempts = 0;
    for at_once in [64, 1] {
        let began = std::time::Instant::now();
        let (attempts, lost) = calls(&tool, count, at_once).await;
        all_attempts += attempts;
        let each = began.elapsed() / count;
        println!(
            "{effect:?}, {at_once} at once: {attempts} attempts, {} lost, {each:?} each",
            lost.len()
        );
        assert!(
            lost.is_empty(),
            "{effect:?}, {at_once} at once: {} lost, first {:?}",
            lost.len(),
            lost[0]
        );
    }
    // Each call succeeded, so the server received at least one request for each call. It received
    // at most one request for each attempt, because an attempt sends at most one request.
    let received = requests.load(Ordering::Relaxed);
    let calls = 2 * u64::from(count);
    assert!(
        (calls..=all_attempts).contains(&received),
        "{received} requests, {all_attempts} attempts"
    );
    let repeated = all_attempts - calls;
    assert!(
        repeated <= MOST_REPEATED,
        "{repeated} of {calls} calls needed a second attempt"
    );
    assert!(effect != Effect::Once || repeated == 0);
}

/// The maximum number of calls that need a second attempt. A call needs a second attempt if the
/// server closes the kept connection of the first attempt before it answers. After the first such
/// loss, the service opens a new connection for each request to this server. So only the calls that
/// are in flight at this loss can need a second attempt. The test has at most 64 calls in flight.
const MOST_REPEATED: u64 = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn once_calls_lose_no_outcome_to_a_server_that_closes_connections() {
    let count = crate::world::repetitions(750, 5_000);
    nothing_is_lost(Effect::Once, u32::try_from(count).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn idempotent_calls_lose_no_outcome_to_a_server_that_closes_connections() {
    nothing_is_lost(Effect::Idempotent, 500).await;
}
