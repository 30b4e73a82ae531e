//! Tests of forms that an agent writes: accepted shapes, and the reasons for refusals.

use super::*;

#[test]
fn flat_form_passes_and_is_closed() {
    let whole = json!({
        "type": "object", "title": "T", "description": "D", "additionalProperties": true, "required": ["a", "n.1"],
        "properties": {
            "a": {"type": "string", "title": "A", "description": "d", "minLength": 1, "maxLength": 9, "default": "x"},
            "b": {"enum": ["one", "two"], "default": "two"},
            "c": {"type": "string", "format": "date"},
            "n.1": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 9},
            "i-1": {"type": "integer", "exclusiveMinimum": 0, "maximum": 5, "default": 5},
            "B_2": {"type": "boolean", "default": false},
        },
    });
    let mut expected = whole.clone();
    expected["additionalProperties"] = json!(false);
    expected["properties"]["b"]["type"] = json!("string");
    assert_eq!(form_of(&whole).unwrap(), expected);
    assert_eq!(
        fields(&json!({"a": {"type": "string"}})).unwrap()["required"],
        json!([])
    );
    let twenty = |count: usize| {
        (0..count)
            .map(|n| (format!("f{n}"), json!({"type": "string"})))
            .collect::<Map<_, _>>()
    };
    assert!(
        fields(&Value::Object(twenty(20))).is_ok() && fields(&Value::Object(twenty(21))).is_err()
    );
}

#[test]
fn form_of_any_other_shape_is_refused_with_the_reason() {
    let with = |keyword: &str, value: Value| json!({"a": {"type": "string", keyword: value}});
    let number = |keyword: &str, value: Value| json!({"a": {"type": "number", keyword: value}});
    for (properties, why) in [
        (json!({}), "1 to 20 fields"),
        (json!({"a": "string"}), "must be a JSON Schema object"),
        (json!({"a": true}), "must be a JSON Schema object"),
        (json!({"a": {}}), "must be of one type"),
        (json!({"a": {"type": "object"}}), "must be of one type"),
        (json!({"a": {"type": "array"}}), "must be of one type"),
        (json!({"a": {"type": "null"}}), "must be of one type"),
        (
            json!({"a": {"type": ["string", "null"]}}),
            "must be of one type",
        ),
        (with("pattern", json!("x")), "may not say `pattern`"),
        (with("$ref", json!("#")), "may not say `$ref`"),
        (with("const", json!("x")), "may not say `const`"),
        (with("properties", json!({})), "may not say `properties`"),
        (with("minimum", json!(1)), "may not say `minimum`"),
        (
            with("one\u{202e}two", json!(1)),
            "may not say a keyword that is not known",
        ),
        (number("minLength", json!(1)), "may not say `minLength`"),
        (number("enum", json!(["a"])), "may not say `enum`"),
        (with("enum", json!([])), "different strings"),
        (with("enum", json!(["a", "a"])), "different strings"),
        (with("enum", json!(["a", 1])), "different strings"),
        (with("enum", json!("a")), "different strings"),
        (with("minLength", json!(-1)), "a whole number"),
        (with("maxLength", json!("9")), "a whole number"),
        (
            with("format", json!("regex")),
            "must be one of email, uri, date",
        ),
        (with("format", json!(1)), "must be one of email, uri, date"),
        (with("title", json!(1)), "must be a text"),
        (
            with("default", json!(1)),
            "`default` does not fit the field",
        ),
        (
            json!({"a": {"enum": ["a"], "default": "b"}}),
            "`default` does not fit the field",
        ),
        (
            json!({"a": {"type": "string", "format": "email", "default": "b"}}),
            "`default` does not fit the field",
        ),
        (number("minimum", json!("1")), "must be a number"),
        (
            json!({"a": {"type": "string", "minLength": 3, "maxLength": 2}}),
            "no answer fits",
        ),
        (
            json!({"a": {"type": "number", "minimum": 3, "maximum": 2}}),
            "no answer fits",
        ),
        (
            json!({"a": {"type": "number", "exclusiveMinimum": 3, "maximum": 3}}),
            "no answer fits",
        ),
        (
            json!({"a": {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}}),
            "no answer fits",
        ),
        (
            json!({"a": {"type": "integer", "minimum": 0.2, "maximum": 0.8}}),
            "no answer fits",
        ),
        (json!({"": {"type": "string"}}), "name of field 1"),
        (
            json!({"ok": {"type": "string"}, "z z": {"type": "string"}}),
            "name of field 2",
        ),
        (json!({"n\u{e9}e": {"type": "string"}}), "name of field 1"),
        (
            json!({"x".repeat(65): {"type": "string"}}),
            "name of field 1",
        ),
    ] {
        let told = fields(&properties).unwrap_err();
        assert!(
            told.starts_with("`form`: ") && told.contains(why),
            "{properties}: {told}"
        );
    }
}

