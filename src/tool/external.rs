//! Tools that the caller performs: a spec and the schema of the result. The engine asks for the
//! result; this file calls nothing.

use serde_json::Value;

use super::schema::CompiledSchema;

/// `external:` of a tool.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// JSON Schema of the result; without it any result is accepted.
    pub result: Option<Value>,
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
