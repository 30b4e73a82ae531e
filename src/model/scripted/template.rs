//! Reads and fills templates: texts with `${captures}` in them, and JSON that is made of such
//! texts. A template may use the named captures of all rules, and the numbered captures of its own
//! rule. Any other `${name}` is a mistake, which reading the script reports. In a call's arguments,
//! only a number is such a mistake. There, any other `${name}` stays as written, because it may be
//! a variable of a shell command. `$${` is a literal `${`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Number, Value};

use super::ordered_value::OrderedValue;

/// Captured texts, by name and by number.
pub(super) type Captures = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScriptTemplate(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Text(String),
    Capture(String),
}

impl ScriptTemplate {
    /// Reads a text that may use the `known` captures. The error is a text for people.
    pub(super) fn read(text: &str, known: &BTreeSet<String>) -> Result<Self, String> {
        Self::parse(text, known, |_| false)
    }

    /// Reads a text of a call's arguments, in which a `${` that begins none of the `known` captures
    /// stays as written, as in a shell command. But a number in braces is a mistake, because it is
    /// almost always a capture that the rule does not have. The error is a text for people.
    fn read_argument(text: &str, known: &BTreeSet<String>) -> Result<Self, String> {
        let is_digits = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
        Self::parse(text, known, |name| !name.is_some_and(is_digits))
    }

    /// Reads a text that may use the `known` captures. `stays` returns whether a `${` that begins
    /// no known capture stays as written; if not, the `${` is a mistake. The argument of `stays` is
    /// the name in the braces; `None` if no `}` follows. The error is a text for people.
    fn parse(
        text: &str,
        known: &BTreeSet<String>,
        stays: impl Fn(Option<&str>) -> bool,
    ) -> Result<Self, String> {
        let mut segments = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            literal.push_str(before);
            rest = after;
            if literal.ends_with('$') {
                literal.push('{');
                continue;
            }
            let named = rest.split_once('}');
            let Some((name, after)) = named.filter(|(name, _)| known.contains(*name)) else {
                let name = named.map(|(name, _)| name);
                if !stays(name) {
                    return Err(match name {
                        Some(name) => format!(
                            "no group captures `{name}` for this rule; a literal `${{` is `$${{`"
                        ),
                        None => "a `${` has no `}`; a literal one is written `$${`".to_owned(),
                    });
                }
                literal.push_str("${");
                continue;
            };
            if !literal.is_empty() {
                segments.push(Segment::Text(std::mem::take(&mut literal)));
            }
            segments.push(Segment::Capture(name.to_owned()));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            segments.push(Segment::Text(literal));
        }
        Ok(Self(segments))
    }

    pub(super) fn text(&self, captures: &Captures) -> String {
        let segments = self.0.iter().map(|segment| match segment {
            Segment::Text(text) => text.as_str(),
            Segment::Capture(name) => captures.get(name).map_or("", String::as_str),
        });
        segments.collect()
    }

    /// Returns the text as JSON. If the template is a single capture of a JSON number, and `schema`
    /// does not ask for a string, the result is that number with the same digits. Any other text
    /// becomes a string.
    fn json(&self, captures: &Captures, schema: Option<&Value>) -> String {
        let text = self.text(captures);
        let is_capture = matches!(self.0.as_slice(), [Segment::Capture(_)]);
        if is_capture && !schema.is_some_and(is_string) && is_number(&text) {
            text
        } else {
            Value::String(text).to_string()
        }
    }
}

/// Whether the `type` of a JSON Schema permits strings and no numbers.
fn is_string(schema: &Value) -> bool {
    let types = match schema.get("type") {
        Some(Value::Array(types)) => types.as_slice(),
        one => one.map_or(&[][..], std::slice::from_ref),
    };
    let permits = |kind: &str| types.iter().any(|found| found == kind);
    permits("string") && !permits("number") && !permits("integer")
}

fn is_number(text: &str) -> bool {
    text.ends_with(|last: char| last.is_ascii_digit())
        && text.starts_with(|first: char| first.is_ascii_digit() || first == '-')
        && serde_json::from_str::<Number>(text).is_ok()
}

/// The arguments of a call. `Text` is one template for the whole text of the arguments; the filled
/// text may be invalid JSON. `Json` is JSON in which each string is a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Arguments {
    Text(ScriptTemplate),
    Json(Json),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    String(ScriptTemplate),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
    Other(Value),
}

impl Arguments {
    /// Reads the member `arguments`. A missing member, or `null`, means an empty object. A string
    /// is a template for the whole text of the arguments. The error is a text for people.
    pub(super) fn read(
        value: Option<&OrderedValue>,
        known: &BTreeSet<String>,
    ) -> Result<Self, String> {
        match value {
            None | Some(OrderedValue::Scalar(Value::Null)) => {
                Ok(Self::Json(Json::Object(Vec::new())))
            }
            Some(OrderedValue::Text(text)) => {
                ScriptTemplate::read_argument(text, known).map(Self::Text)
            }
            Some(value) => Json::read(value, known).map(Self::Json),
        }
    }

    /// Returns the text of the arguments. `schema` is the JSON Schema of the tool's parameters, if
    /// the tool is known.
    pub(super) fn text(&self, captures: &Captures, schema: Option<&Value>) -> String {
        match self {
            Self::Text(template) => template.text(captures),
            Self::Json(json) => {
                let mut text = String::new();
                json.write(captures, schema, &mut text);
                text
            }
        }
    }
}

