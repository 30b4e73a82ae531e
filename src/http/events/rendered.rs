//! Reads a portion of a tree's events and renders each event as text.
//!
//! Invariant: the text is the same for every caller (`wire/event.rs`), so all streams share the
//! text.

use std::sync::Arc;

use super::request_at_event::JournalCache;
use super::sse::SseBuffer;
use crate::http::Http;
use crate::http::wire::event::{EventData, name};
use crate::http::wire::request::InterventionRequest;
use crate::store::{Event, ReadError, ReadLimit, Subtree};
use crate::task::id::TaskId;
use crate::task::item::Fact;
use crate::task::status::TaskStatus;

/// The limits of a portion (the events of one read). A portion ends with the event that reaches or
/// exceeds the limit of bytes.
pub(super) const MAX_PORTION: ReadLimit = ReadLimit {
    events: 64,
    bytes: 256 * 1024,
};

/// An event. Every stream sends the same `text`. From the other fields, a stream learns its new
/// position and the state of the task.
#[derive(Debug)]
pub(super) struct RenderedEvent {
    pub number: i64,
    pub task: TaskId,
    /// The number of the event's item in the task's journal.
    pub seq: i64,
    /// The new status of the task; `None` if the event does not change the status.
    pub status: Option<TaskStatus>,
    pub is_answer: bool,
    /// The task of the sub-agent that the event starts; `None` for any other event.
    pub child: Option<TaskId>,
    pub text: String,
}

/// One portion of a tree's events, in the order of their numbers.
#[derive(Debug)]
pub(super) struct RenderedEvents {
    pub part: Subtree,
    pub events: Vec<Arc<RenderedEvent>>,
    /// Whether more events may follow the portion.
    pub more: bool,
}

/// Returns the next portion of events after the number `after`. If an event cannot be rendered, the
/// portion ends before this event.
///
/// # Errors
/// [`ReadError`] when the database does not answer, or the first event cannot be rendered.
pub(super) async fn read(
    http: &Http,
    part: Subtree,
    after: i64,
    journals: &mut JournalCache,
) -> Result<RenderedEvents, ReadError> {
    let read = http.store.events(part, after, MAX_PORTION).await?;
    if read.events.is_empty()
        && let Some(number) = read.unreadable
    {
        return Err(ReadError::Corrupt(format!("event {number}")));
    }
    let mut rendered = RenderedEvents {
        part,
        events: Vec::with_capacity(read.events.len()),
        more: read.more,
    };
    for event in &read.events {
        match render(http, part.root, event, journals).await {
            Ok(event) => rendered.events.push(Arc::new(event)),
            Err(error) if rendered.events.is_empty() => return Err(error),
            Err(_) => {
                rendered.more = true;
                break;
            }
        }
    }
    Ok(rendered)
}

async fn render(
    http: &Http,
    root: TaskId,
    event: &Event,
    journals: &mut JournalCache,
) -> Result<RenderedEvent, ReadError> {
    let fact = &event.item.fact;
    let request = match fact.request_id() {
        Some(id) => {
            let row = journals.request(&http.store, id, event).await?;
            Some(InterventionRequest::at_commit(&row, &http.settings))
        }
        None => None,
    };
    let data = EventData::from_event(root, event, request, &http.settings);
    let mut text = SseBuffer::default();
    text.event(Some(event.number), name(event), &data)?;
    Ok(RenderedEvent {
        number: event.number,
        task: event.task_id,
        seq: event.item.seq,
        status: if let Fact::TaskStatus { status, .. } = fact {
            Some(*status)
        } else {
            None
        },
        is_answer: matches!(fact, Fact::AssistantMessage(_)),
        child: if let Fact::SubAgentStarted { child_task_id, .. } = fact {
            Some(*child_task_id)
        } else {
            None
        },
        text: text.take(),
    })
}
