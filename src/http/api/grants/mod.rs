//! Standing decisions: one file for each operation.

pub(crate) mod end;
pub(crate) mod list;
