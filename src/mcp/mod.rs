//! Tools of MCP servers (Model Context Protocol): the client, the reviewed definitions, and their
//! comparison with what the servers say now. Revisions 2025-06-18, 2025-11-25 and 2026-07-28.

pub mod settings;

pub use settings::Settings;
