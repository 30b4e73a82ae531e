//! Compiles all JSON Schemas of the program (draft 2020-12). Invariant: nothing outside the schema
//! is fetched or read, patterns run in linear time, and the size of the schema is bounded. An error
//! about a value names the place and the expectation, never the value.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value, json};

use super::schema_rewriter::{depth_flaw, in_place_schemas, resolve, rewrite};
use crate::task::text::{cut, pointer, pointer_steps, visit_values};

const MAX_SCHEMA_BYTES: usize = 256 * 1024;
const MAX_VIOLATIONS: usize = 8;
/// The maximum number of bytes that an error quotes of a single text, such as a place or a name.
const MAX_QUOTED_BYTES: usize = 120;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchemaFlaw {
    /// The JSON Pointer to the place in the schema; empty for the whole schema.
    pub pointer: String,
    /// The end of a sentence that begins with the name of the schema, such as `is nested deeper
    /// than 64`.
    pub detail: String,
}

impl SchemaFlaw {
    pub(super) fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            detail: detail.into(),
        }
    }

    /// Returns the keys and indexes that lead from the top of the schema to the place.
    #[must_use]
    pub(crate) fn keys(&self) -> Vec<String> {
        pointer_steps(&self.pointer)
    }
}

/// A place in a value where the value does not fit its schema.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchemaViolation {
    /// The JSON Pointer to the place; empty for the whole value.
    pub pointer: String,
    /// The unmet expectation, such as `is required`; never the value.
    pub detail: String,
    /// Whether the unmet expectation is `format: date`.
    pub is_date_expected: bool,
}

/// The places where a value does not fit its schema; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SchemaViolations(pub Vec<SchemaViolation>);

impl SchemaViolations {
    pub(crate) fn single(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self(vec![SchemaViolation {
            pointer: pointer.into(),
            detail: detail.into(),
            is_date_expected: false,
        }])
    }
}

impl fmt::Display for SchemaViolations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.0.iter().enumerate() {
            let place = if violation.pointer.is_empty() {
                "the whole"
            } else {
                &violation.pointer
            };
            write!(
                f,
                "{}{place}: {}",
                if index == 0 { "" } else { "; " },
                violation.detail
            )?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct CompiledSchema {
    validator: Validator,
}

impl CompiledSchema {
    /// Compiles the schema of a tool's arguments. The compiled schema refuses undeclared members at
    /// any level, except where `schema_rewriter.rs` leaves a schema open: for example, if the
    /// schema has `additionalProperties` or declares no `properties`.
    ///
    /// # Errors
    /// Fails if the schema has flaws. The error lists the flaws.
    pub fn closed(schema: &Value) -> Result<Self, Vec<SchemaFlaw>> {
        Self::compile(schema, true)
    }

    /// Compiles the `parameters` of a tool like [`CompiledSchema::closed`], and also requires that
    /// they are the schema of an object.
    ///
    /// # Errors
    /// Fails if the schema has flaws. The error lists the flaws.
    pub(crate) fn of_parameters(parameters: &Value) -> Result<Self, Vec<SchemaFlaw>> {
        let closed = Self::closed(parameters);
        if parameters.get("type").and_then(Value::as_str) == Some("object") {
            return closed;
        }
        let not_an_object = SchemaFlaw::new("/type", "must say `type: object`");
        let others = closed.err().into_iter().flatten();
        Err(std::iter::once(not_an_object).chain(others).collect())
    }

    /// Compiles the schema of a form or a result, with standard JSON Schema semantics.
    ///
    /// # Errors
    /// Fails if the schema has flaws. The error lists the flaws.
    pub fn open(schema: &Value) -> Result<Self, Vec<SchemaFlaw>> {
        Self::compile(schema, false)
    }

