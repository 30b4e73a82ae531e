//! The door of whoever decides: a request as JSON and as a page, and the answers to it. Reading changes nothing.

pub mod answer;
pub mod approve;
pub mod approve_page;
pub mod decide;
pub mod page;
pub mod reject;
pub mod reject_page;
pub mod show;
