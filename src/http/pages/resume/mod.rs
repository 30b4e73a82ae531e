//! The operations on one request, for people and for programs: a GET returns the request as a page
//! or as JSON, and a POST takes an answer as a form or as JSON.

pub(crate) mod decide;
mod decision_body;
pub(crate) mod show;
