//! Opens a stream of a task's events: takes a stream permit, finds the start position, reads the
//! first events, and sets the headers of the response.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_LOCATION, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, StatusCode, Uri};

use super::reader::EventReader;
use super::sse::SseBuffer;
use super::stream::{EventSource as _, RETRY_MS, Watcher};
use super::stream_limiter::StreamPermit;
use super::task_stream::TaskStream;
use crate::engine::{Accepted, CommitPosition};
use crate::http::Http;
use crate::http::server::accept::wants_stream;
use crate::http::server::body::PostRequest;
use crate::http::server::headers::insert_header;
use crate::http::server::problem::{Problem, path_prefix};
use crate::http::server::query::{Query, digits};
use crate::store::{Listener, Subtree};
use crate::task::id::TaskId;

#[derive(Debug)]
pub(crate) struct StreamRequest {
    pub task: TaskId,
    pub root: TaskId,
    /// The stream begins after the event with this number. If `None`, the stream begins after the
    /// tree's last event.
    pub after: Option<i64>,
    /// The subscription that a POST made before its commit, so that the stream misses no delta
    /// after the commit. `None` if [`open`] has to subscribe.
    pub listener: Option<Listener>,
}

/// Opens a stream and returns the response that sends it. If the task has ended and no event is
/// left to send, a GET gets the response 204 without a stream, so that an `EventSource` does not
/// reconnect. In the same case, a POST gets a stream that ends at once.
///
/// # Errors
/// `bad_request` when `after` is greater than the last event's number; `not_found` when the task
/// does not exist; `unavailable` or `internal` when the events cannot be read.
pub(crate) async fn open(
    http: &Arc<Http>,
    watcher: Watcher,
    request: StreamRequest,
    permit: StreamPermit,
) -> Result<Response, Problem> {
    // Subscribes before the first read. Otherwise, the stream would miss a commit between the read
    // and the subscription.
    let subscription = request
        .listener
        .unwrap_or_else(|| http.store.listen_locally(request.root));
    let listener = http.store.subscribe(request.root, subscription);
    let history_uncertain_until = http.store.history_uncertain_until();
    let row = http
        .store
        .task(request.task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let head = if request.task == request.root {
        row.next_event
    } else {
        http.store
            .task(request.root)
            .await?
            .ok_or_else(Problem::not_found)?
            .next_event
    };
    let after = request.after.unwrap_or(head);
    if after > head {
        return Err(Problem::bad_request(
            "`after` or Last-Event-ID is greater than the number of the last event.",
        ));
    }
    let is_post_response = watcher.is_post_response;
    let reader = EventReader::new(
        Subtree {
            root: request.root,
            task: request.task,
        },
        after,
        row.status,
        history_uncertain_until,
    );
    let mut stream = TaskStream::new(http, watcher, listener, reader, head, permit);
    if !stream.begin().await? && !is_post_response {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(stream_response(stream.body()))
}

/// Returns a response with the stream as its body. The headers keep caches and proxies from
/// storing, transforming or buffering the stream.
pub(crate) fn stream_response(body: Body) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-store, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

/// Returns a response with a stream that ends at once. The stream announces [`RETRY_MS`], after
/// which an `EventSource` connects again.
pub(crate) fn ended_stream() -> Response {
    let mut text = SseBuffer::default();
    text.retry(RETRY_MS);
    stream_response(text.take().into())
}

/// Takes a stream permit if a POST asks for the event stream; otherwise returns `None`. Must be
/// called before the POST has any effect, so that a refused POST changes nothing.
///
/// # Errors
/// `too_many` when the caller, or all callers together, have as many streams as allowed.
pub(crate) fn take_permit(
    http: &Http,
    posted: &PostRequest,
) -> Result<Option<StreamPermit>, Problem> {
    wants_stream(&posted.headers)
        .then(|| http.stream_limiter.take(&posted.caller, &http.settings))
        .transpose()
}

/// Returns the response with the event stream of the tree that a POST has changed. The stream
/// begins with the first event that the POST committed. If the POST only repeats an earlier POST,
/// the first event of the earlier POST takes its place. If the POST committed no event, the stream
/// begins after the tree's last event.
pub(crate) async fn open_after_commit(
    http: &Arc<Http>,
    posted: &PostRequest,
    accepted: &mut Accepted,
    permit: StreamPermit,
) -> Result<Response, Problem> {
    let first = match &accepted.position {
        Some(CommitPosition::Item(task, seq)) => http.store.first_event(*task, *seq).await?,
        Some(CommitPosition::Key(key)) => http.store.first_event_of(key).await?,
        None => None,
    };
    let root = accepted.root;
    let listener = accepted.listener.take();
    let request = StreamRequest {
        task: root,
        root,
        after: first.map(|first| first - 1),
        listener,
    };
    let watcher = Watcher {
        caller: posted.caller.clone(),
        headers: posted.headers.clone(),
        is_post_response: true,
    };
    let mut response = open(http, watcher, request, permit).await?;
    let location = format!(
        "{}/v1/tasks/{root}/events",
        path_prefix(&http.settings.public_url)
    );
    insert_header(response.headers_mut(), CONTENT_LOCATION, &location);
    Ok(response)
}

/// Returns the number of the event after which the stream begins: the header `Last-Event-ID`, or
/// else `after` in the query, or else 0.
///
/// # Errors
/// `bad_request` for a malformed or repeated number; `invalid` for an unknown parameter.
pub(crate) fn start_position(headers: &HeaderMap, uri: &Uri) -> Result<i64, Problem> {
    let mut query = Query::from_uri(uri);
    let after = query.texts("after");
    query.finish()?;
    let after = match after.as_slice() {
        [] => 0,
        [one] => digits(one)
            .ok_or_else(|| Problem::bad_request("`after` must be the number of an event."))?,
        _ => return Err(Problem::bad_request("`after` may be given only once.")),
    };
    let mut last = headers.get_all("last-event-id").iter();
    match (last.next(), last.next()) {
        (None, _) => Ok(after),
        (Some(one), None) => {
            one.to_str().ok().and_then(digits).ok_or_else(|| {
                Problem::bad_request("Last-Event-ID must be the number of an event.")
            })
        }
        (Some(_), Some(_)) => Err(Problem::bad_request("Last-Event-ID may be sent only once.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;
    use crate::http::server::problem::Code;
    use crate::http::tests::stored_task::{store_in, store_paused_task};

    #[tokio::test]
    async fn post_that_committed_is_answered_with_its_events_also_after_the_shutdown_began() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(&folder).await;
        let (task, _) = store_paused_task(&store).await;
        let http = Arc::new(Http {
            store: store.clone(),
            ..crate::http::tests::http(false, &[])
        });
        let watcher = Watcher {
            caller: sample::caller(),
            headers: HeaderMap::new(),
            is_post_response: true,
        };
        let permit = http.stream_limiter.take(&watcher.caller, &http.settings);
        http.shutdown.cancel();
        let request = StreamRequest {
            task,
            root: task,
            after: Some(0),
            listener: None,
        };
        let opened = open(&http, watcher, request, permit.unwrap()).await;
        let response = opened.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let events = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        let events = String::from_utf8(events.unwrap().into()).unwrap();
        assert!(events.contains("event: request.created\n"), "{events}");
        store.close().await;
    }

    fn marked(query: &str, headers: &[&str]) -> Result<i64, Code> {
        let mut all = HeaderMap::new();
        for header in headers {
            all.append("last-event-id", header.parse().unwrap());
        }
        start_position(&all, &format!("/v1/tasks/x/events{query}").parse().unwrap())
            .map_err(|problem| problem.code)
    }

    #[test]
    fn marker_is_one_number_and_the_header_overrides_the_query() {
        assert_eq!(marked("", &[]), Ok(0));
        assert_eq!(marked("?after=0", &[]), Ok(0));
        assert_eq!(marked("?after=17", &[]), Ok(17));
        assert_eq!(marked("?after=17", &["3"]), Ok(3));
        assert_eq!(
            marked("?after=x", &["3"]),
            Err(Code::BadRequest),
            "also where the header beats it"
        );
        assert_eq!(
            marked("", &["99999999999999999999999"]),
            Err(Code::BadRequest)
        );
        for query in [
            "?after=",
            "?after=x",
            "?after=-1",
            "?after=1.5",
            "?after=+5",
            "?after=1&after=1",
        ] {
            assert_eq!(marked(query, &[]), Err(Code::BadRequest), "{query}");
        }
        for header in ["", "x", "-1", "1, 2", "1.0"] {
            assert_eq!(marked("", &[header]), Err(Code::BadRequest), "{header}");
        }
        assert_eq!(marked("", &["1", "1"]), Err(Code::BadRequest));
        assert_eq!(marked("?befor=1", &[]), Err(Code::Invalid));
    }
}
