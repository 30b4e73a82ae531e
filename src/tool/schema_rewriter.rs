//! Rewrites a JSON Schema so that the schema refers to nothing outside itself. On request, the
//! rewriter also closes the schema and the schemas inside it, with `unevaluatedProperties: false`.
//! A closed schema refuses undeclared members; an open schema accepts them. Invariant:
//!
//! - `allOf`, `anyOf`, `oneOf`, `if`, `then`, `else`, `dependentSchemas` and `$ref` apply several
//!   schemas to one value. The outermost of these schemas is closed, and the others stay open: a
//!   closed branch would refuse the members that another branch declares.
//! - For the same reason, the copy of a `$ref`'s target in `$defs` stays open. The outermost schema
//!   with the `$ref` is closed instead.
//! - Schemas inside a condition (`not`, `if`, `contains`, `propertyNames`) stay open. Inside a
//!   `not`, for example, a closed schema would refuse more values, so the `not` would accept more.
//! - A schema that has `additionalProperties` or `unevaluatedProperties` keeps this keyword, and is
//!   not closed.
//! - If none of the schemas for a value has `properties`, they all stay open.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::names::{folded, shortened};
use super::schema::SchemaFlaw;
use crate::task::text::{nesting_depth, pointer, visit_values};

mod weight;

/// Keywords whose value is a schema for members or items of the described value.
const CHILD_KEYWORDS: [&str; 4] = [
    "additionalProperties",
    "items",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a condition. Schemas inside a condition stay open (see the module's
/// documentation).
const CONDITION_KEYWORDS: [&str; 4] = ["not", "if", "contains", "propertyNames"];
/// Keywords whose value is a list of schemas for items of the described list.
const CHILD_LIST_KEYWORDS: [&str; 1] = ["prefixItems"];
/// Keywords whose value maps names to schemas for members of the described object.
const CHILD_MAP_KEYWORDS: [&str; 2] = ["properties", "patternProperties"];
/// Keywords whose value is a schema for the value that the surrounding schema describes. The list
/// also has `contentSchema`, although this schema describes the decoded content. Its place in the
/// list has no effect, because draft 2020-12 checks no value against a `contentSchema`.
const IN_PLACE_KEYWORDS: [&str; 3] = ["then", "else", "contentSchema"];
/// Keywords whose value is a list of schemas for the value that the surrounding schema describes.
const IN_PLACE_LIST_KEYWORDS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords whose value maps names to schemas. Each of these schemas describes the same value as
/// the schema that has the keyword.
const IN_PLACE_MAP_KEYWORDS: [&str; 1] = ["dependentSchemas"];
/// Keywords that are not copied into the rewritten schema. Each `$ref` in the rewritten schema
/// leads to a copy in a new `$defs`, so no `$ref` needs these keywords.
const OMITTED_KEYWORDS: [&str; 6] = [
    "$schema",
    "$id",
    "$anchor",
    "$defs",
    "definitions",
    "$comment",
];
/// Keywords that are reported as flaws: draft 2020-12 would ignore them, or their meaning depends
/// on more than this schema.
const REFUSED_KEYWORDS: [&str; 6] = [
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "dependencies",
    "additionalItems",
];
const MAX_DEPTH: usize = 64;
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The result of [`rewrite`]. The schema is usable if `flaws` is empty.
pub(super) struct Rewritten {
    pub(super) schema: Value,
    pub(super) flaws: BTreeSet<SchemaFlaw>,
    /// The patterns in the original schema, by the JSON Pointers to their places.
    pub(super) patterns: BTreeMap<String, String>,
}

pub(super) struct Rewriter<'s> {
    root: &'s Value,
    /// Whether the schemas at the current place are closed (refuse undeclared members).
    close: bool,
    /// The targets of `$ref`s, each with the number of its copy in `$defs`. The key is the text of
    /// the `$ref`, and the value of `close` with which the target is rewritten. A target has two
    /// copies if it is rewritten with both values.
    targets: BTreeMap<(String, bool), usize>,
    /// The keys of the targets that are not copied yet.
    pending: Vec<(String, bool)>,
    flaws: BTreeSet<SchemaFlaw>,
    patterns: BTreeMap<String, String>,
}

/// Rewrites a schema: points each local `$ref` to a copy in `$defs` and, if `close` is true,
/// refuses undeclared members. The caller must have checked the schema with [`depth_flaw`].
pub(super) fn rewrite(schema: &Value, close: bool) -> Rewritten {
    let mut rewriter = Rewriter {
        root: schema,
        close,
        targets: BTreeMap::new(),
        pending: Vec::new(),
        flaws: BTreeSet::new(),
        patterns: BTreeMap::new(),
    };
    Rewritten {
        schema: rewriter.rewrite_root(),
        flaws: rewriter.flaws,
        patterns: rewriter.patterns,
    }
}

pub(super) fn depth_flaw(schema: &Value) -> Option<SchemaFlaw> {
    (nesting_depth(schema) > MAX_DEPTH)
        .then(|| SchemaFlaw::new("", format!("is nested deeper than {MAX_DEPTH}")))
}

/// Returns the schema that a local `$ref` names (by `#`, a JSON pointer or an anchor); `None` if
/// there is no such schema.
pub(super) fn resolve<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    locate(root, reference).map(|(_, schema)| schema)
}