#[test]
fn form_with_another_frame_is_refused_with_the_reason() {
    assert!(
        fields(&json!({"a": {"type": "string"}, "A": {"type": "string"}})).is_err(),
        "twins"
    );
    let twins =
        json!({"type": "object", "properties": {"a": {"type": "string"}, "A": {"type": "string"}}});
    assert!(
        form::from_agent(&twins)
            .unwrap_err()
            .contains("`A` and `a` differ only in case")
    );
    let one = json!({"a": {"type": "string"}});
    for (form, why) in [
        (json!({}), "type: object"),
        (json!({"type": "array"}), "type: object"),
        (json!({"type": "object"}), "must declare its `properties`"),
        (
            json!({"type": "object", "properties": []}),
            "must declare its `properties`",
        ),
        (
            json!({"type": "object", "properties": one, "$defs": {}}),
            "may not say `$defs`",
        ),
        (
            json!({"type": "object", "properties": one, "anyOf": []}),
            "may not say `anyOf`",
        ),
        (
            json!({"type": "object", "properties": one, "additionalProperties": {}}),
            "can only be `false`",
        ),
        (
            json!({"type": "object", "properties": one, "required": "a"}),
            "must be a list",
        ),
        (
            json!({"type": "object", "properties": one, "required": ["b"]}),
            "may only name fields",
        ),
        (
            json!({"type": "object", "properties": one, "required": ["a", "a"]}),
            "twice",
        ),
    ] {
        let told = form_of(&form).unwrap_err();
        assert!(told.contains(why), "{form}: {told}");
    }
}

#[test]
fn form_that_asks_for_a_secret_is_refused() {
    let text = |keyword: &str, text: &str| json!({"a": {"type": "string", keyword: text}});
    for secret in [
        "password",
        "Pass Word",
        "PASSWORD",
        "user_passwd",
        "db-pwd",
        "userPwd",
        "client_secret",
        "your secret, Arithmetic user",
        "access_token",
        "api key",
        "api_key",
        "API-Key",
        "apikey",
        "openaiApiKey",
        "Credentials",
        "private_key",
        "passphrase",
        "pin",
        "PIN",
        "userPin",
        "pin_2",
        "PIN2",
        "your PIN, please",
        "otp",
        "OTPCode",
        "2fa",
        "2FA code",
        "code2FA",
        "cvv",
        "CVV2",
        "pass\u{200b}word",
        "\u{ff50}\u{ff49}\u{ff4e}",
        "\u{1d429}assword",
        "请输入密码",
        "口令",
        "API密钥",
        "访问令牌",
        "短信验证码",
        "verification code",
    ] {
        let name = json!({secret: {"type": "string"}});
        let told = [
            fields(&name),
            fields(&text("title", secret)),
            fields(&text("description", secret)),
        ];
        for told in told.into_iter().skip(usize::from(
            !secret
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)),
        )) {
            let told = told.unwrap_err();
            assert!(told.contains("use request_credentials"), "{secret}: {told}");
        }
        let form =
            json!({"type": "object", "title": secret, "properties": {"a": {"type": "string"}}});
        assert!(form_of(&form).is_err(), "{secret}");
    }
    assert!(
        fields(&text("format", "password"))
            .unwrap_err()
            .contains("use request_credentials")
    );
    for harmless in [
        "shipping",
        "opinion",
        "footprint",
        "spinner",
        "iban",
        "IBAN",
        "secretary",
        "hotpot",
        "order_17",
        "amount",
        "账号",
        "keyboard",
    ] {
        assert!(fields(&text("title", harmless)).is_ok(), "{harmless}");
    }
}
