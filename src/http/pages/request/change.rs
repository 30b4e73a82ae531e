//! The fields in which a person edits a call's arguments. [`fields`] builds them from the tool's
//! schema, and [`arguments`] turns the submitted texts into new arguments. A member that the person
//! did not edit keeps the agent's bytes. A member that no plain field can show, such as a list, is
//! edited as JSON in a field of its own.
//!
//! The form also offers all arguments as JSON (`form.rs`). Edits in the fields and in this JSON at
//! the same time are refused.

use std::collections::BTreeMap;

use serde_json::Value;

use super::form::editable_text;
use super::ordered::{JsonNode, MAX_SHORT_BYTES, members};
use super::schema::{self, FieldValue, SchemaField};
use crate::engine::DetailCode;
use crate::http::pages::layout::visible;

/// A field in which a person edits one member of a call's arguments.
#[derive(Clone, Debug)]
pub(super) struct ChangeField {
    pub field: SchemaField,
    pub initial_text: String,
    /// The JSON that the agent wrote; `None` for a member that the agent left out.
    agent_json: Option<String>,
}

/// Returns the fields of a call's arguments: first the members that the agent wrote, in the agent's
/// order, then the members that the agent left out. `None` if a person can edit the arguments only
/// as JSON: the arguments are no object or longer than [`MAX_SHORT_BYTES`], the schema has no
/// fields, or the agent wrote a member that the schema lacks.
#[must_use]
pub(super) fn fields(parameters: &Value, arguments_text: &str) -> Option<Vec<ChangeField>> {
    if arguments_text.len() > MAX_SHORT_BYTES {
        return None;
    }
    let mut declared = schema::fields_or_json(parameters)?;
    for field in &mut declared {
        // Checkboxes would not keep the exact text of a list that the agent wrote.
        if matches!(field.value, FieldValue::MultipleChoice(_)) {
            field.value = FieldValue::Json;
        }
    }
    let mut fields = Vec::new();
    for (name, written) in members(arguments_text)? {
        let at = declared.iter().position(|field| field.name == name)?;
        let mut field = declared.remove(at);
        let plain = plain_text(written.get());
        let plain = plain.filter(|text| can_show(&mut field.value, text));
        let initial_text = plain.unwrap_or_else(|| {
            field.value = FieldValue::Json;
            editable_text(written.get())
        });
        fields.push(ChangeField {
            field,
            initial_text,
            agent_json: Some(written.get().to_owned()),
        });
    }
    fields.extend(declared.into_iter().map(|field| ChangeField {
        field,
        initial_text: String::new(),
        agent_json: None,
    }));
    Some(fields)
}

/// Returns the text that a plain field shows for a JSON value; empty for `null`. `None` for a list
/// or an object.
fn plain_text(json: &str) -> Option<String> {
    match JsonNode::parse(json)? {
        JsonNode::Text(text) => Some(text),
        JsonNode::Literal(literal) if literal == "null" => Some(String::new()),
        JsonNode::Literal(literal) => Some(literal),
        JsonNode::List(_) | JsonNode::Object(_) => None,
    }
}

/// Returns whether an input of this kind shows `text` unchanged. `kind` may have a format of the
/// HTML input, such as `email`. A browser may change or drop a text that does not fit the format,
/// so this function removes the format from `kind` if `text` may not fit.
fn can_show(kind: &mut FieldValue, text: &str) -> bool {
    let has_hidden = text.split('\n').any(|line| visible(line) != line);
    match kind {
        FieldValue::Text(format, ..) => {
            let has_whitespace = text.trim() != text || text.contains(char::is_whitespace);
            let fits = match *format {
                // The input for a date is a text input of one line (`inputs.rs`).
                Some("date") => !text.contains('\n'),
                Some("email" | "url") => !has_whitespace && !text.is_empty(),
                Some(_) | None => false,
            };
            if !fits {
                *format = None;
            }
            !has_hidden
        }
        // A text that is not a number is edited as JSON, so that its type stays.
        FieldValue::Number(..) => {
            let number = serde_json::from_str::<f64>(text);
            text.is_empty() || (text.trim() == text && number.is_ok_and(f64::is_finite))
        }
        FieldValue::Boolean => matches!(text, "true" | "false" | ""),
        FieldValue::MultipleChoice(_) | FieldValue::Json => false,
        FieldValue::SingleChoice(values) => {
            text.is_empty() || values.iter().any(|(choice, _)| choice == text)
        }
    }
}

/// Returns whether any submitted text differs from the initial text of its field. `submitted` maps
/// the names of members to texts.
#[must_use]
pub(super) fn is_changed(fields: &[ChangeField], submitted: &BTreeMap<String, String>) -> bool {
    let mut fields = fields.iter();
    fields.any(|field| field.is_changed(submitted.get(&field.field.name)))
}

