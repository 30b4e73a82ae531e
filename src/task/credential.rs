//! Sealed credentials that a person provided for one task. Invariant: a sealed value is bound to
//! its tenant, task, request and name. If the value is copied to a row in which any of these four
//! differs, unsealing fails.

use std::fmt;
use std::time::Duration;

use super::id::{RequestId, TaskId};
use super::time::Time;

/// A credential that a change writes. The credential replaces the task's earlier credential with
/// the same name.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedCredential {
    /// Name of the credential in the configuration.
    pub name: String,
    /// Request whose answer provided the credential.
    pub request_id: RequestId,
    /// Id of the key that sealed the value.
    pub key_id: String,
    /// Base64 of the nonce and the ciphertext.
    pub text: String,
    /// Lifetime of the credential, counted from the commit; `None` if the credential lasts until
    /// the task ends.
    pub expires_in: Option<Duration>,
}

impl fmt::Debug for SealedCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedCredential({})", self.name)
    }
}

/// A stored credential, still sealed.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialRow {
    /// Task that the credential was provided for.
    pub task_id: TaskId,
    /// Name of the credential in the configuration.
    pub name: String,
    /// Request whose answer provided the credential.
    pub request_id: RequestId,
    /// Id of the key that sealed the value.
    pub key_id: String,
    /// Base64 of the nonce and the ciphertext.
    pub text: String,
    /// Time of the commit that wrote the row.
    pub created_at: Time,
    /// End of the credential's lifetime. `None` if the credential lasts until the task ends.
    pub expires_at: Option<Time>,
}

impl fmt::Debug for CredentialRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CredentialRow({} of {})", self.name, self.task_id)
    }
}

/// Returns the values to which a sealed credential is bound. `tenant` and `task` are those of the
/// task that the credential was provided for.
#[must_use]
pub fn credential_associated_data<'b>(
    tenant: &'b str,
    task: &'b TaskId,
    request: &'b RequestId,
    name: &'b str,
) -> [&'b [u8]; 4] {
    [
        tenant.as_bytes(),
        task.0.as_bytes(),
        request.0.as_bytes(),
        name.as_bytes(),
    ]
}
