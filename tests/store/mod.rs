//! Tests the store: one conformance suite that runs on both databases, and tests of the
//! peculiarities of each database.

pub(crate) mod busy_writer;
mod claim;
mod commit;
mod commit_joins;
pub(crate) mod connection_loss;
mod contention;
mod credentials;
mod database_identity;
mod deliveries;
mod events;
mod gate_calls;
mod gate_quarantine;
mod gathered;
mod grants;
mod idempotency_keys;
mod lock_order;
mod notices;
mod open;
mod page_reads;
mod posted;
mod random_inboxes;
mod reads;
mod relay;
mod request_reads;
mod requests;
mod schema;
mod sessions;
mod sqlite_reads;
pub(crate) mod store_fixture;
mod tree_commit;
mod tree_reads;
mod user_spellings;
