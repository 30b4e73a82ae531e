//! Reads typed settings from the tree. serde stops at the first mistake. Therefore this module
//! reports the mistake, marks the mistake's node as broken, and reads again without the broken
//! nodes until serde finds no mistake. Invariant: a message quotes names of keys and the expected
//! form, but never a value.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeSeed, Expected, IntoDeserializer, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use super::tree::{Kind, MapEntry, Node};
use crate::world::Mistakes;

/// Reads a node as `T`, and reports every mistake below it. Nodes with mistakes are marked as
/// broken, and their settings get the defaults. `place` is the node's path from the root.
pub(crate) fn read<T: for<'de> Deserialize<'de> + Default>(
    node: &mut Node,
    place: &[&str],
    mistakes: &mut Mistakes,
) -> T {
    loop {
        let fault = match T::deserialize(Reader(node)) {
            Ok(value) => return value,
            Err(fault) => fault,
        };
        let path: Vec<String> = fault.path.iter().rev().cloned().collect();
        let full: Vec<&str> = place
            .iter()
            .copied()
            .chain(path.iter().map(String::as_str))
            .collect();
        mistakes.add(&full, fault.detail);
        if path.is_empty() || !mark_broken(node, &path) {
            node.broken = true;
            return T::default();
        }
    }
}

/// Marks the node at a path as broken. Returns false if there is no such node or it was broken
/// before.
pub(crate) fn mark_broken(node: &mut Node, path: &[String]) -> bool {
    let mut at = node;
    for step in path {
        let Some(next) = at.get_mut(step) else {
            return false;
        };
        at = next;
    }
    !std::mem::replace(&mut at.broken, true)
}

/// A mistake and its path below the node that is being read. The innermost step of the path comes
/// first.
#[derive(Debug)]
struct DecodeFault {
    path: Vec<String>,
    detail: String,
}

impl DecodeFault {
    fn within(mut self, step: impl Into<String>) -> Self {
        self.path.push(step.into());
        self
    }
}

impl fmt::Display for DecodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for DecodeFault {}

impl de::Error for DecodeFault {
    fn custom<T: fmt::Display>(detail: T) -> Self {
        Self {
            path: Vec::new(),
            detail: detail.to_string(),
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!(
            "expected {}, found {}",
            plain_words(expected),
            noun(found)
        ))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {}", plain_words(expected)))
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {}", plain_words(expected)))
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        Self::custom(format_args!("expected one of {}", listed(known)))
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        let fault = if known.is_empty() {
            Self::custom(format_args!("unknown key `{field}`; none is known here"))
        } else {
            Self::custom(format_args!(
                "unknown key `{field}`; known are {}",
                listed(known)
            ))
        };
        fault.within(field)
    }
}

/// Translates serde's description of an expected value into plain words.
fn plain_words(expected: &dyn Expected) -> String {
    let words = expected.to_string();
    let plain = match words.as_str() {
        "a string" | "string" | "str" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i64" | "i32" => "a whole number",
        "f64" => "a number",
        "unit" => "nothing",
        other if other.starts_with("struct ") || other == "a map" => "a map",
        other if other.starts_with("a sequence") => "a list",
        other if other.starts_with("enum ") => "a word",
        other => other,
    };
    plain.to_owned()
}

fn noun(found: Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "true or false",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_) => "a number",
        Unexpected::Char(_) | Unexpected::Str(_) | Unexpected::Bytes(_) => "text",
        Unexpected::Unit | Unexpected::Option => "nothing",
        Unexpected::Seq => "a list",
        Unexpected::Map => "a map",
        Unexpected::NewtypeStruct
        | Unexpected::Enum
        | Unexpected::UnitVariant
        | Unexpected::NewtypeVariant
        | Unexpected::TupleVariant
        | Unexpected::StructVariant
        | Unexpected::Other(_) => "something else",
    }
}

fn listed(words: &[&str]) -> String {
    words
        .iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

struct Reader<'n>(&'n Node);

