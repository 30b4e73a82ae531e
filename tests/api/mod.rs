//! The service as a client sees it, over real HTTP.

mod answers;
mod asking;
mod attacks;
mod bodies;
mod conversations;
pub(crate) mod cycle;
mod decided;
mod document;
mod doors;
mod endings;
mod hostile;
mod kept;
mod kinds;
mod logs;
mod matrix;
mod order;
mod pages;
mod people;
mod races;
mod repeats;
mod sign_in;
mod superseded;
mod tasks;
mod trees;
