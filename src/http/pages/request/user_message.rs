//! Renders the message that tells an approver the purpose of the agent's work: the last message
//! that the user sent before the question. At a gate, no user sends a message. There, an agent's
//! own text about its call takes the place of the message. The agent's text is unverified, so it
//! stands below the call.

use maud::{Markup, html};

use super::View;
use crate::http::Http;
use crate::http::pages::layout::{visible, visible_lines};
use crate::http::pages::translations::fill;
use crate::http::pages::unless_corrupt;
use crate::http::server::problem::Problem;
use crate::store::RequestRow;
use crate::task::item::{Fact, FinishReason, Part, PartType};

/// The maximum number of characters of a user's message that are shown unfolded.
const MAX_UNFOLDED_CHARS: usize = 240;
/// The maximum number of lines of a user's message that are shown unfolded.
const MAX_UNFOLDED_LINES: usize = 4;
/// The maximum number of bytes of an agent's text about its call at a gate that are shown unfolded.
const MAX_UNFOLDED_CONTEXT_BYTES: usize = 2048;

#[derive(Clone, Debug)]
pub(super) struct UserMessage {
    by: String,
    /// The parts of the message: `Some` for a text, `None` for an image.
    parts: Vec<Option<String>>,
    /// Whether the message is the text of an agent about its call at a gate.
    is_context: bool,
}

/// Reads the last message that the user sent to the root task before the request was opened. Also
/// reads the item after the message, which tells whether the message is an agent's text about its
/// call at a gate. Returns `None` without such a message, or if an item cannot be read.
pub(super) async fn load(http: &Http, row: &RequestRow) -> Result<Option<UserMessage>, Problem> {
    let read = http.store.last_user_message(row).await;
    let items = unless_corrupt(read)?.unwrap_or_default();
    let mut facts = items.into_iter().map(|item| item.fact);
    let Some(Fact::UserMessage {
        items: parts, by, ..
    }) = facts.next()
    else {
        return Ok(None);
    };
    // At a gate, the item after the agent's text is the turn with the proposed call.
    let is_context = matches!(
        facts.next(),
        Some(Fact::AssistantMessage(turn)) if turn.finish_reason == FinishReason::Gate
    );
    Ok(Some(UserMessage::new(by, parts, is_context)))
}

impl UserMessage {
    pub(super) fn new(by: String, items: Vec<Part>, is_context: bool) -> Self {
        let parts = items
            .into_iter()
            .map(|part| match part.content_type {
                PartType::Text => Some(part.content),
                PartType::Image => None,
            })
            .collect();
        Self {
            by,
            parts,
            is_context,
        }
    }

    fn text(&self, image: &str) -> String {
        let parts = self.parts.iter().map(Option::as_deref);
        let parts = parts.map(|part| part.map_or_else(|| image.to_owned(), visible_lines));
        parts.collect::<Vec<_>>().join("\n")
    }
}

/// Renders the user's message in a box. If the message is long, only the beginning is shown
/// unfolded. Empty for a call at a gate, and if no message was found.
pub(super) fn message_figure(view: &View<'_>) -> Markup {
    let message = view.user_message.as_ref();
    let Some(message) = message.filter(|message| !message.is_context) else {
        return html! {};
    };
    let text = message.text(view.words.event_image);
    let lines: Vec<&str> = text.lines().take(MAX_UNFOLDED_LINES).collect();
    let lines = lines.join("\n");
    let beginning: String = lines.chars().take(MAX_UNFOLDED_CHARS).collect();
    figure(view, view.texts.user_wrote, &message.by, &text, &beginning)
}

/// Renders the agent's text about its call at a gate in a box. If the text is long, only the
/// beginning is shown unfolded. Empty if the call is not at a gate, or if the agent gave no text.
pub(super) fn context_figure(view: &View<'_>) -> Markup {
    let message = view.user_message.as_ref();
    let Some(message) = message.filter(|message| message.is_context) else {
        return html! {};
    };
    let text = message.text(view.words.event_image);
    if text.is_empty() {
        return html! {};
    }
    let end = text.floor_char_boundary(MAX_UNFOLDED_CONTEXT_BYTES);
    let beginning = text.get(..end).unwrap_or_default();
    figure(view, view.texts.agent_wrote, &message.by, &text, beginning)
}

fn figure(view: &View<'_>, heading: &str, by: &str, text: &str, beginning: &str) -> Markup {
    html! {
        figure.said {
            figcaption { bdi { (fill(heading, &[("user", &visible(by))])) } }
            @if beginning.trim_end_matches('\n') == text.trim_end_matches('\n') {
                blockquote dir="auto" { (text) }
            } @else {
                blockquote dir="auto" { (beginning) "…" }
                details.raw { summary { (view.texts.whole_message) } blockquote dir="auto" { (text) } }
            }
        }
    }
}
