//! Tests with arbitrary output of a model: a call either asks a question that every client can
//! render, or is refused.

use proptest::prelude::*;

use super::tests::{form_of, jira};
use super::*;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-20_i64..20).prop_map(Value::from),
        (-1e9_f64..1e9).prop_map(Value::from),
        prop::sample::select(vec![
            "object", "string", "number", "integer", "boolean", "email", "a", "pin", "jira", "x"
        ])
        .prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let name = prop_oneof![
        prop::sample::select(vec![
            "type",
            "title",
            "description",
            "properties",
            "required",
            "additionalProperties",
            "enum",
            "default",
            "minLength",
            "maxLength",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "format",
            "a",
            "A",
            "question",
            "action",
            "service",
            "reason",
            "form",
            "options",
            "$ref",
        ])
        .prop_map(str::to_owned),
        ".{0,6}",
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Generates a form that is often valid.
fn any_form() -> impl Strategy<Value = Value> {
    let kind = prop::sample::select(vec!["string", "number", "integer", "boolean", "array"]);
    let keyword = prop::sample::select(vec![
        ("title", json!("t")),
        ("minLength", json!(1)),
        ("maxLength", json!(3)),
        ("minimum", json!(-1)),
        ("maximum", json!(7)),
        ("exclusiveMinimum", json!(0)),
        ("enum", json!(["a", "b"])),
        ("format", json!("uri")),
        ("default", json!("a")),
        ("default", json!(3)),
        ("description", json!("your pin")),
        ("items", json!({})),
    ]);
    let field = (kind, prop::collection::vec(keyword, 0..3)).prop_map(|(kind, keywords)| {
        let mut field = json!({"type": kind});
        for (keyword, value) in keywords {
            field[keyword] = value;
        }
        field
    });
    let fields = prop::collection::btree_map("[a-cA-C._-]{1,3}", field, 1..4);
    (fields, any_json(), any::<bool>()).prop_map(|(fields, odd, with)| {
        let mut form = json!({"type": "object", "properties": fields});
        if with {
            form["required"] = odd;
        }
        form
    })
}

fn is_accepted_as_it_should(form: &Value) {
    CompiledSchema::closed(form).unwrap();
    assert_eq!(form["additionalProperties"], json!(false));
    let properties = form["properties"].as_object().unwrap();
    assert!((1..=20).contains(&properties.len()));
    for (name, field) in properties {
        assert!(!names_secret(name));
        for (keyword, value) in field.as_object().unwrap() {
            assert!(
                !value.is_object() && (keyword == "enum" || !value.is_array()),
                "{form}"
            );
        }
    }
}

proptest! {
    #[test]
    fn question_never_panics_and_its_form_compiles(args in any_json()) {
        for kind in RequestKind::ALL {
            if let Ok(Question { form: Some(form), .. }) = question(kind, &args, &[jira()]) {
                CompiledSchema::closed(&form).unwrap();
            }
        }
    }

    #[test]
    fn every_form_that_passes_compiles_and_is_flat(form in prop_oneof![any_json(), any_form()]) {
        if let Ok(form) = form::from_agent(&form) {
            is_accepted_as_it_should(&form);
            prop_assert_eq!(form::from_agent(&form), Ok(form.clone()), "as it is shown it passes again");
        }
    }

    #[test]
    fn form_of_any_value_never_panics(form in any_form()) {
        let _ = form_of(&form);
    }
}
