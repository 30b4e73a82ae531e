//! The outermost middleware. It gives each request an id, renders problems, answers CORS
//! preflights, and adds the headers that operations share: request id, CORS, caching and security.
//! The log line of a request omits path and query, because a path may contain a sealed link.
//!
//! A problem of an operation for programs is rendered as JSON. A problem of any other operation is
//! rendered as a page if the client prefers HTML, otherwise as JSON. A problem after a GET of a
//! sealed link is always a page.
//!
//! If the service is unavailable, a client that asks for an event stream gets a stream with status
//! 200 that ends at once. A browser's `EventSource` then reconnects. After any other status, it
//! would give up (WHATWG HTML, "Server-sent events").

mod known_paths;
mod problem_page;
pub(crate) mod starting;

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::http::Settings;
use crate::http::events::opening::ended_stream;
use crate::http::pages::language::Language;
use crate::http::pages::layout;
use crate::http::server::accept::{wants_html, wants_stream};
use crate::http::server::caller::CurrentCaller;
use crate::http::server::drain_body;
use crate::http::server::headers::insert_header;
use crate::http::server::operation::{AuthClass, OperationSlot, Surface};
use crate::http::server::origin::{Origins, refusal_without_accounts};
use crate::http::server::problem::{Code, Problem, RenderedError};
use crate::world::Ids;

/// The state of this middleware. The middleware also runs while the database is not open yet
/// (`starting.rs`), so the state has nothing that needs the database.
pub(crate) struct Edge {
    public_url: String,
    without_accounts: bool,
    pub(crate) origins: Origins,
    ids: Arc<dyn Ids>,
    tracker: TaskTracker,
}

impl Edge {
    #[must_use]
    pub(crate) fn new(settings: &Settings, ids: &Arc<dyn Ids>, tracker: &TaskTracker) -> Self {
        Self {
            public_url: settings.public_url.clone(),
            without_accounts: settings.without_accounts,
            origins: Origins::new(&settings.public_url, &settings.cors_origins),
            ids: Arc::clone(ids),
            tracker: tracker.clone(),
        }
    }

    /// Returns why a service without accounts refuses the request; `None` if the service accepts
    /// the request.
    #[must_use]
    pub(crate) fn host_refusal(&self, request: &Request) -> Option<&'static str> {
        if self.without_accounts {
            refusal_without_accounts(request.headers(), request.uri(), request.version())
        } else {
            None
        }
    }
}

struct RequestContext {
    id: Uuid,
    origin: Option<HeaderValue>,
    is_preflight: bool,
    /// Whether the client prefers a page to JSON; always true for a GET or HEAD of a sealed link.
    wants_html: bool,
    /// Whether the request is a GET that asks for an event stream.
    wants_stream: bool,
    host_refusal: Option<&'static str>,
    operation: OperationSlot,
    /// The path and query of the request.
    path: String,
    language: Language,
}

impl RequestContext {
    fn new(state: &Edge, request: &Request) -> Self {
        let headers = request.headers();
        let is_shared = state.origins.allows_cors(headers);
        let mut context = Self {
            id: state.ids.fresh(),
            origin: headers.get(header::ORIGIN).filter(|_| is_shared).cloned(),
            is_preflight: *request.method() == Method::OPTIONS
                && headers.contains_key(header::ORIGIN)
                && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD),
            wants_html: wants_html(headers),
            wants_stream: *request.method() == Method::GET && wants_stream(headers),
            host_refusal: state.host_refusal(request),
            operation: OperationSlot::default(),
            path: request
                .uri()
                .path_and_query()
                .map_or_else(String::new, ToString::to_string),
            language: Language::from_headers(headers),
        };
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        context.wants_html |= is_read && context.is_link();
        context
    }

    fn surface(&self) -> Surface {
        match self.operation.get() {
            Some(op) => op.surface,
            None => known_paths::surface(self.path.split('?').next().unwrap_or_default()),
        }
    }

    /// Returns whether the path is a sealed link from a message.
    fn is_link(&self) -> bool {
        known_paths::is_link(&self.path)
    }

    /// Returns the id of the HTTP request, which the page of a problem shows. `None` for a sealed
    /// link that does not work: the pages of all such links are equal, byte for byte, so that a
    /// page reveals nothing about its link.
    fn id_on_page(&self, code: Code) -> Option<Uuid> {
        let is_hidden = self.is_link() && matches!(code, Code::NotFound | Code::LinkExpired);
        (!is_hidden).then_some(self.id)
    }
}

