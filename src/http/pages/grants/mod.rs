//! The page of standing decisions (`list`), and the operation of the page's form that ends a
//! standing decision (`end`).

pub(crate) mod end;
pub(crate) mod list;
