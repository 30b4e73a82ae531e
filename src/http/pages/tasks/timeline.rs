//! The timeline of a task: the events of the task and its sub-agents, in the order of their
//! numbers. The script `pages/follow.js` loads the page again for later events, and moves the new
//! entries unchanged into the open page.
//!
//! Invariant: each text of an agent, a tool or a person is escaped. The box around a text or the
//! line above the text names the author.

use maud::{Markup, html};

use crate::http::Http;
use crate::http::pages::layout::{time_tag, visible, visible_lines};
use crate::http::pages::reasons;
use crate::http::pages::request::kind::kind_word;
use crate::http::pages::request::texts::RequestTexts;
use crate::http::pages::site::Site;
use crate::http::pages::translations::{Translations, fill};
use crate::http::server::problem::Problem;
use crate::store::{Event, ReadLimit, Subtree};
use crate::task::decision::{Decision, Door};
use crate::task::id::RequestId;
use crate::task::item::{Fact, FinishReason, Part as MessagePart, PartType, ToolResult, Turn};
use crate::task::status::{RequestStatus, TaskStatus};
use crate::task::verdict::Judgement;

/// The number of consecutive event numbers that one page covers.
const EVENTS_PER_PAGE: i64 = 200;
/// The size in bytes at which a read ends. The event that reaches this size is still read whole.
const MAX_READ_BYTES: i64 = 4 * 1024 * 1024;
/// The maximum length of a shown text, in characters. The rest is cut off.
const MAX_TEXT_CHARS: usize = 20_000;

#[derive(Debug)]
pub(super) struct TaskTimeline {
    /// The rendered entries. Rendering cuts long texts, so a page does not hold whole events.
    pub entries: Vec<Markup>,
    /// The value of `before` that selects the page of earlier events; `None` if this page goes back
    /// to the first event number or to `after`.
    pub earlier_page: Option<i64>,
    /// The last event number that this page covers.
    pub end: i64,
}

impl TaskTimeline {
    /// Reads and renders one page of events of the subtree `part`. The page covers the last
    /// [`EVENTS_PER_PAGE`] event numbers up to `end`, but only numbers greater than `after`. All
    /// tasks of a tree share one sequence of numbers, so these numbers may all belong to events
    /// outside the subtree. In this case, the page goes back in steps of [`EVENTS_PER_PAGE`]
    /// numbers until it finds an event of the subtree or reaches `after`.
    ///
    /// # Errors
    /// `unavailable` when the database does not answer.
    pub(super) async fn read(
        site: &Site<'_>,
        http: &Http,
        part: Subtree,
        (after, end): (i64, i64),
    ) -> Result<Self, Problem> {
        let mut first = end;
        let mut entries = Vec::new();
        while first > after && entries.is_empty() {
            let last = first;
            first = (first - EVENTS_PER_PAGE).max(after);
            entries = read_between(site, http, part, first, last).await?;
        }
        Ok(Self {
            entries,
            earlier_page: (first > after).then_some(first + 1),
            end: end.max(0),
        })
    }
}

/// Reads and renders the events with numbers greater than `after` and up to `last`. Consecutive
/// unreadable events become one entry, which has the number of the last unreadable event.
async fn read_between(
    site: &Site<'_>,
    http: &Http,
    part: Subtree,
    mut after: i64,
    last: i64,
) -> Result<Vec<Markup>, Problem> {
    let portion = ReadLimit {
        events: EVENTS_PER_PAGE,
        bytes: MAX_READ_BYTES,
    };
    let (mut entries, mut unreadable) = (Vec::new(), None);
    loop {
        let read = http.store.events(part, after, portion).await?;
        let within = || read.events.iter().take_while(|event| event.number <= last);
        // The turn with a gate's call has this `finish_reason`. The task of such a call has so few
        // events that a read of its message always returns the turn, too.
        let is_gate_call = read.events.iter().any(|event| {
            matches!(&event.item.fact, Fact::AssistantMessage(turn) if turn.finish_reason == FinishReason::Gate)
        });
        for event in within() {
            let gap = unreadable.take();
            entries.extend(gap.map(|number| unreadable_entry(site, number)));
            entries.push(event_entry(site, is_gate_call, event));
            after = event.number;
        }
        let is_cut = within().count() < read.events.len();
        if let Some(number) = read.unreadable.filter(|number| *number <= last) {
            unreadable = Some(number);
            after = number;
        }
        if !read.more || is_cut || after >= last || read.unreadable > Some(last) {
            entries.extend(unreadable.map(|number| unreadable_entry(site, number)));
            return Ok(entries);
        }
    }
}

