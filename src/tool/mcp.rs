//! A tool of an MCP server, as the catalog holds it. The module `mcp` performs the tool's calls.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// A tool of an MCP server. Its name and texts here are the configuration's own.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "McpTool")]
pub struct Settings {
    /// The name of the server in `mcp`.
    pub server: String,
    /// The name of the tool at its server.
    pub tool: String,
    /// The tool as the lock file has it. `None` if the lock file does not have the tool, which is a
    /// mistake of the configuration.
    #[serde(skip)]
    pub reviewed: Option<ReviewedTool>,
}

/// The reviewed data of a tool that its calls depend on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReviewedTool {
    /// The digest of the whole definition in the lock file.
    pub digest: String,
    /// The address of the server for a person, without credentials and query.
    pub target: String,
    /// The server's `timeout`, which limits one call.
    pub timeout: Duration,
    /// The names of the credentials that the server's headers refer to.
    pub needs: Vec<String>,
    /// Whether the server is a child process, so that its code runs on this host.
    pub runs_locally: bool,
}
