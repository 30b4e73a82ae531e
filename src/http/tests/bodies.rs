//! Tests of the limits on the memory that large request bodies take together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, poll, stream};
use tokio::sync::watch;

use super::*;
use crate::http::server::body::BodyParser;
use crate::http::server::body::budget::BodyBudget;
use crate::task::time::Time;
use crate::world::Clock;

/// A clock whose uptime stays 0. Every sleep lasts until the channel's value is `true`.
struct Still(watch::Sender<bool>);

#[async_trait::async_trait]
impl Clock for Still {
    fn now(&self) -> Time {
        SystemClock.now()
    }

    fn uptime(&self) -> Duration {
        Duration::ZERO
    }

    async fn sleep(&self, _: Duration) {
        let mut passed = self.0.subscribe();
        if passed.wait_for(|passed| *passed).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns a service and its clock. `all` is the memory for the large bodies of all callers, and
/// `share` is the memory for those of one caller, in bytes.
fn small(all: usize, share: usize) -> (Router, Arc<Still>) {
    let clock = Arc::new(Still(watch::Sender::new(false)));
    let http = Http {
        body_parser: BodyParser::new(BodyBudget::new(all, share)),
        clock: Arc::<Still>::clone(&clock),
        ..http(false, &[])
    };
    (crate::http::routers(http).0, clock)
}

/// Returns a stream of `count` chunks of 10,000 bytes. `read` counts the chunks that were read.
fn pieces(
    count: usize,
    read: &Arc<AtomicUsize>,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Clone + use<> {
    let read = Arc::clone(read);
    stream::iter((0..count).map(move |_| {
        read.fetch_add(1, Ordering::Relaxed);
        Ok(Bytes::from_static(&[b'x'; 10_000]))
    }))
}

async fn post(app: &Router, length: Option<usize>, body: Body) -> Answer {
    let mut request = Request::post("/v1/tasks")
        .header(KEY.0, KEY.1)
        .header(JSON.0, JSON.1);
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    answer(
        app.clone()
            .oneshot(request.body(body).unwrap())
            .await
            .unwrap(),
    )
    .await
}

#[tokio::test]
async fn large_body_is_not_read_before_there_is_memory_for_it() {
    let (app, _) = small(100_000, 100_000);
    let read = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
    let counts = || read.each_ref().map(|read| read.load(Ordering::Relaxed));
    let (go_on, wait) = tokio::sync::oneshot::channel::<()>();
    let rest = pieces(4, &read[0]);
    let first = pieces(4, &read[0]).chain(stream::once(wait).flat_map(move |_| rest.clone()));
    let mut first = Box::pin(post(&app, Some(80_000), Body::from_stream(first)));
    assert!(poll!(first.as_mut()).is_pending());
    assert_eq!(counts(), [4, 0, 0]);
    let mut announced = Box::pin(post(
        &app,
        Some(80_000),
        Body::from_stream(pieces(8, &read[1])),
    ));
    let mut unannounced = Box::pin(post(&app, None, Body::from_stream(pieces(20, &read[2]))));
    assert!(poll!(announced.as_mut()).is_pending() && poll!(unannounced.as_mut()).is_pending());
    assert_eq!(
        counts(),
        [4, 0, 7],
        "of a body without a length 64 KiB are read"
    );
    let short = post(
        &app,
        Some(60_000),
        Body::from_stream(pieces(6, &Arc::default())),
    )
    .await;
    assert_eq!(short.code(), "bad_json", "a short body waits for no other");
    go_on.send(()).unwrap();
    for waiting in [first, announced, unannounced] {
        let answer = waiting.await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "bad_json"));
    }
    assert_eq!(counts(), [8, 8, 20]);
}

#[tokio::test]
async fn large_body_without_memory_is_refused_unread_when_its_time_is_over() {
    let (app, clock) = small(100_000, 100_000);
    let read = Arc::new(AtomicUsize::new(0));
    let mut slow = Box::pin(post(
        &app,
        Some(90_000),
        Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>()),
    ));
    assert!(poll!(slow.as_mut()).is_pending());
    let mut late = Box::pin(post(
        &app,
        Some(50_000 + 20_000),
        Body::from_stream(pieces(7, &read)),
    ));
    assert!(poll!(late.as_mut()).is_pending());
    clock.0.send_replace(true);
    let late = late.await;
    assert_eq!(
        (
            late.status,
            late.code().as_str(),
            late.header("retry-after")
        ),
        (503, "unavailable", "1")
    );
    assert!(
        late.json()["detail"]
            .as_str()
            .unwrap()
            .contains("another large body")
    );
    let slow = slow.await;
    assert_eq!(
        (slow.status, slow.code().as_str()),
        (400, "bad_request"),
        "a slow body gives its memory back"
    );
    clock.0.send_replace(false);
    let next = post(&app, Some(90_000), Body::from_stream(pieces(9, &read))).await;
    assert_eq!(next.code(), "bad_json");
}