fn unreadable_entry(site: &Site<'_>, number: i64) -> Markup {
    html! { li { p { span.soft { "#" (number) } " " (site.texts().unreadable) } } }
}

fn event_entry(site: &Site<'_>, is_gate_call: bool, event: &Event) -> Markup {
    let words = site.words();
    let (line, parts) = if event.item.seq == 1 {
        (html! { (words.event_created) }, html! {})
    } else {
        fact_entry(site, is_gate_call, event)
    };
    html! {
        li.below[!event.of_root] {
            p {
                span.soft { "#" (event.number) " " (time_tag(&event.item.at)) } " "
                @if event.agent_path.len() > 1 {
                    bdi { (visible(&event.agent_path.join(" › "))) } (words.colon)
                }
                (line)
            }
            (parts)
        }
    }
}

/// Renders the fact of an event: its line, and the parts below the line.
fn fact_entry(site: &Site<'_>, is_gate_call: bool, event: &Event) -> (Markup, Markup) {
    let (words, nothing) = (site.words(), || html! {});
    match &event.item.fact {
        // The entry of the last answer or result already shows the text of the task's `output`.
        Fact::TaskStatus { status, error, .. } => (
            html! { (status_text(*status, words)) },
            html! {
                @if let Some(error) = error { p lang="en" { (visible(&error.detail)) } }
            },
        ),
        Fact::UserMessage { items, by, .. } => {
            message_entry(site, is_gate_call, event, (items, by))
        }
        Fact::AssistantMessage(turn) => (html! { (words.event_answered) }, answer_box(words, turn)),
        Fact::Judged { judgement, .. } => (judgement_line(site, judgement), nothing()),
        Fact::InterventionRequested(asked) => {
            let kind = kind_word(asked.kind, words);
            let line = fill(words.event_asked, &[("kind", &kind)]);
            (
                html! { (line) " " (review_link(site, asked.request_id)) },
                nothing(),
            )
        }
        Fact::Decision {
            request_id,
            decision,
        } => (
            decision_line(site, decision, *request_id),
            html! {
                @for reason in reasons(decision) { (quote(words, reason)) }
            },
        ),
        Fact::RequestClosed {
            request_id, status, ..
        } => {
            let event = match status {
                RequestStatus::Expired => words.has_expired,
                RequestStatus::Pending
                | RequestStatus::Responded
                | RequestStatus::Resumed
                | RequestStatus::Withdrawn => words.was_withdrawn,
            };
            let link = review_link(site, *request_id);
            (html! { (event) " " (link) }, nothing())
        }
        Fact::ToolStarted { name, attempt, .. } => (start_line(words, name, *attempt), nothing()),
        Fact::ToolResult(result) => tool_result_entry(words, words.event_finished, result),
        Fact::LateResult(result) => tool_result_entry(words, words.event_late, result),
        Fact::SubAgentStarted {
            agent,
            child_task_id,
            ..
        } => {
            let line = fill(words.event_sub_agent, &[("agent", &visible(agent))]);
            let address = format!("{}/tasks/{child_task_id}", site.prefix);
            (html! { a href=(address) { (line) } }, nothing())
        }
    }
}

fn message_entry(
    site: &Site<'_>,
    is_gate_call: bool,
    event: &Event,
    (items, by): (&[MessagePart], &str),
) -> (Markup, Markup) {
    let words = site.words();
    let (line, is_by_agent) = message_line(site, is_gate_call, event, by);
    let parts = message_parts(words, items);
    let has_text = items.iter().any(|part| !part.content.is_empty());
    let parts = if is_by_agent && has_text {
        labeled_box(words.by_agent, &parts)
    } else {
        parts
    };
    (html! { bdi { (line) } }, parts)
}

/// Returns the line of a message, and whether an agent wrote the message. The journal names the
/// user as the author of each message. But the message of a sub-agent's task is by the agent that
/// handed the work over, and the message of a call at a gate is by the agent that proposes the
/// call.
fn message_line(site: &Site<'_>, is_gate_call: bool, event: &Event, by: &str) -> (String, bool) {
    let words = site.words();
    if let [.., caller, _] = event.agent_path.as_slice() {
        let line = fill(words.event_handed, &[("agent", &visible(caller))]);
        return (line, true);
    }
    let text = if is_gate_call {
        RequestTexts::for_language(site.language).agent_wrote
    } else {
        words.event_message
    };
    (fill(text, &[("user", &visible(by))]), is_gate_call)
}

