//! The top-level modules. `ARCHITECTURE.md` describes each module; `tests/architecture.rs` checks
//! which other modules each module may import.
//!
//! | module | what it is for |
//! |---|---|
//! | [`task`] | the domain types, and the pure function that decides a task's next step |
//! | [`people`] | authenticates callers and authorizes them |
//! | [`policy`] | turns a tool call into a verdict |
//! | [`model`] | asks a language model |
//! | [`tool`] | performs calls over HTTP or in a shell |
//! | [`mcp`] | the client of MCP servers, and the reviewed definitions of their tools |
//! | [`agent`] | the settings and the pinned definitions of agents and gates |
//! | [`store`] | stores all data, on SQLite or Postgres |
//! | [`engine`] | drives tasks |
//! | [`notify`] | sends messages about commits |
//! | [`http`] | the HTTP server; no other module answers HTTP requests |
//! | [`asker`] | the client of a gate, for hooks and scripts |
//!
//! Further modules: [`world`] (time, ids, randomness), [`net`] (outbound HTTP), [`secret`],
//! [`failpoint`], [`config`], [`telemetry`], [`app`], [`cli`].

pub mod agent;
pub mod app;
pub mod asker;
pub mod cli;
pub mod config;
pub mod engine;
pub mod failpoint;
pub mod http;
pub mod mcp;
pub mod model;
pub mod net;
pub mod notify;
pub mod people;
pub mod policy;
pub mod secret;
pub mod store;
pub mod task;
pub mod telemetry;
pub mod tool;
pub mod world;
