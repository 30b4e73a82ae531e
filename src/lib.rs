//! The map of the rooms. `ARCHITECTURE.md` says why they are what they are; `tests/architecture.rs` checks who
//! may import whom.
//!
//! | room | what it is for |
//! |---|---|
//! | [`task`] | the nouns and what happens next; pure |
//! | [`people`] | who somebody is and what he may |
//! | [`policy`] | turns a tool call into a verdict |
//! | [`model`] | asks a language model |
//! | [`tool`] | performs a call |
//! | [`agent`] | what an agent is made of |
//! | [`store`] | every byte we keep |
//! | [`engine`] | makes tasks move |
//! | [`http`] | the only room that speaks HTTP |
//!
//! Beside them: [`world`] (time, ids), [`net`] (outbound HTTP), [`secret`], [`failpoint`], [`config`], [`telemetry`], [`app`], [`cli`].

pub mod agent;
pub mod app;
pub mod cli;
pub mod config;
pub mod engine;
pub mod failpoint;
pub mod http;
pub mod model;
pub mod net;
pub mod people;
pub mod policy;
pub mod secret;
pub mod store;
pub mod task;
pub mod telemetry;
pub mod tool;
pub mod world;
