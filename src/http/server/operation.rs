//! What an operation declares of itself: its id, who gets in, the size of its body, its problems.

use super::problem::Code;

/// The body of most operations.
pub(crate) const SMALL: usize = 1024 * 1024;
/// The body of a message, which may carry images.
pub(crate) const LARGE: usize = 20 * 1024 * 1024;

/// The declaration of an operation.
#[derive(Debug)]
pub(crate) struct Op {
    /// Its stable `operationId`.
    pub id: &'static str,
    /// Which callers it admits.
    pub auth: AuthClass,
    /// How many bytes its body may have.
    pub body: usize,
    /// The problems it can answer with, beside those of its authentication.
    pub problems: &'static [Code],
}

/// Which callers an operation admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthClass {
    /// Callers with a key or a live session.
    Key,
    /// The same, and callers with an expired session: sign-out.
    Out,
    /// Everyone.
    Open,
    /// Everyone, by any host name and through any proxy: health checks.
    Health,
}
