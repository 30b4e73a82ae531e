//! The forms on a request's page, for the actions that the reader may take. Each form posts the
//! digest of the request as the page shows it. If the request has changed since then, the service
//! refuses the answer.

use std::time::Duration;

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::deadline::duration_text;
use super::form::default_form;
use super::inputs::InputField;
use super::kind::kind_part;
use super::ordered::member_names_at;
use super::question::{cancel_text, page_address, then_text};
use super::submitted::FormName;
use super::{View, choices, decide, schema};
use crate::http::pages::layout::{has_right_to_left, visible, visible_lines};
use crate::http::pages::shown_to;
use crate::http::pages::translations::fill;
use crate::task::decision::Action;
use crate::task::request_kind::ResponseKind;

/// Returns the forms that this reader may use, the main form first.
pub(crate) fn permitted_forms(view: &View<'_>) -> Vec<Markup> {
    if view.request.kind.properties().decides_calls {
        return approval_forms(view);
    }
    let mut forms = Vec::new();
    if view.allows(Action::Respond) {
        forms.push(answer_form(view));
    }
    if view.allows(Action::Retry) {
        forms.push(retry_form(view));
    }
    // The answer form of a yes-or-no question has a button for "yes" and a button for "no", so the
    // page needs no separate form that rejects.
    if view.allows(Action::Reject) && !view.request.kind.is_yes_or_no() {
        let part = kind_part(view.request.kind, view.words);
        forms.push(folded_form(
            view,
            FormName::Reject,
            part.decline,
            "/reject",
            &reject_fields(view),
        ));
    }
    forms
}

fn approval_forms(view: &View<'_>) -> Vec<Markup> {
    let forms = [
        decide::decide_form(view),
        choices::per_call_form(view),
        choices::change_form(view),
        choices::supply_form(view),
        decide::reject_otherwise_form(view),
    ];
    forms.into_iter().flatten().collect()
}

/// Renders a folded form; `path` and `body` are those of [`form_with_digest`]. If the page shows
/// the mistakes of this form, the form is unfolded.
pub(super) fn folded_form(
    view: &View<'_>,
    form: FormName,
    head: &str,
    path: &str,
    body: &Markup,
) -> Markup {
    let open = view
        .submitted
        .is_some_and(|submitted| submitted.form == form);
    html! { details.other open[open] { summary { (head) } (form_with_digest(view, path, body)) } }
}

/// Renders a form that also posts the digest of the request. `path` is the action after a slash,
/// such as `/reject`; it is empty if a field in `body` names the action. The form posts to the path
/// of the request, followed by `path`. On the page of a sealed link, the form posts to the path of
/// the link instead. If `path` names an action, the form then submits the action in a hidden field.
pub(crate) fn form_with_digest(view: &View<'_>, path: &str, body: &Markup) -> Markup {
    let (to, action) = if let Some(link) = view.link {
        (link.path.clone(), path.strip_prefix('/'))
    } else {
        let request = &view.request.request_id;
        (format!("{}/resume/{request}{path}", view.prefix), None)
    };
    html! {
        form method="post" action=(to) autocomplete="off" {
            @if let Some(action) = action { input type="hidden" name="action" value=(action); }
            input type="hidden" name="digest" value=(view.request.digest);
            // The form of a sealed link needs no `shown_to`: the answer counts for the link's
            // person, no matter who is signed in.
            @if view.link.is_none() { (shown_to::field(view.caller)) }
            (body)
        }
    }
}

pub(crate) fn reason_field(view: &View<'_>, form: FormName, name: &str) -> Markup {
    InputField::new(view, form, name).text_area(view.texts.comment, 2, false)
}

/// Renders the field in which a person chooses the consequence of a rejection. For an approval
/// request, the default is the consequence that the rule prescribes, and a hint names it. Once a
/// call has an answer, the hint is left out: the call may run, and the consequence then does not
/// apply. For any other request, the default is `continue`.
pub(crate) fn then_select(view: &View<'_>, form: FormName) -> Markup {
    let words = view.words;
    let is_approval = view.request.kind.properties().decides_calls;
    let default_text = if is_approval {
        words.then_as_ruled
    } else {
        words.then_continue
    };
    let options: Vec<(&str, &str)> = [
        ("", default_text),
        ("continue", words.then_continue),
        ("cancel", cancel_text(view)),
        ("cancel_root", words.then_cancel_root),
    ]
    .into_iter()
    .filter(|(value, _)| is_approval || *value != "continue")
    .collect();
    let by_rule = then_text(view, view.row.spec.terms.on_reject);
    let is_whole = view.open_calls().len() == view.own_calls().len();
    let hint = (is_approval && is_whole).then(|| fill(words.then_rule, &[("then", &by_rule)]));
    let label = if view.request.kind.is_yes_or_no() {
        words.then_label_no
    } else {
        words.then_label
    };
    InputField::new(view, form, "then").select(label, hint.as_deref(), &options)
}

