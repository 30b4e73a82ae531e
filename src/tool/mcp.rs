//! A tool of an MCP server, as the catalog holds it. The module `mcp` performs the calls of such
//! tools.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// A tool of an MCP server. The entry's name replaces the tool's name at the server. A
/// `description` in the entry replaces the server's description.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "McpTool", extend("required" = ["server", "tool"]))]
pub struct Settings {
    /// The name of the server in `mcp`.
    pub server: String,
    /// The name of the tool at its server.
    pub tool: String,
    /// The tool's data from the lock file. `None` if the lock file does not have the tool, which is
    /// a mistake of the configuration.
    #[serde(skip)]
    pub reviewed: Option<ReviewedTool>,
}

/// The data from the lock file that is needed to call the tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReviewedTool {
    /// The digest of the tool's whole definition in the lock file.
    pub digest: String,
    /// The target of the calls, as people see it: the tool, the server, and either the server's URL
    /// (without its query) or `a process on this host`.
    pub target: String,
    /// The server's `timeout`, which limits one call.
    pub timeout: Duration,
    /// The names of the credentials that the server's headers refer to.
    pub needs: Vec<String>,
    /// Whether the server is a child process. If so, the server's code runs on this host.
    pub runs_locally: bool,
}