fn message_parts(words: &Translations, items: &[MessagePart]) -> Markup {
    html! {
        @for part in items {
            @match part.content_type {
                PartType::Text => (quote(words, &part.content)),
                PartType::Image => p { (words.event_image) },
            }
        }
    }
}

fn start_line(words: &Translations, name: &str, attempt: u32) -> Markup {
    let text = if attempt > 1 {
        words.event_started_again
    } else {
        words.event_started
    };
    html! { bdi { (fill(text, &[("tool", &visible(name)), ("count", &attempt)])) } }
}

fn review_link(site: &Site<'_>, request: RequestId) -> Markup {
    html! { a href=(format!("{}/resume/{request}", site.prefix)) { (site.texts().review) } }
}

fn status_text(status: TaskStatus, words: &Translations) -> &'static str {
    match status {
        TaskStatus::Running => words.event_resumed,
        TaskStatus::Paused => words.event_paused,
        TaskStatus::Completed => words.event_completed,
        TaskStatus::Failed => words.event_failed,
        TaskStatus::Canceled => words.event_canceled,
    }
}

fn answer_box(words: &Translations, turn: &Turn) -> Markup {
    let inside = html! {
        @if let Some(text) = &turn.text { (quote(words, text)) }
        @for call in &turn.tool_calls {
            p.exact { (fill(words.event_call, &[("tool", &visible(&call.name))])) }
            pre.exact dir="ltr" { (truncate(&call.arguments_text)) }
            (truncation_note(words, &call.arguments_text))
        }
    };
    labeled_box(words.by_agent, &inside)
}

fn judgement_line(site: &Site<'_>, judgement: &Judgement) -> Markup {
    let verdict = site.words().verdict(judgement.verdict);
    html! {
        (fill(site.texts().judged, &[("verdict", &verdict)]))
        @if let Some(rule) = &judgement.rule {
            " · " bdi { (fill(site.texts().by_rule, &[("rule", &visible(rule))])) }
        }
        @if let Some(reason) = &judgement.reason { " · " bdi { (visible(reason)) } }
    }
}

fn decision_line(site: &Site<'_>, decision: &Decision, request: RequestId) -> Markup {
    let words = site.words();
    let what = words.action(decision.action);
    let door = match decision.door {
        Some(Door::Link) => Some(site.texts().by_link),
        Some(Door::Slack) => Some(site.texts().in_slack),
        Some(Door::Key | Door::Session) | None => None,
    };
    let user = visible(&decision.by);
    html! {
        bdi { (fill(words.event_decided, &[("what", &what), ("user", &user)])) }
        @if let Some(door) = door { " (" (door) ")" }
        " " (review_link(site, request))
    }
}

fn tool_result_entry(words: &Translations, line: &str, result: &ToolResult) -> (Markup, Markup) {
    let outcome = words.outcome(result.outcome);
    let tool = visible(&result.name);
    let line = fill(line, &[("tool", &tool), ("outcome", &outcome)]);
    let parts = html! {
        @if !result.content.is_empty() { (labeled_box(words.by_result, &quote(words, &result.content))) }
    };
    (html! { bdi { (line) } }, parts)
}

fn labeled_box(label: &str, inside: &Markup) -> Markup {
    html! { div.agent { p.by { (label) } (inside) } }
}

/// Renders a text of an agent, a tool or a person, cut at [`MAX_TEXT_CHARS`] characters.
fn quote(words: &Translations, text: &str) -> Markup {
    html! { pre dir="auto" { (truncate(text)) } (truncation_note(words, text)) }
}

/// Cuts a text at [`MAX_TEXT_CHARS`] characters, and shows invisible characters as `\u{…}`. Keeps
/// the line breaks.
fn truncate(text: &str) -> String {
    let end = text
        .char_indices()
        .nth(MAX_TEXT_CHARS)
        .map_or(text.len(), |(end, _)| end);
    visible_lines(text.get(..end).unwrap_or_default())
}

fn truncation_note(words: &Translations, text: &str) -> Markup {
    let count = text.chars().count();
    html! {
        @if count > MAX_TEXT_CHARS { p.soft { (fill(words.live_cut, &[("count", &count)])) } }
    }
}
