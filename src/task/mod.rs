//! Defines the types that most modules use (task, item, request, decision …) and the function
//! `step::next_step`, which decides the next step of a task. The module is pure: it reads no clock,
//! does no I/O and has no mutable global state. It imports no other top-level module.

#![warn(missing_docs)]

pub(crate) mod apply_decision;
pub(crate) mod asker;
pub mod call_state;
pub mod change;
pub mod credential;
pub(crate) mod decimal;
pub mod decision;
pub mod delta;
pub mod elicitation;
pub mod event_name;
pub mod failure;
pub mod grant;
pub mod id;
pub mod item;
pub(crate) mod json_members;
pub(crate) mod limits;
pub(crate) mod mcp_revision;
pub mod operator_text;
pub(crate) mod planned_request;
pub mod progress;
pub(crate) mod quarantine;
pub(crate) mod rejections;
pub mod request;
pub(crate) mod request_kind;
pub(crate) mod request_state;
pub(crate) mod restore;
pub mod status;
pub mod step;
pub(crate) mod text;
pub(crate) mod text_safety;
pub mod time;
pub mod tool_spec;
pub mod transcript;
pub(crate) mod tree;
pub(crate) mod units;
pub mod user;
pub mod verdict;
pub(crate) mod words;
