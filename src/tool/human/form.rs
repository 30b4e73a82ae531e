//! The forms that a human fills in. Invariant: an agent's form is one flat object of texts,
//! numbers, booleans and choices, so that every client can render the form. The form asks for no
//! secret, because the answer goes to the model and into the journal.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::names::folded;
use super::super::schema::CompiledSchema;

/// The description of the argument `form`, for a model.
pub(super) const DESCRIPTION: &str = "JSON Schema of the answer, if a text will not do: an object with 1 to 20 \
    `properties`, each of type string, number, integer or boolean, or an `enum` of strings. Further keywords: `title`, \
    `description`, `default`, `minLength`, `maxLength`, `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, \
    `format` (email, uri, date), and `required`.";

/// The maximum number of fields of an agent's form.
const MAX_FIELDS: usize = 20;
const MAX_CHOICES: usize = 100;
const MAX_NAME_BYTES: usize = 64;
pub(super) const FORMATS: [&str; 3] = ["email", "uri", "date"];
/// Names of secrets, in lower case and without separators such as spaces and `_`. [`names_secret`]
/// finds these names anywhere in a text, even inside a word.
const SECRET_NAMES: [&str; 33] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "passwort",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "privatekey",
    "signingkey",
    "encryptionkey",
    "credential",
    "pincode",
    "securitycode",
    "verificationcode",
    "authenticationcode",
    "onetimecode",
    "recoverycode",
    "backupcode",
    "seedphrase",
    "twofactor",
    "2factor",
    "密码",
    "密碼",
    "口令",
    "密钥",
    "密鑰",
    "私钥",
    "令牌",
    "权杖",
    "验证码",
    "驗證碼",
];
/// Names of secrets that count only as whole words: `pin` also occurs in `shipping`.
const SECRET_WORDS: [&str; 13] = [
    "pin", "pins", "otp", "otps", "totp", "2fa", "mfa", "cvv", "cvvs", "cvc", "cvcs", "pwd", "pwds",
];
/// Harmless words that contain a name from [`SECRET_NAMES`].
const HARMLESS_WORDS: [&str; 2] = ["secretary", "secretari"];

/// Returns the form of a question for which the agent gives no form: one required text.
pub(super) fn text_answer() -> Value {
    json!({
        "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"],
        "additionalProperties": false,
    })
}

pub(super) fn confirmation() -> Value {
    json!({
        "type": "object", "properties": {"confirmed": {"type": "boolean"}, "comment": {"type": "string"}},
        "required": ["confirmed"], "additionalProperties": false,
    })
}

/// Checks a form that an agent wrote, as [`read_form`] does. The text of an error begins with the
/// name of the tool's argument, `form`.
pub(super) fn from_agent(written: &Value) -> Result<Value, String> {
    read_form(written, MAX_FIELDS, &SCALAR_TYPES).map_err(|detail| format!("`form`: {detail}"))
}

/// The allowed types of fields in an agent's form: plain values, which every client can render.
const SCALAR_TYPES: [&str; 4] = ["string", "number", "integer", "boolean"];
/// The allowed types of fields in an MCP server's form. A field of type `array` lets the person
/// choose several texts.
pub(super) const SCALAR_AND_LIST_TYPES: [&str; 5] =
    ["string", "number", "integer", "boolean", "array"];

