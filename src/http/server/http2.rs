//! Serves HTTP/2 with prior knowledge, which gRPC needs. The first bytes of a connection (the
//! preface) show whether the client uses HTTP/2 or HTTP/1.1. This module sets all limits of HTTP/2
//! explicitly, so the limits do not depend on a library's defaults.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use bytes::BytesMut;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connections::{ConnectionPhase, ConnectionSlot, CountedBody};
use super::held_frames::{HeldFrames, WatchedBody};
use super::serve::{PhaseTimer, Timeout, phase_timeout, run_connection};
use super::write_timeout::TimeoutStream;
use crate::world::Clock;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The maximum number of concurrent requests on one connection.
const MAX_STREAMS: u32 = 256;
/// The maximum size of the header fields of a request, in bytes.
const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;
/// The maximum number of streams that a client may reset before the server has accepted them. One
/// more such reset ends the connection, as a protection against the "rapid reset" attack.
const MAX_PENDING_RESETS: usize = 20;
/// The maximum number of streams of a connection that the server may reset because of errors of the
/// client. One more such reset ends the connection.
const MAX_ERROR_RESETS: usize = 1024;
/// The size of the flow-control window, for each stream and for the connection as a whole: the
/// maximum number of bytes from the client that the server has not read yet.
const WINDOW_BYTES: u32 = 1024 * 1024;
/// While a connection serves a request, `run_watchdog` checks the connection at this interval.
const WATCHDOG_INTERVAL: Duration = Duration::from_secs(1);

/// The times of the pings that show whether the client is still there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PingTimes {
    /// The time after which the server sends a ping if no request and no part of a body arrives.
    pub(super) interval: Duration,
    /// The maximum time for the answer to a ping.
    pub(super) timeout: Duration,
}

impl Default for PingTimes {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(20),
            timeout: Duration::from_secs(10),
        }
    }
}

/// Reads the first bytes of a connection, and returns whether they are the preface of HTTP/2. Then
/// puts the bytes back into `stream`, so that the parser of the protocol reads them, too. Returns
/// `None` if reading fails, or if the timeout `end` expires before the bytes have arrived.
pub(super) async fn read_preface<I: AsyncRead + Unpin>(
    stream: &mut TimeoutStream<I>,
    end: &mut Timeout,
) -> Option<bool> {
    let mut prefix = BytesMut::new();
    let read = async {
        while prefix.len() < PREFACE.len() && PREFACE.starts_with(&prefix) {
            let left = PREFACE.len() - prefix.len();
            let mut limited = (&mut *stream).take(left as u64);
            if limited.read_buf(&mut prefix).await.ok()? == 0 {
                break;
            }
        }
        Some(prefix == PREFACE)
    };
    let is_http2 = match end {
        Some(end) => tokio::select! {
            biased;
            is_http2 = read => is_http2,
            () = end => None,
        },
        None => read.await,
    };
    stream.unread(prefix);
    is_http2
}

tokio::task_local! {
    /// The token that stops the Tokio task of the current request. The client's stream is reset
    /// then.
    static REQUEST_STOP: CancellationToken;
}

/// Runs the requests of one connection as Tokio tasks. These tasks stop when the connection ends.
#[derive(Clone, Debug)]
struct Streams {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let stop = self.stop.child_token();
        let stream = REQUEST_STOP.scope(stop.clone(), stream);
        self.tasks.spawn(async move {
            stop.run_until_cancelled(stream).await;
        });
    }
}

pub(super) async fn serve<I, S, F>(
    stream: TimeoutStream<I>,
    service: S,
    slot: Arc<ConnectionSlot>,
    timer: PhaseTimer,
    closed: CancellationToken,
    pings: PingTimes,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<
            Request<Incoming>,
            Response = Response<CountedBody<Body>>,
            Error = io::Error,
            Future = F,
        >,
    F: Future<Output = io::Result<Response<CountedBody<Body>>>> + Send + 'static,
{
    slot.mark_multiplexed();
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let _guard = stop.clone().drop_guard();
    let held = Arc::new(HeldFrames::new(Arc::clone(&timer.clock)));
    let watchdog = run_watchdog(
        Arc::downgrade(&slot),
        Arc::clone(&held),
        Arc::clone(&timer.clock),
        stop.clone(),
    );
    tasks.spawn(watchdog);
    let service = service_fn(move |request: Request<Incoming>| {
        let (response, watched) = (service.call(request), held.watch_response());
        async move {
            let response = response.await?;
            let stop = REQUEST_STOP.get();
            Ok::<_, io::Error>(response.map(|body| WatchedBody::new(body, watched, stop)))
        }
    });
    let streams = Streams {
        tasks: tasks.clone(),
        stop: stop.clone(),
    };
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .keep_alive_interval(pings.interval)
        .keep_alive_timeout(pings.timeout);
    let connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let driven = run_connection(connection, &slot, timer, &closed);
    stop.run_until_cancelled(driven).await;
}

/// Ends the connection if it serves no request and its phase lasts longer than `phase_timeout`.
/// Ends a request if the client takes nothing of its response for `WRITE_TIMEOUT` (see
/// [`HeldFrames`]). If the connection has no other response, ends the connection, too. Otherwise
/// the other requests go on: on a proxy's connection, they may be those of other users.
///
/// The watchdog is a separate Tokio task, because a client's frames may keep the connection's own
/// task too busy to notice the timeout.
async fn run_watchdog(
    slot: Weak<ConnectionSlot>,
    held: Arc<HeldFrames>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let phase = || slot.upgrade().map(|slot| slot.phase());
    let watched = async {
        while let Some(now) = phase() {
            let Some(time) = phase_timeout(now.0) else {
                clock.sleep(WATCHDOG_INTERVAL).await;
                let (timed_out, is_deaf) = held.timed_out();
                if is_deaf {
                    tracing::info!("a connection was closed: its client read nothing");
                    stop.cancel();
                } else {
                    for request in &timed_out {
                        request.cancel();
                    }
                }
                continue;
            };
            tokio::select! {
                biased;
                () = held.wait_for_request() => continue,
                () = clock.sleep(time) => {}
            }
            if now.0 != ConnectionPhase::Serving && phase() == Some(now) {
                stop.cancel();
            }
        }
    };
    stop.run_until_cancelled(watched).await;
}
