//! Checks the URL, the query, the summary and the command in a tool's settings against the
//! arguments that the tool declares.

use serde_json::Value;

use crate::task::tool_spec::{SummaryPart, summary_parts};
use crate::tool::http::{CheckedSettings, Destination};
use crate::tool::schema::{
    SchemaFlaw, accepts_only_scalars, declared_members, refuses_undeclared_members,
};
use crate::tool::url_template::UrlTemplate;
use crate::tool::{external, http, names};
use crate::world::Mistakes;

/// Adds the mistakes in `wrong` to `mistakes`. The places in `wrong` are relative to `at`.
pub(super) fn add_all(mistakes: &mut Mistakes, at: &[&str], wrong: Mistakes) {
    for mistake in wrong.found {
        let keys = mistake.place.iter().map(String::as_str);
        let place: Vec<&str> = at.iter().copied().chain(keys).collect();
        let key = place.last().copied().unwrap_or_default();
        mistakes.add(&place, format!("`{key}` {}", mistake.detail));
    }
}

/// Adds `flaws`, the flaws of the schema at `place`, to `mistakes`. Each message begins with
/// `noun`, a phrase for the schema.
pub(super) fn add_schema_flaws(
    mistakes: &mut Mistakes,
    place: &[&str],
    noun: &str,
    flaws: Vec<SchemaFlaw>,
) {
    for flaw in flaws {
        let keys = flaw.keys();
        let keys = keys.iter().map(String::as_str);
        let place: Vec<&str> = place.iter().copied().chain(keys).collect();
        mistakes.add(&place, format!("{noun} {}", flaw.detail));
    }
}

/// Warns about each argument that the parameters require but do not declare. No call of such a tool
/// is valid: a call with the argument is refused because the argument is undeclared, and a call
/// without the argument is refused because the argument is required. Gives no warning if the
/// parameters accept undeclared arguments.
pub(super) fn check_required(name: &str, parameters: &Value, mistakes: &mut Mistakes) {
    if !refuses_undeclared_members(parameters) {
        return;
    }
    let members = declared_members(parameters);
    let required = parameters.get("required").and_then(Value::as_array);
    for (index, argument) in required.into_iter().flatten().enumerate() {
        if let Some(argument) = argument.as_str()
            && !members.contains_key(argument)
        {
            let index = index.to_string();
            let place = ["tools", name, "parameters", "required", &index];
            let detail = format!(
                "`{argument}` is required and not declared, so no call of `{name}` is valid: add it to `properties`"
            );
            mistakes.warn(&place, detail);
        }
    }
}

/// Returns the JSON Schema for the result of an external tool; `None` if the tool accepts any
/// result or the schema has flaws.
pub(super) fn external_result_schema(
    name: &str,
    settings: &external::Settings,
    mistakes: &mut Mistakes,
) -> Option<Value> {
    settings.result_schema().unwrap_or_else(|flaws| {
        let place = ["tools", name, "external", "result"];
        add_schema_flaws(mistakes, &place, "the schema", flaws);
        None
    })
}

/// Checks the settings of an HTTP tool, and adds all mistakes to `mistakes`. May return settings in
/// spite of a mistake; the caller must not send requests with such settings.
pub(super) fn check_http(
    name: &str,
    settings: &http::Settings,
    parameters: &Value,
    mistakes: &mut Mistakes,
) -> Option<CheckedSettings> {
    let (checked, wrong) = settings.checked();
    add_all(mistakes, &["tools", name, "http"], wrong);
    if let Some(http) = &checked {
        check_url_arguments(name, http, parameters, mistakes);
    }
    checked
}

