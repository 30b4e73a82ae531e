//! Turns a page's form into the JSON body that any other client would send: one pure function. The
//! result is parsed like every JSON body, so a page can send no answer that the API would refuse. A
//! filled-in field that the chosen answer does not take is an error, so no input is lost silently.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::schema;
use crate::engine::FieldError;
use crate::http::pages::language::Language;
use crate::http::pages::layout::visible;
use crate::http::pages::translations::Translations;
use crate::http::server::fields::{Errors, pointer};
use crate::http::server::json::{self, Unread};
use crate::store::RequestRow;
use crate::task::decision::Action;
use crate::task::request::{CallSpec, RequestKind};
use crate::task::request_kind::ResponseKind;

/// The body (contract, section 4) that the submitted fields stand for.
///
/// # Errors
/// Every field that cannot be part of an answer, each with the place it would have in the body.
pub(crate) fn to_json(
    row: &RequestRow,
    fields: &BTreeMap<String, String>,
) -> Result<String, Vec<FieldError>> {
    let mut form = Form {
        fields: fields.clone(),
        errors: Errors::default(),
    };
    let mut body = Object::default();
    if fields.keys().any(|name| name.starts_with("call.")) {
        form.each_call(row, &mut body);
    } else {
        form.whole(row, &mut body);
    }
    form.text("digest", "digest", &mut body);
    for name in form.fields.keys() {
        form.errors.add(&place_of(name), words().not_known);
    }
    if form.errors.0.is_empty() {
        Ok(body.text())
    } else {
        Err(form.errors.0)
    }
}

/// The pointer of an unknown field. A text that is no plausible name is not repeated: it may be
/// JSON with a secret, sent as a form.
fn place_of(name: &str) -> String {
    let is_name =
        name.len() <= 64 && !name.contains(|c: char| c.is_whitespace() || matches!(c, '{' | '"'));
    if is_name {
        pointer("", name)
    } else {
        String::new()
    }
}

/// The arguments as the text of an edit field: hidden characters as JSON escapes (which mean the
/// same), line ends as a browser sends them.
#[must_use]
pub(crate) fn editable(arguments_text: &str) -> String {
    let text = arguments_text.replace("\r\n", "\n").replace('\r', "\n");
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let seen = c == '\n' || c == '\t' || (c.is_ascii() && !c.is_ascii_control()) || {
            let one = c.to_string();
            visible(&one) == one
        };
        if seen {
            shown.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        }
    }
    shown
}

/// The form for a question that has none of its own.
#[must_use]
pub(crate) fn default_form() -> Value {
    json!({"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]})
}

fn words() -> &'static Translations {
    Translations::of(Language::English)
}

/// A JSON object under construction; the values are JSON texts.
#[derive(Default)]
struct Object(Vec<(String, String)>);

impl Object {
    fn put(&mut self, name: &str, text: String) {
        self.0.push((name.to_owned(), text));
    }

    fn text(&self) -> String {
        let members: Vec<String> = self
            .0
            .iter()
            .map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())))
            .collect();
        format!("{{{}}}", members.join(","))
    }
}

struct Form {
    fields: BTreeMap<String, String>,
    errors: Errors,
}

impl Form {
    /// Removes a field; an empty one counts as absent.
    fn take(&mut self, name: &str) -> Option<String> {
        self.fields.remove(name).filter(|text| !text.is_empty())
    }

