//! Tests that an inbox stream reports a request that opens while the stream is being opened, that
//! the stream ends when its caller has lost a right, and that the stream of a slow client begins no
//! read that it would give up.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::body::BodyDataStream;
use futures_util::StreamExt as _;
use http::HeaderMap;
use serde_json::Value;
use tokio::sync::watch;

use super::*;
use crate::http::openapi::sample;
use crate::http::tests::stored_task::{store_in, store_paused_task};
use crate::people::Permissions;
use crate::people::authenticator::{AuthError, Authenticator};
use crate::store::Store;
use crate::task::time::Time;
use crate::world::{Clock, SystemClock};

/// A clock that only a test advances.
struct ManualClock(watch::Sender<Duration>);

impl ManualClock {
    fn advance(&self, by: Duration) {
        self.0.send_modify(|now| *now += by);
    }
}

#[async_trait::async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Time {
        SystemClock.now()
    }

    fn uptime(&self) -> Duration {
        *self.0.borrow()
    }

    async fn sleep(&self, time: Duration) {
        let (end, mut changes) = (self.uptime() + time, self.0.subscribe());
        while *changes.borrow_and_update() < end {
            changes.changed().await.unwrap();
        }
    }
}

/// An authenticator that ignores the key and returns the caller that the test has set. With `None`,
/// it refuses the key as unknown.
struct Keys(Mutex<Option<Caller>>);

impl Authenticator for Keys {
    fn authenticate(&self, _: &HeaderMap) -> Result<Caller, AuthError> {
        let known = self.0.lock().unwrap().clone();
        known.ok_or(AuthError::UnknownKey)
    }
}

fn with(permissions: Permissions) -> Caller {
    Caller {
        permissions,
        ..sample::approver()
    }
}

/// Returns the cases: the lost right, the caller afterwards, and whether the stream ends.
fn losses() -> [(&'static str, Option<Caller>, bool); 7] {
    let bob = sample::approver;
    let all = Permissions::ALL;
    [
        ("nothing", Some(bob()), false),
        ("the key", None, true),
        (
            "the group",
            Some(Caller {
                groups: Vec::new(),
                ..bob()
            }),
            true,
        ),
        (
            "the right to decide",
            Some(with(Permissions {
                decide: false,
                ..all
            })),
            true,
        ),
        (
            "the right to read",
            Some(with(Permissions { read: false, ..all })),
            true,
        ),
        (
            "the user",
            Some(Caller {
                user_id: "carol".into(),
                ..bob()
            }),
            true,
        ),
        (
            "the tenant",
            Some(Caller {
                tenant: "other".to_owned(),
                ..bob()
            }),
            true,
        ),
    ]
}

/// Returns a watcher for the sample's approver.
fn watcher() -> Watcher {
    Watcher {
        caller: sample::approver(),
        headers: HeaderMap::new(),
        is_post_response: false,
    }
}

/// Opens a stream for the sample's approver.
async fn open_stream(http: &Arc<Http>) -> BodyDataStream {
    let watcher = watcher();
    let permit = http.stream_limiter.take(&watcher.caller, &http.settings);
    let opened = open(http, watcher, InboxFilter::default(), permit.unwrap()).await;
    opened.unwrap().into_body().into_data_stream()
}

/// Stores a task that waits for the sample's approver. Returns the id of its request.
async fn store_request(store: &Store) -> String {
    let (_, request) = store_paused_task(store).await;
    request.request_id.to_string()
}

/// Returns the ids of the requests in the events of `text`, in their order.
fn requests_in(text: &str) -> Vec<String> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let requests = data.flat_map(|data| {
        let data: Value = serde_json::from_str(data).unwrap();
        let listed = data["requests"].as_array().cloned();
        listed.unwrap_or_else(|| vec![data["request"].clone()])
    });
    let ids = requests.map(|request| request["request_id"].as_str().unwrap().to_owned());
    ids.collect()
}

/// Reads a stream until it has reported the request `last`. Returns the ids of all requests that
/// it has reported meanwhile, in their order.
async fn reported_until(stream: &mut BodyDataStream, last: &str) -> Vec<String> {
    let mut reported = Vec::<String>::new();
    while reported.last().is_none_or(|id| id != last) {
        let part = stream.next().await.unwrap().unwrap();
        reported.extend(requests_in(&String::from_utf8_lossy(&part)));
    }
    reported
}

/// Polls a future at most `polls` times. Returns its output if it is ready by then. Otherwise,
/// returns once the future could be polled again, so the read for which it waited is done.
async fn poll_at_most<F: Future + Unpin>(future: &mut F, polls: usize) -> Option<F::Output> {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        Pin::new(&mut *future).poll(context).map(Some)
    })
    .await
}

