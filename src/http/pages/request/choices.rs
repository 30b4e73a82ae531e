//! The forms in which the name of a field contains the id of a call. If several calls are open, one
//! form has a choice for each call. If a single call is open, one form edits the call's arguments,
//! and another form gives the call's result. Each form offers only permitted actions.

use maud::{Markup, html};

use super::View;
use super::change::{self, ChangeField};
use super::form::editable_text;
use super::forms::{folded_form, reason_field, result_fields, then_select};
use super::inputs::InputField;
use super::several::call_number;
use super::submitted::FormName;
use crate::http::pages::layout::visible;
use crate::http::wire::request::RequestedCall;
use crate::task::decision::Action;

/// The maximum size of the fields with arguments that one form offers to edit, in URL-encoded
/// bytes. This limit keeps the form's POST below the maximum size of a body.
const MAX_EDITABLE_BYTES: usize = 600 * 1024;

/// Renders the form in which a person decides several calls, with a separate choice for each call.
/// `None` if fewer than two calls are open, or no action is permitted.
pub(crate) fn per_call_form(view: &View<'_>) -> Option<Markup> {
    let (words, texts, calls) = (view.words, view.texts, view.open_calls());
    let actions = [
        Action::Approve,
        Action::Reject,
        Action::Edit,
        Action::Respond,
    ];
    if calls.len() < 2 || !actions.into_iter().any(|action| view.allows(action)) {
        return None;
    }
    let can_edit = view.allows(Action::Edit)
        && calls.iter().map(|call| encoded_size(call)).sum::<usize>() <= MAX_EDITABLE_BYTES;
    let body = html! {
        p { (words.each_call_about) }
        @if view.allows(Action::Edit) && !can_edit { p { (words.too_long_to_edit) } }
        @for call in &calls { (call_fieldset(view, call, can_edit)) }
        @if view.allows(Action::Reject) { (then_select(view, FormName::Calls)) }
        // `formnovalidate` makes the browser send the form unchecked. Otherwise the browser would
        // report a mistake in a folded field, where the person cannot see it. The server checks the
        // form.
        div.bar {
            button.second type="submit" formnovalidate { (texts.send_chosen) }
            @if view.allows(Action::Approve) {
                button.second type="submit" formnovalidate name="rest" value="approve" { (texts.send_and_approve_rest) }
            }
        }
    };
    let form = folded_form(view, FormName::Calls, texts.each_call, "", &body);
    Some(form)
}

/// Returns the size of the fields of [`arguments_fields`] in a URL-encoded form, in bytes. A
/// browser sends each LF as CRLF.
fn encoded_size(call: &RequestedCall) -> usize {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    let mut add = |part: &str, text: &str| {
        let name = format!("call.{}.{part}", call.tool_call_id);
        form.append_pair(&name, &text.replace('\n', "\r\n"));
    };
    add("arguments", &editable_text(&call.arguments_text));
    for field in change_fields(call).iter().flatten() {
        add(&format!("field.{}", field.field.name), &field.initial_text);
    }
    form.finish().len()
}

/// Returns the fields for the members of a call's arguments; `None` if a person can edit the
/// arguments only as JSON.
fn change_fields(call: &RequestedCall) -> Option<Vec<ChangeField>> {
    call.arguments
        .as_ref()
        .and_then(|_| change::fields(&call.parameters, &call.arguments_text))
}

/// Returns whether other people must approve the arguments that this reader writes for a call. If
/// so, an edit by this reader is no approval.
fn edit_needs_others(view: &View<'_>, call: &RequestedCall) -> bool {
    let (caller, spec) = (view.caller, &view.row.spec);
    let mut ids = spec.own_calls().map(|own| own.tool_call_id);
    let id = ids.find(|id| id.to_string() == call.tool_call_id);
    !caller.without_accounts
        && id.is_some_and(|id| spec.needs_others_after_edit(id, caller.user_id.as_str()))
}