    fn says(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|text| !text.is_empty())
    }

    /// Writes a field as a text member.
    fn text(&mut self, field: &str, member: &str, into: &mut Object) {
        if let Some(text) = self.take(field) {
            into.put(member, Value::from(text).to_string());
        }
    }

    /// Submitted JSON, verbatim. It must stay readable inside a body, where it is nested deeper.
    fn json(&mut self, typed: &str, at: &str) -> Option<String> {
        let typed = typed.trim_matches([' ', '\t', '\n', '\r']);
        let inside = format!("[[[[{typed}]]]]");
        let bad = |text: &str| matches!(json::parse(text.as_bytes()), Err(Unread::Bad(_)));
        if bad(&inside) || bad(typed) {
            self.errors.add(at, words().not_json);
            return None;
        }
        Some(typed.to_owned())
    }

    /// Writes one answer for the whole request, without an action where the path names it.
    fn whole(&mut self, row: &RequestRow, body: &mut Object) {
        let mut action = self.take("action");
        let confirms = row.asked.kind == RequestKind::Confirmation
            && action.as_deref() == Some(Action::Respond.as_str());
        // A refusal that chooses what follows is sent as a rejection: only a rejection takes
        // `then`.
        if confirms
            && self.says("then")
            && self
                .fields
                .get("confirmed")
                .is_some_and(|said| said == "false")
        {
            self.fields.remove("confirmed");
            if let Some(comment) = self.take("comment") {
                self.fields.insert("reason".to_owned(), comment);
            }
            action = Some(Action::Reject.as_str().to_owned());
        } else if confirms && self.says("then") {
            self.take("then");
            self.errors.add("/then", words().then_unchosen);
        }
        if let Some(action) = &action {
            body.put("action", Value::from(action.as_str()).to_string());
        }
        if action.as_deref() == Some(Action::Respond.as_str()) {
            match row.asked.kind.facts().response {
                ResponseKind::Form if row.asked.kind == RequestKind::Confirmation => {
                    self.confirmed(body);
                }
                ResponseKind::Form => {
                    let schema = row.asked.form.clone().unwrap_or_else(default_form);
                    self.filled_in("response", &schema, body);
                }
                ResponseKind::FormResult => match &row.asked.form {
                    Some(schema) if schema::fields(schema).is_some() => {
                        self.filled_in("result", schema, body);
                    }
                    Some(_) | None => self.result("", "/result", body),
                },
                ResponseKind::Result | ResponseKind::PerCall => self.result("", "/result", body),
            }
        }
        self.text("then", "then", body);
        self.text("reason", "reason", body);
    }

    fn confirmed(&mut self, body: &mut Object) {
        let mut response = Object::default();
        match self.take("confirmed").as_deref() {
            Some(said @ ("true" | "false")) => response.put("confirmed", said.to_owned()),
            Some(_) | None => self
                .errors
                .add("/response/confirmed", words().not_a_boolean),
        }
        self.text("comment", "comment", &mut response);
        body.put("response", response.text());
    }

    /// Writes the members of an answer, each from its own field, or all from one field of JSON.
    fn filled_in(&mut self, member: &str, schema: &Value, body: &mut Object) {
        let Some(fields) = schema::fields(schema) else {
            let typed = self.take("result").unwrap_or_default();
            if let Some(text) = self.json(&typed, &pointer("", member)) {
                body.put(member, text);
            }
            return;
        };
        let mut filled = Object::default();
        for field in fields {
            let typed = self
                .take(&format!("field.{}", field.name))
                .unwrap_or_default();
            match field.json(&typed) {
                Ok(Some(text)) => filled.put(&field.name, text),
                Ok(None) => {}
                Err(expected) => self
                    .errors
                    .add(&pointer(&pointer("", member), &field.name), expected),
            }
        }
        body.put(member, filled.text());
    }

    /// Writes a result: text, unless the form says that it is JSON.
    fn result(&mut self, prefix: &str, at: &str, into: &mut Object) {
        let kind = self.take(&format!("{prefix}result_type"));
        let Some(typed) = self.take(&format!("{prefix}result")) else {
            self.errors.add(at, words().needed);
            return;
        };
        match kind.as_deref() {
            None | Some("text") => into.put("result", Value::from(typed).to_string()),
            Some("json") => {
                if let Some(text) = self.json(&typed, at) {
                    into.put("result", text);
                }
            }
            Some(_) => self.errors.add(&format!("{at}_type"), words().not_a_type),
        }
    }

    /// Writes one answer for each call that has a chosen action.
    fn each_call(&mut self, row: &RequestRow, body: &mut Object) {
        let ids: BTreeSet<String> = self
            .fields
            .keys()
            .filter_map(|name| call_of(name))
            .map(str::to_owned)
            .collect();
        let then = self.take("then");
        let (mut decisions, mut rejected, mut unknown) =
            (Object::default(), false, BTreeSet::new());
        for id in ids {
            let at = pointer("/decisions", &id);
            let Some(call) = row
                .asked
                .own_calls()
                .find(|call| call.tool_call_id.to_string() == id)
            else {
                self.errors.add(&at, words().no_such_call);
                unknown.insert(id);
                continue;
            };
            if let Some((action, mut decision)) = self.one_call(call, &id, &at) {
                if let (Action::Reject, Some(then)) = (action, &then) {
                    decision.put("then", Value::from(then.as_str()).to_string());
                }
                rejected |= action == Action::Reject;
                decisions.put(&id, decision.text());
            }
        }
        self.fields
            .retain(|name, _| call_of(name).is_none_or(|id| !unknown.contains(id)));
        if then.is_some() && !rejected {
            self.errors.add("/then", words().then_unchosen);
        }
        if decisions.0.is_empty() && self.errors.0.is_empty() {
            self.errors.add("/decisions", words().choose_one);
        }
        body.put("decisions", decisions.text());
    }

    /// The action chosen for one call and its members; `None` where none was chosen.
    fn one_call(&mut self, call: &CallSpec, id: &str, at: &str) -> Option<(Action, Object)> {
        let prefix = format!("call.{id}.");
        let word = self.take(&format!("{prefix}action"));
        let known = [
            Action::Approve,
            Action::Reject,
            Action::Edit,
            Action::Respond,
        ];
        let action = known
            .into_iter()
            .find(|action| word.as_deref() == Some(action.as_str()));
        if word.is_some() && action.is_none() {
            self.errors
                .add(&pointer(at, "action"), words().no_such_action);
        }
        let mut decision = Object::default();
        if let Some(action) = action {
            decision.put("action", Value::from(action.as_str()).to_string());
        }
        // Removed from `fields`, not taken: an emptied field is a change, too.
        let edited = self.fields.remove(&format!("{prefix}arguments"));
        if action == Some(Action::Edit) {
            if let Some(text) = self.json(&edited.unwrap_or_default(), &pointer(at, "arguments")) {
                decision.put("arguments", text);
            }
        } else if edited.is_some_and(|text| text != editable(&call.arguments_text)) {
            self.errors
                .add(&pointer(at, "arguments"), words().changed_unchosen);
        }
        if action == Some(Action::Respond) {
            self.result(&prefix, &pointer(at, "result"), &mut decision);
        } else {
            self.take(&format!("{prefix}result_type"));
            if self.take(&format!("{prefix}result")).is_some() {
                self.errors
                    .add(&pointer(at, "result"), words().result_unchosen);
            }
        }
        if word.is_none() && self.take(&format!("{prefix}reason")).is_some() {
            self.errors
                .add(&pointer(at, "reason"), words().reason_unchosen);
        }
        self.text(&format!("{prefix}reason"), "reason", &mut decision);
        action.map(|action| (action, decision))
    }
}

