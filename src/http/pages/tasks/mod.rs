//! The pages of tasks: a person's tasks (`list`), one task with its timeline (`show`), and the form
//! that cancels a task (`cancel`).

pub(crate) mod cancel;
pub(crate) mod list;
pub(crate) mod show;
mod timeline;
