//! Whether a request can have been sent when its time is over. What must stay true: "still connecting" is said only of a
//! request whose connection was begun and not made; of anything else it is not known. With the connection made, and before
//! a byte of the request is written, it is asked once more whether it may still be sent: connecting can take seconds.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tower::{Layer, Service};

tokio::task_local! {
    static UNDER_WAY: Arc<State>;
}

/// How far one request came.
#[derive(Debug)]
pub(super) struct Reach(Arc<State>);

struct State {
    connecting: AtomicBool,
    kept_back: AtomicBool,
    /// Whether it may be sent, as of now.
    leave: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

impl Reach {
    /// Of a request that is sent only if it has `leave` when its connection is there.
    pub(super) fn of(leave: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let (connecting, kept_back) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(State { connecting, kept_back, leave: Box::new(leave) }))
    }

    /// Looks on while a request is made.
    pub(super) fn watched<F: Future>(&self, request: F) -> impl Future<Output = F::Output> + use<F> {
        UNDER_WAY.scope(Arc::clone(&self.0), request)
    }

    /// Whether there is no connection yet, so that nothing was sent.
    pub(super) fn is_connecting(&self) -> bool {
        self.0.connecting.load(Ordering::SeqCst)
    }

    /// Whether it had no leave any more when it could have been sent.
    pub(super) fn was_kept_back(&self) -> bool {
        self.0.kept_back.load(Ordering::SeqCst)
    }
}

/// Tells the request that is being made of its connection: around name resolution, TCP and TLS.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch;

impl<S> Layer<S> for Watch {
    type Service = Watched<S>;

    fn layer(&self, connector: S) -> Watched<S> {
        Watched(connector)
    }
}

/// A connector that is watched.
#[derive(Clone, Debug)]
pub(super) struct Watched<S>(S);

impl<S, R> Service<R> for Watched<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
    S::Error: Into<Failed>,
{
    type Response = S::Response;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Failed>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, to: R) -> Self::Future {
        let state = UNDER_WAY.try_with(Arc::clone).ok();
        if let Some(state) = &state {
            state.connecting.store(true, Ordering::SeqCst);
        }
        let connection = self.0.call(to);
        Box::pin(async move {
            let made = connection.await.map_err(Into::into);
            let Some(state) = state else { return made };
            if made.is_ok() && !(state.leave)() {
                state.kept_back.store(true, Ordering::SeqCst);
                return Err(io::Error::other("it may not be sent any more").into());
            }
            state.connecting.store(false, Ordering::SeqCst);
            made
        })
    }
}

/// Why there is no connection.
type Failed = Box<dyn std::error::Error + Send + Sync>;
