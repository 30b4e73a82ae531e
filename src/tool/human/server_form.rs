//! The form of a question that an MCP server asks (elicitation). Invariant: the form that a person
//! sees is rebuilt from keywords that every client can render, and asks for no secret.

use serde_json::{Map, Value, json};

use super::form::{FORMATS, SCALAR_AND_LIST_TYPES, names_secret, read_form};

/// The maximum number of fields of a server's form.
const MAX_FIELDS: usize = 32;
/// The JSON Schema keywords that a server's field keeps in the form that a person sees, besides
/// `items` and a `format` from [`FORMATS`].
const KEPT_KEYWORDS: [&str; 13] = [
    "type",
    "title",
    "description",
    "default",
    "enum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
];

/// The reason why a server's form is not shown to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FormError {
    /// The field with this name asks for a secret, which the MCP specification forbids.
    AsksForSecret(String),
    /// The form is not flat, is too large, or has a field that some clients cannot render. The text
    /// describes this mistake.
    NotRenderable(String),
}

/// Checks the `requestedSchema` of an elicitation (MCP 2026-07-28, client features, elicitation),
/// and returns the form that a person sees. This form refuses undeclared members and omits unknown
/// keywords. A server may write the choices of a field as a `oneOf` or `anyOf` with a `const` for
/// each choice. In the returned form, these choices are an `enum`, and their titles are part of the
/// field's description.
///
/// # Errors
/// Fails if the form cannot be shown to a person. The error is the reason.
pub(crate) fn read_server_form(written: &Value) -> Result<Value, FormError> {
    let unfit = |text: &str| FormError::NotRenderable(text.to_owned());
    let fields = match written.get("properties") {
        None => Map::new(),
        Some(Value::Object(fields)) => fields.clone(),
        Some(_) => return Err(unfit("`properties` must be an object")),
    };
    if written.get("type").and_then(Value::as_str) != Some("object") {
        return Err(unfit("must say `type: object`"));
    }
    let mut properties = Map::new();
    for (name, field) in &fields {
        let text = |keyword: &str| field.get(keyword).and_then(Value::as_str);
        let shown_texts = ["title", "description"].map(|keyword| text(keyword).unwrap_or_default());
        if names_secret(name)
            || shown_texts.into_iter().any(names_secret)
            || text("format") == Some("password")
        {
            return Err(FormError::AsksForSecret(name.clone()));
        }
        properties.insert(name.clone(), renderable_field(field));
    }
    let required = written.get("required").cloned().unwrap_or(json!([]));
    if properties.is_empty() && required == json!([]) {
        // A server that asks for consent alone sends a form without fields.
        return Ok(json!({
            "type": "object", "properties": {}, "required": [], "additionalProperties": false,
        }));
    }
    let form = json!({"type": "object", "properties": properties, "required": required});
    read_form(&form, MAX_FIELDS, &SCALAR_AND_LIST_TYPES).map_err(FormError::NotRenderable)
}

fn renderable_field(field: &Value) -> Value {
    let Value::Object(members) = field else {
        return field.clone();
    };
    let kept = members.iter().filter(|(keyword, value)| {
        let format = *keyword == "format"
            && value
                .as_str()
                .is_some_and(|format| FORMATS.contains(&format));
        KEPT_KEYWORDS.contains(&keyword.as_str()) || format
    });
    let mut kept: Map<String, Value> = kept
        .map(|(keyword, value)| (keyword.clone(), value.clone()))
        .collect();
    let (choices, titles) = match members.get("items").and_then(Value::as_object) {
        Some(items) => {
            let (choices, titles) = choices_with_titles(items);
            let kind = items.get("type").cloned().unwrap_or(json!("string"));
            let choices = choices.or_else(|| items.get("enum").cloned());
            kept.insert("items".to_owned(), json!({"type": kind, "enum": choices}));
            (None, titles)
        }
        None => choices_with_titles(members),
    };
    kept.extend(choices.map(|choices| ("enum".to_owned(), choices)));
    if !titles.is_empty() {
        let own = kept.get("description").and_then(Value::as_str);
        let full_description =
            own.map_or_else(|| titles.clone(), |own| format!("{own} ({titles})"));
        kept.insert("description".to_owned(), json!(full_description));
    }
    Value::Object(kept)
}

/// Returns the values of a choice that is written as `oneOf` or `anyOf`, and a text with the titles
/// of the values.
fn choices_with_titles(members: &Map<String, Value>) -> (Option<Value>, String) {
    let choices = members.get("oneOf").or_else(|| members.get("anyOf"));
    let Some(choices) = choices.and_then(Value::as_array) else {
        return (None, String::new());
    };
    let consts = choices.iter().filter_map(|choice| choice.get("const"));
    let titles = choices.iter().filter_map(|choice| {
        let text = |keyword: &str| choice.get(keyword).and_then(Value::as_str);
        Some(format!("{} = {}", text("const")?, text("title")?))
    });
    let titles = titles.collect::<Vec<_>>().join("; ");
    (Some(consts.cloned().collect()), titles)
}

