//! The one crate of integration tests, so that there is one thing to link.

mod store;
mod support;
