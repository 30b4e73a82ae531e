//! Whether a request can have been sent when its time is over. What must stay true: "still connecting" is said only of a
//! request whose connection was begun and not made; of anything else it is not known.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tower::{Layer, Service};

tokio::task_local! {
    static CONNECTING: Arc<AtomicBool>;
}

/// How far one request came.
#[derive(Debug, Default)]
pub(super) struct Reach(Arc<AtomicBool>);

impl Reach {
    /// Looks on while a request is made.
    pub(super) fn watched<F: Future>(&self, request: F) -> impl Future<Output = F::Output> + use<F> {
        CONNECTING.scope(Arc::clone(&self.0), request)
    }

    /// Whether there is no connection yet, so that nothing was sent.
    pub(super) fn is_connecting(&self) -> bool {
        self.0.load(Ordering::SeqCst)
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

impl<S: Service<R>, R> Service<R> for Watched<S>
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
        let connecting = CONNECTING.try_with(Arc::clone).unwrap_or_default();
        connecting.store(true, Ordering::SeqCst);
        let connection = self.0.call(to);
        Box::pin(async move {
            let made = connection.await;
            connecting.store(false, Ordering::SeqCst);
            made
        })
    }
}