impl<'de> de::Deserializer<'de> for Reader<'de> {
    type Error = DecodeFault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        match &self.0.kind {
            Kind::Null => visitor.visit_unit(),
            Kind::Bool(value) => visitor.visit_bool(*value),
            Kind::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), _, _) => visitor.visit_u64(number),
                (_, Some(number), _) => visitor.visit_i64(number),
                (_, _, number) => visitor.visit_f64(number.unwrap_or(f64::NAN)),
            },
            Kind::Text(text) => visitor.visit_borrowed_str(text),
            Kind::List(elements) => visitor.visit_seq(Elements(elements.iter().enumerate())),
            Kind::Map(entries) => visitor.visit_map(Entries {
                entries: entries.iter(),
                value: None,
            }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        match &self.0.kind {
            Kind::Null => visitor.visit_none(),
            Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) | Kind::List(_) | Kind::Map(_) => {
                visitor.visit_some(self)
            }
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        match self.0.text() {
            Some(text) => {
                visitor.visit_enum::<StrDeserializer<'_, DecodeFault>>(text.into_deserializer())
            }
            None => Err(de::Error::custom(format_args!(
                "expected one of {}, found {}",
                listed(words),
                self.0.noun()
            ))),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        match &self.0.kind {
            Kind::Map(_) => self.deserialize_any(visitor),
            // A list is not accepted as a struct. serde would take its elements as the values of
            // the fields.
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) | Kind::List(_) => Err(
                de::Error::custom(format_args!("expected a map, found {}", self.0.noun())),
            ),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// Iterates over the elements of a list, without the broken elements.
struct Elements<'n>(std::iter::Enumerate<std::slice::Iter<'n, Node>>);

impl<'de> de::SeqAccess<'de> for Elements<'de> {
    type Error = DecodeFault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeFault> {
        let Some((index, node)) = self.0.find(|(_, node)| !node.broken) else {
            return Ok(None);
        };
        seed.deserialize(Reader(node))
            .map(Some)
            .map_err(|fault| fault.within(index.to_string()))
    }
}

/// Iterates over the entries of a map, without the broken entries.
struct Entries<'n> {
    entries: std::slice::Iter<'n, MapEntry>,
    value: Option<&'n MapEntry>,
}

impl<'de> de::MapAccess<'de> for Entries<'de> {
    type Error = DecodeFault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeFault> {
        self.value = self.entries.find(|entry| !entry.node.broken);
        let Some(entry) = self.value else {
            return Ok(None);
        };
        seed.deserialize(StrDeserializer::<DecodeFault>::new(&entry.key))
            .map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, DecodeFault> {
        let Some(entry) = self.value.take() else {
            return Err(de::Error::custom("a value without its key"));
        };
        seed.deserialize(Reader(&entry.node))
            .map_err(|fault| fault.within(entry.key.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tree;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default, deny_unknown_fields)]
    struct Settings {
        name: String,
        count: u32,
        word: Word,
        list: Vec<u8>,
        by_name: BTreeMap<String, Inner>,
        maybe: Option<bool>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default, deny_unknown_fields)]
    struct Inner {
        a: String,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        #[default]
        One,
        Two,
    }

    #[test]
    fn every_mistake_of_one_map_is_found_and_the_rest_is_read() {
        let text = "name: 7\ncount: many\nword: sk-hidden\nlist: [1, two, 3, 4000]\nby_name: {x: {a: ok, b: 1, c: 2}, y: 5}\nmaybe: ~\nother: 1\n";
        let mut mistakes = Mistakes::default();
        let mut node = tree::parse(text, None, &mut mistakes).unwrap();
        let settings: Settings = read(&mut node, &["top"], &mut mistakes);
        let found: Vec<_> = mistakes
            .found
            .iter()
            .map(|mistake| format!("{}: {}", mistake.place.join("."), mistake.detail))
            .collect();
        assert_eq!(
            found,
            [
                "top.name: expected text, found a number",
                "top.count: expected a whole number, 0 or more, found text",
                "top.word: expected one of `one`, `two`",
                "top.list.1: expected a whole number, 0 or more, found text",
                "top.list.3: expected a whole number, 0 or more",
                "top.by_name.x.b: unknown key `b`; known are `a`",
                "top.by_name.x.c: unknown key `c`; known are `a`",
                "top.by_name.y: expected a map, found a number",
                "top.other: unknown key `other`; known are `name`, `count`, `word`, `list`, `by_name`, `maybe`",
            ]
        );
        assert_eq!(settings.list, [1, 3]);
        assert_eq!(settings.by_name["x"].a, "ok");
    }
}
