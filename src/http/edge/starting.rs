//! The answers before the database is open:
//! - `/healthz`: 200, because the process is alive.
//! - `/readyz`: the problem `unavailable`.
//! - Any other path: the problem `forbidden` if a service without accounts refuses the request
//!   (`Edge::host_refusal`), otherwise `unavailable`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use axum::{Extension, Router};

use super::{Edge, edge};
use crate::http::api::health;
use crate::http::server::operation::OperationSlot;
use crate::http::server::problem::Problem;

/// Returns the router of the service, and the router for a separate listener of the metrics.
pub(crate) fn routers(state: &Arc<Edge>) -> (Router, Router) {
    let probes = Router::new()
        .route("/healthz", get(get_health))
        .route("/readyz", get(get_readiness));
    (with_edge(probes, state), with_edge(Router::new(), state))
}

fn with_edge(router: Router<Arc<Edge>>, state: &Arc<Edge>) -> Router {
    let inner = router.fallback(refuse).with_state(Arc::clone(state));
    Router::new()
        .fallback_service(inner)
        .layer(from_fn_with_state(Arc::clone(state), edge))
}

async fn get_health(Extension(slot): Extension<OperationSlot>) -> &'static str {
    slot.set(&health::HEALTHZ);
    health::get_health().await
}

async fn get_readiness(Extension(slot): Extension<OperationSlot>) -> Problem {
    slot.set(&health::READYZ);
    Problem::unavailable()
}

async fn refuse(State(state): State<Arc<Edge>>, request: Request) -> Problem {
    match state.host_refusal(&request) {
        Some(refusal) => Problem::forbidden(refusal),
        None => Problem::unavailable(),
    }
}
