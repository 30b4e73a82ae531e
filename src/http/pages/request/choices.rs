//! The forms that decide single calls. They offer only the permitted actions and send only the
//! chosen ones.

use maud::{Markup, html};

use super::View;
use super::call::title;
use super::form::editable;
use super::forms::{form_with_digest, reason_field, result_type_select, then_select};
use super::inputs::InputField;
use super::submitted::FormName;
use crate::http::pages::layout::visible;
use crate::http::wire::request::RequestedCall;
use crate::task::decision::Action;

/// The most text to edit in one form, in URL-encoded bytes. The size of the form's POST is limited.
const MAX_EDITABLE: usize = 600 * 1024;

/// The form in which each of several calls is decided.
pub(crate) fn per_call_form(view: &View<'_>) -> Option<Markup> {
    let (words, calls) = (view.words, view.open_calls());
    let actions = [
        Action::Approve,
        Action::Reject,
        Action::Edit,
        Action::Respond,
    ];
    if calls.len() < 2 || !actions.into_iter().any(|action| view.allows(action)) {
        return None;
    }
    let edits = view.allows(Action::Edit)
        && calls.iter().map(|call| encoded_size(call)).sum::<usize>() <= MAX_EDITABLE;
    let body = html! {
        p { (words.each_call_about) }
        @if view.allows(Action::Edit) && !edits { p { (words.too_long_to_edit) } }
        @for call in &calls { (call_fieldset(view, call, edits)) }
        @if view.allows(Action::Reject) { (then_select(view, FormName::Calls)) }
        button type="submit" { (words.each_call_send) }
    };
    Some(html! { section { h3 { (words.each_call) } (form_with_digest(view, "", &body)) } })
}

/// How many bytes a browser sends for a call's arguments.
fn encoded_size(call: &RequestedCall) -> usize {
    url::form_urlencoded::byte_serialize(editable(&call.arguments_text).as_bytes())
        .map(str::len)
        .sum()
}

fn edit_effect_text(view: &View<'_>) -> &'static str {
    if view.required() > 1 {
        view.words.edit_asks
    } else {
        view.words.edit_approves
    }
}

fn call_fieldset(view: &View<'_>, call: &RequestedCall, edits: bool) -> Markup {
    let (words, id) = (view.words, &call.tool_call_id);
    let index = view
        .request
        .tool_calls
        .iter()
        .position(|other| other.tool_call_id == *id)
        .unwrap_or_default();
    let place = InputField::new(view, FormName::Calls, format!("call.{id}.action"));
    let offered = [
        ("", words.leave, true),
        (
            "approve",
            words.choose_approve,
            view.allows(Action::Approve),
        ),
        ("reject", words.choose_reject, view.allows(Action::Reject)),
        ("edit", words.choose_edit, edits),
        (
            "respond",
            words.choose_respond,
            view.allows(Action::Respond),
        ),
    ];
    let chosen = place.submitted_text().unwrap_or("");
    html! {
        fieldset {
            legend.exact { (title(view, call, index)) }
            p.exact { (visible(&call.summary)) }
            (place.mistakes())
            @for (value, label, _) in offered.iter().filter(|(_, _, offered)| *offered) {
                @let radio = if value.is_empty() { place.id() } else { format!("{}-{value}", place.id()) };
                div.choice {
                    input type="radio" id=(radio) name=(format!("call.{id}.action")) value=(value) checked[chosen == *value]
                        aria-describedby=[place.aria_described_by(false)];
                    label for=(radio) { (label) }
                }
            }
            @if edits { div.more.more-edit { p { (edit_effect_text(view)) } (arguments_field(view, FormName::Calls, call)) } }
            @if view.allows(Action::Respond) {
                div.more.more-respond {
                    (InputField::new(view, FormName::Calls, format!("call.{id}.result")).text_area(words.result_label, 3, "", true))
                    (result_type_select(view, FormName::Calls, &format!("call.{id}.result_type"), "text"))
                }
            }
            div.more.more-reason { (reason_field(view, FormName::Calls, &format!("call.{id}.reason"))) }
        }
    }
}

fn arguments_field(view: &View<'_>, form: FormName, call: &RequestedCall) -> Markup {
    let text = editable(&call.arguments_text);
    let rows = u32::try_from(text.lines().count().max(text.len() / 60))
        .unwrap_or(u32::MAX)
        .clamp(3, 16);
    let place = InputField::new(view, form, format!("call.{}.arguments", call.tool_call_id));
    place.text_area(view.words.edit_label, rows, &text, true)
}

/// The edit form and the respond form, if exactly one call is open.
pub(crate) fn single_call_forms(view: &View<'_>) -> Vec<Markup> {
    let calls = view.open_calls();
    let [call] = calls.as_slice() else {
        return Vec::new();
    };
    let mut forms = Vec::new();
    if view.allows(Action::Edit) && encoded_size(call) <= MAX_EDITABLE {
        forms.push(edit_form(view, call));
    }
    if view.allows(Action::Respond) {
        forms.push(respond_form(view, call));
    }
    forms
}

fn edit_form(view: &View<'_>, call: &RequestedCall) -> Markup {
    let (words, id) = (view.words, &call.tool_call_id);
    let body = html! {
        p { (edit_effect_text(view)) }
        input type="hidden" name=(format!("call.{id}.action")) value="edit";
        (arguments_field(view, FormName::Edit, call))
        (reason_field(view, FormName::Edit, &format!("call.{id}.reason")))
        button.second type="submit" { (words.edit_send) }
    };
    folded(
        view,
        FormName::Edit,
        words.edit_head,
        &form_with_digest(view, "", &body),
    )
}

fn respond_form(view: &View<'_>, call: &RequestedCall) -> Markup {
    let (words, id) = (view.words, &call.tool_call_id);
    let body = html! {
        p { (words.respond_about) }
        input type="hidden" name=(format!("call.{id}.action")) value="respond";
        (InputField::new(view, FormName::Supply, format!("call.{id}.result")).text_area(words.result_label, 4, "", true))
        (result_type_select(view, FormName::Supply, &format!("call.{id}.result_type"), "text"))
        (reason_field(view, FormName::Supply, &format!("call.{id}.reason")))
        button.second type="submit" { (words.respond_send) }
    };
    folded(
        view,
        FormName::Supply,
        words.respond_head,
        &form_with_digest(view, "", &body),
    )
}

/// A folded section with a form; open when this form was submitted with mistakes.
fn folded(view: &View<'_>, form: FormName, head: &str, body: &Markup) -> Markup {
    let open = view
        .submitted
        .is_some_and(|submitted| submitted.form == form);
    html! { section { details open[open] { summary { (head) } (body) } } }
}
