//! The door of whoever decides: a request as JSON and as a page, and the answers to it. Reading changes nothing.

pub mod again;
pub mod answer;
pub mod approve;
pub mod approve_page;
pub mod decide;
pub mod form;
pub mod page;
pub mod reject;
pub mod reject_page;
pub mod schema;
pub mod show;
pub mod words;