/// Renders the field for a result, and the choice between text and JSON. The names of both fields
/// begin with `prefix`.
pub(super) fn result_fields(
    view: &View<'_>,
    form: FormName,
    prefix: &str,
    rows: u32,
    default_type: &str,
) -> Markup {
    let words = view.words;
    let result = InputField::new(view, form, format!("{prefix}result"));
    let kind = InputField::new(view, form, format!("{prefix}result_type"));
    let kinds = [("text", words.result_text), ("json", words.result_json)];
    html! {
        (result.text_area(words.result_label, rows, true))
        (kind.with_default(default_type).select(words.result_type, None, &kinds))
    }
}

fn button_text(view: &View<'_>, single: &'static str, several: &str) -> String {
    match view.open_calls().len() {
        0 | 1 => single.to_owned(),
        count => fill(several, &[("count", &count)]),
    }
}

/// Renders the form that approves all open calls or answers with yes.
pub(crate) fn approve_form(view: &View<'_>) -> Markup {
    let words = view.words;
    let (head, button) = if view.request.kind.is_yes_or_no() {
        (words.confirm_yes, words.confirm_yes.to_owned())
    } else {
        (
            words.approve_head,
            button_text(view, words.approve, words.approve_all),
        )
    };
    let body = html! {
        (reason_field(view, FormName::Approve, "reason"))
        button type="submit" { (button) }
    };
    html! { section.plain { h2 { (head) } (form_with_digest(view, "/approve", &body)) } }
}

/// Renders the form of the page whose only button rejects. The button declines the question, or
/// rejects all open calls.
pub(crate) fn reject_form(view: &View<'_>) -> Markup {
    let part = kind_part(view.request.kind, view.words);
    html! { section.plain { h2 { (part.reject_head) } (form_with_digest(view, "/reject", &reject_fields(view))) } }
}

fn reject_fields(view: &View<'_>) -> Markup {
    let part = kind_part(view.request.kind, view.words);
    let button = part.reject_all.map_or_else(
        || part.reject.to_owned(),
        |all| button_text(view, part.reject, all),
    );
    html! {
        (decide::announced_then(view))
        (reason_field(view, FormName::Reject, "reason"))
        (then_select(view, FormName::Reject))
        button.no type="submit" { (button) }
    }
}

fn retry_form(view: &View<'_>) -> Markup {
    let words = view.words;
    let body = html! {
        p.warning { (words.retry_about) }
        input type="hidden" name="action" value="retry";
        (reason_field(view, FormName::Retry, "reason"))
        button.second type="submit" { (words.retry) }
    };
    folded_form(view, FormName::Retry, view.texts.retry, "", &body)
}

fn answer_form(view: &View<'_>) -> Markup {
    let part = kind_part(view.request.kind, view.words);
    let body = html! { input type="hidden" name="action" value="respond"; ((part.answer)(view)) };
    html! { section.plain { h2 { (part.answer_head) } (form_with_digest(view, "", &body)) } }
}

/// Renders the fields of a form that the agent wrote. The agent also wrote the labels, so the box
/// around the fields names the agent as the author.
pub(super) fn guidance_fields(view: &View<'_>) -> Markup {
    let words = view.words;
    let form = view.request.form.as_ref();
    let schema = form.cloned().unwrap_or_else(|| titled_default_form(view));
    html! {
        p { (words.shown_to_model) }
        fieldset.agent {
            legend.by { (words.by_agent_form) }
            @if let Some(title) = visible_text(form, "title") { p { strong.exact { (title) } } }
            @if let Some(description) = visible_text(form, "description") { p.exact { (description) } }
            (schema_fields(view, &schema, false, &offered_answers(view)))
        }
        button type="submit" { (words.send_answer) }
    }
}

