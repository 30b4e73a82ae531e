//! Makes the `Mcp-Param-…` headers (revision 2026-07-28, transports, "Custom headers"). Each of
//! these headers repeats one argument of a call. The tool's schema marks the arguments to repeat.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderName, HeaderValue};
use serde_json::Value;

/// The keyword of a property's schema that asks for a header with the property's value. The text at
/// the keyword is the part of the header's name after `Mcp-Param-`.
const KEYWORD: &str = "x-mcp-header";

/// Returns the reason why a tool with this schema must not be used; `None` if the headers in the
/// schema are valid. The reason is a phrase that follows the tool's name in a sentence.
pub(super) fn invalid_param_headers(schema: &Value) -> Option<String> {
    let wrong = |why: &str| Some(format!("has an `{KEYWORD}` that {why}"));
    let mut seen = BTreeSet::new();
    let mut valid = 0;
    for (_, name, schema) in annotated(schema) {
        let Some(name) = name.as_str() else {
            return wrong("is not a text");
        };
        let kind = schema.get("type").and_then(Value::as_str);
        if !matches!(kind, Some("string" | "integer" | "boolean")) {
            return wrong("is not at a text, an integer or a boolean");
        }
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            return wrong("is not a name of a header");
        }
        if !seen.insert(name.to_ascii_lowercase()) {
            return wrong("is there twice");
        }
        valid += 1;
    }
    if count_keyword(schema) == valid {
        None
    } else {
        wrong("is at a place that no property leads to")
    }
}

/// Returns the `Mcp-Param-…` headers of a call. An argument that is missing, null, a list or an
/// object gets no header.
pub(super) fn param_headers(schema: &Value, arguments: &Value) -> Vec<(HeaderName, HeaderValue)> {
    let headers = annotated(schema).into_iter().filter_map(|(path, name, _)| {
        let value = path.iter().try_fold(arguments, |at, step| at.get(step))?;
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        let name = format!("mcp-param-{}", name.as_str()?);
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        Some((
            name,
            HeaderValue::from_str(&encode_header_value(&text)).ok()?,
        ))
    });
    headers.collect()
}

/// Encodes a text as a header's value. The text is kept if it is printable ASCII, has no space at
/// its ends, and does not look like encoded text. Any other text is encoded in Base64.
pub(super) fn encode_header_value(text: &str) -> String {
    let visible = text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    let marked = text.starts_with("=?base64?") && text.ends_with("?=");
    if visible && text.trim() == text && !marked {
        return text.to_owned();
    }
    format!("=?base64?{}?=", BASE64_STANDARD.encode(text))
}

/// Finds the properties whose schemas have [`KEYWORD`]. Returns the path of each property, the
/// value of the keyword, and the property's schema.
fn annotated(schema: &Value) -> Vec<(Vec<&str>, &Value, &Value)> {
    let mut found = Vec::new();
    let mut waiting = vec![(Vec::new(), schema)];
    while let Some((path, schema)) = waiting.pop() {
        if let (Some(name), false) = (schema.get(KEYWORD), path.is_empty()) {
            found.push((path.clone(), name, schema));
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, below) in properties.into_iter().flatten() {
            let path = path.iter().copied().chain([name.as_str()]).collect();
            waiting.push((path, below));
        }
    }
    found
}

/// Counts all occurrences of [`KEYWORD`] in a schema. Leaves out the values of `default`,
/// `examples`, `const` and `enum`, because these values are data and not schemas.
fn count_keyword(schema: &Value) -> usize {
    match schema {
        Value::Object(members) => {
            let below = members.iter().filter(|(name, _)| {
                !matches!(name.as_str(), "default" | "examples" | "const" | "enum")
            });
            let inside: usize = below
                .map(|(name, value)| match (name.as_str(), value) {
                    // Each of these five keywords has a map from names to schemas. The author of
                    // the schema chose the names, so a name never counts as a keyword.
                    (
                        "properties" | "patternProperties" | "dependentSchemas" | "$defs"
                        | "definitions",
                        Value::Object(named),
                    ) => named.values().map(count_keyword).sum(),
                    (_, value) => count_keyword(value),
                })
                .sum();
            usize::from(members.contains_key(KEYWORD)) + inside
        }
        Value::Array(elements) => elements.iter().map(count_keyword).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn header_is_valid_at_a_scalar_property_under_a_name_of_its_own() {
        let at = |property: Value| json!({"type": "object", "properties": {"a": property}});
        let scalar = |name: Value| at(json!({"type": "string", "x-mcp-header": name}));
        assert_eq!(invalid_param_headers(&scalar(json!("Region"))), None);
        let nested = at(
            json!({"type": "object", "properties": {"x-mcp-header": {"type": "integer", "x-mcp-header": "N"}}}),
        );
        assert_eq!(invalid_param_headers(&nested), None);
        for wrong in [
            scalar(json!("")),
            scalar(json!("a b")),
            scalar(json!(1)),
            at(json!({"type": "number", "x-mcp-header": "N"})),
            at(json!({"type": ["string", "null"], "x-mcp-header": "N"})),
            at(json!({"type": "array", "items": {"type": "string", "x-mcp-header": "N"}})),
            json!({"type": "object", "x-mcp-header": "N"}),
            json!({"type": "object", "properties": {
                "a": {"type": "string", "x-mcp-header": "N"}, "b": {"type": "string", "x-mcp-header": "n"},
            }}),
        ] {
            assert!(invalid_param_headers(&wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn value_that_no_header_can_hold_is_sent_in_base64() {
        let schema = json!({"type": "object", "properties": {
            "s": {"type": "string", "x-mcp-header": "S"}, "n": {"type": "integer", "x-mcp-header": "N"},
            "gone": {"type": "string", "x-mcp-header": "G"},
        }});
        let headers = param_headers(&schema, &json!({"s": " é", "n": 42}));
        let mut headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        headers.sort_unstable();
        assert_eq!(
            headers,
            [("mcp-param-n", "42"), ("mcp-param-s", "=?base64?IMOp?=")]
        );
        for (text, sent) in [
            ("plain", "plain"),
            ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
            ("", ""),
        ] {
            assert_eq!(encode_header_value(text), sent);
        }
    }
}
