//! The sealed link of a message, as the guard opens it from the path of an HTTP request.

use crate::task::id::RequestId;
use crate::task::time::Time;

/// The content of the sealed link in the path of an HTTP request. The guard (`server/guard.rs`)
/// opens the link and stores this struct for every operation of `AuthClass::Link`, in the
/// extensions of the request.
#[derive(Clone, Debug)]
pub(crate) struct CurrentLink {
    pub request_id: RequestId,
    pub expires_at: Time,
    /// The e-mail address of the person to whom the link was sent, if the configuration has it.
    pub email: Option<String>,
    /// The path of the link's page, including the path of `public_url`.
    pub path: String,
    /// The path that is stored with an idempotency key. A sealed link gives the right to decide and
    /// must not be stored, so this path has the id of the link's request in place of the link.
    pub stored_path: String,
}