/// Returns the default form, for a question without a form of its own. Adds a title to the field
/// `answer`.
fn titled_default_form(view: &View<'_>) -> Value {
    let mut form = default_form();
    if let Some(Value::Object(answer)) = form.pointer_mut("/properties/answer") {
        answer.insert("title".to_owned(), view.words.your_answer.into());
    }
    form
}

/// Renders the fields of a form that a tool's server wrote. If the form has no fields, because the
/// server asks for consent alone, or if the server asks the person to visit a page instead, renders
/// a button alone.
pub(super) fn elicitation_fields(view: &View<'_>) -> Markup {
    let words = view.words;
    let schema = view.request.form.clone().unwrap_or_else(default_form);
    html! {
        p { (words.given_to_server) }
        @if page_address(view).is_some() {
            input type="hidden" name="field.opened" value="true";
            button type="submit" { (words.page_done) }
        } @else if schema.get("properties").and_then(Value::as_object).is_some_and(Map::is_empty) {
            input type="hidden" name="result" value="{}";
            button type="submit" { (words.confirm_yes) }
        } @else {
            fieldset.agent {
                legend.by { (words.by_server) }
                (schema_fields(view, &schema, false, &[]))
            }
            button type="submit" { (words.send_answer) }
        }
    }
}

/// Returns the answers that the agent proposes, for the browser's list of suggestions. Leaves out
/// the answers that such a list cannot show completely.
fn offered_answers(view: &View<'_>) -> Vec<String> {
    texts(view.request.details.as_ref(), "options")
        .filter(|text| !text.is_empty() && is_shown_completely(text))
        .map(str::to_owned)
        .collect()
}

/// Returns the texts of the list that is the member `member` of an object.
fn texts<'v>(object: Option<&'v Value>, member: &str) -> impl Iterator<Item = &'v str> {
    let list = object.and_then(|object| object[member].as_array());
    list.into_iter().flatten().filter_map(Value::as_str)
}

/// Returns whether a browser's list of suggestions shows all characters of a text, in order.
fn is_shown_completely(text: &str) -> bool {
    visible(text) == text && !has_right_to_left(text)
}

fn visible_text(form: Option<&Value>, member: &str) -> Option<String> {
    form.and_then(|form| form[member].as_str()).map(visible)
}

fn schema_fields(view: &View<'_>, schema: &Value, secret: bool, offered: &[String]) -> Markup {
    let Some(mut fields) = schema::fields(schema) else {
        let field = InputField::new(view, FormName::Answer, "result");
        return field.text_area(view.words.response_json, 6, true);
    };
    let order = names_in_agent_order(view);
    fields.sort_by_key(|field| order.iter().position(|name| *name == field.name));
    html! {
        @for field in &fields {
            @let name = format!("field.{}", field.name);
            @let offered = if field.name == "answer" { offered } else { &[] };
            (InputField::new(view, FormName::Answer, name).schema_field(field, secret, offered))
        }
    }
}

/// Returns the names of the fields of the form that the agent wrote, in the agent's order; empty if
/// the agent wrote no form.
fn names_in_agent_order(view: &View<'_>) -> Vec<String> {
    let call = view.request.tool_calls.first();
    let response = view.request.kind.properties().response;
    call.filter(|_| response == ResponseKind::AgentForm)
        .map(|call| member_names_at(&call.arguments_text, &["form", "properties"]))
        .unwrap_or_default()
}

pub(super) fn confirmation_fields(view: &View<'_>) -> Markup {
    let words = view.words;
    html! {
        p { (words.shown_to_model) }
        div.decide {
            (InputField::new(view, FormName::Answer, "comment").text_area(view.texts.comment, 1, false))
            div.bar {
                button type="submit" name="confirmed" value="true" { (words.confirm_yes) }
                button.no type="submit" name="confirmed" value="false" { (words.confirm_no) }
            }
        }
        (then_select(view, FormName::Answer))
    }
}

