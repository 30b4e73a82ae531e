//! Tools of MCP servers (Model Context Protocol): the client, the reviewed definitions, and their
//! comparison with what the servers say now. Revisions 2025-06-18, 2025-11-25 and 2026-07-28.

// mod live;
pub mod lock;
mod param_headers;
pub mod settings;
// mod tool;

pub use lock::Lock;
pub use settings::Settings;
// pub use tool::Servers;
