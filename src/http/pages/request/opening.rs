//! Renders the first lines of the page: a line with the agent, the task's owner and the time left;
//! the heading; the outcome of a closed request; the reasons for the question.

use maud::{Markup, html};

use super::View;
use super::asker;
use super::deadline::{duration_text, time_with_distance};
use super::headline::asked_by_agent;
use super::history::RequestHistory;
use super::kind::kind_part;
use super::question::decision_section;
use crate::http::pages::layout::visible;
use crate::http::pages::translations::fill;
use crate::http::wire::request::{RequestedCall, WireVerdict};
use crate::task::request_kind::ResponseKind;
use crate::task::verdict::NO_RULE_MATCHES;

/// Returns the page's heading, which also appears in the title of the browser's tab. The heading is
/// the summary of the first call and the number of further calls. If the agent itself asked the
/// question, the heading is the name of the kind of question.
#[must_use]
pub(super) fn heading(view: &View<'_>) -> String {
    let own = view.own_calls();
    let Some((_, first)) = own.first().filter(|_| !asked_by_agent(view.row)) else {
        return kind_part(view.request.kind, view.words).heading.to_owned();
    };
    let summary = visible(&first.summary);
    match own.len() {
        1 => summary,
        count => fill(
            view.texts.and_more,
            &[("summary", &summary), ("count", &(count - 1))],
        ),
    }
}

/// Renders the lines above the question. `closed` is the headline of a closed request; `None` for
/// an open request.
pub(super) fn opening(view: &View<'_>, closed: Option<&str>) -> Markup {
    html! {
        div.opening {
            (first_line(view, closed.is_none()))
            h1.exact { (heading(view)) }
            (state_line(view, closed))
            (later_requests(view))
            (decision_section(view))
            (reasons(view))
            (asker::line(view, closed.is_none()))
        }
    }
}

/// Renders the line with the agent, the task's owner and a time. For an open request, this is the
/// time left to answer. For a closed request, this is the time of the question.
fn first_line(view: &View<'_>, is_open: bool) -> Markup {
    let (texts, row) = (view.texts, view.row);
    let agent = visible(&view.request.agent_path.join(" › "));
    let text = if is_open {
        texts.agent_asks
    } else {
        texts.agent_asked
    };
    html! {
        p.kicker {
            bdi { (fill(text, &[("agent", &agent)])) }
            " · " bdi { (fill(texts.task_of, &[("user", &visible(&row.owner))])) }
            @if is_open { " · " (time_left(view)) } @else { " · " (time_with_distance(row.created_at, view.now, view.words)) }
        }
    }
}

/// Renders the time left to answer, which `pages/follow.js` counts down.
fn time_left(view: &View<'_>) -> Markup {
    let (texts, words) = (view.texts, view.words);
    let Some(at) = view.row.expires_at else {
        return html! { span #standing { (words.no_deadline) } };
    };
    if at <= view.now {
        return html! { span #standing.urgent { (texts.overdue) } };
    }
    let remaining = at.since(view.now);
    let is_urgent = remaining.as_secs() < 3600;
    html! {
        time #standing.urgent[is_urgent] datetime=(at) data-left { (fill(words.time_left, &[("time", &duration_text(remaining, words))])) }
    }
}

/// Renders the line with the outcome of a closed request. For an open request, the line is empty
/// and hidden. When the request closes, `pages/follow.js` fetches the page again and fills in the
/// line.
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

/// Renders a link to each open request that blocks a call of the closed request. The page of a
/// sealed link has no such links, because a sealed link opens no other request.
fn later_requests(view: &View<'_>) -> Markup {
    let history = view.history.iter().filter(|_| view.link.is_none());
    html! {
        @for id in history.flat_map(RequestHistory::later_requests) {
            p { a href=(format!("{}/resume/{id}", view.prefix)) { (view.texts.later_request) } }
        }
    }
}

fn reasons(view: &View<'_>) -> Markup {
    let (words, kind) = (view.words, view.request.kind);
    let part = kind_part(kind, words);
    // The message then has the text of the server's question. Otherwise the operator wrote it.
    let asked_by_server = kind.properties().response == ResponseKind::ServerForm;
    let own = view.own_calls();
    let mut texts: Vec<String> = Vec::new();
    for (_, call) in &own {
        let reason = reason(view, call);
        texts.extend(reason.filter(|reason| !texts.contains(reason)));
    }
    html! {
        @if !kind.properties().decides_calls && !asked_by_agent(view.row) { p.why { strong { (part.heading) } } }
        @if let Some(about) = part.about { p.why { (about) } }
        @if let Some(message) = &view.row.spec.terms.message {
            p.why.exact[asked_by_server] { (visible(message)) }
        }
        @for reason in &texts { p.why { (reason) } }
    }
}

/// Returns the reason why a person is asked about a call. If the reason is that no rule matches,
/// the text is in the reader's language. A rule's own reason is not translated.
pub(super) fn reason(view: &View<'_>, call: &RequestedCall) -> Option<String> {
    let has_no_rule = call.rule.is_none() && call.verdict == WireVerdict::Hold;
    let no_rule = || has_no_rule.then(|| view.texts.no_rule_why.to_owned());
    let Some(reason) = call.reason.as_deref() else {
        return no_rule();
    };
    match reason.strip_prefix(NO_RULE_MATCHES) {
        Some("") => no_rule(),
        Some(more) => Some(format!("{}{}", view.texts.no_rule_why, visible(more))),
        None => Some(visible(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::page;
    use crate::http::openapi::sample;
    use crate::task::request::RequestKind;

    #[test]
    fn only_a_message_with_a_servers_question_is_shown_in_the_order_of_its_characters() {
        let asked = page(
            &sample::of_kind(RequestKind::Elicitation),
            &sample::caller(),
        );
        let line = "<p class=\"why exact\">files asks: Which folder?</p>";
        assert!(asked.contains(line), "{asked}");
        let mut row = sample::request();
        row.spec.terms.message = Some("Ask finance.".to_owned());
        let held = page(&row, &sample::approver());
        assert!(held.contains("<p class=\"why\">Ask finance.</p>"), "{held}");
    }
}
