//! The declaration of an operation: its id, its callers, the limit of its body, and its problems.

use super::problem::Code;

/// The maximum body size of most operations, in bytes.
pub(crate) const SMALL_BODY: usize = 1024 * 1024;
/// The maximum body size of an operation that takes a message, in bytes. A message may contain
/// images.
pub(crate) const LARGE_BODY: usize = 20 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Op {
    /// The stable `operationId` in the OpenAPI document.
    pub id: &'static str,
    pub auth: AuthClass,
    pub max_body_bytes: usize,
    /// The problems that the operation can respond with, in addition to the common problems of its
    /// `auth`.
    pub problems: &'static [Code],
}

/// The callers that an operation admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthClass {
    /// Callers with a key or an active session.
    Key,
    /// The person to whom the sealed link in the path was sent. Keys and cookies are ignored.
    Link,
    /// Like `Key`, and also callers with an expired session. Sign-out uses this class.
    SignOut,
    /// Everyone, with or without a key.
    Open,
    /// Proxies that call over gRPC. The operation checks the key itself, because gRPC reports a
    /// refusal differently from HTTP.
    Gateway,
    /// Everyone, by any host name and through any proxy. Health checks use this class.
    Health,
}
