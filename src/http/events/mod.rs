//! Event streams: what a tree's journal says, as it is written (contract, section 6).
//!
//! A stream listens first, then reads the rows after its marker until there are no more, then waits for a word that there
//! are. The rows are the truth; what models are saying meanwhile passes by and is never waited for.

pub(crate) mod opening;
mod partial;
mod reader;
mod request_then;
pub(crate) mod seats;
mod sse;
pub(crate) mod stream;
