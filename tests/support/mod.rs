//! Helpers that the tests share: the whole service in a process, its databases, and its fake
//! endpoints.

pub mod allocator;
pub mod api_contract;
pub mod database;
pub mod endless_sleep;
pub mod event_stream;
pub mod fake_chat_completions;
pub mod fake_mail_server;
pub mod fake_messages;
pub mod fake_receiver;
pub mod fake_responses;
pub mod fake_slack;
pub mod fake_tool;
pub mod forwarder;
pub mod hostile_texts;
pub mod html;
pub mod links;
pub mod model_stream;
pub mod postgres;
pub mod raw_http;
pub mod rng;
pub mod sqlite_file;
pub mod test_app;
pub mod test_clock;
pub mod tls_front;

use std::net::SocketAddr;
use std::time::Duration;

/// Waits for a moment between two polls of a state that sends no notification. A test that polls
/// without a pause takes processor time from the other tests.
#[expect(clippy::disallowed_methods, reason = "a poll has no notification")]
pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(25)).await;
}

/// The maximum time that a test waits for a state. It is shorter than nextest's limit for a test,
/// because nextest kills a test without a word about the awaited state.
const WAIT_LIMIT: Duration = Duration::from_mins(5);

/// Polls `look` until it returns a value, and returns the value. Panics if `look` returns no value
/// within [`WAIT_LIMIT`]; `what` names the state that the test waits for.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let polls = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            pause().await;
        }
    };
    let found = tokio::time::timeout(WAIT_LIMIT, polls).await;
    found.unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

/// Polls `holds` until it returns `true`. Panics if `holds` does not return `true` within
/// [`WAIT_LIMIT`]; `what` names the state that the test waits for.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    eventually(what, async || holds().await.then_some(())).await;
}

/// Returns `usual` in a normal run, and `long` in a run of `scripts/chaos counts`. Most tests use
/// the result as a number of repetitions. A test that interrupts a run at each possible moment uses
/// it as a step: with the result 4, the test tries only every fourth moment.
pub fn repetitions(usual: usize, long: usize) -> usize {
    if is_long_run() { long } else { usual }
}

/// Returns whether this is a run of `scripts/chaos counts`.
pub fn is_long_run() -> bool {
    std::env::var_os("HOLDPOINT_TEST_LONG").is_some()
}

/// Returns whether `word` occurs in a text as a separate word. Letters, digits, `-` and `_` belong
/// to a word, so the word `120` does not occur in the id `a-120`.
pub fn has_word(text: &str, word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    text.split(|c| !inside(c)).any(|found| found == word)
}

/// Returns a client that follows no redirect.
pub fn http_client() -> reqwest::Client {
    http_client_builder().build().unwrap()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test is a client like any other"
)]
pub fn http_client_builder() -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder().no_proxy();
    // This client sends only plain HTTP. An empty list saves the reading of the machine's
    // certificates, which takes tens of milliseconds.
    let builder = builder.tls_certs_only([]);
    builder.redirect(reqwest::redirect::Policy::none())
}

/// Serves a router on a free port of loopback until the test ends.
pub async fn serve(router: axum::Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}