/// Renders the fields of the operator's form for credentials, with the names of the tools that
/// receive the credentials.
pub(super) fn credential_fields(view: &View<'_>) -> Markup {
    let words = view.words;
    let form = view.request.form.as_ref();
    let receivers: Vec<String> = texts(form, "x-receivers").map(visible).collect();
    html! {
        @if let Some(title) = visible_text(form, "title") { p { strong { (title) } } }
        @if let Some(description) = visible_text(form, "description") { p { (description) } }
        @if receivers.is_empty() {
            p { (words.credentials_none) }
        } @else {
            p { (words.credentials_about) }
            ul { @for receiver in &receivers { li { code { (receiver) } } } }
        }
        p { (retention_text(view)) }
        @if let Some(form) = form { (schema_fields(view, form, true, &[])) }
        button type="submit" { (words.credentials_send) }
    }
}

fn retention_text(view: &View<'_>) -> String {
    let form = view.request.form.as_ref();
    let Some(seconds) = form.and_then(|form| form["x-expires-in"].as_u64()) else {
        return view.words.credentials_later.to_owned();
    };
    let time = duration_text(Duration::from_secs(seconds), view.words);
    fill(view.words.credentials_kept, &[("time", &time)])
}

/// Renders the fields for the result of an external tool: the fields of the result's schema, or a
/// field for the whole result if the schema has no fields.
pub(super) fn external_result_fields(view: &View<'_>) -> Markup {
    let words = view.words;
    let form = view.request.form.as_ref();
    html! {
        @if let Some(title) = visible_text(form, "title") { p { strong { (title) } } }
        @if let Some(description) = visible_text(form, "description") { p { (description) } }
        @match form.filter(|form| schema::fields(form).is_some()) {
            Some(form) => (schema_fields(view, form, false, &[])),
            None => {
                @if let Some(form) = form { (expected_members(view, form)) }
                (result_fields(view, FormName::Answer, "", 6, result_type(form)))
            }
        }
        button type="submit" { (words.external_send) }
    }
}

/// Renders the members that a schema declares, and the schema itself, for a person who writes a
/// result as JSON.
fn expected_members(view: &View<'_>, schema: &Value) -> Markup {
    let (words, texts) = (view.words, view.texts);
    let properties = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let is_required =
        |name: &str| required.is_some_and(|all| all.iter().any(|member| member == name));
    html! {
        @if let Some(properties) = properties {
            p { (texts.expected_members) (words.colon) }
            ul {
                @for (name, property) in properties {
                    li {
                        code { (visible(name)) }
                        @if let Some(title) = visible_text(Some(property), "title") { " " (title) }
                        @if let Some(description) = visible_text(Some(property), "description") { " " span.soft { (description) } }
                        @if !is_required(name) { " " span.soft { "(" (words.optional) ")" } }
                    }
                }
            }
        }
        details.raw {
            summary { (texts.whole_schema) }
            pre.exact dir="ltr" { (visible_lines(&format!("{schema:#}"))) }
        }
    }
}

/// Returns the preselected `result_type` for a result with the schema `form`: `json` if the schema
/// names a type other than `string`, otherwise `text`.
fn result_type(form: Option<&Value>) -> &'static str {
    let word = form.and_then(|form| form.get("type"));
    if word.is_some_and(|word| word != "string") {
        "json"
    } else {
        "text"
    }
}

pub(super) fn reconcile_fields(view: &View<'_>) -> Markup {
    html! {
        (result_fields(view, FormName::Answer, "", 6, "text"))
        button type="submit" { (view.words.reconcile_send) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::form::to_json;
    use super::super::tests::page_in;
    use crate::http::openapi::sample;
    use crate::http::pages::language::Language;
    use crate::task::request::RequestKind;

    #[test]
    fn question_of_a_server_that_asks_for_consent_alone_is_answered_by_a_button() {
        let mut row = sample::of_kind(RequestKind::Elicitation);
        row.spec.form = Some(
            json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false}),
        );
        for (language, text) in [
            (Language::English, "Yes, confirmed"),
            (Language::Chinese, "是，确认"),
        ] {
            let page = page_in(language, &row, &sample::caller());
            let button = format!(
                "<input type=\"hidden\" name=\"result\" value=\"{{}}\"><button type=\"submit\">{text}</button>"
            );
            assert!(page.contains(&button), "{page}");
            assert_eq!(page.matches(" name=\"result\"").count(), 1, "{page}");
        }
        let fields = [("action", "respond"), ("result", "{}")];
        let fields = fields.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(
            to_json(&row, &BTreeMap::from(fields)).unwrap(),
            r#"{"action":"respond","response":{}}"#
        );
    }
}
