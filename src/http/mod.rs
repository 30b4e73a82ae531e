//! The HTTP server of the service. Each operation has its own file. An operation that changes a
//! task lets the engine append facts to the task's journal and continue. No code of this module
//! calls a model, a tool or the policy.
//!
//! A POST that changes a task is checked in this order:
//!
//! 1. the router: 404 for an unknown path, 405 for a wrong method;
//! 2. `server/guard.rs`: host, origin, announced size, API key;
//! 3. `api/submit.rs`: the replay of an `Idempotency-Key`, then 404 and 403, then the form of the
//!    key, then the body;
//! 4. the engine: 412, 410 and 409.

pub(crate) mod api;
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
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

pub(crate) use self::api::health::Metrics as RenderMetrics;
use self::api::{
    agents, deliveries, docs, gate, grants, health, mcp, me, problems, requests, tasks,
};
use self::pages::follow;
use self::pages::inbox::script;
use self::server::edge;
use self::server::guard::guard;
use self::server::operation::Op;
use self::server::problem::Problem;
pub(crate) use self::settings::Settings;
pub(crate) use self::state::Http;

/// Returns the router of the service, and a second router with `/metrics` alone, for a separate
/// listener.
pub(crate) fn routers(http: Http) -> (Router, Router) {
    let http = Arc::new(http);
    let (metrics, rest): (Vec<_>, Vec<_>) = operations()
        .into_iter()
        .partition(|(op, _)| op.id == health::METRICS.id);
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
    let mut router = OpenApiRouter::new();
    for (op, (schemas, paths, methods)) in operations {
        router = router.routes((schemas, paths, guarded(http, op, methods)));
    }
    router.split_for_parts().0
}

fn service_router(http: &Arc<Http>, operations: Vec<Operation>) -> Router {
    let router = routes(http, operations)
        .route(
            "/follow.js",
            guarded(http, &follow::OP, get(follow::get_follow_script)),
        )
        .route(
            "/inbox.js",
            guarded(http, &script::OP, get(script::get_inbox_script)),
        )
        .route(
            "/docs/",
            guarded(http, &docs::ASSETS, get(docs::get_docs_folder)),
        )
        .route(
            "/docs/{*name}",
            guarded(http, &docs::ASSETS, get(docs::get_docs_asset)),
        );
    let router = grpc::add_routes(router, |op, methods| guarded(http, op, methods), http);
    with_layers(router, http.clone())
}

/// Adds the handling of panics, and wraps the whole router in the `edge` middleware, because a
/// middleware on each route would not see the `Allow` header of a 405.
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
    tracing::error!("an operation panicked");
    Problem::internal().into_response()
}

type Operation = (&'static Op, UtoipaMethodRouter<Arc<Http>>);

/// Returns every operation of the OpenAPI document.
pub(crate) fn operations() -> Vec<Operation> {
    let api = vec![
        (&tasks::create::OP, routes!(tasks::create::create_task)),
        (&tasks::list::OP, routes!(tasks::list::list_tasks)),
        (&tasks::show::OP, routes!(tasks::show::get_task)),
        (&tasks::items::OP, routes!(tasks::items::list_task_items)),
        (
            &tasks::events::OP,
            routes!(tasks::events::stream_task_events),
        ),
        (&tasks::message::OP, routes!(tasks::message::send_message)),
        (&tasks::cancel::OP, routes!(tasks::cancel::cancel_task)),
        (&tasks::retry::OP, routes!(tasks::retry::retry_task)),
        (&requests::list::OP, routes!(requests::list::list_requests)),
        (
            &requests::events::OP,
            routes!(requests::events::stream_inbox),
        ),
        (
            &deliveries::list::OP,
            routes!(deliveries::list::list_deliveries),
        ),
        (
            &deliveries::resend_many::OP,
            routes!(deliveries::resend_many::resend_deliveries),
        ),
        (
            &deliveries::resend::OP,
            routes!(deliveries::resend::resend_delivery),
        ),
        (&agents::OP, routes!(agents::list_agents)),
        (&me::OP, routes!(me::get_me)),
        (&mcp::OP, routes!(mcp::post_mcp_message)),
        (&requests::show::OP, routes!(requests::show::get_request)),
        (
            &requests::decide::OP,
            routes!(requests::decide::decide_request),
        ),
        (
            &requests::approve::OP,
            routes!(requests::approve::approve_request),
        ),
        (
            &requests::reject::OP,
            routes!(requests::reject::reject_request),
        ),
    ];
    api.into_iter()
        .chain(gate::operations())
        .chain(grants::operations())
        .chain(pages::operations())
        .chain(service_operations())
        .collect()
}

/// Returns the operations that need no key: documents, problem pages, health checks and metrics.
fn service_operations() -> Vec<Operation> {
    vec![
        (&docs::OPENAPI, routes!(docs::get_openapi)),
        (&docs::DOCS, routes!(docs::get_docs)),
        (&problems::OP, routes!(problems::get_problem_page)),
        (&health::HEALTHZ, routes!(health::get_health)),
        (&health::READYZ, routes!(health::get_readiness)),
        (&health::METRICS, routes!(health::get_metrics)),
    ]
}
