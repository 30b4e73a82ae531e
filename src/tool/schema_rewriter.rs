//! Rewrites a JSON Schema so that the schema refers to nothing outside itself. On request, the
//! rewriter also closes the schema: a closed schema refuses undeclared members at every level
//! (`unevaluatedProperties: false`). Invariant:
//!
//! - The schemas that apply to one value (a schema with everything that `allOf`, `anyOf`, `oneOf`,
//!   `if`, `then`, `else`, `dependentSchemas` and `$ref` bring in) are closed once, at the
//!   outermost schema. If each branch were closed separately, a branch would refuse members that
//!   another branch declares.
//! - A `$ref` therefore never points to a closed schema. Each target is copied into `$defs` without
//!   being closed, and the schema with the `$ref` is closed instead.
//! - A schema that is a condition (`not`, `if`, `contains`, `propertyNames`) is not closed inside,
//!   because a stricter condition can make the whole schema accept more.
//! - A schema with `additionalProperties` or `unevaluatedProperties` is not closed. A schema is not
//!   closed either if none of the schemas that apply to the same value has `properties`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::names;

/// Keywords whose value is a schema for nested values.
const CHILD_KEYWORDS: [&str; 4] = [
    "additionalProperties",
    "items",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a condition. A condition is not closed inside, because closing would
/// change the condition and could make a `not` accept more.
const CONDITION_KEYWORDS: [&str; 4] = ["not", "if", "contains", "propertyNames"];
/// Keywords whose value is a list of schemas for nested values.
const CHILD_LIST_KEYWORDS: [&str; 1] = ["prefixItems"];
/// Keywords whose value maps names to schemas for nested values.
const CHILD_MAP_KEYWORDS: [&str; 2] = ["properties", "patternProperties"];
/// Keywords that hold a schema for the same instance. `contentSchema` is about the content of a
/// text, but draft 2020-12 checks nothing against `contentSchema`.
const IN_PLACE_KEYWORDS: [&str; 3] = ["then", "else", "contentSchema"];
/// Keywords that hold a list of schemas for the same instance.
const IN_PLACE_LIST_KEYWORDS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that map names to schemas for the same instance.
const IN_PLACE_MAP_KEYWORDS: [&str; 1] = ["dependentSchemas"];
/// Keywords that the rewriter resolves and leaves out of the result.
const OMITTED_KEYWORDS: [&str; 6] = [
    "$schema",
    "$id",
    "$anchor",
    "$defs",
    "definitions",
    "$comment",
];
/// Keywords that draft 2020-12 would ignore, or whose meaning depends on more than this schema.
const REFUSED_KEYWORDS: [&str; 6] = [
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "dependencies",
    "additionalItems",
];
/// The maximum nesting depth of a schema.
const MAX_DEPTH: usize = 64;
/// The maximum number of schemas that may apply to one value.
const MAX_WEIGHT: u64 = 10_000;
/// The only supported dialect of JSON Schema.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Rewrites the given schema and every target of a `$ref`.
pub(super) struct Rewriter<'s> {
    root: &'s Value,
    /// Whether the schemas at the current place are closed.
    close: bool,
    /// The number of each `$ref` target's copy in `$defs`. The key is the reference, and whether
    /// the schemas inside the target are closed.
    targets: BTreeMap<(String, bool), usize>,
    /// The keys of the targets that are not copied yet.
    pending: Vec<(String, bool)>,
    flaws: BTreeSet<String>,
}

/// Rewrites a schema: resolves every local `$ref` to a copy and, if `close` is true, refuses
/// undeclared members.
pub(super) fn rewrite(schema: &Value, close: bool) -> Result<Value, Vec<String>> {
    if depth(schema) > MAX_DEPTH {
        return Err(vec![format!("is nested deeper than {MAX_DEPTH}")]);
    }
    let mut rewriter = Rewriter {
        root: schema,
        close,
        targets: BTreeMap::new(),
        pending: Vec::new(),
        flaws: BTreeSet::new(),
    };
    rewriter.rewrite_root()
}

/// Returns the schema that a local `$ref` names (by `#`, a JSON pointer or an anchor); `None` if
/// there is no such schema.
pub(super) fn resolve<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    let fragment = reference.strip_prefix('#')?;
    let fragment = percent_encoding::percent_decode_str(fragment)
        .decode_utf8()
        .ok()?;
    let found = if fragment.is_empty() || fragment.starts_with('/') {
        root.pointer(&fragment)
    } else {
        find_anchor(root, &fragment)
    };
    found.filter(|schema| schema.is_object() || schema.is_boolean())
}