fn edit_effect_text(view: &View<'_>, call: &RequestedCall) -> &'static str {
    if edit_needs_others(view, call) {
        view.words.edit_asks
    } else {
        view.words.edit_approves
    }
}

fn call_fieldset(view: &View<'_>, call: &RequestedCall, can_edit: bool) -> Markup {
    let (words, id) = (view.words, &call.tool_call_id);
    let mut calls = view.request.tool_calls.iter();
    let index = calls.position(|other| other.tool_call_id == *id);
    let action = InputField::new(view, FormName::Calls, format!("call.{id}.action"));
    let offered = [
        ("", words.leave, true),
        (
            "approve",
            words.choose_approve,
            view.allows(Action::Approve),
        ),
        ("reject", words.choose_reject, view.allows(Action::Reject)),
        ("edit", words.choose_edit, can_edit),
        (
            "respond",
            words.choose_respond,
            view.allows(Action::Respond),
        ),
    ];
    let chosen = action.submitted_text().unwrap_or("");
    html! {
        fieldset {
            legend { (call_number(view, index.unwrap_or_default())) " " span.exact { (visible(&call.summary)) } }
            (action.mistakes())
            div.choices {
                @for (value, label, _) in offered.iter().filter(|(_, _, is_offered)| *is_offered) {
                    @let radio = if value.is_empty() { action.id() } else { format!("{}-{value}", action.id()) };
                    div.choice {
                        input type="radio" id=(radio) name=(format!("call.{id}.action")) value=(value) checked[chosen == *value]
                            aria-describedby=[action.aria_described_by(false)];
                        label for=(radio) { (label) }
                    }
                }
            }
            @if can_edit { div.more.more-edit { p { (edit_effect_text(view, call)) } (arguments_fields(view, FormName::Calls, call)) } }
            @if view.allows(Action::Respond) {
                div.more.more-respond {
                    (result_fields(view, FormName::Calls, &format!("call.{id}."), 3, "text"))
                }
            }
            div.more.more-reason { (reason_field(view, FormName::Calls, &format!("call.{id}.reason"))) }
        }
    }
}

/// Renders the inputs for a call's arguments: one for the arguments as JSON and, if
/// [`change::fields`] returns fields, one for each member.
fn arguments_fields(view: &View<'_>, form: FormName, call: &RequestedCall) -> Markup {
    let Some(fields) = change_fields(call) else {
        return json_field(view, form, call);
    };
    let json = InputField::new(view, form, format!("call.{}.arguments", call.tool_call_id));
    let submitted = json.submitted_text();
    let open = json.aria_invalid().is_some()
        || submitted.is_some_and(|text| text != editable_text(&call.arguments_text));
    html! {
        @for ChangeField { field, initial_text, .. } in &fields {
            (InputField::new(view, form, format!("call.{}.field.{}", call.tool_call_id, field.name))
                .with_default(initial_text).schema_field(field, false, &[]))
        }
        details open[open] {
            summary { (view.texts.as_json) }
            p.hint { (view.texts.as_json_about) }
            (json_field(view, form, call))
        }
    }
}

fn json_field(view: &View<'_>, form: FormName, call: &RequestedCall) -> Markup {
    let text = editable_text(&call.arguments_text);
    let rows = u32::try_from(text.lines().count().max(text.len() / 60))
        .unwrap_or(u32::MAX)
        .clamp(3, 16);
    let json = InputField::new(view, form, format!("call.{}.arguments", call.tool_call_id));
    json.with_default(&text)
        .text_area(view.words.edit_label, rows, true)
}

/// Renders the form that edits the arguments of the only open call. `None` if the number of open
/// calls is not 1, if an edit is not permitted, or if the arguments are too long.
pub(crate) fn change_form(view: &View<'_>) -> Option<Markup> {
    let calls = view.open_calls();
    let [call] = calls.as_slice() else {
        return None;
    };
    let id = &call.tool_call_id;
    let send = if edit_needs_others(view, call) {
        view.texts.change_send_asks
    } else {
        view.texts.change_send
    };
    (view.allows(Action::Edit) && encoded_size(call) <= MAX_EDITABLE_BYTES).then(|| {
        let body = html! {
            p.hint { (edit_effect_text(view, call)) }
            input type="hidden" name=(format!("call.{id}.action")) value="edit";
            (arguments_fields(view, FormName::Edit, call))
            (reason_field(view, FormName::Edit, &format!("call.{id}.reason")))
            // `formnovalidate` makes the browser send the form unchecked. Otherwise the browser
            // would refuse to send the form if a value that the agent wrote does not fit the
            // input's type.
            button.second type="submit" formnovalidate { (send) }
        };
        folded_form(view, FormName::Edit, view.texts.change, "", &body)
    })
}

/// Renders the form that gives the result of the only open call. `None` if the number of open calls
/// is not 1, or if a person may not give the result.
pub(crate) fn supply_form(view: &View<'_>) -> Option<Markup> {
    let (words, calls) = (view.words, view.open_calls());
    let [call] = calls.as_slice() else {
        return None;
    };
    let id = &call.tool_call_id;
    view.allows(Action::Respond).then(|| {
        let body = html! {
            p.hint { (words.respond_about) }
            input type="hidden" name=(format!("call.{id}.action")) value="respond";
            (result_fields(view, FormName::Supply, &format!("call.{id}."), 4, "text"))
            (reason_field(view, FormName::Supply, &format!("call.{id}.reason")))
            button.second type="submit" { (words.respond_send) }
        };
        folded_form(view, FormName::Supply, view.texts.supply, "", &body)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::request_page;
    use super::*;
    use crate::http::openapi::sample;
    use crate::http::pages::language::Language;
    use crate::people::Permissions;
    use crate::people::authorization::Roster;
    use crate::people::directory::{Account, Directory};
    use crate::store::RequestRow;

    /// Renders the page for Bob, in a service in which Carol may approve, too.
    fn page(row: &RequestRow, language: Language) -> String {
        let account = |user: &str| Account {
            user: user.to_owned(),
            tenant: "acme".to_owned(),
            groups: vec!["finance".to_owned()],
            act_as: false,
            admin: false,
            permissions: Permissions::ALL,
            key_sha256: [0; 32],
        };
        let accounts = vec![account("bob"), account("carol")];
        let (bob, mut settings) = (sample::approver(), sample::settings());
        settings.roster = Roster::new(Some(Directory::new(accounts)));
        let view = View::new(row, &bob, &settings, language, sample::now());
        request_page(&view).into_string()
    }

    /// Makes Bob the editor of the request's first call. `bars_editor` says whether an earlier
    /// request about the call has required several approvals.
    fn edited(mut row: RequestRow, bars_editor: bool) -> RequestRow {
        let call = &mut row.spec.pending_tool_calls[0];
        (call.editor, call.bars_editor) = (Some("bob".to_owned()), bars_editor);
        row
    }

    /// The form has the arguments of each call twice: as JSON, and in a field for each member.
    #[test]
    fn form_of_many_long_calls_offers_no_edit_that_its_post_could_not_carry() {
        let note = "These calls are too long to be changed on this page.";
        for (count, is_offered) in [(20, true), (50, false)] {
            let mut row = sample::several(count);
            for call in &mut row.spec.pending_tool_calls {
                call.parameters = json!({"type": "object", "properties": {
                    "to": {"type": "string"}, "text": {"type": "string"}}});
                let arguments = json!({"to": "bob", "text": "汉".repeat(1_320)});
                call.arguments_text = arguments.to_string();
            }
            let page = page(&row, Language::English);
            let radio = "-edit\" name=\"call.";
            let found = (page.contains(radio), page.contains(note));
            assert_eq!(found, (is_offered, !is_offered), "{count} calls");
        }
    }

    #[test]
    fn edit_by_an_editor_who_may_not_approve_is_offered_as_a_new_request() {
        for (language, approves, asks) in [
            (
                Language::English,
                [
                    "Approve with these changes",
                    "This approves the arguments as you leave them here.",
                ],
                [
                    "Ask again with these changes",
                    "A new request asks about the changed call",
                ],
            ),
            (
                Language::Chinese,
                ["按修改后的内容批准", "提交即批准您在此填写的参数。"],
                ["按修改后的内容重新征求批准", "修改后的调用会重新征求批准"],
            ),
        ] {
            let texts = [approves, asks].concat();
            for (bars_editor, expected) in [(false, approves), (true, asks)] {
                let page = page(&edited(sample::request(), bars_editor), language);
                let mut shown = texts.clone();
                shown.retain(|text| page.contains(text));
                assert_eq!(shown, expected, "{bars_editor}: {page}");
            }
            let several = page(&edited(sample::several(2), true), language);
            for text in [approves[1], asks[1]] {
                assert_eq!(several.matches(text).count(), 1, "{text}: {several}");
            }
        }
    }
}
