//! All integration tests, in one crate.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]
#![expect(unreachable_pub, reason = "in a test crate nothing is public")]

mod api;
mod architecture;
mod chaos;
mod documentation;
mod engine;
mod first_run;
mod notify;
mod openapi;
mod operator;
mod packaging;
pub(crate) mod store;
mod support;
