//! The only room that speaks HTTP: one operation per file. A request can only append a fact and let the engine move;
//! this room never touches a model, a tool or the policy.
//!
//! The order of checks is kept by where things stand: the router (404 of a path, 405), the guard (host, origin, announced
//! size, key), then the operation (replayed key, 404, 403, the body), then the engine (412, 410, 409).

pub mod accept;
pub mod agents;
pub mod body;
pub mod caller;
pub mod connections;
mod constraints;
pub mod descriptors;
pub mod docs;
pub mod edge;
pub mod events;
pub mod fields;
pub mod follow;
pub mod health;
pub mod json;
pub mod language;
mod links;
pub mod listing;
pub mod me;
pub mod message;
pub mod moved;
pub mod openapi;
pub mod operation;
pub mod origin;
pub mod page;
pub mod params;
pub mod patience;
pub mod prefer;
pub mod problem;
pub mod problems;
pub mod query;
pub mod read;
pub mod refusal;
pub mod requests;
pub mod rest;
pub mod resume;
pub mod sample;
pub mod serve;
pub mod settings;
pub mod sign_in;
#[cfg(test)]
mod smoke;
pub mod sse;
pub mod tasks;
pub mod wait;
pub mod wire;
pub mod wrong_keys;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use self::agents::list::AgentCard;
use self::body::Parsing;
use self::events::seats::Seats;
use self::operation::{Op, guard};
use self::origin::Origins;
use self::problem::Problem;
pub use self::settings::Settings;
use self::wrong_keys::WrongKeys;
use crate::engine::Engine;
use crate::people::authenticator::Authenticator;
use crate::store::Store;
use crate::world::{Clock, Ids};

/// What the operations share.
pub struct Http {
    /// Makes tasks move.
    pub engine: Arc<Engine>,
    /// What is kept.
    pub store: Store,
    /// The agents, as they are shown.
    pub agents: Vec<AgentCard>,
    /// Knows who is calling.
    pub authenticator: Arc<dyn Authenticator>,
    /// Fresh ids.
    pub ids: Arc<dyn Ids>,
    /// What time it is, for a page that says how much is left. It decides nothing.
    pub clock: Arc<dyn Clock>,
    /// The operator's.
    pub settings: Settings,
    /// Who may change something from a browser; [`routers`] makes it from the settings.
    pub origins: Origins,
    /// Cancelled when the service goes down.
    pub shutdown: CancellationToken,
    /// Work that a client who goes away does not stop.
    pub tracker: TaskTracker,
    /// Who watches.
    pub seats: Seats,
    /// Where large bodies are read.
    pub parsing: Parsing,
    /// The wrong keys of late.
    pub wrong_keys: WrongKeys,
    /// The metrics.
    pub metrics: health::Metrics,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The service; and `/metrics` by itself, for a listener of its own.
pub fn routers(mut http: Http) -> (Router, Router) {
    http.settings = http.settings.trimmed();
    http.origins = Origins::new(&http.settings.public_url, &http.settings.cors_origins);
    let http = Arc::new(http);
    let (metrics, rest): (Vec<_>, Vec<_>) = operations().into_iter().partition(|(op, _)| op.id == health::METRICS.id);
    let main = if http.settings.metrics_apart { rest } else { operations() };
    (service(&http, main), wrapped(routes(&http, metrics), http))
}

fn guarded(http: &Arc<Http>, op: &'static Op, methods: MethodRouter<Arc<Http>>) -> MethodRouter<Arc<Http>> {
    methods.route_layer(from_fn_with_state((http.clone(), op), guard))
}

fn routes(http: &Arc<Http>, operations: Vec<Operation>) -> Router<Arc<Http>> {
    let mut described = OpenApiRouter::new();
    for (op, (schemas, paths, methods)) in operations {
        described = described.routes((schemas, paths, guarded(http, op, methods)));
    }
    described.split_for_parts().0
}

fn service(http: &Arc<Http>, operations: Vec<Operation>) -> Router {
    let router = routes(http, operations)
        .route("/follow.js", guarded(http, &follow::OP, get(follow::get_follow_script)))
        .route("/docs/", guarded(http, &docs::ASSETS, get(docs::get_docs_folder)))
        .route("/docs/{*name}", guarded(http, &docs::ASSETS, get(docs::get_docs_asset)));
    wrapped(router, http.clone())
}

/// What is true of every answer: no panic gets out, and the edge has the last word. The edge stands around the whole
/// router and not around each route: only there does an answer carry the `Allow` of its path already.
fn wrapped(router: Router<Arc<Http>>, http: Arc<Http>) -> Router {
    let inner = router
        .fallback(async || Problem::not_found())
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(http.clone());
    Router::new().fallback_service(inner).layer(from_fn_with_state(http, edge::edge))
}

fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    tracing::error!("an operation panicked");
    Problem::internal().into_response()
}

/// An operation and its route.
type Operation = (&'static Op, UtoipaMethodRouter<Arc<Http>>);

/// Every operation of the document.
pub(crate) fn operations() -> Vec<Operation> {
    vec![
        (&tasks::create::OP, routes!(tasks::create::create_task)),
        (&tasks::list::OP, routes!(tasks::list::list_tasks)),
        (&tasks::show::OP, routes!(tasks::show::get_task)),
        (&tasks::items::OP, routes!(tasks::items::list_task_items)),
        (&tasks::events::OP, routes!(tasks::events::stream_task_events)),
        (&tasks::message::OP, routes!(tasks::message::send_message)),
        (&tasks::cancel::OP, routes!(tasks::cancel::cancel_task)),
        (&tasks::retry::OP, routes!(tasks::retry::retry_task)),
        (&requests::list::OP, routes!(requests::list::list_requests)),
        (&agents::list::OP, routes!(agents::list::list_agents)),
        (&me::OP, routes!(me::get_me)),
        (&resume::show::OP, routes!(resume::show::get_request)),
        (&resume::decide::OP, routes!(resume::decide::decide_request)),
        (&resume::approve_page::OP, routes!(resume::approve_page::get_approve_page)),
        (&resume::approve::OP, routes!(resume::approve::approve_request)),
        (&resume::reject_page::OP, routes!(resume::reject_page::get_reject_page)),
        (&resume::reject::OP, routes!(resume::reject::reject_request)),
        (&sign_in::show::OP, routes!(sign_in::show::get_sign_in)),
        (&sign_in::enter::OP, routes!(sign_in::enter::sign_in)),
        (&sign_in::leave::OP, routes!(sign_in::leave::sign_out)),
        (&docs::OPENAPI, routes!(docs::get_openapi)),
        (&docs::DOCS, routes!(docs::get_docs)),
        (&problems::OP, routes!(problems::get_problem_page)),
        (&health::HEALTHZ, routes!(health::get_health)),
        (&health::READYZ, routes!(health::get_readiness)),
        (&health::METRICS, routes!(health::get_metrics)),
    ]
}
