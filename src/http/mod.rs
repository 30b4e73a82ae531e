//! The HTTP server of the service. Each operation has its own file. An operation that changes a
//! task lets the engine append facts to the task's journal and drive the task. No code of this
//! module calls a model, a tool or the policy.
//!
//! A POST that changes a task passes these checks in this order:
//!
//! 1. The router checks the path (404) and the method (405).
//! 2. `server/guard.rs` checks the host, the origin, the announced size, and the credential: the
//!    API key, the session cookie or the sealed link.
//! 3. `api/submit.rs` replays the result of an earlier POST with the same `Idempotency-Key`. For a
//!    new POST, it checks that the target exists (404) and that the caller has the right (403). It
//!    then checks the form of the `Idempotency-Key`, and after that the body.
//! 4. The engine checks the digest (412), the deadline (410) and the state (409).
//!
//! An operation that stores no `Idempotency-Key` uses `check_key` of `server/body.rs` to check the
//! form of this header before the body.

pub(crate) mod access;
pub(crate) mod api;
pub(crate) mod edge;
pub(crate) mod events;
pub(crate) mod grpc;
pub mod openapi;
pub(crate) mod pages;
pub(crate) mod server;
pub(crate) mod settings;
pub(crate) mod state;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use tower_http::catch_panic::CatchPanicLayer;

pub(crate) use self::api::health::RenderMetrics;
use self::api::{agents, deliveries, gate, grants, health, mcp, me, requests, tasks};
use self::openapi::docs;
use self::pages::inbox::script;
use self::pages::{follow, problems, resume, times};
use self::server::guard::guard;
use self::server::operation::{Op, Operation, operation};
use self::server::problem::Problem;
pub(crate) use self::settings::Settings;
pub(crate) use self::state::Http;

/// A route for GET that the OpenAPI document leaves out: its path, its operation and its handler.
type Asset = (&'static str, &'static Op, fn() -> MethodRouter<Arc<Http>>);

/// The scripts of the pages, and the parts of the page `/docs`.
const ASSETS: [Asset; 5] = [
    ("/follow.js", &follow::OP, || get(follow::get_follow_script)),
    ("/times.js", &times::OP, || get(times::get_times_script)),
    ("/inbox.js", &script::OP, || get(script::get_inbox_script)),
    ("/docs/", &docs::ASSETS, || get(docs::get_docs_folder)),
    ("/docs/{*name}", &docs::ASSETS, || get(docs::get_docs_asset)),
];

/// Returns the paths that answer GET and are not in the OpenAPI document.
#[must_use]
pub fn asset_paths() -> Vec<&'static str> {
    ASSETS.iter().map(|(path, ..)| *path).collect()
}

/// Returns the router of the service, and a second router with `/metrics` alone, for a separate
/// listener. If the metrics have such a listener, the first router has no `/metrics`.
pub(crate) fn routers(http: Http) -> (Router, Router) {
    let http = Arc::new(http);
    let (metrics, rest): (Vec<_>, Vec<_>) = operations()
        .into_iter()
        .partition(|operation| operation.op.id == health::METRICS.id);
    let main = if http.settings.has_metrics_listener {
        rest
    } else {
        operations()
    };
    (
        service_router(&http, main),
        with_layers(routes(&http, metrics), http),
    )
}

fn guarded(
    http: &Arc<Http>,
    op: &'static Op,
    methods: MethodRouter<Arc<Http>>,
) -> MethodRouter<Arc<Http>> {
    methods.route_layer(from_fn_with_state((http.clone(), op), guard))
}

fn routes(http: &Arc<Http>, operations: Vec<Operation>) -> Router<Arc<Http>> {
    let mut router = Router::new();
    for operation in operations {
        let (path, methods) = (operation.route)();
        router = router.route(&path, guarded(http, operation.op, methods));
    }
    router
}

fn service_router(http: &Arc<Http>, operations: Vec<Operation>) -> Router {
    let mut router = routes(http, operations);
    for (path, op, methods) in ASSETS {
        router = router.route(path, guarded(http, op, methods()));
    }
    let router = grpc::add_routes(router, |op, methods| guarded(http, op, methods), http);
    with_layers(router, http.clone())
}

/// Adds the handling of panics, and wraps the whole router in the `edge` middleware. A middleware
/// on each route would not see the `Allow` header of a 405, because axum adds this header after the
/// route's middleware has returned the response.
fn with_layers(router: Router<Arc<Http>>, http: Arc<Http>) -> Router {
    let state = Arc::clone(&http.edge);
    let inner = router
        .fallback(async || Problem::not_found())
        .layer(CatchPanicLayer::custom(panic_response))
        .with_state(http);
    Router::new()
        .fallback_service(inner)
        .layer(from_fn_with_state(state, edge::edge))
}

fn panic_response(_: Box<dyn Any + Send + 'static>) -> Response {
    Problem::internal("an operation panicked").into_response()
}

/// Returns every operation of the OpenAPI document.
pub(crate) fn operations() -> Vec<Operation> {
    let api = vec![
        operation!(tasks::create::OP, tasks::create::create_task),
        operation!(tasks::list::OP, tasks::list::list_tasks),
        operation!(tasks::show::OP, tasks::show::get_task),
        operation!(tasks::items::OP, tasks::items::list_task_items),
        operation!(tasks::events::OP, tasks::events::stream_task_events),
        operation!(tasks::message::OP, tasks::message::send_message),
        operation!(tasks::cancel::OP, tasks::cancel::cancel_task),
        operation!(tasks::retry::OP, tasks::retry::retry_task),
        operation!(requests::list::OP, requests::list::list_requests),
        operation!(requests::events::OP, requests::events::stream_inbox),
        operation!(deliveries::list::OP, deliveries::list::list_deliveries),
        operation!(
            deliveries::resend_many::OP,
            deliveries::resend_many::resend_deliveries
        ),
        operation!(deliveries::resend::OP, deliveries::resend::resend_delivery),
        operation!(agents::OP, agents::list_agents),
        operation!(me::OP, me::get_me),
        operation!(mcp::OP, mcp::post_mcp_message),
        operation!(resume::show::OP, resume::show::get_request),
        operation!(resume::decide::DECIDE, resume::decide::decide_request),
        operation!(resume::decide::APPROVE, resume::decide::approve_request),
        operation!(resume::decide::REJECT, resume::decide::reject_request),
        operation!(gate::propose::OP, gate::propose::propose_gate_call),
        operation!(gate::show::OP, gate::show::get_gate_call),
        operation!(gate::report::OP, gate::report::report_gate_outcome),
        operation!(grants::list::OP, grants::list::list_grants),
        operation!(grants::end::OP, grants::end::end_grant),
    ];
    api.into_iter()
        .chain(pages::operations())
        .chain(service_operations())
        .collect()
}

/// Returns the operations that need no key: documents, problem pages, health checks and metrics.
fn service_operations() -> Vec<Operation> {
    vec![
        operation!(docs::OPENAPI, docs::get_openapi),
        operation!(docs::DOCS, docs::get_docs),
        operation!(problems::OP, problems::get_problem_page),
        operation!(health::HEALTHZ, health::get_health),
        operation!(health::READYZ, health::get_readiness),
        operation!(health::METRICS, health::get_metrics),
    ]
}
