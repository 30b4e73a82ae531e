//! The history of a request as a list: the question, the answers, and later facts about the calls
//! and the task from the journal. The list needs no script.

use maud::{Markup, html};

use super::View;
use super::texts::RequestTexts;
use crate::http::pages::layout::{time_tag, visible, visible_lines};
use crate::http::pages::translations::{Translations, fill};
use crate::store::RequestRow;
use crate::task::item::{CloseReason, Fact, Item, ToolResult};
use crate::task::status::TaskStatus;
use crate::task::time::Time;

/// The maximum length of a result or an output, in characters. The rest is cut off.
const MAX_TEXT_CHARS: usize = 2_000;

const MAX_ENTRIES: usize = 100;

/// The rendered facts about the request that the journal recorded after the question, each with its
/// time. Rendering cuts long texts, so a page does not hold whole items.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestTimeline(Vec<(Time, Markup)>);

impl RequestTimeline {
    /// Adds the entry for an item of the journal, unless the list is full or [`entry`] returns
    /// `None` for the item's fact.
    pub(super) fn apply(&mut self, row: &RequestRow, item: &Item, words: &Translations) {
        if self.0.len() < MAX_ENTRIES {
            self.0
                .extend(entry(row, &item.fact, words).map(|entry| (item.at, entry)));
        }
    }
}

/// Renders the question, the answers and the facts from the journal as a list, oldest first.
pub(super) fn list(view: &View<'_>) -> Markup {
    let (words, texts) = (view.words, view.texts);
    let mut entries = vec![(view.row.created_at, html! { (texts.past_asked) })];
    for (at, answer) in &view.row.answers {
        let what = words.action(answer.action);
        let by = visible(&answer.by);
        let line = fill(words.event_decided, &[("what", &what), ("user", &by)]);
        entries.push((*at, html! { bdi { (line) } }));
    }
    entries.extend(view.timeline.0.iter().cloned());
    entries.sort_by_key(|(at, _)| *at);
    html! {
        ol #past {
            @for (at, line) in &entries { li { (time_tag(at)) " " (line) } }
        }
    }
}

/// Renders a fact as an entry of the list. The list has an entry for each start and each result of
/// the request's own calls, for the end of the request without a decision, and for the end of the
/// task. `None` for any other fact.
fn entry(row: &RequestRow, fact: &Fact, words: &Translations) -> Option<Markup> {
    let texts = RequestTexts::for_language(words.language);
    let is_own = |id| row.spec.own_calls().any(|call| call.tool_call_id == id);
    Some(match fact {
        Fact::ToolStarted {
            tool_call_id,
            name,
            attempt,
            ..
        } if is_own(*tool_call_id) => {
            let line = if *attempt > 1 {
                words.event_started_again
            } else {
                words.event_started
            };
            html! { (fill(line, &[("tool", &visible(name)), ("count", attempt)])) }
        }
        Fact::ToolResult(result) if is_own(result.tool_call_id) => {
            result_entry(words, words.event_finished, result)
        }
        Fact::LateResult(result) if is_own(result.tool_call_id) => {
            result_entry(words, words.event_late, result)
        }
        Fact::RequestClosed {
            request_id, reason, ..
        } if *request_id == row.spec.request_id => html! {
            (if *reason == CloseReason::Expired { texts.past_expired } else { texts.past_withdrawn })
        },
        Fact::TaskStatus { status, output, .. } if status.is_terminal() => html! {
            (match status {
                TaskStatus::Completed => words.live_completed,
                TaskStatus::Canceled => words.live_canceled,
                TaskStatus::Failed | TaskStatus::Running | TaskStatus::Paused => words.live_failed,
            })
            @if let Some(output) = output.as_deref().filter(|output| !output.is_empty()) {
                (labeled_box(words.by_agent, output))
            }
        },
        Fact::TaskStatus { .. }
        | Fact::UserMessage { .. }
        | Fact::AssistantMessage(_)
        | Fact::Judged { .. }
        | Fact::InterventionRequested(_)
        | Fact::Decision { .. }
        | Fact::RequestClosed { .. }
        | Fact::ToolStarted { .. }
        | Fact::ToolResult(_)
        | Fact::LateResult(_)
        | Fact::SubAgentStarted { .. } => return None,
    })
}

fn result_entry(words: &Translations, line: &str, result: &ToolResult) -> Markup {
    let outcome = words.outcome(result.outcome);
    html! {
        (fill(line, &[("tool", &visible(&result.name)), ("outcome", &outcome)]))
        @if !result.content.is_empty() { (labeled_box(words.by_result, &result.content)) }
    }
}

/// Renders a text in a box, cut at [`MAX_TEXT_CHARS`] characters.
fn labeled_box(label: &str, text: &str) -> Markup {
    let beginning: String = text.chars().take(MAX_TEXT_CHARS).collect();
    html! { div.agent { p.by { (label) } pre dir="auto" { (visible_lines(&beginning)) } } }
}