/// Suspends the opening of a stream before its first read, after this read, and after the second.
/// Meanwhile, a request opens, and an older stream (the witness) reports it. By then the tenant's
/// reader has sent the request to all followers, so a stream that subscribes later does not receive
/// it.
#[tokio::test]
async fn request_that_opens_between_any_two_reads_of_an_opening_stream_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(&folder).await;
    let http = Arc::new(Http {
        store: store.clone(),
        clock: Arc::new(ManualClock(watch::Sender::new(Duration::ZERO))),
        ..crate::http::tests::http(false, &[])
    });
    // If no request is open, the opening has no requests to read after their ids.
    let mut expected = vec![store_request(&store).await];
    let mut witness = open_stream(&http).await;
    let mut suspended = BTreeSet::new();
    // A read may be done at once. The opening is then suspended at a later read, or not at all.
    for polls in [0, 1, 2].repeat(50) {
        let mut opening = Box::pin(open_stream(&http));
        let opened = poll_at_most(&mut opening, polls).await;
        if opened.is_none() {
            suspended.insert(polls);
        }
        let meanwhile = store_request(&store).await;
        reported_until(&mut witness, &meanwhile).await;
        let mut stream = if let Some(stream) = opened {
            stream
        } else {
            opening.await
        };
        let later = store_request(&store).await;
        let reported = reported_until(&mut stream, &later).await;
        expected.extend([meanwhile, later]);
        assert_eq!(reported, expected, "{polls} polls");
        if suspended.len() == 3 {
            break;
        }
    }
    assert_eq!(suspended.len(), 3, "the opening has two reads");
    drop(witness);
    store.close().await;
}

#[tokio::test]
async fn stream_ends_within_a_minute_of_the_loss_of_a_right_and_goes_on_without_a_loss() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(&folder).await;
    let quarter = Duration::from_secs(15);
    for (lost, caller, ends) in losses() {
        let clock = Arc::new(ManualClock(watch::Sender::new(Duration::ZERO)));
        let keys = Arc::new(Keys(Mutex::new(Some(sample::approver()))));
        let http = Arc::new(Http {
            store: store.clone(),
            clock: Arc::<ManualClock>::clone(&clock),
            authenticator: Arc::<Keys>::clone(&keys),
            ..crate::http::tests::http(false, &[])
        });
        let mut parts = open_stream(&http).await;
        let begin = parts.next().await.unwrap().unwrap();
        assert!(String::from_utf8_lossy(&begin).contains("event: inbox\n"));
        *keys.0.lock().unwrap() = caller;
        for _ in 0..3 {
            clock.advance(quarter);
            let part = parts.next().await.unwrap().unwrap();
            assert_eq!(&part[..], b":\n\n", "{lost}: a comment");
        }
        clock.advance(quarter);
        assert_eq!(parts.next().await.is_none(), ends, "{lost}");
    }
    store.close().await;
}

/// A source whose reads take a moment. Counts the reads that it begins.
struct CountedReads {
    stream: OpenStream,
    begun: Arc<AtomicUsize>,
}

impl EventSource for CountedReads {
    fn stream(&mut self) -> &mut OpenStream {
        &mut self.stream
    }

    async fn advance(&mut self) -> Result<(), ReadError> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let read = self.stream.wait(tokio::task::yield_now()).await;
        read.map_or(Ok(()), |()| self.stream.write("read", &()))
    }

    async fn may_read(&mut self) -> Result<bool, Problem> {
        let caller = self.stream.watcher.current_caller(&self.stream.http);
        Ok(caller.await?.is_some())
    }
}

#[tokio::test]
async fn stream_whose_client_took_long_for_a_text_begins_no_read_before_its_comment() {
    let clock = Arc::new(ManualClock(watch::Sender::new(Duration::ZERO)));
    let http = Arc::new(Http {
        clock: Arc::<ManualClock>::clone(&clock),
        ..crate::http::tests::http(false, &[])
    });
    let watcher = watcher();
    let permit = http.stream_limiter.take(&watcher.caller, &http.settings);
    let begun = Arc::new(AtomicUsize::new(0));
    let source = CountedReads {
        stream: OpenStream::new(&http, watcher, permit.unwrap()),
        begun: Arc::clone(&begun),
    };
    let mut parts = source.body().into_data_stream();
    // The client takes each text after some time.
    for (seconds, expected, reads) in [
        (0, "retry: 1000\n\n", 0),
        (16, ":\n\n", 0),
        (0, "event: read\ndata: null\n\n", 1),
    ] {
        clock.advance(Duration::from_secs(seconds));
        let part = parts.next().await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&part), expected);
        assert_eq!(begun.load(Ordering::Relaxed), reads, "{expected}");
    }
}
