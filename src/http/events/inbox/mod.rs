//! The stream of an inbox: what waits for one caller, then what changes. It has no numbers and
//! nothing to resume: each connection begins with the state.
//!
//! One reader for each tenant (`tail`) hears of touched requests and reads their rows once for all
//! streams of the process. Each stream derives from a row what it means to its caller (`view`).
//!
//! Invariant: `view` is the only place that decides whether a stream tells its caller of a request.

mod stream;
pub(crate) mod tail;
mod view;

pub(crate) use self::stream::open;
pub(crate) use self::view::COUNTED;
