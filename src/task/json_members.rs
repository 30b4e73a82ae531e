//! Reads the members of a JSON object, each with the exact text of its value. An object with a
//! duplicate member is refused, because two parsers could choose different values.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
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
