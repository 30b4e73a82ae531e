//! Turns a submitted form into the JSON body that a program would send for the same answer. The
//! service parses this body like any other, so a form cannot store an answer that the API would
//! refuse. A filled-in field that does not belong to the chosen answer is an error, so that no
//! input is lost silently.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::change::{self, ChangeField};
use super::inputs::call_part;
use super::schema::{self, FieldValue, SchemaField};
use crate::engine::{DetailCode, FieldError};
use crate::http::pages::layout::visible;
use crate::http::server::fields::{Errors, pointer, variant};
use crate::http::server::json;
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::request::CallSpec;
use crate::task::request_kind::ResponseKind;

/// Builds the JSON body of `POST /resume/{request_id}` from the submitted fields.
///
/// # Errors
/// Fails if a field cannot be part of an answer. Each such field gets an error with the JSON
/// pointer that the field would have in the body.
pub(crate) fn to_json(
    row: &RequestRow,
    fields: &BTreeMap<String, String>,
) -> Result<String, Vec<FieldError>> {
    let mut form = FormReader {
        fields: fields.clone(),
        errors: Errors::default(),
    };
    let mut body = JsonObject::default();
    if fields.keys().any(|name| name.starts_with("call.")) {
        form.put_call_decisions(row, &mut body);
    } else {
        form.put_request_decision(row, &mut body);
    }
    // An empty digest also becomes part of the body. The service then refuses the answer, because
    // no request has an empty digest.
    if let Some(digest) = form.fields.remove("digest") {
        body.put("digest", Value::from(digest).to_string());
    }
    for name in form.fields.keys() {
        form.errors
            .add(&unknown_field_pointer(name), DetailCode::UnknownMember);
    }
    if form.errors.0.is_empty() {
        Ok(body.text())
    } else {
        Err(form.errors.0)
    }
}

/// Removes the field `reject.then`, which has the consequence that the page announces. If the form
/// rejects and its field `then` is absent or empty, this consequence becomes the field `then`. If
/// the form approves, the field has no meaning: both buttons submit it. `path_action` is the action
/// in the path of the POST, if any.
pub(crate) fn apply_announced_then(
    fields: &mut BTreeMap<String, String>,
    path_action: Option<Action>,
) {
    let Some(then) = fields.remove("reject.then") else {
        return;
    };
    let action_in_form = || fields.get("action").and_then(|word| variant(word));
    if path_action.or_else(action_in_form) == Some(Action::Reject) {
        let chosen = fields.entry("then".to_owned()).or_default();
        if chosen.is_empty() {
            *chosen = then;
        }
    }
}

/// Returns the JSON pointer for the error about an unknown field. The pointer is empty if the name
/// is long or looks like JSON. Such a name may be a JSON body that a client has sent by mistake as
/// a form, and the error must not repeat a secret in this body.
fn unknown_field_pointer(name: &str) -> String {
    let is_name =
        name.len() <= 64 && !name.contains(|c: char| c.is_whitespace() || matches!(c, '{' | '"'));
    if is_name {
        pointer("", name)
    } else {
        String::new()
    }
}

/// Returns the initial text of the field in which a person edits a call's arguments. Hidden
/// characters become equivalent JSON escapes. Line ends become LF, as in a submitted form (see
/// `form_fields`). So a text that the person did not edit comes back equal to this text.
#[must_use]
pub(crate) fn editable_text(arguments_text: &str) -> String {
    let text = arguments_text.replace("\r\n", "\n").replace('\r', "\n");
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let is_visible = c == '\n' || c == '\t' || (c.is_ascii() && !c.is_ascii_control()) || {
            let text = c.to_string();
            visible(&text) == text
        };
        if is_visible {
            shown.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        }
    }
    shown
}

