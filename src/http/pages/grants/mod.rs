//! The page of standing decisions: what is not asked again (`list`), and ending it (`end`).

pub(crate) mod end;
pub(crate) mod list;
