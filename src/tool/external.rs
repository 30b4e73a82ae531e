//! Tools that the caller performs: a spec and the form of the result. The engine asks for the result; nothing is called
//! here.

use serde_json::Value;

use super::schema::CompiledSchema;

/// `external:` of a tool.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// JSON Schema of the result; without one anything is a result.
    pub result: Option<Value>,
}

impl Settings {
    /// The schema of a result, where it can be used as one.
    pub(super) fn form(&self) -> Result<Option<Value>, Vec<String>> {
        if let Some(schema) = &self.result {
            CompiledSchema::open(schema)?;
        }
        Ok(self.result.clone())
    }
}
