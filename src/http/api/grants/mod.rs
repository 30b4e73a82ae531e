//! The operations on standing decisions, one file each.

pub(crate) mod end;
pub(crate) mod list;
