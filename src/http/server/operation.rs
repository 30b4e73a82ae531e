//! The declaration of an operation: its id, its callers, the limit of its body, its problems.

use super::problem::Code;

/// The limit of most operations' bodies, in bytes.
pub(crate) const SMALL_BODY: usize = 1024 * 1024;
/// The limit of a message's body, in bytes: a message may carry images.
pub(crate) const LARGE_BODY: usize = 20 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Op {
    /// The stable `operationId` in the OpenAPI document.
    pub id: &'static str,
    /// The callers that the operation admits.
    pub auth: AuthClass,
    /// The largest body, in bytes.
    pub max_body_bytes: usize,
    /// The problems that the operation can respond with, in addition to those of authentication.
    pub problems: &'static [Code],
}

/// The callers that an operation admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthClass {
    /// Callers with a key or a live session.
    Key,
    /// The person of the sealed link in the path. No key and no cookie counts.
    Link,
    /// Like `Key`, and callers with an expired session: sign-out.
    SignOut,
    /// Everyone.
    Open,
    /// Gateways. The operation checks the key itself, because gRPC has its own form of refusals.
    Gateway,
    /// Everyone, by any host name and through any proxy: health checks.
    Health,
}
