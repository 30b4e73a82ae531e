//! Renders the calls of a request, each with its arguments, approvals and decision. The calls that
//! the request does not decide come last, in a smaller form.

use maud::{Markup, html};

use super::View;
use super::arguments;
use super::kind::kind_part;
use super::question::{decision_details, remaining_approvers, unquoted_text};
use super::several;
use crate::http::pages::layout::{time_tag, visible, visible_lines};
use crate::http::pages::translations::fill;
use crate::http::wire::decision::WireDecision;
use crate::http::wire::request::{RequestedCall, WireRequestStatus};

pub(super) fn calls(view: &View<'_>) -> Markup {
    let own = view.own_calls();
    let calls = view.request.tool_calls.iter();
    let context: Vec<&RequestedCall> = calls.filter(|call| !call.needs_decision).collect();
    html! {
        @match own.as_slice() {
            [(_, call)] => (single_call(view, call)),
            _ => (several::tables(view, &own)),
        }
        @if !context.is_empty() { (context_calls(view, &context)) }
    }
}

fn single_call(view: &View<'_>, call: &RequestedCall) -> Markup {
    html! {
        section.call {
            h2.quiet.exact { (visible(&call.name)) }
            p.by { (authorship(view, call)) }
            div.agent { (arguments::table(view, call)) }
            (approvals(view, call))
            @if let Some(decision) = &call.decision { (replacement(decision, call, view)) }
        }
    }
}

fn context_calls(view: &View<'_>, context: &[&RequestedCall]) -> Markup {
    html! {
        section.context {
            h2.quiet { (view.texts.context_head) }
            ul {
                @for call in context {
                    li {
                        span.exact { (visible(&call.summary)) }
                        " " span.soft { (view.words.verdict(call.verdict)) }
                        div.agent { (arguments::exact_text(view, call, !call.warnings.is_empty())) }
                    }
                }
            }
        }
    }
}

/// Returns a text that says who wrote a call's arguments, and how the arguments are used.
pub(super) fn authorship(view: &View<'_>, call: &RequestedCall) -> String {
    let mut calls = view.row.spec.pending_tool_calls.iter();
    let own = calls.find(|own| own.tool_call_id.to_string() == call.tool_call_id);
    let part = kind_part(view.request.kind, view.words);
    let is_closed = view.request.kind.properties().decides_calls
        && view.request.status != WireRequestStatus::Pending;
    let (written, changed) = if is_closed {
        (view.texts.asks_exactly, view.texts.changed_asked)
    } else {
        (part.authorship, part.changed)
    };
    let editor = own.and_then(|own| own.editor.as_deref());
    editor.map_or_else(
        || written.to_owned(),
        |editor| fill(changed, &[("user", &visible(editor))]),
    )
}

/// Renders how many people have approved a call, and who else may approve it. Empty if one approval
/// is enough, or if the request does not decide the call.
pub(super) fn approvals(view: &View<'_>, call: &RequestedCall) -> Markup {
    let words = view.words;
    let (have, required) = (call.approvals.len(), view.required());
    if required < 2 || !call.needs_decision {
        return html! {};
    }
    let missing = usize::try_from(required).unwrap_or(usize::MAX);
    let missing = missing.saturating_sub(have);
    let approvals = call.approvals.iter();
    let people: Vec<&str> = approvals.map(|approval| approval.by.as_str()).collect();
    let names = remaining_approvers(view, &people);
    let text = if call.decision.is_some() || missing == 0 {
        words.approvals_so_far
    } else {
        words.approvals_missing
    };
    let text = fill(
        text,
        &[
            ("have", &have),
            ("required", &required),
            ("missing", &missing),
            ("names", &names),
        ],
    );
    html! {
        div.approvals {
            strong { (words.approvals) } (words.colon) (text)
            @if !call.approvals.is_empty() {
                ul {
                    @for approval in &call.approvals {
                        li { bdi { (visible(&approval.by)) } " · " (time_tag(&approval.at)) }
                    }
                }
            }
        }
    }
}

