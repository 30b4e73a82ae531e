//! Rewrites a JSON Schema so that it refers to nothing outside itself and, where the schema is to
//! be closed, refuses undeclared members at every level (`unevaluatedProperties: false`).
//! Invariant:
//!
//! - The schemas that apply to one value (a schema with everything that `allOf`, `anyOf`, `oneOf`,
//!   `if`, `then`, `else`, `dependentSchemas` and `$ref` bring in) are closed once, at the
//!   outermost schema: a branch that is closed by itself would refuse members that another branch
//!   declares.
//! - A `$ref` therefore never points to a closed schema: each target is copied, open, into `$defs`,
//!   and is closed at the schema that refers to it.
//! - A schema that is a condition (`not`, `if`, `contains`, `propertyNames`) is not closed inside:
//!   a stricter condition can make the whole schema accept more.
//! - A schema with `additionalProperties` or `unevaluatedProperties` is not closed. Nor is a schema
//!   if none of the schemas that apply to its value has `properties`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::names;

/// Keywords whose value is a schema for nested values.
const CHILD: [&str; 4] = [
    "additionalProperties",
    "items",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a condition. A condition is not closed inside: closing would change it,
/// and make a `not` accept more.
const ASKING: [&str; 4] = ["not", "if", "contains", "propertyNames"];
/// Keywords whose value is a list of schemas for nested values.
const CHILD_LIST: [&str; 1] = ["prefixItems"];
/// Keywords whose value holds schemas for nested values, by name.
const CHILD_MAP: [&str; 2] = ["properties", "patternProperties"];
/// Keywords that hold a schema for the same instance. `contentSchema` is about a text's content,
/// but the 2020-12 draft checks nothing against it.
const SAME: [&str; 3] = ["then", "else", "contentSchema"];
/// Keywords that hold a list of schemas for the same instance.
const SAME_LIST: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that hold schemas for the same instance, by name.
const SAME_MAP: [&str; 1] = ["dependentSchemas"];
/// Keywords that the rewriter resolves itself and leaves out.
const LEFT_OUT: [&str; 6] = [
    "$schema",
    "$id",
    "$anchor",
    "$defs",
    "definitions",
    "$comment",
];
/// Keywords that the 2020-12 draft would ignore, or whose meaning depends on more than this schema.
const REFUSED: [&str; 6] = [
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "dependencies",
    "additionalItems",
];
/// The deepest nesting of a schema.
const DEPTH: usize = 64;
/// The maximum number of schemas that may apply to one value.
const WEIGHT: u64 = 10_000;
/// The only supported dialect.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Rewrites the given schema and every target of a `$ref`.
pub(super) struct Rewriter<'s> {
    root: &'s Value,
    /// Whether schemas are closed at the current place.
    close: bool,
    /// Maps the target of a `$ref`, and whether its inside is closed, to the number of its copy in
    /// `$defs`.
    targets: BTreeMap<(String, bool), usize>,
    /// Targets whose copy is not made yet.
    waiting: Vec<(String, bool)>,
    flaws: BTreeSet<String>,
}

/// Rewrites a schema: resolves every local `$ref` to a copy and, if `close` is true, refuses
/// undeclared members.
pub(super) fn rewrite(schema: &Value, close: bool) -> Result<Value, Vec<String>> {
    if depth(schema) > DEPTH {
        return Err(vec![format!("is nested deeper than {DEPTH}")]);
    }
    let mut rewriter = Rewriter {
        root: schema,
        close,
        targets: BTreeMap::new(),
        waiting: Vec::new(),
        flaws: BTreeSet::new(),
    };
    rewriter.whole()
}

/// Returns the schema that a local `$ref` names by `#`, a JSON pointer or an anchor; `None` if
/// there is none.
pub(super) fn resolve<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    let fragment = reference.strip_prefix('#')?;
    let fragment = percent_encoding::percent_decode_str(fragment)
        .decode_utf8()
        .ok()?;
    let found = if fragment.is_empty() || fragment.starts_with('/') {
        root.pointer(&fragment)
    } else {
        anchored(root, &fragment)
    };
    found.filter(|schema| schema.is_object() || schema.is_boolean())
}

