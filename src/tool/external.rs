//! Tools that the API's client performs: a spec and the schema of the result. The engine asks for
//! the result; this file calls nothing.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;

use super::schema::CompiledSchema;

/// A tool that the caller performs. The caller posts the result.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "ExternalTool")]
pub struct Settings {
    /// The JSON Schema of the result. Default: any result is accepted.
    #[schemars(schema_with = "any_schema")]
    pub result: Option<Value>,
}

fn any_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["object", "boolean"]})
}

impl Settings {
    /// The schema of the result, if it is valid.
    pub(super) fn form(&self) -> Result<Option<Value>, Vec<String>> {
        if let Some(schema) = &self.result {
            CompiledSchema::open(schema)?;
        }
        Ok(self.result.clone())
    }
}
