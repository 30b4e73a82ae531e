//! Tools of MCP servers (Model Context Protocol): the client, the reviewed definitions, and the
//! comparison of the reviewed with the current definitions. Supports the revisions 2025-06-18,
//! 2025-11-25 and 2026-07-28.

mod child;
mod client;
mod comparison;
mod content;
mod elicitation;
#[cfg(test)]
mod fake;
mod listing;
pub mod lock;
mod oauth;
mod param_headers;
mod reader;
mod refusal;
mod review;
pub mod settings;
mod stdio;
mod streamable;
mod tool;
mod wire;

pub use lock::Lock;
pub(crate) use review::review;
pub use review::{Review, removal_report};
pub use settings::Settings;
pub use tool::Servers;
pub(crate) use tool::list;
