//! What an agent is made of, and the digest of it.

use crate::task::limits::Limits;

/// One agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The model it asks, by name.
    pub model: String,
    /// The system prompt; empty is none.
    pub instructions: String,
    /// The tools it is offered, by name.
    pub tools: Vec<String>,
    /// `sha256:…` over its definition, from unexpanded values: no secret can enter it.
    pub version: String,
    /// Its limits.
    pub limits: Limits,
    /// Who may use it.
    pub open_to: Option<OpenTo>,
}

/// Who may use an agent; anybody who is in one of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenTo {
    /// Tenants.
    pub tenants: Vec<String>,
    /// Users.
    pub users: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
}
