//! Reads JSON and refuses an object with duplicate members. Another program could use the first of
//! the duplicates where this service uses the last, and so act on a different value of the same
//! text. [`StrictValue`] reads a whole value. [`Members`] reads the members of one object and keeps
//! each value as its exact text.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// Maximum number of members of an object that [`Members`] reads. The limit bounds the parsing
/// time, because each name is compared with all names before it.
const MAX_MEMBERS: usize = 64;

/// Message of the errors for a duplicate member.
pub(crate) const REPEATED_MEMBER: &str = "A member is repeated";

/// Message of the errors of [`Members`] for too many members.
pub(crate) const TOO_MANY_MEMBERS: &str = "An object has too many members";

/// Message of the errors of [`StrictValue`] for JSON with too many levels of lists and objects.
pub(crate) const TOO_DEEP: &str = "The JSON is nested too deeply";

/// The members of an object in the order of the text. No name occurs twice.
#[derive(Debug)]
pub(crate) struct Members<'t>(pub(crate) Vec<(String, &'t RawValue)>);

impl<'t> Deserialize<'t> for Members<'t> {
    fn deserialize<D: Deserializer<'t>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'t> Visitor<'t> for MembersVisitor {
    type Value = Members<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Members<'t>, A::Error> {
        let mut members: Vec<(String, &'t RawValue)> = Vec::new();
        while let Some((name, text)) = map.next_entry::<String, &'t RawValue>()? {
            if members.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(REPEATED_MEMBER));
            }
            if members.len() >= MAX_MEMBERS {
                return Err(A::Error::custom(TOO_MANY_MEMBERS));
            }
            members.push((name, text));
        }
        Ok(Members(members))
    }
}

/// A deserializer seed that reads a JSON value and fails if an object at any depth has a duplicate
/// member. It also fails if lists and objects are nested in more levels than the field allows.
pub(crate) struct StrictValue(pub(crate) usize);

impl<'de> DeserializeSeed<'de> for StrictValue {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl StrictValue {
    fn deeper<E: serde::de::Error>(&self) -> Result<usize, E> {
        self.0.checked_sub(1).ok_or_else(|| E::custom(TOO_DEEP))
    }
}

impl<'de> Visitor<'de> for StrictValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut list = Vec::new();
        while let Some(value) = members.next_element_seed(StrictValue(depth))? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = members.next_value_seed(StrictValue(depth))?;
            if map.insert(name, value).is_some() {
                return Err(A::Error::custom(REPEATED_MEMBER));
            }
        }
        Ok(Value::Object(map))
    }
}
