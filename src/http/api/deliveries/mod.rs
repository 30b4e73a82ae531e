//! The operations on deliveries of messages, one file each. Only admins may call them, or every
//! caller of a service without accounts.

mod keyed;
pub(crate) mod list;
pub(crate) mod resend;
pub(crate) mod resend_many;
