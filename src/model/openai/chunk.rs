//! Parses one chunk of a streamed answer. An answer has hundreds of chunks, and each repeats the
//! id, the model and the time. So only the members that are read become values.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// The members of a chunk that are read; `Null` for a missing member. If a chunk repeats a member,
/// the last value counts, as in a [`Value`].
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) choices: Value,
    pub(super) error: Value,
    pub(super) object: Value,
    pub(super) usage: Value,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum ChunkMember {
    Choices,
    Error,
    Object,
    Usage,
    #[serde(other)]
    Unread,
}

struct ChunkVisitor;

impl<'de> Visitor<'de> for ChunkVisitor {
    type Value = Chunk;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a chunk")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Chunk, A::Error> {
        let mut chunk = Chunk::default();
        while let Some(member) = members.next_key()? {
            let value = match member {
                ChunkMember::Choices => &mut chunk.choices,
                ChunkMember::Error => &mut chunk.error,
                ChunkMember::Object => &mut chunk.object,
                ChunkMember::Usage => &mut chunk.usage,
                ChunkMember::Unread => {
                    members.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *value = members.next_value()?;
        }
        Ok(chunk)
    }
}

impl<'de> Deserialize<'de> for Chunk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ChunkVisitor)
    }
}