/// Checks a form, and returns a copy that refuses undeclared members. Fails with a description of
/// the mistake, for example if the form has an unknown keyword, more than `max_fields` fields, a
/// field whose type is not in `kinds`, or a text that names a secret.
pub(super) fn read_form(
    written: &Value,
    max_fields: usize,
    kinds: &[&str],
) -> Result<Value, String> {
    let members = written
        .as_object()
        .ok_or("must be a JSON Schema of an object")?;
    let known = [
        "type",
        "title",
        "description",
        "properties",
        "required",
        "additionalProperties",
    ];
    refuse_unknown_keywords(members, &known, "the form")?;
    if members.get("type").and_then(Value::as_str) != Some("object") {
        return Err("must say `type: object`".to_owned());
    }
    if members
        .get("additionalProperties")
        .is_some_and(|further| !further.is_boolean())
    {
        return Err("`additionalProperties` can only be `false`".to_owned());
    }
    let mut form = Map::from_iter([("type".to_owned(), json!("object"))]);
    copy_texts(members, "the form", &mut form)?;
    let fields = members
        .get("properties")
        .and_then(Value::as_object)
        .ok_or("must declare its `properties`")?;
    if fields.is_empty() || fields.len() > max_fields {
        return Err(format!("must have 1 to {max_fields} fields"));
    }
    let properties = read_fields(fields, kinds)?;
    form.insert("required".to_owned(), required(members, fields)?);
    form.insert("properties".to_owned(), Value::Object(properties));
    form.insert("additionalProperties".to_owned(), Value::Bool(false));
    let form = Value::Object(form);
    match CompiledSchema::closed(&form) {
        Ok(_) => Ok(form),
        Err(flaws) => {
            let details: Vec<String> = flaws.into_iter().map(|flaw| flaw.detail).collect();
            let details = details.join("; ");
            Err(format!("is not a usable JSON Schema: {details}"))
        }
    }
}

fn read_fields(fields: &Map<String, Value>, kinds: &[&str]) -> Result<Map<String, Value>, String> {
    let mut properties = Map::new();
    let mut seen = BTreeMap::new();
    for (index, (name, field)) in fields.iter().enumerate() {
        if !is_name(name) {
            return Err(format!(
                "the name of field {} must be 1 to {MAX_NAME_BYTES} of `A-Z a-z 0-9 _ . -`",
                index + 1
            ));
        }
        if let Some(twin) = seen.insert(name.to_ascii_lowercase(), name) {
            return Err(format!(
                "the fields `{twin}` and `{name}` differ only in case"
            ));
        }
        if names_secret(name) {
            return Err(secret_error(&format!("the field `{name}`")));
        }
        properties.insert(
            name.clone(),
            self::field(field, &format!("the field `{name}`"), kinds)?,
        );
    }
    Ok(properties)
}

fn is_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(letter)
}

/// Returns the form's list `required`; an empty list if the form has none. Fails if `required`
/// names an unknown field, or a field twice.
fn required(members: &Map<String, Value>, fields: &Map<String, Value>) -> Result<Value, String> {
    let Some(written) = members.get("required") else {
        return Ok(json!([]));
    };
    let names = written
        .as_array()
        .ok_or("`required` must be a list of names")?;
    let mut seen: Vec<&str> = Vec::new();
    for name in names {
        match name.as_str().filter(|name| fields.contains_key(*name)) {
            Some(name) if !seen.contains(&name) => seen.push(name),
            Some(_) => return Err("`required` names a field twice".to_owned()),
            None => return Err("`required` may only name fields of `properties`".to_owned()),
        }
    }
    Ok(json!(seen))
}

