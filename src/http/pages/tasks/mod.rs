//! The pages of tasks: a person's tasks (`list`), and one task with its timeline (`show`).

pub(crate) mod list;
pub(crate) mod show;
mod timeline;
