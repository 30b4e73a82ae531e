//! One conformance suite, run on both engines, and the traps of each.

mod claim;
mod commit;
mod contention;
mod credentials;
mod events;
pub(crate) mod house;
mod identity;
mod keys;
pub(crate) mod loss;
mod open;
mod order;
mod reads;
mod relay;
mod requests;
mod schema;
mod sessions;
mod tree;
mod tree_commit;
mod users;
