//! Deliveries of messages, for admins: one file for each operation.

pub(crate) mod list;
pub(crate) mod resend;
pub(crate) mod resend_many;