/// Renders the decision about one of several calls, with the person's arguments or result.
pub(super) fn decision_of_call(
    view: &View<'_>,
    call: &RequestedCall,
    decision: &WireDecision,
) -> Markup {
    html! { (decision_details(view, decision, false)) (replacement(decision, call, view)) }
}

/// Renders the arguments or the result that the person wrote for this call, if any.
fn replacement(decision: &WireDecision, call: &RequestedCall, view: &View<'_>) -> Markup {
    let own = decision.decisions.get(&call.tool_call_id);
    html! {
        @if let Some(arguments) = own.and_then(|own| own.arguments.as_ref()) {
            p.by { (view.words.changed_to) }
            pre.exact dir="ltr" { (visible(&unquoted_text(arguments))) }
        }
        @if let Some(result) = own.and_then(|own| own.result.as_ref()) {
            p.by { (view.words.given_result) }
            pre dir="auto" { (visible_lines(&unquoted_text(result))) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::page_in;
    use super::*;
    use crate::http::openapi::sample;
    use crate::http::pages::language::Language;
    use crate::task::decision::{Action, Edit};
    use crate::task::request::RequestKind;
    use crate::task::status::RequestStatus;

    const RUNS: [&str; 2] = [
        "Changed by bob. Exactly this runs if it is approved.",
        "由 bob 修改，批准后将原样执行。",
    ];
    const SENT: [&str; 2] = [
        "Changed by bob. Exactly this was sent.",
        "由 bob 修改，已原样发送。",
    ];
    const ASKED: [&str; 2] = [
        "Changed by bob. Exactly this was asked.",
        "由 bob 修改，系提问原文。",
    ];

    /// Returns the line about a call that Bob has changed, in English and in Chinese.
    fn line(kind: RequestKind, status: RequestStatus) -> [String; 2] {
        let (bob, settings) = (sample::approver(), sample::settings());
        let mut row = sample::of_kind(kind);
        row.status = status;
        row.spec.pending_tool_calls[0].editor = Some("bob".to_owned());
        [Language::English, Language::Chinese].map(|language| {
            let view = View::new(&row, &bob, &settings, language, sample::now());
            authorship(&view, &view.request.tool_calls[0])
        })
    }

    #[test]
    fn edited_call_is_said_to_run_only_in_an_open_approval_request() {
        for kind in RequestKind::ALL {
            let expected = match kind {
                RequestKind::Approval => RUNS,
                RequestKind::Reconcile | RequestKind::Elicitation => SENT,
                RequestKind::Guidance
                | RequestKind::Credentials
                | RequestKind::Confirmation
                | RequestKind::ExternalResult => ASKED,
            };
            assert_eq!(line(kind, RequestStatus::Pending), expected, "{kind:?}");
        }
        for status in [
            RequestStatus::Responded,
            RequestStatus::Resumed,
            RequestStatus::Expired,
            RequestStatus::Withdrawn,
        ] {
            assert_eq!(line(RequestKind::Approval, status), ASKED, "{status:?}");
        }
    }

    #[test]
    fn arguments_of_an_edit_are_shown_with_its_reason_and_not_said_to_run() {
        let mut row = sample::request();
        let call = row.spec.pending_tool_calls[0].tool_call_id;
        let (at, mut answer) = sample::answer("bob", Action::Edit, &[call], true).unwrap();
        answer.decisions.get_mut(&call).unwrap().edit = Some(Edit {
            arguments_text: r#"{"amount":40}"#.to_owned(),
            digest: String::new(),
            rule: None,
        });
        row.answers = vec![(at, answer)];
        row.status = RequestStatus::Responded;
        for (language, comment, label) in [
            (Language::English, "Comment", "Changed to"),
            (Language::Chinese, "备注", "修改为"),
        ] {
            let page = page_in(language, &row, &sample::approver());
            for shown in [
                format!("<dt>{comment}</dt><dd><pre dir=\"auto\">So it is.</pre></dd>"),
                format!(
                    "<p class=\"by\">{label}</p><pre class=\"exact\" dir=\"ltr\">{{&quot;amount&quot;:40}}</pre>"
                ),
            ] {
                assert!(page.contains(&shown), "{shown}: {page}");
            }
        }
    }
}
