//! The service as a client sees it, over real HTTP.

mod answers;
mod attacks;
mod bodies;
mod conversations;
pub(crate) mod cycle;
mod document;
mod hostile;
mod kept;
mod logs;
mod order;
mod pages;
mod people;
mod races;
mod repeats;
mod sign_in;
mod tasks;
