//! The last message of the user before the question. It tells an approver the purpose of the
//! agent's work.

use maud::{Markup, html};

use super::question::visible_lines;
use super::{ITEMS_PER_READ, View};
use crate::http::Http;
use crate::http::pages::layout::visible;
use crate::http::pages::translations::fill;
use crate::http::server::problem::Problem;
use crate::store::{ReadError, RequestRow};
use crate::task::item::{Fact, Part, PartType};

/// How many items of the root task's journal, newest first, [`load`] searches for the message.
const MAX_SEARCHED_ITEMS: i64 = 8 * ITEMS_PER_READ;

/// If a message has more characters, the rest is folded.
const MAX_UNFOLDED_CHARS: usize = 240;
/// If a message has more lines, the rest is folded.
const MAX_UNFOLDED_LINES: usize = 4;

#[derive(Clone, Debug)]
pub(super) struct UserMessage {
    by: String,
    /// The parts of the message: `Some` for a text, `None` for an image.
    parts: Vec<Option<String>>,
}

/// Reads the last message that the user sent to the root task before the request was opened. `None`
/// if [`MAX_SEARCHED_ITEMS`] items do not contain the message, or if the journal cannot be read.
pub(super) async fn load(http: &Http, row: &RequestRow) -> Result<Option<UserMessage>, Problem> {
    let mut end = if row.task_id == row.root_task_id {
        row.asked_seq
    } else {
        match http.store.task(row.root_task_id).await {
            Ok(root) => root.map_or(0, |root| root.last_seq),
            Err(ReadError::Corrupt(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let oldest = (end - MAX_SEARCHED_ITEMS).max(0);
    while end > oldest {
        let start = (end - ITEMS_PER_READ).max(oldest);
        let mut found = None;
        let mut after = start;
        while after < end {
            let items = match http.store.items(row.root_task_id, after, end - after).await {
                Ok(items) => items,
                Err(ReadError::Corrupt(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let Some((last, _)) = items.last() else { break };
            after = last.seq;
            for (item, _) in items {
                if let Fact::UserMessage { items, by, .. } = item.fact
                    && item.at <= row.created_at
                {
                    found = Some(UserMessage::new(by, items));
                }
            }
        }
        if found.is_some() {
            return Ok(found);
        }
        end = start;
    }
    Ok(None)
}

impl UserMessage {
    fn new(by: String, items: Vec<Part>) -> Self {
        let parts = items
            .into_iter()
            .map(|part| match part.content_type {
                PartType::Text => Some(part.content),
                PartType::Image => None,
            })
            .collect();
        Self { by, parts }
    }
}

/// Renders the message in a box. If the message is long, only the beginning is shown unfolded.
pub(super) fn message_figure(view: &View<'_>) -> Markup {
    let Some(message) = &view.user_message else {
        return html! {};
    };
    let texts = view.texts;
    // At a gate, the message is the agent's own text about the call.
    let heading = if view.asker.is_some() {
        texts.agent_wrote
    } else {
        texts.user_wrote
    };
    if message.parts.iter().flatten().all(String::is_empty) && view.asker.is_some() {
        return html! {};
    }
    let parts: Vec<String> = message
        .parts
        .iter()
        .map(|part| {
            part.as_deref()
                .map_or_else(|| texts.image.to_owned(), visible_lines)
        })
        .collect();
    let message_text = parts.join("\n");
    let beginning: String = message_text
        .lines()
        .take(MAX_UNFOLDED_LINES)
        .collect::<Vec<_>>()
        .join("\n")
        .chars()
        .take(MAX_UNFOLDED_CHARS)
        .collect();
    html! {
        figure.said {
            figcaption { bdi { (fill(heading, &[("user", &visible(&message.by))])) } }
            @if beginning == message_text.trim_end_matches('\n') {
                blockquote dir="auto" { (message_text) }
            } @else {
                blockquote dir="auto" { (beginning) "…" }
                details.raw { summary { (texts.whole_message) } blockquote dir="auto" { (message_text) } }
            }
        }
    }
}
