//! `tools/list`: the gate's tools that the service itself runs. An MCP client sends the calls of
//! every listed tool to the server, so the tools that the asker runs are not listed.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::McpRequest;
use super::envelope::Params;
use super::json_rpc::RpcError;

/// The time for which a client may cache the list, in milliseconds.
pub(super) const TTL_MS: u32 = 60_000;

/// The tools of a gate as an MCP client sees them. `app/cards.rs` builds this value for each gate.
#[derive(Clone)]
pub(crate) struct GateTools {
    /// The member `tools` of the result of `tools/list`, as JSON text. The text is made once,
    /// because a list of a thousand tools is half a megabyte.
    pub listed: String,
    pub by_name: BTreeMap<String, ListedTool>,
}

#[derive(Clone)]
pub(crate) struct ListedTool {
    /// The check of structured results; `None` if the tool has no `outputSchema`.
    pub output: Option<OutputCheck>,
}

/// Checks whether a structured result fits the tool's `outputSchema`.
#[derive(Clone)]
pub(crate) struct OutputCheck(pub Arc<dyn Fn(&Value) -> bool + Send + Sync>);

impl McpRequest<'_> {
    /// Returns the result of `tools/list` as JSON text.
    pub(super) fn list_tools(&self, params: &Params) -> Result<String, RpcError> {
        if params
            .members
            .get("cursor")
            .is_some_and(|cursor| !cursor.is_null())
        {
            return Err(RpcError::invalid_params(
                "`cursor` is not a cursor of this server",
            ));
        }
        let tools = self.tools().map_or("[]", |tools| &tools.listed);
        Ok(if self.revision.is_stateless() {
            format!(
                r#"{{"resultType":"complete","tools":{tools},"ttlMs":{TTL_MS},"cacheScope":"private"}}"#
            )
        } else {
            format!(r#"{{"tools":{tools}}}"#)
        })
    }

    /// Returns the tool `name` if the service itself runs it.
    pub(super) fn tool(&self, name: &str) -> Option<&ListedTool> {
        self.tools()?.by_name.get(name)
    }

    fn tools(&self) -> Option<&GateTools> {
        self.http.gate_tools.get(&self.agent.name)
    }
}
