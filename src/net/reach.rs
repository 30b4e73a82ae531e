//! Tracks whether a request can have been sent, and whether it may still be sent. Invariant:
//! `is_connecting` is true only while the request's connection is being made or waits for the
//! permit to send. If neither `is_connecting` nor `is_refused` is true, the request may have been
//! sent. On a new connection, nothing is written before the permit is given.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

tokio::task_local! {
    static REACH: Reach;
}

/// The progress of one request.
#[derive(Clone)]
pub(super) struct Reach(Arc<Way>);

struct Way {
    stage: Mutex<Stage>,
    leave: Mutex<Option<Leave>>,
}

#[derive(Clone, Copy)]
enum Stage {
    /// No connection was made yet, or none could be made.
    Unconnected,
    Connecting,
    /// The connection is made, and it is not decided yet whether the request may be sent.
    Undecided,
    Refused,
    /// The request may be sent, since this time.
    Permitted(Instant),
}

/// Resolves once it is decided whether the request may be sent: to the time of that decision, or to
/// `None` if it must not be sent.
type Leave = BoxFuture<'static, Option<Instant>>;

impl Reach {
    /// The progress of a request that is sent only if `leave` returns a time. `leave` is awaited
    /// once the request's connection is made.
    pub(super) fn with(leave: impl Future<Output = Option<Instant>> + Send + 'static) -> Self {
        Self(Arc::new(Way {
            stage: Mutex::new(Stage::Unconnected),
            leave: Mutex::new(Some(leave.boxed())),
        }))
    }

    /// Runs `request`; while it runs, the connector reports its progress to `self`.
    pub(super) fn watched<F: Future>(
        &self,
        request: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        REACH.scope(self.clone(), request)
    }

    /// Whether the connection is still being made, or waits for the permit, so that nothing was
    /// sent.
    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.stage(), Stage::Connecting | Stage::Undecided)
    }

    /// Whether the permit was gone when the connection was made, so that nothing was sent.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.stage(), Stage::Refused)
    }

    /// The end of a period of `within` that begins when the request may be sent, or now if that is
    /// not decided yet. `None` without a connection, or if the request must not be sent.
    pub(super) fn end_of(&self, within: Duration) -> Option<Instant> {
        match self.stage() {
            Stage::Undecided => Some(Instant::now() + within),
            Stage::Permitted(at) => Some(at + within),
            Stage::Unconnected | Stage::Connecting | Stage::Refused => None,
        }
    }

    fn stage(&self) -> Stage {
        *self.0.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stage: Stage) {
        *self.0.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Asks, once the connection is made, whether anything may be written to it.
    async fn may_send(&self) -> bool {
        self.set(Stage::Undecided);
        let leave = {
            let mut leave = self.0.leave.lock().unwrap_or_else(PoisonError::into_inner);
            leave.take()
        };
        let given = match leave {
            Some(leave) => leave.await,
            None => None,
        };
        self.set(given.map_or(Stage::Refused, Stage::Permitted));
        given.is_some()
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
    S::Response: Send,
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
            reach.set(Stage::Connecting);
        }
        let connection = self.0.call(to);
        Box::pin(async move {
            let made = connection.await;
            let Ok(reach) = reach else {
                return Err("nobody looks on".into());
            };
            let made = made.inspect_err(|_| reach.set(Stage::Unconnected))?;
            if reach.may_send().await {
                Ok(made)
            } else {
                Err("there is no leave to send any more".into())
            }
        })
    }
}
