//! The operations on the caller's inbox: the list of requests, and its stream. The operations on a
//! single request also serve pages, so they are in `pages/resume/`.

pub(crate) mod events;
pub(crate) mod list;