/// Returns the form of a question that sends the person to a web page. The person confirms that
/// they have opened the page.
pub(crate) fn page_visit_form() -> Value {
    json!({
        "type": "object", "properties": {"opened": {"type": "boolean", "const": true}},
        "required": ["opened"], "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::schema::CompiledSchema;

    #[test]
    fn form_of_a_server_keeps_only_keywords_that_every_client_can_draw() {
        let form = json!({"$schema": "x", "type": "object", "properties": {
            "folder": {"type": "string", "title": "Folder", "pattern": "^/", "format": "date-time"},
            "mode": {"type": "string", "oneOf": [{"const": "a", "title": "All"}, {"const": "b", "title": "None"}]},
            "level": {"type": "string", "enum": ["x", "y"], "enumNames": ["X", "Y"]},
            "count": {"type": "integer", "minimum": 1},
            "sure": {"type": "boolean", "default": false},
        }, "required": ["folder"]});
        let read = read_server_form(&form).unwrap();
        let fields = &read["properties"];
        assert_eq!(
            fields["folder"],
            json!({"type": "string", "title": "Folder"})
        );
        assert_eq!(
            fields["mode"],
            json!({"type": "string", "enum": ["a", "b"], "description": "a = All; b = None"})
        );
        assert_eq!(
            fields["level"],
            json!({"type": "string", "enum": ["x", "y"]})
        );
        assert_eq!(read["required"], json!(["folder"]));
        assert_eq!(read["additionalProperties"], json!(false));
    }

    #[test]
    fn choice_of_several_texts_takes_a_list_of_them_without_repetition() {
        let form = json!({"type": "object", "properties": {
            "plain": {"type": "array", "minItems": 1, "maxItems": 2, "default": ["a"],
                "items": {"type": "string", "enum": ["a", "b", "c"], "x": 1}},
            "titled": {"type": "array", "description": "Which?",
                "items": {"anyOf": [{"const": "x", "title": "Ex"}, {"const": "y", "title": "Why"}]}},
        }, "required": ["plain"]});
        let read = read_server_form(&form).unwrap();
        let fields = &read["properties"];
        assert_eq!(
            fields["plain"],
            json!({"type": "array", "minItems": 1, "maxItems": 2, "default": ["a"], "uniqueItems": true,
                "items": {"type": "string", "enum": ["a", "b", "c"]}})
        );
        assert_eq!(
            fields["titled"],
            json!({"type": "array", "description": "Which? (x = Ex; y = Why)", "uniqueItems": true,
                "items": {"type": "string", "enum": ["x", "y"]}})
        );
        let schema = CompiledSchema::closed(&read).unwrap();
        let fits = |answer: Value| schema.check(&answer).is_ok();
        assert!(fits(json!({"plain": ["a", "c"], "titled": []})));
        for unfit in [
            json!(["d"]),
            json!([]),
            json!(["a", "a"]),
            json!(["a", "b", "c"]),
            json!("a"),
            json!([1]),
        ] {
            assert!(!fits(json!({"plain": unfit})), "{unfit}");
        }
    }

    #[test]
    fn form_of_a_server_that_asks_for_a_secret_is_refused_by_name_title_or_format() {
        for field in [
            json!({"password": {"type": "string"}}),
            json!({"a": {"type": "string", "format": "password"}}),
            json!({"a": {"type": "string", "title": "API key"}}),
            json!({"b": {"type": "string"}, "apiToken": {"type": "string"}}),
        ] {
            let form = json!({"type": "object", "properties": field});
            let refused = read_server_form(&form).unwrap_err();
            assert!(matches!(refused, FormError::AsksForSecret(_)), "{form}");
        }
    }

    #[test]
    fn form_of_a_server_that_is_not_flat_or_too_large_is_unfit() {
        let many: Map<String, Value> = (0..=MAX_FIELDS)
            .map(|at| (format!("f{at}"), json!({"type": "string"})))
            .collect();
        for form in [
            json!(null),
            json!({"type": "array"}),
            json!({"type": "object", "properties": []}),
            json!({"type": "object", "properties": {"a": {"type": "object"}}}),
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}),
            json!({"type": "object", "properties": {"a": {"type": "array"}}}),
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer", "enum": [1]}}}}),
            json!({"type": "object", "properties": {"a": {"type": "array", "minItems": 2, "items": {"enum": ["x"]}}}}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}),
            json!({"type": "object", "properties": many}),
        ] {
            let refused = read_server_form(&form).unwrap_err();
            assert!(matches!(refused, FormError::NotRenderable(_)), "{form}");
        }
    }

    #[test]
    fn forms_without_fields_and_of_pages_take_their_answers() {
        let empty = read_server_form(&json!({"type": "object", "properties": {}})).unwrap();
        let fits = |form: &Value, answer: Value| {
            CompiledSchema::closed(form).unwrap().check(&answer).is_ok()
        };
        assert!(fits(&empty, json!({})) && !fits(&empty, json!({"a": 1})));
        assert!(
            fits(&page_visit_form(), json!({"opened": true}))
                && !fits(&page_visit_form(), json!({"opened": false}))
        );
        assert!(!fits(&page_visit_form(), json!({})));
    }
}
