//! Tests that hostile argument texts are refused, and that good texts are read exactly as written.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn refund() -> CompiledSchema {
    let schema = json!({"type": "object", "required": ["order", "amount"], "properties": {
        "order": {"type": "integer"}, "amount": {"type": "number", "exclusiveMinimum": 0},
        "note": {"type": "string"}, "to": {"type": "object", "properties": {"iban": {"type": "string"}}},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {}}}},
        "extra": {"type": "object"}}});
    CompiledSchema::closed(&schema).unwrap()
}

fn nested(depth: usize) -> String {
    let inner = depth - 2;
    format!(
        r#"{{"order":1,"amount":1,"extra":{{"a":{}1{}}}}}"#,
        "[".repeat(inner),
        "]".repeat(inner)
    )
}

/// Argument texts that must be refused, each with a part of the error.
const HOSTILE: &[(&str, &str)] = &[
    (
        r#"{"order":1,"amount":"20"}"#,
        "/amount: must be of type number",
    ),
    (
        r#"{"order":"1","amount":20}"#,
        "/order: must be of type integer",
    ),
    (
        r#"{"order":1.5,"amount":20}"#,
        "/order: must be of type integer",
    ),
    (
        r#"{"order":1,"amount":20,"Amount":9000}"#,
        "/Amount: there is another member",
    ),
    (
        r#"{"order":1,"AMOUNT":9000,"amount":20}"#,
        "/amount: there is another member",
    ),
    (
        r#"{"order":1,"amount":20,"amount":9000}"#,
        "/amount: there are two members",
    ),
    (
        r#"{"order":1,"amount":20,"amoun\u0074":9000}"#,
        "/amount: there are two members",
    ),
    (
        r#"{"order":1,"amount":20,"extra":{"caf\u00e9":1,"cafe\u0301":2}}"#,
        "/extra/cafe\u{301}: there is another",
    ),
    (
        r#"{"order":1,"amount":20,"extra":{"\uFB01":1,"fi":2}}"#,
        "/extra/fi: there is another member",
    ),
    (
        r#"{"order":1,"amount":20,"extra":{"x":[{"k":1,"K":2}]}}"#,
        "/extra/x/0/K: there is another member",
    ),
    (
        r#"{"order":1,"amount":20.000000000000000001}"#,
        "/amount: the number has more digits",
    ),
    (
        r#"{"order":9007199254740993,"amount":20}"#,
        "/order: the number has more digits",
    ),
    (
        r#"{"order":-9007199254740993,"amount":20}"#,
        "/order: the number has more digits",
    ),
    (
        r#"{"order":18446744073709551615,"amount":20}"#,
        "/order: the number has more digits",
    ),
    (
        r#"{"order":123456789012345678901234567890,"amount":20}"#,
        "/order: the number has more digits",
    ),
    (
        r#"{"order":1,"amount":1e400}"#,
        "/amount: the number has more digits",
    ),
    (
        r#"{"order":1,"amount":1e-400}"#,
        "/amount: the number has more digits",
    ),
    (
        r#"{"order":1,"amount":0.1000000000000000055}"#,
        "/amount: the number has more digits",
    ),
    (
        r#"{"order":1,"amount":NaN}"#,
        "/amount: must be a JSON value",
    ),
    (
        r#"{"order":1,"amount":Infinity}"#,
        "/amount: must be a JSON value",
    ),
    (
        r#"{"order":1,"amount":-Infinity}"#,
        "/amount: is not a JSON number",
    ),
    (
        r#"{"order":1,"amount":+20}"#,
        "/amount: must be a JSON value",
    ),
    (
        r#"{"order":1,"amount":.5}"#,
        "/amount: must be a JSON value",
    ),
    (
        r#"{"order":1,"amount":5.}"#,
        "/amount: is not a JSON number",
    ),
    (
        r#"{"order":1,"amount":020}"#,
        "/amount: is not a JSON number",
    ),
    (
        r#"{"order":1,"amount":0x20}"#,
        "/amount: is not a JSON number",
    ),
    (
        r#"{"order":1,"amount":2_0}"#,
        "/amount: is not a JSON number",
    ),
    (
        r#"{"order":1,"amount":1e}"#,
        "/amount: is not a JSON number",
    ),
    (
        r#"{"order":1,"amount":null}"#,
        "/amount: must be of type number",
    ),
    (
        r#"{"order":1,"amount":[20]}"#,
        "/amount: must be of type number",
    ),
    (
        r#"{"order":1,"amount":true}"#,
        "/amount: must be of type number",
    ),
    (r#"{"order":1,"amount":0}"#, "/amount: must be more than 0"),
    (r#"{"order":1,"amount":-0}"#, "/amount: must be more than 0"),
    (
        r#"{"order":1,"amount":-20}"#,
        "/amount: must be more than 0",
    ),
    (r#"{"order":1}"#, "/amount: is required"),
    ("{}", "/amount: is required"),
    ("", "/amount: is required"),
    (
        r#"{"order":1,"amount":20,"currency":"USD"}"#,
        "/currency: is not declared",
    ),
    (r#"{"order":1,"amount":"20","a":1}"#, "/a: is not declared"),
    (
        r#"{"order":1,"amount":20,"to":{"iban":"x","bic":"y"}}"#,
        "/to/bic: is not declared",
    ),
    (
        r#"{"order":1,"amount":20,"lines":[{"sku":1},{"sku":1,"price":2}]}"#,
        "/lines/1/price: is not declared",
    ),
    (
        r#"{"order":1,"\u0430mount":20}"#,
        "/\u{430}mount: is not declared",
    ),
    (
        r#"{"order":1,"amount":20,"note":"\ud800"}"#,
        "/note: there is a lone surrogate",
    ),
    (
        r#"{"order":1,"amount":20,"note":"\udc00\ud800"}"#,
        "/note: there is a lone surrogate",
    ),
    (
        r#"{"order":1,"amount":20,"note":"\ud800\u0041"}"#,
        "/note: there is a lone surrogate",
    ),
    (
        r#"{"order":1,"amount":20,"extra":{"\udfff":1}}"#,
        "/extra: there is a lone surrogate",
    ),
    (
        r#"{"order":1,"amount":20,"note":"\u0000"}"#,
        "/note: U+0000",
    ),
    (
        "{\"order\":1,\"amount\":20,\"note\":\"a\nb\"}",
        "/note: a control character",
    ),
    (
        "{\"order\":1,\"amount\":20,\"note\":\"a\0b\"}",
        "/note: a control character",
    ),
    (
        r#"{"order":1,"amount":20,"note":"\x41"}"#,
        "/note: there is an escape",
    ),
    (
        r#"{"order":1,"amount":20,"note":"\u00g0"}"#,
        "/note: there is a \\u escape",
    ),
    (
        r#"{"order":1,"amount":20,"note":"abc"#,
        "/note: the text ends",
    ),
    (
        r#"{"order":1,"amount":20"#,
        "a comma or the end of the object",
    ),
    (r#"{"order":1,"amount":20,}"#, "a member's name"),
    (r#"{"order":1,,"amount":20}"#, "a member's name"),
    (
        r#"{"order":1 "amount":20}"#,
        "a comma or the end of the object",
    ),
    (r"{'order':1,'amount':20}", "a member's name"),
    (r"{order:1,amount:20}", "a member's name"),
    (
        r#"{"order":1,"amount":20} {"order":2}"#,
        "text after the end",
    ),
    (r#"{"order":1,"amount":20}x"#, "text after the end"),
    (
        "{\"order\":1,\"amount\":20 /* low */}",
        "a comma or the end of the object",
    ),
    (
        "\u{feff}{\"order\":1,\"amount\":20}",
        "must be a JSON value",
    ),
    ("\u{a0}{\"order\":1,\"amount\":20}", "must be a JSON value"),
    (
        r#"{"order":1,"amount":True}"#,
        "/amount: must be a JSON value",
    ),
    (
        r#"{"order":1,"amount":nullx}"#,
        "/amount: must be a JSON value",
    ),
    (r#"[{"order":1,"amount":20}]"#, "must be a JSON object"),
    (r#""{\"order\":1,\"amount\":20}""#, "must be a JSON object"),
    ("null", "must be a JSON object"),
    ("20", "must be a JSON object"),
    ("{", "a member's name"),
    ("undefined", "must be a JSON value"),
];

#[test]
fn hostile_arguments_never_fit_and_the_place_is_named() {
    let deep = nested(33);
    let long = format!(
        r#"{{"order":1,"amount":1,"note":"{}"}}"#,
        "x".repeat(MAX_BYTES)
    );
    let too_large = [
        (deep.as_str(), "must not nest deeper than 32"),
        (long.as_str(), "must not be longer than 256 KiB"),
    ];
    assert!(HOSTILE.len() >= 40);
    let schema = refund();
    for (text, expected) in HOSTILE.iter().copied().chain(too_large) {
        let refused = read(text, &schema).expect_err(cut(text, 100)).to_string();
        assert!(refused.contains(expected), "{}: {refused}", cut(text, 100));
        assert!(
            refused.len() < 1000 && !refused.contains("9000"),
            "{refused}"
        );
    }
}

fn good_arguments() -> Vec<(&'static str, Value)> {
    vec![
        (
            r#"{"order":17,"amount":20}"#,
            json!({"order": 17, "amount": 20}),
        ),
        (
            " \t\r\n{ \"order\" : 17 ,\n\"amount\" : 20 } \n",
            json!({"order": 17, "amount": 20}),
        ),
        (
            r#"{"order":17,"amount":20.0}"#,
            json!({"order": 17, "amount": 20.0}),
        ),
        (
            r#"{"order":17.0,"amount":20}"#,
            json!({"order": 17.0, "amount": 20}),
        ),
        (
            r#"{"order":1e2,"amount":0.1}"#,
            json!({"order": 1e2, "amount": 0.1}),
        ),
        (
            r#"{"order":1E+2,"amount":1e-7}"#,
            json!({"order": 1e2, "amount": 1e-7}),
        ),
        (
            r#"{"order":0,"amount":0.30000000000000004}"#,
            json!({"order": 0, "amount": 0.300_000_000_000_000_04}),
        ),
        (
            r#"{"order":-5,"amount":20.50}"#,
            json!({"order": -5, "amount": 20.5}),
        ),
        (
            r#"{"order":-0,"amount":1}"#,
            json!({"order": -0.0, "amount": 1}),
        ),
        (
            r#"{"order":1,"amount":200000e-1}"#,
            json!({"order": 1, "amount": 20000.0}),
        ),
        (
            r#"{"order":9007199254740992,"amount":1}"#,
            json!({"order": 9_007_199_254_740_992_u64, "amount": 1}),
        ),
        (
            r#"{"order":9007199254740994,"amount":1}"#,
            json!({"order": 9_007_199_254_740_994_u64, "amount": 1}),
        ),
        (
            r#"{"order":9223372036854775808,"amount":1}"#,
            json!({"order": 9_223_372_036_854_775_808_u64, "amount": 1}),
        ),
        (
            r#"{"order":1,"amount":1e22}"#,
            json!({"order": 1, "amount": 1e22}),
        ),
        (
            r#"{"order":1,"amount":1.7976931348623157e308}"#,
            json!({"order": 1, "amount": f64::MAX}),
        ),
        (
            r#"{"order":1,"amount":5e-324}"#,
            json!({"order": 1, "amount": 5e-324}),
        ),
        (
            r#"{"order":1,"amount":1,"note":"\ud83d\ude00\u00e9\n\/\"\\"}"#,
            json!({"order":1,"amount":1,"note":"😀é\n/\"\\"}),
        ),
        (
            r#"{"order":1,"amount":1,"note":"😀 é"}"#,
            json!({"order": 1, "amount": 1, "note": "😀 é"}),
        ),
        (
            r#"{"order":1,"amount":1,"to":{"iban":"x"}}"#,
            json!({"order": 1, "amount": 1, "to": {"iban": "x"}}),
        ),
        (
            r#"{"order":1,"amount":1,"to":{},"lines":[]}"#,
            json!({"order": 1, "amount": 1, "to": {}, "lines": []}),
        ),
        (
            r#"{"order":1,"amount":1,"lines":[{"sku":[]}]}"#,
            json!({"order": 1, "amount": 1, "lines": [{"sku": []}]}),
        ),
        (
            r#"{"order":1,"amount":1,"extra":{"any":{"b":null}}}"#,
            json!({"order":1,"amount":1,"extra":{"any":{"b":null}}}),
        ),
        (
            r#"{"\u006frder":1,"amount":1}"#,
            json!({"order": 1, "amount": 1}),
        ),
    ]
}

#[test]
fn good_arguments_fit_and_are_read_as_they_are_written() {
    let deepest = nested(32);
    let mut table = good_arguments();
    assert!(table.len() >= 19);
    table.push((&deepest, serde_json::from_str(&deepest).unwrap()));
    let schema = refund();
    for (text, expected) in table {
        assert_eq!(
            read(text, &schema).map_err(|refused| format!("{text}: {refused}")),
            Ok(expected)
        );
    }
}

#[test]
fn empty_text_is_an_object_where_nothing_is_required() {
    let schema = CompiledSchema::closed(&json!({"type": "object", "properties": {}})).unwrap();
    assert_eq!(read("", &schema), Ok(json!({})));
    assert_eq!(read(" \n", &schema), Ok(json!({})));
    assert!(read(r#"{"any":1}"#, &schema).is_err());
    assert!(read("\u{a0}", &schema).is_err());
}

fn json_like() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![
            "[\\[\\]{}:,\" \\\\]",
            "[-0-9.eE+]{1,24}",
            "\"[a-zA-Zé]{0,3}\"",
            "\\\\u[0-9a-fA-F]{4}",
            Just("true".to_owned()),
            Just("null".to_owned()),
            any::<String>(),
        ],
        0..24,
    )
    .prop_map(|pieces| pieces.concat())
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[^\0]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map("[a-c]{1,2}", inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn parse_never_panics_and_accepts_nothing_a_plain_reader_would_not(text in json_like()) {
        if let Ok(value) = parse(&text) {
            prop_assert_eq!(&value, &serde_json::from_str::<Value>(&text).unwrap());
            prop_assert_eq!(parse(&value.to_string()).unwrap(), value);
        }
    }

    #[test]
    fn accepted_value_means_the_same_when_written_again(value in any_json()) {
        let text = value.to_string();
        match parse(&text) {
            Ok(read) => {
                prop_assert_eq!(&read, &serde_json::from_str::<Value>(&text).unwrap());
                prop_assert_eq!(parse(&read.to_string()).unwrap(), read);
            }
            // `parse` may refuse a generated value only because a number loses digits as a double.
            Err(refused) => prop_assert!(refused.to_string().contains("double"), "{}", refused),
        }
    }
}
