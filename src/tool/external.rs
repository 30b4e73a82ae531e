//! Tools that the API's client performs: the spec of such a tool and the schema of its result. The
//! engine asks the client for the result.
//!
//! A gate may also judge calls of tools that are not configured ([`unconfigured`]). The arguments
//! of such a call may be any JSON object, and the effect is `once`.

use std::sync::LazyLock;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::catalog::{CatalogEntry, definition_digest};
use super::schema::{CompiledSchema, SchemaFlaw};
use crate::task::tool_spec::{Effect, ToolKind, ToolSpec};

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
    json_schema!({"type": ["object", "boolean", "null"]})
}

impl Settings {
    /// Returns the schema of the result; `None` if any result is accepted.
    ///
    /// # Errors
    /// Fails if the schema has flaws. The error lists the flaws.
    pub(super) fn result_schema(&self) -> Result<Option<Value>, Vec<SchemaFlaw>> {
        if let Some(schema) = &self.result {
            CompiledSchema::open(schema)?;
        }
        Ok(self.result.clone())
    }
}

/// The target of an external tool's calls, as approvers see it.
pub(super) const TARGET: &str = "external";

/// The maximum length of the name of a tool that is not configured, in bytes.
const MAX_NAME_BYTES: usize = 128;

static ANY_OBJECT: LazyLock<Option<CompiledSchema>> =
    LazyLock::new(|| CompiledSchema::closed(&any_object()).ok());

fn any_object() -> Value {
    json!({"type": "object"})
}

/// Returns the catalog entry of a tool that is not configured; `None` if the name is not allowed.
pub(super) fn unconfigured(name: &str) -> Option<CatalogEntry> {
    let letter = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(letter) {
        return None;
    }
    let (kind, effect, parameters) = (ToolKind::External, Effect::Once, any_object());
    let definition = definition_digest(&json!({
        "kind": kind, "target": TARGET, "effect": effect.as_str(), "headers": null, "env": null,
        "parameters": parameters,
    }));
    let spec = ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        parameters,
        effect,
        kind,
        target: TARGET.to_owned(),
        summary: None,
        timeout: Duration::ZERO,
        definition,
        needs: Vec::new(),
    };
    Some(CatalogEntry::without_tool(spec, ANY_OBJECT.clone()?))
}
