//! Tracks whether a request can have been sent, and whether it may still be sent. Invariant:
//! `is_connecting` is true only while the request's connection is being made. If neither
//! `is_connecting` nor `is_refused` is true, the request may have been sent. On a new connection,
//! nothing is written before the sender has confirmed its permit once more.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};

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
    connecting: AtomicBool,
    refused: AtomicBool,
    waiting: AtomicBool,
    leave: Mutex<Option<Leave>>,
    /// When the request was permitted.
    given: OnceLock<Instant>,
}

/// Resolves once it is decided whether the request may be sent: to the time of that decision, or to
/// `None` if it must not be sent.
type Leave = BoxFuture<'static, Option<Instant>>;

impl Reach {
    /// For a request that is sent only if `leave` returns a time once its connection is made.
    pub(super) fn with(leave: impl Future<Output = Option<Instant>> + Send + 'static) -> Self {
        let (connecting, refused) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Way {
            connecting,
            refused,
            waiting: AtomicBool::new(false),
            leave: Mutex::new(Some(leave.boxed())),
            given: OnceLock::new(),
        }))
    }

    /// Runs `request`; while it runs, the connector reports its progress to `self`.
    pub(super) fn watched<F: Future>(
        &self,
        request: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        REACH.scope(self.clone(), request)
    }

    /// Whether the connection is still being made, or waits for leave, so that nothing was sent.
    pub(super) fn is_connecting(&self) -> bool {
        self.0.connecting.load(Ordering::SeqCst)
    }

    /// Whether the permit was gone when the connection was made, so that nothing was sent.
    pub(super) fn is_refused(&self) -> bool {
        self.0.refused.load(Ordering::SeqCst)
    }

    /// Whether the connection is made and it is not decided yet whether the request may be sent.
    pub(super) fn waits_for_leave(&self) -> bool {
        self.0.waiting.load(Ordering::SeqCst)
    }

    /// The time since which the request may be sent.
    pub(super) fn given_at(&self) -> Option<Instant> {
        self.0.given.get().copied()
    }

    fn connects(&self, connecting: bool) {
        self.0.connecting.store(connecting, Ordering::SeqCst);
    }

    /// Asks, once the connection is made, whether anything may be written to it.
    async fn may_send(&self) -> bool {
        let leave = self
            .0
            .leave
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.0.waiting.store(true, Ordering::SeqCst);
        let given = match leave {
            Some(leave) => leave.await,
            None => None,
        };
        self.0.waiting.store(false, Ordering::SeqCst);
        self.0.refused.store(given.is_none(), Ordering::SeqCst);
        if let Some(at) = given {
            let _ = self.0.given.set(at);
        }
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
            reach.connects(true);
        }
        let connection = self.0.call(to);
        Box::pin(async move {
            let made = connection.await;
            let Ok(reach) = reach else {
                return Err("nobody looks on".into());
            };
            let made = match made {
                Ok(made) => made,
                Err(error) => {
                    reach.connects(false);
                    return Err(error);
                }
            };
            let may_send = reach.may_send().await;
            reach.connects(false);
            if may_send {
                Ok(made)
            } else {
                Err("there is no leave to send any more".into())
            }
        })
    }
}
