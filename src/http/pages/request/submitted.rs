//! A form that was submitted with mistakes. The page shows the submitted values again, with each
//! mistake next to its field. Submitted credentials are not kept.

use std::collections::BTreeMap;

use super::form::{default_form, is_changed_in_fields};
use super::inputs::call_part;
use super::schema;
use crate::engine::{Detail, FieldError};
use crate::http::server::fields::pointer;
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::request::RequestKind;
use crate::task::request_kind::ResponseKind;
use crate::task::text::pointer_steps;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormName {
    /// Approves or rejects all open calls, on the request's own page.
    Decide,
    /// Approves all open calls, or answers with yes, on a page with one button.
    Approve,
    /// Rejects all open calls or the question, with a choice of the consequence.
    Reject,
    /// Decides several calls, with a separate choice for each call.
    Calls,
    /// Edits the arguments of the only open call.
    Edit,
    /// Gives the result of the only open call.
    Supply,
    /// Answers a question.
    Answer,
    /// Retries a call whose outcome is unknown.
    Retry,
}

impl FormName {
    #[must_use]
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Decide => "decide",
            Self::Approve => "approve",
            Self::Reject => "reject",
            Self::Calls => "calls",
            Self::Edit => "edit",
            Self::Supply => "supply",
            Self::Answer => "answer",
            Self::Retry => "retry",
        }
    }

    /// Returns the form that submitted `fields`. `path_action` is the action in the path of the
    /// POST, if any. `single_call_forms` tells which forms the page had: the forms for a single
    /// call such as `Edit` (`true`), or the form `Calls` for several open calls (`false`).
    fn from_fields(
        kind: RequestKind,
        path_action: Option<Action>,
        fields: &BTreeMap<String, String>,
        single_call_forms: bool,
    ) -> Self {
        // Only the fields `action` and `call.{id}.action` hold the reader's action. The field for a
        // member `action` of the agent's form or of a call's arguments does not match: its name is
        // `field.action` or `call.{id}.field.action`.
        let is_action_field = |name: &str| {
            name == "action" || call_part(name).is_some_and(|(_, part)| part == "action")
        };
        let has_action = |action: Action| {
            let mut fields = fields.iter();
            fields.any(|(name, text)| is_action_field(name) && text == action.as_str())
        };
        let decides_calls = kind.properties().decides_calls;
        match path_action {
            Some(Action::Approve) if decides_calls => Self::Decide,
            Some(Action::Reject) if decides_calls && !fields.contains_key("then") => Self::Decide,
            Some(Action::Approve) => Self::Approve,
            Some(Action::Reject) => Self::Reject,
            _ if fields.keys().any(|name| name.starts_with("call.")) => match single_call_forms {
                true if has_action(Action::Respond) => Self::Supply,
                true if has_action(Action::Reject) && fields.contains_key("then") => Self::Reject,
                true if has_action(Action::Approve) || has_action(Action::Reject) => Self::Decide,
                true => Self::Edit,
                false => Self::Calls,
            },
            _ if has_action(Action::Reject) => Self::Reject,
            _ if has_action(Action::Retry) => Self::Retry,
            _ => Self::Answer,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldMistake {
    /// The name of the form's field next to which the page shows the mistake; `None` for a mistake
    /// without a field.
    pub field: Option<String>,
    /// A JSON pointer to the mistake. If the mistake has a field, the pointer is relative to the
    /// field's value. Otherwise it is relative to the JSON body that was made from the form.
    pub pointer: String,
    /// The message to the person, often about the value that the field expects.
    pub detail: Detail,
}

#[derive(Clone, Debug)]
pub(crate) struct SubmittedForm {
    pub form: FormName,
    pub mistakes: Vec<FieldMistake>,
    fields: BTreeMap<String, String>,
}

impl SubmittedForm {
    /// Creates the form from the posted `fields`. `path_action` is the action in the path of the
    /// POST, if any. `single_call_forms` is as for `FormName::from_fields`.
    #[must_use]
    pub(crate) fn new(
        row: &RequestRow,
        path_action: Option<Action>,
        mut fields: BTreeMap<String, String>,
        errors: &[FieldError],
        single_call_forms: bool,
    ) -> Self {
        let form = FormName::from_fields(row.spec.kind, path_action, &fields, single_call_forms);
        let mistakes = errors
            .iter()
            .map(|error| field_mistake(row, form, &fields, error))
            .collect();
        if row.spec.kind.takes_secrets() {
            fields.retain(|name, _| matches!(name.as_str(), "reason" | "then"));
        }
        Self {
            form,
            mistakes,
            fields,
        }
    }

    /// Returns the submitted text of the field `name` if `form` is the form that was submitted.
    /// Returns `None` for any other form, and if the field was not submitted.
    #[must_use]
    pub(crate) fn text(&self, form: FormName, name: &str) -> Option<&str> {
        self.fields
            .get(name)
            .filter(|_| form == self.form)
            .map(String::as_str)
    }
}

/// Converts an error to a mistake in the form. The error is about the JSON body that was made from
/// the form, so the error's JSON pointer determines the form's field.
fn field_mistake(
    row: &RequestRow,
    form: FormName,
    fields: &BTreeMap<String, String>,
    error: &FieldError,
) -> FieldMistake {
    let kind = row.spec.kind;
    let parts = pointer_steps(&error.pointer);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (field, rest): (Option<String>, &[&str]) = match parts.as_slice() {
        ["remember"] => (Some("remember".to_owned()), &[]),
        ["remember", part] => (Some(format!("remember.{part}")), &[]),
        ["decisions", _, "then", rest @ ..] | ["then", rest @ ..] => {
            (Some("then".to_owned()), rest)
        }
        ["decisions", call, "arguments", name, rest @ ..]
            if fields.contains_key(&format!("call.{call}.field.{name}"))
                && is_changed_in_fields(row, call, fields) =>
        {
            (Some(format!("call.{call}.field.{name}")), rest)
        }
        ["decisions", call, part, rest @ ..] => (Some(format!("call.{call}.{part}")), rest),
        ["decisions"] => (None, &[]),
        ["decisions", call] => (Some(format!("call.{call}.action")), &[]),
        ["response", name, rest @ ..] if kind.is_yes_or_no() => (Some((*name).to_owned()), rest),
        ["response", rest @ ..] => {
            form_field(row.spec.form.as_ref().unwrap_or(&default_form()), rest)
        }
        ["result", rest @ ..] => match &row.spec.form {
            Some(schema) if kind.properties().response == ResponseKind::FormResult => {
                form_field(schema, rest)
            }
            Some(_) | None => (Some("result".to_owned()), rest),
        },
        // `FormReader::put_request_decision` turns a "no" with a consequence (`then`) into a
        // rejection. The `reason` of this rejection is the text of the field `comment`.
        ["reason", rest @ ..] if kind.is_yes_or_no() && form == FormName::Answer => {
            (Some("comment".to_owned()), rest)
        }
        ["reason", rest @ ..] => (Some("reason".to_owned()), rest),
        rest => (None, rest),
    };
    FieldMistake {
        field,
        pointer: rest.iter().map(|part| pointer("", part)).collect(),
        detail: error.detail.clone(),
    }
}

fn form_field<'r, 'p>(
    schema: &serde_json::Value,
    rest: &'r [&'p str],
) -> (Option<String>, &'r [&'p str]) {
    match (schema::fields(schema), rest) {
        (None, rest) => (Some("result".to_owned()), rest),
        (Some(fields), [name, rest @ ..]) if fields.iter().any(|field| field.name == *name) => {
            (Some(format!("field.{name}")), rest)
        }
        (Some(_), rest) => (None, rest),
    }
}
