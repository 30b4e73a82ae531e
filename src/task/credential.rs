//! What a person filled in for one task, sealed. What must stay true: what is sealed is bound to tenant, task, request
//! and name, so that a row that was moved or renamed does not open.

use std::fmt;
use std::time::Duration;

use super::id::{RequestId, TaskId};
use super::time::Time;

/// A credential that a change writes: it takes the place of the task's earlier one of that name.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedCredential {
    /// Its name in the configuration.
    pub name: String,
    /// The request that was answered with it.
    pub request_id: RequestId,
    /// The key that sealed it.
    pub key_id: String,
    /// What was sealed.
    pub text: String,
    /// How long it lasts, in database time; `None`: until the task ends.
    pub expires_in: Option<Duration>,
}

impl fmt::Debug for SealedCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedCredential({})", self.name)
    }
}

/// A credential as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialRow {
    /// The task it was given to.
    pub task_id: TaskId,
    /// Its name in the configuration.
    pub name: String,
    /// The request that was answered with it.
    pub request_id: RequestId,
    /// The key that sealed it.
    pub key_id: String,
    /// What was sealed.
    pub text: String,
    /// When it was written.
    pub created_at: Time,
    /// From when on it is over.
    pub expires_at: Option<Time>,
}

impl fmt::Debug for CredentialRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CredentialRow({} of {})", self.name, self.task_id)
    }
}

/// What a sealed credential is bound to. The tenant and the task are those of the task's own row.
#[must_use]
pub fn credential_bound<'b>(tenant: &'b str, task: &'b TaskId, request: &'b RequestId, name: &'b str) -> [&'b [u8]; 4] {
    [tenant.as_bytes(), task.0.as_bytes(), request.0.as_bytes(), name.as_bytes()]
}
