//! The types that a tool's JSON Schema gives to arguments. A value gets its type from the schema
//! before a rule reads the value, so that `5` of type `number` is the double 5.0 and `"5"` is not a
//! number.

use std::collections::BTreeMap;

use serde_json::Value;

/// The maximum number of schema parts that are read. All further parts are untyped.
const MAX_PARTS: usize = 2000;
const MAX_DEPTH: usize = 16;

/// The declared type of a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    Null,
    Bool,
    Int,
    Double,
    Text,
    List(Box<Shape>),
    /// An object with these members. A rule cannot read any other member.
    Object(BTreeMap<String, Member>),
    /// The type is not known before evaluation; for example, `task.metadata` has this shape. A rule
    /// may read the members of such a value.
    Free,
    /// The schema declares no type, or several types. A rule cannot read a value of this shape or
    /// its members.
    Untyped,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub(super) shape: Shape,
    pub(super) required: bool,
}

impl Shape {
    /// Returns the shape of a tool's arguments, which is always `Shape::Object`.
    pub(super) fn from_parameters(parameters: &Value) -> Self {
        let shape = SchemaReader::new(parameters).shape(parameters, 0);
        if let Self::Object(_) = shape {
            return shape;
        }
        Self::Object(SchemaReader::new(parameters).members(&[parameters], 0))
    }

    /// Whether each part of `value` has the type that this shape declares. A part without a
    /// declared type always fits.
    pub(super) fn fits(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Free | Self::Untyped, _)
            | (Self::Null, Value::Null)
            | (Self::Bool, Value::Bool(_))
            | (Self::Text, Value::String(_)) => true,
            (Self::Int, Value::Number(number)) => integer(number).is_some(),
            (Self::Double, Value::Number(number)) => number.as_f64().is_some_and(f64::is_finite),
            (Self::List(item), Value::Array(items)) => items.iter().all(|value| item.fits(value)),
            (Self::Object(members), Value::Object(object)) => object.iter().all(|(name, value)| {
                members
                    .get(name)
                    .is_none_or(|member| member.shape.fits(value))
            }),
            _ => false,
        }
    }

    /// Returns the type's name in JSON Schema, for the texts of mistakes.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "boolean",
            Self::Int => "integer",
            Self::Double => "number",
            Self::Text => "string",
            Self::List(_) => "array",
            Self::Object(_) => "object",
            Self::Free | Self::Untyped => "any type",
        }
    }
}

/// Returns a JSON number as an integer; `5.0` is 5. Returns `None` for a number with a fraction,
/// for an integer that does not fit `i64`, and for a double beyond ±2^53.
#[expect(clippy::cast_possible_truncation, reason = "whole and within 2^53")]
pub(super) fn integer(number: &serde_json::Number) -> Option<i64> {
    number.as_i64().or_else(|| {
        let double = number.as_f64()?;
        (double.fract() == 0.0 && double.abs() <= 9_007_199_254_740_992.0).then_some(double as i64)
    })
}

struct SchemaReader<'a> {
    root: &'a Value,
    remaining_parts: usize,
}

impl<'a> SchemaReader<'a> {
    fn new(root: &'a Value) -> Self {
        Self {
            root,
            remaining_parts: MAX_PARTS,
        }
    }

    fn shape(&mut self, schema: &'a Value, depth: usize) -> Shape {
        if self.remaining_parts == 0 || depth > MAX_DEPTH {
            return Shape::Untyped;
        }
        self.remaining_parts -= 1;
        let mut facets = Vec::new();
        self.facets(schema, 0, &mut facets);
        match single_type(&facets) {
            Some("null") => Shape::Null,
            Some("boolean") => Shape::Bool,
            Some("integer") => Shape::Int,
            Some("number") => Shape::Double,
            Some("string") => Shape::Text,
            Some("array") => Shape::List(Box::new(self.items(&facets, depth))),
            Some("object") => Shape::Object(self.members(&facets, depth)),
            _ => Shape::Untyped,
        }
    }

    /// Collects into `found` the schema itself and all other schemas that a value of this schema
    /// must satisfy: the targets of local references, and the parts of `allOf`.
    fn facets(&self, schema: &'a Value, depth: usize, found: &mut Vec<&'a Value>) {
        if depth > MAX_DEPTH || found.len() >= 64 {
            return;
        }
        found.push(schema);
        if let Some(target) = schema.get("$ref").and_then(Value::as_str)
            && let Some(target) = target
                .strip_prefix('#')
                .and_then(|pointer| self.root.pointer(pointer))
        {
            self.facets(target, depth + 1, found);
        }
        let parts = schema.get("allOf").and_then(Value::as_array);
        for part in parts.into_iter().flatten() {
            self.facets(part, depth + 1, found);
        }
    }

    fn items(&mut self, facets: &[&'a Value], depth: usize) -> Shape {
        if facets
            .iter()
            .any(|facet| facet.get("prefixItems").is_some())
        {
            return Shape::Untyped;
        }
        let mut items = facets.iter().filter_map(|facet| facet.get("items"));
        match (items.next(), items.next()) {
            (Some(schema), None) => self.shape(schema, depth + 1),
            _ => Shape::Untyped,
        }
    }

    fn members(&mut self, facets: &[&'a Value], depth: usize) -> BTreeMap<String, Member> {
        let mut members: BTreeMap<String, Member> = BTreeMap::new();
        for facet in facets {
            let properties = facet.get("properties").and_then(Value::as_object);
            for (name, schema) in properties.into_iter().flatten() {
                let shape = self.shape(schema, depth + 1);
                match members.get_mut(name) {
                    None => {
                        let member = Member {
                            shape,
                            required: false,
                        };
                        members.insert(name.clone(), member);
                    }
                    Some(known) if known.shape == Shape::Untyped => known.shape = shape,
                    Some(known) if shape != Shape::Untyped && shape != known.shape => {
                        known.shape = Shape::Untyped;
                    }
                    Some(_) => {}
                }
            }
        }
        for facet in facets {
            let required = facet.get("required").and_then(Value::as_array);
            for name in required.into_iter().flatten().filter_map(Value::as_str) {
                if let Some(member) = members.get_mut(name) {
                    member.required = true;
                }
            }
        }
        members
    }
}

/// Returns the type of a value that satisfies all these schemas. `None` if they declare no type, or
/// more than one type.
fn single_type<'a>(facets: &[&'a Value]) -> Option<&'a str> {
    let mut single = None;
    for declared in facets.iter().filter_map(|facet| facet.get("type")) {
        let declared = match declared {
            Value::String(name) => name.as_str(),
            Value::Array(names) => match names.as_slice() {
                [Value::String(name)] => name.as_str(),
                _ => return None,
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
        };
        if single.is_some_and(|single| single != declared) {
            return None;
        }
        single = Some(declared);
    }
    single
}
