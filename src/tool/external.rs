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

/// What a result has to be.
#[derive(Clone, Debug)]
pub struct Form {
    /// The schema as it was written, for whoever fills it in.
    pub schema: Value,
    /// The same, compiled.
    pub compiled: CompiledSchema,
}

impl Settings {
    /// The form of a result.
    pub(super) fn form(&self) -> Result<Option<Form>, Vec<String>> {
        let Some(schema) = &self.result else { return Ok(None) };
        let compiled = CompiledSchema::open(schema)?;
        Ok(Some(Form { schema: schema.clone(), compiled }))
    }
}