/// Returns the schemas that apply to the same value as `schema`, including `schema` itself.
/// Terminates even if the references form a cycle.
pub(super) fn in_place<'s>(root: &'s Value, schema: &'s Value) -> Vec<&'s Map<String, Value>> {
    let mut found: Vec<&Map<String, Value>> = Vec::new();
    let mut waiting = vec![schema];
    while let Some(next) = waiting.pop() {
        let Value::Object(members) = next else {
            continue;
        };
        if found.iter().any(|seen| std::ptr::eq(*seen, members)) {
            continue;
        }
        found.push(members);
        for (keyword, value) in members {
            match keyword.as_str() {
                "$ref" => waiting.extend(
                    value
                        .as_str()
                        .and_then(|reference| resolve(root, reference)),
                ),
                "if" | "then" | "else" => waiting.push(value),
                "allOf" | "anyOf" | "oneOf" => {
                    waiting.extend(value.as_array().into_iter().flatten());
                }
                "dependentSchemas" => {
                    waiting.extend(value.as_object().into_iter().flat_map(Map::values));
                }
                _ => {}
            }
        }
    }
    found
}

impl Rewriter<'_> {
    fn whole(&mut self) -> Result<Value, Vec<String>> {
        let mut schema = self.child(self.root, "");
        let mut copies = Map::new();
        while let Some(target) = self.waiting.pop() {
            let number = self.targets.get(&target).copied().unwrap_or_default();
            let (reference, close) = target;
            self.close = close;
            let copy = if let Some(found) = resolve(self.root, &reference) {
                self.open(found, &reference)
            } else {
                self.flaws.insert(format!(
                    "has a `$ref` to `{}`, where there is no schema",
                    short(&reference)
                ));
                Value::Bool(false)
            };
            copies.insert(number.to_string(), copy);
        }
        if self.flaws.is_empty() {
            self.flaws.extend(weigh(&schema, &copies).err());
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
    fn child(&mut self, schema: &Value, at: &str) -> Value {
        let mut rewritten = self.open(schema, at);
        let (Value::Object(original), Value::Object(members)) = (schema, &mut rewritten) else {
            return rewritten;
        };
        let mut declared: BTreeMap<String, &str> = BTreeMap::new();
        let mut any = false;
        for part in in_place(self.root, schema) {
            let Some(properties) = part.get("properties").and_then(Value::as_object) else {
                continue;
            };
            any = true;
            for name in properties.keys() {
                if let Some(twin) = declared.insert(names::folded(name), name)
                    && twin != name
                {
                    let (one, other) = (short(twin), short(name));
                    self.flaws.insert(format!(
                        "declares `{one}` and `{other}`, which differ only in case or form"
                    ));
                }
            }
        }
        let says = original.contains_key("additionalProperties")
            || original.contains_key("unevaluatedProperties");
        if self.close && any && !says {
            members.insert("unevaluatedProperties".to_owned(), Value::Bool(false));
        }
        rewritten
    }

    /// Rewrites a schema without closing it: closes only the schemas of nested values.
    fn open(&mut self, schema: &Value, at: &str) -> Value {
        let Value::Object(members) = schema else {
            return schema.clone();
        };
        let mut rewritten = Map::new();
        for (keyword, value) in members {
            let keyword = keyword.as_str();
            let place = format!("{at}/{keyword}");
            if LEFT_OUT.contains(&keyword) {
                self.left_out(keyword, value, at);
                continue;
            }
            if REFUSED.contains(&keyword) {
                self.flaws
                    .insert(format!("says `{keyword}`, which is not supported"));
            }
            let value = if keyword == "$ref" {
                self.reference(value)
            } else if CHILD.contains(&keyword) {
                self.child(value, &place)
            } else if ASKING.contains(&keyword) {
                let close = std::mem::replace(&mut self.close, false);
                let asking = self.open(value, &place);
                self.close = close;
                asking
            } else if SAME.contains(&keyword) {
                self.open(value, &place)
            } else if CHILD_LIST.contains(&keyword) {
                self.each_of(value, &place, true)
            } else if SAME_LIST.contains(&keyword) {
                self.each_of(value, &place, false)
            } else if CHILD_MAP.contains(&keyword) {
                self.each_in(value, &place, true)
            } else if SAME_MAP.contains(&keyword) {
                self.each_in(value, &place, false)
            } else {
                value.clone()
            };
            rewritten.insert(keyword.to_owned(), value);
        }
        Value::Object(rewritten)
    }

    fn left_out(&mut self, keyword: &str, value: &Value, at: &str) {
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

    fn each_of(&mut self, list: &Value, at: &str, child: bool) -> Value {
        let Value::Array(schemas) = list else {
            return list.clone();
        };
        Value::Array(
            schemas
                .iter()
                .map(|schema| self.one(schema, at, child))
                .collect(),
        )
    }

    fn each_in(&mut self, map: &Value, at: &str, child: bool) -> Value {
        let Value::Object(schemas) = map else {
            return map.clone();
        };
        Value::Object(
            schemas
                .iter()
                .map(|(name, schema)| (name.clone(), self.one(schema, at, child)))
                .collect(),
        )
    }

    fn one(&mut self, schema: &Value, at: &str, child: bool) -> Value {
        if child {
            self.child(schema, at)
        } else {
            self.open(schema, at)
        }
    }

    fn reference(&mut self, value: &Value) -> Value {
        let Some(reference) = value
            .as_str()
            .filter(|reference| reference.starts_with('#'))
        else {
            self.flaws.insert(
                "has a `$ref` that does not begin with `#`; only places in the same schema can be used".to_owned(),
            );
            return value.clone();
        };
        let fresh = self.targets.len();
        let target = (reference.to_owned(), self.close);
        let number = *self.targets.entry(target.clone()).or_insert_with(|| {
            self.waiting.push(target);
            fresh
        });
        json!(format!("#/$defs/{number}"))
    }
}

/// Refuses a schema that applies more than [`WEIGHT`] schemas to any one value, or in which a
/// `$ref` leads back to itself for the same value.
fn weigh(schema: &Value, copies: &Map<String, Value>) -> Result<(), String> {
    let light = |weight: u64| {
        let is_light = weight <= WEIGHT;
        is_light
            .then_some(weight)
            .ok_or_else(|| "combines too many schemas for one value".to_owned())
    };
    let mut known = BTreeMap::new();
    for (number, copy) in copies {
        let weight = light(weight(copy, copies, &mut known, &mut vec![number])?)?;
        known.insert(number, weight);
    }
    light(weight(schema, copies, &mut known, &mut Vec::new())?).map(drop)
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
        } else if SAME.contains(&keyword) || ASKING.contains(&keyword) {
            total = total.saturating_add(weight(value, copies, known, path)?);
        } else if SAME_LIST.contains(&keyword) {
            for schema in value.as_array().into_iter().flatten() {
                total = total.saturating_add(weight(schema, copies, known, path)?);
            }
        } else if SAME_MAP.contains(&keyword) {
            for schema in value.as_object().into_iter().flat_map(Map::values) {
                total = total.saturating_add(weight(schema, copies, known, path)?);
            }
        }
    }
    Ok(total)
}

fn anchored<'s>(schema: &'s Value, anchor: &str) -> Option<&'s Value> {
    match schema {
        Value::Object(members) => {
            if members.get("$anchor").and_then(Value::as_str) == Some(anchor) {
                return Some(schema);
            }
            members.values().find_map(|member| anchored(member, anchor))
        }
        Value::Array(elements) => elements
            .iter()
            .find_map(|element| anchored(element, anchor)),
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

fn short(name: &str) -> &str {
    crate::task::text::cut(name, 80)
}

#[cfg(test)]
mod tests;
