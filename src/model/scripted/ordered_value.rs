//! A JSON value whose objects keep their members in the order of the file.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum OrderedValue {
    Text(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
    /// Null, a boolean or a number.
    Scalar(Value),
}

impl OrderedValue {
    /// Returns the value of an object's member. `None` for a missing member, and for any value that
    /// is no object.
    pub(super) fn member(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else {
            return None;
        };
        let mut members = members.iter();
        members.find_map(|(key, value)| (key == name).then_some(value))
    }

    /// Returns the elements of a list. There are none if the value is no list.
    pub(super) fn elements(&self) -> &[Self] {
        match self {
            Self::List(elements) => elements,
            Self::Text(_) | Self::Object(_) | Self::Scalar(_) => &[],
        }
    }
}

impl From<&OrderedValue> for Value {
    fn from(value: &OrderedValue) -> Self {
        match value {
            OrderedValue::Text(text) => Self::String(text.clone()),
            OrderedValue::List(elements) => elements.iter().map(Self::from).collect(),
            OrderedValue::Object(members) => members
                .iter()
                .map(|(name, value)| (name.clone(), Self::from(value)))
                .collect(),
            OrderedValue::Scalar(value) => value.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for OrderedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = OrderedValue;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<OrderedValue, E> {
        Ok(OrderedValue::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<OrderedValue, E> {
        Ok(OrderedValue::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<OrderedValue, E> {
        Ok(OrderedValue::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<OrderedValue, E> {
        Ok(OrderedValue::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<OrderedValue, E> {
        Ok(OrderedValue::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<OrderedValue, E> {
        Ok(OrderedValue::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<OrderedValue, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(OrderedValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<OrderedValue, A::Error> {
        let mut object = Vec::new();
        while let Some(member) = members.next_entry()? {
            object.push(member);
        }
        Ok(OrderedValue::Object(object))
    }
}
