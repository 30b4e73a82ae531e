//! `tools/list`: the gate's tools that the service itself runs. An MCP client lets the server run
//! every listed tool, so the tools that the asker runs are not listed.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use super::McpRequest;
use super::envelope::Params;
use super::json_rpc::RpcError;

/// The time for which a client may cache the list, in milliseconds.
pub(super) const TTL_MS: u32 = 60_000;

/// A tool as an MCP client sees it. `app/cards.rs` builds the definitions for all gates.
#[derive(Clone, Debug)]
pub(crate) struct ToolDefinition {
    pub name: String,
    /// The tool's entry in the result of `tools/list`.
    pub definition: Value,
    /// The check of structured results; `None` if the tool has no `outputSchema`.
    pub output: Option<OutputCheck>,
}

/// Checks whether a structured result fits the tool's `outputSchema`.
#[derive(Clone)]
pub(crate) struct OutputCheck(pub Arc<dyn Fn(&Value) -> bool + Send + Sync>);

impl fmt::Debug for OutputCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OutputCheck")
    }
}

impl McpRequest<'_> {
    pub(super) fn list_tools(&self, params: &Params) -> Result<Value, RpcError> {
        if params
            .members
            .get("cursor")
            .is_some_and(|cursor| !cursor.is_null())
        {
            return Err(RpcError::invalid_params(
                "`cursor` is not a cursor of this server",
            ));
        }
        let tools: Vec<&Value> = self.tools().iter().map(|tool| &tool.definition).collect();
        Ok(if self.revision.is_stateless() {
            json!({"resultType": "complete", "tools": tools, "ttlMs": TTL_MS, "cacheScope": "private"})
        } else {
            json!({ "tools": tools })
        })
    }

    /// Returns the tool `name` if the service itself runs it.
    pub(super) fn tool(&self, name: &str) -> Option<&ToolDefinition> {
        self.tools().iter().find(|tool| tool.name == name)
    }

    fn tools(&self) -> &[ToolDefinition] {
        let tools = self.http.gate_tools.get(&self.agent.name);
        tools.map_or(&[], Vec::as_slice)
    }
}
