//! Tracks whether a request can have been sent, and whether it may still be sent. Invariant:
//! `is_connecting` is true only while the request's connection is being made. If neither
//! `is_connecting` nor `is_refused` is true, the request may have been sent. On a new connection,
//! nothing is written before the sender has confirmed its permit once more.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tower::{BoxError, Layer, Service};

tokio::task_local! {
    static REACH: Reach;
}

/// The progress of one request.
#[derive(Clone)]
pub(super) struct Reach(Arc<Way>);

struct Way {
    connecting: AtomicBool,
    refused: AtomicBool,
    leave: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Reach {
    /// For a request that is sent only if `leave` returns true once its connection is made.
    pub(super) fn with(leave: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let (connecting, refused) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Way {
            connecting,
            refused,
            leave: Box::new(leave),
        }))
    }

    /// Runs `request`; while it runs, the connector reports its progress to `self`.
    pub(super) fn watched<F: Future>(
        &self,
        request: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        REACH.scope(self.clone(), request)
    }

    /// Whether the connection is still being made, so that nothing was sent.
    pub(super) fn is_connecting(&self) -> bool {
        self.0.connecting.load(Ordering::SeqCst)
    }

    /// Whether the permit was gone when the connection was made, so that nothing was sent.
    pub(super) fn is_refused(&self) -> bool {
        self.0.refused.load(Ordering::SeqCst)
    }

    fn connects(&self, connecting: bool) {
        self.0.connecting.store(connecting, Ordering::SeqCst);
    }

    /// Asks, once the connection is made, whether anything may be written to it.
    fn may_send(&self) -> bool {
        let may = (self.0.leave)();
        self.0.refused.store(!may, Ordering::SeqCst);
        may
    }
}

/// Reports the start and end of connecting (name resolution, TCP and TLS) to the `Reach` of the
/// request being made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch;

impl<S> Layer<S> for Watch {
    type Service = Watched<S>;

    fn layer(&self, connector: S) -> Watched<S> {
        Watched(connector)
    }
}

/// A connector that reports to the `Reach` of the current request.
#[derive(Clone, Debug)]
pub(super) struct Watched<S>(S);

impl<S: Service<R, Error = BoxError>, R> Service<R> for Watched<S>
where
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, to: R) -> Self::Future {
        let reach = REACH.try_with(Reach::clone);
        if let Ok(reach) = &reach {
            reach.connects(true);
        }
        let connection = self.0.call(to);
        Box::pin(async move {
            let made = connection.await;
            let Ok(reach) = reach else {
                return Err("nobody looks on".into());
            };
            reach.connects(false);
            let made = made?;
            if reach.may_send() {
                Ok(made)
            } else {
                Err("there is no leave to send any more".into())
            }
        })
    }
}
