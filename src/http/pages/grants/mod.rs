//! The page of standing decisions (`list`), and the operation that ends a standing decision
//! (`end`), which the page's form calls.

pub(crate) mod end;
pub(crate) mod list;
