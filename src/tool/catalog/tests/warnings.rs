//! Tests of warnings about tool settings.

use super::*;

#[test]
fn optional_argument_in_the_url_is_a_warning() {
    let mut mistakes = Mistakes::default();
    http(
        "GET",
        "http://h/{id}",
        json!({"type": "object", "properties": {"id": {"type": "string"}}}),
    )
    .prepare("t", &mut mistakes);
    assert!(mistakes.is_empty() && mistakes.warnings.len() == 1);
}

#[test]
fn required_argument_that_is_refused_as_undeclared_is_a_warning() {
    let warned = |members: Value| {
        let mut parameters = json!({"type": "object", "required": ["a", "b"]});
        let members = members.as_object().cloned().unwrap_or_default();
        parameters.as_object_mut().unwrap().extend(members);
        let mut mistakes = Mistakes::default();
        http("POST", "http://h/", parameters).prepare("t", &mut mistakes);
        assert_eq!(mistakes.found, []);
        let warnings = mistakes.warnings.into_iter();
        let lines =
            warnings.map(|warning| format!("{}: {}", warning.place.join("."), warning.detail));
        lines.collect::<Vec<_>>()
    };
    let a = || json!({"a": {"type": "string"}});
    let line = "tools.t.parameters.required.1: `b` is required and not declared, so no call of `t` is valid: add it to `properties`";
    for closed in [
        json!({"properties": a()}),
        json!({"properties": a(), "additionalProperties": false}),
        json!({"allOf": [{"properties": a()}]}),
    ] {
        assert_eq!(warned(closed.clone()), [line], "{closed}");
    }
    for open in [
        json!({}),
        json!({"properties": a(), "additionalProperties": true}),
        json!({"properties": a(), "additionalProperties": {"type": "string"}}),
        json!({"properties": a(), "patternProperties": {"^b": {}}}),
        json!({"properties": a(), "allOf": [{"properties": {"b": {}}}]}),
    ] {
        assert_eq!(warned(open.clone()), Vec::<String>::new(), "{open}");
    }
}
