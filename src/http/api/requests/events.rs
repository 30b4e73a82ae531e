//! `GET /v1/events`: an event stream with the requests that wait for the caller.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Uri};

use crate::http::Http;
use crate::http::events::inbox;
use crate::http::events::inbox::filter::InboxFilter;
use crate::http::events::stream::Watcher;
use crate::http::server::caller::{CurrentCaller, must_read_or_decide};
use crate::http::server::operation::{Op, Surface};
use crate::http::server::problem::{Code, Problem};
use crate::http::server::query::Query;
use crate::http::wire::params::InboxQuery;

pub(crate) const OP: Op = Op {
    surface: Surface::Stream,
    ..Op::api("stream_inbox", &[Code::Invalid])
};

/// Watch the inbox
///
/// Returns server-sent events: first `inbox` with the requests that this caller may decide and has
/// not answered, then `request.created`, `request.changed` and `request.gone` as these requests
/// change. The events have no `id`, and nothing is resumed: each connection begins with `inbox`.
/// The service sends `inbox` again when it cannot say what changed. While the service is
/// unavailable, a GET with `Accept: text/event-stream` gets 200 and a stream that ends at once, in
/// place of 503.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "stream_inbox", tag = "requests", params(InboxQuery),
    responses((status = 200, description = "The stream"))
)]
pub(crate) async fn stream_inbox(
    State(http): State<Arc<Http>>,
    CurrentCaller(caller): CurrentCaller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    must_read_or_decide(&caller)?;
    let mut query = Query::from_uri(&uri);
    let filter = InboxFilter::from_query(&mut query);
    query.finish()?;
    let permit = http.stream_limiter.take(&caller, &http.settings)?;
    let watcher = Watcher {
        caller,
        headers,
        is_post_response: false,
    };
    inbox::open(&http, watcher, filter, permit).await
}
