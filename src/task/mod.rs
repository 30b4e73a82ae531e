//! The nouns of the contract, and `step::next_step`. Pure: no clock, no I/O, no memory. Every room
//! may import this room, which imports no other.

#![warn(missing_docs)]

pub mod apply_decision;
pub mod call_state;
pub mod change;
pub mod credential;
pub mod decision;
pub mod delta;
pub mod failure;
pub mod id;
pub mod item;
pub mod limits;
pub mod quarantine;
pub mod question;
pub mod rejections;
pub mod request;
pub mod request_kind;
pub mod request_state;
pub mod restore;
pub mod status;
pub mod step;
pub mod text;
pub mod text_safety;
pub mod time;
pub mod tool_spec;
pub mod transcript;
pub mod tree;
pub mod turn;
pub mod units;
pub mod user;
pub mod verdict;
