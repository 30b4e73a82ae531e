//! The one integration-test crate.

mod api;
mod architecture;
mod chaos;
mod engine;
mod store;
mod support;