    fn compile(schema: &Value, close: bool) -> Result<Self, Vec<SchemaFlaw>> {
        if let Some(flaw) = size_flaw(schema) {
            return Err(vec![flaw]);
        }
        let rewritten = rewrite(schema, close);
        let mut flaws = rewritten.flaws;
        let is_known = |flaws: &BTreeSet<SchemaFlaw>, flaw: &SchemaFlaw| {
            flaws.iter().any(|known| known.pointer == flaw.pointer)
        };
        let meta = jsonschema::draft202012::meta::validator();
        let of_meta: Vec<SchemaFlaw> = meta
            .iter_errors(schema)
            .map(|error| meta_flaw(&error))
            .filter(|flaw| !is_known(&flaws, flaw))
            .collect();
        flaws.extend(of_meta);
        let mut unplaced = None;
        if flaws.is_empty() {
            match build(&rewritten.schema) {
                Ok(validator) => return Ok(Self { validator }),
                Err(error) => unplaced = Some(meta_flaw(&error)),
            }
        }
        // `build` reports the first invalid pattern without its place, so each pattern is compiled
        // alone.
        for (place, pattern) in rewritten.patterns {
            if build(&json!({"pattern": pattern})).is_err() {
                let flaw = pattern_flaw(&place);
                if !is_known(&flaws, &flaw) {
                    flaws.insert(flaw);
                }
            }
        }
        if flaws.is_empty() {
            flaws.extend(unplaced);
        }
        Err(flaws.into_iter().collect())
    }

    /// Checks that a value fits the schema.
    ///
    /// # Errors
    /// Fails if the value does not fit the schema. The error lists at most eight places that do not
    /// fit.
    pub fn check(&self, value: &Value) -> Result<(), SchemaViolations> {
        if self.validator.is_valid(value) {
            return Ok(());
        }
        let mut violations: Vec<SchemaViolation> = Vec::new();
        // If a member has the wrong type, the validator reports the member twice: with the wrong
        // type, and as undeclared. `undeclared` collects the errors about undeclared members. The
        // `retain` below drops such an error if the same member has another error.
        let mut undeclared = Vec::new();
        for error in self.validator.iter_errors(value).take(64) {
            let kind = error.kind();
            if matches!(
                kind,
                ValidationErrorKind::UnevaluatedProperties { .. }
                    | ValidationErrorKind::AdditionalProperties { .. }
            ) {
                undeclared.extend(to_violations(&error));
            } else {
                violations.extend(to_violations(&error));
            }
        }
        undeclared.retain(|extra| {
            !violations
                .iter()
                .any(|violation| is_at_or_below(&violation.pointer, &extra.pointer))
        });
        violations.extend(undeclared);
        let mut seen = BTreeSet::new();
        violations.retain(|violation| seen.insert(violation.clone()));
        violations.truncate(MAX_VIOLATIONS);
        if violations.is_empty() {
            return Err(SchemaViolations::single("", "does not fit its JSON Schema"));
        }
        Err(SchemaViolations(violations))
    }
}

/// Whether the JSON Pointer `inner` leads to the place of the JSON Pointer `outer`, or below it.
fn is_at_or_below(inner: &str, outer: &str) -> bool {
    let rest = inner.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the closed form of `schema`, against which [`CompiledSchema::closed`] checks a call's
/// arguments. `None` if the rewriter finds a flaw in `schema`.
#[must_use]
pub(crate) fn closed_schema(schema: &Value) -> Option<Value> {
    if depth_flaw(schema).is_some() {
        return None;
    }
    let rewritten = rewrite(schema, true);
    rewritten.flaws.is_empty().then_some(rewritten.schema)
}

fn size_flaw(schema: &Value) -> Option<SchemaFlaw> {
    if schema.to_string().len() > MAX_SCHEMA_BYTES {
        let detail = format!("is longer than {} KiB", MAX_SCHEMA_BYTES / 1024);
        return Some(SchemaFlaw::new("", detail));
    }
    depth_flaw(schema)
}

/// Compiles a schema that refers to nothing outside itself.
fn build(schema: &Value) -> Result<Validator, ValidationError<'static>> {
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .with_pattern_options(
            PatternOptions::regex()
                .size_limit(1 << 20)
                .dfa_size_limit(1 << 20),
        )
        .should_validate_formats(true)
        .offline()
        .build(schema)
}

/// Two parameter names that differ only in case: the path of the second name in the schema, the
/// first name and the second name.
pub(crate) type CaseCollision<'v> = (Vec<String>, &'v str, &'v str);

#[must_use]
pub(crate) fn case_collisions(schema: &Value) -> Vec<CaseCollision<'_>> {
    let mut found = Vec::new();
    visit_values(schema, "", &mut |at, inner| {
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        let properties = inner.get("properties").and_then(Value::as_object);
        for parameter in properties.into_iter().flat_map(Map::keys) {
            if let Some(other) = seen.insert(parameter.to_lowercase(), parameter) {
                let place = pointer(&pointer(at, "properties"), parameter);
                found.push((pointer_steps(&place), other, parameter.as_str()));
            }
        }
    });
    found
}

