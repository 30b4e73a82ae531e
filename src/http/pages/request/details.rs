//! Renders the folded details: who may decide, the rules and verdicts, the ids and the digests.

use maud::{Markup, html};

use super::View;
use super::deadline::time_with_distance;
use super::headline::asked_by_agent;
use super::kind::kind_part;
use super::opening::reason;
use super::question::approver_names;
use super::several::call_number;
use crate::http::pages::layout::visible;
use crate::http::wire::request::{RequestedCall, WireEffect, WireVerdict};

pub(super) fn section(view: &View<'_>) -> Markup {
    let (words, texts, request) = (view.words, view.texts, &view.request);
    let several = request.tool_calls.len() > 1;
    html! {
        details.details {
            summary { (texts.details) }
            dl {
                dt { (words.kind) } dd { (kind_part(request.kind, words).heading) }
                dt { (words.who_may_decide) } dd { (approver_names(view)) }
                dt { (words.asked_at) } dd { (time_with_distance(view.row.created_at, view.now, words)) }
                dt { (texts.deadline) }
                dd { @match view.row.expires_at { Some(at) => (time_with_distance(at, view.now, words)), None => (words.no_deadline) } }
                dt { (words.agent) } dd { (visible(&request.agent_path.join(" › "))) }
                dt { (words.session) } dd { code { (visible(&request.session_id)) } }
                dt { (words.task) } dd { code { (request.task_id) } }
                dt { (words.request) } dd { code { (request.request_id) } }
                @if let Some(replica) = replica(view) { dt { (words.replica) } dd { code { (visible(replica)) } } }
                dt { (texts.digest) } dd { code { (request.digest) } }
            }
            @for (index, call) in request.tool_calls.iter().enumerate() {
                @if several { h3 { (call_number(view, index)) " " span.exact { (visible(&call.summary)) } } }
                (call_details(view, call))
            }
        }
    }
}

/// Returns the id of the replica that started a call whose outcome is unknown.
fn replica<'v>(view: &'v View<'_>) -> Option<&'v str> {
    let is_known = view.request.kind.properties().outcome_unknown;
    let details = view.request.details.as_ref().filter(|_| is_known);
    details?.get("replica")?.as_str()
}

fn call_details(view: &View<'_>, call: &RequestedCall) -> Markup {
    let words = view.words;
    let runs = !asked_by_agent(view.row);
    html! {
        dl {
            @if runs {
                dt { (words.tool) } dd.exact { (visible(&call.name)) }
                dt { (words.effect) } dd { (effect(view, call.effect)) }
                dt { (words.verdict) } dd { (words.verdict(call.verdict)) }
            }
            @if call.rule.is_some() || call.verdict != WireVerdict::Human {
                dt { (words.rule) } dd { (call.rule.as_deref().map_or(words.no_rule.to_owned(), visible)) }
            }
            @if let Some(reason) = reason(view, call) { dt { (words.reason) } dd { (reason) } }
            dt { (words.call_id) } dd { code { (call.tool_call_id) } }
            @if let Some(digest) = &call.digest { dt { (view.texts.digest) } dd { code { (digest) } } }
        }
    }
}

fn effect(view: &View<'_>, effect: WireEffect) -> &'static str {
    match effect {
        WireEffect::ReadOnly => view.words.effect_read_only,
        WireEffect::Idempotent => view.words.effect_idempotent,
        WireEffect::Once => view.words.effect_once,
    }
}