pub(crate) async fn edge(
    State(state): State<Arc<Edge>>,
    mut request: Request,
    next: Next,
) -> Response {
    let context = RequestContext::new(&state, &request);
    request.extensions_mut().insert(context.operation.clone());
    let unread = drain_body::track(&mut request);
    let started = Instant::now();
    let response = next.run(request).await;
    if let Some(body) = unread.take() {
        state.tracker.spawn(drain_body::drain(body));
    }
    let mut response = render_problem(&state.public_url, &context, response);
    let seconds = started.elapsed().as_secs_f64();
    add_headers(&context, &mut response);
    let op = context.operation.get();
    let operation = op.map_or("none", |op| op.id);
    let status = response.status().as_u16();
    // Health checks come every few seconds, so they are logged at a lower level.
    if op.is_some_and(|op| op.auth == AuthClass::Health) {
        tracing::debug!(operation, status, seconds, http_request_id = %context.id, "answered");
    } else {
        tracing::info!(operation, status, seconds, http_request_id = %context.id, "answered");
    }
    tracing::info!(target: "holdpoint::metric", metric = "http_request", operation, status, seconds);
    response
}

/// Answers a CORS preflight for a known path, and renders an error response as a problem. Returns
/// any other response unchanged.
fn render_problem(public_url: &str, context: &RequestContext, mut response: Response) -> Response {
    let status = response.status();
    if context.is_preflight && status == StatusCode::METHOD_NOT_ALLOWED {
        if let Some(why) = context.host_refusal {
            return problem(public_url, context, &Problem::forbidden(why), None);
        }
        return preflight(context, response.headers().get(header::ALLOW));
    }
    let caller = response.extensions_mut().remove::<CurrentCaller>();
    let is_problem = status.is_client_error() || status.is_server_error();
    match response.extensions_mut().remove::<Problem>() {
        Some(found) => problem(public_url, context, &found, caller),
        None if is_problem && response.extensions().get::<RenderedError>().is_none() => {
            let mut found = Problem::from_status(status);
            let allow = response.headers().get(header::ALLOW).cloned();
            found
                .headers
                .extend(allow.map(|allow| (header::ALLOW, allow)));
            problem(public_url, context, &found, caller)
        }
        None => response,
    }
}

fn preflight(context: &RequestContext, allow: Option<&HeaderValue>) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    if context.origin.is_some() {
        let headers = response.headers_mut();
        if let Some(methods) = allow {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods.clone());
        }
        let allowed = "Authorization, Content-Type, Idempotency-Key, Prefer, Last-Event-ID";
        insert_header(headers, header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
        insert_header(headers, header::ACCESS_CONTROL_MAX_AGE, "600");
    }
    response
}

fn problem(
    public_url: &str,
    context: &RequestContext,
    problem: &Problem,
    caller: Option<CurrentCaller>,
) -> Response {
    let status = problem.code.status();
    let mut response = match context.surface() {
        Surface::Stream if context.wants_stream && problem.code == Code::Unavailable => {
            return ended_stream();
        }
        Surface::Page | Surface::Public if context.wants_html => {
            let page = problem_page::render(public_url, context, problem, caller);
            (status, page).into_response()
        }
        Surface::Api | Surface::Stream | Surface::Page | Surface::Public => {
            let kind = [(header::CONTENT_TYPE, "application/problem+json")];
            let document = Json(problem.document(public_url, context.id));
            (status, kind, document).into_response()
        }
    };
    response
        .headers_mut()
        .extend(problem.headers.iter().cloned());
    response
}

fn add_headers(context: &RequestContext, response: &mut Response) {
    // `Vary` names `Accept` where `Accept` may change the response: on a private path, and on a
    // public path for errors and for the redirect of `/`.
    let is_private = context.surface() != Surface::Public;
    let is_negotiated = is_private || !response.status().is_success();
    let headers = response.headers_mut();
    let id = context.id.to_string();
    insert_header(headers, HeaderName::from_static("x-request-id"), &id);
    insert_header(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    if is_private {
        // Keeps a `Cache-Control` that the operation has set, such as that of an event stream.
        headers
            .entry(header::CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-store"));
    }
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    if is_negotiated {
        headers.append(header::VARY, HeaderValue::from_static("Accept"));
    }
    if context.is_link() {
        insert_header(headers, HeaderName::from_static("x-robots-tag"), "noindex");
    }
    if let Some(origin) = &context.origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        let exposed = "Location, Content-Location, Retry-After, Preference-Applied, \
            Idempotency-Replayed, X-Request-Id";
        insert_header(headers, header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    let is_page = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    if is_page {
        insert_header(headers, header::REFERRER_POLICY, "same-origin");
        insert_header(headers, header::X_FRAME_OPTIONS, "DENY");
        if is_negotiated {
            headers.append(header::VARY, HeaderValue::from_static("Accept-Language"));
        }
        headers
            .entry(header::CONTENT_SECURITY_POLICY)
            .or_insert_with(layout::content_security_policy);
    }
}