/// Returns the members that an object schema declares, by name. If several parts of the schema
/// declare a member, for example through `allOf`, the member has several schemas.
#[must_use]
pub(crate) fn declared_members(parameters: &Value) -> BTreeMap<&str, Vec<&Value>> {
    let mut members: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for part in in_place_schemas(parameters, parameters) {
        for (name, schema) in part
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            members.entry(name).or_default().push(schema);
        }
    }
    members
}

/// Whether `parameters` refuses every undeclared member of the arguments (see
/// [`CompiledSchema::closed`]). False if an undeclared member may fit, as with `patternProperties`.
#[must_use]
pub(crate) fn refuses_undeclared_members(parameters: &Value) -> bool {
    let parts = in_place_schemas(parameters, parameters);
    let further = ["additionalProperties", "unevaluatedProperties"];
    let is_open = parts.iter().any(|part| {
        let accepts = |key: &&str| part.get(*key).is_some_and(|it| *it != Value::Bool(false));
        part.contains_key("patternProperties") || further.iter().any(accepts)
    });
    let is_explicit = further.iter().any(|key| parameters.get(*key).is_some());
    !is_open && (is_explicit || parts.iter().any(|part| part.contains_key("properties")))
}

/// Whether a schema inside `root` provably accepts only text, numbers, booleans and null.
#[must_use]
pub(crate) fn accepts_only_scalars(root: &Value, schema: &Value) -> bool {
    accepts_only_scalars_within(root, schema, 16)
}

fn accepts_only_scalars_within(root: &Value, schema: &Value, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    let Value::Object(members) = schema else {
        return *schema == Value::Bool(false);
    };
    let types: Vec<&str> = match members.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => {
            Vec::new()
        }
    };
    if !types.is_empty() {
        return !types.iter().any(|one| matches!(*one, "object" | "array"));
    }
    if let Some(options) = members.get("enum").and_then(Value::as_array) {
        return options
            .iter()
            .all(|option| !option.is_object() && !option.is_array());
    }
    if let Some(constant) = members.get("const") {
        return !constant.is_object() && !constant.is_array();
    }
    let referenced = members
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|reference| resolve(root, reference));
    if referenced.is_some_and(|target| accepts_only_scalars_within(root, target, depth)) {
        return true;
    }
    let list = |keyword: &str| schema_list(members, keyword);
    list("allOf")
        .iter()
        .any(|one| accepts_only_scalars_within(root, one, depth))
        || ["anyOf", "oneOf"].iter().any(|keyword| {
            let several = list(keyword);
            !several.is_empty()
                && several
                    .iter()
                    .all(|one| accepts_only_scalars_within(root, one, depth))
        })
}

fn schema_list<'s>(members: &'s Map<String, Value>, keyword: &str) -> &'s [Value] {
    members
        .get(keyword)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn meta_flaw(error: &ValidationError<'_>) -> SchemaFlaw {
    let place = error.instance_path().to_string();
    if let ValidationErrorKind::Format { format } = error.kind()
        && format == "regex"
    {
        return pattern_flaw(&place);
    }
    SchemaFlaw::new(
        &place,
        format!("at {}: {}", quoted_place(&place), expectation(error.kind())),
    )
}

fn pattern_flaw(place: &str) -> SchemaFlaw {
    let quoted = quoted_place(place);
    SchemaFlaw::new(
        place,
        format!("at {quoted}: the pattern is not one the linear engine can run"),
    )
}

fn quoted_place(place: &str) -> &str {
    if place.is_empty() {
        "its top"
    } else {
        cut(place, MAX_QUOTED_BYTES)
    }
}