/// The id of the call in a field's name.
fn call_of(name: &str) -> Option<&str> {
    name.strip_prefix("call.")?
        .rsplit_once('.')
        .map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;

    fn read(row: &RequestRow, fields: &[(&str, &str)]) -> Result<String, Vec<(String, String)>> {
        let fields = fields
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        to_json(row, &fields).map_err(|errors| {
            errors
                .into_iter()
                .map(|error| (error.pointer, error.detail))
                .collect()
        })
    }

    fn places(row: &RequestRow, fields: &[(&str, &str)]) -> Vec<String> {
        read(row, fields)
            .unwrap_err()
            .into_iter()
            .map(|(place, _)| place)
            .collect()
    }

    fn named(call: &CallSpec, part: &str) -> String {
        format!("call.{}.{part}", call.tool_call_id)
    }

    #[test]
    fn whole_answer_contains_its_filled_in_fields() {
        let row = sample::request();
        let digest = row.asked.digest.as_str();
        assert_eq!(
            read(&row, &[("digest", digest), ("reason", ""), ("then", "")]),
            Ok(format!("{{\"digest\":\"{digest}\"}}"))
        );
        assert_eq!(
            read(
                &row,
                &[
                    ("action", "reject"),
                    ("reason", "a\n\"b\""),
                    ("then", "continue")
                ]
            )
            .unwrap(),
            r#"{"action":"reject","then":"continue","reason":"a\n\"b\""}"#
        );
        assert_eq!(
            read(&row, &[("action", "nonsense")]).unwrap(),
            r#"{"action":"nonsense"}"#,
            "not judged here"
        );
        assert_eq!(
            places(
                &row,
                &[("action", "approve"), ("arguments", "{}"), ("x/y", "")]
            ),
            ["/arguments", "/x~1y"]
        );
        assert_eq!(
            places(&row, &[("action", "approve"), ("confirmed", "true")]),
            ["/confirmed"]
        );
        assert_eq!(
            places(&row, &[(r#"{"response":{"token":"hunter2"}}"#, "")]),
            [""],
            "JSON that was sent as a form"
        );
    }

    #[test]
    fn only_chosen_calls_are_answered_with_their_text_unchanged() {
        let row = sample::several(4);
        let calls = &row.asked.pending_tool_calls;
        let name = |index: usize, part: &str| named(&calls[index], part);
        let (a0, a1, a2, a3) = (
            name(0, "action"),
            name(1, "action"),
            name(2, "action"),
            name(3, "action"),
        );
        let (r1, e0, e2) = (
            name(1, "reason"),
            name(0, "arguments"),
            name(2, "arguments"),
        );
        let body = read(
            &row,
            &[
                (&a0, "approve"),
                (&e0, &calls[0].arguments_text),
                (&a1, "reject"),
                (&r1, "no"),
                (&a2, "edit"),
                (&e2, " {\"amount\": 20.10, \"order\":\n17}\n"),
                (&a3, ""),
                ("then", "continue"),
                ("digest", "d"),
            ],
        );
        let [i0, i1, i2] = [0, 1, 2].map(|index: usize| calls[index].tool_call_id.to_string());
        assert_eq!(
            body.unwrap(),
            format!(
                "{{\"decisions\":{{\"{i0}\":{{\"action\":\"approve\"}},\
                 \"{i1}\":{{\"action\":\"reject\",\"reason\":\"no\",\"then\":\"continue\"}},\
                 \"{i2}\":{{\"action\":\"edit\",\"arguments\":{{\"amount\": 20.10, \"order\":\n17}}}}}},\"digest\":\"d\"}}"
            )
        );
    }

    #[test]
    fn typed_text_that_the_answer_does_not_take_is_reported() {
        let row = sample::several(2);
        let call = &row.asked.pending_tool_calls[0];
        let id = &call.tool_call_id.to_string();
        let name = |part: &str| named(call, part);
        let (action, arguments, result, reason) = (
            name("action"),
            name("arguments"),
            name("result"),
            name("reason"),
        );
        let at = |part: &str| format!("/decisions/{id}{part}");
        for (fields, expected) in [
            (
                vec![(&action, "approve"), (&arguments, "{\"amount\":1}")],
                at("/arguments"),
            ),
            (
                vec![(&action, "approve"), (&arguments, "")],
                at("/arguments"),
            ),
            (vec![(&action, ""), (&arguments, "{}")], at("/arguments")),
            (vec![(&action, "approve"), (&result, "done")], at("/result")),
            (vec![(&action, ""), (&reason, "because")], at("/reason")),
            (vec![(&action, "approve!")], at("/action")),
            (vec![(&action, "retry")], at("/action")),
            (vec![(&action, "edit")], at("/arguments")),
            (
                vec![(&action, "edit"), (&arguments, "{\"a\":1,\"a\":2}")],
                at("/arguments"),
            ),
            (
                vec![(&action, "edit"), (&arguments, "{}]]]],[[[[{}")],
                at("/arguments"),
            ),
            (
                vec![
                    (&action, "edit"),
                    (&arguments, "{}},\"x\":{\"action\":\"approve\""),
                ],
                at("/arguments"),
            ),
            (vec![(&action, "respond")], at("/result")),
            (vec![(&action, "")], "/decisions".to_owned()),
        ] {
            let fields: Vec<(&str, &str)> = fields
                .iter()
                .map(|(name, text)| (name.as_str(), *text))
                .collect();
            assert_eq!(places(&row, &fields), [expected], "{fields:?}");
        }
        assert_eq!(
            places(&row, &[(&action, "approve"), ("then", "cancel")]),
            ["/then"]
        );
        assert_eq!(
            places(&row, &[(&action, "approve"), ("action", "approve")]),
            ["/action"]
        );
        assert_eq!(
            places(&row, &[(&action, "approve"), (&name("then"), "cancel")]),
            [format!("/{}", name("then"))]
        );
        let other = "call.00000000-0000-0000-0000-000000000001.action";
        assert_eq!(
            places(&row, &[(other, "approve")]),
            ["/decisions/00000000-0000-0000-0000-000000000001"]
        );
        assert_eq!(
            places(&row, &[("call.", "approve"), (&action, "approve")]),
            ["/call."]
        );
        let mut context = row.clone();
        context.asked.pending_tool_calls[0].needs_decision = false;
        assert_eq!(places(&context, &[(&action, "approve")]), [at("")]);
    }

    #[test]
    fn result_is_text_unless_declared_as_json() {
        let row = sample::several(2);
        let call = &row.asked.pending_tool_calls[0];
        let (action, result, kind) = (
            named(call, "action"),
            named(call, "result"),
            named(call, "result_type"),
        );
        let one = |text: &str, typed: &str| {
            read(
                &row,
                &[(&action, "respond"), (&result, text), (&kind, typed)],
            )
        };
        assert!(
            one("{\"a\": 1.0}", "text")
                .unwrap()
                .contains(r#""result":"{\"a\": 1.0}""#)
        );
        assert!(
            one("{\"a\": 1.0}", "")
                .unwrap()
                .contains(r#""result":"{\"a\""#)
        );
        assert!(
            one("{\"a\": 1.0}", "json")
                .unwrap()
                .contains(r#""result":{"a": 1.0}"#)
        );
        assert_eq!(
            one("{a}", "json").unwrap_err()[0].1,
            "JSON that can be read in one way only"
        );
        assert!(one("x", "yaml").unwrap_err()[0].0.ends_with("/result_type"));
    }

    #[test]
    fn answer_has_the_members_of_its_form() {
        let respond = |kind, fields: &[(&str, &str)]| {
            read(
                &sample::of_kind(kind),
                &[&[("action", "respond")], fields].concat(),
            )
        };
        let body = respond(RequestKind::Guidance, &[("field.answer", "17\n")]).unwrap();
        assert_eq!(body, r#"{"action":"respond","response":{"answer":"17\n"}}"#);
        let missing = respond(RequestKind::Guidance, &[("field.answer", "")]).unwrap_err();
        assert_eq!(
            missing,
            [("/response/answer".to_owned(), "this is needed".to_owned())]
        );
        let body = respond(
            RequestKind::Confirmation,
            &[("confirmed", "false"), ("comment", "no")],
        )
        .unwrap();
        assert_eq!(
            body,
            r#"{"action":"respond","response":{"confirmed":false,"comment":"no"}}"#
        );
        assert_eq!(
            respond(RequestKind::Confirmation, &[]).unwrap_err()[0].0,
            "/response/confirmed"
        );
        let no = [
            ("confirmed", "false"),
            ("comment", "not so"),
            ("then", "cancel"),
        ];
        let body = respond(RequestKind::Confirmation, &no).unwrap();
        assert_eq!(
            body,
            r#"{"action":"reject","then":"cancel","reason":"not so"}"#
        );
        let plain = [("confirmed", "false"), ("comment", ""), ("then", "")];
        let body = respond(RequestKind::Confirmation, &plain).unwrap();
        assert_eq!(
            body,
            r#"{"action":"respond","response":{"confirmed":false}}"#
        );
        for said in ["true", ""] {
            let yes = respond(
                RequestKind::Confirmation,
                &[("confirmed", said), ("then", "cancel")],
            )
            .unwrap_err();
            assert_eq!(
                yes[0],
                ("/then".to_owned(), "`then` only beside `reject`".to_owned())
            );
        }
        let body = respond(
            RequestKind::Credentials,
            &[("field.email", "a@b.c"), ("field.token", "t")],
        )
        .unwrap();
        assert_eq!(
            body,
            r#"{"action":"respond","response":{"email":"a@b.c","token":"t"}}"#
        );
        let unknown = respond(
            RequestKind::Credentials,
            &[("field.email", "a"), ("field.token", "t"), ("field.x", "1")],
        );
        assert_eq!(unknown.unwrap_err()[0].0, "/field.x");
        let body = respond(
            RequestKind::ExternalResult,
            &[("field.orders", "3"), ("field.since", "")],
        )
        .unwrap();
        assert_eq!(body, r#"{"action":"respond","result":{"orders":3}}"#);
        let body = respond(
            RequestKind::Reconcile,
            &[("result", "paid"), ("result_type", "text")],
        )
        .unwrap();
        assert_eq!(body, r#"{"action":"respond","result":"paid"}"#);
        assert_eq!(
            respond(RequestKind::Reconcile, &[]).unwrap_err()[0].0,
            "/result"
        );
        let body = read(
            &sample::of_kind(RequestKind::Reconcile),
            &[("action", "retry"), ("reason", "r")],
        )
        .unwrap();
        assert_eq!(body, r#"{"action":"retry","reason":"r"}"#);
    }

    #[test]
    fn form_without_plain_fields_is_answered_as_json() {
        let mut row = sample::of_kind(RequestKind::Guidance);
        row.asked.form = Some(json!({"type": "object", "properties": {"a": {"type": "array"}}}));
        let one = |text: &str| read(&row, &[("action", "respond"), ("result", text)]);
        assert_eq!(
            one("{\"a\": [1.50]}").unwrap(),
            r#"{"action":"respond","response":{"a": [1.50]}}"#
        );
        assert_eq!(one("{\"a\": [1.50]").unwrap_err()[0].0, "/response");
        let mut row = sample::of_kind(RequestKind::ExternalResult);
        row.asked.form = None;
        let one = |kind: &str| {
            read(
                &row,
                &[
                    ("action", "respond"),
                    ("result", "[1]"),
                    ("result_type", kind),
                ],
            )
            .unwrap()
        };
        assert_eq!(one("json"), r#"{"action":"respond","result":[1]}"#);
        assert_eq!(one("text"), r#"{"action":"respond","result":"[1]"}"#);
    }

    #[test]
    fn editable_text_hides_nothing_and_means_the_same() {
        let text = "{\"a\":\"x\u{202e}\u{200b}\u{e0041}é漢\",\r\n\t\"b\": 1}";
        let shown = editable(text);
        assert_eq!(
            shown,
            "{\"a\":\"x\\u202e\\u200b\\udb40\\udc41é漢\",\n\t\"b\": 1}"
        );
        assert_eq!(json::parse(shown.as_bytes()), json::parse(text.as_bytes()));
        assert_eq!(editable(&shown), shown);
    }
}
