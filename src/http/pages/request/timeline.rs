//! The history of a request on its page, without the script: the question, the answers, and the
//! journal's later facts about the calls and the task.

use maud::{Markup, html};

use super::View;
use super::question::prose;
use super::time::moment_tag;
use crate::http::pages::layout::visible;
use crate::http::pages::translations::{Translations, fill};
use crate::store::RequestRow;
use crate::task::item::{CloseReason, Fact, Item, Outcome};
use crate::task::status::TaskStatus;
use crate::task::time::Time;

/// The maximum length of a result or an output, in characters. The rest is cut off.
const LONGEST: usize = 2_000;

/// The maximum number of entries from the journal.
const MOST: usize = 100;

/// The journal's facts about the request after the question.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline(Vec<(Time, Event)>);

/// A fact that the history shows.
#[derive(Clone, Debug)]
enum Event {
    Started(String, u32),
    Finished(String, Outcome, String),
    FinishedLate(String, Outcome, String),
    Closed(CloseReason),
    Ended(TaskStatus, Option<String>),
}

impl Timeline {
    /// Adds the next item of the journal if the history shows it.
    pub(super) fn apply(&mut self, row: &RequestRow, item: &Item) {
        if self.0.len() >= MOST {
            return;
        }
        let own = |id| row.asked.own_calls().any(|call| call.tool_call_id == id);
        let cut = |text: &str| text.chars().take(LONGEST).collect();
        let event = match &item.fact {
            Fact::ToolStarted {
                tool_call_id,
                name,
                attempt,
                ..
            } if own(*tool_call_id) => Event::Started(name.clone(), *attempt),
            Fact::ToolResult(result) if own(result.tool_call_id) => {
                Event::Finished(result.name.clone(), result.outcome, cut(&result.content))
            }
            Fact::LateResult(result) if own(result.tool_call_id) => {
                Event::FinishedLate(result.name.clone(), result.outcome, cut(&result.content))
            }
            Fact::RequestClosed {
                request_id, reason, ..
            } if *request_id == row.asked.request_id => Event::Closed(*reason),
            Fact::TaskStatus { status, output, .. } if status.is_terminal() => {
                Event::Ended(*status, output.as_deref().map(cut))
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

/// The list of everything that happened to the request, oldest first.
pub(super) fn list(view: &View<'_>) -> Markup {
    let (words, texts) = (view.words, view.texts);
    let mut entries: Vec<(Time, Markup)> =
        vec![(view.row.created_at, html! { (texts.past_asked) })];
    for (at, answer) in &view.row.answers {
        let what = words.action(answer.action);
        let by = visible(&answer.by);
        let said = fill(texts.past_decided, &[("what", what), ("user", &by)]);
        entries.push((*at, html! { bdi { (said) } }));
    }
    for (at, event) in &view.timeline.0 {
        entries.push((*at, entry(view, event)));
    }
    entries.sort_by_key(|(at, _)| *at);
    html! {
        ol #past {
            @for (at, said) in &entries { li { (moment_tag(&at.to_string())) " " (said) } }
        }
    }
}

fn entry(view: &View<'_>, event: &Event) -> Markup {
    let (words, texts) = (view.words, view.texts);
    match event {
        Event::Started(tool, attempt) => {
            let line = if *attempt > 1 {
                words.happens_started_again
            } else {
                words.happens_started
            };
            let count = attempt.to_string();
            html! { (fill(line, &[("tool", &visible(tool)), ("count", &count)])) }
        }
        Event::Finished(tool, outcome, content) => {
            finished(words, words.happens_finished, tool, *outcome, content)
        }
        Event::FinishedLate(tool, outcome, content) => {
            finished(words, words.happens_late, tool, *outcome, content)
        }
        Event::Closed(CloseReason::Expired) => html! { (texts.past_expired) },
        Event::Closed(_) => html! { (texts.past_withdrawn) },
        Event::Ended(status, output) => html! {
            (match status {
                TaskStatus::Completed => words.live_completed,
                TaskStatus::Canceled => words.live_canceled,
                TaskStatus::Failed | TaskStatus::Running | TaskStatus::Paused => words.live_failed,
            })
            @if let Some(output) = output.as_deref().filter(|output| !output.is_empty()) {
                (quoted(words.by_agent, output))
            }
        },
    }
}

fn finished(
    words: &Translations,
    line: &str,
    tool: &str,
    outcome: Outcome,
    content: &str,
) -> Markup {
    let said = [
        ("tool", visible(tool)),
        ("outcome", words.outcome(outcome).to_owned()),
    ];
    let values = said.each_ref().map(|(name, text)| (*name, text.as_str()));
    html! {
        (fill(line, &values))
        @if !content.is_empty() { (quoted(words.by_result, content)) }
    }
}

fn quoted(label: &str, text: &str) -> Markup {
    html! { div.agent { p.by { (label) } pre dir="auto" { (prose(text)) } } }
}