fn field(written: &Value, at: &str, kinds: &[&str]) -> Result<Value, String> {
    let members = written
        .as_object()
        .ok_or_else(|| format!("{at} must be a JSON Schema object"))?;
    if members.get("format").and_then(Value::as_str) == Some("password") {
        return Err(secret_error(at));
    }
    let mut field = Map::new();
    copy_texts(members, at, &mut field)?;
    let kind = match members.get("type") {
        None if members.contains_key("enum") => "string",
        Some(Value::String(kind)) if kinds.contains(&kind.as_str()) => kind,
        Some(_) | None => {
            return Err(format!("{at} must be of one type: {}", kinds.join(", ")));
        }
    };
    field.insert("type".to_owned(), json!(kind));
    let common = ["type", "title", "description", "default"];
    let own: &[&str] = match kind {
        "string" => &["enum", "minLength", "maxLength", "format"],
        "array" => &["items", "minItems", "maxItems"],
        "boolean" => &[],
        _ => &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
    };
    refuse_unknown_keywords(
        members,
        &[&common, own].concat(),
        &format!("{at}, of type {kind},"),
    )?;
    for keyword in own {
        let Some(value) = members.get(*keyword) else {
            continue;
        };
        check_keyword(keyword, value).map_err(|detail| format!("{at}: `{keyword}` {detail}"))?;
        field.insert((*keyword).to_owned(), value.clone());
    }
    if kind == "array" {
        if !field.contains_key("items") {
            return Err(format!("{at} must say which texts may be chosen"));
        }
        field.insert("uniqueItems".to_owned(), Value::Bool(true));
    }
    if !is_satisfiable(&field) {
        return Err(format!("{at} has limits that no answer fits"));
    }
    if let Some(default) = members.get("default") {
        let schema = CompiledSchema::open(&Value::Object(field.clone()));
        if !schema.is_ok_and(|schema| schema.check(default).is_ok()) {
            return Err(format!("{at}: `default` does not fit the field"));
        }
        field.insert("default".to_owned(), default.clone());
    }
    Ok(Value::Object(field))
}

fn refuse_unknown_keywords(
    members: &Map<String, Value>,
    known: &[&str],
    at: &str,
) -> Result<(), String> {
    let Some(other) = members
        .keys()
        .find(|keyword| !known.contains(&keyword.as_str()))
    else {
        return Ok(());
    };
    let plain = other.len() <= 32
        && other
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'$');
    let other = if plain {
        format!("`{other}`")
    } else {
        "a keyword that is not known".to_owned()
    };
    let known: Vec<String> = known.iter().map(|keyword| format!("`{keyword}`")).collect();
    Err(format!(
        "{at} may not say {other}; known are {}",
        known.join(", ")
    ))
}

/// Copies `title` and `description` to `into`. Refuses a text that names a secret.
fn copy_texts(
    members: &Map<String, Value>,
    at: &str,
    into: &mut Map<String, Value>,
) -> Result<(), String> {
    for keyword in ["title", "description"] {
        let Some(value) = members.get(keyword) else {
            continue;
        };
        let text = value
            .as_str()
            .ok_or_else(|| format!("{at}: `{keyword}` must be a text"))?;
        if names_secret(text) {
            return Err(secret_error(at));
        }
        into.insert(keyword.to_owned(), json!(text));
    }
    Ok(())
}

fn check_keyword(keyword: &str, value: &Value) -> Result<(), String> {
    match keyword {
        "enum" => {
            let choices: Vec<&str> = value
                .as_array()
                .into_iter()
                .flatten()
                .map_while(Value::as_str)
                .collect();
            let all = value
                .as_array()
                .is_some_and(|all| all.len() == choices.len());
            let mut distinct = choices.clone();
            distinct.sort_unstable();
            distinct.dedup();
            if !all
                || distinct.len() != choices.len()
                || !(1..=MAX_CHOICES).contains(&choices.len())
            {
                return Err(format!("must be 1 to {MAX_CHOICES} different strings"));
            }
        }
        "items" => {
            let items = value.as_object().ok_or("must be a choice of texts")?;
            refuse_unknown_keywords(items, &["type", "enum"], "a choice of texts")?;
            if items.get("type").and_then(Value::as_str) != Some("string") {
                return Err("must be texts".to_owned());
            }
            check_keyword("enum", items.get("enum").unwrap_or(&Value::Null))?;
        }
        "minLength" | "maxLength" | "minItems" | "maxItems" if value.as_u64().is_none() => {
            return Err("must be a whole number".to_owned());
        }
        "format"
            if !value
                .as_str()
                .is_some_and(|format| FORMATS.contains(&format)) =>
        {
            return Err(format!("must be one of {}", FORMATS.join(", ")));
        }
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" if !value.is_number() => {
            return Err("must be a number".to_owned());
        }
        _ => {}
    }
    Ok(())
}

