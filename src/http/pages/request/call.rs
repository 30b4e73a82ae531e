//! One call of a request: what it would do, its exact arguments, and the approvals and the decision
//! so far.

use maud::{Markup, html};

use super::View;
use super::kind::part;
use super::question::{decision_details, exact, prose, remaining_approvers};
use crate::http::pages::layout::{moment, said, visible};
use crate::http::pages::translations::fill;
use crate::http::wire::decision::WireDecision;
use crate::http::wire::request::{RequestedCall, WireEffect, WireVerdict};
use crate::task::restore::MAY_ALREADY_HAVE_RUN;
use crate::task::text_safety::{
    HIDDEN_CHARACTERS, LARGE, LONG_BLANKS, LOOK_ALIKE, MIXED_SCRIPTS, OVERLAY, RIGHT_TO_LEFT,
};

/// The section of one call; `index` is its place among the request's calls.
pub(crate) fn section(view: &View<'_>, call: &RequestedCall, index: usize) -> Markup {
    let words = view.words;
    html! {
        section {
            h2.exact { (title(view, call, index)) }
            @if !call.needs_decision { p.soft { (words.not_part) } }
            dl {
                dt { (words.summary) } dd.exact { (visible(&call.summary)) }
                dt { (words.goes_to) } dd.exact { (visible(&call.target)) }
                dt { (words.effect) } dd { (effect(view, call.effect)) }
                dt { (words.verdict) } dd { (verdict(view, call.verdict)) }
                @if call.rule.is_some() || call.verdict != WireVerdict::Human {
                    dt { (words.rule) } dd { (call.rule.as_deref().map_or(words.no_rule.to_owned(), visible)) }
                }
                @if let Some(reason) = &call.reason { dt { (words.reason) } dd { (visible(reason)) } }
                dt { (words.call_id) } dd { code { (call.tool_call_id) } }
                @if call.needs_decision && view.required() > 1 { dt { (words.approvals) } dd { (approvals(view, call)) } }
            }
            (warnings(view, call))
            div.agent {
                p.by { (authorship(view, call)) }
                @if call.arguments_text.is_empty() { p { (words.no_bytes) } }
                pre.exact dir="ltr" { (visible(&call.arguments_text)) }
            }
            @if let Some(decision) = &call.decision { (decision_part(view, call, decision)) }
        }
    }
}

/// The warnings about a call's arguments.
pub(crate) fn warnings(view: &View<'_>, call: &RequestedCall) -> Markup {
    let words = view.words;
    html! {
        @for warning in &call.warnings {
            p.warning {
                (words.warning) (words.colon) (warning_subject(view, &warning.code)) (said(words, &warning.detail, words.translated(&warning.detail)))
                @if !warning.pointer.is_empty() { " " code { (visible(&warning.pointer)) } }
            }
        }
    }
}

/// Says who wrote the arguments and what they are for.
fn authorship(view: &View<'_>, call: &RequestedCall) -> String {
    let words = view.words;
    let own = view
        .row
        .asked
        .pending_tool_calls
        .iter()
        .find(|own| own.tool_call_id.to_string() == call.tool_call_id);
    if let Some(editor) = own.and_then(|own| own.editor.as_deref()) {
        return fill(words.by_editor, &[("user", &visible(editor))]);
    }
    part(view.request.kind, words).arguments_of.to_owned()
}

/// The subject of a warning, in the reader's language; the warning's detail may have no
/// translation.
fn warning_subject(view: &View<'_>, code: &str) -> Markup {
    let words = view.words;
    let about = match code {
        HIDDEN_CHARACTERS => words.warned_hidden,
        MIXED_SCRIPTS => words.warned_scripts,
        LOOK_ALIKE => words.warned_alike,
        RIGHT_TO_LEFT => words.warned_reordered,
        OVERLAY => words.warned_overlay,
        LONG_BLANKS => words.warned_blanks,
        LARGE => words.warned_large,
        MAY_ALREADY_HAVE_RUN => words.warned_doubt,
        _ => return html! {},
    };
    html! { (about) " " }
}

/// The title of a call: its tool and, among several calls, its number.
pub(crate) fn title(view: &View<'_>, call: &RequestedCall, index: usize) -> String {
    let (name, count) = (visible(&call.name), view.request.tool_calls.len());
    if count < 2 {
        return fill(view.words.one_call, &[("name", &name)]);
    }
    let (number, count) = ((index + 1).to_string(), count.to_string());
    fill(
        view.words.call,
        &[("number", &number), ("count", &count), ("name", &name)],
    )
}

fn effect(view: &View<'_>, effect: WireEffect) -> &'static str {
    match effect {
        WireEffect::ReadOnly => view.words.effect_read_only,
        WireEffect::Idempotent => view.words.effect_idempotent,
        WireEffect::Once => view.words.effect_once,
    }
}

fn verdict(view: &View<'_>, verdict: WireVerdict) -> &'static str {
    match verdict {
        WireVerdict::Allow => view.words.verdict_allow,
        WireVerdict::Hold => view.words.verdict_hold,
        WireVerdict::Deny => view.words.verdict_deny,
        WireVerdict::Invalid => view.words.verdict_invalid,
        WireVerdict::Human => view.words.verdict_human,
    }
}

/// How many people have approved a call, and who else may.
fn approvals(view: &View<'_>, call: &RequestedCall) -> Markup {
    let words = view.words;
    let (have, required) = (call.approvals.len(), view.required());
    let missing = usize::try_from(required)
        .unwrap_or(usize::MAX)
        .saturating_sub(have);
    let people: Vec<&str> = call
        .approvals
        .iter()
        .map(|approval| approval.by.as_str())
        .collect();
    let names = remaining_approvers(view, &people);
    let (have, required, left) = (have.to_string(), required.to_string(), missing.to_string());
    let text = if call.decision.is_some() || missing == 0 {
        fill(
            words.approvals_so_far,
            &[("have", &have), ("required", &required)],
        )
    } else {
        let values = [
            ("have", have.as_str()),
            ("required", &required),
            ("missing", &left),
            ("names", &names),
        ];
        fill(words.approvals_missing, &values)
    };
    html! {
        (text)
        @if !call.approvals.is_empty() {
            ul {
                @for approval in &call.approvals {
                    li { (fill(words.approved_by, &[("user", &visible(&approval.by)), ("at", &moment(&approval.at))])) }
                }
            }
        }
    }
}

/// The decision about this call, with the replaced arguments or the supplied result.
fn decision_part(view: &View<'_>, call: &RequestedCall, decision: &WireDecision) -> Markup {
    let words = view.words;
    let own = decision.decisions.get(&call.tool_call_id);
    html! {
        h3 { (words.decision) }
        (decision_details(view, decision, false))
        @if let Some(arguments) = own.and_then(|own| own.arguments.as_ref()) {
            p { (words.runs_instead) }
            pre.exact dir="ltr" { (visible(&exact(arguments))) }
        }
        @if let Some(result) = own.and_then(|own| own.result.as_ref()) {
            p { (words.given_result) }
            pre dir="auto" { (prose(&exact(result))) }
        }
    }
}
