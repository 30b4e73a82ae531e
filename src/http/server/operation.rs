//! What an operation declares of itself: its id, who gets in, the size of its body, its problems.

use super::problem::Code;

/// The body of most operations.
pub(crate) const SMALL: usize = 1024 * 1024;
/// The body of a message, which may carry images.
pub(crate) const LARGE: usize = 20 * 1024 * 1024;

/// One operation.
#[derive(Debug)]
pub(crate) struct Op {
    /// Its stable `operationId`.
    pub id: &'static str,
    /// Who gets in.
    pub auth: AuthClass,
    /// How many bytes its body may have.
    pub body: usize,
    /// The problems it can answer with, beside those of its authentication.
    pub problems: &'static [Code],
}

/// Who gets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthClass {
    /// Whoever has a key, or a session that is alive.
    Key,
    /// The same, and whoever has a session that is over: the way out.
    Out,
    /// Everybody.
    Open,
    /// Everybody, by whatever name or proxy: whether the service lives.
    Health,
}
