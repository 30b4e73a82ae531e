//! Renders events and requests in the API's format, for outgoing messages (see `notify`).

use serde_json::value::{RawValue, to_raw_value};

use super::request_at_event::JournalCache;
use crate::http::Settings;
use crate::http::wire::brief::RequestBrief;
use crate::http::wire::event::EventData;
use crate::http::wire::request::InterventionRequest;
use crate::store::{Event, ReadError, RequestRow, Store};
use crate::task::id::{RequestId, TaskId};

/// Returns a request in its short form, as it was when `event` was committed, or as it is now if
/// `event` is `None`. If `summaries` is false, leaves out the summaries of the calls.
///
/// # Errors
/// [`ReadError`] when the database does not answer, or the request cannot be decoded.
pub(crate) async fn brief(
    store: &Store,
    settings: &Settings,
    request: RequestId,
    event: Option<&Event>,
    summaries: bool,
) -> Result<Box<RawValue>, ReadError> {
    let row = request_row(store, request, event).await?;
    let brief = RequestBrief::from_row(&row, settings);
    let brief = if summaries {
        brief
    } else {
        brief.without_summaries()
    };
    to_raw_value(&brief).map_err(|error| ReadError::Corrupt(format!("a request: {error}")))
}

/// Returns the data of an event for a message, in the form in which the event stream of the tree
/// sends the data. If `reminder` is `None`, the data have the event's request as it was at the
/// event's commit. For a reminder, `event` is the event that opened the request, `reminder`
/// replaces the event's name, and the data have the request as it is now.
///
/// # Errors
/// [`ReadError`] when the database does not answer, or the event cannot be decoded.
pub(crate) async fn data(
    store: &Store,
    settings: &Settings,
    root: TaskId,
    event: &Event,
    reminder: Option<&'static str>,
) -> Result<Box<RawValue>, ReadError> {
    let request = match event.item.fact.request_id() {
        Some(id) => {
            let as_of = reminder.is_none().then_some(event);
            let row = request_row(store, id, as_of).await?;
            Some(InterventionRequest::at_commit(&row, settings))
        }
        None => None,
    };
    let data = EventData::from_event(root, event, request, settings);
    let data = match reminder {
        Some(kind) => data.named(kind),
        None => data,
    };
    to_raw_value(&data).map_err(|error| ReadError::Corrupt(format!("an event: {error}")))
}

/// Returns a request as it was right after the commit of `event`; without an event, as it is now.
async fn request_row(
    store: &Store,
    request: RequestId,
    event: Option<&Event>,
) -> Result<RequestRow, ReadError> {
    match event {
        Some(event) => {
            let mut journals = JournalCache::default();
            journals.request(store, request, event).await
        }
        None => store
            .request(request)
            .await?
            .ok_or_else(|| ReadError::Corrupt("a request that does not exist".to_owned())),
    }
}
