//! Reads the members of a JSON object, each with the exact text of its value. An object with a
//! duplicate member is refused, because two parsers could choose different values.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Maximum number of members of an object. The limit bounds the parsing time, because each name is
/// compared with all names before it.
const MAX_MEMBERS: usize = 64;

/// Message of the errors for a duplicate member and for too many members.
pub(crate) const REPEATED_MEMBER: &str = "A member is repeated";

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
            if members.len() >= MAX_MEMBERS || members.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(REPEATED_MEMBER));
            }
            members.push((name, text));
        }
        Ok(Members(members))
    }
}

/// A JSON value in which no object has a duplicate member, at any depth. Keeps nothing of the value.
#[derive(Debug)]
pub(crate) struct UniqueMembers;

impl<'t> Deserialize<'t> for UniqueMembers {
    fn deserialize<D: Deserializer<'t>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UniqueMembersVisitor)
    }
}

struct UniqueMembersVisitor;

impl<'t> Visitor<'t> for UniqueMembersVisitor {
    type Value = UniqueMembers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<UniqueMembers, E> {
        Ok(UniqueMembers)
    }

    fn visit_i64<E>(self, _: i64) -> Result<UniqueMembers, E> {
        Ok(UniqueMembers)
    }

    fn visit_u64<E>(self, _: u64) -> Result<UniqueMembers, E> {
        Ok(UniqueMembers)
    }

    fn visit_f64<E>(self, _: f64) -> Result<UniqueMembers, E> {
        Ok(UniqueMembers)
    }

    fn visit_str<E>(self, _: &str) -> Result<UniqueMembers, E> {
        Ok(UniqueMembers)
    }

    fn visit_unit<E>(self) -> Result<UniqueMembers, E> {
        Ok(UniqueMembers)
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut list: A) -> Result<UniqueMembers, A::Error> {
        while list.next_element::<UniqueMembers>()?.is_some() {}
        Ok(UniqueMembers)
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<UniqueMembers, A::Error> {
        let mut names = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let UniqueMembers = map.next_value()?;
            if !names.insert(name) {
                return Err(A::Error::custom(REPEATED_MEMBER));
            }
        }
        Ok(UniqueMembers)
    }
}
