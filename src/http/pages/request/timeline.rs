//! The history of a request as a list: the question, the answers, and later facts about the calls
//! and the task from the journal. The list needs no script.

use maud::{Markup, html};

use super::View;
use super::time::time_tag;
use crate::http::pages::layout::{visible, visible_lines};
use crate::http::pages::translations::{Translations, fill};
use crate::store::RequestRow;
use crate::task::item::{CloseReason, Fact, Item, Outcome};
use crate::task::status::TaskStatus;
use crate::task::time::Time;

/// The maximum length of a result or an output, in characters. The rest is cut off.
const MAX_TEXT_CHARS: usize = 2_000;

const MAX_ENTRIES: usize = 100;

/// The facts about the request that the journal recorded after the question, each with its time.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestTimeline(Vec<(Time, TimelineEvent)>);

#[derive(Clone, Debug)]
enum TimelineEvent {
    Started(String, u32),
    Finished(String, Outcome, String),
    FinishedLate(String, Outcome, String),
    Closed(CloseReason),
    Ended(TaskStatus, Option<String>),
}

impl RequestTimeline {
    /// Adds an entry for an item of the journal. Adds nothing if the list is full, or if the list
    /// shows no entry for such an item.
    pub(super) fn apply(&mut self, row: &RequestRow, item: &Item) {
        if self.0.len() >= MAX_ENTRIES {
            return;
        }
        let is_own = |id| row.spec.own_calls().any(|call| call.tool_call_id == id);
        let truncate = |text: &str| text.chars().take(MAX_TEXT_CHARS).collect();
        let event = match &item.fact {
            Fact::ToolStarted {
                tool_call_id,
                name,
                attempt,
                ..
            } if is_own(*tool_call_id) => TimelineEvent::Started(name.clone(), *attempt),
            Fact::ToolResult(result) if is_own(result.tool_call_id) => TimelineEvent::Finished(
                result.name.clone(),
                result.outcome,
                truncate(&result.content),
            ),
            Fact::LateResult(result) if is_own(result.tool_call_id) => TimelineEvent::FinishedLate(
                result.name.clone(),
                result.outcome,
                truncate(&result.content),
            ),
            Fact::RequestClosed {
                request_id, reason, ..
            } if *request_id == row.spec.request_id => TimelineEvent::Closed(*reason),
            Fact::TaskStatus { status, output, .. } if status.is_terminal() => {
                TimelineEvent::Ended(*status, output.as_deref().map(truncate))
            }
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
            | Fact::SubAgentStarted { .. } => return,
        };
        self.0.push((item.at, event));
    }
}

/// Renders the question, the answers and the facts from the journal as a list, oldest first.
pub(super) fn list(view: &View<'_>) -> Markup {
    let (words, texts) = (view.words, view.texts);
    let mut entries: Vec<(Time, Markup)> =
        vec![(view.row.created_at, html! { (texts.past_asked) })];
    for (at, answer) in &view.row.answers {
        let what = words.action(answer.action);
        let by = visible(&answer.by);
        let line = fill(texts.past_decided, &[("what", &what), ("user", &by)]);
        entries.push((*at, html! { bdi { (line) } }));
    }
    for (at, event) in &view.timeline.0 {
        entries.push((*at, entry(view, event)));
    }
    entries.sort_by_key(|(at, _)| *at);
    html! {
        ol #past {
            @for (at, line) in &entries { li { (time_tag(&at.to_string())) " " (line) } }
        }
    }
}

fn entry(view: &View<'_>, event: &TimelineEvent) -> Markup {
    let (words, texts) = (view.words, view.texts);
    match event {
        TimelineEvent::Started(tool, attempt) => {
            let line = if *attempt > 1 {
                words.event_started_again
            } else {
                words.event_started
            };
            html! { (fill(line, &[("tool", &visible(tool)), ("count", attempt)])) }
        }
        TimelineEvent::Finished(tool, outcome, content) => {
            result_entry(words, words.event_finished, tool, *outcome, content)
        }
        TimelineEvent::FinishedLate(tool, outcome, content) => {
            result_entry(words, words.event_late, tool, *outcome, content)
        }
        TimelineEvent::Closed(CloseReason::Expired) => html! { (texts.past_expired) },
        TimelineEvent::Closed(_) => html! { (texts.past_withdrawn) },
        TimelineEvent::Ended(status, output) => html! {
            (match status {
                TaskStatus::Completed => words.live_completed,
                TaskStatus::Canceled => words.live_canceled,
                TaskStatus::Failed | TaskStatus::Running | TaskStatus::Paused => words.live_failed,
            })
            @if let Some(output) = output.as_deref().filter(|output| !output.is_empty()) {
                (labeled_box(words.by_agent, output))
            }
        },
    }
}

fn result_entry(
    words: &Translations,
    line: &str,
    tool: &str,
    outcome: Outcome,
    content: &str,
) -> Markup {
    html! {
        (fill(line, &[("tool", &visible(tool)), ("outcome", &words.outcome(outcome))]))
        @if !content.is_empty() { (labeled_box(words.by_result, content)) }
    }
}

fn labeled_box(label: &str, text: &str) -> Markup {
    html! { div.agent { p.by { (label) } pre dir="auto" { (visible_lines(text)) } } }
}
