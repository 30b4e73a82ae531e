//! Tests of closed schemas: values that fit and values that do not, and the flaws of schemas.

use serde_json::{Value, json};

use crate::tool::schema::CompiledSchema;

fn fits(schema: &Value, value: &Value) -> bool {
    CompiledSchema::closed(schema).unwrap().check(value).is_ok()
}

fn flaws(schema: &Value) -> String {
    let flaws = CompiledSchema::closed(schema).err().unwrap_or_default();
    let details: Vec<String> = flaws.into_iter().map(|flaw| flaw.detail).collect();
    details.join("; ")
}

#[test]
fn undeclared_members_are_refused_through_all_applicators_of_an_object() {
    let both = json!({"$defs": {"money": {"type": "object", "properties": {"amount": {"type": "number"}}}}});
    let with = |mut schema: Value| {
        schema["$defs"] = both["$defs"].clone();
        schema
    };
    #[rustfmt::skip]
    let table: Vec<(Value, Vec<Value>, Vec<Value>)> = vec![
        (json!({"type": "object", "properties": {"a": {}}}), vec![json!({}), json!({"a": 1})], vec![json!({"b": 1}), json!({"a": 1, "b": 1})]),
        (json!({"type": "object"}), vec![json!({"anything": {"at": "all"}})], vec![json!(1)]),
        (json!({"type": "object", "properties": {}}), vec![json!({})], vec![json!({"b": 1})]),
        (json!({"properties": {"a": {}}, "additionalProperties": true}), vec![json!({"b": 1})], vec![]),
        (json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}), vec![json!({"b": "x"})], vec![json!({"b": 1})]),
        (json!({"properties": {"a": {}}, "unevaluatedProperties": true}), vec![json!({"b": 1})], vec![]),
        (json!({"properties": {"a": {"properties": {"x": {}}}}, "additionalProperties": true}), vec![json!({"b": 1, "a": {"x": 1}})], vec![json!({"a": {"y": 1}})]),
        (json!({"properties": {"a": {"type": "object"}}}), vec![json!({"a": {"any": 1}})], vec![json!({"b": 1})]),
        (json!({"properties": {"a": {}}, "patternProperties": {"^x-": {}}}), vec![json!({"a": 1, "x-1": 1})], vec![json!({"y": 1})]),
        (json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}), vec![json!({"a": 1, "b": 1})], vec![json!({"c": 1})]),
        (json!({"properties": {"c": {}}, "allOf": [{"properties": {"a": {}}}]}), vec![json!({"a": 1, "c": 1})], vec![json!({"d": 1})]),
        (json!({"allOf": [{"properties": {"a": {}}}, {"additionalProperties": {"type": "integer"}}]}), vec![json!({"a": 1, "z": 1})], vec![json!({"z": "x"})]),
        (json!({"anyOf": [{"properties": {"k": {"const": 1}, "a": {}}, "required": ["k"]}, {"properties": {"k": {"const": 2}, "b": {}}, "required": ["k"]}]}),
         vec![json!({"k": 1, "a": 1}), json!({"k": 2, "b": 1})], vec![json!({"k": 1, "b": 1}), json!({"k": 2, "a": 1}), json!({"k": 1, "a": 1, "b": 1})]),
        (json!({"oneOf": [{"properties": {"k": {"const": 1}, "a": {}}, "required": ["k"]}, {"properties": {"k": {"const": 2}, "b": {}}, "required": ["k"]}]}),
         vec![json!({"k": 1, "a": 1})], vec![json!({"k": 1, "b": 1}), json!({"k": 3})]),
        (json!({"properties": {"k": {}}, "required": ["k"], "if": {"properties": {"k": {"const": 1}}}, "then": {"properties": {"a": {}}}, "else": {"properties": {"b": {}}}}),
         vec![json!({"k": 1, "a": 1}), json!({"k": 2, "b": 1})], vec![json!({"k": 1, "b": 1}), json!({"k": 2, "a": 1})]),
        (json!({"properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {"b": {}}}}}), vec![json!({"a": 1, "b": 1})], vec![json!({"b": 1})]),
        (with(json!({"$ref": "#/$defs/money"})), vec![json!({"amount": 1})], vec![json!({"amount": 1, "x": 1}), json!({"amount": "1"})]),
        (with(json!({"$ref": "#/$defs/money", "properties": {"order": {}}})), vec![json!({"amount": 1, "order": 2})], vec![json!({"x": 1})]),
        (with(json!({"properties": {"m": {"$ref": "#/$defs/money"}}})), vec![json!({"m": {"amount": 1}})], vec![json!({"m": {"x": 1}}), json!({"n": 1})]),
        (with(json!({"properties": {"m": {"allOf": [{"$ref": "#/$defs/money"}, {"properties": {"cur": {}}}]}}})),
         vec![json!({"m": {"amount": 1, "cur": "x"}})], vec![json!({"m": {"x": 1}})]),
        (with(json!({"properties": {"m": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/money"}]}}})), vec![json!({"m": null}), json!({"m": {"amount": 1}})], vec![json!({"m": {"x": 1}})]),
        (with(json!({"properties": {"m": {"type": "array", "items": {"$ref": "#/$defs/money"}}}})), vec![json!({"m": [{"amount": 1}, {}]})], vec![json!({"m": [{}, {"x": 1}]})]),
        (json!({"properties": {"l": {"prefixItems": [{"properties": {"a": {}}}], "items": {"properties": {"b": {}}}}}}),
         vec![json!({"l": [{"a": 1}, {"b": 1}]})], vec![json!({"l": [{"b": 1}]}), json!({"l": [{}, {"a": 1}]})]),
        (json!({"additionalProperties": {"properties": {"a": {}}}}), vec![json!({"x": {"a": 1}})], vec![json!({"x": {"b": 1}})]),
        // `a` accepts only `x`, because the schema of `a` is closed. The `$ref` to this schema in
        // the `allOf` of `b` leads to an open copy, so `b` also accepts `y`.
        (json!({"properties": {"a": {"properties": {"x": {}}}, "b": {"allOf": [{"$ref": "#/properties/a"}, {"properties": {"y": {}}}]}}}),
         vec![json!({"a": {"x": 1}, "b": {"x": 1, "y": 1}})], vec![json!({"a": {"y": 1}}), json!({"b": {"z": 1}})]),
        (json!({"properties": {"x": {}, "child": {"$ref": "#"}}}), vec![json!({"child": {"child": {"x": 1}}})], vec![json!({"child": {"child": {"y": 1}}})]),
        (json!({"$defs": {"t": {"$anchor": "tree", "properties": {"kids": {"items": {"$ref": "#tree"}}}}}, "$ref": "#tree"}),
         vec![json!({"kids": [{"kids": []}]})], vec![json!({"kids": [{"kids": [{"y": 1}]}]})]),
        // If the schema inside a `not` refused extra members, the whole schema would accept more.
        (json!({"properties": {"a": {"type": "object"}}, "not": {"required": ["a"], "properties": {"a": {"required": ["bad"], "properties": {"bad": {}}}}}}),
         vec![json!({"a": {"x": 1}})], vec![json!({"a": {"bad": 1}}), json!({"a": {"bad": 1, "x": 1}})]),
        (json!({"properties": {"$ref": {"type": "string"}, "properties": {}, "enum": {}}}), vec![json!({"$ref": "x", "properties": 1, "enum": 1})], vec![json!({"$ref": 1})]),
        (json!({"properties": {"a": {"enum": [{"$ref": "http://elsewhere/"}]}}}), vec![json!({"a": {"$ref": "http://elsewhere/"}})], vec![json!({"a": 1})]),
        (json!({"properties": {"a~/b": {"properties": {"x": {}}}, "b": {"$ref": "#/properties/a~0~1b"}, "c": {"$ref": "#/properties/a~0~1b"}}}),
         vec![json!({"b": {"x": 1}, "c": {"x": 1}})], vec![json!({"b": {"y": 1}})]),
    ];
    for (schema, good, bad) in table {
        for value in good {
            assert!(fits(&schema, &value), "{value} should fit {schema}");
        }
        for value in bad {
            assert!(!fits(&schema, &value), "{value} should not fit {schema}");
        }
    }
}

#[test]
fn open_form_behaves_as_in_json_schema() {
    let form = CompiledSchema::open(
        &json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}),
    )
    .unwrap();
    assert!(form.check(&json!({"a": 1, "b": 2})).is_ok());
    assert!(form.check(&json!({"a": "x"})).is_err());
}

#[test]
fn every_flaw_of_a_schema_is_reported() {
    let deep = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
    let wide = (0..20).fold(json!({"$ref": "#/$defs/d20", "$defs": {"d20": {}}}), |mut schema, level| {
        schema["$defs"][format!("d{level}")] = json!({"anyOf": [{"$ref": format!("#/$defs/d{}", level + 1)}, {"$ref": format!("#/$defs/d{}", level + 1)}]});
        schema["$ref"] = json!("#/$defs/d0");
        schema
    });
    let nested =
        json!({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": wide["$defs"].clone()});
    for (schema, expected) in [
        (
            json!({"$ref": "http://127.0.0.1:1/x"}),
            "does not begin with `#`",
        ),
        (
            json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}}),
            "does not begin with `#`",
        ),
        (json!({"$ref": "other.json#/a"}), "does not begin with `#`"),
        (json!({"$ref": "#/$defs/none"}), "where there is no schema"),
        (json!({"$ref": "#none"}), "where there is no schema"),
        (json!({"$ref": "#"}), "leads back to itself"),
        (
            json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}),
            "leads back to itself",
        ),
        (json!({"$dynamicRef": "#x"}), "`$dynamicRef`"),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#"}),
            "another `$schema`",
        ),
        (json!({"dependencies": {}}), "`dependencies`"),
        (
            json!({"properties": {"a": {"$id": "http://x/"}}}),
            "`$id` inside",
        ),
        (
            json!({"properties": {"amount": {}, "Amount": {}}}),
            "differ only in case",
        ),
        (
            json!({"properties": {"amount": {}}, "allOf": [{"properties": {"AMOUNT": {}}}]}),
            "differ only in case",
        ),
        (
            json!({"properties": {"a": {"properties": {"x": {}, "X": {}}}}}),
            "differ only in case",
        ),
        (json!({"type": "objekt"}), "/type"),
        (
            json!({"properties": {"a": {"minimum": "1"}}}),
            "/properties/a/minimum",
        ),
        (
            json!({"properties": {"a": {"items": [{}]}}}),
            "/properties/a/items",
        ),
        (json!({"pattern": "(a)\\1"}), "pattern"),
        (json!({"pattern": "(?=a)b"}), "pattern"),
        (json!({"pattern": "("}), "pattern"),
        (json!("object"), "its top"),
        (deep, "nested deeper"),
        (wide, "combines too many"),
        (nested, "combines too many"),
    ] {
        let said = flaws(&schema);
        assert!(said.contains(expected), "{schema}: {said}");
    }
}