/// Whether some value satisfies all limits of the field together. For example, `minLength` must not
/// exceed `maxLength`. If the person chooses several texts, the field must also offer at least
/// `minItems` choices.
fn is_satisfiable(field: &Map<String, Value>) -> bool {
    let number = |keyword: &str| field.get(keyword).and_then(Value::as_f64);
    let integer = |keyword: &str| field.get(keyword).and_then(Value::as_u64);
    let fits = |lower: &str, upper: &str, fit: fn(&f64, &f64) -> bool| {
        number(lower)
            .zip(number(upper))
            .is_none_or(|(lower, upper)| fit(&lower, &upper))
    };
    let choices = field.get("items").and_then(|items| items.get("enum"));
    let choices = choices.and_then(Value::as_array).map(Vec::len);
    let choices = choices.and_then(|count| u64::try_from(count).ok());
    let below = |least: Option<u64>, most: Option<u64>| {
        least.zip(most).is_none_or(|(least, most)| least <= most)
    };
    below(integer("minLength"), integer("maxLength"))
        && below(integer("minItems"), integer("maxItems"))
        && below(integer("minItems"), choices)
        && fits("minimum", "maximum", f64::le)
        && fits("minimum", "exclusiveMaximum", f64::lt)
        && fits("exclusiveMinimum", "maximum", f64::lt)
        && fits("exclusiveMinimum", "exclusiveMaximum", f64::lt)
        && (field.get("type").and_then(Value::as_str) != Some("integer") || leaves_integer(field))
}

/// Whether there is a whole number between the limits of the field.
fn leaves_integer(field: &Map<String, Value>) -> bool {
    let limit = |keyword: &str| field.get(keyword).and_then(Value::as_f64);
    let above = limit("exclusiveMinimum").map(|bound| bound.floor() + 1.0);
    let least = limit("minimum").map(f64::ceil).into_iter().chain(above);
    let below = limit("exclusiveMaximum").map(|bound| bound.ceil() - 1.0);
    let most = limit("maximum").map(f64::floor).into_iter().chain(below);
    least.fold(f64::NEG_INFINITY, f64::max) <= most.fold(f64::INFINITY, f64::min)
}

fn secret_error(at: &str) -> String {
    format!("{at} looks like a secret: use request_credentials, a form's answer is not kept secret")
}

/// Whether a text names a secret, in any case of its letters.
///
/// - A name from [`SECRET_NAMES`] counts anywhere: inside a word (`mypassword`), and across
///   separators (`pass-word`). Harmless words that contain such a name are removed first (see
///   [`HARMLESS_WORDS`]).
/// - A name from [`SECRET_WORDS`] counts only as a whole word.
pub(crate) fn names_secret(text: &str) -> bool {
    // The harmless words are removed from each word, before the words are joined. After the join,
    // `secret aria` would be `secretaria`. The removal of the harmless `secretari` would then also
    // remove the name `secret`.
    let joined: String = folded(text)
        .split(|c: char| !c.is_alphanumeric())
        .map(|word| {
            HARMLESS_WORDS
                .iter()
                .fold(word.to_owned(), |word, harmless| {
                    word.replace(harmless, " ")
                })
        })
        .collect();
    SECRET_NAMES.iter().any(|secret| joined.contains(secret))
        || words(text)
            .iter()
            .any(|word| SECRET_WORDS.contains(&word.as_str()))
}

/// Splits a text into words: `userPin2`, `USER_PIN` and `user-pin` all contain `pin`.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    let mut letters = text.chars().peekable();
    while let Some(c) = letters.next() {
        let next_is_small = letters.peek().is_some_and(|next| next.is_lowercase());
        let starts_word = (before.is_lowercase() && c.is_uppercase())
            || (before.is_uppercase() && c.is_uppercase() && next_is_small)
            || (before.is_alphabetic() && c.is_numeric());
        if starts_word || !c.is_alphanumeric() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.push(c);
        }
        before = c;
    }
    words
        .iter()
        .map(|word| folded(word))
        .filter(|word| !word.is_empty())
        .collect()
}
