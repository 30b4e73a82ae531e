//! Checks that the page after an invalid submission shows each mistake in the form that was
//! submitted, beside its field.

use std::time::Duration;

use serde_json::json;

use super::tests_forms::again;
use crate::engine::{DetailCode, FieldError};
use crate::http::openapi::sample;
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::grant::{GrantScope, Offer};
use crate::task::request::RequestKind;

fn mistake(pointer: &str) -> Vec<FieldError> {
    vec![FieldError {
        pointer: pointer.to_owned(),
        detail: DetailCode::AtMostBytes(4096).into(),
    }]
}

/// Renders the page after a person has edited an argument of the first call to this text.
fn after_edit(row: &RequestRow, argument: &str, text: &str, errors: Vec<FieldError>) -> String {
    let id = row.spec.pending_tool_calls[0].tool_call_id;
    let (action, field) = (
        format!("call.{id}.action"),
        format!("call.{id}.field.{argument}"),
    );
    let fields = [(action.as_str(), "edit"), (field.as_str(), text)];
    again(row, &sample::approver(), None, &fields, errors)
}

#[test]
fn argument_named_action_does_not_choose_the_form() {
    let mut row = sample::request();
    let call = &mut row.spec.pending_tool_calls[0];
    call.parameters = json!({"type": "object", "properties": {"action": {"type": "string"}}});
    call.arguments_text = r#"{"action":"buy"}"#.into();
    let id = call.tool_call_id;
    let wrong = mistake(&format!("/decisions/{id}/arguments/action"));
    let page = after_edit(&row, "action", "respond", wrong);
    let link = format!("href=\"#edit-call_2e_{id}_2e_field_2e_action\"");
    assert!(
        page.contains(&link) && page.contains("respond</textarea>"),
        "{page}"
    );
}

#[test]
fn mistake_in_a_nested_argument_is_shown_at_its_json_field() {
    let mut row = sample::request();
    let call = &mut row.spec.pending_tool_calls[0];
    call.parameters = json!({"type": "object", "properties": {
        "amount": {"type": "number"}, "lines": {"type": "array", "items": {"type": "object"}}}});
    call.arguments_text = r#"{"lines":[{"n":1}],"amount":120}"#.into();
    let id = call.tool_call_id;
    let wrong = mistake(&format!("/decisions/{id}/arguments/lines/0/n"));
    let page = after_edit(&row, "lines", r#"[{"n":2}]"#, wrong);
    for shown in [
        format!("name=\"call.{id}.field.amount\" type=\"text\""),
        format!("id=\"edit-call_2e_{id}_2e_field_2e_lines-error\""),
        "<code>/0/n</code>".to_owned(),
        "[{&quot;n&quot;:2}]</textarea>".to_owned(),
        "lines</bdi> <span class=\"soft\">(JSON)</span>".to_owned(),
    ] {
        assert!(page.contains(&shown), "{shown}: {page}");
    }
}

/// A browser submits an empty text for a number such as `20,10` and for an incomplete date, so the
/// call would run without the argument.
#[test]
fn number_and_date_of_a_call_are_edited_as_text() {
    let mut row = sample::request();
    let call = &mut row.spec.pending_tool_calls[0];
    call.parameters = json!({"type": "object", "properties": {
        "amount": {"type": "number", "minimum": 0}, "order": {"type": "integer", "minimum": 1},
        "shift": {"type": "integer", "minimum": -1}, "day": {"type": "string", "format": "date"}}});
    call.arguments_text = r#"{"amount":120,"order":17,"day":"2026-01-02"}"#.into();
    let id = call.tool_call_id;
    let page = after_edit(&row, "amount", "20,10", Vec::new());
    for (name, next) in [
        ("amount", "autocomplete"),
        ("order", "inputmode=\"numeric\""),
        ("shift", "autocomplete"),
        ("day", "placeholder=\"YYYY-MM-DD\""),
    ] {
        let shown = format!("name=\"call.{id}.field.{name}\" type=\"text\" {next}");
        assert!(page.contains(&shown), "{name}: {page}");
    }
    for shown in [
        "value=\"20,10\"",
        "a number, with a point before any decimals",
    ] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
}

#[test]
fn mistake_about_a_standing_decision_is_shown_at_its_checkbox() {
    let mut row = sample::request();
    row.spec.pending_tool_calls[0].offer = Some(Box::new(Offer {
        basis: "sha256:00".into(),
        when: None,
        scopes: vec![GrantScope::Task],
        most: Duration::from_hours(1),
        uses: 3,
    }));
    let fields = [("remember", "yes"), ("remember.for", "task")];
    let approve = Some(Action::Approve);
    let page = again(
        &row,
        &sample::approver(),
        approve,
        &fields,
        mistake("/remember"),
    );
    let link = "<a href=\"#decide-remember\">Do not ask again about this</a>";
    assert!(
        page.contains(link) && page.contains("id=\"decide-remember-error\""),
        "{page}"
    );
}

#[test]
fn mistake_on_a_page_with_one_button_is_shown_on_that_page() {
    let row = sample::of_kind(RequestKind::Confirmation);
    for action in [Action::Approve, Action::Reject] {
        let fields = [("reason", "so long")];
        let in_path = Some(action);
        let page = again(
            &row,
            &sample::caller(),
            in_path,
            &fields,
            mistake("/reason"),
        );
        let id = format!("{}-reason", action.as_str());
        assert!(
            page.contains(&format!("href=\"#{id}\""))
                && page.contains(&format!("id=\"{id}-error\""))
                && page.contains("so long</textarea>"),
            "{page}"
        );
    }
}

#[test]
fn mistake_about_a_call_names_its_number_if_another_call_has_the_same_tool() {
    let mut row = sample::several(2);
    let id = row.spec.pending_tool_calls[1].tool_call_id;
    let (action, reason) = (format!("call.{id}.action"), format!("call.{id}.reason"));
    let fields = [(action.as_str(), "reject"), (reason.as_str(), "so long")];
    let wrong = mistake(&format!("/decisions/{id}/reason"));
    let twins = again(&row, &sample::approver(), None, &fields, wrong.clone());
    assert!(
        twins.contains(">Call 2 refund_payment: Comment (optional)</a>"),
        "{twins}"
    );
    row.spec.pending_tool_calls[1].name = "other".into();
    let single = again(&row, &sample::approver(), None, &fields, wrong);
    assert!(
        single.contains(">other: Comment (optional)</a>"),
        "{single}"
    );
}

#[test]
fn mistake_about_the_only_call_left_is_shown_in_the_form_that_named_it() {
    let mut row = sample::several(2);
    let [approved, left] =
        [0, 1].map(|index: usize| row.spec.pending_tool_calls[index].tool_call_id);
    row.spec.terms.approvers.required = 2;
    row.answers = sample::answer("bob", Action::Approve, &[approved], false)
        .into_iter()
        .collect();
    let (action, reason) = (format!("call.{left}.action"), format!("call.{left}.reason"));
    let fields = [
        (action.as_str(), "reject"),
        (reason.as_str(), "so long"),
        ("then", "continue"),
    ];
    for (form, fields) in [("decide", &fields[..2]), ("reject", &fields[..])] {
        let wrong = mistake(&format!("/decisions/{left}/reason"));
        let page = again(&row, &sample::approver(), None, fields, wrong);
        let id = format!("{form}-call_2e_{left}_2e_reason");
        assert!(
            page.contains(&format!("href=\"#{id}\""))
                && page.contains(&format!("id=\"{id}-error\""))
                && page.contains("so long</textarea>"),
            "{page}"
        );
    }
}