#[test]
fn schema_with_several_flaws_reports_each_at_its_place() {
    let schema = json!({
        "type": "object",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {
            "a": {"minimum": "1", "maximum": "2"},
            "b/c": {"$ref": "#/$defs/none"},
            "d": {"pattern": "(?=x)"},
            "e": {"anyOf": [{}, {"pattern": "("}]},
            "f": {"$ref": "#/$defs/loop"},
            "g": {"properties": {"x": {}, "X": {}}},
            "h": {"items": {"$ref": "#named"}},
        },
        "patternProperties": {"(a)\\1": {}},
        "$defs": {
            "loop": {"allOf": [{"$ref": "#/$defs/loop"}]},
            "other": {"$anchor": "named", "dependencies": {}},
        },
    });
    let flaws = CompiledSchema::closed(&schema).unwrap_err();
    let places: Vec<&str> = flaws.iter().map(|flaw| flaw.pointer.as_str()).collect();
    assert_eq!(
        places,
        [
            "/$defs/loop",
            "/$defs/other/dependencies",
            "/$schema",
            "/patternProperties/(a)\\1",
            "/properties/a/maximum",
            "/properties/a/minimum",
            "/properties/b~1c/$ref",
            "/properties/d/pattern",
            "/properties/e/anyOf/1/pattern",
            "/properties/g/properties/x",
        ],
        "{flaws:?}"
    );
    let keys = ["properties", "b/c", "$ref"].map(str::to_owned);
    assert_eq!(flaws[6].keys(), keys);
}

#[test]
fn several_patterns_that_the_engine_refuses_are_all_reported() {
    let schema = json!({"properties": {"a": {"pattern": "(?=x)"}, "b": {"pattern": "(a)\\1"}}});
    let flaws = CompiledSchema::open(&schema).unwrap_err();
    let places: Vec<&str> = flaws.iter().map(|flaw| flaw.pointer.as_str()).collect();
    assert_eq!(places, ["/properties/a/pattern", "/properties/b/pattern"]);
}

#[test]
fn hostile_text_meets_a_linear_pattern() {
    let schema = json!({"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}});
    assert!(!fits(
        &schema,
        &json!({"a": format!("{}!", "a".repeat(100_000))})
    ));
}