/// Builds the arguments as JSON text. `submitted` maps the names of members to the submitted texts.
///
/// # Errors
/// Fails if the edited text of a member does not fit the member's field. The error has the name of
/// each such member, and the expected value.
pub(super) fn arguments(
    fields: &[ChangeField],
    submitted: &BTreeMap<String, String>,
) -> Result<String, Vec<(String, DetailCode)>> {
    let (mut members, mut mistakes) = (Vec::new(), Vec::new());
    for field in fields {
        let name = &field.field.name;
        let text = submitted.get(name);
        let value = if field.is_changed(text) {
            field.field.json(text.map_or("", String::as_str))
        } else {
            Ok(field.agent_json.clone())
        };
        match value {
            Ok(Some(value)) => members.push(format!("{}:{value}", Value::from(name.as_str()))),
            Ok(None) => {}
            Err(expected) => mistakes.push((name.clone(), expected)),
        }
    }
    if mistakes.is_empty() {
        Ok(format!("{{{}}}", members.join(",")))
    } else {
        Err(mistakes)
    }
}

impl ChangeField {
    /// Returns whether the submitted text differs from the initial text. A field that was not
    /// submitted is unchanged.
    fn is_changed(&self, submitted: Option<&String>) -> bool {
        submitted.is_some_and(|submitted| *submitted != self.initial_text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const WRITTEN: &str = r#"{"note": "a\nb", "amount": 1E2, "order": 17, "sure": null}"#;

    fn parameters() -> Value {
        json!({"type": "object", "required": ["order"], "properties": {
            "amount": {"type": "number"}, "note": {"type": "string"}, "order": {"type": "integer"},
            "sure": {"type": ["boolean", "null"]}, "day": {"type": "string", "format": "date"}}})
    }

    fn typed(changes: &[(&str, &str)]) -> BTreeMap<String, String> {
        let shown = fields(&parameters(), WRITTEN).unwrap();
        let mut typed: BTreeMap<String, String> = shown
            .into_iter()
            .map(|field| (field.field.name, field.initial_text))
            .collect();
        for (name, text) in changes {
            typed.insert((*name).to_owned(), (*text).to_owned());
        }
        typed
    }

    #[test]
    fn fields_have_the_agents_order_and_then_the_members_left_out() {
        let names: Vec<String> = fields(&parameters(), WRITTEN)
            .unwrap()
            .into_iter()
            .map(|field| field.field.name)
            .collect();
        assert_eq!(names, ["note", "amount", "order", "sure", "day"]);
    }

    #[test]
    fn member_that_is_not_changed_keeps_its_bytes() {
        let fields = fields(&parameters(), WRITTEN).unwrap();
        let unchanged = typed(&[]);
        assert!(!is_changed(&fields, &unchanged) && !is_changed(&fields, &BTreeMap::new()));
        assert_eq!(
            arguments(&fields, &unchanged).as_deref(),
            Ok(r#"{"note":"a\nb","amount":1E2,"order":17,"sure":null}"#)
        );
        let changed = typed(&[("amount", "20.10"), ("day", "2026-01-02")]);
        assert!(is_changed(&fields, &changed));
        assert_eq!(
            arguments(&fields, &changed).as_deref(),
            Ok(r#"{"note":"a\nb","amount":20.10,"order":17,"sure":null,"day":"2026-01-02"}"#)
        );
        let emptied = typed(&[("note", "")]);
        assert_eq!(
            arguments(&fields, &emptied).as_deref(),
            Ok(r#"{"amount":1E2,"order":17,"sure":null}"#)
        );
    }

    #[test]
    fn typed_date_loses_the_blanks_around_it_whatever_the_agent_wrote() {
        for written in [
            r#"{"order": 17}"#,
            r#"{"order": 17, "day": null}"#,
            r#"{"order": 17, "day": "soon"}"#,
        ] {
            let fields = fields(&parameters(), written).unwrap();
            let submitted = BTreeMap::from([("day".to_owned(), " 2026-01-02 ".to_owned())]);
            assert_eq!(
                arguments(&fields, &submitted).as_deref(),
                Ok(r#"{"order":17,"day":"2026-01-02"}"#),
                "{written}"
            );
        }
    }

    #[test]
    fn text_that_does_not_fit_is_reported_with_its_member() {
        let fields = fields(&parameters(), WRITTEN).unwrap();
        let wrong = arguments(&fields, &typed(&[("order", ""), ("amount", "x")])).unwrap_err();
        assert_eq!(
            wrong,
            [
                ("amount".to_owned(), DetailCode::Number),
                ("order".to_owned(), DetailCode::ValueRequired)
            ]
        );
    }

    #[test]
    fn arguments_that_are_no_object_of_declared_members_get_no_fields() {
        for text in [r#"{"other": 1}"#, r#"["a"]"#, "{"] {
            assert!(fields(&parameters(), text).is_none(), "{text}");
        }
        assert!(fields(&json!({"type": "object"}), "{}").is_none());
    }

    #[test]
    fn member_that_a_plain_field_would_change_is_edited_as_json() {
        let enumerated = json!({"type": "object", "properties": {"how": {"enum": [1, 2]}}});
        let plain = fields(&enumerated, r#"{"how": 1}"#).unwrap();
        assert!(plain[0].field.value != FieldValue::Json && plain[0].initial_text == "1");
        for (schema, name, written, shown) in [
            (&parameters(), "note", r#""a\u202eb""#, r#""a\u202eb""#),
            (&parameters(), "note", "\"a\u{202e}b\"", r#""a\u202eb""#),
            (&parameters(), "note", r#""a\rb""#, r#""a\rb""#),
            (&parameters(), "note", r#"["a"]"#, r#"["a"]"#),
            (&parameters(), "sure", r#""no""#, r#""no""#),
            (&parameters(), "amount", r#""much""#, r#""much""#),
            (&enumerated, "how", "1.0", "1.0"),
        ] {
            let text = format!("{{\"{name}\": {written}}}");
            let fields = fields(schema, &text).unwrap();
            let first = &fields[0];
            assert_eq!(first.field.value, FieldValue::Json, "{text}");
            assert_eq!(first.initial_text, shown, "{text}");
            let shown = BTreeMap::from([(name.to_owned(), shown.to_owned())]);
            assert!(!is_changed(&fields, &shown), "{text}");
        }
    }

    #[test]
    fn member_of_several_types_is_edited_as_json_and_keeps_the_type_of_its_value() {
        let parameters = json!({"type": "object", "properties": {
            "order": {"type": ["string", "integer"]}, "until": {"type": ["integer", "string"]},
            "dry_run": {"type": ["string", "boolean"]}}});
        let written = r#"{"order": 17, "until": "17", "dry_run": true}"#;
        let fields = fields(&parameters, written).unwrap();
        let shown: Vec<&str> = fields
            .iter()
            .map(|field| field.initial_text.as_str())
            .collect();
        assert_eq!(shown, ["17", r#""17""#, "true"]);
        let submitted = [("order", "18"), ("dry_run", "false")];
        let submitted = submitted.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(
            arguments(&fields, &BTreeMap::from(submitted)).as_deref(),
            Ok(r#"{"order":18,"until":"17","dry_run":false}"#)
        );
    }

    #[test]
    fn nested_member_is_edited_as_json_beside_the_fields_of_the_others() {
        let parameters = json!({"type": "object", "required": ["amount", "lines"], "properties": {
            "amount": {"type": "number"}, "lines": {"type": "array", "items": {"type": "object"}},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
            "to": {"$ref": "#/$defs/to"}}});
        let lines = r#"[{"sku": "a\u00e9", "n": 1E2}]"#;
        let to = r#"{"a": [[[[1]]]]}"#;
        let written = format!(r#"{{"lines": {lines}, "amount": 20.10, "to": {to}}}"#);
        let fields = fields(&parameters, &written).unwrap();
        let shown = fields.iter().map(|field| {
            let is_json = field.field.value == FieldValue::Json;
            (
                field.field.name.as_str(),
                is_json,
                field.initial_text.as_str(),
            )
        });
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                ("lines", true, lines),
                ("amount", false, "20.10"),
                ("to", true, to),
                ("tags", true, "")
            ]
        );
        let changed = |name: &str, text: &str| {
            let submitted = BTreeMap::from([(name.to_owned(), text.to_owned())]);
            arguments(&fields, &submitted)
        };
        assert_eq!(
            changed("amount", "5").unwrap(),
            format!(r#"{{"lines":{lines},"amount":5,"to":{to}}}"#)
        );
        assert_eq!(
            changed("lines", " [{\"n\":\n1.0}]\n").unwrap(),
            format!("{{\"lines\":[{{\"n\":\n1.0}}],\"amount\":20.10,\"to\":{to}}}")
        );
        assert_eq!(
            changed("tags", r#"["a"]"#).unwrap(),
            format!(r#"{{"lines":{lines},"amount":20.10,"to":{to},"tags":["a"]}}"#)
        );
        assert_eq!(
            changed("to", "").unwrap(),
            format!(r#"{{"lines":{lines},"amount":20.10}}"#)
        );
        for (text, expected) in [
            ("", DetailCode::ValueRequired),
            (" ", DetailCode::Json),
            ("[1", DetailCode::Json),
            (r#"[],"x":1"#, DetailCode::Json),
            (r#"{"a":1,"a":2}"#, DetailCode::Json),
        ] {
            let mistake = changed("lines", text).unwrap_err();
            assert_eq!(mistake, [("lines".to_owned(), expected)], "{text}");
        }
    }
}