/// Returns the JSON Pointer to the schema that [`resolve`] returns, and this schema.
fn locate<'s>(root: &'s Value, reference: &str) -> Option<(String, &'s Value)> {
    let fragment = reference.strip_prefix('#')?;
    let fragment = percent_encoding::percent_decode_str(fragment)
        .decode_utf8()
        .ok()?;
    let found = if fragment.is_empty() || fragment.starts_with('/') {
        let schema = root.pointer(&fragment)?;
        (fragment.into_owned(), schema)
    } else {
        find_anchor(root, &fragment)?
    };
    Some(found).filter(|(_, schema)| schema.is_object() || schema.is_boolean())
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
    fn rewrite_root(&mut self) -> Value {
        let mut schema = self.rewrite_child(self.root, "");
        let (mut copies, mut places) = (Map::new(), BTreeMap::new());
        while let Some(target) = self.pending.pop() {
            let number = self.targets.get(&target).copied().unwrap_or_default();
            let (reference, close) = target;
            self.close = close;
            // `rewrite_reference` reports a target that does not exist.
            let copy = if let Some((place, found)) = locate(self.root, &reference) {
                let copy = self.rewrite_open(found, &place);
                places.insert(number.to_string(), place);
                copy
            } else {
                Value::Bool(false)
            };
            copies.insert(number.to_string(), copy);
        }
        self.flaws.extend(weight::flaws(&schema, &copies, &places));
        if let (Value::Object(members), false) = (&mut schema, copies.is_empty()) {
            members.insert("$defs".to_owned(), Value::Object(copies));
        }
        schema
    }

    fn add_flaw(&mut self, place: impl Into<String>, detail: impl Into<String>) {
        self.flaws.insert(SchemaFlaw::new(place, detail));
    }

    /// Rewrites `schema`, which must be the outermost schema of a value: of the whole value, of a
    /// member or of an item. If `self.close` is true, also closes `schema` by the rules in the
    /// module's documentation. `rewrite_open` rewrites the further schemas of the same value, such
    /// as the elements of an `allOf`.
    fn rewrite_child(&mut self, schema: &Value, at: &str) -> Value {
        let mut rewritten = self.rewrite_open(schema, at);
        let (Value::Object(original), Value::Object(members)) = (schema, &mut rewritten) else {
            return rewritten;
        };
        let own = original.get("properties").and_then(Value::as_object);
        let mut declared: BTreeMap<String, &str> = BTreeMap::new();
        let mut has_properties = false;
        for part in in_place_schemas(self.root, schema) {
            let Some(properties) = part.get("properties").and_then(Value::as_object) else {
                continue;
            };
            has_properties = true;
            for name in properties.keys() {
                if let Some(twin) = declared.insert(folded(name), name)
                    && twin != name
                {
                    let is_own = |name: &str| own.is_some_and(|own| own.contains_key(name));
                    let place = if is_own(twin) && is_own(name) {
                        pointer(&pointer(at, "properties"), name)
                    } else {
                        at.to_owned()
                    };
                    let (one, other) = (shortened(twin), shortened(name));
                    self.add_flaw(
                        place,
                        format!(
                            "declares `{one}` and `{other}`, which differ only in case or form"
                        ),
                    );
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

    /// Rewrites a schema and leaves it open. If `self.close` is true, closes the schemas of the
    /// value's members and items.
    fn rewrite_open(&mut self, schema: &Value, at: &str) -> Value {
        let Value::Object(members) = schema else {
            return schema.clone();
        };
        let mut rewritten = Map::new();
        for (keyword, value) in members {
            let keyword = keyword.as_str();
            let place = pointer(at, keyword);
            if OMITTED_KEYWORDS.contains(&keyword) {
                self.check_omitted(keyword, value, at);
                continue;
            }
            if REFUSED_KEYWORDS.contains(&keyword) {
                self.add_flaw(
                    place.as_str(),
                    format!("says `{keyword}`, which is not supported"),
                );
            }
            self.collect_patterns(keyword, value, &place);
            let value = if keyword == "$ref" {
                self.rewrite_reference(value, &place)
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

    fn collect_patterns(&mut self, keyword: &str, value: &Value, place: &str) {
        if let ("pattern", Some(pattern)) = (keyword, value.as_str()) {
            self.patterns.insert(place.to_owned(), pattern.to_owned());
        } else if let ("patternProperties", Some(schemas)) = (keyword, value.as_object()) {
            let patterns = schemas.keys();
            self.patterns
                .extend(patterns.map(|pattern| (pointer(place, pattern), pattern.clone())));
        }
    }

    fn check_omitted(&mut self, keyword: &str, value: &Value, at: &str) {
        let place = pointer(at, keyword);
        if keyword == "$id" && !at.is_empty() {
            self.add_flaw(place.as_str(), "says `$id` inside, which is not supported");
        }
        if keyword == "$schema"
            && value.as_str().map(|dialect| dialect.trim_end_matches('#')) != Some(DIALECT)
        {
            self.add_flaw(place, format!("says another `$schema` than {DIALECT}"));
        }
    }

    fn rewrite_list(&mut self, list: &Value, at: &str, is_child: bool) -> Value {
        let Value::Array(schemas) = list else {
            return list.clone();
        };
        let schemas = schemas.iter().enumerate();
        let rewritten = schemas.map(|(index, schema)| {
            self.rewrite_one(schema, &pointer(at, &index.to_string()), is_child)
        });
        rewritten.collect()
    }

    fn rewrite_map(&mut self, map: &Value, at: &str, is_child: bool) -> Value {
        let Value::Object(schemas) = map else {
            return map.clone();
        };
        let rewritten = schemas.iter().map(|(name, schema)| {
            let schema = self.rewrite_one(schema, &pointer(at, name), is_child);
            (name.clone(), schema)
        });
        rewritten.collect()
    }

    fn rewrite_one(&mut self, schema: &Value, at: &str, is_child: bool) -> Value {
        if is_child {
            self.rewrite_child(schema, at)
        } else {
            self.rewrite_open(schema, at)
        }
    }

    fn rewrite_reference(&mut self, value: &Value, place: &str) -> Value {
        let Some(reference) = value
            .as_str()
            .filter(|reference| reference.starts_with('#'))
        else {
            self.add_flaw(
                place,
                "has a `$ref` that does not begin with `#`; only places in the same schema can be used",
            );
            return value.clone();
        };
        if resolve(self.root, reference).is_none() {
            self.add_flaw(
                place,
                format!(
                    "has a `$ref` to `{}`, where there is no schema",
                    shortened(reference)
                ),
            );
        }
        let next_number = self.targets.len();
        let target = (reference.to_owned(), self.close);
        let number = *self.targets.entry(target.clone()).or_insert_with(|| {
            self.pending.push(target);
            next_number
        });
        json!(format!("#/$defs/{number}"))
    }
}

/// Finds the first schema that has this anchor: `root` itself or a schema inside it. Returns the
/// JSON Pointer of the found schema, and the found schema.
fn find_anchor<'s>(root: &'s Value, anchor: &str) -> Option<(String, &'s Value)> {
    let mut found = None;
    visit_values(root, "", &mut |at, schema| {
        let own = schema.get("$anchor").and_then(Value::as_str);
        if found.is_none() && own == Some(anchor) {
            found = Some((at.to_owned(), schema));
        }
    });
    found
}

#[cfg(test)]
mod tests;