fn to_violations(error: &ValidationError<'_>) -> Vec<SchemaViolation> {
    let at = error.instance_path().to_string();
    let inside = |name: &str| cut(&pointer(&at, name), MAX_QUOTED_BYTES).to_owned();
    if let ValidationErrorKind::UnevaluatedProperties { unexpected }
    | ValidationErrorKind::AdditionalProperties { unexpected } = error.kind()
    {
        let undeclared = |name: &String| SchemaViolation {
            pointer: inside(name),
            detail: "is not declared".to_owned(),
            is_date_expected: false,
        };
        return unexpected
            .iter()
            .take(MAX_VIOLATIONS)
            .map(undeclared)
            .collect();
    }
    if let ValidationErrorKind::Required { property } = error.kind() {
        let name = property.as_str().unwrap_or_default();
        return vec![SchemaViolation {
            pointer: inside(name),
            detail: "is required".to_owned(),
            is_date_expected: false,
        }];
    }
    let is_date_expected =
        matches!(error.kind(), ValidationErrorKind::Format { format } if format == "date");
    vec![SchemaViolation {
        pointer: cut(&at, MAX_QUOTED_BYTES).to_owned(),
        detail: expectation(error.kind()),
        is_date_expected,
    }]
}

/// Returns the unmet expectation as a phrase, such as `must be of type string`.
fn expectation(kind: &ValidationErrorKind) -> String {
    use ValidationErrorKind as Kind;
    let briefly = |value: &Value| cut(&value.to_string(), MAX_QUOTED_BYTES).to_owned();
    match kind {
        Kind::Type {
            kind: TypeKind::Single(one),
        } => format!("must be of type {one}"),
        Kind::Type {
            kind: TypeKind::Multiple(several),
        } => {
            let several: Vec<String> = several.iter().map(|one| one.to_string()).collect();
            format!("must be of type {}", several.join(" or "))
        }
        Kind::Enum { options } => format!("must be one of {}", briefly(options)),
        Kind::Constant { expected_value } => format!("must be {}", briefly(expected_value)),
        Kind::Minimum { limit } => format!("must be at least {limit}"),
        Kind::Maximum { limit } => format!("must be at most {limit}"),
        Kind::ExclusiveMinimum { limit } => format!("must be more than {limit}"),
        Kind::ExclusiveMaximum { limit } => format!("must be less than {limit}"),
        Kind::MultipleOf { multiple_of } => format!("must be a multiple of {multiple_of}"),
        Kind::MinLength { limit } => format!("must have at least {limit} characters"),
        Kind::MaxLength { limit } => format!("must have at most {limit} characters"),
        Kind::MinItems { limit } => format!("must have at least {limit} elements"),
        Kind::MaxItems { limit } => format!("must have at most {limit} elements"),
        Kind::AdditionalItems { limit } => format!("must have at most {limit} elements"),
        Kind::MinProperties { limit } => format!("must have at least {limit} members"),
        Kind::MaxProperties { limit } => format!("must have at most {limit} members"),
        Kind::Pattern { pattern } => {
            format!("must match the pattern {}", cut(pattern, MAX_QUOTED_BYTES))
        }
        Kind::Format { format } => {
            format!("must have the format {}", cut(format, MAX_QUOTED_BYTES))
        }
        Kind::UniqueItems => "must not have equal elements".to_owned(),
        Kind::Contains => "must have an element of the declared form".to_owned(),
        Kind::PropertyNames { .. } => "has a member whose name does not fit".to_owned(),
        Kind::Required { .. } => "lacks a required member".to_owned(),
        Kind::AdditionalProperties { .. } | Kind::UnevaluatedProperties { .. } => {
            "has a member that is not declared".to_owned()
        }
        Kind::UnevaluatedItems { .. } => "has elements that are not declared".to_owned(),
        Kind::AnyOf { .. } | Kind::OneOfNotValid { .. } => {
            "fits none of the declared forms".to_owned()
        }
        Kind::OneOfMultipleValid { .. } => "fits more than one of the declared forms".to_owned(),
        Kind::Not { .. } => "fits a form that is excluded".to_owned(),
        Kind::FalseSchema => "nothing is allowed here".to_owned(),
        Kind::Referencing(_) => "has a `$ref` that leads nowhere".to_owned(),
        Kind::BacktrackLimitExceeded { .. }
        | Kind::RegexEngineFailure { .. }
        | Kind::ContentEncoding { .. }
        | Kind::ContentMediaType { .. }
        | Kind::FromUtf8 { .. }
        | Kind::Custom { .. } => "does not fit".to_owned(),
    }
}