impl Json {
    fn read(value: &OrderedValue, known: &BTreeSet<String>) -> Result<Self, String> {
        Ok(match value {
            OrderedValue::Text(text) => Self::String(ScriptTemplate::read_argument(text, known)?),
            OrderedValue::List(items) => {
                let items = items.iter().map(|item| Self::read(item, known));
                Self::Array(items.collect::<Result<_, _>>()?)
            }
            OrderedValue::Object(members) => {
                let members = members
                    .iter()
                    .map(|(name, value)| Ok((name.clone(), Self::read(value, known)?)));
                Self::Object(members.collect::<Result<_, String>>()?)
            }
            OrderedValue::Scalar(value) => Self::Other(value.clone()),
        })
    }

    fn write(&self, captures: &Captures, schema: Option<&Value>, out: &mut String) {
        match self {
            Self::String(template) => out.push_str(&template.json(captures, schema)),
            Self::Other(value) => out.push_str(&value.to_string()),
            Self::Array(items) => {
                out.push('[');
                let schema = schema.and_then(|schema| schema.get("items"));
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    item.write(captures, schema, out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (at, (name, value)) in members.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    out.push_str(&Value::from(name.as_str()).to_string());
                    out.push(':');
                    let schema = schema.and_then(|schema| schema.get("properties")?.get(name));
                    value.write(captures, schema, out);
                }
                out.push('}');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value, known: &BTreeSet<String>) -> Arguments {
        let value = serde_json::from_value(value.clone()).unwrap();
        Arguments::read(Some(&value), known).unwrap()
    }

    fn captures() -> (Captures, BTreeSet<String>) {
        let pairs = [
            ("n", "20.50"),
            ("zip", "007"),
            ("word", "a \"b\""),
            ("minus", "-3"),
            ("dot", "5."),
        ];
        let captures: Captures = pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        let known = captures.keys().cloned().collect();
        (captures, known)
    }

    #[test]
    fn captures_are_filled_in_and_a_doubled_dollar_is_literal() {
        let (captures, known) = captures();
        for (text, filled) in [
            ("${n} of ${word}!", "20.50 of a \"b\"!"),
            ("costs $5", "costs $5"),
            ("", ""),
        ] {
            assert_eq!(
                ScriptTemplate::read(text, &known).unwrap().text(&captures),
                filled
            );
        }
        assert_eq!(
            ScriptTemplate::read("$${n}", &known)
                .unwrap()
                .text(&captures),
            "${n}"
        );
        assert!(
            ScriptTemplate::read("${unknown}", &known)
                .unwrap_err()
                .contains("`unknown`")
        );
        assert!(ScriptTemplate::read("${n", &known).is_err());
    }

    #[test]
    fn numeric_capture_is_a_number_only_where_it_stands_alone_and_no_string_is_declared() {
        let (captures, known) = captures();
        let value = json!({"a": "${n}", "b": "${zip}", "c": "x${n}", "d": ["${word}", true, "${minus}"], "e": "${dot}"});
        let arguments = read(&value, &known);
        assert_eq!(
            arguments.text(&captures, None),
            r#"{"a":20.50,"b":"007","c":"x20.50","d":["a \"b\"",true,-3],"e":"5."}"#
        );
        let schema =
            json!({"properties": {"a": {"type": "string"}, "d": {"items": {"type": "string"}}}});
        assert_eq!(
            arguments.text(&captures, Some(&schema)),
            r#"{"a":"20.50","b":"007","c":"x20.50","d":["a \"b\"",true,"-3"],"e":"5."}"#
        );
        let alone = read(&json!({"a": "${n}"}), &known);
        for (types, filled) in [
            (json!(["string", "null"]), r#"{"a":"20.50"}"#),
            (json!(["string", "number"]), r#"{"a":20.50}"#),
            (json!(["integer", "string"]), r#"{"a":20.50}"#),
            (json!([]), r#"{"a":20.50}"#),
        ] {
            let schema = json!({"properties": {"a": {"type": types}}});
            assert_eq!(alone.text(&captures, Some(&schema)), filled, "{schema}");
        }
    }

    #[test]
    fn variable_of_a_command_stays_as_written_in_arguments() {
        let (captures, known) = captures();
        let command = "echo ${SECRET} ${A:-${minus}} $${n} ${";
        let filled = "echo ${SECRET} ${A:--3} ${n} ${";
        assert_eq!(read(&json!(command), &known).text(&captures, None), filled);
        let arguments = read(&json!({"command": [command]}), &known);
        assert_eq!(
            arguments.text(&captures, None),
            json!({"command": [filled]}).to_string()
        );
    }

    #[test]
    fn number_that_the_rule_does_not_capture_is_a_mistake_in_arguments() {
        let (_, known) = captures();
        for wrong in [
            json!("{\"a\":${7}}"),
            json!({"a": "${7}"}),
            json!({"a": [{"b": "x ${0}"}]}),
        ] {
            let wrong = serde_json::from_value(wrong).unwrap();
            let mistake = Arguments::read(Some(&wrong), &known).unwrap_err();
            assert!(mistake.starts_with("no group captures `"), "{mistake}");
        }
        for kept in ["$${7}", "${7:-a}", "${}", "$7"] {
            let argument = ScriptTemplate::read_argument(kept, &known);
            assert!(argument.is_ok(), "{kept}");
        }
    }

    #[test]
    fn arguments_may_be_missing_or_any_text() {
        let (captures, known) = captures();
        let missing = Arguments::read(None, &known).unwrap();
        assert_eq!(missing.text(&captures, None), "{}");
        assert_eq!(read(&Value::Null, &known).text(&captures, None), "{}");
        let odd = read(&json!("{\"a\":${n},\"a\":1"), &known);
        assert_eq!(odd.text(&captures, None), "{\"a\":20.50,\"a\":1");
    }
}
