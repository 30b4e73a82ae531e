//! The first lines of the page: the agent, the task's owner and the time left; the heading; the
//! outcome of a closed request; and the reason for the question.

use maud::{Markup, html};

use super::View;
use super::asker;
use super::deadline::{span, when};
use super::headline::asked_by_agent;
use super::kind::part;
use super::question::decision_section;
use crate::http::pages::layout::visible;
use crate::http::pages::translations::fill;
use crate::http::wire::request::{RequestedCall, WireVerdict};
use crate::task::request::RequestKind;

/// Returns the page's heading, which is also the title of its tab: the summary of the first call,
/// with the number of further calls. If the agent itself asks, the heading is the kind of question.
#[must_use]
pub(super) fn heading(view: &View<'_>) -> String {
    let own = view.own_calls();
    let Some((_, first)) = own.first().filter(|_| !asked_by_agent(view.row)) else {
        return part(view.request.kind, view.words).heading.to_owned();
    };
    let summary = visible(&first.summary);
    match own.len() {
        1 => summary,
        count => fill(
            view.texts.and_more,
            &[("summary", &summary), ("count", &(count - 1).to_string())],
        ),
    }
}

/// The lines above the question. `closed` is the headline of a closed request.
pub(super) fn opening(view: &View<'_>, closed: Option<&str>) -> Markup {
    html! {
        div.opening {
            (first_line(view, closed.is_none()))
            h1.exact { (heading(view)) }
            (state_line(view, closed))
            (decision_section(view))
            (why(view))
            (asker::line(view, closed.is_none()))
        }
    }
}

/// The agent, the owner and the time: "billing asks · alice’s task · 23 h left".
fn first_line(view: &View<'_>, open: bool) -> Markup {
    let (texts, row) = (view.texts, view.row);
    let agent = visible(&view.request.agent_path.join(" › "));
    let asks = if open { texts.asks } else { texts.asked };
    html! {
        p.kicker {
            bdi { (fill(asks, &[("agent", &agent)])) }
            " · " bdi { (fill(texts.task_of, &[("user", &visible(&row.owner))])) }
            @if open { " · " (time_left(view)) } @else { " · " (when(row.created_at, view.now, view.words)) }
        }
    }
}

/// The time left to answer. The script counts it down.
fn time_left(view: &View<'_>) -> Markup {
    let (texts, words) = (view.texts, view.words);
    let Some(at) = view.row.expires_at else {
        return html! { span #standing { (texts.no_deadline) } };
    };
    if at <= view.now {
        return html! { span #standing.urgent { (texts.overdue) } };
    }
    let left = at.since(view.now);
    let urgent = left.as_secs() < 3600;
    html! {
        time #standing.urgent[urgent] datetime=(at) data-left { (fill(texts.time_left, &[("time", &span(left, words))])) }
    }
}

/// The outcome of a closed request; empty and hidden while the request is open. Once the request is
/// closed, the script copies this line from a freshly loaded page.
fn state_line(view: &View<'_>, closed: Option<&str>) -> Markup {
    let class = match closed {
        None => "exact state",
        Some(_) if view.ended_well() => "exact state good",
        Some(_) => "exact state bad",
    };
    html! {
        p #headline class=(class) hidden[closed.is_none()] { (closed.unwrap_or_default()) }
    }
}

/// The reasons for the question: a sentence about the kind of request, the operator's message, and
/// the reasons for the verdicts.
fn why(view: &View<'_>) -> Markup {
    let (words, kind) = (view.words, view.request.kind);
    let part = part(kind, words);
    let own = view.own_calls();
    let mut reasons: Vec<String> = Vec::new();
    for (_, call) in &own {
        let reason = reason(view, call);
        reasons.extend(reason.filter(|reason| !reasons.contains(reason)));
    }
    html! {
        @if kind != RequestKind::Approval && !asked_by_agent(view.row) { p.why { strong { (part.heading) } } }
        @if let Some(about) = part.about { p.why { (about) } }
        @if let Some(message) = &view.row.asked.terms.message { p.why { (visible(message)) } }
        @for reason in &reasons { p.why { (reason) } }
    }
}

fn reason(view: &View<'_>, call: &RequestedCall) -> Option<String> {
    let stated = call.reason.as_deref().map(visible);
    let unruled = call.rule.is_none() && call.verdict == WireVerdict::Hold;
    stated.or_else(|| unruled.then(|| view.texts.no_rule_why.to_owned()))
}
