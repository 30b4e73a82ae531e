//! The inbox in a browser: what waits for a person (`list`), what is decided (`decided`), and the
//! line that leads from one question to the next (`next_question`). No decision is taken in a list.

pub(crate) mod decided;
pub(crate) mod home;
pub(crate) mod list;
pub(crate) mod next_question;
pub(crate) mod rows;
pub(crate) mod script;
#[cfg(test)]
mod tests;
pub(crate) mod words;
