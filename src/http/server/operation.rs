//! The declaration of an operation: its id, its surface, its callers, the limit of its body, its
//! problems, and its handler.

use std::sync::{Arc, OnceLock};

use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use utoipa::openapi::HttpMethod;
use utoipa_axum::PathItemExt;
use utoipa_axum::router::UtoipaMethodRouter;

use super::problem::Code;
use crate::http::Http;

/// The maximum body size of most operations, in bytes.
pub(crate) const SMALL_BODY: usize = 1024 * 1024;
/// The maximum body size of an operation that takes a message, in bytes. A message may contain
/// images.
pub(crate) const LARGE_BODY: usize = 20 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Op {
    /// The stable `operationId` in the OpenAPI document.
    pub id: &'static str,
    pub surface: Surface,
    pub auth: AuthClass,
    pub max_body_bytes: usize,
    /// The problems that the operation can respond with, besides those of every operation with the
    /// same `auth` (`common_problems` in `openapi/operations.rs`). The first list has those of every
    /// command, the second list those of this operation.
    pub problems: [&'static [Code]; 2],
}

/// The problems of every operation that takes a command as JSON and stores the `Idempotency-Key`.
const COMMAND_PROBLEMS: &[Code] = &[
    Code::BadJson,
    Code::UnsupportedMediaType,
    Code::Invalid,
    Code::IdempotencyKeyReused,
];

impl Op {
    /// Returns an operation for programs. Its callers have a key or an active session.
    pub(crate) const fn api(id: &'static str, problems: &'static [Code]) -> Self {
        Self {
            id,
            surface: Surface::Api,
            auth: AuthClass::Key,
            max_body_bytes: SMALL_BODY,
            problems: [&[], problems],
        }
    }

    /// Returns an operation for programs that takes a command as JSON and stores the
    /// `Idempotency-Key`.
    pub(crate) const fn command(id: &'static str, problems: &'static [Code]) -> Self {
        Self {
            problems: [COMMAND_PROBLEMS, problems],
            ..Self::api(id, &[])
        }
    }

    /// Returns an operation for people. Its callers have a key or an active session.
    pub(crate) const fn page(id: &'static str, problems: &'static [Code]) -> Self {
        Self {
            surface: Surface::Page,
            ..Self::api(id, problems)
        }
    }

    /// Returns an operation for everyone, with or without a key.
    pub(crate) const fn public(id: &'static str, problems: &'static [Code]) -> Self {
        Self {
            surface: Surface::Public,
            auth: AuthClass::Open,
            ..Self::api(id, problems)
        }
    }
}

/// The kind of client for which an operation is made. It decides the form of the problems, and
/// whether caches may store the responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    /// Programs. Problems are JSON. Caches must not store the responses.
    Api,
    /// Programs that read an event stream. Like `Api`, except for the problem `unavailable`: a
    /// client that asks for a stream gets a stream that ends at once, so an `EventSource` connects
    /// again.
    Stream,
    /// People. Programs may use some of these operations, too. The content depends on the caller,
    /// so caches must not store the responses. A problem is a page if the client prefers HTML,
    /// otherwise JSON.
    Page,
    /// Everyone, with the same content for every caller. A problem is a page if the client prefers
    /// HTML, otherwise JSON.
    Public,
}

/// The operation that an HTTP request runs. The guard sets the operation. `edge/` reads the
/// operation for the response and the log line, even after the operation has panicked.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperationSlot(Arc<OnceLock<&'static Op>>);

impl OperationSlot {
    pub(crate) fn set(&self, op: &'static Op) {
        let _ = self.0.set(op);
    }

    /// Returns the operation; `None` if the request's path or method is unknown.
    #[must_use]
    pub(crate) fn get(&self) -> Option<&'static Op> {
        self.0.get().copied()
    }
}

/// The callers that an operation admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthClass {
    /// Callers with a key or an active session.
    Key,
    /// The person to whom the sealed link in the path was sent. Keys and cookies are ignored.
    Link,
    /// Like `Key`, and also callers with a session cookie that is expired or malformed. Sign-out
    /// uses this class.
    SignOut,
    /// Everyone, with or without a key.
    Open,
    /// Proxies that call over gRPC. The operation checks the key itself, because gRPC reports a
    /// refusal differently from HTTP.
    Gateway,
    /// Everyone. Health checks use this class. Even a service without accounts accepts these
    /// requests under any host name and through a proxy.
    Health,
}

/// An operation of the OpenAPI document, with its handler.
pub(crate) struct Operation {
    pub op: &'static Op,
    /// Returns the path and the handler.
    pub route: fn() -> (String, MethodRouter<Arc<Http>>),
    pub methods: fn() -> Vec<HttpMethod>,
    /// Returns the path and the handler, with their part of the OpenAPI document. The router is
    /// built without this part: the schemas of all operations take much time and memory, and most
    /// processes never show the document.
    pub documented: fn() -> UtoipaMethodRouter<Arc<Http>>,
}

/// Declares an `Operation`. The path and the methods come from the type that `#[utoipa::path]`
/// generates for the handler. The macro `routes!` has an internal rule `@path`, which calls
/// `path()` or `methods()` of this type.
macro_rules! operation {
    ($op:path, $($handler:tt)+) => {
        $crate::http::server::operation::Operation {
            op: &$op,
            route: || {
                let methods = utoipa_axum::routes!(@path [methods()] of $($handler)+);
                (
                    utoipa_axum::routes!(@path [path()] of $($handler)+),
                    $crate::http::server::operation::method_router(&methods, $($handler)+),
                )
            },
            methods: || utoipa_axum::routes!(@path [methods()] of $($handler)+),
            documented: || utoipa_axum::routes!($($handler)+),
        }
    };
}
pub(crate) use operation;

/// Returns the part of a route's path before its first parameter.
pub(crate) fn fixed_start(route: &str) -> &str {
    route.split('{').next().unwrap_or_default()
}

/// Returns a router that passes requests with one of `methods` to `handler`.
pub(crate) fn method_router<T: 'static>(
    methods: &[HttpMethod],
    handler: impl Handler<T, Arc<Http>>,
) -> MethodRouter<Arc<Http>> {
    let filters = methods.iter().map(PathItemExt::to_method_filter);
    let filter = filters.reduce(MethodFilter::or);
    filter.map_or_else(MethodRouter::new, |filter| on(filter, handler))
}
