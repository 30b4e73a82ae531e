//! The operations `/healthz`, `/readyz` and `/metrics`, for operators. They need no key and show no
//! data of users.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;

use crate::http::Http;
use crate::http::server::operation::{AuthClass, Op};
use crate::http::server::problem::{Code, Problem};

/// A function that returns the metrics in the Prometheus text format.
pub(crate) type RenderMetrics = Arc<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>;

pub(crate) const HEALTHZ: Op = Op {
    auth: AuthClass::Health,
    ..Op::public("get_health", &[])
};
pub(crate) const READYZ: Op = Op {
    auth: AuthClass::Health,
    ..Op::public("get_readiness", &[Code::Unavailable])
};
pub(crate) const METRICS: Op = Op::public("get_metrics", &[]);

/// Check that the process is alive
#[utoipa::path(
    get, path = "/healthz", operation_id = "get_health", tag = "service", security(()),
    responses((status = 200, body = String, content_type = "text/plain", description = "The process is alive"))
)]
pub(crate) async fn get_health() -> &'static str {
    "ok\n"
}

/// Check that the service is ready
///
/// 503 when the database is not usable, or when the service is shutting down.
#[utoipa::path(
    get, path = "/readyz", operation_id = "get_readiness", tag = "service", security(()),
    responses((status = 200, body = String, content_type = "text/plain", description = "The service is ready"))
)]
pub(crate) async fn get_readiness(State(http): State<Arc<Http>>) -> Result<&'static str, Problem> {
    if !http.shutdown.is_cancelled() && http.store.ready().await {
        Ok("ready\n")
    } else {
        Err(Problem::unavailable())
    }
}

/// Get the metrics
///
/// Returns the metrics in the Prometheus text format, without tenants, users and ids.
#[utoipa::path(
    get, path = "/metrics", operation_id = "get_metrics", tag = "service", security(()),
    responses((status = 200, body = String, content_type = "text/plain", description = "The metrics"))
)]
pub(crate) async fn get_metrics(State(http): State<Arc<Http>>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, kind)], (http.metrics)().await).into_response()
}