/// Returns the JSON Schema of the default form, which has the text field `answer`. The page shows
/// the default form for a question without a form of its own.
#[must_use]
pub(crate) fn default_form() -> Value {
    json!({"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]})
}

/// A JSON object under construction: names, and values as JSON text.
#[derive(Default)]
struct JsonObject(Vec<(String, String)>);

impl JsonObject {
    fn put(&mut self, name: &str, text: String) {
        self.0.push((name.to_owned(), text));
    }

    fn text(&self) -> String {
        let members = self.0.iter();
        let members = members.map(|(name, value)| format!("{}:{value}", json!(name)));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }
}

struct FormReader {
    fields: BTreeMap<String, String>,
    errors: Errors,
}

impl FormReader {
    /// Removes a field and returns its text; `None` if the field is absent or empty.
    fn take(&mut self, name: &str) -> Option<String> {
        self.fields.remove(name).filter(|text| !text.is_empty())
    }

    fn has_value(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|text| !text.is_empty())
    }

    /// Moves the text of a field to the string member `member` of `into`. Does nothing if the field
    /// is absent or empty.
    fn put_text(&mut self, field: &str, member: &str, into: &mut JsonObject) {
        if let Some(text) = self.take(field) {
            into.put(member, Value::from(text).to_string());
        }
    }

    /// Returns submitted JSON without the white space around it. If the JSON is not valid, reports
    /// a mistake at the pointer `at` and returns `None`.
    fn checked_json(&mut self, submitted: &str, at: &str) -> Option<String> {
        match schema::json_text(submitted) {
            Ok(text) => Some(text.to_owned()),
            Err(expected) => {
                self.errors.add(at, expected);
                None
            }
        }
    }

    /// Writes one answer for the whole request. The field `action` of the form becomes the member
    /// `action` of the body. If the path of the POST names the action, the form has no such field,
    /// and the body has no such member.
    fn put_request_decision(&mut self, row: &RequestRow, body: &mut JsonObject) {
        let mut action = self.take("action");
        let answers_yes_or_no =
            row.spec.kind.is_yes_or_no() && action.as_deref() == Some(Action::Respond.as_str());
        if answers_yes_or_no && self.has_value("then") {
            // A "no" (`confirmed=false`) with a `then` becomes a rejection, because only a
            // rejection takes `then`.
            let confirmed = self.fields.get("confirmed");
            if confirmed.is_some_and(|text| text == "false") {
                self.fields.remove("confirmed");
                if let Some(comment) = self.take("comment") {
                    self.fields.insert("reason".to_owned(), comment);
                }
                action = Some(Action::Reject.as_str().to_owned());
            } else {
                self.take("then");
                self.errors.add("/then", DetailCode::ThenUnchosen);
            }
        }
        if let Some(action) = &action {
            body.put("action", Value::from(action.as_str()).to_string());
        }
        if action.as_deref() == Some(Action::Respond.as_str()) {
            match row.spec.kind.properties().response {
                ResponseKind::YesOrNo => self.put_confirmation(body),
                ResponseKind::AgentForm | ResponseKind::ServerForm | ResponseKind::SecretForm => {
                    let schema = row.spec.form.clone().unwrap_or_else(default_form);
                    self.put_form_members("response", &schema, body);
                }
                ResponseKind::FormResult => match &row.spec.form {
                    Some(schema) if schema::fields(schema).is_some() => {
                        self.put_form_members("result", schema, body);
                    }
                    Some(_) | None => self.put_result("", "/result", body),
                },
                ResponseKind::Result | ResponseKind::PerCall => {
                    self.put_result("", "/result", body);
                }
            }
        }
        self.put_text("then", "then", body);
        self.put_text("reason", "reason", body);
        self.put_remember(body);
    }

    /// If the field `remember` was submitted, writes the member `remember`, which asks for a
    /// standing decision. Otherwise drops the fields for the scope and the time.
    fn put_remember(&mut self, body: &mut JsonObject) {
        let is_requested = self.take("remember").is_some();
        let (scope, time) = (self.take("remember.for"), self.take("remember.expires_in"));
        if is_requested {
            let remember = json!({"for": scope, "expires_in": time});
            body.put("remember", remember.to_string());
        }
    }

    fn put_confirmation(&mut self, body: &mut JsonObject) {
        let mut response = JsonObject::default();
        match self.take("confirmed").as_deref() {
            Some(confirmed @ ("true" | "false")) => response.put("confirmed", confirmed.to_owned()),
            Some(_) | None => self.errors.add("/response/confirmed", DetailCode::Boolean),
        }
        self.put_text("comment", "comment", &mut response);
        body.put("response", response.text());
    }

    /// Writes the submitted answer as the member `member` of `body`. If `schema` can be shown as
    /// fields, the form has a field for each member of the answer. Otherwise the form has a single
    /// field with the whole answer as JSON.
    fn put_form_members(&mut self, member: &str, schema: &Value, body: &mut JsonObject) {
        let Some(fields) = schema::fields(schema) else {
            let submitted = self.take("result").unwrap_or_default();
            if let Some(text) = self.checked_json(&submitted, &pointer("", member)) {
                body.put(member, text);
            }
            return;
        };
        let mut filled = JsonObject::default();
        for field in fields {
            match self.member_json(&field) {
                Ok(Some(text)) => filled.put(&field.name, text),
                Ok(None) => {}
                Err(expected) => self
                    .errors
                    .add(&pointer(&pointer("", member), &field.name), expected),
            }
        }
        body.put(member, filled.text());
    }

    /// Returns the JSON of one member of an answer; `None` for an optional member without a value.
    /// The form has one input for the member. If the member is a list of choices, the form has one
    /// input for each choice.
    fn member_json(&mut self, field: &SchemaField) -> Result<Option<String>, DetailCode> {
        let FieldValue::MultipleChoice(all) = &field.value else {
            let submitted = self.take(&format!("field.{}", field.name));
            return field.json(&submitted.unwrap_or_default());
        };
        let chosen = (0..all.len()).filter_map(|index| self.take(&field.choice_name(index)));
        let chosen: Vec<String> = chosen.collect();
        field.list_json(&chosen)
    }

    /// Writes a result as text, or as JSON if the field `result_type` is `json`. The field names
    /// begin with `prefix`.
    fn put_result(&mut self, prefix: &str, at: &str, into: &mut JsonObject) {
        let kind = self.take(&format!("{prefix}result_type"));
        let Some(submitted) = self.take(&format!("{prefix}result")) else {
            self.errors.add(at, DetailCode::ValueRequired);
            return;
        };
        match kind.as_deref() {
            None | Some("text") => into.put("result", Value::from(submitted).to_string()),
            Some("json") => {
                if let Some(text) = self.checked_json(&submitted, at) {
                    into.put("result", text);
                }
            }
            Some(_) => self
                .errors
                .add(&format!("{at}_type"), DetailCode::ResultType),
        }
    }

    /// Writes the member `decisions`: one answer for each call that has a chosen action.
    fn put_call_decisions(&mut self, row: &RequestRow, body: &mut JsonObject) {
        let ids = self.fields.keys().filter_map(|name| call_id(name));
        let ids: BTreeSet<String> = ids.map(str::to_owned).collect();
        let then = self.take("then");
        self.apply_rest_action();
        let (mut decisions, mut has_rejection, mut unknown) =
            (JsonObject::default(), false, BTreeSet::new());
        for id in ids {
            let at = pointer("/decisions", &id);
            let mut calls = row.spec.own_calls();
            let Some(call) = calls.find(|call| call.tool_call_id.to_string() == id) else {
                self.errors.add(&at, DetailCode::NoSuchCall);
                unknown.insert(id);
                continue;
            };
            if let Some((action, mut decision)) = self.call_decision(call, &id, &at) {
                if let (Action::Reject, Some(then)) = (action, &then) {
                    decision.put("then", Value::from(then.as_str()).to_string());
                }
                has_rejection |= action == Action::Reject;
                decisions.put(&id, decision.text());
            }
        }
        self.fields
            .retain(|name, _| call_id(name).is_none_or(|id| !unknown.contains(id)));
        if then.is_some() && !has_rejection {
            self.errors.add("/then", DetailCode::ThenUnchosen);
        }
        if decisions.0.is_empty() && self.errors.0.is_empty() {
            self.errors.add("/decisions", DetailCode::AnswerRequired);
        }
        body.put("decisions", decisions.text());
    }

    /// If the person used the button that approves the rest, chooses `approve` for each call
    /// without a choice.
    fn apply_rest_action(&mut self) {
        let Some(rest) = self.take("rest") else {
            return;
        };
        if rest != Action::Approve.as_str() {
            self.errors.add("/rest", DetailCode::RestNotApproved);
            return;
        }
        for (name, text) in &mut self.fields {
            if text.is_empty() && call_part(name).is_some_and(|(_, part)| part == "action") {
                text.push_str(&rest);
            }
        }
    }

    /// Returns the arguments for the action `edit`, from the fields for the members or from the
    /// JSON. If the arguments have mistakes, reports the mistakes and returns `None`. For any other
    /// action (`is_edit` is false), returns `None`, and reports a mistake if the person changed the
    /// arguments.
    fn edited_arguments(
        &mut self,
        call: &CallSpec,
        prefix: &str,
        is_edit: bool,
        at: &str,
    ) -> Option<String> {
        // An emptied field counts as an edit, but `take` would treat it as absent.
        let json = self.fields.remove(&format!("{prefix}arguments"));
        let fields = change_fields(call);
        let mut submitted = BTreeMap::new();
        for ChangeField { field, .. } in &fields {
            if let Some(text) = self.fields.remove(&format!("{prefix}field.{}", field.name)) {
                submitted.insert(field.name.clone(), text);
            }
        }
        let initial_text = editable_text(&call.arguments_text);
        let changed_as_json = json.as_ref().is_some_and(|text| *text != initial_text);
        let changed_in_fields = change::is_changed(&fields, &submitted);
        match (is_edit, changed_as_json, changed_in_fields) {
            (false, false, false) => None,
            (false, ..) => {
                self.errors.add(at, DetailCode::ArgumentsUnchosen);
                None
            }
            (true, true, true) => {
                self.errors.add(at, DetailCode::ArgumentsChangedTwice);
                None
            }
            (true, false, true) => match change::arguments(&fields, &submitted) {
                Ok(text) => Some(text),
                Err(mistakes) => {
                    for (name, expected) in mistakes {
                        self.errors.add(&pointer(at, &name), expected);
                    }
                    None
                }
            },
            (true, _, false) => {
                let unchanged = Some(initial_text).filter(|_| !submitted.is_empty());
                self.checked_json(&json.or(unchanged).unwrap_or_default(), at)
            }
        }
    }

    /// Returns the chosen action for one call, and the members of the call's decision; `None` if no
    /// known action is chosen.
    fn call_decision(
        &mut self,
        call: &CallSpec,
        id: &str,
        at: &str,
    ) -> Option<(Action, JsonObject)> {
        let prefix = format!("call.{id}.");
        let action_name = self.take(&format!("{prefix}action"));
        let action: Option<Action> = action_name.as_deref().and_then(variant);
        let action = action.filter(|action| !matches!(action, Action::Retry | Action::Mixed));
        if action_name.is_some() && action.is_none() {
            self.errors
                .add(&pointer(at, "action"), DetailCode::CallAction);
        }
        let mut decision = JsonObject::default();
        if let Some(action) = action {
            decision.put("action", Value::from(action.as_str()).to_string());
        }
        let is_edit = action == Some(Action::Edit);
        let place = pointer(at, "arguments");
        if let Some(text) = self.edited_arguments(call, &prefix, is_edit, &place) {
            decision.put("arguments", text);
        }
        if action == Some(Action::Respond) {
            self.put_result(&prefix, &pointer(at, "result"), &mut decision);
        } else {
            self.take(&format!("{prefix}result_type"));
            if self.take(&format!("{prefix}result")).is_some() {
                self.errors
                    .add(&pointer(at, "result"), DetailCode::ResultUnchosen);
            }
        }
        if action_name.is_none() && self.take(&format!("{prefix}reason")).is_some() {
            self.errors
                .add(&pointer(at, "reason"), DetailCode::ReasonUnchosen);
        }
        self.put_text(&format!("{prefix}reason"), "reason", &mut decision);
        action.map(|action| (action, decision))
    }
}

/// Returns the fields in which a person can edit a call's arguments; empty if a person can edit the
/// arguments only as JSON.
fn change_fields(call: &CallSpec) -> Vec<ChangeField> {
    let is_json = json::parse_stored(call.arguments_text.as_bytes()).is_ok();
    let fields = || change::fields(&call.parameters, &call.arguments_text);
    is_json.then(fields).flatten().unwrap_or_default()
}

/// Returns whether a person edited a call's arguments in the fields of the form, not as JSON.
#[must_use]
pub(super) fn is_changed_in_fields(
    row: &RequestRow,
    id: &str,
    submitted: &BTreeMap<String, String>,
) -> bool {
    let prefix = format!("call.{id}.field.");
    let fields = submitted.iter();
    let changed: BTreeMap<String, String> = fields
        .filter_map(|(name, text)| Some((name.strip_prefix(&prefix)?.to_owned(), text.clone())))
        .collect();
    let mut own = row.spec.own_calls();
    own.find(|call| call.tool_call_id.to_string() == id)
        .is_some_and(|call| change::is_changed(&change_fields(call), &changed))
}

fn call_id(name: &str) -> Option<&str> {
    call_part(name).map(|(id, _)| id)
}

#[cfg(test)]
mod tests;
