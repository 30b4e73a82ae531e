//! The page of standing decisions (`list`), and the form on it that ends a standing decision
//! (`end`).

pub(crate) mod end;
pub(crate) mod list;