/// Returns the schemas that apply to the same value as `schema`, including `schema` itself.
/// Terminates even if the references form a cycle.
pub(super) fn in_place_schemas<'s>(
    root: &'s Value,
    schema: &'s Value,
) -> Vec<&'s Map<String, Value>> {
    let mut found: Vec<&Map<String, Value>> = Vec::new();
    let mut pending = vec![schema];
    while let Some(next) = pending.pop() {
        let Value::Object(members) = next else {
            continue;
        };
        if found.iter().any(|seen| std::ptr::eq(*seen, members)) {
            continue;
        }
        found.push(members);
        for (keyword, value) in members {
            match keyword.as_str() {
                "$ref" => pending.extend(
                    value
                        .as_str()
                        .and_then(|reference| resolve(root, reference)),
                ),
                "if" | "then" | "else" => pending.push(value),
                "allOf" | "anyOf" | "oneOf" => {
                    pending.extend(value.as_array().into_iter().flatten());
                }
                "dependentSchemas" => {
                    pending.extend(value.as_object().into_iter().flat_map(Map::values));
                }
                _ => {}
            }
        }
    }
    found
}

impl Rewriter<'_> {
    fn rewrite_root(&mut self) -> Result<Value, Vec<String>> {
        let mut schema = self.rewrite_child(self.root, "");
        let mut copies = Map::new();
        while let Some(target) = self.pending.pop() {
            let number = self.targets.get(&target).copied().unwrap_or_default();
            let (reference, close) = target;
            self.close = close;
            let copy = if let Some(found) = resolve(self.root, &reference) {
                self.rewrite_open(found, &reference)
            } else {
                self.flaws.insert(format!(
                    "has a `$ref` to `{}`, where there is no schema",
                    shortened(&reference)
                ));
                Value::Bool(false)
            };
            copies.insert(number.to_string(), copy);
        }
        if self.flaws.is_empty() {
            self.flaws.extend(check_weight(&schema, &copies).err());
        }
        if !self.flaws.is_empty() {
            return Err(std::mem::take(&mut self.flaws).into_iter().collect());
        }
        if let (Value::Object(members), false) = (&mut schema, copies.is_empty()) {
            members.insert("$defs".to_owned(), Value::Object(copies));
        }
        Ok(schema)
    }

    /// Rewrites the outermost schema of a value, and closes it where needed.
    fn rewrite_child(&mut self, schema: &Value, at: &str) -> Value {
        let mut rewritten = self.rewrite_open(schema, at);
        let (Value::Object(original), Value::Object(members)) = (schema, &mut rewritten) else {
            return rewritten;
        };
        let mut declared: BTreeMap<String, &str> = BTreeMap::new();
        let mut has_properties = false;
        for part in in_place_schemas(self.root, schema) {
            let Some(properties) = part.get("properties").and_then(Value::as_object) else {
                continue;
            };
            has_properties = true;
            for name in properties.keys() {
                if let Some(twin) = declared.insert(names::folded(name), name)
                    && twin != name
                {
                    let (one, other) = (shortened(twin), shortened(name));
                    self.flaws.insert(format!(
                        "declares `{one}` and `{other}`, which differ only in case or form"
                    ));
                }
            }
        }
        let is_explicit = original.contains_key("additionalProperties")
            || original.contains_key("unevaluatedProperties");
        if self.close && has_properties && !is_explicit {
            members.insert("unevaluatedProperties".to_owned(), Value::Bool(false));
        }
        rewritten
    }

    /// Rewrites a schema without closing it: closes only the schemas of nested values.
    fn rewrite_open(&mut self, schema: &Value, at: &str) -> Value {
        let Value::Object(members) = schema else {
            return schema.clone();
        };
        let mut rewritten = Map::new();
        for (keyword, value) in members {
            let keyword = keyword.as_str();
            let place = format!("{at}/{keyword}");
            if OMITTED_KEYWORDS.contains(&keyword) {
                self.check_omitted(keyword, value, at);
                continue;
            }
            if REFUSED_KEYWORDS.contains(&keyword) {
                self.flaws
                    .insert(format!("says `{keyword}`, which is not supported"));
            }
            let value = if keyword == "$ref" {
                self.rewrite_reference(value)
            } else if CHILD_KEYWORDS.contains(&keyword) {
                self.rewrite_child(value, &place)
            } else if CONDITION_KEYWORDS.contains(&keyword) {
                let close = std::mem::replace(&mut self.close, false);
                let condition = self.rewrite_open(value, &place);
                self.close = close;
                condition
            } else if IN_PLACE_KEYWORDS.contains(&keyword) {
                self.rewrite_open(value, &place)
            } else if CHILD_LIST_KEYWORDS.contains(&keyword) {
                self.rewrite_list(value, &place, true)
            } else if IN_PLACE_LIST_KEYWORDS.contains(&keyword) {
                self.rewrite_list(value, &place, false)
            } else if CHILD_MAP_KEYWORDS.contains(&keyword) {
                self.rewrite_map(value, &place, true)
            } else if IN_PLACE_MAP_KEYWORDS.contains(&keyword) {
                self.rewrite_map(value, &place, false)
            } else {
                value.clone()
            };
            rewritten.insert(keyword.to_owned(), value);
        }
        Value::Object(rewritten)
    }

    fn check_omitted(&mut self, keyword: &str, value: &Value, at: &str) {
        if keyword == "$id" && !at.is_empty() {
            self.flaws
                .insert("says `$id` inside, which is not supported".to_owned());
        }
        if keyword == "$schema"
            && value.as_str().map(|dialect| dialect.trim_end_matches('#')) != Some(DIALECT)
        {
            self.flaws
                .insert(format!("says another `$schema` than {DIALECT}"));
        }
    }

    fn rewrite_list(&mut self, list: &Value, at: &str, is_child: bool) -> Value {
        let Value::Array(schemas) = list else {
            return list.clone();
        };
        Value::Array(
            schemas
                .iter()
                .map(|schema| self.rewrite_one(schema, at, is_child))
                .collect(),
        )
    }

    fn rewrite_map(&mut self, map: &Value, at: &str, is_child: bool) -> Value {
        let Value::Object(schemas) = map else {
            return map.clone();
        };
        Value::Object(
            schemas
                .iter()
                .map(|(name, schema)| (name.clone(), self.rewrite_one(schema, at, is_child)))
                .collect(),
        )
    }

    fn rewrite_one(&mut self, schema: &Value, at: &str, is_child: bool) -> Value {
        if is_child {
            self.rewrite_child(schema, at)
        } else {
            self.rewrite_open(schema, at)
        }
    }

    fn rewrite_reference(&mut self, value: &Value) -> Value {
        let Some(reference) = value
            .as_str()
            .filter(|reference| reference.starts_with('#'))
        else {
            self.flaws.insert(
                "has a `$ref` that does not begin with `#`; only places in the same schema can be used".to_owned(),
            );
            return value.clone();
        };
        let next_number = self.targets.len();
        let target = (reference.to_owned(), self.close);
        let number = *self.targets.entry(target.clone()).or_insert_with(|| {
            self.pending.push(target);
            next_number
        });
        json!(format!("#/$defs/{number}"))
    }
}