/// Checks that each argument in an HTTP tool's URL is declared as text, a number or a boolean, and
/// warns if the argument is not required. If the tool sends no body, all other arguments go into
/// the query, and [`check_query`] checks them.
fn check_url_arguments(
    name: &str,
    http: &CheckedSettings,
    parameters: &Value,
    mistakes: &mut Mistakes,
) {
    let Destination::Url(template) = &http.destination else {
        return;
    };
    let members = declared_members(parameters);
    let required = parameters.get("required").and_then(Value::as_array);
    for argument in template.arguments() {
        let place = ["tools", name, "http", "url"];
        match members.get(argument) {
            None => mistakes.add(
                &place,
                format!("`{{{argument}}}` is not declared in the parameters of `{name}`"),
            ),
            Some(schemas) if !is_scalar(parameters, schemas) => {
                mistakes.add(
                    &place,
                    format!("`{{{argument}}}` must be declared as text, a number or a boolean"),
                );
            }
            Some(_) if !required.is_some_and(|names| names.iter().any(|name| name == argument)) => {
                mistakes.warn(
                    &place,
                    format!("`{{{argument}}}` is not `required`: a call without it fails"),
                );
            }
            Some(_) => {}
        }
    }
    if !http.has_body() {
        check_query(name, http, template, parameters, mistakes);
    }
}

/// Checks that every argument that is not in the `url` can be sent in the query: the argument must
/// be a scalar, and the query in the `url` must not already have a parameter with the argument's
/// name.
fn check_query(
    name: &str,
    http: &CheckedSettings,
    template: &UrlTemplate,
    parameters: &Value,
    mistakes: &mut Mistakes,
) {
    let members = declared_members(parameters);
    let taken = template.query_names();
    for (member, schemas) in &members {
        let place = ["tools", name, "parameters", "properties", member];
        if template.arguments().any(|argument| argument == *member) {
            continue;
        }
        if !is_scalar(parameters, schemas) {
            let method = &http.method;
            mistakes.add(
                &place,
                format!("`{member}` goes into the query of a {method}: declare it as text, a number or a boolean"),
            );
        }
        if taken.contains(&names::folded(member)) {
            mistakes.add(
                &place,
                format!("`{member}` is a name that the query of the `url` has already"),
            );
        }
    }
    let further = parameters.get("additionalProperties");
    if further.is_some_and(|schema| {
        *schema != Value::Bool(true) && !accepts_only_scalars(parameters, schema)
    }) {
        let place = ["tools", name, "parameters", "additionalProperties"];
        mistakes.add(
            &place,
            "further arguments go into the query: declare them as text, a number or a boolean",
        );
    }
}

/// Whether at least one of a member's schemas accepts only text, numbers, booleans and null.
fn is_scalar(parameters: &Value, schemas: &[&Value]) -> bool {
    let mut schemas = schemas.iter();
    schemas.any(|schema| accepts_only_scalars(parameters, schema))
}

/// Reports two mistakes in a summary. The first is a `{name}` that the parameters do not declare:
/// the line that an approver reads would have a gap there. The second is a `{` that is not part of
/// a `{name}`.
pub(super) fn check_summary(
    name: &str,
    summary: &str,
    parameters: &Value,
    mistakes: &mut Mistakes,
) {
    let (place, members) = (["tools", name, "summary"], declared_members(parameters));
    for part in summary_parts(summary) {
        match part {
            SummaryPart::Argument(argument) if !members.contains_key(argument) => {
                mistakes.add(
                    &place,
                    format!("`{{{argument}}}` is not declared in the parameters of `{name}`"),
                );
            }
            SummaryPart::Text(text) if text.starts_with('{') => {
                mistakes.add(&place, "`summary` has a `{` that is not part of a `{name}`");
            }
            SummaryPart::Argument(_) | SummaryPart::Text(_) => {}
        }
    }
}

pub(super) fn check_command(name: &str, parameters: &Value, mistakes: &mut Mistakes) {
    let is_text = parameters
        .pointer("/properties/command/type")
        .and_then(Value::as_str)
        == Some("string");
    let required = parameters.get("required").and_then(Value::as_array);
    if !is_text || !required.is_some_and(|names| names.iter().any(|name| name == "command")) {
        mistakes.add(
            &["tools", name, "parameters"],
            format!("`{name}` must declare `command`, required, of type string"),
        );
    }
}
