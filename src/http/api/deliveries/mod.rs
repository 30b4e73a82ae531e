//! The operations on deliveries of messages, one file each. Only admins may call them.

mod keyed;
pub(crate) mod list;
pub(crate) mod resend;
pub(crate) mod resend_many;