/// Refuses a schema that applies more than [`MAX_WEIGHT`] schemas to a single value. Also refuses a
/// schema in which a `$ref` leads back to itself for the same value.
fn check_weight(schema: &Value, copies: &Map<String, Value>) -> Result<(), String> {
    let within_limit = |weight: u64| {
        let fits = weight <= MAX_WEIGHT;
        fits.then_some(weight)
            .ok_or_else(|| "combines too many schemas for one value".to_owned())
    };
    let mut known = BTreeMap::new();
    for (number, copy) in copies {
        let weight = within_limit(weight(copy, copies, &mut known, &mut vec![number])?)?;
        known.insert(number, weight);
    }
    within_limit(weight(schema, copies, &mut known, &mut Vec::new())?).map(drop)
}

fn weight<'s>(
    schema: &'s Value,
    copies: &'s Map<String, Value>,
    known: &mut BTreeMap<&'s String, u64>,
    path: &mut Vec<&'s String>,
) -> Result<u64, String> {
    let Value::Object(members) = schema else {
        return Ok(1);
    };
    let mut total = 1_u64;
    for (keyword, value) in members {
        let keyword = keyword.as_str();
        if keyword == "$ref" {
            let target = value
                .as_str()
                .and_then(|reference| reference.strip_prefix("#/$defs/"));
            let Some((number, copy)) = target.and_then(|number| copies.get_key_value(number))
            else {
                continue;
            };
            if path.contains(&number) {
                return Err("has a `$ref` that leads back to itself for the same value".to_owned());
            }
            let weight = if let Some(weight) = known.get(number) {
                *weight
            } else {
                path.push(number);
                let weight = weight(copy, copies, known, path)?;
                path.pop();
                known.insert(number, weight);
                weight
            };
            total = total.saturating_add(weight);
        } else if IN_PLACE_KEYWORDS.contains(&keyword) || CONDITION_KEYWORDS.contains(&keyword) {
            total = total.saturating_add(weight(value, copies, known, path)?);
        } else if IN_PLACE_LIST_KEYWORDS.contains(&keyword) {
            for schema in value.as_array().into_iter().flatten() {
                total = total.saturating_add(weight(schema, copies, known, path)?);
            }
        } else if IN_PLACE_MAP_KEYWORDS.contains(&keyword) {
            for schema in value.as_object().into_iter().flat_map(Map::values) {
                total = total.saturating_add(weight(schema, copies, known, path)?);
            }
        }
    }
    Ok(total)
}

fn find_anchor<'s>(schema: &'s Value, anchor: &str) -> Option<&'s Value> {
    match schema {
        Value::Object(members) => {
            if members.get("$anchor").and_then(Value::as_str) == Some(anchor) {
                return Some(schema);
            }
            members
                .values()
                .find_map(|member| find_anchor(member, anchor))
        }
        Value::Array(elements) => elements
            .iter()
            .find_map(|element| find_anchor(element, anchor)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        Value::Array(elements) => 1 + elements.iter().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn shortened(name: &str) -> &str {
    crate::task::text::cut(name, 80)
}

#[cfg(test)]
mod tests;
