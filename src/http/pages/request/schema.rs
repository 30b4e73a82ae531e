//! Turns a JSON Schema into the fields of a form, and each submitted text into JSON. A schema that
//! does not describe an object has no fields: a person types the whole value as JSON. For a member
//! that is neither a plain value nor a list of fixed texts, [`fields_or_json`] returns a field of
//! JSON, and [`fields`] returns no fields at all. This module does not check whether an answer fits
//! the schema.

use serde_json::{Map, Value};

use super::question::value_text;
use crate::engine::DetailCode;
use crate::http::server::json::{self, JsonError};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SchemaField {
    /// The name of the member in the answer.
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    /// Whether an answer must have the member.
    pub required: bool,
    pub value: FieldValue,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FieldValue {
    /// A text. The values are the format (if known) as a `type` of an HTML input, and the maximum
    /// length in characters.
    Text(Option<&'static str>, Option<u64>),
    /// A number. The values are: whether the number must be an integer, the minimum, the maximum.
    Number(bool, Option<String>, Option<String>),
    Boolean,
    /// One of several values. Each choice is a pair: the text that the form shows, and the value.
    SingleChoice(Vec<(String, Value)>),
    /// A list of texts. The value holds all texts that a person may choose.
    MultipleChoice(Vec<String>),
    /// Any value, typed as JSON.
    Json,
}

/// The keywords of JSON Schema that cannot be shown as form fields. For a schema with such a
/// keyword, a person types JSON.
const UNSUPPORTED_KEYWORDS: [&str; 8] = [
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "patternProperties",
    "dependentSchemas",
    "propertyNames",
];

/// Returns the fields of a schema. The schema must describe an object, and each member must be a
/// plain value or a list of fixed texts. Returns `None` for any other schema, and for a schema with
/// one of the [`UNSUPPORTED_KEYWORDS`].
#[must_use]
pub(crate) fn fields(schema: &Value) -> Option<Vec<SchemaField>> {
    let fields = fields_or_json(schema)?;
    let mut values = fields.iter().map(|field| &field.value);
    (!values.any(|value| *value == FieldValue::Json)).then_some(fields)
}

/// Like [`fields`], but a member that is neither a plain value nor a list of fixed texts has the
/// value [`FieldValue::Json`].
#[must_use]
pub(super) fn fields_or_json(schema: &Value) -> Option<Vec<SchemaField>> {
    let schema = schema.as_object()?;
    let other_members = schema.get("additionalProperties");
    let mut unsupported = UNSUPPORTED_KEYWORDS.iter();
    if schema.get("type")? != "object"
        || other_members.is_some_and(Value::is_object)
        || unsupported.any(|word| schema.contains_key(*word))
    {
        return None;
    }
    let properties = schema.get("properties")?.as_object()?;
    if properties.is_empty() {
        return None;
    }
    let required: Vec<&str> = match schema.get("required") {
        Some(names) => names.as_array()?.iter().filter_map(Value::as_str).collect(),
        None => Vec::new(),
    };
    if required.iter().any(|name| !properties.contains_key(*name)) {
        return None;
    }
    let fields = properties.iter().map(|(name, property)| {
        let text = |member: &str| property[member].as_str().map(str::to_owned);
        let value = property.as_object().and_then(field_value);
        SchemaField {
            name: name.clone(),
            title: text("title"),
            description: text("description"),
            required: required.contains(&name.as_str()),
            value: value.unwrap_or(FieldValue::Json),
        }
    });
    Some(fields.collect())
}

fn field_value(property: &Map<String, Value>) -> Option<FieldValue> {
    if let Some(value) = property.get("const") {
        return single_choice(std::slice::from_ref(value));
    }
    if let Some(values) = property.get("enum") {
        return single_choice(values.as_array()?);
    }
    let word = property.get("type")?;
    let word = match word.as_array() {
        // A form field converts the submitted text to a single type, so a list of types must
        // consist of one type and `null`.
        Some(words) => words
            .iter()
            .find(|word| *word != "null")
            .filter(|_| words.len() == 2 && words.iter().any(|word| word == "null"))?,
        None => word,
    };
    let number = |name: &str| {
        let value = property.get(name).filter(|value| value.is_number());
        value.map(ToString::to_string)
    };
    match word.as_str()? {
        "string" => Some(FieldValue::Text(
            input_type(property),
            property.get("maxLength").and_then(Value::as_u64),
        )),
        word @ ("number" | "integer") => {
            let is_integer = word == "integer";
            let is_whole =
                |text: &String| text.parse::<f64>().is_ok_and(|bound| bound.fract() == 0.0);
            // A browser counts the steps of an integer from the minimum. From a fractional minimum,
            // the steps reach no integer.
            let minimum = number("minimum").filter(|text| !is_integer || is_whole(text));
            Some(FieldValue::Number(is_integer, minimum, number("maximum")))
        }
        "boolean" => Some(FieldValue::Boolean),
        "array" => multiple_choice(property.get("items")?.as_object()?),
        _ => None,
    }
}

/// Returns the field value for a list whose items have the schema `items`. This schema must be an
/// `enum` of non-empty texts, and may have only `type` as a further keyword. Otherwise returns
/// `None`.
fn multiple_choice(items: &Map<String, Value>) -> Option<FieldValue> {
    let texts = items.get("enum")?.as_array()?.iter().map(Value::as_str);
    let texts: Vec<&str> = texts.collect::<Option<_>>()?;
    let known = |keyword: &String| matches!(keyword.as_str(), "type" | "enum");
    let fits = !texts.is_empty() && !texts.contains(&"") && items.keys().all(known);
    fits.then(|| FieldValue::MultipleChoice(texts.into_iter().map(str::to_owned).collect()))
}

/// Returns the field value for a choice among `values`. Either all values must be non-empty texts,
/// or all must be numbers and booleans. Otherwise returns `None`. Texts beside numbers could be
/// ambiguous, because the text `1` and the number 1 look the same.
fn single_choice(values: &[Value]) -> Option<FieldValue> {
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let is_plain = |value: &Value| value.is_number() || value.is_boolean();
    let fits = values.iter().all(is_text) || values.iter().all(is_plain);
    if values.is_empty() || !fits {
        return None;
    }
    let choices = values.iter();
    let choices = choices.map(|value| (value_text(value), value.clone()));
    Some(FieldValue::SingleChoice(choices.collect()))
}

/// Returns the property's `format` as a `type` of an HTML input; `None` without a known format.
fn input_type(property: &Map<String, Value>) -> Option<&'static str> {
    match property.get("format").and_then(Value::as_str)? {
        "email" => Some("email"),
        "uri" | "url" => Some("url"),
        "date" => Some("date"),
        "password" => Some("password"),
        _ => None,
    }
}

impl SchemaField {
    /// Returns the name of the HTML input for the choice at `index`, in a field with several
    /// choices.
    pub(super) fn choice_name(&self, index: usize) -> String {
        format!("choice.{index}.{}", self.name)
    }

    /// Returns the chosen texts as a JSON list; `None` if nothing is chosen and the field is
    /// optional. Does not check the number of texts.
    ///
    /// # Errors
    /// Fails if a chosen text is not one of the field's choices.
    pub(super) fn list_json(&self, chosen: &[String]) -> Result<Option<String>, DetailCode> {
        let known = |text: &String| matches!(&self.value, FieldValue::MultipleChoice(all) if all.contains(text));
        if !chosen.iter().all(known) {
            return Err(DetailCode::OfferedChoice);
        }
        let is_present = self.required || !chosen.is_empty();
        Ok(is_present.then(|| Value::from(chosen).to_string()))
    }

    /// Returns the JSON of a submitted text; `None` for an empty optional field. Numbers keep the
    /// digits that were typed; white space around a number or a date is dropped.
    ///
    /// # Errors
    /// Fails if a required field is empty, or if the text does not fit the field's kind of value.
    /// The error names the expected value.
    pub(super) fn json(&self, submitted: &str) -> Result<Option<String>, DetailCode> {
        if submitted.is_empty() {
            return if self.required {
                Err(DetailCode::ValueRequired)
            } else {
                Ok(None)
            };
        }
        match &self.value {
            FieldValue::Text(format, _) => {
                let is_date = *format == Some("date");
                let text = if is_date { submitted.trim() } else { submitted };
                Ok(Some(Value::from(text).to_string()))
            }
            FieldValue::Number(is_integer, ..) => {
                number_json(submitted.trim(), *is_integer).map(Some)
            }
            FieldValue::Boolean => match submitted {
                "true" | "false" => Ok(Some(submitted.to_owned())),
                _ => Err(DetailCode::Boolean),
            },
            FieldValue::MultipleChoice(_) => Err(DetailCode::OfferedChoice),
            FieldValue::Json => json_text(submitted).map(|text| Some(text.to_owned())),
            FieldValue::SingleChoice(values) => {
                let chosen = values.iter().find(|(text, _)| text == submitted);
                chosen
                    .map(|(_, value)| Some(value.to_string()))
                    .ok_or(DetailCode::OfferedChoice)
            }
        }
    }
}

/// Returns submitted JSON without the white space around it. In the body of an answer, up to four
/// objects and lists enclose the JSON, and the depth of a body is limited. Therefore, the JSON is
/// also checked inside four arrays.
///
/// # Errors
/// Fails if the text is not valid JSON.
pub(super) fn json_text(submitted: &str) -> Result<&str, DetailCode> {
    let text = submitted.trim_matches([' ', '\t', '\n', '\r']);
    let nested = format!("[[[[{text}]]]]");
    let is_invalid =
        |text: &str| matches!(json::parse(text.as_bytes()), Err(JsonError::Invalid(_)));
    if is_invalid(&nested) || is_invalid(text) {
        return Err(DetailCode::Json);
    }
    Ok(text)
}

fn number_json(submitted: &str, is_integer: bool) -> Result<String, DetailCode> {
    if is_integer && submitted.chars().any(|c| !c.is_ascii_digit() && c != '-') {
        return Err(DetailCode::Integer);
    }
    match json::parse(submitted.as_bytes()) {
        Ok(Value::Number(_)) => Ok(submitted.to_owned()),
        Ok(_) | Err(_) => Err(if is_integer {
            DetailCode::Integer
        } else {
            DetailCode::Number
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn object_of_plain_values_has_fields() {
        let schema = json!({"type": "object", "required": ["a"], "additionalProperties": false, "properties": {
            "a": {"type": "string", "title": "Address", "description": "Where", "format": "email", "maxLength": 80},
            "b": {"type": "integer", "minimum": 1}, "c": {"type": ["number", "null"]}, "d": {"type": "boolean"},
            "e": {"enum": ["x", "y"]}, "f": {"enum": [1, 2.5, true]}, "g": {"const": "only"}}});
        let fields = fields(&schema).unwrap();
        assert_eq!(
            fields[0],
            SchemaField {
                name: "a".into(),
                title: Some("Address".into()),
                description: Some("Where".into()),
                required: true,
                value: FieldValue::Text(Some("email"), Some(80)),
            }
        );
        let kinds: Vec<_> = fields[1..]
            .iter()
            .map(|field| field.value.clone())
            .collect();
        let text = |texts: &[(&str, Value)]| {
            FieldValue::SingleChoice(
                texts
                    .iter()
                    .map(|(text, value)| ((*text).to_owned(), value.clone()))
                    .collect(),
            )
        };
        assert_eq!(
            kinds,
            [
                FieldValue::Number(true, Some("1".into()), None),
                FieldValue::Number(false, None, None),
                FieldValue::Boolean,
                text(&[("x", json!("x")), ("y", json!("y"))]),
                text(&[("1", json!(1)), ("2.5", json!(2.5)), ("true", json!(true))]),
                text(&[("only", json!("only"))]),
            ]
        );
    }

    #[test]
    fn minimum_of_an_integer_field_is_left_out_if_it_is_fractional() {
        for (word, minimum, expected) in [
            ("integer", json!(0.5), None),
            ("integer", json!(-3), Some("-3")),
            ("integer", json!(2.0), Some("2.0")),
            ("number", json!(0.5), Some("0.5")),
        ] {
            let property = json!({"type": word, "minimum": minimum, "maximum": 9.5});
            let schema = json!({"type": "object", "properties": {"a": property}});
            let field = fields(&schema).unwrap().remove(0);
            let minimum = expected.map(str::to_owned);
            let number = FieldValue::Number(word == "integer", minimum, Some("9.5".to_owned()));
            assert_eq!(field.value, number, "{property}");
        }
    }

    #[test]
    fn other_schemas_are_typed_as_json() {
        let object = |properties: Value| json!({"type": "object", "properties": properties});
        for schema in [
            json!(true),
            json!({}),
            json!({"type": "string"}),
            json!({"type": "object"}),
            object(json!({})),
            object(json!({"a": {}})),
            object(json!({"a": true})),
            object(json!({"a": {"type": "array"}})),
            object(json!({"a": {"type": "object"}})),
            object(json!({"a": {"type": "array", "items": {"type": "string"}}})),
            object(json!({"a": {"type": "array", "items": {"enum": ["x", 1]}}})),
            object(json!({"a": {"type": "array", "items": {"enum": ["x", ""]}}})),
            object(json!({"a": {"type": ["string", "number", "null"]}})),
            object(json!({"a": {"type": ["string", "integer"]}})),
            object(json!({"a": {"type": ["integer", "string"]}})),
            object(json!({"a": {"type": ["string", "boolean"]}})),
            object(json!({"a": {"enum": ["1", 1]}})),
            object(json!({"a": {"enum": [null]}})),
            object(json!({"a": {"enum": [""]}})),
            object(json!({"a": {"enum": []}})),
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "allOf": []}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
        ] {
            assert_eq!(fields(&schema), None, "{schema}");
        }
    }

    #[test]
    fn typed_text_becomes_json_unchanged() {
        let field = |takes: Value, required| {
            let required = if required { json!(["a"]) } else { json!([]) };
            fields(&json!({"type": "object", "properties": {"a": takes}, "required": required}))
                .unwrap()
                .remove(0)
        };
        let string = field(json!({"type": "string"}), true);
        assert_eq!(
            string.json("a \"b\"\n\u{202e}"),
            Ok(Some("\"a \\\"b\\\"\\n\u{202e}\"".into()))
        );
        assert_eq!(string.json(""), Err(DetailCode::ValueRequired));
        assert_eq!(field(json!({"type": "string"}), false).json(""), Ok(None));
        let number = field(json!({"type": "number"}), false);
        for text in ["20.10", "1E2", "-0.5", "12345678901234567890123"] {
            assert_eq!(number.json(text), Ok(Some(text.into())));
        }
        for text in [
            "1,5", "x", "١", "１", "NaN", "1}", "\"1\"", "01", "true", "1 2",
        ] {
            assert_eq!(number.json(text), Err(DetailCode::Number), "{text}");
        }
        let integer = field(json!({"type": "integer"}), false);
        assert_eq!(
            integer.json(" 9007199254740993 "),
            Ok(Some("9007199254740993".into()))
        );
        for text in ["1.0", "1e3", "--1", "-", "x"] {
            assert_eq!(integer.json(text), Err(DetailCode::Integer), "{text}");
        }
        let boolean = field(json!({"type": "boolean"}), true);
        assert_eq!(
            (boolean.json("true"), boolean.json("on")),
            (Ok(Some("true".into())), Err(DetailCode::Boolean))
        );
        let several = json!({"type": "array", "items": {"type": "string", "enum": ["x", "y\""]}});
        let list = |required, chosen: &[&str]| {
            let chosen: Vec<_> = chosen.iter().map(|text| (*text).to_owned()).collect();
            field(several.clone(), required).list_json(&chosen)
        };
        assert_eq!(list(true, &["x", "y\""]), Ok(Some(r#"["x","y\""]"#.into())));
        assert_eq!(list(true, &[]), Ok(Some("[]".into())));
        assert_eq!(list(false, &[]), Ok(None));
        assert!(list(true, &["z"]).is_err());
        let choice = field(json!({"enum": [1, 2]}), true);
        assert_eq!(choice.json("2"), Ok(Some("2".into())));
        assert!(choice.json("3").is_err());
    }
}
