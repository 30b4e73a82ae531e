//! The forms that decide all open calls of an approval request. The main form has a comment, a
//! button that approves, and a button that rejects. It comes after the arguments, so a person sees
//! no button before the end of the arguments. On a small screen, the buttons stay in view as long
//! as a part of the form is in view.

use maud::{Markup, html};

use super::View;
use super::forms::{folded_form, form_with_digest, reason_field, then_select};
use super::inputs::InputField;
use super::remember;
use super::submitted::FormName;
use crate::http::pages::translations::fill;
use crate::http::wire::request::RequestedCall;
use crate::task::decision::{Action, Consequence};

/// Renders the form with the buttons that this reader may use; `None` if there are none.
pub(super) fn decide_form(view: &View<'_>) -> Option<Markup> {
    let call = call_to_name(view);
    let (approve, reject) = (view.allows(Action::Approve), may_reject(view, call));
    if !approve && !reject {
        return None;
    }
    let path = |word| format!("{}/resume/{}/{word}", view.prefix, view.request.request_id);
    // On the page of a sealed link, or if the form names a call, both buttons post to the same
    // path, and the value of the pressed button names the action.
    let same_path = view.link.is_some() || call.is_some();
    let name = same_path.then(|| field_name(call, "action"));
    let value = |word| same_path.then_some(word);
    let body = html! {
        @if reject { (announced_then(view)) }
        (InputField::new(view, FormName::Decide, field_name(call, "reason")).text_area(view.texts.comment, 1, false))
        div.bar {
            @if approve { button type="submit" name=[name.as_deref()] value=[value("approve")] { (approve_text(view)) } }
            @if reject {
                button.no type="submit" name=[name.as_deref()] value=[value("reject")]
                    formaction=[(approve && !same_path).then(|| path("reject"))] { (reject_text(view)) }
            }
        }
        @if approve && let Some(fields) = remember::remember_fields(view) { (fields) }
    };
    let to = match approve {
        _ if same_path => "",
        true => "/approve",
        false => "/reject",
    };
    Some(html! { div.decide { (form_with_digest(view, to, &body)) } })
}

/// Returns the only open call, if the forms have to name it; `None` if the forms decide the whole
/// request. If this reader has approved a call that is still undecided, the service refuses to
/// reject the whole request, but it accepts the rejection of a call that the form names. With
/// several open calls, only the form with a choice for each call can then reject.
fn call_to_name<'v>(view: &'v View<'_>) -> Option<&'v RequestedCall> {
    match view.open_calls().as_slice() {
        [call] if view.has_approved_undecided_call() => Some(*call),
        _ => None,
    }
}

fn may_reject(view: &View<'_>, call: Option<&RequestedCall>) -> bool {
    view.allows_whole(Action::Reject) || (call.is_some() && view.allows(Action::Reject))
}

/// Returns the name by which a form submits the field `name`. If the form names `call`, the result
/// also contains the id of the call. Otherwise the result is `name` itself.
fn field_name(call: Option<&RequestedCall>, name: &str) -> String {
    call.map_or_else(
        || name.to_owned(),
        |call| format!("call.{}.{name}", call.tool_call_id),
    )
}

fn approve_text(view: &View<'_>) -> String {
    let (words, texts) = (view.words, view.texts);
    let open = view.open_calls().len();
    let text = match (open, view.own_calls().len()) {
        (0 | 1, 1) => return words.approve.to_owned(),
        (1, _) => texts.approve_last,
        (open, own) if open < own => texts.approve_rest,
        _ => words.approve_all,
    };
    fill(text, &[("count", &open)])
}

/// Renders the hidden field `reject.then`, if the page announces that a rejection of several calls
/// ends the task. The form submits this field, so the service does what the page says. Without the
/// field, the service would apply the rule only if every call ends rejected, and another person may
/// approve a call while the page is open.
pub(super) fn announced_then(view: &View<'_>) -> Markup {
    let open = view.open_calls().len();
    let is_announced = open > 1 && open == view.own_calls().len();
    let then = match view.row.spec.terms.on_reject {
        Consequence::Continue => None,
        Consequence::Cancel => Some("cancel"),
        Consequence::CancelRoot => Some("cancel_root"),
    };
    html! {
        @if let Some(then) = then.filter(|_| is_announced) { input type="hidden" name="reject.then" value=(then); }
    }
}

/// Returns the text of the button that rejects. If all calls are still open, the text names the
/// consequence that the rule prescribes.
fn reject_text(view: &View<'_>) -> String {
    let texts = view.texts;
    let root = view.row.task_id == view.row.root_task_id;
    let (single, several) = match view.row.spec.terms.on_reject {
        Consequence::Continue => (texts.reject_continue, texts.reject_all_continue),
        Consequence::Cancel if root => (texts.reject_cancel, texts.reject_all_cancel),
        Consequence::Cancel => (texts.reject_cancel_sub, texts.reject_all_cancel_sub),
        Consequence::CancelRoot => (texts.reject_cancel_root, texts.reject_all_cancel_root),
    };
    match view.open_calls().len() {
        open if open == view.own_calls().len() && open > 1 => fill(several, &[("count", &open)]),
        // Some calls already have answers and may run. The rule's consequence takes effect only if
        // every call is rejected, so the button names no consequence.
        open if open < view.own_calls().len() => view.words.reject.to_owned(),
        _ => single.to_owned(),
    }
}

/// Renders the form in which a person rejects and may choose a consequence other than the rule's.
/// `None` if this reader may not reject.
pub(super) fn reject_otherwise_form(view: &View<'_>) -> Option<Markup> {
    let call = call_to_name(view);
    may_reject(view, call).then(|| {
        let path = if call.is_some() { "" } else { "/reject" };
        let body = html! {
            @if call.is_some() { input type="hidden" name=(field_name(call, "action")) value="reject"; }
            (announced_then(view))
            (then_select(view, FormName::Reject))
            (reason_field(view, FormName::Reject, &field_name(call, "reason")))
            button.no type="submit" { (view.words.reject) }
        };
        let head = view.texts.reject_otherwise;
        folded_form(view, FormName::Reject, head, path, &body)
    })
}
